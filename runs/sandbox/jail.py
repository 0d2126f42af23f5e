"""What a sandboxed process may use, and how it is started so that it can do no harm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runs.sandbox.slots import Slots

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one program may use.

    Attributes:
        cpu_s: seconds of processor time a process, 1 and up.
        wall_s: seconds on the clock for all of it.
        memory_bytes: address space a process, and resident memory of all together.
        result_bytes: most bytes on the result channel.
        printed_bytes: printed bytes after which the program is ended.
        processes: most processes and threads at a time.
        file_bytes: largest file.
    """

    cpu_s: int = 10
    wall_s: float = 25.0
    memory_bytes: int = 512 * MIB
    result_bytes: int = MIB
    printed_bytes: int = 4 * MIB
    processes: int = 32
    file_bytes: int = 8 * MIB

    def resource_limits(self) -> dict[str, int]:
        """Return them as the kernel's limits a process has."""
        return {
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_NPROC": self.processes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_CORE": 0,
            "RLIMIT_MSGQUEUE": 0,
            "RLIMIT_MEMLOCK": 0,
        }


@dataclass(frozen=True)
class Jail:
    """How a process is started so that it can do no harm; made by ``tiers``.

    Attributes:
        argv: the command in front of the interpreter's own arguments.
        environment: all the variables the process gets.
        config: what ``launcher.apply`` is told, but for uid and limits.
        slots: the uids to run under, one a process at a time; None keeps the caller's.
        portable: whether code must travel as source, for another Python version.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    config: Mapping[str, Any]
    slots: Slots | None
    portable: bool
