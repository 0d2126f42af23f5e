"""The first command: real paired runs on a fresh machine, then their report and pages."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from runs.domain import render
from runs.domain.plan import BenchmarkSpec, ExperimentSpec
from runs.management.running import duration, faults_as_exit_codes, run_to_end
from runs.models import Experiment, ExperimentStatus
from runs.services.auditing import EMBEDDED_MODEL, embedded_cell
from runs.services.lifecycle import resume
from runs.services.planning import SlugTaken, plan_experiment
from runs.services.preparing import prepare
from runs.services.reporting import report_of
from runs.tasks import process_grader
from workbench.management.serving import invite, stay_up
from workbench.supervise import Web, services

USER = "demo"


class Command(BaseCommand):
    help = "Run real paired runs with a small embedded model, print the report and serve the pages."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--no-serve", action="store_true", help="end after the report instead of serving"
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")

    def handle(self, *args: Any, **options: Any) -> None:
        _in_own_data_folder()
        _migrate()
        with faults_as_exit_codes():
            experiment = _plan()
            with services(model=True, web=Web()) as running:
                invite(name=USER, say=self.stdout.write)
                self._run(experiment)
                report = report_of(experiment)
                if options["json"]:
                    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
                    options["json"].write_text(text + "\n", encoding="utf-8")
                self.stdout.write(render.table(report))
                self.stdout.write(
                    "To see it again: python3 manage.py demo (nothing is run twice). "
                    f"It lives in {settings.DATA_DIR}, apart from your own experiments."
                )
                if not options["no_serve"]:
                    self.stdout.write(f"Serving {running.web_url} until Ctrl-C.")
                    self.stdout.flush()
                    stay_up()

    def _run(self, experiment: Experiment) -> None:
        if experiment.status == ExperimentStatus.FINISHED:
            self.stdout.write(
                "The demo's pairs are finished already; nothing is run again. "
                f"To start afresh, delete {settings.DATA_DIR}"
            )
            return
        self.stdout.write(
            "Running each task twice, with and without skills. The model is a demonstration "
            "model of 135M parameters: it may fail on any long prompt, so its numbers are no "
            "finding about skills."
        )
        self.stdout.flush()
        began = time.monotonic()
        if experiment.status == ExperimentStatus.PAUSED:
            resume(experiment=experiment, actor=None, at=timezone.now())
        run_to_end(experiment)
        self.stdout.write(f"Paired runs took {duration(time.monotonic() - began)}.")


def demo_spec(slug: str) -> ExperimentSpec:
    """Return the demo's experiment: 24 starter tasks and 8 of HumanEval, coding skills."""
    return ExperimentSpec(
        slug=slug,
        models=(EMBEDDED_MODEL,),
        benchmarks=(BenchmarkSpec("starter", size=24), BenchmarkSpec("humaneval", size=8)),
        cells=(embedded_cell("coding"),),
    )


def _plan() -> Experiment:
    """Return the demo's experiment; a newer product's other plan stands beside the old one."""
    number = 1
    while True:
        spec = demo_spec("demo" if number == 1 else f"demo-{number}")
        partitions = prepare(spec=spec, open_grader=process_grader)
        try:
            return plan_experiment(spec=spec, partitions=partitions, at=timezone.now())
        except SlugTaken:
            number += 1


def _in_own_data_folder() -> None:
    """Run on in a data folder of the demo's own, below the configured one."""
    if settings.DATA_DIR.name != "demo":
        environment = {**os.environ, "WORKBENCH_DATA": str(settings.DATA_DIR / "demo")}
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)


def _migrate() -> None:
    """Bring the schema up to date, after a copy of an older database."""
    if connection.vendor == "sqlite" and connection.introspection.table_names():
        _copy_if_older()
    call_command("migrate", verbosity=0)


def _copy_if_older() -> None:
    executor = MigrationExecutor(connection)
    if not executor.migration_plan(executor.loader.graph.leaf_nodes()):
        return
    source = Path(settings.DATABASES["default"]["NAME"])
    target = source.with_suffix(f".before-{timezone.now():%Y%m%dT%H%M%S}.sqlite3")
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
