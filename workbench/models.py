"""Rows that every part of the workbench shares: calls, audit trail, people, jobs, notices."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models

from workbench.kernel.evidence import EvidenceModel
from workbench.kernel.leases import Leased, LeaseState


def _one_of(field: str, values: list[str], name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=models.Q(**{f"{field}__in": values}), name=name)


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
        indexes = [
            # What was used is summed from this alone, without the requests and replies beside it.
            models.Index(
                fields=["subject", "state", "tokens_in", "tokens_out", "cost"], name="call_usage"
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


class LinkPurpose(models.TextChoices):
    """What a one-time link is for."""

    SIGN_IN = "sign_in"
    INVITATION = "invitation"
    PASSWORD_RESET = "password_reset"


class SignInLink(models.Model):
    """A one-time link for one person; only the hash of its token is stored."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    purpose = models.CharField(
        max_length=14, choices=LinkPurpose.choices, default=LinkPurpose.SIGN_IN
    )
    token_sha256 = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [_one_of("purpose", LinkPurpose.values, "signinlink_purpose_known")]


class SignInFailure(models.Model):
    """A refused sign-in; names are hashed, so that a password typed as a name is not kept."""

    name_sha256 = models.CharField(max_length=64)
    address = models.CharField(max_length=45)
    at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(fields=["name_sha256", "at"], name="signinfailure_name"),
            models.Index(fields=["address", "at"], name="signinfailure_address"),
        ]


class ApiToken(models.Model):
    """A person's key to the API; only its hash is stored. It can do no more than the person."""

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+")
    name = models.CharField(max_length=100)
    token_sha256 = models.CharField(max_length=64, unique=True)
    beginning = models.CharField(max_length=12, help_text="the first characters, to tell it by")
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField()
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)


class IdempotencyKey(models.Model):
    """The answer to a write that named a key: sent again, it is given again."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_sha256 = models.CharField(max_length=64, help_text="of method, path and body")
    status = models.PositiveIntegerField(null=True, help_text="null while it is being answered")
    body = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "key"], name="idempotencykey_once"),
        ]


class Job(Leased):
    """Long work that somebody asked for; ``kind`` is the name of the task that does it."""

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=60)
    subject = models.CharField(max_length=200, help_text="what it is about, such as a slug")
    params = models.JSONField(default=dict)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    finished_steps = models.PositiveIntegerField(default=0)
    steps = models.PositiveIntegerField(null=True, help_text="null while nobody knows")
    note = models.CharField(max_length=300, blank=True, default="", help_text="what it does now")
    result = models.JSONField(null=True)
    problem = models.TextField(blank=True, default="", help_text="why it failed, and the fix")

    class Meta:
        constraints = [_one_of("state", LeaseState.values, "job_state_known")]
        indexes = [
            models.Index(fields=["kind", "subject"], name="job_subject"),
            models.Index(fields=["state", "lease_until"], name="job_due"),
        ]


class Notice(EvidenceModel):
    """Something that happened and that leads and admins want to know of."""

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    event = models.CharField(max_length=200, unique=True, help_text="tells the same event again")
    kind = models.CharField(max_length=40)
    subject = models.CharField(max_length=200)
    text = models.TextField()
    path = models.CharField(max_length=300, help_text="of the page where one acts on it")
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        null=True,
        on_delete=models.PROTECT,
        related_name="+",
        help_text="who made it happen, to whom it is no news",
    )
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["at", "id"], name="notice_newest")]


class NoticeReader(models.Model):
    """How far a person has read the notices, and whether they get them by mail."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+"
    )
    # Ids rise as notices are stored; their moments may not.
    read_up_to = models.PositiveBigIntegerField(
        default=0, help_text="id of the newest notice that was read"
    )
    by_mail = models.BooleanField(default=False)
    mailed_up_to = models.PositiveBigIntegerField(
        default=0, help_text="id of the newest notice that was mailed"
    )
    mail_due_at = models.DateTimeField(null=True, help_text="no mail before this moment")


class Webhook(models.Model):
    """An address that is told of notices; its signing secret is derived, never stored."""

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    url = models.CharField(max_length=500)
    kinds = models.JSONField(default=list, help_text="of notices; empty means all")
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)


class Delivery(Leased):
    """One notice on its way to one webhook."""

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    notice = models.ForeignKey(Notice, on_delete=models.PROTECT, related_name="+")
    webhook = models.ForeignKey(Webhook, on_delete=models.PROTECT, related_name="deliveries")
    answer = models.CharField(max_length=200, blank=True, default="", help_text="to the last try")
    at = models.DateTimeField(help_text="when it was last tried or created")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["notice", "webhook"], name="delivery_once"),
            _one_of("state", LeaseState.values, "delivery_state_known"),
        ]


class Heartbeat(models.Model):
    """When a long-running process last said that it works."""

    process = models.CharField(max_length=120, unique=True)
    at = models.DateTimeField()
