"""The long-lived process that compares mathematical answers, and its deadline.

math-verify takes three seconds to import and can hang or exhaust memory on an
answer such as ``9^{9^{9^9}}``. So it lives in one process a grader, isolated as
the tier allows, started by the first answer that needs it, killed when an
answer outstays its deadline and started again for the next one.

The deadline is one of processor time, so that a busy or stopped host makes no
answer wrong: what it could not decide is ``UNAVAILABLE``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

from runs.domain.rationals import ascii_maths
from runs.sandbox import programs, supervisor
from runs.sandbox.jail import Jail, Limits
from runs.sandbox.packing import pack
from runs.sandbox.proctree import descendants, processor_seconds
from runs.sandbox.slots import NoSlot
from runs.sandbox.supervisor import Started
from runs.sandbox.tiers import Tier, unsandboxed, with_packages

DEADLINE_S = 10.0
# Times the deadline on the clock after which a child without processor time is given up.
_PATIENCE = 4
_LOOK_S = 0.25
# Importing sympy on a machine with other work to do.
START_S = 120.0
_LIMITS = Limits(cpu_s=1_000_000, wall_s=1e9, memory_bytes=2 << 30)


# What sends these signals is never the comparison itself: the host ended it.
_FROM_OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)


class Comparison(StrEnum):
    """What math-verify said of one pair."""

    EQUAL = "equal"
    DIFFERENT = "different"
    # The answer used up the processor time, or exhausted the child's memory.
    TIMEOUT = "timeout"
    # No process could be started, kept or given a processor: the host's fault.
    UNAVAILABLE = "unavailable"


class _Silence(StrEnum):
    """Why a child gave no answer."""

    BUSY = "busy"
    STARVED = "starved"
    CRASHED = "crashed"
    KILLED = "killed"


class MathsProcess:
    """Compares answers in a child process, one at a time."""

    def __init__(self, tier: Tier | None, *, deadline_s: float = DEADLINE_S) -> None:
        """Take the tier to run under; None runs the child with limits alone.

        Args:
            deadline_s: seconds of processor time one comparison may take.
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
        crashes = 0
        # A child that died gets a second one: its end may have had nothing to do with the answer.
        for _ in range(2):
            child = self._running()
            if child is None:
                return Comparison.UNAVAILABLE
            said = child.ask({"gold": gold, "answer": answer}, self._deadline_s)
            if not isinstance(said, _Silence):
                # Where sympy raised, nothing was found equal.
                equal = said[0] == "equal" and said[1] is True
                return Comparison.EQUAL if equal else Comparison.DIFFERENT
            self.close()
            if said is _Silence.BUSY:
                return Comparison.TIMEOUT
            if said is _Silence.STARVED:
                return Comparison.UNAVAILABLE
            crashes += said is _Silence.CRASHED
        return Comparison.TIMEOUT if crashes == 2 else Comparison.UNAVAILABLE

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
        for expected, data in (("ready", payload), ("serving", b"")):
            line = child._exchange(data, processor_s=START_S, clock_s=START_S)
            if isinstance(line, _Silence) or (supervisor.read_line(line) or [""])[0] != expected:
                child.close()
                return None
        return child

    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, str], deadline_s: float) -> list[Any] | _Silence:
        """Return the child's answer, or why none came."""
        data = json.dumps(request).encode() + b"\n"
        line = self._exchange(data, processor_s=deadline_s, clock_s=_PATIENCE * deadline_s)
        if isinstance(line, _Silence):
            return line
        return supervisor.read_line(line) or _Silence.CRASHED

    def close(self) -> None:
        supervisor.end(self._jail, self._started)
        self._held.close()

    def _exchange(self, data: bytes, *, processor_s: float, clock_s: float) -> bytes | _Silence:
        """Write ``data`` and return the next line, or why there is none within the limits."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        # Written as it is taken: a child that stands still must not hold its parent.
        os.set_blocking(stdin.fileno(), False)
        used, started = self._used(), time.monotonic()
        while b"\n" not in self._received:
            readable, writable, _ = select.select([stdout], [stdin] if data else [], [], _LOOK_S)
            if readable:
                part = os.read(stdout.fileno(), 1 << 16)
                if not part:
                    return self._death()
                self._received += part
            elif writable:
                try:
                    data = data[os.write(stdin.fileno(), data) :]
                except OSError:
                    return self._death()
            elapsed = time.monotonic() - started
            now = self._used() if elapsed > min(processor_s, _LOOK_S) else used
            # Without /proc there is only the clock to go by.
            spent = elapsed if now is None or used is None else now - used
            if spent > processor_s:
                return _Silence.BUSY
            if elapsed > clock_s:
                return _Silence.STARVED
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _used(self) -> float | None:
        return processor_seconds(descendants(self._process.pid))

    def _death(self) -> _Silence:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return _Silence.KILLED
        number = -code if code < 0 else code - 128
        return _Silence.KILLED if number in _FROM_OUTSIDE else _Silence.CRASHED


def _packages() -> str | None:
    """Return the directory math-verify is installed in; finding it imports nothing."""
    spec = importlib.util.find_spec("math_verify")
    if spec is None or spec.origin is None:
        return None
    return str(Path(spec.origin).parent.parent)


def as_gold(gold: str) -> str:
    """Return a gold answer as text that math-verify finds: in dollars unless it is delimited."""
    gold = ascii_maths(gold)
    return gold if any(mark in gold for mark in ("$", "\\boxed", "\\(", "\\[")) else f"${gold}$"


def as_boxed(content: str) -> str:
    """Return the content of the last box as the one box of a reply."""
    return f"\\boxed{{{ascii_maths(content)}}}"
