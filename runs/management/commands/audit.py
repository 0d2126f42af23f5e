"""Audit one's own skills directory in one command."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from runs.domain import render
from runs.domain.plan import DIALECTS, EMBEDDED, ModelSpec, url_fault
from runs.management.running import (
    EXIT_INPUT,
    at_least_one,
    check_before_start,
    faults_as_exit_codes,
    run_to_end,
    where_to_look,
)
from runs.models import Partition
from runs.services.auditing import (
    EMBEDDED_MODEL,
    audit_spec,
    named_by_content,
    skill_lines,
    skill_table,
)
from runs.services.planning import plan_experiment
from runs.services.preparing import prepare
from runs.services.reporting import report_of
from runs.tasks import process_grader
from skills.domain.skillfile import LoadedLibrary, slugify
from skills.management.commands.import_skills import left_out_lines
from skills.services.importing import import_skills, read_directories
from workbench.supervise import services


class Command(BaseCommand):
    help = (
        "Run the tasks with and without the skills below DIR and report what the skills did to "
        "the tasks where they were returned. Exit codes: 0 finished, 2 input, 3 infrastructure."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "directory", type=Path, metavar="DIR", help="the folder that holds the skills"
        )
        parser.add_argument(
            "--tasks", required=True, help="a suite (starter, starter-math, humaneval) or a file"
        )
        parser.add_argument(
            "--model",
            help="model id at the endpoint (default: the embedded demonstration model, whose "
            "figures say nothing about skills)",
        )
        parser.add_argument("--base-url", help="an OpenAI-compatible endpoint")
        parser.add_argument(
            "--api-key-env", help="environment variable of the key (default OPENAI_API_KEY if set)"
        )
        parser.add_argument(
            "--dialect",
            choices=DIALECTS,
            default="native",
            help="json_action for endpoints without tool calls (default native)",
        )
        parser.add_argument("--n", type=at_least_one, help="how many of the tasks (default all)")
        parser.add_argument(
            "--seed", type=int, default=42, help="chooses tasks and seeds generation (default 42)"
        )
        parser.add_argument(
            "--concurrency", type=at_least_one, default=2, help="workers (default 2)"
        )
        parser.add_argument(
            "--skip-invalid", action="store_true", help="leave out skills that can't be read"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        model = _model(options)
        call_command("migrate", verbosity=0)
        with faults_as_exit_codes():
            loaded = self._read(options["directory"], skip_invalid=options["skip_invalid"])
            slug = slugify(options["directory"].resolve().name) or "skills"
            library = import_skills(loaded=loaded, library_slug=slug).library
            spec = audit_spec(
                library=slug,
                source=options["tasks"],
                size=options["n"],
                model=model,
                seed=options["seed"],
            )
            partitions = prepare(spec=spec, open_grader=process_grader)
            spec = named_by_content(spec, library=library, partitions=partitions.values())
            self._introduce(loaded, partitions.values(), model)
            with services(model=spec.embedded, concurrency=options["concurrency"]) as running:
                check_before_start(spec, running)
                experiment = plan_experiment(spec=spec, partitions=partitions, at=timezone.now())
                run_to_end(experiment)
        report = report_of(experiment)
        self.stdout.write(render.table(report))
        self.stdout.write(skill_table(skill_lines(experiment)))
        if not any(cell["n_cond"] for cell in report["cells"]):
            self.stdout.write(
                "No verdict: no skill was returned on any of these tasks, so they can't show what "
                "the skills do. Audit with tasks that the skills are meant for."
            )
        self.stdout.write(where_to_look(f"experiments/{experiment.slug}/"))

    def _read(self, directory: Path, *, skip_invalid: bool) -> LoadedLibrary:
        """Return what the folder holds, told in full where it isn't all usable.

        Raises:
            CommandError: some of it isn't, and ``skip_invalid`` isn't set.
        """
        loaded = read_directories([directory])
        left_out = left_out_lines(loaded)
        for line in left_out:
            self.stderr.write(line)
        if left_out and not skip_invalid:
            raise CommandError(
                f"{len(left_out)} places above must be corrected, or pass --skip-invalid",
                returncode=EXIT_INPUT,
            )
        return loaded

    def _introduce(
        self, loaded: LoadedLibrary, partitions: Iterable[Partition], model: ModelSpec
    ) -> None:
        """Say what is about to run, and with which model."""
        names = ", ".join(skill.slug for skill in loaded.clean)
        tasks = sum(partition.size for partition in partitions)
        self.stderr.write(f"Skills:  {len(loaded.clean)} ({names})")
        left_out = len(loaded.skills) - len(loaded.clean) + len(loaded.invalid)
        if left_out:
            self.stderr.write(f"         {left_out} left out: see the lines above")
        self.stderr.write(f"Tasks:   {tasks}, each run with and without the skills")
        note = ""
        if model == EMBEDDED_MODEL:
            note = (
                " (embedded, for demonstration: its figures say nothing about your skills; for "
                "your own model give --model and --base-url)"
            )
        self.stderr.write(f"Model:   {model.id}{note}")


def _model(options: dict[str, Any]) -> ModelSpec:
    """Return the model that the options name; without any, the embedded one.

    Raises:
        CommandError: a base URL without a model, or the other way round.
    """
    base_url = options["base_url"] or settings.OPENAI_BASE_URL
    if base_url == EMBEDDED or not (base_url or options["model"]):
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
