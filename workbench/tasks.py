"""Celery tasks of the whole: each takes an id and calls one service."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from celery import shared_task

from workbench.kernel.queues import BEAT_TASK
from workbench.notices import DELIVER_TASK, MAIL_TASK, QUEUE
from workbench.notices.digest import mail_digest
from workbench.notices.webhooks import deliver


@shared_task(name=DELIVER_TASK, queue=QUEUE)
def deliver_task(*, uid: str, **_: Any) -> None:
    """Send one delivery; unknown keywords of newer senders are ignored."""
    deliver(uid=UUID(uid))


@shared_task(name=MAIL_TASK, queue=QUEUE)
def mail_task(*, uid: str, **_: Any) -> None:
    """Mail one reader's digest; unknown keywords of newer senders are ignored."""
    mail_digest(reader=int(uid))


@shared_task(name=BEAT_TASK)
def beat_task(**_: Any) -> None:
    """Do nothing: that it was taken up says that a worker serves the queue it came through."""
