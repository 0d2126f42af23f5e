"""The sweeper process."""

from __future__ import annotations

import logging
import signal
import threading
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import close_old_connections
from django.utils import timezone

from runs.services.exporting import remove_old_exports
from runs.services.handing_in import remove_old_rows
from runs.services.standing import refresh_oldest
from runs.services.sweeping import sweep
from workbench import idempotency
from workbench.heartbeats import SWEEPER, beat, send_beats
from workbench.jobs import sweep_jobs
from workbench.kernel.dispatch import noting_unsent
from workbench.notices.digest import sweep_digests
from workbench.notices.webhooks import sweep_deliveries
from workbench.supervise import live_services
from workbench.throttle import forget_old_failures

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    help = "Pick up abandoned and due work, over and over; --once does it once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="sweep once and end")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["once"]:
            self._sweep(once=False)
            return
        with live_services(settings.DATA_DIR), noting_unsent() as unsent:
            self._sweep(once=True)
        if unsent:
            raise CommandError(
                "swept, but the workers could not be told of what is due, as no broker takes "
                f"messages ({unsent[0]}). Start serve, whose own sweeper tells them, or set "
                "BROKER_URL to the broker that the workers use"
            )

    def _sweep(self, *, once: bool) -> None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        while True:
            close_old_connections()
            try:
                now = timezone.now()
                sweep(now=now)
                idempotency.forget_old(now=now)
                forget_old_failures(now=now)
                sweep_jobs(now=now)
                remove_old_exports(now=now)
                remove_old_rows(now=now)
                sweep_deliveries(now=now)
                sweep_digests(now=now)
                beat([SWEEPER], at=now)
                send_beats(now=now)
                refresh_oldest(now=now)  # last: it may take seconds
            except Exception:  # the next sweep may succeed; the heartbeat shows that this didn't
                logger.exception("the sweep failed")
                if once:
                    raise
            if once or stop.wait(settings.SWEEP_SECONDS):
                return
