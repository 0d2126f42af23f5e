"""An OpenAI-compatible server on loopback that misbehaves as told and logs what it saw.

    with ScriptedServer(status(429, headers={"Retry-After": "2"}), reply("fine")) as server:
        ...  # talk to server.base_url
    assert len(server.seen) == 2

Each request gets the next of the behaviours; the last one is repeated.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Seen:
    """One request as it arrived; header names in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True)
class Answer:
    """What goes over the wire.

    Attributes:
        cut_after: bytes of the body after which the connection breaks, or None.
        hang: send nothing until the server is closed.
    """

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    hang: bool = False


Behaviour = Callable[[Seen], Answer]


# --- behaviours -------------------------------------------------------------


def completion(message: Mapping[str, Any], *, finish: str | None = "stop", **more: Any) -> Answer:
    """Answer with a chat completion; ``more`` replaces top-level fields."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    body = {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage, **more}
    return Answer(body=json.dumps(body))


def always(answer: Answer) -> Behaviour:
    return lambda _: answer


def reply(text: str | None, *, finish: str | None = "stop", **more: Any) -> Behaviour:
    return always(completion({"content": text}, finish=finish, **more))


def tool_call(arguments: Any, *, id: str = "c1", name: str = "search_skills") -> Behaviour:
    function = {"name": name, "arguments": arguments}
    calls = [{"id": id, "type": "function", "function": function}]
    return always(completion({"content": None, "tool_calls": calls}, finish="tool_calls"))


def body(text: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Behaviour:
    """Answer with any body at all."""
    return always(Answer(status=status, body=text, headers=headers or {}))


def status(
    number: int,
    /,
    *,
    message: str = "scripted failure",
    headers: Mapping[str, str] | None = None,
    **error: Any,
) -> Behaviour:
    """Answer with an error; ``error`` adds ``code``, ``type`` or ``param`` to its body."""
    text = json.dumps({"error": {"message": message, **error}})
    return always(Answer(status=number, body=text, headers=headers or {}))


def hang() -> Behaviour:
    return always(Answer(hang=True))


def cut(text: str = "half an answer", *, after: int = 40) -> Behaviour:
    """Promise a whole body and break the connection after some bytes of it."""
    whole = completion({"content": text})
    return always(Answer(body=whole.body, cut_after=after))


def context_overflow() -> Behaviour:
    message = "This model's maximum context length is 10 tokens. Please reduce the length."
    return status(400, message=message, code="context_length_exceeded")


def echo_key_and_refuse() -> Behaviour:
    """Refuse the key and repeat it in full, as careless servers do."""

    def answer(seen: Seen) -> Answer:
        key = seen.headers.get("authorization", "").removeprefix("Bearer ")
        return status(401, message=f"Incorrect API key provided: {key}")(seen)

    return answer


def refuses(parameter: str, then: Behaviour, *, message: str | None = None) -> Behaviour:
    """Refuse requests that hold ``parameter``; others get ``then``."""
    text = message or f"Unsupported parameter: '{parameter}' is not supported with this model."
    refusal = status(400, message=text, param=parameter, code="unsupported_parameter")
    return lambda seen: (refusal if parameter in seen.body else then)(seen)


def dies_after(requests: int, then: Behaviour) -> Behaviour:
    """Serve ``then`` for so many requests; after them the key is refused."""
    left = [requests]
    lock = threading.Lock()

    def answer(seen: Seen) -> Answer:
        with lock:
            left[0] -= 1
            alive = left[0] >= 0
        return then(seen) if alive else echo_key_and_refuse()(seen)

    return answer


# --- server -----------------------------------------------------------------


class ScriptedServer:
    """The server; its attribute ``seen`` lists every completion request, in order."""

    def __init__(self, *behaviours: Behaviour, models: tuple[str, ...] = ("m",)) -> None:
        self._behaviours = behaviours or (reply("fine"),)
        self._models = models
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._served_before = 0
        self.seen: list[Seen] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    def script(self, *behaviours: Behaviour) -> None:
        """Start over with other behaviours; ``seen`` stays."""
        with self._lock:
            self._behaviours = behaviours
            self._served_before = len(self.seen)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def answer_to(self, seen: Seen) -> Answer:
        if seen.path.endswith("/models"):
            return Answer(body=json.dumps({"data": [{"id": name} for name in self._models]}))
        with self._lock:
            number = len(self.seen) - self._served_before
            self.seen.append(seen)
            behaviour = self._behaviours[min(number, len(self._behaviours) - 1)]
        return behaviour(seen)

    def wait_until_closed(self) -> None:
        # Bounded, so that a forgotten client can't keep a thread for ever.
        self._closing.wait(timeout=60)


def _handler(server: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # One packet an answer: two would wait for a delayed acknowledgement between them.
        wbufsize = 65536

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            text = self.rfile.read(length).decode()
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen = Seen(self.path, headers, json.loads(text) if text else None)
            self._send(server.answer_to(seen))

        def do_GET(self) -> None:
            self.do_POST()

        def _send(self, answer: Answer) -> None:
            if answer.hang:
                server.wait_until_closed()
                self.close_connection = True
                return
            data = answer.body.encode()
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if answer.cut_after is not None:
                data = data[: answer.cut_after]
                self.close_connection = True
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
