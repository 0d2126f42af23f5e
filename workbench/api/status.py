"""How the workbench itself is, as JSON."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from workbench.heartbeats import Status, system_state
from workbench.kernel.api import checked_query
from workbench.rest import Endpoint


class PartOutput(serializers.Serializer[Any]):
    """One part; ``text`` says what to do where it is red."""

    name = serializers.CharField()
    status = serializers.ChoiceField(choices=[status.value for status in Status])
    text = serializers.CharField(allow_blank=True)


class StatusOutput(serializers.Serializer[Any]):
    """Whether work that is asked for now will be done, and how each part is."""

    ready = serializers.BooleanField()
    parts = PartOutput(many=True)


class StatusInput(serializers.Serializer[Any]):
    """The status takes no parameters."""


class SystemStatus(Endpoint):
    """Whether database, broker, sweeper and worker do their work."""

    @extend_schema(responses=StatusOutput)
    def get(self, request: Request) -> Response:
        checked_query(request.query_params, StatusInput)
        return Response(StatusOutput(system_state(now=timezone.now())).data)
