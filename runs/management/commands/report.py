"""Print an experiment's report."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from runs.domain import render
from runs.management.running import faults_as_exit_codes
from runs.selectors import experiment_by_slug
from runs.services.reporting import report_of

FORMATS = {
    "table": render.table,
    "json": lambda report: json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False),
    "csv": render.csv_text,
    "markdown": render.markdown,
}


class Command(BaseCommand):
    help = "Print the report of EXPERIMENT: what skills did to the tasks where they were returned."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug", metavar="EXPERIMENT")
        parser.add_argument("--format", choices=tuple(FORMATS), default="table")

    def handle(self, *args: Any, **options: Any) -> None:
        with faults_as_exit_codes():
            report = report_of(experiment_by_slug(options["slug"]))
        self.stdout.write(FORMATS[options["format"]](report))
