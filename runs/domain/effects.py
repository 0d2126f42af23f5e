"""Effects of skills from pooled raw counts: RAE, OAE, lift and how they hang together.

Source: Skill Following (arXiv 2609.00549), section 3. Effects are in percentage points and
computed as ``k / n * 100``, the form whose rounding reproduces the paper's printed figures;
shares lie in 0 to 1. Rates are never averaged: cells are pooled by adding their counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from runs.domain.estimates import Estimate, Undefined

# A cell enters prevalence counts from this many retrieved pairs on (the paper's filter).
REPORTING_THRESHOLD = 10
SENSITIVITY_THRESHOLDS = (5, 10, 15, 20)


class Transition(StrEnum):
    """The joint result of one pair: the SE arm (with skills) against the SD arm (without)."""

    BOTH_PASS = "both_pass"
    HELPFUL = "helpful"
    HARMFUL = "harmful"
    BOTH_FAIL = "both_fail"

    @property
    def letter(self) -> str:
        """The paper's letter: a, b, c or d."""
        return {"both_pass": "a", "helpful": "b", "harmful": "c", "both_fail": "d"}[self.value]

    @classmethod
    def of(cls, *, se: bool, sd: bool) -> Transition:
        """Return the transition of a pair whose arms passed (True) or failed (False)."""
        if se:
            return cls.BOTH_PASS if sd else cls.HELPFUL
        return cls.HARMFUL if sd else cls.BOTH_FAIL


@dataclass(frozen=True)
class Counts:
    """Pairs of one group by transition: a both right, b won, c lost, d both wrong (each >= 0)."""

    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0

    def __post_init__(self) -> None:
        if min(self.a, self.b, self.c, self.d) < 0:
            raise ValueError(f"counts can't be negative: {self}")

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.a + other.a, self.b + other.b, self.c + other.c, self.d + other.d)

    @classmethod
    def of(cls, transitions: Iterable[Transition]) -> Counts:
        """Return the counts of ``transitions``."""
        letters = [transition.letter for transition in transitions]
        return cls(*(letters.count(letter) for letter in "abcd"))

    @property
    def n(self) -> int:
        return self.a + self.b + self.c + self.d

    @property
    def se_right(self) -> int:
        return self.a + self.b

    @property
    def sd_right(self) -> int:
        return self.a + self.c


@dataclass(frozen=True)
class CellCounts:
    """The counts of one cell by what retrieval did in the SE run.

    Attributes:
        retrieved: pairs whose SE run got a skill.
        skipped: pairs whose SE run got none.
        unknown: pairs of which this isn't known; they count in OAE and accuracy only.
    """

    retrieved: Counts = field(default_factory=Counts)
    skipped: Counts = field(default_factory=Counts)
    unknown: Counts = field(default_factory=Counts)

    def __add__(self, other: CellCounts) -> CellCounts:
        return CellCounts(
            self.retrieved + other.retrieved,
            self.skipped + other.skipped,
            self.unknown + other.unknown,
        )

    @property
    def all(self) -> Counts:
        """All pairs with both results."""
        return self.retrieved + self.skipped + self.unknown


def oae(*, counts: CellCounts) -> Estimate:
    """Return the overall effect over all pairs, 100 (b - c) / n_pairs, in points."""
    return _net(counts.all, Undefined.NO_PAIRS)


def rae(*, counts: CellCounts) -> Estimate:
    """Return the effect on retrieved pairs, 100 (b - c) / n_cond, in points."""
    return _net(counts.retrieved, _why_none_retrieved(counts))


def skipped_effect(*, counts: CellCounts) -> Estimate:
    """Return the effect on pairs that got no skill, 100 (b - c) / n_skip, in points."""
    return _net(counts.skipped, _why_none_skipped(counts))


def aggregate_lift(*, counts: CellCounts) -> Estimate:
    """Return SE accuracy on retrieved minus SE accuracy on skipped pairs, in points.

    It compares different tasks, so it mixes the effect of skills with which tasks are searched.
    """
    return _contrast(counts, counts.retrieved.se_right, counts.skipped.se_right)


def selection_gap(*, counts: CellCounts) -> Estimate:
    """Return SD accuracy on retrieved minus SD accuracy on skipped pairs, in points."""
    return _contrast(counts, counts.retrieved.sd_right, counts.skipped.sd_right)


def coverage(*, counts: CellCounts) -> Estimate:
    """Return n_cond / n_pairs (0 to 1); a lower bound where some retrieval is unknown."""
    if counts.all.n and counts.unknown.n == counts.all.n:
        return Estimate(None, Undefined.RETRIEVAL_UNKNOWN)
    return _share(counts.retrieved.n, counts.all.n)


