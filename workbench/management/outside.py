"""Asking for the pages as people do: by the public address, over the network."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from workbench.kernel.hosts import PublicAddress

TIMEOUT_S = 5.0
READ_BYTES = 1_000
HOSTING = "see docs/hosting.md"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back; redirects are not followed."""

    status: int
    location: str
    body: str


class Unreachable(Exception):
    """No answer came; ``remedy`` says what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the public address leads to; ``remedy`` is empty where it leads to the pages."""

    text: str
    remedy: str = ""


def ask(address: PublicAddress, path: str, *, timeout_s: float = TIMEOUT_S) -> Answer:
    """Return what the address answers to a GET of ``path``.

    No proxy of the environment is used: what is asked is whether the address works from here.

    Raises:
        Unreachable: it answers nothing that HTTP knows.
    """
    host = address.host.strip("[]")
    connection: http.client.HTTPConnection
    if address.secure:
        context = ssl.create_default_context()
        connection = http.client.HTTPSConnection(
            host, address.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, address.port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers={"Host": address.netloc})
        response = connection.getresponse()
        body = response.read(READ_BYTES).decode(errors="replace")
        return Answer(
            status=response.status, location=response.headers.get("Location", ""), body=body
        )
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(
            f"its certificate is not trusted here: {error.verify_message}",
            "have the proxy get one for this name, as Caddy does by itself; "
            "for one of your own authority set SSL_CERT_FILE to its certificate",
        ) from error
    except ssl.SSLError as error:
        raise Unreachable(
            f"it does not speak TLS as expected ({error.reason or error})",
            f"let the proxy listen with TLS on port {address.port}, or write http://",
        ) from error
    except socket.gaierror as error:
        raise Unreachable(
            f"the name {host} is not known ({error.strerror})",
            "add it to the DNS, or correct WORKBENCH_PUBLIC_URL",
        ) from error
    except TimeoutError as error:
        raise Unreachable(
            f"no answer within {timeout_s:.0f} s",
            f"open port {address.port} in the firewall, or correct WORKBENCH_PUBLIC_URL",
        ) from error
    except OSError as error:
        raise Unreachable(
            f"the connection failed: {error.strerror or error}",
            f"start the proxy that listens on port {address.port}, or correct WORKBENCH_PUBLIC_URL",
        ) from error
    except http.client.HTTPException as error:
        raise Unreachable(
            f"what answers is no web server ({type(error).__name__})",
            "correct the port in WORKBENCH_PUBLIC_URL",
        ) from error
    finally:
        connection.close()


def judge(address: PublicAddress, *, ask: Callable[[PublicAddress, str], Answer] = ask) -> Verdict:
    """Return whether the public address leads to these pages, and if not, what to mend."""
    try:
        health = ask(address, "/health/")
        if fault := _fault_of_health(address, health):
            return fault
        page = ask(address, "/sign-in/")
    except Unreachable as error:
        return Verdict(text=str(error), remedy=error.remedy)
    if page.status in range(300, 400) and page.location.startswith(address.origin):
        return Verdict(
            text="the pages answer by sending the browser to where it is, over and over",
            remedy="let the proxy send X-Forwarded-Proto; if it runs on another machine, name its "
            f"address in WORKBENCH_PROXIES ({HOSTING})",
        )
    if page.status != 200:
        return Verdict(text=f"the page to sign in answers {page.status}", remedy=HOSTING)
    return Verdict(text="answers")


def _fault_of_health(address: PublicAddress, health: Answer) -> Verdict | None:
    status = health.status
    if status == 200 and health.body == "ok\n":
        return None
    if status in range(300, 400):
        return Verdict(
            text=f"it sends the browser on to {health.location[:200]!r}",
            remedy="name the address in WORKBENCH_PUBLIC_URL that it ends at",
        )
    if status == 400:
        return Verdict(
            text="the workbench refuses the Host header that arrives (400)",
            remedy="have the proxy pass it on (nginx: proxy_set_header Host $http_host;) and run "
            f"web server and doctor with the same WORKBENCH_PUBLIC_URL ({HOSTING})",
        )
    if status in (502, 503, 504):
        whose = "database" if "database" in health.body else "workbench behind it"
        return Verdict(
            text=f"the proxy answers, the {whose} does not ({status})",
            remedy="start it, and compare the port in the proxy's configuration with the one that "
            "`serve` prints",
        )
    return Verdict(
        text=f"something else answers there ({status} to /health/)",
        remedy=f"let the proxy pass the whole host to the workbench ({HOSTING})",
    )
