"""The workbench as people reach it, for several tests: ``serve``, a person's HTTP, and nginx."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, TypeVar

from tests.shared import ROOT
from workbench import supervise
from workbench.supervise import processes

T = TypeVar("T")
HOSTING = ROOT / "docs" / "hosting.md"
NO_NGINX = "no nginx, or no openssl for its certificate; `apt install nginx` brings both"
# 3 s of silence instead of 120: the sweeper may be silent for 1.5 s, a look is kept 75 ms.
SHORT = {"WORKBENCH_SWEEP_SECONDS": "0.3", "WORKBENCH_SILENT_SECONDS": "3"}
OPENSSL = [
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
    *("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
]


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

    def post(self, path: str, form: str, *, page: str = "", **headers: str) -> Answer:
        """Send a form as the ``page`` that has it does; without one, that of the same path."""
        found = self.get(page or path).text
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', found)
        assert token, path
        body = f"csrfmiddlewaretoken={token[1]}&{form}"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, body, {**kind, **headers})

    def ask(self, method: str, path: str, body: str, headers: Mapping[str, str]) -> Answer:
        connection: http.client.HTTPConnection
        if self.context:
            connection = http.client.HTTPSConnection(
                "localhost", self.port, timeout=60, context=self.context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
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
    """Return the environment of a process of its own on the data folder."""
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
        wait_for(lambda: "Serving until" in self.text() or self.process.poll() is not None, 180)
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


# --- behind nginx -----------------------------------------------------------------


def nginx_path() -> str | None:
    """Return the path of nginx, None where it or openssl isn't installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    return shutil.which("nginx", path=path) if shutil.which("openssl") else None


@contextmanager
def behind_nginx(
    nginx: str, folder: Path, *, tls: int, plain: int, web: int
) -> Iterator[ssl.SSLContext]:
    """Run nginx with a certificate of its own before ``web``; yield what trusts that."""
    subprocess.run(
        [*OPENSSL, "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    config = folder / "nginx.conf"
    config.write_text(nginx_config(folder, tls=tls, plain=plain, web=web))
    with running([nginx, "-p", str(folder), "-c", str(config)], tls):
        yield ssl.create_default_context(cafile=str(folder / "cert.pem"))


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