def se_accuracy(*, counts: CellCounts) -> Estimate:
    """Return the share of pairs whose SE arm (with skills) passed, 0 to 1."""
    return _share(counts.all.se_right, counts.all.n)


def sd_accuracy(*, counts: CellCounts) -> Estimate:
    """Return the share of pairs whose SD arm (without skills) passed, 0 to 1."""
    return _share(counts.all.sd_right, counts.all.n)


@dataclass(frozen=True)
class Decomposition:
    """OAE split by where it comes from, in points; the parts sum to OAE.

    ``retrieved`` is n_cond / n_pairs times RAE, ``skipped`` n_skip / n_pairs times the skipped
    effect, ``unknown`` the rest. A group without pairs contributes nothing: None.
    """

    retrieved: float | None
    skipped: float | None
    unknown: float | None


def decompose(*, counts: CellCounts) -> Decomposition | None:
    """Return OAE's parts, or None without pairs."""
    total = counts.all.n
    if not total:
        return None
    parts = (
        (group.b - group.c) / total * 100 if group.n else None
        for group in (counts.retrieved, counts.skipped, counts.unknown)
    )
    return Decomposition(*parts)


def signs_disagree(*, lift: Estimate, effect: Estimate) -> bool | None:
    """Return whether lift and RAE point in opposite directions (unrounded; a zero never does).

    None when either is undefined.
    """
    if lift.value is None or effect.value is None:
        return None
    return lift.value < 0 < effect.value or effect.value < 0 < lift.value


class NotReportable(StrEnum):
    """Why a cell stays out of prevalence counts."""

    INCOMPLETE = "incomplete"
    OTHER_DESIGN = "other_design"
    FEW_RETRIEVED = "few_retrieved"
    LIFT_UNDEFINED = "lift_undefined"


def why_not_reportable(
    *, counts: CellCounts, threshold: int = REPORTING_THRESHOLD
) -> NotReportable | None:
    """Return why a complete cell stays out of prevalence counts, or None when it enters.

    It enters iff n_cond >= ``threshold`` (at least 1) and lift is defined (RAE then is). A cell
    with enough retrieved pairs and no lift keeps its RAE but leaves the denominator.
    """
    if counts.retrieved.n < max(threshold, 1):
        return NotReportable.FEW_RETRIEVED
    if aggregate_lift(counts=counts).value is None:
        return NotReportable.LIFT_UNDEFINED
    return None


@dataclass(frozen=True)
class Prevalence:
    """Of ``cells`` reportable cells at ``threshold``, ``disagreeing`` have opposite signs."""

    threshold: int
    disagreeing: int
    cells: int


def prevalence(*, cells: Iterable[CellCounts], threshold: int) -> Prevalence:
    """Return how many reportable cells have a lift and an RAE of opposite sign."""
    reportable = [
        counts for counts in cells if why_not_reportable(counts=counts, threshold=threshold) is None
    ]
    disagreeing = sum(
        bool(signs_disagree(lift=aggregate_lift(counts=counts), effect=rae(counts=counts)))
        for counts in reportable
    )
    return Prevalence(threshold, disagreeing, len(reportable))


def _net(group: Counts, reason: Undefined) -> Estimate:
    if not group.n:
        return Estimate(None, reason)
    return Estimate((group.b - group.c) / group.n * 100)


def _contrast(counts: CellCounts, right_retrieved: int, right_skipped: int) -> Estimate:
    retrieved, skipped = counts.retrieved.n, counts.skipped.n
    if not retrieved:
        return Estimate(None, _why_none_retrieved(counts))
    if not skipped:
        return Estimate(None, _why_none_skipped(counts))
    return Estimate((right_retrieved / retrieved - right_skipped / skipped) * 100)


def _share(part: int, whole: int) -> Estimate:
    return Estimate(part / whole) if whole else Estimate(None, Undefined.NO_PAIRS)


def _why_none_retrieved(counts: CellCounts) -> Undefined:
    if not counts.all.n:
        return Undefined.NO_PAIRS
    # With unknown retrieval it can't be claimed that no skill was returned.
    return Undefined.RETRIEVAL_UNKNOWN if counts.unknown.n else Undefined.NO_SKILL_RETURNED


def _why_none_skipped(counts: CellCounts) -> Undefined:
    if not counts.all.n:
        return Undefined.NO_PAIRS
    return Undefined.RETRIEVAL_UNKNOWN if counts.unknown.n else Undefined.EVERY_TASK_RETRIEVED
