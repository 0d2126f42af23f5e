"""The command's side: start a keeper or attach to a live set, and end with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO, Any

from workbench.supervise.keeper import POLL_S, ROOT, Child, clear_away, live_set
from workbench.supervise.processes import log_file, started_at

EXIT_INTERRUPTED = 130
TITLE_CHARS = 100


class ServiceFailed(Exception):
    """A process could not be started or kept alive; the text names its log."""


@dataclass(frozen=True, kw_only=True)
class Running:
    """A live set of services.

    Attributes:
        environment: Addresses as environment variables, such as BROKER_URL.
        pids: Process ids by service name; empty where nothing was started.
        logs: Folder of the log files.
        attached: Another command owns the set.
    """

    environment: Mapping[str, str]
    pids: Mapping[str, int]
    logs: Path
    attached: bool

    @property
    def broker_url(self) -> str:
        """Return the broker's URL."""
        return self.environment["BROKER_URL"]

    @property
    def model_url(self) -> str | None:
        """Return the base URL of the embedded model's server, None when it isn't running."""
        return self.environment.get("WORKBENCH_EMBEDDED_MODEL_URL")

    @property
    def web_url(self) -> str | None:
        """Return the URL of the web server, None when it isn't running."""
        return self.environment.get("WORKBENCH_WEB_URL")


@contextlib.contextmanager
def supervised(
    children: Sequence[Child], *, data: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Running]:
    """Yield ``children`` running under a keeper, or the live set of ``data``.

    Args:
        environment: What all of them are told beside this process's environment.

    Raises:
        ServiceFailed: See ``services``.
    """
    data.mkdir(parents=True, exist_ok=True)
    command = _Command()
    with signals_end_the_command(command):
        try:
            running = _start_or_attach(command, children, data, environment)
            try:
                yield running
            finally:
                command.stop()
        except SystemExit:
            if command.failure:
                raise ServiceFailed(command.failure) from None
            raise


class _Command:
    """What the command knows of its keeper."""

    def __init__(self) -> None:
        self.keeper: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self.failure = ""
        self.interruptible = False
        self.signalled = False

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        self.signalled = True
        if not self.stopping:
            raise SystemExit(EXIT_INTERRUPTED)
        self.tell("kill")  # a second signal: at once

    def tell(self, order: str) -> None:
        if self.keeper and self.keeper.stdin:
            with contextlib.suppress(OSError):
                os.write(self.keeper.stdin.fileno(), order.encode() + b"\n")

    def fail(self, text: str) -> None:
        """End the block from another thread."""
        if not self.stopping:
            self.failure = text
            main_thread = threading.main_thread().ident
            if self.interruptible and main_thread is not None:
                signal.pthread_kill(main_thread, signal.SIGTERM)

    def stop(self) -> None:
        self.stopping = True
        if self.keeper:
            self.tell("stop")
            try:
                self.keeper.wait(1)
            except subprocess.TimeoutExpired:
                if self.signalled:  # at a normal end nobody waits for anything
                    with contextlib.suppress(OSError):  # the terminal may be gone
                        print("Letting the worker end (Ctrl-C: at once) ...", file=sys.stderr)
                self.keeper.wait()


def _start_or_attach(
    command: _Command, children: Sequence[Child], data: Path, environment: Mapping[str, str]
) -> Running:
    """Return the set this command starts, or another's, waiting while that one starts."""
    patience = time.monotonic() + 180
    while time.monotonic() < patience:
        if not _is_locked(data) and (started := _start(command, children, data, environment)):
            return started
        if live := live_set(data):
            _check_complete(live, children)
            threading.Thread(target=_watch_owner, args=(command, live), daemon=True).start()
            return _running(live, data, attached=True)
        time.sleep(POLL_S)
    raise ServiceFailed(f"another command holds {data / 'services.lock'} but serves nothing.")


def _start(
    command: _Command, children: Sequence[Child], data: Path, environment: Mapping[str, str]
) -> Running | None:
    """Start a keeper and wait until its children are ready; None when another was faster."""
    logs = data / "logs"
    logs.mkdir(exist_ok=True)
    plan = {
        "children": [asdict(child) for child in children],
        "data": str(data),
        "environment": dict(environment),
        "parent": os.getpid(),
        "title": shlex.join(["manage.py", *sys.argv[1:]])[:TITLE_CHARS],
    }
    with log_file(logs / "supervisor.log") as log:
        command.keeper = subprocess.Popen(
            [sys.executable, "-m", "workbench.supervise"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": _python_path(), "WORKBENCH_DATA": str(data)},
        )
    assert command.keeper.stdout is not None
    command.tell(json.dumps(plan))
    try:
        event = _event(command.keeper.stdout)
    except BaseException:
        command.stop()
        raise
    if event["event"] == "ready":
        threading.Thread(target=_watch_keeper, args=(command, data), daemon=True).start()
        return _running(event["record"], data, attached=False)
    command.keeper.wait()
    command.keeper = None
    if event["event"] == "busy":
        return None
    raise ServiceFailed(event.get("text", f"the supervisor died; see {logs / 'supervisor.log'}"))


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _event(pipe: IO[bytes]) -> dict[str, Any]:
    line = pipe.readline()
    # Half a line is a keeper that was killed while it spoke.
    return dict(json.loads(line)) if line.endswith(b"\n") else {"event": "gone"}


def _watch_keeper(command: _Command, data: Path) -> None:
    assert command.keeper is not None
    assert command.keeper.stdout is not None
    while True:
        event = _event(command.keeper.stdout)
        if event["event"] != "restarted":
            break
        print(event["text"], file=sys.stderr, flush=True)
    if event["event"] == "gone" and not command.stopping:
        clear_away(data)
    command.fail(event.get("text", "the supervisor of the services was killed."))


def _watch_owner(command: _Command, live: Mapping[str, Any]) -> None:
    while started_at(live["pid"]) == live["started"]:
        time.sleep(0.5)
    command.fail(f"the services this command used ended with `{live['title']}`; run it again.")


def _check_complete(live: Mapping[str, Any], children: Sequence[Child]) -> None:
    missing = [child.name for child in children if child.name not in live["children"]]
    if missing:
        raise ServiceFailed(
            f"`{live['title']}` (process {live['owner']}) already runs the services of this data "
            f"folder, but without: {', '.join(missing)}. End it first, or wait until it ends."
        )


def _running(record: Mapping[str, Any], data: Path, *, attached: bool) -> Running:
    return Running(
        environment=record["environment"],
        pids={name: child["pid"] for name, child in record["children"].items()},
        logs=data / "logs",
        attached=attached,
    )


@contextlib.contextmanager
def signals_end_the_command(command: _Command | None = None) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into exit code 130 while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    command = command or _Command()
    command.interruptible = True
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup stays nohup
            before[number] = signal.signal(number, command.on_signal)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _is_locked(data: Path) -> bool:
    with open(data / "services.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
