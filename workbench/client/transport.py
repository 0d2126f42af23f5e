"""Sending requests: what is tried again, how long is waited, and how an answer is read."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx2

from workbench.client.errors import ApiError, Unreachable, error_of

PREFIX = "/api/v1/"
KEY_HEADER = "Idempotency-Key"
# What stands before a server that is being started, and a server that asks to wait.
AGAIN = (429, 502, 503, 504)
LONGEST_WAIT_S = 60.0
FIRST_WAIT_S = 0.5


class Transport:
    """One server, seen as one person.

    Every request may be sent again when no answer comes or the answer is 429, 502, 503 or 504:
    reading changes nothing, and each write names a key by which the server does it once.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float,
        retries: int,
        transport: httpx2.BaseTransport | None,
        sleep: Callable[[float], None],
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
            raise ValueError(f"the address is written as https://workbench.example, not {url!r}")
        self.sleep = sleep
        self._retries = retries
        self._client = httpx2.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            timeout=timeout_s,
            transport=transport,
            # A token goes where it was meant to go and nowhere else.
            follow_redirects=False,
        )

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON at ``path`` below the API's address; None is left out of ``params``."""
        return _read(self._send("GET", path, params=params))

    def write(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        content: bytes | None = None,
        content_type: str = "",
        params: Mapping[str, Any] | None = None,
        keyed: bool = True,
    ) -> Any:
        """Return the JSON answer to a write, None where it has no body.

        Args:
            keyed: False for a write that can't name a key; it is then sent once.
        """
        more: dict[str, Any] = {}
        if content is not None:
            more = {"content": content, "headers": {"Content-Type": content_type}}
        elif method != "DELETE":
            more = {"json": {} if json is None else json}
        return _read(self._send(method, path, params=params or {}, keyed=keyed, **more))

    def rows(self, path: str, **params: Any) -> Iterator[Any]:
        """Yield the rows of a list, page by page."""
        page = self.get(path, **params)
        while True:
            yield from page["results"]
            if not page["next"]:
                return
            page = _read(self._send("GET", page["next"]))

    def download(self, path: str) -> Iterator[bytes]:
        """Yield a file piece by piece."""
        with self._client.stream("GET", path) as response:
            if response.status_code != 200:
                response.read()
                raise _error(response)
            yield from response.iter_bytes()

    def _send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        keyed: bool = True,
        **more: Any,
    ) -> httpx2.Response:
        url = path if path.startswith("/") else PREFIX + path
        query = {name: _text(value) for name, value in (params or {}).items() if value is not None}
        named = dict(headers or {})
        if keyed and method != "GET":
            named[KEY_HEADER] = str(uuid.uuid4())
        tries = 1 + (self._retries if keyed else 0)
        for number in range(1, tries + 1):
            wait = _backoff(number)
            try:
                response = self._client.request(
                    # An address of a page has its query already.
                    method,
                    url,
                    params=query or None,
                    headers=named,
                    **more,
                )
            except httpx2.TransportError as error:
                if number == tries:
                    raise Unreachable(f"{method} {url}: {error or type(error).__name__}") from error
            else:
                if not _again(response, number) or number == tries:
                    return response
                wait = _asked_wait(response) or wait
            self.sleep(wait)
        raise AssertionError("the last try returns or raises")


def _again(response: httpx2.Response, number: int) -> bool:
    if response.status_code in AGAIN:
        return True
    # Our own first request, whose answer was lost, is still being worked on.
    return (
        number > 1 and response.status_code == 409 and _body(response).get("error") == "key_in_use"
    )


def _asked_wait(response: httpx2.Response) -> float | None:
    text = response.headers.get("Retry-After", "")
    return min(float(text), LONGEST_WAIT_S) if text.isascii() and text.isdigit() else None


def _backoff(number: int) -> float:
    """Return seconds to wait after the try of this number: doubling, half of it by chance."""
    longest = min(FIRST_WAIT_S * 2.0 ** (number - 1), LONGEST_WAIT_S)
    return longest * (0.5 + random.random() / 2)


def _read(response: httpx2.Response) -> Any:
    if not response.is_success:
        raise _error(response)
    if response.status_code == 204 or not response.content:
        return None
    if "json" not in response.headers.get("Content-Type", ""):
        return response.text
    return response.json()


def _error(response: httpx2.Response) -> ApiError:
    return error_of(response.status_code, _body(response))


def _body(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return {}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | set | frozenset):
        return ",".join(map(str, value))
    return str(value)


def now() -> float:
    """Return the seconds of a clock that is never set."""
    return time.monotonic()
