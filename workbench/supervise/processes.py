"""Processes as the system shows them: who lives, who descends from whom, who answers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import IO

LOG_BYTES = 5_000_000
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


def signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def answers(address: str) -> bool:
    """Tell whether a socket path or ``host:port`` accepts connections."""
    with contextlib.suppress(OSError):
        if address.startswith("/"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(2)
                probe.connect(address)
            return True
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
        return True
    return False


def log_file(path: Path) -> IO[bytes]:
    """Open a log for appending; one that has grown large is set aside first."""
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")
