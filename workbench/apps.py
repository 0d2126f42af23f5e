from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate


class WorkbenchConfig(AppConfig):
    name = "workbench"
    verbose_name = "Skill Audit Workbench"

    def ready(self) -> None:
        # Loads the Celery application, so that publishing knows its broker.
        import workbench.celery  # noqa: F401

        post_migrate.connect(_guard_evidence, dispatch_uid="install_evidence_triggers")


def _guard_evidence(*, using: str, **_: Any) -> None:
    from workbench.kernel.evidence import install_triggers

    install_triggers(connections[using])
