"""``serve`` as its user runs it: real processes, real silence, and a real proxy in front."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.serving import (
    NO_NGINX,
    Person,
    Served,
    behind_nginx,
    environment,
    nginx_path,
    running,
    wait_for,
)
from tests.shared import ROOT
from workbench import supervise
from workbench.kernel.hosts import listening_port, public_address
from workbench.kernel.queues import QUEUES
from workbench.management.outside import judge
from workbench.supervise import Web, processes

pytestmark = pytest.mark.xdist_group("services")

WEB = "WORKBENCH_WEB_URL"
GREEN = {"database": "green", "broker": "green", "sweeper": "green", "worker": "green"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, int]]:
    """Return one ``serve`` for the tests that leave it as it was, and its port."""
    port = listening_port(host="127.0.0.1", port=None, first=18_200)
    data = tmp_path_factory.mktemp("served") / "data"
    data.mkdir()
    url = f"http://localhost:{port}"
    options = ["--port", str(port), "--public-url", url, "--no-model", "--concurrency", "1"]
    one = Served(data, *options)
    try:
        one.up()
        yield one, port
    finally:
        one.end()


def parts(port: int) -> dict[str, str]:
    answer = Person(port, f"localhost:{port}").get("/ready/")
    body = json.loads(answer.text)
    assert (answer.status == 200) == body["ready"] == (body["parts"] == GREEN)
    return dict(body["parts"])


def test_the_first_admin_comes_in_by_the_link_and_sees_that_all_is_well(
    served: tuple[Served, int],
) -> None:
    one, port = served
    said = one.up()
    assert f"Pages:   http://localhost:{port}/\n" in said
    found = re.search(rf"Sign in: http://localhost:{port}(/sign-in/link/\S+/) \(as admin", said)
    assert found, said
    assert "Warning" not in said
    person = Person(port, f"localhost:{port}")
    assert person.get("/experiments/").status == 302
    assert person.post(found[1], "").status == 302
    page = person.get("/experiments/")
    assert page.status == 200
    assert "has been silent" not in page.text
    assert person.get(re.findall(r'href="(/static/\S+\.css)"', page.text)[0]).status == 200
    status = json.loads(person.get("/api/v1/status/").text)
    assert status["ready"], status
    # The link works once.
    again = Person(port, f"localhost:{port}")
    assert again.get(found[1]).status == 410


def test_a_strangers_host_is_refused_and_no_proxy_is_believed(served: tuple[Served, int]) -> None:
    _, port = served
    evil = Person(port, "evil.example").get("/sign-in/")
    assert evil.status == 400
    assert "evil" not in evil.text + str(evil.headers)
    claims = {"X-Forwarded-Proto": "https", "X-Forwarded-Ssl": "on", "X-Forwarded-Host": "evil"}
    spoofed = Person(port, f"localhost:{port}").get("/sign-in/", **claims, SCRIPT_NAME="/evil")
    assert spoofed.status == 200
    assert "Strict-Transport-Security" not in spoofed.headers
    assert not spoofed.cookies["csrftoken"]["secure"]
    assert "evil" not in spoofed.text


def test_a_part_that_falls_silent_turns_readiness_red_until_it_speaks_again(
    served: tuple[Served, int],
) -> None:
    one, port = served
    pids = one.pids()
    wait_for(lambda: parts(port) == GREEN)
    with stopped(pids["worker"]):
        # Its main process lives and takes nothing up; all others answer.
        wait_for(lambda: parts(port) == GREEN | {"worker": "red"})
    wait_for(lambda: parts(port) == GREEN)
    with stopped(pids["sweeper"]), stopped(pids["valkey"]):
        wait_for(lambda: parts(port) == GREEN | dict.fromkeys(("broker", "sweeper"), "red")
            | {"worker": "unknown"})  # fmt: skip
        # The pages themselves are well.
        assert Person(port, f"localhost:{port}").get("/health/").text == "ok\n"
    wait_for(lambda: parts(port) == GREEN)
    assert one.pids() == pids


def test_a_killed_broker_comes_back_and_the_worker_takes_work_up_again(
    served: tuple[Served, int],
) -> None:
    one, port = served
    killed = one.pids()["valkey"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: one.pids()["valkey"] != killed)
    back = datetime.now(UTC).replace(tzinfo=None).isoformat(sep=" ")
    wait_for(lambda: all(at > back for at in heard(one.data).values()))
    wait_for(lambda: parts(port) == GREEN)


def heard(data: Path) -> dict[str, str]:
    """Return when each process was last heard of, as SQLite keeps it: UTC, sortable as text."""
    with closing(sqlite3.connect(f"file:{data}/workbench.sqlite3?mode=ro", uri=True)) as database:
        found = dict(database.execute("SELECT process, at FROM workbench_heartbeat"))
    assert set(found) == {"sweeper", *(f"worker:{queue}" for queue in QUEUES)}
    return found


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


# --- behind nginx -----------------------------------------------------------------


@pytest.fixture
def nginx() -> str:
    """Return the path of nginx; without it or openssl the test skips."""
    found = nginx_path()
    if found is None:
        pytest.skip(NO_NGINX)
    return found


def test_behind_the_documented_nginx_cookies_are_secure_and_forms_work(
    nginx: str,
    served: tuple[Served, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web, tls, plain = (
        listening_port(host="127.0.0.1", port=None, first=first)
        for first in (18_310, 18_420, 18_530)
    )
    url = f"https://localhost:{tls}"
    # Another web server on the data of the shared one.
    given = environment(served[0].data, WORKBENCH_PUBLIC_URL=url)
    manage = [sys.executable, "manage.py"]
    link = subprocess.run(
        [*manage, "sign_in_link", "lee", "--role", "lead"],
        cwd=ROOT,
        env=given,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    assert link.startswith(f"{url}/sign-in/link/")
    log = (tmp_path / "web.log").open("wb")
    serving = [*manage, "web", "--port", str(web), "--workers", "1"]
    front = behind_nginx(nginx, tmp_path, tls=tls, plain=plain, web=web)
    with log, running(serving, web, env=given, stdout=log, stderr=log), front as context:
        person = Person(tls, f"localhost:{tls}", context=context)
        page = person.get("/sign-in/")
        assert page.status == 200
        assert page.headers["Strict-Transport-Security"].startswith("max-age=31536000")
        inside = person.post(link.removeprefix(url), "", Origin=url)
        assert inside.status == 302
        session = inside.cookies["workbench_session"]
        assert (session["secure"], session["httponly"], session["samesite"]) == (True, True, "Lax")
        assert person.get("/experiments/").status == 200
        # A form of another origin changes nothing.
        stranger = Person(tls, f"localhost:{tls}", context=context)
        assert stranger.post("/sign-in/", "", Origin="https://evil.example").status == 403
        assert Person(tls, "evil.example", context=context).get("/sign-in/").status == 400
        # Plain HTTP leads to TLS, at the proxy and past it.
        for port in (plain, web):
            sent_on = Person(port, f"localhost:{port}").get("/sign-in/")
            assert (sent_on.status, sent_on.headers["Location"]) == (301, f"{url}/sign-in/")
        assert Person(web, f"127.0.0.1:{web}").get("/health/").text == "ok\n"
        # doctor's question, before and after the certificate is trusted.
        address = public_address(url)
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        assert "certificate is not trusted here" in judge(address).text
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        assert judge(address).text == "answers"
        assert (
            "it sends the browser on to" in judge(public_address(f"http://localhost:{plain}")).text
        )


def test_the_whole_network_is_answered_by_this_machines_names_alone(
    served: tuple[Served, int],
) -> None:
    port = listening_port(host="0.0.0.0", port=None, first=18_640)
    told = Web(host="0.0.0.0", port=port).environment()
    command = [sys.executable, "manage.py", "web", "--host", "0.0.0.0", "--port", str(port)]
    given = environment(served[0].data, **told)
    with running([*command, "--workers", "1"], port, env=given, stderr=subprocess.DEVNULL):
        for host in ("127.0.0.1", socket.gethostname().lower(), urlsplit(told[WEB]).hostname):
            assert Person(port, f"{host}:{port}").get("/sign-in/").status == 200
        assert Person(port, "evil.example").get("/sign-in/").status == 400


def test_sigterm_ends_everything(served: tuple[Served, int]) -> None:
    """The last one: it ends what the others share."""
    one, _ = served
    pids = one.pids()
    assert one.end() == supervise.EXIT_INTERRUPTED
    assert not any(map(processes.started_at, pids.values()))
    assert supervise.live_set(one.data) is None
