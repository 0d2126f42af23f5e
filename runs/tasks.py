"""Celery tasks: each takes ids and calls one service."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from celery import shared_task

from runs.sandbox.grader import Grader, open_grader
from runs.services.executing import execute
from runs.services.lifecycle import EXECUTE_TASK, EXECUTIONS_QUEUE


@lru_cache(maxsize=1)
def process_grader() -> Grader:
    """Return this worker process's grader; it probes the isolation once."""
    from django.conf import settings

    return open_grader(allow_unsandboxed=settings.ALLOW_UNSANDBOXED)


@shared_task(name=EXECUTE_TASK, queue=EXECUTIONS_QUEUE)
def execute_task(*, uid: str, **_: Any) -> None:
    """Run one execution; unknown keywords of newer senders are ignored."""
    execute(uid=UUID(uid), open_grader=process_grader)
