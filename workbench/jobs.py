"""Long work that a person asked for: exports, estimates, imports.

A Job row is the queue of record; its ``kind`` is the name of the Celery task that does it.
Such a task takes the job's uid and calls ``perform`` with the work.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections
from django.db.models import Q
from django.utils import timezone

from workbench.kernel.dispatch import publish, waiting_messages
from workbench.kernel.leases import (
    AlreadyClaimed,
    LeaseLost,
    LeaseState,
    claim,
    expire_dead,
    renew,
    settle,
)
from workbench.models import Job

logger = logging.getLogger(__name__)

QUEUE = "default"
MAX_TRIES = 3
# A job that nobody took up is sent again by the sweep after this long.
LOST_AFTER = timedelta(seconds=30)
TOP_UP_BELOW = 20
DISK_FULL = (
    "The disk of the data folder is full. Free some of it, or tell whoever runs this workbench, "
    "then ask for it again."
)
UNEXPECTED = (
    "It stopped for a reason nobody foresaw; the worker's log has it. Ask for it again, or tell "
    "whoever runs this workbench."
)


class JobFailed(Exception):
    """The work can't be done as asked; the text says why and what to do, and is shown.

    ``result``: the same in plain JSON values, for programs.
    """

    def __init__(self, text: str, *, result: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.result = result


class JobMissing(Exception):
    """There is no such job, or it is not this person's to see."""


@dataclass
class Handle:
    """What the work is given: its job, and a way to say how far it is."""

    job: Job
    token: int

    def report(self, *, finished: int, steps: int | None = None, note: str = "") -> None:
        """Store how far the work is.

        Raises:
            LeaseLost: another worker has taken the job over; stop at once.
        """
        values: dict[str, Any] = {"finished_steps": finished, "note": note[:300]}
        if steps is not None:
            values["steps"] = steps
        held = Job.objects.filter(
            pk=self.job.pk, state=LeaseState.RUNNING, fencing_token=self.token
        )
        if not held.update(**values):
            raise LeaseLost


Work = Callable[[Handle], Mapping[str, Any]]


def request_job(
    *, kind: str, subject: str, params: Mapping[str, Any], actor: Any, at: datetime
) -> Job:
    """Store a job and publish it once the transaction commits.

    Args:
        kind: name of the Celery task that performs it.
        params: plain JSON values; what the task needs beside the subject.
    """
    job: Job = Job.objects.create(
        kind=kind, subject=subject, params=dict(params), actor=actor, created_at=at
    )
    publish(kind, [job.uid], queue=QUEUE)
    return job


def job_by_uid(uid: UUID, *, kind: str | None = None) -> Job:
    """Return the job of ``uid``, of ``kind`` where one is named.

    Raises:
        JobMissing: there is none.
    """
    found = Job.objects.filter(uid=uid)
    job = (found.filter(kind=kind) if kind else found).select_related("actor").first()
    if job is None:
        raise JobMissing(f"there is no job {uid}")
    return job


def latest_job(*, kind: str, subject: str) -> Job | None:
    """Return the newest job of this kind about ``subject``, or None."""
    return Job.objects.filter(kind=kind, subject=subject).order_by("-created_at", "-pk").first()


def perform(uid: UUID, work: Work) -> None:
    """Claim the job, do ``work`` and store its result or its problem; done jobs are left alone.

    The lease is renewed while the work goes on. ``work`` may run again after a crash, so what
    it does must be the same however often it is done.
    """
    item = Job.objects.filter(uid=uid)
    try:
        token = claim(item, now=timezone.now(), lease=timedelta(seconds=settings.LEASE_SECONDS))
    except AlreadyClaimed:
        return
    job = item.select_related("actor").get()
    result: Mapping[str, Any] | None = None
    problem = ""
    try:
        if job.tries > MAX_TRIES:
            problem = f"It was tried {MAX_TRIES} times and never came to an end. {UNEXPECTED}"
        else:
            with _renewed(item, token):
                result = work(Handle(job, token))
    except LeaseLost:
        return
    except JobFailed as failed:
        problem, result = str(failed), failed.result
    except OSError as error:
        logger.exception("the job %s (%s of %s) failed", uid, job.kind, job.subject)
        problem = DISK_FULL if error.errno == errno.ENOSPC else UNEXPECTED
    except Exception:
        logger.exception("the job %s (%s of %s) failed", uid, job.kind, job.subject)
        problem = UNEXPECTED
    try:
        settle(
            item,
            token=token,
            state=LeaseState.DEAD if problem else LeaseState.DONE,
            result=None if result is None else dict(result),
            problem=problem,
            ended_at=timezone.now(),
        )
    except LeaseLost:
        logger.warning("the job %s was taken over; its result is the other worker's", uid)


def sweep_jobs(*, now: datetime) -> None:
    """Publish the jobs whose worker died, and those whose message may have been lost."""
    expire_dead(Job.objects.all(), now=now)
    wanted = Q(state=LeaseState.RUNNING, lease_until__lt=now)
    # A job may also just wait behind others: while messages wait, more would only pile up.
    if waiting_messages(QUEUE) < TOP_UP_BELOW:
        wanted |= Q(state=LeaseState.PENDING, created_at__lt=now - LOST_AFTER)
    lost = Job.objects.filter(wanted)
    for kind, uid in lost.order_by("created_at").values_list("kind", "uid")[:100]:
        publish(kind, [uid], queue=QUEUE)


@contextmanager
def _renewed(item: Any, token: int) -> Iterator[None]:
    """Renew the lease from a thread of its own while the block runs."""
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(settings.RENEW_SECONDS):
            until = timezone.now() + timedelta(seconds=settings.LEASE_SECONDS)
            try:
                if not renew(item.all(), token=token, until=until):
                    return
            except Exception:
                logger.exception("the lease of a job could not be renewed; it is tried again")
            finally:
                close_old_connections()

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
