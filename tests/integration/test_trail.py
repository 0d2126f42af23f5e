"""The audit trail is a chain: a change anywhere in it shows."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone

from workbench.kernel.evidence import TRIGGER_SUFFIX
from workbench.models import AuditEvent
from workbench.trail import FIRST, broken_link, record_event

pytestmark = pytest.mark.django_db


def test_events_follow_each_other() -> None:
    first = record_event(actor=None, verb="a", subject="x", at=timezone.now())
    second = record_event(actor=None, verb="b", subject="x", at=timezone.now(), reason="why")
    assert first.previous_sha256 == FIRST
    assert second.previous_sha256 == first.sha256
    assert broken_link() is None


def test_a_changed_event_breaks_the_chain() -> None:
    first = record_event(actor=None, verb="a", subject="x", at=timezone.now())
    record_event(actor=None, verb="b", subject="x", at=timezone.now())
    table = AuditEvent._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f'DROP TRIGGER "{table}{TRIGGER_SUFFIX}"')
        cursor.execute(f'UPDATE "{table}" SET verb = %s WHERE id = %s', ["z", first.pk])
    broken = broken_link()
    assert broken is not None
    assert broken.pk == first.pk


def test_the_chain_can_not_fork() -> None:
    first = record_event(actor=None, verb="a", subject="x", at=timezone.now())
    with pytest.raises(IntegrityError), transaction.atomic():
        AuditEvent.objects.create(
            verb="b",
            subject="x",
            at=timezone.now(),
            previous_sha256=first.previous_sha256,
            sha256="0" * 64,
        )
