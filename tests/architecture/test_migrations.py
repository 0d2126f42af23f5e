"""Migrations: named, linear, complete, and what they do to the guards of evidence."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from django.core.management import call_command, get_commands
from django.db import connection, models
from django.db.migrations.loader import MigrationLoader

from skills.models import Library
from workbench.kernel.evidence import missing_triggers

OURS = {"workbench", "skills", "runs", "annotation"}


def test_migrations_are_named_and_linear() -> None:
    loader = MigrationLoader(None)
    assert loader.detect_conflicts() == {}
    for app, name in loader.disk_migrations:
        if app in OURS:
            assert re.fullmatch(r"\d{4}_[a-z_]+", name), name
            assert "_auto_" not in name, name


@pytest.mark.django_db
def test_no_model_change_is_without_its_migration() -> None:
    call_command("makemigrations", "--check", "--dry-run", stdout=StringIO())


@pytest.mark.django_db(transaction=True)
def test_a_rebuilt_table_gets_its_trigger_back_after_migrate() -> None:
    """SQLite drops a table's triggers when it rebuilds the table; migrate restores them."""
    field = models.CharField(max_length=10, default="")
    field.set_attributes_from_name("note")
    with connection.schema_editor() as editor:
        editor.add_field(Library, field)
    try:
        if connection.vendor == "sqlite":
            with connection.schema_editor() as editor:
                editor.alter_field(Library, field, _wider(field))
            assert missing_triggers(connection) == [Library._meta.db_table]
        call_command("migrate", verbosity=0)
        assert missing_triggers(connection) == []
    finally:
        with connection.schema_editor() as editor:
            editor.remove_field(Library, field)
        call_command("migrate", verbosity=0)


def _wider(field: models.CharField) -> models.CharField:
    wider: models.CharField = models.CharField(max_length=20, default="", null=True)
    wider.set_attributes_from_name("note")
    wider.model = Library
    field.model = Library
    return wider


def test_the_projects_commands_have_no_django_namesakes() -> None:
    ours = {name for name, app in get_commands().items() if app in OURS}
    assert {"demo", "audit", "run_experiment", "report", "experiment", "doctor"} <= ours
