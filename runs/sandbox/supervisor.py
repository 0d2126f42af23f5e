"""Start one sandboxed process, feed it, watch it, and end it with everything it left behind.

The supervisor never unpickles, imports or evaluates what comes back: it counts
and keeps bytes. Three limits are its own, because no resource limit covers
them: the wall clock, the memory of all processes together (``RLIMIT_AS`` holds
for each alone) and the output.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import IO, Any

from runs.sandbox.jail import Jail, Limits
from runs.sandbox.packing import PYTHON_FLAGS, pack
from runs.sandbox.proctree import descendants, exit_handle, resident_bytes, was_starved

POLL_S = 0.03
_PRINTED_KEPT = 4096


class Ending(StrEnum):
    """Why a sandboxed process stopped."""

    EXITED = "exited"
    CPU = "cpu"
    WALL = "wall"
    MEMORY = "memory"
    OUTPUT = "output"
    HOST = "host"


@dataclass(frozen=True)
class Run:
    """What one sandboxed process did.

    Attributes:
        ending: why it stopped.
        ready: what ``launcher.apply`` reached, None if it never got that far.
        results: the result channel after its first line.
        printed: the head of what the program printed, as text.
        exit_code: 128 + n for signal n.
        seconds: on the clock, from start to end.
        reason: for ``host``: what failed.
    """

    ending: Ending
    ready: Mapping[str, int] | None
    results: bytes
    printed: str
    exit_code: int
    seconds: float
    reason: str = ""


def run(jail: Jail, request: Mapping[str, Any], limits: Limits) -> Run:
    """Run ``request`` in ``jail`` and return what became of it; nothing of it is left running.

    Called from one thread for the whole run: PR_SET_PDEATHSIG, which ends the
    sandbox with its supervisor, watches the thread that started it.

    Raises:
        RequestTooLarge: the request weighs more than ``MAX_REQUEST_BYTES``.
        NoSlot: every slot stayed busy.
    """
    with lease(jail) as uid:
        payload = pack(jail, request, limits, uid)
        return _Watch(jail, limits, payload).until_it_ends()


@contextlib.contextmanager
def lease(jail: Jail) -> Iterator[int | None]:
    """Lend a slot uid for the time of one process, or None where the jail has no slots."""
    if jail.slots is None:
        yield None
        return
    with jail.slots.lease() as uid:
        yield uid


@dataclass(frozen=True)
class Started:
    """A process in its jail; ``told`` is where bwrap names the init of its namespace."""

    process: subprocess.Popen[bytes]
    told: int | None


def start(jail: Jail) -> Started:
    """Start the interpreter in ``jail``; it waits for ``pack``'s bytes.

    Raises:
        OSError: the command can't be run.
    """
    command, told, tell = [*jail.argv, *PYTHON_FLAGS], None, None
    if jail.slots is None and not jail.config["reaper"]:
        # Without a uid of its own, the end of a namespace is seen by its init.
        told, tell = os.pipe()
        command[1:1] = ["--info-fd", str(tell)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=dict(jail.environment),
            cwd="/",
            start_new_session=True,
            pass_fds=() if tell is None else (tell,),
        )
    except OSError:
        if told is not None:
            os.close(told)
        raise
    finally:
        if tell is not None:
            os.close(tell)
    return Started(process, told)


def end(jail: Jail, started: Started) -> None:
    """End the process and all its descendants, and wait for them."""
    process = started.process
    if process.poll() is None:
        if jail.config["reaper"]:
            # The reaper ends the others first; killed itself, it would leave them behind.
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2.0)
        process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    if started.told is not None:
        _wait_for_init(started.told)
        os.close(started.told)


def _wait_for_init(told: int) -> None:
    """Wait until the init that bwrap named is gone; the kernel lets it go last of all."""
    os.set_blocking(told, False)
    with (
        contextlib.suppress(ValueError, KeyError, OSError),
        exit_handle(json.loads(os.read(told, 4096))["child-pid"]) as handle,
    ):
        if handle is not None:
            select.select([handle], [], [], 2.0)


def read_line(line: bytes) -> list[Any] | None:
    """Return one message of the result channel, or None if it is none.

    It comes from a process that ran untrusted code: only its shape is believed.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if type(message) is list and message and type(message[0]) is str:
        return message
    return None


@dataclass
class _Pipe:
    """One of the process's outputs: bytes seen, and the first of them kept."""

    stream: IO[bytes]
    limit: int
    keep: int
    seen: int = 0
    kept: bytearray = field(default_factory=bytearray)
    open: bool = True

    def drain(self) -> None:
        while self.open:
            try:
                part = os.read(self.stream.fileno(), 1 << 18)
            except BlockingIOError:
                return
            if not part:
                self.open = False
                return
            self.seen += len(part)
            self.kept += part[: max(0, self.keep - len(self.kept))]
            if self.seen > self.limit:
                return  # a program that writes without pause would hold us here


