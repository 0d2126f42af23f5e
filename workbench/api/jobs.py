"""Long work that somebody asked for, as JSON."""

from __future__ import annotations

from uuid import UUID

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from workbench.jobs import JobMissing, job_by_uid
from workbench.jobviews import JobOutput
from workbench.kernel.api import NoParameters, checked_query
from workbench.rest import Endpoint


class OneJob(Endpoint):
    """Show how far one job is; ask again until its state is ``done`` or ``failed``."""

    @extend_schema(responses=JobOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        checked_query(request.query_params, NoParameters)
        try:
            return Response(JobOutput(job_by_uid(uid)).data)
        except JobMissing as error:
            raise Http404 from error
