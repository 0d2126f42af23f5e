"""Act on a stored experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from runs.domain.plan import from_json
from runs.management.running import (
    EXIT_INPUT,
    check_before_start,
    faults_as_exit_codes,
    progress_line,
    run_to_end,
)
from runs.models import Experiment, ExperimentStatus
from runs.selectors import experiment_by_slug
from runs.services import lifecycle
from runs.services.progress import progress_of
from runs.services.rescoring import rescore
from runs.tasks import process_grader
from workbench.supervise import services

ACTIONS = ("list", "status", "start", "pause", "resume", "cancel", "retry", "rescore")


class Command(BaseCommand):
    help = (
        "List the experiments, or act on one: status; start, resume or retry (its runs without a "
        "result) and wait for the end; pause; cancel, for good; rescore its stored answers "
        "without calling a model."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("action", choices=ACTIONS)
        parser.add_argument("slug", metavar="EXPERIMENT", nargs="?", help="all but list need one")
        parser.add_argument("--reason", default="", help="why, for pause and cancel")
        parser.add_argument(
            "--no-wait", action="store_true", help="leave the work to workers that already run"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        action, now = options["action"], timezone.now()
        if action == "list":
            for one in Experiment.objects.order_by("-created_at"):
                self.stdout.write(f"{one.slug}  {one.status}  planned {one.created_at:%Y-%m-%d}")
            return
        if not options["slug"]:
            raise CommandError(f"{action} needs an experiment's name", returncode=EXIT_INPUT)
        with faults_as_exit_codes():
            experiment = experiment_by_slug(options["slug"])
            if action in ("start", "resume", "retry"):
                self._run(experiment, action, wait=not options["no_wait"])
            elif action == "pause":
                reason = options["reason"] or "paused from the command line"
                lifecycle.pause(experiment=experiment, reason=reason, actor=None, at=now)
            elif action == "cancel":
                reason = options["reason"] or "cancelled from the command line"
                lifecycle.cancel(experiment=experiment, reason=reason, actor=None, at=now)
            elif action == "rescore":
                graded = rescore(experiment=experiment, grader=process_grader(), at=now)
                self.stdout.write(f"{graded} answers graded again")
        experiment.refresh_from_db()
        line = progress_line(progress_of(experiment, now=timezone.now()))
        self.stdout.write(f"{experiment.slug} is {experiment.status}: {line}")
        if experiment.reason:
            self.stdout.write(f"reason: {experiment.reason}")
        if experiment.status == ExperimentStatus.FINISHED:
            self.stdout.write(f"Its report: python3 manage.py report {experiment.slug}")

    def _run(self, experiment: Experiment, action: str, *, wait: bool) -> None:
        acts: dict[str, Callable[..., object]] = {
            "start": lifecycle.start,
            "resume": lifecycle.resume,
            "retry": lifecycle.retry_failed,
        }
        if not wait:
            acts[action](experiment=experiment, actor=None, at=timezone.now())
            return
        spec = from_json(experiment.spec)
        with services(model=spec.embedded) as running:
            check_before_start(spec, running)
            done = acts[action](experiment=experiment, actor=None, at=timezone.now())
            if action == "retry":
                self.stdout.write(_tried_again(done))
            if done != 0:
                run_to_end(experiment)


def _tried_again(runs: object) -> str:
    """Return in words how many runs without a result get new tries."""
    if not runs:
        return "no run is without a result, so nothing is tried again"
    them = "run without a result gets" if runs == 1 else "runs without a result get"
    return f"{runs} {them} new tries"
