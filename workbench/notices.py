"""Notices: what happened that leads and admins want to know of. Raters never see any."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from workbench.models import Notice


class NoticeKind(StrEnum):
    """What a notice tells."""

    EXPERIMENT_PAUSED = "experiment_paused"
    EXPERIMENT_FINISHED = "experiment_finished"
    EXPERIMENT_FAILED = "experiment_failed"
    BUDGET_REACHED = "budget_reached"


def notify(
    *, kind: NoticeKind, event: str, subject: str, text: str, path: str, at: datetime
) -> None:
    """Store a notice once: the same ``event`` told again changes nothing.

    Args:
        event: what makes it this event and no other, such as ``experiment UID paused TIME``.
        subject: what it is about, such as the experiment's slug.
        path: of the page where one acts on it.
    """
    Notice.objects.get_or_create(
        event=event,
        defaults={"kind": kind, "subject": subject, "text": text, "path": path, "at": at},
    )
