"""Running a comparison: two processes that take turns, A B A B, for a number of rounds."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import bootstrap
from workbench.management.benchmarks.catalogue import Comparison
from workbench.management.benchmarks.rows import Row, Spread, ratios

PEERS_LOCK = "peers"
INSTALL = "python3 manage.py benchmarks --install-peers"
ANSWER_WITHIN_S = 60.0
# A row ends after this or its number of rounds, and not before three rounds.
ROW_BUDGET_S = 15.0
_FEWEST_ROUNDS = 3
_OURS = "workbench.management.benchmarks.ours"
_PEERS = "workbench.management.benchmarks.peers"


class SideFailed(Exception):
    """A side gave no answer; the text says which and why."""


class Side:
    """One side's process, prepared; made by ``open_side``."""

    def __init__(self, label: str, process: subprocess.Popen[str], log: Any) -> None:
        self.label = label
        self.version = ""
        self._process = process
        self._log = log

    def prepare(self, data: Mapping[str, Any]) -> None:
        """Hand over the job's data and learn the version.

        Raises:
            SideFailed: it can't do the job.
        """
        self.version = str(self._ask(json.dumps(data))["version"])

    def turn(self, number: int) -> tuple[float, Any]:
        """Return the seconds a piece of one round, and its result.

        Raises:
            SideFailed: the round failed or took longer than a minute.
        """
        answer = self._ask(str(number))
        return float(answer["seconds"]), answer["result"]

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)[0]:
            raise SideFailed(f"{self.label} gave no answer within {ANSWER_WITHIN_S:.0f} s")
        text = self._process.stdout.readline()
        if not text:
            raise SideFailed(f"{self.label} ended without an answer: {self._last_line()}")
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise SideFailed(f"{self.label} failed: {answer['error']}")
        return answer

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


@contextlib.contextmanager
def open_side(label: str, command: list[str], folder: Path) -> Iterator[Side]:
    """Run ``command`` as one side, with the data folder ``folder``, and end all of it after."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            yield Side(label, process, log)
        finally:
            _end(process)


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment in which nothing of the user's own installation is touched."""
    left_out = ("DATABASE_URL", "WORKBENCH_ENV", "PYTHONSAFEPATH")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {
        "DJANGO_SETTINGS_MODULE": "workbench.settings",
        "PYTHONPATH": str(bootstrap.ROOT),
        "WORKBENCH_DATA": str(folder),
        "WORKBENCH_ALLOW_SCRIPTED": "1",
        "WORKBENCH_LOG_LEVEL": "ERROR",
        # Nobody consumes what is published; the sides run the work themselves.
        "BROKER_URL": "memory://",
    }


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    # Its pool, and itself if it is stuck; the group is its own.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


# --- the peers' environment ---------------------------------------------------


def peers_folder() -> Path:
    """Return the folder of the peers' environment, beside the product's own."""
    return bootstrap.venv_folder().with_name("peers")


def peers_installed() -> bool:
    """Tell whether the peers' environment holds what their lock names."""
    return bootstrap.is_ready(peers_folder(), (PEERS_LOCK,))


def install_peers() -> None:
    """Bring the peers' environment.

    Raises:
        CannotPrepare: with the reason and the remedy.
    """
    bootstrap.prepare(peers_folder(), (PEERS_LOCK,))


# --- comparing ----------------------------------------------------------------


def compare(comparison: Comparison, *, data_folder: Path) -> Row:
    """Return the comparison's row, measured now; a peer that isn't installed is said so."""
    row = Row(
        name=comparison.name,
        job=comparison.job,
        peer=comparison.peer,
        unit=comparison.unit,
        goal=comparison.goal,
        limits=comparison.limits,
    )
    published = comparison.published is not None
    missing = published or (comparison.needs_peers and not peers_installed())
    data_folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(dir=data_folder, prefix="benchmark-"))
        )
        ours = [sys.executable, "-m", _OURS, comparison.our_job]
        sides = [stack.enter_context(open_side("ours", ours, folder))]
        if not missing:
            theirs = [_python_of(comparison), "-m", _PEERS, comparison.peer_job]
            sides.append(stack.enter_context(open_side(comparison.peer, theirs, folder)))
        try:
            data = comparison.data(folder)
            for side in sides:
                side.prepare(data)
        except SideFailed as failure:
            return replace(row, reason=str(failure))
        if not missing:
            row = replace(row, peer=f"{row.peer} {sides[1].version}")
        row = replace(row, version=sides[0].version)
        if comparison.published is not None:
            return against_published(comparison, row, sides[0].turn, comparison.published)
        return measure(comparison, row, [side.turn for side in sides])


def _python_of(comparison: Comparison) -> str:
    """Return the interpreter that has the comparison's peer."""
    if comparison.needs_peers:
        return str(bootstrap.venv_python(peers_folder()))
    return sys.executable


Turns = Callable[[int], tuple[float, Any]]


def against_published(
    comparison: Comparison, row: Row, turn: Callable[[int], tuple[float, Any]], seconds: float
) -> Row:
    """Return ``row`` with our figures of some rounds beside the ``seconds`` that are published."""
    try:
        turn(0)
        began = time.monotonic()
        taken: list[float] = []
        for number in range(1, comparison.rounds + 1):
            seconds_taken, result = turn(number)
            taken.append(seconds_taken)
            if number >= _FEWEST_ROUNDS and time.monotonic() - began > ROW_BUDGET_S:
                break
    except SideFailed as failure:
        return replace(row, reason=str(failure))
    row = replace(
        row,
        ours=Spread.of([row.unit.figure(value) for value in taken]),
        theirs=Spread.of([row.unit.figure(seconds)]),
        remark=comparison.remark(result),
    )
    if not comparison.agree(result, None):
        return replace(row, reason=f"no ratio, ours did not do the job: {result}")
    return replace(row, ratio=Spread.of([seconds / value for value in taken]))


def measure(comparison: Comparison, row: Row, sides: list[Turns]) -> Row:
    """Return ``row`` with the figures of rounds in which ours and the peer take turns.

    Args:
        sides: ours, then the peer's unless it isn't installed. Round 0 of each warms up
            and isn't counted, but its results are what is compared.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    try:
        results = [turn(0)[1] for turn in sides]
        began = time.monotonic()
        for number in range(1, comparison.rounds + 1):
            for taken, turn in zip(seconds, sides, strict=True):
                taken.append(turn(number)[0])
            if number >= _FEWEST_ROUNDS and time.monotonic() - began > ROW_BUDGET_S:
                break
    except SideFailed as failure:
        return replace(row, reason=str(failure))
    figures = [Spread.of([row.unit.figure(value) for value in taken]) for taken in seconds]
    row = replace(row, ours=figures[0])
    if len(sides) == 1:
        reason = f"peer not installed: {INSTALL}"
        return replace(row, reason=reason, missing_peer=True)
    row = replace(row, theirs=figures[1])
    if not comparison.agree(results[0], results[1]):
        reason = f"no ratio, the results differ: ours {results[0]}, the peer's {results[1]}"
        return replace(row, reason=reason)
    return replace(row, ratio=Spread.of(ratios(ours=seconds[0], theirs=seconds[1])))
