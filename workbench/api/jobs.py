"""Long work that somebody asked for, as JSON."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import Http404
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from workbench.jobs import JobMissing, job_by_uid
from workbench.jobviews import FAILED
from workbench.kernel.api import checked_query
from workbench.kernel.leases import LeaseState
from workbench.models import Job
from workbench.rest import Endpoint

STATES = ("pending", "running", "done", FAILED)


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

    @extend_schema_field(serializers.ChoiceField(choices=STATES))
    def get_state(self, job: Job) -> str:
        return FAILED if job.state == LeaseState.DEAD else job.state


class JobInput(serializers.Serializer[Any]):
    """A job takes no parameters."""


class OneJob(Endpoint):
    """How far one job is; ask again until its state is ``done`` or ``failed``."""

    @extend_schema(responses=JobOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        checked_query(request.query_params, JobInput)
        try:
            return Response(JobOutput(job_by_uid(uid)).data)
        except JobMissing as error:
            raise Http404 from error
