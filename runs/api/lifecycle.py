"""What can be done with an experiment, as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from runs.addressed import experiment_or_404
from runs.api.drafts import DraftDetailOutput, JobStartedOutput, no_body
from runs.api.experiments import ExperimentOutput
from runs.domain.plan import Budget
from runs.models import Experiment
from runs.services import lifecycle
from runs.services.drafting import NotClonable, clone_experiment, file_of
from runs.services.launching import request_rescore
from workbench.kernel.api import Conflict, NoParameters, checked_query
from workbench.rest import Endpoint, checked_body

LONGEST_REASON = 500


class PauseInput(serializers.Serializer[Any]):
    """Why it is paused; without a reason, by whom."""

    reason = serializers.CharField(max_length=LONGEST_REASON, required=False)


class CancelInput(serializers.Serializer[Any]):
    """Why it is cancelled, for those who find it later."""

    reason = serializers.CharField(max_length=LONGEST_REASON)


class BudgetInput(serializers.Serializer[Any]):
    """The caps from now on; null or left out is no cap."""

    calls = serializers.IntegerField(min_value=1, allow_null=True, default=None)
    tokens = serializers.IntegerField(min_value=1, allow_null=True, default=None)
    cost = serializers.FloatField(min_value=0, allow_null=True, default=None)


class RetriedOutput(ExperimentOutput):
    """The experiment, and how many of its runs are tried again."""

    retried = serializers.IntegerField()


class ExperimentStart(Endpoint):
    """Start an experiment that is planned."""

    @extend_schema(request=None, responses=ExperimentOutput)
    def post(self, request: Request, slug: str) -> Response:
        no_body(request)
        return _moved(request, slug, lifecycle.start)


class ExperimentPause(Endpoint):
    """Pause a running experiment; runs that are under way still finish."""

    @extend_schema(request=PauseInput, responses=ExperimentOutput)
    def post(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        reason = checked_body(request, PauseInput).get("reason")
        reason = reason or f"paused by {request.user.get_username()}"
        return _moved(request, slug, lifecycle.pause, reason=reason)


class ExperimentResume(Endpoint):
    """Resume a paused experiment; nothing that is recorded runs again."""

    @extend_schema(request=None, responses=ExperimentOutput)
    def post(self, request: Request, slug: str) -> Response:
        no_body(request)
        return _moved(request, slug, lifecycle.resume)


class ExperimentCancel(Endpoint):
    """Cancel an experiment for good; what is recorded stays."""

    @extend_schema(request=CancelInput, responses=ExperimentOutput)
    def post(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        reason = checked_body(request, CancelInput)["reason"]
        return _moved(request, slug, lifecycle.cancel, reason=reason)


class ExperimentRetry(Endpoint):
    """Give the runs that failed in all of their tries new ones."""

    @extend_schema(request=None, responses=RetriedOutput)
    def post(self, request: Request, slug: str) -> Response:
        no_body(request)
        found = experiment_or_404(slug)
        try:
            retried = lifecycle.retry_failed(
                experiment=found, actor=request.user, at=timezone.now()
            )
        except lifecycle.WrongStatus as refused:
            raise Conflict(str(refused)) from refused
        found.refresh_from_db()
        return Response({**ExperimentOutput(found).data, "retried": retried})


class ExperimentRescore(Endpoint):
    """Have the stored answers graded again; no model is called."""

    @extend_schema(request=None, responses={202: JobStartedOutput})
    def post(self, request: Request, slug: str) -> Response:
        no_body(request)
        found = experiment_or_404(slug)
        try:
            job = request_rescore(experiment=found, actor=request.user, at=timezone.now())
        except lifecycle.WrongStatus as refused:
            raise Conflict(str(refused)) from refused
        return Response(JobStartedOutput(job).data, status=status.HTTP_202_ACCEPTED)


class ExperimentBudget(Endpoint):
    """Put other caps in force for an experiment that hasn't ended; its plan stays as it is."""

    @extend_schema(request=BudgetInput, responses=ExperimentOutput)
    def put(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        found = experiment_or_404(slug)
        budget = Budget(**checked_body(request, BudgetInput))
        try:
            return _moved(request, slug, lifecycle.change_budget, found=found, budget=budget)
        except lifecycle.BadBudget as refused:
            raise ValidationError({k: [text] for k, text in refused.faults.items()}) from refused


class ExperimentClone(Endpoint):
    """Make a draft that plans the same, under a free slug."""

    @extend_schema(request=None, responses={201: DraftDetailOutput})
    def post(self, request: Request, slug: str) -> Response:
        no_body(request)
        found = experiment_or_404(slug)
        try:
            draft = clone_experiment(experiment=found, actor=request.user, at=timezone.now())
        except NotClonable as refused:
            raise Conflict(str(refused)) from refused
        return Response(DraftDetailOutput(draft).data, status=status.HTTP_201_CREATED)


class ExperimentFile(Endpoint):
    """Get the file that an experiment was planned from, or one that says the same."""

    @extend_schema(responses={(200, "application/toml"): OpenApiTypes.STR})
    def get(self, request: Request, slug: str) -> HttpResponse:
        checked_query(request.query_params, NoParameters)
        try:
            text = file_of(experiment_or_404(slug))
        except NotClonable as error:
            raise Http404 from error
        return HttpResponse(text, content_type="application/toml; charset=utf-8")


def _moved(
    request: Request,
    slug: str,
    move: Callable[..., object],
    *,
    found: Experiment | None = None,
    **values: Any,
) -> Response:
    found = found or experiment_or_404(slug)
    try:
        move(experiment=found, actor=request.user, at=timezone.now(), **values)
    except lifecycle.WrongStatus as refused:
        raise Conflict(str(refused)) from refused
    found.refresh_from_db()
    return Response(ExperimentOutput(found).data)
