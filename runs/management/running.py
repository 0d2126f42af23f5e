"""What the commands that run experiments share: exit codes, the run to its end, its progress."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError
from django.db import close_old_connections
from django.utils import timezone

from runs.domain.agent import AgentStopped
from runs.domain.plan import ExperimentSpec, InvalidExperiment
from runs.domain.suites import UnknownSuite
from runs.models import Experiment, ExperimentStatus
from runs.sandbox.grader import HostFailed, NoIsolation
from runs.selectors import ExperimentMissing
from runs.services.lifecycle import WrongStatus, start
from runs.services.preparing import UNPLANNABLE, EndpointUnusable, check_endpoints
from runs.services.progress import Progress, progress_of
from workbench.kernel.chat import EndpointFault
from workbench.kernel.public import public_url
from workbench.llm.factory import BadEndpoint
from workbench.supervise import Running, ServiceFailed, served_at

EXIT_INPUT = 2
EXIT_INFRASTRUCTURE = 3
POLL_S = 1.0

INPUT_FAULTS = (
    *UNPLANNABLE,
    BadEndpoint,
    ExperimentMissing,
    InvalidExperiment,
    UnknownSuite,
    WrongStatus,
)
INFRASTRUCTURE_FAULTS = (
    AgentStopped,
    EndpointFault,
    EndpointUnusable,
    HostFailed,
    NoIsolation,
    ServiceFailed,
)


def at_least_one(text: str) -> int:
    """Return the whole number in ``text``, for argparse.

    Raises:
        ArgumentTypeError: it is none, or below 1.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} must be a whole number from 1 on")
    return int(text)


@contextmanager
def faults_as_exit_codes() -> Iterator[None]:
    """Turn anticipated faults into one clear message and the exit code 2 or 3."""
    try:
        yield
    except INPUT_FAULTS as error:
        raise CommandError(str(error), returncode=EXIT_INPUT) from error
    except INFRASTRUCTURE_FAULTS as error:
        raise CommandError(str(error), returncode=EXIT_INFRASTRUCTURE) from error


def check_before_start(spec: ExperimentSpec, running: Running) -> None:
    """Prove that the spec's models can be used, before anything is stored or started.

    An experiment that has begun is not asked again: its own failures say more.

    Raises:
        EndpointUnusable: a model can't be reached, or workers lack its key.
    """
    begun = Experiment.objects.filter(slug=spec.slug).exclude(status=ExperimentStatus.PLANNED)
    if begun.exists():
        return
    check_endpoints(spec)
    wanted = {model.api_key_env for model in spec.models if model.api_key_env}
    worker = running.pids.get("worker")
    if not (wanted and running.attached and worker):
        return  # workers that this command started have its environment
    try:
        environment = Path(f"/proc/{worker}/environ").read_bytes()
    except OSError:
        return  # not ours to read; a worker without the key pauses the experiment
    held = {entry.partition(b"=")[0].decode() for entry in environment.split(b"\0")}
    if wanted - held:
        raise EndpointUnusable(
            f"Nothing was started. The workers of another command that runs here (pid {worker}) "
            f"were started without {', '.join(sorted(wanted - held))}: end that command, such as "
            "manage.py serve, and start it again with the variable set"
        )


def where_to_look(path: str) -> str:
    """Return where the page ``path`` can be seen, as a sentence."""
    served = served_at(settings.DATA_DIR)
    if served or settings.PUBLIC_URL:
        return f"The same as pages: {public_url(path, served=served)}"
    return f"The same as pages: run python3 manage.py serve, then open /{path}"


def run_to_end(experiment: Experiment) -> None:
    """Start the experiment if it is planned and wait for its end.

    Raises:
        CommandError: see ``wait_until_ended``.
    """
    if experiment.status == ExperimentStatus.PLANNED:
        start(experiment=experiment, actor=None, at=timezone.now())
    wait_until_ended(experiment, say=line_writer())


def wait_until_ended(experiment: Experiment, *, say: Callable[[str], None]) -> None:
    """Return once the experiment has finished, saying how far it is.

    Raises:
        CommandError: it was paused (exit code 3) or cancelled (2) meanwhile; the
            message says why, and what to do.
    """
    shown = ""
    while True:
        close_old_connections()
        experiment.refresh_from_db()
        line = progress_line(progress_of(experiment, now=timezone.now()))
        if line != shown:
            say(line)
            shown = line
        if experiment.status == ExperimentStatus.FINISHED:
            return
        if experiment.status == ExperimentStatus.CANCELLED:
            raise CommandError(
                f"the experiment '{experiment.slug}' is cancelled ({experiment.reason}) and stays "
                "so; what it recorded is kept. To run the plan afresh, give it another slug",
                returncode=EXIT_INPUT,
            )
        if experiment.status != ExperimentStatus.RUNNING:
            raise CommandError(
                f"the experiment '{experiment.slug}' is {experiment.status}: {experiment.reason}. "
                "Nothing is lost; once that is mended, go on with: "
                f"python3 manage.py experiment resume {experiment.slug}",
                returncode=EXIT_INFRASTRUCTURE,
            )
        time.sleep(POLL_S)


def progress_line(progress: Progress) -> str:
    """Return one line: pairs and runs done, failures, rate and time left."""
    parts = [
        f"{progress.pairs_done}/{progress.pairs_total} pairs",
        f"{progress.done}/{progress.total} runs",
    ]
    if progress.dead:
        parts.append(f"{progress.dead} without a result")
    parts += [f"{n} {failure} failures" for failure, n in sorted(progress.failures.items())]
    if progress.per_minute:
        parts.append(f"{max(progress.per_minute, 1):.0f} runs/min")
    if progress.seconds_left and progress.ended < progress.total:
        parts.append(f"about {duration(progress.seconds_left)} left")
    parts += [
        f"{wait.endpoint or 'what failed'} waits until {wait.until:%H:%M:%S} UTC"
        for wait in progress.waits
    ]
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Return ``seconds`` in words, such as ``4 min`` or ``50 s``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def line_writer() -> Callable[[str], None]:
    """Return a function that shows progress: in place on a terminal, else a line now and then."""
    if sys.stderr.isatty():

        def show(line: str) -> None:
            sys.stderr.write(f"\r\033[K{line}")
            sys.stderr.flush()

        return show
    last = [0.0]

    def write(line: str) -> None:
        if time.monotonic() - last[0] >= 10:
            last[0] = time.monotonic()
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return write
