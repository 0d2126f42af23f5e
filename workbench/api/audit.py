"""The audit trail as JSON."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from workbench.kernel.lists import Filter, Listing, moment
from workbench.kernel.roles import Role
from workbench.models import AuditEvent
from workbench.rest import Endpoint, listed
from workbench.schema import listing_schema

EVENTS = Listing(
    sorts={"written": "pk"},
    default_sort="-written",
    filters={
        "verb": Filter("verb", meaning="Only those of this verb, such as `token.created`."),
        "subject": Filter("subject"),
        "actor": Filter("actor__username", meaning="Only what the person of this name did."),
        "since": Filter("at__gte", parse=moment, meaning="Only those at or after this time."),
        "until": Filter("at__lt", parse=moment, meaning="Only those before this time."),
    },
)


class AuditEventOutput(serializers.Serializer[Any]):
    """Who did what, when and why; each event holds the hash of the one before it."""

    actor = serializers.SerializerMethodField(help_text="null: the command line")
    verb = serializers.CharField()
    subject = serializers.CharField()
    reason = serializers.CharField()
    at = serializers.DateTimeField()
    previous_sha256 = serializers.CharField()
    sha256 = serializers.CharField()

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_actor(self, event: AuditEvent) -> str | None:
        return event.actor.get_username() if event.actor else None


class AuditEvents(Endpoint):
    """List what people did, the newest first."""

    roles = (Role.ADMIN,)

    @listing_schema(EVENTS, AuditEventOutput)
    def get(self, request: Request) -> Response:
        found = AuditEvent.objects.select_related("actor")
        return listed(request, found, listing=EVENTS, output=AuditEventOutput)
