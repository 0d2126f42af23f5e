"""What a comparison found: figures, the ratio of the two sides, and how it is shown."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

WIDTH: Final = 100
_LABEL: Final = 9


class Status(StrEnum):
    """How a row stands to its goal."""

    MET = "met"
    MISSED = "missed"
    INFORMATION = "information"
    NO_PEER = "no_peer"
    FAILED = "failed"


@dataclass(frozen=True)
class Unit:
    """What a figure counts.

    Attributes:
        label: as printed behind the figure.
        scale: how many of it make a second; for a rate 1.
        rate: the figure is work per second, so that more is better.
    """

    label: str
    scale: float = 1.0
    rate: bool = False

    def figure(self, seconds: float) -> float:
        """Return the figure of work that takes ``seconds`` (above 0) a piece."""
        return 1 / seconds if self.rate else seconds * self.scale


MICROSECONDS: Final = Unit("us", 1e6)
MILLISECONDS: Final = Unit("ms", 1e3)


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of the rounds of one run."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    def to_json(self) -> dict[str, float]:
        """Return it as plain JSON."""
        return {"median": self.median, "low": self.low, "high": self.high}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison and what came of it.

    Attributes:
        name: how the command line calls it.
        job: what both sides do.
        peer: who it is compared with, with its version where it was measured.
        version: ours, with what else names the side; empty where it wasn't measured.
        unit: of both figures.
        ours, theirs: figures; None where that side wasn't measured.
        ratio: how many times as fast ours is, from the rounds pair by pair.
        goal: the least ratio wanted; None for information only.
        limits: what isn't equal between the sides.
        remark: what else was measured of ours, such as memory; empty where nothing was.
        reason: why there is no ratio; empty where there is one.
        missing_peer: whether that is because the peer isn't installed.
    """

    name: str
    job: str
    peer: str
    unit: Unit
    goal: float | None
    limits: str
    version: str = ""
    ours: Spread | None = None
    theirs: Spread | None = None
    ratio: Spread | None = None
    remark: str = ""
    reason: str = ""
    missing_peer: bool = False

    @property
    def status(self) -> Status:
        """How the row stands to its goal; the median ratio decides."""
        if self.missing_peer:
            return Status.NO_PEER
        if self.ratio is None:
            return Status.FAILED
        if self.goal is None:
            return Status.INFORMATION
        return Status.MET if self.ratio.median >= self.goal else Status.MISSED

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON; what wasn't measured is null."""
        return {
            "name": self.name,
            "job": self.job,
            "peer": self.peer,
            "unit": self.unit.label,
            "peer_figure": self.theirs.to_json() if self.theirs else None,
            "version": self.version,
            "ours": self.ours.to_json() if self.ours else None,
            "ratio": self.ratio.to_json() if self.ratio else None,
            "goal": self.goal,
            "status": self.status.value,
            "remark": self.remark,
            "reason": self.reason,
            "limits": self.limits,
        }

    def text(self) -> str:
        """Return it as a block of lines for the terminal."""
        lines = [
            f"{self.name}: {self.job}",
            _line("peer", f"{self._figure(self.theirs)}  {self.peer}"),
            _line("ours", f"{self._figure(self.ours)}  {self.version}"),
            *([_line("", self.remark)] if self.remark else []),
            _line("ratio", self._ratio_text()),
            _line("limits", self.limits),
        ]
        return "\n".join(lines)

    def _figure(self, spread: Spread | None) -> str:
        return f"{spread_text(spread)} {self.unit.label}" if spread else "not measured"

    def _ratio_text(self) -> str:
        goal = f"goal >= {number(self.goal)}x" if self.goal is not None else "no goal"
        if self.ratio is None:
            return f"{self.reason} ({goal})"
        verdict = "information" if self.status is Status.INFORMATION else self.status.value.upper()
        return f"{spread_text(self.ratio, suffix='x')}, {goal}: {verdict}"


def ratios(*, ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return round by round how many times as fast ours was, from seconds a piece.

    Raises:
        ValueError: the sides had different numbers of rounds.
    """
    return [their / our for our, their in zip(ours, theirs, strict=True)]


def number(value: float) -> str:
    """Return a positive figure with three digits, or all of them before the point."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread_text(spread: Spread, *, suffix: str = "") -> str:
    """Return ``median (low to high)``."""
    return f"{number(spread.median)}{suffix} ({number(spread.low)} to {number(spread.high)})"


def _line(label: str, text: str) -> str:
    return textwrap.fill(
        text,
        width=WIDTH,
        initial_indent=f"  {label:<{_LABEL}}",
        subsequent_indent=" " * (_LABEL + 2),
    )
