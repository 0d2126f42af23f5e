"""What serve, web, worker and doctor decide before a process starts."""

from __future__ import annotations

import json
import os
import socket
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from tests.factories import make_user
from workbench import supervise
from workbench.heartbeats import Part, Status, SystemState
from workbench.kernel.hosts import own_names
from workbench.kernel.roles import Role
from workbench.management.commands import doctor, serve, worker
from workbench.management.outside import Verdict
from workbench.management.serving import invite_first_admin
from workbench.supervise import ServiceFailed, Web
from workbench.supervise.processes import started_at

pytestmark = pytest.mark.django_db


# --- the first admin ---------------------------------------------------------------


@pytest.fixture
def console(settings: Any) -> list[str]:
    settings.PUBLIC_URL = "https://audit.example.org"
    return []


def test_the_first_start_invites_an_admin_by_the_public_address(console: list[str]) -> None:
    invite_first_admin(say=console.append)
    assert console[0] == "Pages:   https://audit.example.org/"
    assert console[1].startswith("Sign in: https://audit.example.org/sign-in/link/")
    assert console[1].endswith(" (as admin; works once)")


def test_an_admin_who_never_came_in_is_invited_again_and_one_who_did_is_not(
    console: list[str],
) -> None:
    ada = make_user("ada", Role.ADMIN)
    invite_first_admin(say=console.append)
    assert "(as ada; works once)" in console[-1]
    ada.last_login = timezone.now()
    ada.save()
    make_user("bo", Role.ADMIN)
    console.clear()
    for _ in range(2):
        invite_first_admin(say=console.append)
    assert "/sign-in/link/" not in "".join(console)
    assert console[1] == "Sign in: https://audit.example.org/sign-in/"
    assert console[2].endswith("python3 manage.py sign_in_link ada")


def test_leads_and_the_deactivated_are_no_admins(console: list[str]) -> None:
    for name, role in (("lee", Role.LEAD), ("ada", Role.ADMIN)):
        user = make_user(name, role)
        user.last_login = timezone.now()
        user.is_active = name != "ada"
        user.save()
    invite_first_admin(say=console.append)
    assert "(as admin; works once)" in console[-1]


def test_a_deactivated_admin_is_not_let_in_by_a_restart(console: list[str]) -> None:
    user = make_user("admin", Role.ADMIN)
    user.is_active = False
    user.save()
    invite_first_admin(say=console.append)
    assert "/sign-in/link/" not in "".join(console)
    assert "sign_in_link NAME --role admin" in console[-1]


# --- where it listens --------------------------------------------------------------


def test_a_taken_port_and_a_bad_address_stop_serve_before_it_changes_anything() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=f"127.0.0.1:{port} is taken") as refused:
            call_command("serve", port=port)
    assert refused.value.returncode == 3
    for url in ("audit.example.org", "https://example.org/audit"):
        with pytest.raises(CommandError, match=r"^--public-url: ") as refused:
            call_command("serve", public_url=url)
        assert refused.value.returncode == 2
    with pytest.raises(CommandError, match="is no address of this machine"):
        call_command("serve", host="203.0.113.9")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "８０"])
def test_a_port_is_a_number_from_1_to_65535(port: str) -> None:
    with pytest.raises(CommandError, match="must be a port from 1 to 65535"):
        call_command("serve", f"--port={port}")


def test_a_folder_that_is_served_already_says_where(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path
    record: dict[str, Any] = {
        "pid": os.getpid(),
        "started": started_at(os.getpid()),
        "owner": 4711,
        "title": "manage.py serve",
        "environment": {
            "WORKBENCH_WEB_URL": "http://127.0.0.1:8000/",
            "WORKBENCH_PUBLIC_URL": "https://audit.example.org",
        },
        "children": {"web": {}},
    }
    (tmp_path / "services.json").write_text(json.dumps(record))
    with pytest.raises(CommandError) as refused:
        call_command("serve")
    assert "(process 4711) already serves this data folder" in str(refused.value)
    assert "https://audit.example.org" in str(refused.value)
    assert supervise.served_at(tmp_path) == "https://audit.example.org"


def test_every_process_is_told_where_the_pages_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORKBENCH_HOSTS", raising=False)
    here = Web(port=8000)
    assert here.address == "127.0.0.1:8000"
    assert here.environment() == {"WORKBENCH_WEB_URL": "http://127.0.0.1:8000/"}
    public = Web(host="0.0.0.0", port=8000, public_url="https://audit.example.org")
    assert public.address == "127.0.0.1:8000"
    assert public.environment()["WORKBENCH_PUBLIC_URL"] == "https://audit.example.org"
    assert "WORKBENCH_HOSTS" not in public.environment()
    # Nothing stands in front: only what leads to this machine is answered.
    everywhere = Web(host="0.0.0.0", port=8000)
    assert everywhere.environment()["WORKBENCH_HOSTS"].split(",") == own_names()
    named = Web(host="audit.lan", port=8000).environment()
    assert named["WORKBENCH_WEB_URL"] == "http://audit.lan:8000/"
    assert named["WORKBENCH_HOSTS"].split(",") == [*own_names(), "audit.lan"]
    six = Web(host="::", port=8000)
    assert six.address == "[::1]:8000"
    assert "::" not in six.url.replace("[", "") or six.url.startswith("http://[")
    monkeypatch.setenv("WORKBENCH_HOSTS", "audit.lan")
    assert "WORKBENCH_HOSTS" not in everywhere.environment()


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({}, ""),
        ({"public_url": "http://localhost:8000"}, ""),
        ({"public_url": "https://audit.example.org"}, ""),
        ({"host": "0.0.0.0"}, "there is no TLS"),
        ({"public_url": "http://audit.example.org"}, "there is no TLS"),
        ({"host": "0.0.0.0", "public_url": "https://audit.example.org"}, "is reached past"),
    ],
)
def test_serve_warns_where_passwords_can_be_read(options: dict[str, str], warns: str) -> None:
    err = StringIO()
    command = serve.Command(stderr=err)
    web = Web(**options)  # type: ignore[arg-type]
    command._warn(web, serve._public(web.public_url))
    said = err.getvalue()
    assert warns in said
    assert bool(warns) == bool(said)


