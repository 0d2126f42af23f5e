"""Figures that may be undefined: a value or the reason there is none, never NaN or 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Undefined(StrEnum):
    """Why a figure has no value."""

    NO_PAIRS = "no_pairs"
    NO_SKILL_RETURNED = "no_skill_returned"
    EVERY_TASK_RETRIEVED = "every_task_retrieved"
    RETRIEVAL_UNKNOWN = "retrieval_unknown"
    INCOMPLETE = "incomplete"
    RESAMPLES_DROPPED = "resamples_dropped"
    TASKS_REPEAT = "tasks_repeat"


REASONS: Mapping[Undefined, str] = MappingProxyType(
    {
        Undefined.NO_PAIRS: "no pair has both results",
        Undefined.NO_SKILL_RETURNED: "no skill was returned",
        Undefined.EVERY_TASK_RETRIEVED: "a skill was returned for every task",
        Undefined.RETRIEVAL_UNKNOWN: "it is unknown whether a skill was returned",
        Undefined.INCOMPLETE: "pairs are still pending",
        Undefined.RESAMPLES_DROPPED: "more than 1% of the resamples had an empty group",
        Undefined.TASKS_REPEAT: "a task contributes several pairs; this interval needs one a task",
    }
)


@dataclass(frozen=True)
class Estimate:
    """One figure: ``value`` or, when it can't be computed, ``reason``; exactly one is set.

    Raises:
        ValueError: both or neither are given, or the value is not finite.
    """

    value: float | None
    reason: Undefined | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.reason is None):
            raise ValueError("an estimate has either a value or a reason")
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"an estimate's value must be finite, not {self.value}")


class IntervalMethod(StrEnum):
    """How an interval was computed; shown wherever the interval is."""

    TANGO = "tango"
    TANGO_DESIGN_EFFECT = "tango_design_effect"
    TANGO_TASK_MEAN = "tango_task_mean"
    MULTINOMIAL_PERCENTILE = "multinomial_percentile"
    EIGHT_CELL_PERCENTILE = "eight_cell_percentile"
    TASK_BOOTSTRAP = "task_bootstrap"


INTERVAL_METHODS: Mapping[IntervalMethod, str] = MappingProxyType(
    {
        IntervalMethod.TANGO: "Tango",
        IntervalMethod.TANGO_DESIGN_EFFECT: "Tango, clustered",
        IntervalMethod.TANGO_TASK_MEAN: "Tango, task mean",
        IntervalMethod.MULTINOMIAL_PERCENTILE: "percentile (paper)",
        IntervalMethod.EIGHT_CELL_PERCENTILE: "percentile",
        IntervalMethod.TASK_BOOTSTRAP: "task bootstrap",
    }
)


@dataclass(frozen=True)
class Interval:
    """A confidence interval at ``level`` (0 to 1, exclusive), low <= high.

    Raises:
        ValueError: the ends are not finite and ordered, or the level is out of range.
    """

    low: float
    high: float
    level: float
    method: IntervalMethod

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ValueError(f"not an interval: [{self.low}, {self.high}]")
        if not 0 < self.level < 1:
            raise ValueError(f"a level lies between 0 and 1, not at {self.level}")

    def in_points(self) -> Interval:
        """Return this interval of proportions in percentage points."""
        return Interval(self.low * 100, self.high * 100, self.level, self.method)

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies strictly outside."""
        return self.low > 0 or self.high < 0
