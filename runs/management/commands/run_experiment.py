"""Plan and run an experiment from its file."""

from __future__ import annotations

from math import ceil, floor
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from runs.domain import render
from runs.domain.plan import parse_experiment
from runs.management.running import (
    EXIT_INPUT,
    at_least_one,
    check_before_start,
    duration,
    faults_as_exit_codes,
    line_writer,
    run_to_end,
)
from runs.models import Experiment, ExperimentStatus
from runs.services.lifecycle import WrongStatus
from runs.services.naming import check_names
from runs.services.planning import Layout, lay_out, plan_experiment
from runs.services.preparing import prepare
from runs.services.probing import ModelEstimate, probe
from runs.services.reporting import report_of
from runs.tasks import process_grader
from workbench.supervise import services


class Command(BaseCommand):
    help = "Plan the experiment in FILE.toml, start it, wait for its end and print its report."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, metavar="FILE.toml")
        parser.add_argument(
            "--probe",
            action="store_true",
            help="run three pairs per model and benchmark, print what it all takes, and stop there",
        )
        parser.add_argument(
            "--plan-only", action="store_true", help="store the plan and start nothing"
        )
        parser.add_argument(
            "--concurrency", type=at_least_one, default=2, help="workers (default 2)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"can't read {path}: {error}", returncode=EXIT_INPUT) from error
        with faults_as_exit_codes():
            spec = parse_experiment(text, path=str(path))
            check_names(text=text, path=str(path))
            partitions = prepare(spec=spec, open_grader=process_grader)
            if options["plan_only"]:
                plan_experiment(spec=spec, partitions=partitions, at=timezone.now(), toml=text)
                self.stdout.write(
                    f"planned: {spec.slug}. Start it with: "
                    f"python3 manage.py experiment start {spec.slug}"
                )
                return
            with services(model=spec.embedded, concurrency=options["concurrency"]) as running:
                check_before_start(spec, running)
                if options["probe"]:
                    layout = lay_out(spec=spec, partitions=partitions)
                    self._probe(layout, options["concurrency"])
                    return
                experiment = plan_experiment(
                    spec=spec, partitions=partitions, at=timezone.now(), toml=text
                )
                run_to_end(experiment)
            self.stdout.write(render.table(report_of(experiment)))

    def _probe(self, layout: Layout, workers: int) -> None:
        """Run the probe and print what the whole will take.

        Raises:
            WrongStatus: the experiment has begun; a probe comes before that.
        """
        slug = layout.spec.slug
        stored = Experiment.objects.filter(slug=slug).first()
        if stored and stored.status != ExperimentStatus.PLANNED:
            raise WrongStatus(f"'{slug}' is {stored.status}: it needs no probe")
        say = line_writer()
        for estimate in probe(layout, say=lambda run: say(run.text)):
            self.stdout.write(estimate_lines(estimate, workers))
        self.stdout.write(
            "Nothing was planned or started; the probe's calls won't be repeated while the file, "
            "its tasks and its skills stay as they are."
        )


def estimate_lines(estimate: ModelEstimate, workers: int) -> str:
    """Return a probe's estimate as text; what is unknown is called unknown."""

    def shown(value: float | None, form: str) -> str:
        return "unknown" if value is None else format(value, form)

    seconds = None if estimate.seconds is None else estimate.seconds / workers
    return "\n".join(
        [
            f"{estimate.model}, from {estimate.probed} probe pairs:",
            *(
                f"  {probe.probed} pairs of cell {probe.cell} ({probe.name}) on "
                f"{probe.benchmark}: a skill returned in {probe.returned}"
                for probe in estimate.probes
            ),
            f"  searched in {estimate.call_rate:.0%} of the SE runs; "
            f"about {estimate.expected_n_cond:.0f} of {estimate.pairs} pairs with a skill returned "
            f"(95% limits {floor(estimate.n_cond_low)} to {ceil(estimate.n_cond_high - 1e-9)})",
            f"  {estimate.executions} runs, about {estimate.calls:.0f} calls, "
            f"{shown(estimate.tokens, '.0f')} tokens, cost {shown(estimate.cost, '.2f')}",
            f"  about {duration(seconds) if seconds is not None else 'unknown time'} "
            f"with {workers} workers",
        ]
    )
