"""Audit one's own skills directory in one command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from runs.domain import render
from runs.domain.plan import DIALECTS, ModelSpec, url_fault
from runs.management.commands.run_experiment import run_to_end
from runs.management.running import EXIT_INPUT, faults_as_exit_codes
from runs.models import ExperimentStatus
from runs.services.auditing import EMBEDDED_MODEL, audit_spec, skill_lines, skill_table
from runs.services.planning import plan_experiment
from runs.services.preparing import check_endpoints, prepare
from runs.services.reporting import report_of
from runs.tasks import process_grader
from skills.domain.skillfile import slugify
from skills.management.commands.import_skills import left_out_lines
from skills.services.importing import import_skills, read_directories
from workbench.supervise import services


class Command(BaseCommand):
    help = (
        "Run the tasks with and without the skills below DIR and report what the skills did to "
        "the tasks where they were returned. Exit codes: 0 finished, 2 input, 3 infrastructure."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("directory", type=Path, metavar="DIR")
        parser.add_argument(
            "--tasks", required=True, help="a suite (starter, starter-math, humaneval) or a file"
        )
        parser.add_argument("--model", help="model id at the endpoint")
        parser.add_argument("--base-url", help="an OpenAI-compatible endpoint")
        parser.add_argument(
            "--api-key-env", help="environment variable of the key (default OPENAI_API_KEY if set)"
        )
        parser.add_argument("--dialect", choices=DIALECTS, default="native")
        parser.add_argument("--n", type=int, help="how many of the tasks (default all)")
        parser.add_argument("--seed", type=int, default=42)
        parser.add_argument("--concurrency", type=int, default=2)
        parser.add_argument(
            "--skip-invalid", action="store_true", help="leave out skills that can't be read"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        model = _model(options)
        call_command("migrate", verbosity=0)
        with faults_as_exit_codes():
            loaded = read_directories([options["directory"]])
            left_out = left_out_lines(loaded)
            for line in left_out:
                self.stderr.write(line)
            if left_out and not options["skip_invalid"]:
                raise CommandError(
                    f"{len(left_out)} places above must be corrected, or pass --skip-invalid",
                    returncode=EXIT_INPUT,
                )
            import_skills(loaded=loaded, library_slug=slugify(options["directory"].resolve().name))
            spec = audit_spec(
                directory=options["directory"],
                source=options["tasks"],
                size=options["n"],
                model=model,
                seed=options["seed"],
            )
            partitions = prepare(spec=spec, open_grader=process_grader)
            experiment = plan_experiment(spec=spec, partitions=partitions, at=timezone.now())
            with services(model=model is EMBEDDED_MODEL, concurrency=options["concurrency"]):
                if experiment.status == ExperimentStatus.PLANNED:
                    check_endpoints(spec)
                run_to_end(experiment)
        report = report_of(experiment)
        self.stdout.write(render.table(report))
        self.stdout.write(skill_table(skill_lines(experiment)))
        if not any(cell["n_cond"] for cell in report["cells"]):
            self.stdout.write(
                "No verdict: no skill was returned on any of these tasks, so they can't show what "
                "the skills do. Audit with tasks that the skills are meant for."
            )
        self.stdout.write(
            "The same as pages: http://127.0.0.1:8000"
            f"/experiments/{experiment.slug}/ while python3 manage.py serve runs"
        )


def _model(options: dict[str, Any]) -> ModelSpec:
    """Return the model that the options name; without any, the embedded one.

    Raises:
        CommandError: a base URL without a model, or the other way round.
    """
    base_url = options["base_url"] or settings.OPENAI_BASE_URL
    if not base_url and not options["model"]:
        return EMBEDDED_MODEL
    if not (base_url and options["model"]):
        raise CommandError(
            "an endpoint needs both --model and --base-url (or OPENAI_BASE_URL); with neither, "
            "the embedded demonstration model runs",
            returncode=EXIT_INPUT,
        )
    fault = url_fault(base_url)
    if fault:
        raise CommandError(fault.replace("api_key_env", "--api-key-env"), returncode=EXIT_INPUT)
    key = options["api_key_env"] or ("OPENAI_API_KEY" if "OPENAI_API_KEY" in os.environ else None)
    return ModelSpec(
        id=options["model"], base_url=base_url, api_key_env=key, dialect=options["dialect"]
    )
