"""Insert-only evidence, guarded by the database.

``EvidenceModel`` refuses changes in Python with a clear message; the BEFORE
UPDATE trigger refuses them for everything else that can reach the table. The
triggers are installed after every migrate, because SQLite rebuilds a table to
alter it and drops its triggers without a word.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.apps import apps
from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

TRIGGER_SUFFIX = "_insert_only"
FUNCTION = "workbench_refuse_update"


class EvidenceIsInsertOnly(Exception):
    """A stored piece of evidence was about to be changed or deleted."""


class EvidenceQuerySet(models.QuerySet[Any]):
    """A queryset that can insert and read, nothing else."""

    def _refuse(self, verb: str) -> NoReturn:
        raise EvidenceIsInsertOnly(
            f"{self.model.__name__} is evidence and can't be {verb}; a correction is a new row."
        )

    def update(self, **kwargs: Any) -> NoReturn:
        self._refuse("updated")

    def bulk_update(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("updated")

    def delete(self) -> NoReturn:
        self._refuse("deleted")


class EvidenceModel(models.Model):
    """A row that is written once. A correction is a new row beside it."""

    objects = EvidenceQuerySet.as_manager()

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise EvidenceIsInsertOnly(
                f"{type(self).__name__} is evidence and can't be updated; insert a correction."
            )
        kwargs["force_insert"] = True
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise EvidenceIsInsertOnly(
            f"{type(self).__name__} is evidence and can't be deleted; a correction is a new row."
        )


def evidence_models() -> list[type[EvidenceModel]]:
    """Return every concrete insert-only model of the project."""
    return [model for model in apps.get_models() if issubclass(model, EvidenceModel)]


def install_triggers(connection: BaseDatabaseWrapper) -> None:
    """Install the BEFORE UPDATE trigger of every evidence table that exists (idempotent).

    Raises:
        NotImplementedError: the database is neither SQLite nor PostgreSQL.
    """
    existing = set(connection.introspection.table_names())
    tables = [m._meta.db_table for m in evidence_models() if m._meta.db_table in existing]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                f"CREATE OR REPLACE FUNCTION {FUNCTION}() RETURNS trigger AS $body$ "
                "BEGIN RAISE EXCEPTION 'insert-only table: %', TG_TABLE_NAME "
                # Django turns this code into IntegrityError, as on SQLite.
                "USING ERRCODE = 'integrity_constraint_violation'; END $body$ LANGUAGE plpgsql",
                None,
            )
        for table in tables:
            name = table + TRIGGER_SUFFIX
            if connection.vendor == "sqlite":
                cursor.execute(
                    f'CREATE TRIGGER IF NOT EXISTS "{name}" BEFORE UPDATE ON "{table}" '
                    f"BEGIN SELECT RAISE(ABORT, 'insert-only table: {table}'); END",
                    None,
                )
            elif connection.vendor == "postgresql":
                cursor.execute(
                    f'CREATE OR REPLACE TRIGGER "{name}" BEFORE UPDATE ON "{table}" '
                    f"FOR EACH ROW EXECUTE FUNCTION {FUNCTION}()",
                    None,
                )
            else:
                raise NotImplementedError(f"no insert-only guard for {connection.vendor}")


def missing_triggers(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the evidence tables without their trigger, sorted; empty means guarded."""
    catalogue = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
        "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'",
    }[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(catalogue, None)
        present = {row[0] for row in cursor.fetchall()}
    tables = (model._meta.db_table for model in evidence_models())
    return sorted(table for table in tables if table + TRIGGER_SUFFIX not in present)
