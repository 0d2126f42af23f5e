"""Rows that every part of the workbench shares: the call ledger, audit trail and sign-in."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from workbench.kernel.evidence import EvidenceModel


class CallState(models.TextChoices):
    """What is known of one request: ``orphaned`` means its worker died while it was in flight."""

    SENT = "sent"
    COMPLETED = "completed"
    FAILED = "failed"
    ORPHANED = "orphaned"


class Call(models.Model):
    """One request to a model: written before it is sent, completed after."""

    subject = models.UUIDField(help_text="uid of what the call was made for")
    step = models.PositiveIntegerField(help_text="number of the call within its subject, from 0")
    try_number = models.PositiveIntegerField(
        help_text="number of the request for this step, from 1"
    )
    endpoint = models.CharField(max_length=200)
    model = models.CharField(max_length=200)
    request_sha256 = models.CharField(max_length=64)
    request = models.JSONField()
    state = models.CharField(
        max_length=10, choices=CallState.choices, default=CallState.SENT, db_default="sent"
    )
    reply = models.JSONField(null=True)
    failure = models.CharField(max_length=40, blank=True, default="")
    failure_detail = models.TextField(blank=True, default="")
    tokens_in = models.PositiveIntegerField(null=True)
    tokens_out = models.PositiveIntegerField(null=True)
    cost = models.FloatField(null=True, help_text="in the currency of the configured price")
    latency_s = models.FloatField(null=True)
    sent_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["subject", "step", "try_number"], name="call_one_per_try"
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=CallState.values), name="call_state_known"
            ),
        ]


class EndpointGate(models.Model):
    """What all workers know together of one endpoint: pauses, failures, refused parameters."""

    label = models.CharField(max_length=200, unique=True)
    version = models.PositiveBigIntegerField(default=0, help_text="compare-and-swap counter")
    not_before = models.DateTimeField(null=True, help_text="no request before this moment")
    failed = models.JSONField(
        default=list, help_text="subjects whose calls failed since the last success"
    )
    open_until = models.DateTimeField(null=True, help_text="the circuit is open until then")
    probe = models.CharField(
        max_length=64, blank=True, default="", help_text="subject that may pass the open circuit"
    )
    tokens = models.FloatField(null=True, help_text="requests left in the rate limit's bucket")
    refilled_at = models.DateTimeField(null=True)
    refused_parameters = models.JSONField(default=dict, help_text="model -> parameter names")


class AuditEvent(EvidenceModel):
    """Who did what, when and why. Each row holds the hash of the one before it."""

    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    verb = models.CharField(max_length=60)
    subject = models.CharField(max_length=200)
    reason = models.TextField(blank=True)
    at = models.DateTimeField()
    previous_sha256 = models.CharField(max_length=64, unique=True)
    sha256 = models.CharField(max_length=64, unique=True)


class SignInLink(models.Model):
    """A one-time sign-in link; only the hash of its token is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    token_sha256 = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)


class Heartbeat(models.Model):
    """When a long-running process last said that it works."""

    process = models.CharField(max_length=120, unique=True)
    at = models.DateTimeField()
