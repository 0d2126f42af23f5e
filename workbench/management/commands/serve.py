"""Serve the pages of the data folder, with everything that works behind them."""

from __future__ import annotations

from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand

from runs.domain.plan import from_json
from runs.management.running import faults_as_exit_codes
from runs.models import Experiment, ExperimentStatus
from workbench.management.serving import invite, stay_up
from workbench.supervise import services

USER = "admin"


class Command(BaseCommand):
    help = "Serve the pages, with broker, worker and sweeper, until Ctrl-C."

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", verbosity=0)
        with (
            faults_as_exit_codes(),
            services(model=_needs_embedded_model(), web=True) as running,
        ):
            invite(name=USER, web_url=running.web_url, say=self.stdout.write)
            self.stdout.write("Serving until Ctrl-C.")
            self.stdout.flush()
            stay_up()


def _needs_embedded_model() -> bool:
    """Return whether an experiment that can still run uses the embedded model."""
    unfinished = Experiment.objects.filter(
        status__in=(ExperimentStatus.RUNNING, ExperimentStatus.PAUSED)
    )
    return any(from_json(experiment.spec).embedded for experiment in unfinished)
