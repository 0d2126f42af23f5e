"""Serve the pages of the data folder, with everything that works behind them."""

from __future__ import annotations

import time
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from runs.domain.plan import EMBEDDED
from runs.management.running import EXIT_INFRASTRUCTURE
from runs.models import Experiment, ExperimentStatus
from workbench.accounts import create_sign_in_link, ensure_user
from workbench.kernel.roles import Role
from workbench.supervise import ServiceFailed, services

USER = "admin"


class Command(BaseCommand):
    help = "Serve the pages, with broker, worker and sweeper, until Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        try:
            with services(model=_needs_embedded_model(), web=True) as running:
                user = ensure_user(name=USER, role=Role.ADMIN)
                token = create_sign_in_link(user=user, now=timezone.now())
                self.stdout.write(f"Pages:   {running.web_url}")
                self.stdout.write(f"Sign in: {running.web_url}sign-in/link/{token}/ (works once)")
                self.stdout.write("Serving until Ctrl-C.")
                self.stdout.flush()
                while True:
                    time.sleep(3600)
        except ServiceFailed as error:
            raise CommandError(str(error), returncode=EXIT_INFRASTRUCTURE) from error


def _needs_embedded_model() -> bool:
    """Return whether an experiment that can still run uses the embedded model."""
    unfinished = Experiment.objects.filter(
        status__in=(ExperimentStatus.RUNNING, ExperimentStatus.PAUSED)
    )
    return any(
        model["base_url"] == EMBEDDED
        for experiment in unfinished
        for model in experiment.spec["models"]
    )
