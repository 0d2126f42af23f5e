"""Experiments and their reports as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.http import http_date
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from runs.addressed import experiment_or_404
from runs.models import Experiment, ExperimentStatus, Origin
from runs.selectors import EXPERIMENT_LISTING
from runs.services.progress import Progress, progress_of
from runs.services.standing import standing_report
from workbench.kernel.api import NoParameters, checked_query
from workbench.rest import Endpoint, listed
from workbench.schema import listing_schema


class ExperimentLinks(serializers.Serializer[Any]):
    """Where more of an experiment is; addresses on this server."""

    self = serializers.CharField()
    report = serializers.CharField()
    cells = serializers.CharField()
    pairs = serializers.CharField()
    page = serializers.CharField(help_text="for people")


class ExperimentOutput(serializers.Serializer[Any]):
    """One experiment."""

    uid = serializers.UUIDField()
    slug = serializers.CharField()
    status = serializers.ChoiceField(choices=ExperimentStatus.choices)
    reason = serializers.CharField(help_text="why it is paused or cancelled; else empty")
    origin = serializers.ChoiceField(choices=Origin.choices)
    author = serializers.SerializerMethodField(help_text="null: made at the command line")
    created_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    links = serializers.SerializerMethodField()

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_author(self, experiment: Experiment) -> str | None:
        return experiment.author.get_username() if experiment.author else None

    @extend_schema_field(ExperimentLinks)
    def get_links(self, experiment: Experiment) -> dict[str, str]:
        where = {"slug": experiment.slug}
        return {
            "self": reverse("api-experiment", kwargs=where),
            "report": reverse("api-experiment-report", kwargs=where),
            "cells": reverse("api-experiment-cells", kwargs=where),
            "pairs": reverse("api-experiment-pairs", kwargs=where),
            "page": reverse("experiment", kwargs=where),
        }


class UsageOutput(serializers.Serializer[Any]):
    """What an experiment's calls have used; null is unknown, never 0."""

    calls = serializers.IntegerField()
    tokens = serializers.IntegerField(allow_null=True)
    cost = serializers.FloatField(allow_null=True)
    least_cost = serializers.FloatField(help_text="the sum of the costs that are known")


class WaitOutput(serializers.Serializer[Any]):
    """Nothing is sent before a moment, as an endpoint asked for that."""

    endpoint = serializers.CharField(
        allow_blank=True, help_text="empty where failed runs wait for their next try"
    )
    until = serializers.DateTimeField()


class ProgressOutput(serializers.Serializer[Any]):
    """How far an experiment is."""

    executions = serializers.IntegerField(source="total")
    done = serializers.IntegerField()
    dead = serializers.IntegerField(help_text="failed in all of their tries")
    running = serializers.IntegerField()
    pending = serializers.IntegerField()
    pairs = serializers.IntegerField(source="pairs_total")
    pairs_done = serializers.IntegerField()
    per_minute = serializers.FloatField(
        allow_null=True,
        help_text="executions that ended, of the last minutes; null where it isn't running, "
        "waits, or has just begun",
    )
    seconds_left = serializers.FloatField(allow_null=True, help_text="at that rate")
    waits = WaitOutput(many=True, help_text="what a running experiment waits for now")
    failures = serializers.DictField(
        child=serializers.IntegerField(), help_text="failed tries by whose failure it was"
    )
    usage = UsageOutput()


class ExperimentDetailOutput(ExperimentOutput):
    """One experiment with its settings and how far it is."""

    preset = serializers.CharField(source="spec.preset")
    failure_policy = serializers.CharField(source="spec.failure_policy")
    seed = serializers.IntegerField(source="spec.seed", allow_null=True)
    replicates = serializers.IntegerField(source="spec.replicates", allow_null=True)
    progress = serializers.SerializerMethodField()

    @extend_schema_field(ProgressOutput)
    def get_progress(self, experiment: Experiment) -> Any:
        progress: Progress = progress_of(experiment, now=timezone.now())
        return ProgressOutput(progress).data


class Experiments(Endpoint):
    """List the experiments, the newest first."""

    @listing_schema(EXPERIMENT_LISTING, ExperimentOutput)
    def get(self, request: Request) -> Response:
        found = Experiment.objects.select_related("author")
        return listed(request, found, listing=EXPERIMENT_LISTING, output=ExperimentOutput)


class OneExperiment(Endpoint):
    """Show one experiment and how far it is; while it is ``running``, ask again."""

    @extend_schema(responses=ExperimentDetailOutput)
    def get(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        return Response(ExperimentDetailOutput(experiment_or_404(slug)).data)


def as_of_text(moment: datetime | None) -> str | None:
    """Return when figures were counted as JSON has it; None of this moment."""
    return moment.isoformat() if moment else None


class ExperimentReport(Endpoint):
    """Show an experiment's report, as docs/report-schema.json has it.

    Of a large experiment that still changes it is the last count; its ``as_of`` and the header
    ``Last-Modified`` then say when that was made.
    """

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        standing = standing_report(experiment_or_404(slug))
        # The schema is the contract here; a serializer would be a second one beside it.
        if not standing.as_of:
            return Response(standing.result)
        response = Response({**standing.result, "as_of": as_of_text(standing.as_of)})
        response["Last-Modified"] = http_date(standing.as_of.timestamp())
        return response