class _Watch:
    """The life of one process, from its start to the last of its descendants."""

    def __init__(self, jail: Jail, limits: Limits, payload: bytes) -> None:
        self._jail = jail
        self._limits = limits
        self._left = memoryview(payload)
        self._started = time.monotonic()

    def until_it_ends(self) -> Run:
        try:
            started = start(self._jail)
        except OSError as error:
            return self._host_failed(f"the sandbox can't be started: {error.strerror}")
        self._process = started.process
        try:
            assert self._process.stdout is not None
            assert self._process.stderr is not None
            most = self._limits.result_bytes
            self._results = _Pipe(self._process.stdout, limit=most, keep=most)
            most = self._limits.printed_bytes
            self._printed = _Pipe(self._process.stderr, limit=most, keep=_PRINTED_KEPT)
            stopped = self._watch()
        finally:
            end(self._jail, started)
        return self._result(stopped)

    def _watch(self) -> Ending | None:
        """Serve the pipes until the process exits (None) or breaks a limit (which one)."""
        assert self._process.stdin is not None
        streams = (self._process.stdin, self._results.stream, self._printed.stream)
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
        with exit_handle(self._process.pid) as handle:
            poll = select.poll()
            poll.register(streams[0], select.POLLOUT)
            for readable in (streams[1], streams[2]):
                poll.register(readable, select.POLLIN)
            if handle is not None:
                poll.register(handle, select.POLLIN)
            # Without a handle the exit is found by asking, so ask often.
            pause = POLL_S if handle is not None else 0.005
            next_look = self._started + POLL_S
            while True:
                events = poll.poll(pause * 1000)
                self._serve(poll, {number for number, _ in events})
                if self._process.poll() is not None:
                    self._results.drain()
                    self._printed.drain()
                    return self._over_output()
                over = self._over_output()
                if over is None and time.monotonic() >= next_look:
                    over = self._over_limits()
                    next_look = time.monotonic() + POLL_S
                if over is not None:
                    return over

    def _serve(self, poll: select.poll, ready: set[int]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        if not stdin.closed and stdin.fileno() in ready:
            try:
                self._left = self._left[os.write(stdin.fileno(), self._left) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._left = self._left[:0]
            if not self._left:
                poll.unregister(stdin)
                stdin.close()
        for pipe in (self._results, self._printed):
            if pipe.open and pipe.stream.fileno() in ready:
                pipe.drain()
                if not pipe.open:
                    poll.unregister(pipe.stream)

    def _over_output(self) -> Ending | None:
        pipes = (self._results, self._printed)
        return Ending.OUTPUT if any(pipe.seen > pipe.limit for pipe in pipes) else None

    def _over_limits(self) -> Ending | None:
        tree = descendants(self._process.pid)
        if resident_bytes(tree) > self._limits.memory_bytes:
            return Ending.MEMORY
        elapsed = time.monotonic() - self._started
        if elapsed > self._limits.wall_s:
            # In front of the program stand bwrap and its init, or the reaper.
            program = tree[1 if self._jail.config["reaper"] else 2 :]
            return Ending.HOST if was_starved(program, elapsed) else Ending.WALL
        return None

    def _result(self, stopped: Ending | None) -> Run:
        first, _, results = bytes(self._results.kept).partition(b"\n")
        message = read_line(first) or ["nothing"]
        code = self._process.returncode
        if message[0] != "ready":
            said = str(message[1]) if message[0] == "setup" else _last_line(self._printed.kept)
            return self._host_failed(said or f"it ended with code {code} before it was ready")
        ending, reason = stopped or Ending.EXITED, ""
        if ending is Ending.HOST:
            reason = "the host gave the program too little processor time"
        elif ending is Ending.EXITED:
            if code == -signal.SIGKILL and not self._jail.config["reaper"]:
                # bwrap itself was killed, which nothing inside can do.
                ending, reason = Ending.HOST, "the sandbox was killed from outside"
            elif code == 128 + signal.SIGXCPU or (
                code == 128 + signal.SIGKILL and self._seconds() >= self._limits.cpu_s
            ):
                ending = Ending.CPU
        return Run(
            ending=ending,
            ready=message[1],
            results=results,
            printed=self._printed.kept.decode("utf-8", "replace"),
            exit_code=code,
            seconds=self._seconds(),
            reason=reason,
        )

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _host_failed(self, reason: str) -> Run:
        return Run(
            ending=Ending.HOST,
            ready=None,
            results=b"",
            printed="",
            exit_code=-1,
            seconds=self._seconds(),
            reason=reason,
        )


def _last_line(printed: bytearray) -> str:
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
