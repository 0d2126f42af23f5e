"""The long-lived process that compares mathematical answers, and its deadline.

math-verify takes three seconds to import and can hang or exhaust memory on an
answer such as ``9^{9^{9^9}}``. So it lives in one process a grader, isolated as
the tier allows, started by the first answer that needs it, killed when an
answer outstays its deadline and started again for the next one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from runs.sandbox import programs, supervisor
from runs.sandbox.jail import Jail, Limits
from runs.sandbox.packing import pack
from runs.sandbox.slots import NoSlot
from runs.sandbox.supervisor import Started
from runs.sandbox.tiers import Tier, unsandboxed, with_packages

DEADLINE_S = 10.0
# Importing sympy on a machine with other work to do.
START_S = 120.0
_LIMITS = Limits(cpu_s=1_000_000, wall_s=1e9, memory_bytes=2 << 30)


class Comparison(StrEnum):
    """What math-verify said of one pair."""

    EQUAL = "equal"
    DIFFERENT = "different"
    # The answer made the comparison hang, or exhausted its memory.
    TIMEOUT = "timeout"
    # No process could be started or kept: the host's fault.
    UNAVAILABLE = "unavailable"


class MathsProcess:
    """Compares answers in a child process, one at a time."""

    def __init__(self, tier: Tier | None, *, deadline_s: float = DEADLINE_S) -> None:
        """Take the tier to run under; None runs the child with limits alone.

        Args:
            deadline_s: seconds one comparison may take on the clock.
        """
        self._tiers = [tier, unsandboxed()] if tier is not None else [unsandboxed()]
        self._deadline_s = deadline_s
        self._child: _Child | None = None
        self._lock = threading.Lock()

    def compare(self, *, gold: str, answer: str) -> Comparison:
        """Return whether ``answer`` equals ``gold``, both as math-verify reads them."""
        with self._lock:
            return self._compare(gold, answer)

    def _compare(self, gold: str, answer: str) -> Comparison:
        for _ in range(2):
            child = self._running()
            if child is None:
                return Comparison.UNAVAILABLE
            said = child.ask({"gold": gold, "answer": answer}, self._deadline_s)
            if said is not None and said[0] == "equal":
                return Comparison.EQUAL if said[1] is True else Comparison.DIFFERENT
            if said is not None:
                return Comparison.DIFFERENT  # sympy raised: nothing was found equal
            timed_out = child.alive()
            self.close()
            if timed_out:
                return Comparison.TIMEOUT
            # It died. Once may be the host's doing, twice is the answer's.
        return Comparison.TIMEOUT

    def close(self) -> None:
        """End the child, if there is one."""
        if self._child is not None:
            self._child.close()
            self._child = None

    def _running(self) -> _Child | None:
        if self._child is not None and (self._child.owner != os.getpid()):
            self._child = None  # a forked worker must not share its parent's pipes
        if self._child is not None and not self._child.alive():
            self.close()
        if self._child is None:
            for tier in self._tiers:
                self._child = _Child.start(tier)
                if self._child is not None:
                    # What worked once is taken from now on.
                    self._tiers = [tier]
                    break
        return self._child


class _Child:
    """One running comparison process and its pipes."""

    def __init__(self, jail: Jail, started: Started, held: contextlib.ExitStack):
        self.owner = os.getpid()
        self._jail = jail
        self._started = started
        self._process = started.process
        self._held = held
        self._received = b""

    @classmethod
    def start(cls, tier: Tier) -> _Child | None:
        """Start a child in ``tier`` and wait until it serves; None if it doesn't."""
        directory = _packages()
        if directory is None:
            return None
        jail = with_packages(tier, directory).jail
        paths = ["/site"] if "/site" in jail.argv else [directory]
        held = contextlib.ExitStack()
        try:
            uid = held.enter_context(supervisor.lease(jail))
            started = supervisor.start(jail)
        except (NoSlot, OSError):
            held.close()
            return None
        child = cls(jail, started, held)
        payload = pack(jail, programs.maths(paths=paths), _LIMITS, uid)
        ready = child._write(payload) and child._next_line(START_S)
        if not ready or (supervisor.read_line(ready) or [""])[0] != "ready":
            child.close()
            return None
        serving = child._next_line(START_S)
        if not serving or (supervisor.read_line(serving) or [""])[0] != "serving":
            child.close()
            return None
        return child

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, str], deadline_s: float) -> list[Any] | None:
        """Return the child's answer, or None if none came in time."""
        if not self._write(json.dumps(request).encode() + b"\n"):
            self._process.wait(timeout=10)
            return None
        line = self._next_line(deadline_s)
        return supervisor.read_line(line) if line else None

    def close(self) -> None:
        supervisor.end(self._jail, self._started)
        self._held.close()

    def _write(self, data: bytes) -> bool:
        assert self._process.stdin is not None
        try:
            while data:
                data = data[os.write(self._process.stdin.fileno(), data) :]
        except OSError:
            return False
        return True

    def _next_line(self, timeout_s: float) -> bytes | None:
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                return None
            part = os.read(handle, 1 << 16)
            if not part:
                self._process.wait(timeout=10)
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line


def _packages() -> str | None:
    """Return the directory math-verify is installed in; finding it imports nothing."""
    spec = importlib.util.find_spec("math_verify")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent.parent)


def as_gold(gold: str) -> str:
    """Return a gold answer as text that math-verify finds: in dollars unless it is delimited."""
    return gold if any(mark in gold for mark in ("$", "\\boxed", "\\(", "\\[")) else f"${gold}$"


def as_boxed(content: str) -> str:
    """Return the content of the last box as the one box of a reply."""
    return f"\\boxed{{{content}}}"
