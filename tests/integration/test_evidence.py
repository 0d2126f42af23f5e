"""Evidence is inserted, never changed: by the model, and by the database behind it."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, connection, transaction

from skills.models import Library
from workbench.kernel.evidence import (
    TRIGGER_SUFFIX,
    EvidenceIsInsertOnly,
    evidence_models,
    install_triggers,
    missing_triggers,
)

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def make_library() -> Library:
    library: Library = Library.objects.create(slug="coding", number=1, sha256="0" * 64)
    return library


def raw_update(library: Library) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "UPDATE skills_library SET slug = 'other' WHERE id = %s",
            [library.pk],
        )


def test_the_model_refuses_every_change() -> None:
    library = make_library()
    library.slug = "other"
    with pytest.raises(EvidenceIsInsertOnly):
        library.save()
    with pytest.raises(EvidenceIsInsertOnly):
        library.delete()
    with pytest.raises(EvidenceIsInsertOnly):
        Library.objects.filter(pk=library.pk).update(slug="other")
    with pytest.raises(EvidenceIsInsertOnly):
        Library.objects.bulk_update([library], ["slug"])
    with pytest.raises(EvidenceIsInsertOnly):
        Library.objects.filter(pk=library.pk).delete()
    assert Library.objects.get(pk=library.pk).slug == "coding"


def test_the_database_refuses_what_goes_around_the_model() -> None:
    library = make_library()
    with pytest.raises(IntegrityError, match="insert-only"):
        raw_update(library)
    assert Library.objects.get(pk=library.pk).slug == "coding"


def test_without_its_trigger_the_database_lets_it_through() -> None:
    library = make_library()
    table = Library._meta.db_table
    drop = f'DROP TRIGGER "{table}{TRIGGER_SUFFIX}"'
    with connection.cursor() as cursor:
        cursor.execute(drop if connection.vendor == "sqlite" else f'{drop} ON "{table}"')
    assert missing_triggers(connection) == [table]
    raw_update(library)
    assert Library.objects.get(pk=library.pk).slug == "other"
    install_triggers(connection)
    assert missing_triggers(connection) == []


def test_every_evidence_table_is_guarded_after_migrate() -> None:
    names = {model.__name__ for model in evidence_models()}
    assert {"Attempt", "Grade", "Outcome", "Pair", "SkillVersion", "AuditEvent"} <= names
    assert missing_triggers(connection) == []
