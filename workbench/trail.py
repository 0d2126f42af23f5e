"""The audit trail: who did what, when and why, as a chain of hashes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection, transaction

from workbench.kernel.identity import sha256_of
from workbench.models import AuditEvent

FIRST = "0" * 64
# Any number that nothing else in the database locks.
CHAIN_LOCK = 0x5741_4255


def record_event(
    *, actor: Any, verb: str, subject: str, at: datetime, reason: str = ""
) -> AuditEvent:
    """Append one event to the chain and return it.

    Writers take turns: on PostgreSQL by an advisory lock held until the
    transaction ends, on SQLite because write transactions do. Should two ever
    read the same last event, the unique ``previous_sha256`` refuses the second.

    Args:
        actor: the user who acts, or None for the command line.
    """
    with transaction.atomic():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [CHAIN_LOCK])
        return _append(actor, verb, subject, reason, at)


def _append(actor: Any, verb: str, subject: str, reason: str, at: datetime) -> AuditEvent:
    last = AuditEvent.objects.order_by("-id").first()
    previous = last.sha256 if last else FIRST
    event: AuditEvent = AuditEvent.objects.create(
        actor=actor,
        verb=verb,
        subject=subject,
        reason=reason,
        at=at,
        previous_sha256=previous,
        sha256=_digest(previous, actor.pk if actor else None, verb, subject, reason, at),
    )
    return event


def broken_link() -> AuditEvent | None:
    """Return the first event whose hash doesn't follow from the one before it, or None."""
    previous = FIRST
    for event in AuditEvent.objects.order_by("id").iterator():
        digest = _digest(
            previous, event.actor_id, event.verb, event.subject, event.reason, event.at
        )
        if event.previous_sha256 != previous or event.sha256 != digest:
            return event
        previous = event.sha256
    return None


def _digest(
    previous: str, actor_id: int | None, verb: str, subject: str, reason: str, at: datetime
) -> str:
    return sha256_of([previous, actor_id, verb, subject, reason, at.isoformat()])