@pytest.mark.parametrize(
    ("wanted", "absent", "needed", "endpoint", "served", "says"),
    [
        (True, [], False, "", True, ""),
        (True, [], False, "https://api.example", False, ""),
        (True, [], True, "https://api.example", True, ""),
        (True, ["xllamacpp"], False, "", False, ""),
        (True, ["xllamacpp"], True, "", False, "isn't installed (python3 manage.py demo"),
        (False, [], False, "", False, ""),
        (False, [], True, "", False, "is left out"),
    ],
)
def test_the_demonstration_model_is_served_where_it_can_be_of_use(
    wanted: bool,
    absent: list[str],
    needed: bool,
    endpoint: str,
    served: bool,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> None:
    monkeypatch.setattr(serve, "absent_model_wheels", lambda: absent)
    monkeypatch.setattr(serve, "_needs_embedded_model", lambda: needed)
    settings.OPENAI_BASE_URL = endpoint
    err = StringIO()
    command = serve.Command(stderr=err)
    assert command._serves_model(wanted=wanted) is served
    said = err.getvalue()
    assert says in said
    assert bool(says) == bool(said)


# --- processes of their own ---------------------------------------------------------


def test_a_worker_needs_a_broker_and_known_queues(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match="BROKER_URL is not set") as refused:
        call_command("worker")
    assert refused.value.returncode == 2
    settings.BROKER_URL = "redis://127.0.0.1:1/0"
    with pytest.raises(CommandError, match="there is no queue 'exections'; known: executions"):
        call_command("worker", queues="exections")
    with pytest.raises(CommandError, match=r"127.0.0.1:1 \(BROKER_URL\) does not answer"):
        call_command("worker")
    became: list[list[str]] = []
    monkeypatch.setattr(worker, "check_reachable", lambda url: None)
    monkeypatch.setattr(worker, "become", became.append)
    call_command("worker", queues="default, executions", concurrency=4)
    words = " ".join(became[0])
    assert "-A workbench.celery worker --queues default,executions --concurrency 4" in words


def test_a_command_in_production_uses_the_deployments_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKBENCH_ENV", "production")
    with socket.create_server(("127.0.0.1", 0)) as broker:
        url = f"redis://127.0.0.1:{broker.getsockname()[1]}/0"
        monkeypatch.setenv("BROKER_URL", url)
        with supervise.services(data=tmp_path) as running:
            assert (running.attached, running.pids) == (True, {})
        # serve starts its own on that broker: everything but Valkey.
        web = Web(port=8000)
        children = supervise.workbench_children(data=tmp_path, model=False, web=web, concurrency=2)
        assert [child.name for child in children] == ["worker", "sweeper", "web"]
    with (
        pytest.raises(ServiceFailed, match=r"\(BROKER_URL\) does not answer"),
        supervise.services(data=tmp_path),
    ):
        pass


# --- doctor -------------------------------------------------------------------------


def test_doctor_says_which_process_is_silent(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    [idle] = doctor.processes()
    assert idle.text.startswith("none runs now")
    settings.BROKER_URL = "redis://broker.example/0"
    parts = (
        Part(name="broker", status=Status.GREEN),
        Part(name="sweeper", status=Status.RED, text="The sweeper has been silent"),
        Part(name="worker", status=Status.UNKNOWN),
    )
    monkeypatch.setattr(
        doctor, "look_at_system", lambda *, now, broker_url: SystemState(parts=parts)
    )
    at_work, silent = doctor.processes()
    assert at_work.text == "at work: broker"
    assert (silent.text, silent.essential) == ("The sweeper has been silent", True)


def test_doctor_asks_for_the_public_address(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    [none] = doctor.address()
    assert none.text.startswith("no public address")
    settings.PUBLIC_URL = "https://audit.example.org"
    monkeypatch.setattr(doctor, "judge", lambda address: Verdict(text="answers"))
    [well] = doctor.address()
    assert (well.text, well.cost) == ("https://audit.example.org answers", "")
    monkeypatch.setattr(doctor, "judge", lambda address: Verdict(text="no", remedy="mend it"))
    [ill] = doctor.address()
    assert (ill.essential, ill.remedy) == (True, "mend it")


def test_doctor_names_sqlite_in_production(settings: Any) -> None:
    assert "SQLite in production" not in [finding.text for finding in doctor.database()]
    settings.PRODUCTION = True
    from django.db import connection

    found = [finding.text for finding in doctor.database()]
    assert ("SQLite in production" in found) == (connection.vendor == "sqlite")
