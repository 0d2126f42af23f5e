"""A job as pages and the API show it: how far it is, why it failed, where its result is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from workbench.kernel.leases import LeaseState
from workbench.kernel.pages import utc
from workbench.models import Job

FAILED = "failed"
STATES = ("pending", "running", "done", FAILED)
# How a serializer's ``get_state`` is described.
StateField = serializers.ChoiceField(choices=STATES)


def state_of(job: Job) -> str:
    """Return one of ``STATES``."""
    return FAILED if job.state == LeaseState.DEAD else str(job.state)


class JobOutput(serializers.Serializer[Any]):
    """One job. ``result`` is null until it is done, ``problem`` empty unless it failed."""

    uid = serializers.UUIDField()
    kind = serializers.CharField()
    subject = serializers.CharField()
    state = serializers.SerializerMethodField()
    finished = serializers.IntegerField(source="finished_steps")
    steps = serializers.IntegerField(allow_null=True, help_text="null while nobody knows")
    note = serializers.CharField()
    result = serializers.JSONField(allow_null=True)
    problem = serializers.CharField()
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(StateField)
    def get_state(self, job: Job) -> str:
        return state_of(job)


@dataclass(frozen=True)
class JobView:
    """What the template ``_job.html`` shows as ``job``; ``live`` while it changes by itself.

    Attributes:
        state: pending, running, done or failed.
        steps: how many there are; None while nobody knows.
        percent: rounded down; None while nobody knows.
        summary: what came of it, once it is done: the ``summary`` of its result, if any.
        problem: why it failed and what to do about it; empty otherwise.
        result_url: of what came of it; empty while there is nothing.
        result_label: the words of that link.
        poll_url: gives the template again while the job is live.
    """

    uid: str
    title: str
    subject: str
    state: str
    live: bool
    finished: int
    steps: int | None
    percent: int | None
    note: str
    summary: str
    problem: str
    requested: str
    ended: str
    by: str
    result_url: str
    result_label: str
    url: str
    poll_url: str


def job_view(
    job: Job, *, title: str = "", result_url: str = "", result_label: str = "Open the result"
) -> JobView:
    """Return ``job`` for a page.

    Args:
        title: what is being done; without one, the last part of the job's kind in words.
        result_url: where its result is; shown only once the job is done. Without one, the
            ``path`` that its result names, if any.
    """
    live = job.state in (LeaseState.PENDING, LeaseState.RUNNING)
    where = {"uid": job.uid}
    done = job.state == LeaseState.DONE
    return JobView(
        uid=str(job.uid),
        title=title or job.kind.rpartition(".")[2].replace("_", " ").capitalize(),
        subject=job.subject,
        state=state_of(job),
        live=live,
        finished=job.finished_steps,
        steps=job.steps,
        # Rounded down: 100 is shown when all is done and not before.
        percent=min(100 * job.finished_steps // job.steps, 100) if job.steps else None,
        note=job.note if live else "",
        summary=str((job.result or {}).get("summary", "")) if done else "",
        problem=job.problem,
        requested=utc(job.created_at),
        ended=utc(job.ended_at),
        by=job.actor.get_username() if job.actor else "the command line",
        result_url=(result_url or str((job.result or {}).get("path", ""))) if done else "",
        result_label=result_label,
        url=reverse("job", kwargs=where),
        poll_url=reverse("job-progress", kwargs=where),
    )
