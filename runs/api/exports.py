"""Exports as JSON, and their files."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import FileResponse, Http404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import APIException, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from runs.services.exporting import (
    EXPORT_LISTING,
    BadExport,
    ExportKind,
    ExportRemoved,
    export_by_uid,
    exports_for,
    file_of,
    is_kept,
    request_export,
)
from runs.services.writing import FORMATS
from workbench.jobs import JobMissing
from workbench.jobviews import StateField, state_of
from workbench.kernel.api import NoParameters, checked_query
from workbench.kernel.downloads import attachment
from workbench.models import Job
from workbench.rest import Endpoint, checked_body, listed
from workbench.schema import ErrorOutput, listing_schema


class Gone(APIException):
    """The file is no longer kept."""

    status_code = status.HTTP_410_GONE
    default_code = "gone"


class ExportInput(serializers.Serializer[Any]):
    """What an export is to hold."""

    kind = serializers.ChoiceField(choices=[kind.value for kind in ExportKind])
    format = serializers.ChoiceField(choices=list(FORMATS), help_text="attempts: jsonl alone")
    experiments = serializers.ListField(
        child=serializers.SlugField(max_length=100),
        default=list,
        max_length=50,
        help_text="slugs; none for audit-events",
    )
    cells = serializers.ListField(
        child=serializers.RegexField(r"^[0-9a-f]{12}\Z"),
        default=list,
        max_length=1_000,
        help_text="their first twelve digits (`sha12`); none means all",
    )


class ExportOutput(serializers.Serializer[Any]):
    """One export. ``rows``, ``bytes``, ``sha256`` and ``file`` are null until it is done."""

    uid = serializers.UUIDField()
    kind = serializers.CharField(source="params.kind")
    format = serializers.CharField(source="params.format")
    experiments = serializers.ListField(child=serializers.CharField(), source="params.experiments")
    cells = serializers.ListField(child=serializers.CharField(), source="params.cells")
    state = serializers.SerializerMethodField()
    finished = serializers.IntegerField(source="finished_steps")
    steps = serializers.IntegerField(allow_null=True, help_text="null while nobody knows")
    problem = serializers.CharField(help_text="empty unless it failed")
    rows = serializers.SerializerMethodField()
    bytes = serializers.SerializerMethodField()
    sha256 = serializers.SerializerMethodField()
    file = serializers.SerializerMethodField(
        help_text="its address; null before it is written and once it is removed"
    )
    job = serializers.SerializerMethodField(help_text="address of how far it is")
    created_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField(allow_null=True)

    @extend_schema_field(StateField)
    def get_state(self, job: Job) -> str:
        return state_of(job)

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_rows(self, job: Job) -> Any:
        return (job.result or {}).get("rows")

    @extend_schema_field(serializers.IntegerField(allow_null=True))
    def get_bytes(self, job: Job) -> Any:
        return (job.result or {}).get("bytes")

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_sha256(self, job: Job) -> Any:
        return (job.result or {}).get("sha256")

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_file(self, job: Job) -> str | None:
        return reverse("api-export-file", kwargs={"uid": job.uid}) if is_kept(job) else None

    def get_job(self, job: Job) -> str:
        return reverse("api-job", kwargs={"uid": job.uid})


class Exports(Endpoint):
    """Exports: those that were asked for, and a new one."""

    @listing_schema(EXPORT_LISTING, ExportOutput)
    def get(self, request: Request) -> Response:
        """List the exports that were asked for, the newest first."""
        found = exports_for(request.user)
        return listed(request, found, listing=EXPORT_LISTING, output=ExportOutput)

    @extend_schema(request=ExportInput, responses={202: ExportOutput})
    def post(self, request: Request) -> Response:
        """Ask for an export; ask for it again by its uid until its state is ``done``."""
        checked_query(request.query_params, NoParameters)
        given = checked_body(request, ExportInput)
        try:
            job = request_export(**given, actor=request.user, at=timezone.now())
        except BadExport as refused:
            raise ValidationError(
                {name: [reason] for name, reason in refused.fields.items()}
            ) from refused
        return Response(ExportOutput(job).data, status=status.HTTP_202_ACCEPTED)


class OneExport(Endpoint):
    """Show one export; its file is there once its state is ``done``."""

    @extend_schema(responses=ExportOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        checked_query(request.query_params, NoParameters)
        return Response(ExportOutput(_export_or_404(request, uid)).data)


class ExportFile(Endpoint):
    """Get the file of a finished export; it is kept for seven days."""

    @extend_schema(
        responses={
            (200, "application/octet-stream"): OpenApiTypes.BINARY,
            410: OpenApiResponse(ErrorOutput, description="The file is no longer kept."),
        }
    )
    def get(self, request: Request, uid: UUID) -> FileResponse:
        checked_query(request.query_params, NoParameters)
        job = _export_or_404(request, uid)
        try:
            path = file_of(job)
        except JobMissing as error:
            raise Http404 from error
        except ExportRemoved as removed:
            raise Gone(str(removed)) from removed
        assert job.result is not None
        return attachment(path.open("rb"), name=job.result["file"])


def _export_or_404(request: Request, uid: UUID) -> Job:
    try:
        return export_by_uid(uid, actor=request.user)
    except JobMissing as error:
        raise Http404 from error
