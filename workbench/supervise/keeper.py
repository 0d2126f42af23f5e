"""The keeper: a process of its own session that keeps the children of one command.

Signals of the terminal reach the command alone, which asks the keeper for an
orderly end. When the command is gone, however it went, the keeper notices (its
pipe closes, its parent changes) and kills all that descends from it, orphans
included: it is their subreaper. If the keeper itself is killed, the kernel
kills its children.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from workbench.supervise.processes import (
    adopt_orphans,
    answers,
    die_with_parent,
    kill_descendants,
    log_file,
    signal_group,
    started_at,
)

ROOT = Path(__file__).resolve().parent.parent.parent
RESTARTS = 2
# A child that ran this long before it died has its restarts back.
STEADY_S = 600.0
POLL_S = 0.1
# Linux refuses longer socket paths, and so does Valkey.
SOCKET_PATH_BYTES = 107


@dataclass(frozen=True, kw_only=True)
class Child:
    """One process to keep. ``{run}`` and ``{port}`` in its texts are filled in by the keeper.

    Attributes:
        name: Names the process and its log file.
        command: The command line.
        address: Ready when this accepts connections: a socket path or ``host:port``.
        port_file: Ready when this file holds a loopback port that accepts connections.
        exports: Environment of the children after it and of the command.
        ready_s: Patience for it to get ready, in seconds.
        grace_s: Patience for it to end after SIGTERM, in seconds, before it is killed.
    """

    name: str
    command: Sequence[str]
    address: str = ""
    port_file: str = ""
    exports: Mapping[str, str] = field(default_factory=dict)
    ready_s: float = 60.0
    grace_s: float = 3.0


def live_set(data: Path) -> dict[str, Any] | None:
    """Return the record of the services that run for ``data``, None when none do."""
    try:
        record = dict(json.loads((data / "services.json").read_text()))
    except (OSError, ValueError):
        return None
    return record if started_at(record["pid"]) == record["started"] else None


class _Stop(Exception):
    """The command asked for an orderly end."""


class _Kill(Exception):
    """The command is gone, or in a hurry."""


class _Failed(Exception):
    """A child can't be kept."""


@dataclass
class _Process:
    child: Child
    popen: subprocess.Popen[bytes]
    since: float
    restarts: int = 0
    port: str = ""


