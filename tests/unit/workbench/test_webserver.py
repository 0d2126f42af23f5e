"""The web server's worker: requests that come slowly hold no thread."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.shared import ROOT
from workbench.supervise import web_command
from workbench.webserver import WAITING_BYTES, is_whole

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    ("received", "whole"),
    [
        (b"", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", False),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", True),
        (HEAD + b"Content-Length: 3\r\n\r\nab", False),
        (HEAD + b"Content-Length: 3\r\n\r\nabc", True),
        (HEAD + b"content-length:\t3 \r\n\r\nab", False),
        # Longer than is waited for: its headers say who sends it.
        (HEAD + b"Content-Length: %d\r\n\r\na" % WAITING_BYTES, True),
        (HEAD + b"Content-Length: 60000\r\n\r\n" + b"a" * 59_999, False),
        # Its length isn't said, and no page reads such a body.
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\na", True),
        (b"a" * WAITING_BYTES, True),
    ],
)
def test_a_request_waits_until_it_has_come(received: bytes, whole: bool) -> None:
    assert is_whole(received) == whole


def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    """Answer how many bytes were sent; read only what is short, as the pages do of strangers."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    read = len(environ["wsgi.input"].read()) if length <= WAITING_BYTES else 0
    start("200 OK", [("Content-Type", "text/plain")])
    return [str(read).encode()]


@contextmanager
def served(worker: str) -> Iterator[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "tests.unit.workbench.test_webserver:app"]
    command += ["--bind", f"127.0.0.1:{port}", "--worker-class", worker, "--threads", "2"]
    command += ["--no-control-socket", "--graceful-timeout", "1", "--log-level", "warning"]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def ask(port: int, body: bytes = b"", *, patience_s: float = 10) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
    try:
        connection.request("POST", "/", body)
        return connection.getresponse().read()
    finally:
        connection.close()


SLOW = {
    "half a body": HEAD + b"Content-Length: 20000\r\n\r\na",
    "half a head": HEAD,
    "half an upload": HEAD + b"Content-Length: 20000000\r\n\r\na",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", SLOW)
def test_slow_requests_keep_nobody_waiting(kind: str) -> None:
    with served("workbench.webserver.Worker") as port:
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        for one in slow:
            one.sendall(SLOW[kind])
        assert ask(port, b"a" * 60_000) == b"60000"
        for one in slow:
            one.close()


def test_with_gunicorns_own_threads_they_keep_everybody_waiting() -> None:
    """The guard removed: the test above does notice."""
    with served("gthread") as port:
        slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
        for one in slow:
            one.sendall(SLOW["half a body"])
        with pytest.raises(TimeoutError):
            ask(port, patience_s=1)
        for one in slow:
            one.close()


def test_a_request_in_pieces_is_answered_and_the_connection_is_kept() -> None:
    with served("workbench.webserver.Worker") as port:
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
        for _ in range(2):
            sent = HEAD + b"Content-Length: 5000\r\n\r\n" + b"a" * 5_000
            for at in range(0, len(sent), 700):
                connection.sendall(sent[at : at + 700])
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            assert (answer.status, answer.read()) == (200, b"5000")
        connection.close()


def test_the_pages_are_served_by_it() -> None:
    command = web_command(host="127.0.0.1", port=1)
    assert command[command.index("--worker-class") + 1] == "workbench.webserver.Worker"
