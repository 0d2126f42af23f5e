"""doctor: what it finds, what it calls essential, and its exit code."""

from __future__ import annotations

import io
import socket
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from workbench.kernel.evidence import TRIGGER_SUFFIX, evidence_models
from workbench.management.commands import doctor
from workbench.management.commands.doctor import Finding

pytestmark = pytest.mark.django_db


def texts(findings: list[Finding]) -> str:
    return "\n".join(finding.text for finding in findings)


def test_a_whole_machine_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    # The sandbox is probed by its own tests.
    monkeypatch.setitem(doctor.CHECKS, "sandbox", lambda: iter([Finding(text="tier A")]))
    out = io.StringIO()
    call_command("doctor", stdout=out)
    assert "Nothing essential is missing" in out.getvalue()
    assert "every evidence table has its trigger" in out.getvalue()
    assert "Valkey server v=" in out.getvalue()


def test_an_essential_fault_is_named_with_its_remedy_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault = Finding(text="gone", cost="nothing runs", remedy="bring it back", essential=True)
    monkeypatch.setattr(doctor, "CHECKS", {"broker": lambda: iter([fault])})
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", stdout=out)
    assert ended.value.code == 1
    assert "MISSING  broker" in out.getvalue()
    assert "without it: nothing runs" in out.getvalue()
    assert "remedy: bring it back" in out.getvalue()


def test_something_absent_that_is_not_essential_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Finding(text="no Chromium", cost="no browser tests")
    monkeypatch.setattr(doctor, "CHECKS", {"browser": lambda: iter([absent])})
    out = io.StringIO()
    call_command("doctor", stdout=out)
    assert out.getvalue().startswith("absent   browser")


def test_a_check_that_fails_itself_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no such thing")

    later = Finding(text="looked at all the same")
    monkeypatch.setattr(doctor, "CHECKS", {"disk": broken, "model": lambda: iter([later])})
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", stdout=out)
    assert "RuntimeError: no such thing" in out.getvalue()
    assert "looked at all the same" in out.getvalue()


def test_a_dropped_trigger_is_found() -> None:
    table = evidence_models()[0]._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f'DROP TRIGGER "{table}{TRIGGER_SUFFIX}"')
    [finding] = [found for found in doctor._guards() if found.cost]
    assert table in finding.text
    assert finding.essential
    assert finding.remedy.startswith("python3 manage.py migrate")


def test_a_broker_that_does_not_answer_is_found_and_its_password_kept(
    settings: Any,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    settings.BROKER_URL = f"redis://user:secret@127.0.0.1:{port}/0"
    [finding] = doctor.broker()
    assert finding.essential
    assert f"127.0.0.1:{port}" in finding.text
    assert "secret" not in finding.text


def test_a_broker_that_may_drop_messages_is_found(settings: Any, valkey_url: str) -> None:
    from redis import Redis

    settings.BROKER_URL = valkey_url
    with Redis(unix_socket_path=valkey_url.removeprefix("redis+socket://")) as client:
        assert "noeviction" in texts(list(doctor.broker()))
        client.config_set("maxmemory-policy", "allkeys-lru")
        [finding] = doctor.broker()
        client.config_set("maxmemory-policy", "noeviction")
    assert finding.cost
    assert not finding.essential


def test_an_endpoint_that_does_not_answer_is_found(settings: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        settings.OPENAI_BASE_URL = f"http://127.0.0.1:{port}/v1"
        assert f"127.0.0.1:{port} answers" in texts(list(doctor.model()))
    assert f"127.0.0.1:{port} does not answer" in texts(list(doctor.model()))


def test_little_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 50_000_000

    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: Usage)
    [finding] = doctor.disk()
    assert finding.text.startswith("50 MB free")
    assert finding.essential