class _Keeper:
    """Starts, watches, restarts and ends the children of one plan."""

    def __init__(self, plan: Mapping[str, Any], run: Path) -> None:
        self.children = [Child(**child) for child in plan["children"]]
        self.data = Path(plan["data"])
        self.parent = plan["parent"]
        self.title = plan["title"]
        self.run = run
        self.environment: dict[str, str] = dict(plan["environment"])
        if url := os.environ.get("BROKER_URL"):
            self.environment["BROKER_URL"] = url
        self.processes: dict[str, _Process] = {}
        self.ordered = b""
        signal.signal(signal.SIGTERM, self.on_term)

    def on_term(self, signum: int, frame: FrameType | None) -> None:
        self.ordered += b"stop"

    def keep(self) -> int:
        """Run the plan until the command ends it; return the exit code."""
        try:
            for child in self.children:
                self.start(child)
            _tell_command(event="ready", record=self.record())
            while True:
                self.attend()
                self.reap_orphans()
                for process in list(self.processes.values()):
                    if process.popen.poll() is not None:
                        self.restart(process)
        except _Failed as failure:
            _tell_command(event="failed", text=str(failure))
            self.stop()
            return 1
        except _Stop:
            self.stop()
        except _Kill:
            pass
        finally:
            kill_descendants()
            (self.data / "services.json").unlink(missing_ok=True)
        return 0

    def attend(self) -> None:
        """Wait a moment for an order.

        Raises:
            _Stop: The command asks for an end.
            _Kill: The command is gone, or asks for an end at once.
        """
        ready, _, _ = select.select([0], [], [], POLL_S)
        if ready:
            text = os.read(0, 4096)
            if not text:
                raise _Kill
            self.ordered += text
        if os.getppid() != self.parent or b"kill" in self.ordered:
            raise _Kill
        if b"stop" in self.ordered:
            self.ordered = b""
            raise _Stop

    def reap_orphans(self) -> None:
        """Let those end that died orphaned; the children themselves are polled."""
        if sys.platform != "linux":
            return
        ours = {process.popen.pid for process in self.processes.values()}
        with contextlib.suppress(ChildProcessError):
            while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if dead.si_pid in ours:
                    return
                os.waitpid(dead.si_pid, os.WNOHANG)

    def start(self, child: Child) -> None:
        """Start one child and wait until it is ready."""
        if child.port_file:
            Path(self.fill(child.port_file)).unlink(missing_ok=True)
        try:
            with log_file(self.log(child)) as log:
                popen = subprocess.Popen(
                    [self.fill(word) for word in child.command],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=os.environ | self.environment,
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            raise _Failed(f"the {child.name} service can't be started: {error}") from error
        process = _Process(child=child, popen=popen, since=time.monotonic())
        self.processes[child.name] = process
        self.wait_ready(process)
        for name, value in child.exports.items():
            self.environment[name] = self.fill(value, process.port)
        self.write_record()

    def wait_ready(self, process: _Process) -> None:
        child = process.child
        deadline = time.monotonic() + child.ready_s
        while not self.is_ready(process):
            self.attend()
            if process.popen.poll() is not None:
                raise _Failed(self.obituary(process, "ended before it was ready"))
            if time.monotonic() > deadline:
                raise _Failed(self.obituary(process, f"was not ready in {child.ready_s:.0f} s"))

    def is_ready(self, process: _Process) -> bool:
        child = process.child
        if child.port_file:
            with contextlib.suppress(OSError):
                process.port = Path(self.fill(child.port_file)).read_text().strip()
            return bool(process.port) and answers(f"127.0.0.1:{process.port}")
        return not child.address or answers(self.fill(child.address))

    def restart(self, process: _Process) -> None:
        """Start a dead child again, and those that were told its address if that changed."""
        child = process.child
        restarts = 0 if time.monotonic() - process.since > STEADY_S else process.restarts
        self.bury(process)
        if restarts >= RESTARTS:
            raise _Failed(self.obituary(process, f"died {restarts + 1} times"))
        how = _how_it_ended(process.popen.returncode)
        text = f"The {child.name} service {how}; starting it again ({restarts + 1} of {RESTARTS})."
        _tell_command(event="restarted", text=f"{text} Log: {self.log(child)}")
        before = dict(self.environment)
        self.start(child)
        self.processes[child.name].restarts = restarts + 1
        if self.environment != before:
            for later in self.children[self.children.index(child) + 1 :]:
                self.end(self.processes[later.name])
                self.start(later)

    def bury(self, process: _Process) -> None:
        """Kill what a dead child left behind: its group, and orphans, which are ours now."""
        signal_group(process.popen.pid, signal.SIGKILL)
        kill_descendants(spare=[p.popen.pid for p in self.processes.values() if p is not process])

    def end(self, process: _Process) -> None:
        """End one child: SIGTERM, its grace, then SIGKILL for all of its group."""
        with contextlib.suppress(ProcessLookupError):
            process.popen.terminate()
        self.wait(process, process.child.grace_s)
        self.bury(process)

    def wait(self, process: _Process, patience_s: float) -> None:
        deadline = time.monotonic() + patience_s
        while process.popen.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(_Stop):
                self.attend()

    def stop(self) -> None:
        """End all in the reverse order of their start."""
        with contextlib.suppress(_Kill):
            for process in reversed(self.processes.values()):
                self.end(process)

    def fill(self, text: str, port: str = "") -> str:
        return text.replace("{run}", str(self.run)).replace("{port}", port)

    def log(self, child: Child) -> Path:
        return self.data / "logs" / f"{child.name}.log"

    def obituary(self, process: _Process, what: str) -> str:
        log = self.log(process.child)
        lines = log.read_text(errors="replace").splitlines()[-15:]
        return f"the {process.child.name} service {what}. The end of {log}:\n" + "\n".join(lines)

    def record(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "started": started_at(os.getpid()),
            "owner": self.parent,
            "title": self.title,
            "run": str(self.run),
            "environment": self.environment,
            "children": {
                name: {"pid": process.popen.pid, "started": started_at(process.popen.pid)}
                for name, process in self.processes.items()
            },
        }

    def write_record(self) -> None:
        """Publish the set for other commands once it is complete; never half a file."""
        if len(self.processes) < len(self.children):
            return
        part = self.data / "services.json.part"
        part.write_text(json.dumps(self.record(), indent=1))
        part.replace(self.data / "services.json")


def _tell_command(**event: object) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(event).encode() + b"\n")


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def run_keeper() -> int:
    """Be the keeper: read a plan from standard input and keep it; return the exit code."""
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    plan = json.loads(_first_line())
    data = Path(plan["data"])
    with open(data / "services.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell_command(event="busy")
            return 0
        clear_away(data)
        adopt_orphans()
        with _socket_folder() as run:
            return _Keeper(plan, run).keep()


def clear_away(data: Path) -> None:
    """Clear away what a killed keeper left behind."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        record = json.loads((data / "services.json").read_text())
        for child in record["children"].values():
            # A group outlives its leader, and nobody else gets its id meanwhile.
            if started_at(child["pid"]) in (None, child["started"]):
                signal_group(child["pid"], signal.SIGKILL)
        shutil.rmtree(record["run"], ignore_errors=True)


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(0)
        line += byte
    return line


@contextlib.contextmanager
def _socket_folder() -> Iterator[Path]:
    """Make a folder only this user can enter, with a path short enough for sockets."""
    for base in (os.environ.get("XDG_RUNTIME_DIR"), "/tmp", tempfile.gettempdir()):
        if base and os.access(base, os.W_OK | os.X_OK):
            path = Path(tempfile.mkdtemp(prefix="workbench-", dir=base))
            if len(os.fsencode(path / "broker.sock")) <= SOCKET_PATH_BYTES:
                break
            path.rmdir()
    else:
        raise SystemExit("no writable folder with a short path for sockets")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
