"""Celery tasks: each takes ids and calls one service."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from celery import current_app, shared_task

from runs.sandbox.grader import Grader, open_grader
from runs.services.executing import execute
from runs.services.exporting import EXPORT_TASK, perform_export
from runs.services.handing_in import PUSH_TASK, perform_push
from runs.services.launching import (
    ESTIMATE_TASK,
    RESCORE_TASK,
    START_TASK,
    estimate_draft,
    rescore_experiment,
    start_draft,
)
from runs.services.lifecycle import EXECUTE_TASK, EXECUTIONS_QUEUE
from runs.services.uploading import IMPORT_TASK, import_received
from workbench.jobs import QUEUE, perform


@lru_cache(maxsize=1)
def process_grader() -> Grader:
    """Return this worker process's grader; it probes the isolation once."""
    from django.conf import settings

    return open_grader(allow_unsandboxed=settings.ALLOW_UNSANDBOXED)


@shared_task(name=EXECUTE_TASK, queue=EXECUTIONS_QUEUE)
def execute_task(*, uid: str, **_: Any) -> None:
    """Run one execution; unknown keywords of newer senders are ignored."""
    execute(uid=UUID(uid), open_grader=process_grader)


@shared_task(name=ESTIMATE_TASK, queue=QUEUE)
def estimate_draft_task(*, uid: str, **_: Any) -> None:
    """Estimate what a draft will take."""
    workers = current_app.conf.worker_concurrency or 1
    perform(
        UUID(uid),
        lambda handle: estimate_draft(handle, open_grader=process_grader, workers=workers),
    )


@shared_task(name=START_TASK, queue=QUEUE)
def start_draft_task(*, uid: str, **_: Any) -> None:
    """Plan a draft and start the experiment."""
    perform(UUID(uid), lambda handle: start_draft(handle, open_grader=process_grader))


@shared_task(name=RESCORE_TASK, queue=QUEUE)
def rescore_task(*, uid: str, **_: Any) -> None:
    """Grade an experiment's answers again."""
    perform(UUID(uid), lambda handle: rescore_experiment(handle, open_grader=process_grader))


@shared_task(name=EXPORT_TASK, queue=QUEUE)
def export_task(*, uid: str, **_: Any) -> None:
    """Write one export's file."""
    perform(UUID(uid), perform_export)


@shared_task(name=PUSH_TASK, queue=QUEUE)
def push_task(*, uid: str, **_: Any) -> None:
    """Store one push's rows."""
    perform(UUID(uid), perform_push)


@shared_task(name=IMPORT_TASK, queue=QUEUE)
def import_suite_task(*, uid: str, **_: Any) -> None:
    """Grade and store one uploaded task file."""
    perform(UUID(uid), lambda handle: import_received(handle, open_grader=process_grader))
