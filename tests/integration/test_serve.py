"""``serve`` as its user runs it: real processes, real silence, and a real proxy in front."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest

from tests.shared import ROOT
from workbench import supervise
from workbench.kernel.hosts import listening_port, public_address
from workbench.kernel.queues import QUEUES
from workbench.management.outside import judge
from workbench.supervise import Web, processes

pytestmark = pytest.mark.xdist_group("services")

T = TypeVar("T")
WEB = "WORKBENCH_WEB_URL"
HOSTING = ROOT / "docs" / "hosting.md"
# 3 s of silence instead of 120: the sweeper may be silent for 1.5 s, a look is kept 75 ms.
SHORT = {"WORKBENCH_SWEEP_SECONDS": "0.3", "WORKBENCH_SILENT_SECONDS": "3"}
OPENSSL = [
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
    *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
]
GREEN = {"database": "green", "broker": "green", "sweeper": "green", "worker": "green"}


def wait_for(found: Callable[[], T], seconds: float = 30) -> T:
    """Poll until ``found`` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s in vain")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str
    cookies: SimpleCookie


class Person:
    """A browser's worth of HTTP: keeps cookies, follows nothing."""

    def __init__(self, port: int, host: str, *, context: ssl.SSLContext | None = None) -> None:
        self.port, self.host, self.context = port, host, context
        self.cookies: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, "", headers)

    def post(self, path: str, form: str, **headers: str) -> Answer:
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.get(path).text)
        assert token, path
        body = f"csrfmiddlewaretoken={token[1]}&{form}"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, body, {**kind, **headers})

    def ask(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> Answer:
        connection: http.client.HTTPConnection
        if self.context:
            connection = http.client.HTTPSConnection(
                "localhost", self.port, timeout=20, context=self.context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request(
            method, path, body=body, headers={"Host": self.host, "Cookie": cookie, **headers}
        )
        response = connection.getresponse()
        set_ones = SimpleCookie()
        for line in response.headers.get_all("Set-Cookie") or []:
            set_ones.load(line)
        self.cookies |= {name: morsel.value for name, morsel in set_ones.items()}
        text = response.read().decode()
        connection.close()
        return Answer(response.status, dict(response.headers), text, set_ones)


def environment(data: Path, **given: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | SHORT | {"WORKBENCH_DATA": str(data)} | given


class Served:
    """A running ``serve``."""

    def __init__(self, data: Path, *options: str, **given: str) -> None:
        self.data = data
        self.output = data.with_suffix(".out")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "serve", *options],
                cwd=ROOT,
                env=environment(data, **given),
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.output.read_text()

    def up(self) -> str:
        """Return what it said once it serves."""
        wait_for(lambda: "Serving until" in self.text() or self.process.poll() is not None, 60)
        assert self.process.poll() is None, self.text()
        return self.text()

    def pids(self) -> dict[str, int]:
        record = supervise.live_set(self.data)
        assert record, self.text()
        return {name: child["pid"] for name, child in record["children"].items()}

    def end(self) -> int:
        """End it by SIGTERM; return its exit code."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self.process.wait(20)
        self.process.kill()
        return self.process.wait()


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
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    found = shutil.which("nginx", path=path)
    if found is None or shutil.which("openssl") is None:
        pytest.skip("no nginx, or no openssl for its certificate; `apt install nginx` brings both")
    return found


def nginx_config(folder: Path, *, tls: int, plain: int, web: int) -> str:
    """Return a whole configuration around the example of docs/hosting.md."""
    example = HOSTING.read_text().split("```nginx\n")[1].split("```")[0]
    for text, here in (
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{tls} ssl;"),
        ("https://audit.example.org$", f"https://localhost:{tls}$"),
        ("audit.example.org;", "localhost;"),
        ("/etc/letsencrypt/live/audit.example.org/fullchain.pem", f"{folder}/cert.pem"),
        ("/etc/letsencrypt/live/audit.example.org/privkey.pem", f"{folder}/key.pem"),
        ("http://127.0.0.1:8000", f"http://127.0.0.1:{web}"),
    ):
        assert text in example, text
        example = example.replace(text, here)
    assert "audit.example.org" not in example
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}\n{example}\n}}\n"
    )


@contextmanager
def running(command: list[str], port: int, **kwargs: Any) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=ROOT, **kwargs)
    try:
        wait_for(lambda: processes.answers(f"127.0.0.1:{port}") or process.poll() is not None, 60)
        assert process.poll() is None
        yield
    finally:
        process.terminate()
        process.wait(20)


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
    subprocess.run(
        [*OPENSSL, "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    (tmp_path / "nginx.conf").write_text(nginx_config(tmp_path, tls=tls, plain=plain, web=web))
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
    front = [nginx, "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
    with log, running(serving, web, env=given, stdout=log, stderr=log), running(front, tls):
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
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
