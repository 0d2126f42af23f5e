"""One uid a running program, across all processes of the host.

Two programs under one uid could signal each other, share a process limit, and
be swept by the wrong supervisor. So each run holds the lock of one uid, in a
file that dies with the process that holds it, and a uid that is still
inhabited is not lent again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
    import pwd
except ImportError:  # Windows, where no tier has slots
    pass

SLOTS = 64
# Ranges that distributions leave alone (systemd's UIDS-GIDS): above the
# container range, or, where a user namespace maps only 16 bits, below 61184.
FIRST_UIDS = (0x7000_0000, 60_600)
_PATIENCE_S = 60.0


class NoSlot(Exception):
    """No slot came free; an infrastructure error, never the program's."""


@dataclass(frozen=True)
class Slots:
    """The uids that programs run under.

    Attributes:
        uids: the range, none of which any account has.
        directory: where the lock files lie, writable by the owner alone.
    """

    uids: Sequence[int]
    directory: Path

    @contextlib.contextmanager
    def lease(self) -> Iterator[int]:
        """Lend a uid under which nothing runs; afterwards wait until nothing does.

        Raises:
            NoSlot: none came free within a minute.
        """
        uid, lock = self._acquire()
        try:
            yield uid
        finally:
            _empty(uid)
            os.close(lock)

    def _acquire(self) -> tuple[int, int]:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for uid in self.uids:
                lock = os.open(
                    self.directory / f"{uid}.lock",
                    os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
                    0o600,
                )
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock)
                    continue
                if not inhabited(uid):
                    return uid, lock
                os.close(lock)
            if time.monotonic() > deadline:
                raise NoSlot("every sandbox slot is taken")
            time.sleep(0.02)


def inhabited(uid: int) -> bool:
    """Return whether any process or zombie of ``uid`` exists: one call, no walk through /proc."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def _empty(uid: int) -> None:
    """Wait for the last process of ``uid``, and kill those that outstay the wait.

    The kernel ends a PID namespace in its own time, mostly within a millisecond.
    A process that survives even this keeps its slot from being lent again.
    """
    for wait_s in (0.5, 2.0):
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if not inhabited(uid):
                return
            time.sleep(0.0005)
        subprocess.run([sys.executable, "-I", "-S", "-c", _SWEEP, str(uid)], check=False)


# kill(-1) reaches exactly the processes of the caller's uid.
_SWEEP = """
import os, sys
uid = int(sys.argv[1])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
os.kill(-1, 9)
"""


def open_slots() -> Slots | None:
    """Return the slots of this host; None if no range of uids is free and mapped."""
    for first in FIRST_UIDS:
        uids = range(first, first + SLOTS)
        if all(_mapped(uids, table) for table in ("uid_map", "gid_map")) and not any(
            first <= account.pw_uid < first + SLOTS for account in pwd.getpwall()
        ):
            return Slots(uids=uids, directory=_private_directory())
    return None


def _mapped(uids: range, table: str) -> bool:
    lines = Path("/proc/self", table).read_text().splitlines()
    spans = [[int(number) for number in line.split()] for line in lines]
    return any(start <= uids[0] and uids[-1] < start + count for start, _, count in spans)


def _private_directory() -> Path:
    parent = Path("/run") if os.access("/run", os.W_OK) else Path(tempfile.gettempdir())
    directory = parent / "skill-audit-sandbox"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} must be a directory of mode 700 that you own")
    return directory
