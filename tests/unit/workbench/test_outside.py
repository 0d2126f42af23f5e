"""What the public address leads to, by real answers on loopback and by invented ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workbench.kernel.hosts import PublicAddress, public_address
from workbench.management.outside import Answer, Unreachable, ask, judge

URL = "https://audit.example.org"
OK = Answer(status=200, location="", body="ok\n")
PAGE = Answer(status=200, location="", body="<!doctype html>")


def judged(health: Answer, page: Answer = PAGE) -> tuple[str, str]:
    def answer(address: PublicAddress, path: str) -> Answer:
        return {"/health/": health, "/sign-in/": page}[path]

    verdict = judge(public_address(URL), ask=answer)
    return verdict.text, verdict.remedy


def test_the_pages_answer() -> None:
    assert judged(OK) == ("answers", "")


@pytest.mark.parametrize(
    ("health", "page", "text", "remedy"),
    [
        (
            Answer(status=301, location="https://other.example/health/", body=""),
            PAGE,
            "sends the browser on to 'https://other.example/health/'",
            "name the address in WORKBENCH_PUBLIC_URL",
        ),
        (Answer(status=400, location="", body=""), PAGE, "refuses the Host header", "$http_host"),
        (Answer(status=502, location="", body=""), PAGE, "workbench behind it does not", "port"),
        (
            Answer(status=503, location="", body="the database does not answer\n"),
            PAGE,
            "the database does not",
            "start it",
        ),
        (Answer(status=200, location="", body="Welcome!"), PAGE, "something else", "whole host"),
        (Answer(status=404, location="", body=""), PAGE, "something else answers", "whole host"),
        (
            OK,
            Answer(status=301, location=f"{URL}/sign-in/", body=""),
            "over and over",
            "X-Forwarded-Proto",
        ),
        (OK, Answer(status=500, location="", body=""), "answers 500", "docs/hosting.md"),
    ],
)
def test_each_fault_has_its_remedy(health: Answer, page: Answer, text: str, remedy: str) -> None:
    said, do = judged(health, page)
    assert text in said
    assert remedy in do


# --- over the network ---------------------------------------------------------------


@contextmanager
def listener(reply: bytes) -> Iterator[tuple[PublicAddress, list[bytes]]]:
    """Answer one connection with ``reply``; an empty one is never sent."""
    heard: list[bytes] = []
    done = threading.Event()

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            heard.append(connection.recv(4_000))
            if reply:
                connection.sendall(reply)
            else:
                done.wait(5)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield public_address(f"http://127.0.0.1:{server.getsockname()[1]}"), heard
        finally:
            done.set()
            thread.join()


def test_redirects_are_told_and_not_followed() -> None:
    moved = (
        b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n"
    )
    with listener(moved) as (address, heard):
        answer = ask(address, "/health/")
    assert (answer.status, answer.location) == (302, "http://elsewhere.example/")
    assert heard[0].startswith(b"GET /health/ HTTP/1.1\r\n")
    assert f"Host: {address.netloc}".encode() in heard[0]


def test_what_is_no_web_server_is_told() -> None:
    with (
        listener(b"220 mail.example ESMTP\r\n") as (address, _),
        pytest.raises(Unreachable, match="no web server") as fault,
    ):
        ask(address, "/health/")
    assert "port" in fault.value.remedy


def test_silence_ends_the_question() -> None:
    with (
        listener(b"") as (address, _),
        pytest.raises(Unreachable, match="no answer within") as fault,
    ):
        ask(address, "/health/", timeout_s=0.05)
    assert "firewall" in fault.value.remedy


def test_a_closed_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    verdict = judge(public_address(f"http://127.0.0.1:{port}"))
    assert "Connection refused" in verdict.text
    assert f"port {port}" in verdict.remedy


def test_plain_http_where_tls_is_expected_is_told() -> None:
    with listener(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as (address, _):
        secure = PublicAddress(scheme="https", host=address.host, port=address.port)
        with pytest.raises(Unreachable, match="does not speak TLS") as fault:
            ask(secure, "/health/")
    assert "or write http://" in fault.value.remedy


def test_an_unknown_name_is_told() -> None:
    verdict = judge(public_address("http://no-such-host.invalid"))
    assert "no-such-host.invalid is not known" in verdict.text
