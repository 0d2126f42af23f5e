"""Experiments and their reports as JSON."""

from __future__ import annotations

from typing import Any

from django.db.models import Q
from django.http import Http404
from django.urls import reverse
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from runs.models import Experiment
from runs.selectors import ExperimentMissing, experiment_by_slug
from runs.services.reporting import report_of
from workbench.kernel.api import checked_query
from workbench.kernel.roles import UnblindedOnly

LARGEST_PAGE = 200


class ExperimentsInput(serializers.Serializer[Any]):
    """Which experiments: those planned before the one named, at most so many."""

    before = serializers.SlugField(required=False)
    limit = serializers.IntegerField(min_value=1, max_value=LARGEST_PAGE, default=50)


class ExperimentOutput(serializers.Serializer[Any]):
    """One experiment."""

    uid = serializers.UUIDField()
    slug = serializers.CharField()
    status = serializers.CharField()
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField()
    ended_at = serializers.DateTimeField()
    report = serializers.SerializerMethodField()

    def get_report(self, experiment: Experiment) -> str:
        return reverse("api-experiment-report", kwargs={"slug": experiment.slug})


class Experiments(APIView):
    """The experiments, newest first; ``next`` is the address of the older ones or null."""

    permission_classes = (UnblindedOnly,)

    def get(self, request: Request) -> Response:
        wanted = checked_query(request.query_params, ExperimentsInput)
        found = Experiment.objects.order_by("-created_at", "-pk")
        if "before" in wanted:
            last = _experiment(wanted["before"])
            found = found.filter(
                Q(created_at__lt=last.created_at) | Q(created_at=last.created_at, pk__lt=last.pk)
            )
        limit = wanted["limit"]
        page = list(found[: limit + 1])
        shown, more = page[:limit], page[limit:]
        here = reverse("api-experiments")
        return Response(
            {
                "experiments": ExperimentOutput(shown, many=True).data,
                "next": f"{here}?before={shown[-1].slug}&limit={limit}" if more else None,
            }
        )


class ReportInput(serializers.Serializer[Any]):
    """A report takes no parameters."""


class ExperimentReport(APIView):
    """An experiment's report, as docs/report-schema.json has it."""

    permission_classes = (UnblindedOnly,)

    def get(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, ReportInput)
        # The schema is the contract here; a serializer would be a second one beside it.
        return Response(report_of(_experiment(slug)))


def _experiment(slug: str) -> Experiment:
    try:
        return experiment_by_slug(slug)
    except ExperimentMissing as error:
        raise Http404 from error
