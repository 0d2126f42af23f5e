"""The worker as a process of its own, for a deployment that keeps each process itself."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.management.running import EXIT_INPUT, at_least_one, faults_as_exit_codes
from workbench.kernel.queues import QUEUES
from workbench.supervise import ROOT, check_reachable, worker_command


class Command(BaseCommand):
    help = "Run a worker on the broker that BROKER_URL names, until SIGTERM."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency", type=at_least_one, default=2, help="processes (default 2)"
        )
        parser.add_argument(
            "--queues",
            default=",".join(QUEUES),
            help="what to work on, by commas (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.BROKER_URL:
            raise CommandError(
                "BROKER_URL is not set, so there is no broker to work for. Set it, or use "
                "`python3 manage.py serve`, which starts broker and worker.",
                returncode=EXIT_INPUT,
            )
        queues = [queue.strip() for queue in options["queues"].split(",")]
        unknown = [queue for queue in queues if queue not in QUEUES]
        if unknown:
            raise CommandError(
                f"--queues: there is no queue {unknown[0]!r}; known: {', '.join(QUEUES)}",
                returncode=EXIT_INPUT,
            )
        with faults_as_exit_codes():
            check_reachable(settings.BROKER_URL)
        command = worker_command(options["concurrency"], queues=",".join(queues))
        become(command)


def become(command: list[str]) -> None:
    """Replace this process by ``command``, run from the checkout; signals reach it at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(ROOT)
    os.execv(command[0], command)
