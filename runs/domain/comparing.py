"""Two cells over the tasks they share: is B, with the edited skills, better than A before it?

A is the old side, B the new one. What is compared is the library; everything else of the protocol
must be equal, or be named as allowed to differ. Definitions: docs/statistics.md.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np

from runs.domain import effects
from runs.domain.effects import CellCounts, Counts, Transition
from runs.domain.estimates import REASONS, Estimate, Interval, IntervalMethod, Undefined
from runs.domain.intervals import (
    MOST_DROPPED,
    RESAMPLES,
    SEED,
    PMethod,
    holm,
    mcnemar_exact,
    sign_flip,
)
from runs.domain.report import (
    ALPHA,
    FAILURES,
    FEWEST_DISCORDANT,
    Failure,
    FailurePolicy,
    PairRecord,
    transition_of,
)

# Below it percentiles of resampled tasks cover too seldom (docs/statistics.md).
FEWEST_TASKS = 10

# Patterns times resamples that are held at once: 32 MB.
_AT_ONCE = 4_000_000


class Factor(StrEnum):
    """What a protocol is made of; the library is what is compared and isn't one of them."""

    DESIGN = "design"
    MODEL = "model"
    ENDPOINT = "endpoint"
    DIALECT = "dialect"
    PROMPT = "prompt"
    DECODING = "decoding"
    STRATEGY = "strategy"
    CONTROL = "control"
    K = "k"
    TYPES = "types"
    RETRIEVER = "retriever"
    TOKENISER = "tokeniser"
    MAX_SEARCHES = "max_searches"
    SUITE = "suite"
    FAILURE_POLICY = "failure_policy"
    PRESET = "preset"
    # Of runs that were made elsewhere: all that their rows say of the cell beside the rest.
    DESCRIPTION = "description"


class Side(StrEnum):
    """The two sides: A is the old one, B the new one."""

    A = "A"
    B = "B"


class ProtocolDiffers(Exception):
    """The two cells differ in more than the library; ``differences`` names every factor."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        self.differences = tuple(differences)
        super().__init__(
            "A and B differ in more than their skills: "
            + "; ".join(one.text for one in differences)
            + ". What comes out could be due to either. Compare runs that are alike, or say that "
            "a factor may differ with "
            + " ".join(
                f"--allow {factor}" for factor in dict.fromkeys(d.factor for d in differences)
            )
        )


@dataclass(frozen=True)
class Difference:
    """One factor that differs, with its value on each side in words.

    Attributes:
        part: what of the factor it is, where that has parts with names of their own.
    """

    factor: str
    old: str
    new: str
    part: str = ""

    @property
    def text(self) -> str:
        name = self.part or self.factor.replace("_", " ")
        return f"{name} ({self.old} / {self.new})"


@dataclass(frozen=True)
class CellAbout:
    """What is known of a cell before its pairs are read.

    Attributes:
        library: slug and number as ``coding@2``, or None without one.
        partition: which tasks were chosen, in words.
        protocol: the value of each ``Factor``, plain JSON values.
        library_known: whether ``library`` says which skills were searched, and in which versions;
            what was made elsewhere may not say it.
        cancelled: nothing more will be run, so that what is pending stays so.
    """

    experiment: str
    sha12: str
    library: str | None
    partition: str
    protocol: Mapping[str, Any]
    library_known: bool = True
    cancelled: bool = False

    @property
    def library_text(self) -> str:
        """The library in words."""
        if self.library_known:
            return self.library or "no library"
        return f"{self.library}, version not known" if self.library else "library not known"

    @property
    def key(self) -> tuple[str, str]:
        return self.experiment, self.sha12

    @property
    def name(self) -> str:
        return f"{self.experiment}, cell {self.sha12}"


@dataclass(frozen=True)
class Match:
    """A cell of A and the cell of B it is compared with; ``differences`` were allowed."""

    old: CellAbout
    new: CellAbout
    differences: tuple[Difference, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it is known of both sides which skills were searched."""
        return self.old.library_known and self.new.library_known

    @property
    def same_skills(self) -> bool:
        """Whether both are runs of the same skills under the same protocol."""
        return self.known and self.old.library == self.new.library and not self.differences

    @property
    def skills_alone(self) -> bool:
        """Whether the skills are all that differs."""
        return self.known and self.old.library != self.new.library and not self.differences


@dataclass(frozen=True)
class Unmatched:
    """A cell that is compared with none, and why."""

    side: Side
    cell: CellAbout
    reason: str


@dataclass(frozen=True)
class Matching:
    """Which cells of A and B belong together.

    Attributes:
        undecided: how many cells of B have cells of their protocol in A without it being clear
            which; each could be compared by name, so each has its place in the family.
    """

    matched: tuple[Match, ...]
    unmatched: tuple[Unmatched, ...]
    undecided: int = 0


def differences_of(*, old: CellAbout, new: CellAbout) -> tuple[Difference, ...]:
    """Return every factor in which the protocols of two cells differ."""
    found = []
    for factor in Factor:
        before, after = old.protocol.get(factor), new.protocol.get(factor)
        if before == after:
            continue
        if factor is Factor.DESCRIPTION:
            found += _differing_parts(before or {}, after or {})
        else:
            found.append(Difference(factor.value, _spoken(before), _spoken(after)))
    return tuple(found)


def _differing_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Difference]:
    """Return each part of two descriptions that differs, by its own name."""
    return [
        Difference(Factor.DESCRIPTION.value, _spoken(old.get(part)), _spoken(new.get(part)), part)
        for part in sorted(old.keys() | new.keys())
        if old.get(part) != new.get(part)
    ]


def match_pair(*, old: CellAbout, new: CellAbout, allowed: Iterable[str] = ()) -> Match:
    """Return the match of two cells that were named.

    Raises:
        ProtocolDiffers: in a factor that isn't allowed to differ.
    """
    found = differences_of(old=old, new=new)
    refused = [one for one in found if one.factor not in set(allowed)]
    if refused:
        raise ProtocolDiffers(refused)
    return Match(old, new, found)


def match_cells(
    *, old: Sequence[CellAbout], new: Sequence[CellAbout], allowed: Iterable[str] = ()
) -> Matching:
    """Return which cells are compared: those of equal protocol, where that leaves one each.

    Several cells of one protocol are told apart by their partition, then by the library's slug.

    Raises:
        ProtocolDiffers: there is one cell on each side, and they differ.
    """
    may_differ = frozenset(allowed)
    if len(old) == len(new) == 1:
        return Matching((match_pair(old=old[0], new=new[0], allowed=may_differ),), ())
    matched: list[Match] = []
    left: dict[Side, list[CellAbout]] = {Side.A: list(old), Side.B: list(new)}
    for finer in range(3):

        def key(cell: CellAbout, finer: int = finer) -> tuple[str, ...]:
            slug = (cell.library or "").partition("@")[0]
            return (_fixed(cell, may_differ), *(cell.partition, slug)[:finer])

        groups = {side: _grouped(cells, key) for side, cells in left.items()}
        for name, here in groups[Side.A].items():
            there = groups[Side.B].get(name, [])
            if len(here) == len(there) == 1:
                match = Match(here[0], there[0], differences_of(old=here[0], new=there[0]))
                matched.append(match)
                left[Side.A].remove(here[0])
                left[Side.B].remove(there[0])
    others = {Side.A: tuple(new), Side.B: tuple(old)}
    unmatched = tuple(
        Unmatched(side, cell, _why_unmatched(cell, side, others[side], may_differ))
        for side, cells in left.items()
        for cell in cells
    )
    protocols = {_fixed(cell, may_differ) for cell in old}
    undecided = sum(_fixed(cell, may_differ) in protocols for cell in left[Side.B])
    return Matching(tuple(matched), unmatched, undecided)


def match_named(
    *,
    named: Match,
    old: Sequence[CellAbout],
    new: Sequence[CellAbout],
    allowed: Iterable[str] = (),
) -> Matching:
    """Return ``named`` first among all matches it is one of, whichever of them were looked at.

    Naming a cell doesn't make the others untried: the family of the correction stays all cells
    of B that have a counterpart. Within one experiment those are all cells that the named one of
    A could have been compared with.
    """
    may_differ = frozenset(allowed)
    if named.old.experiment == named.new.experiment:
        others = [
            Match(named.old, cell)
            for cell in new
            if cell.key not in (named.old.key, named.new.key)
            and _fixed(cell, may_differ) == _fixed(named.old, may_differ)
        ]
        return Matching((named, *others), ())
    if len(old) == len(new) == 1:
        return Matching((named,), ())
    found = match_cells(old=old, new=new, allowed=may_differ)
    was_undecided = any(
        one.side is Side.B
        and one.cell.key == named.new.key
        and any(_fixed(cell, may_differ) == _fixed(one.cell, may_differ) for cell in old)
        for one in found.unmatched
    )
    keys = (named.old.key, named.new.key)
    return Matching(
        (named, *(match for match in found.matched if match.new.key != named.new.key)),
        tuple(one for one in found.unmatched if one.cell.key not in keys),
        found.undecided - was_undecided,
    )


def _fixed(cell: CellAbout, may_differ: frozenset[str]) -> str:
    values = [cell.protocol.get(factor) for factor in Factor if factor not in may_differ]
    return json.dumps(_alike(values), sort_keys=True)


def _alike(value: Any) -> Any:
    """Return the value so that equal ones have equal JSON: 0.0 like 0."""
    if isinstance(value, Mapping):
        return {key: _alike(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_alike(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _grouped(cells: Iterable[CellAbout], key: Any) -> dict[tuple[str, ...], list[CellAbout]]:
    groups: dict[tuple[str, ...], list[CellAbout]] = defaultdict(list)
    for cell in cells:
        groups[key(cell)].append(cell)
    return groups


def _why_unmatched(
    cell: CellAbout, side: Side, others: Sequence[CellAbout], may_differ: frozenset[str]
) -> str:
    other = Side.B if side is Side.A else Side.A
    alike = [one for one in others if _fixed(one, may_differ) == _fixed(cell, may_differ)]
    if alike:
        return (
            f"several cells have its protocol, so it isn't clear which of {other}'s it belongs to: "
            "name both cells"
        )

    def factors(one: CellAbout) -> list[Difference]:
        pair = (cell, one) if side is Side.A else (one, cell)
        found = differences_of(old=pair[0], new=pair[1])
        return [each for each in found if each.factor not in may_differ]

    nearest = min((factors(one) for one in others), key=len)
    texts = "; ".join(each.text for each in nearest)
    return f"no cell of {other} has its protocol; the nearest differs in {texts} (A / B)"


# --- what is compared ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskPair:
    """One pair of a cell, with what tells its task and its runs from others.

    Attributes:
        task_sha256: of the task's content; a changed task is another task.
        versions: the version of each skill that was returned to the SE run, by slug; empty where
            it isn't known.
        sd_run: names the SD run; two pairs may share one.
    """

    task_sha256: str
    record: PairRecord
    versions: Mapping[str, str] = field(default_factory=dict)
    sd_run: str = ""

    @property
    def unit(self) -> tuple[str, int]:
        return self.task_sha256, self.record.replicate


class SetChange(StrEnum):
    """What became of the skills that the search returned for a shared pair."""

    SAME = "same"
    CHANGED = "changed"
    ONLY_A = "only_a"
    ONLY_B = "only_b"
    NEITHER = "neither"
    UNKNOWN = "unknown"


SET_CHANGES: Mapping[SetChange, str] = MappingProxyType(
    {
        SetChange.SAME: "the same skills and texts in both",
        SetChange.CHANGED: "other skills, or another text of the same",
        SetChange.ONLY_A: "returned in A only",
        SetChange.ONLY_B: "returned in B only",
        SetChange.NEITHER: "none in either",
        SetChange.UNKNOWN: "not known",
    }
)


@dataclass(frozen=True, slots=True)
class SharedPair:
    """A pair of A and the pair of B of the same task and replicate, by its SE results.

    Attributes:
        old_pair, new_pair: uids.
        added, removed: slugs returned in B only and in A only.
        edited: slugs returned in both with another text.
    """

    task: str
    replicate: int
    old_pair: str
    new_pair: str
    change: SetChange
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetRow:
    """Shared pairs with both SE results by what became of the returned skills."""

    change: SetChange
    pairs: int
    won: int
    lost: int


class NoInterval(StrEnum):
    """Why a difference of RAE has no interval."""

    UNDEFINED = "undefined"
    ONE_TASK = "one_task"
    FEW_TASKS = "few_tasks"
    NO_FLIPS = "no_flips"
    NO_VARIATION = "no_variation"
    RESAMPLES_DROPPED = "resamples_dropped"


NO_INTERVAL: Mapping[NoInterval, str] = MappingProxyType(
    {
        NoInterval.UNDEFINED: "the difference itself has no value",
        NoInterval.ONE_TASK: "all pairs are of one task, so there is nothing to resample",
        NoInterval.FEW_TASKS: (
            f"fewer than {FEWEST_TASKS} tasks have a returned skill: an interval from resampling "
            "so few would be too narrow"
        ),
        NoInterval.NO_FLIPS: (
            "no pair was won or lost against its run without skills, on either side: resampling "
            "can't tell how far from 0 the difference may be"
        ),
        NoInterval.NO_VARIATION: "every task came out alike, so resampling tasks changes nothing",
        NoInterval.RESAMPLES_DROPPED: (
            "in more than 1% of the resamples no skill was returned on one side"
        ),
    }
)


@dataclass(frozen=True)
class RaeChange:
    """RAE of both sides over shared pairs, and RAE of B minus RAE of A, in points.

    Attributes:
        n_old, n_new: retrieved pairs that each RAE is taken over; n_tasks: their tasks.
        reason: why the difference has no value.
        no_interval: why it has no interval.
        dropped: resamples left out because a side had no retrieved pair.
    """

    n_old: int
    n_new: int
    n_tasks: int
    old: Estimate
    new: Estimate
    difference: float | None
    reason: str | None
    interval: Interval | None
    no_interval: NoInterval | None
    dropped: int = 0


@dataclass(frozen=True)
class SdRuns:
    """The SD runs of the compared pairs: shared by both sides, or made for each.

    ``differing`` of the ``separate`` ones came out differently in A and B: noise alone.
    """

    shared: int
    separate: int
    differing: int


@dataclass(frozen=True)
class Reading:
    """Won, lost and p when failed model calls are read by one policy on both sides."""

    policy: FailurePolicy
    n_compared: int
    won: int
    lost: int
    p: float | None
    p_method: PMethod | None
    p_adjusted: float | None = None


@dataclass(frozen=True)
class LeftOut:
    """Shared pairs without a result, by side and by the reason (a ``Failure`` code).

    A pair that lacks one on both sides counts on both.
    """

    pairs: int
    old: Mapping[str, int]
    new: Mapping[str, int]


@dataclass(frozen=True)
class CellComparison:
    """Everything that is said of one cell of A and its counterpart in B.

    Attributes:
        complete: no shared pair is pending; until then there are counts and no figures.
        cancelled: the sides (A, B) that were cancelled and have pending shared pairs.
        n_shared: pairs of the same task content and replicate in both.
        n_compared: those with an SE result in both.
        n_pending: those of which a run isn't finished.
        n_tasks: tasks of the compared ones.
        changed_tasks: keys whose content differs between A and B; their pairs are left out.
        other_replicates: tasks of equal content of which no replicate has the same number in
            both.
        only_old, only_new: what only one side ran.
        left_out: ended shared pairs in which a run with skills has no result.
        rae_left_out: compared pairs that no RAE is over, as a run without skills has no result.
        own: RAE of each side on the pairs where that side got a skill.
        both: the same on pairs where both did.
        p: of the change of the SE results; ``p_adjusted`` after Holm over the family.
        readings: the same counts and p with failed calls left out, and counted as wrong.
        n_family, n_shown: how many cells p is corrected for, and how many of them are shown.
    """

    match: Match
    complete: bool
    n_shared: int
    n_compared: int
    n_pending: int
    n_tasks: int
    cancelled: tuple[Side, ...]
    changed_tasks: tuple[str, ...]
    other_replicates: tuple[str, ...]
    only_old: tuple[str, ...]
    only_new: tuple[str, ...]
    won: tuple[SharedPair, ...]
    lost: tuple[SharedPair, ...]
    both_pass: tuple[SharedPair, ...]
    both_fail: tuple[SharedPair, ...]
    sets: tuple[SetRow, ...]
    own: RaeChange
    both: RaeChange
    sd: SdRuns
    left_out: LeftOut
    rae_left_out: LeftOut
    p: float | None
    p_method: PMethod | None
    readings: tuple[Reading, ...]
    p_adjusted: float | None = None
    n_family: int = 1
    n_shown: int = 1

    @property
    def repeats(self) -> bool:
        """Whether a task has several pairs."""
        return self.n_tasks < self.n_compared

    @property
    def changed(self) -> tuple[SharedPair, ...]:
        """The compared pairs whose returned skills aren't the same, by task."""
        everything = (*self.won, *self.lost, *self.both_pass, *self.both_fail)
        shown = (SetChange.CHANGED, SetChange.ONLY_A, SetChange.ONLY_B)
        found = [pair for pair in everything if pair.change in shown]
        return tuple(sorted(found, key=lambda pair: (pair.task, pair.replicate)))


_Units = Mapping[tuple[str, int], TaskPair]
# A task's content, and whether A's and B's run with skills passed.
_Result = tuple[str, bool | None, bool | None]
_Test = tuple[float | None, PMethod | None]


@dataclass(frozen=True)
class Comparison:
    """A and B: each compared cell, and those that are compared with none."""

    old: str
    new: str
    allowed: tuple[str, ...]
    cells: tuple[CellComparison, ...]
    unmatched: tuple[Unmatched, ...]


def compare(
    *,
    old: str,
    new: str,
    matching: Matching,
    pairs: Mapping[tuple[str, str], Sequence[TaskPair]],
    allowed: Iterable[str] = (),
    shown: int | None = None,
) -> Comparison:
    """Return the comparison of the matched cells of two experiments.

    Args:
        old, new: the experiments' names.
        pairs: of each matched cell, by its experiment and sha12.
        shown: how many of the matches are shown, from the first; the others only have their
            place in the family that p is corrected for. None: all.
    """
    several = len(matching.matched) > 1 or matching.undecided > 0
    contents = [
        _Content.of(match, pairs[match.old.key], pairs[match.new.key]) for match in matching.matched
    ]
    cells = [_compared(content) for content in contents[:shown]]
    if several:
        tests = [_tests(content) for content in contents]
        # A cell without a p keeps its place in the family: which are planned was fixed before.
        missing = [1.0] * matching.undecided
        families = [
            holm(p_values=[*(1.0 if p is None else p for p in column), *missing])
            for column in zip(*tests, strict=True)
        ]
        n_family = len(tests) + matching.undecided
        cells = [
            _corrected(cell, [family[place] for family in families], n_family, len(cells))
            for place, cell in enumerate(cells)
        ]
    return Comparison(
        old=old,
        new=new,
        allowed=tuple(allowed),
        cells=tuple(cells),
        unmatched=matching.unmatched,
    )


def _tests(content: _Content) -> list[float | None]:
    """Return p of the cell's own policies and of each reading."""
    if not content.complete:
        return [None] * (1 + len(FailurePolicy))
    return [content.test[0], *(reading.p for reading in content.readings)]


def _corrected(
    cell: CellComparison, adjusted: Sequence[float], n_family: int, n_shown: int
) -> CellComparison:
    """Return ``cell`` with its p after the correction: of its own policies, then each reading."""
    own, *others = adjusted
    return replace(
        cell,
        p_adjusted=None if cell.p is None else own,
        readings=tuple(
            replace(reading, p_adjusted=None if reading.p is None else p)
            for reading, p in zip(cell.readings, others, strict=True)
        ),
        n_family=n_family,
        n_shown=n_shown,
    )


def compare_cells(
    *, match: Match, old: Sequence[TaskPair], new: Sequence[TaskPair]
) -> CellComparison:
    """Return the comparison of one cell of A with one of B, whatever the order of their pairs.

    It is a family of its own: ``p_adjusted`` is ``p``.

    Raises:
        ValueError: a side has two pairs of one task content and replicate.
    """
    return _compared(_Content.of(match, old, new))


def _compared(content: _Content) -> CellComparison:
    shared, compared = content.shared, content.compared
    complete = content.complete
    lists = {
        (was, now): tuple(one.listed for one in compared if (one.se_old, one.se_new) == (was, now))
        for was in (True, False)
        for now in (True, False)
    }
    p, method = content.test if complete else (None, None)
    before, after, apart = content.before, content.after, content.apart
    drawn: _Drawn = {}
    return CellComparison(
        match=content.match,
        complete=complete,
        n_shared=len(shared),
        n_compared=len(compared),
        n_pending=sum(one.pending for one in shared),
        n_tasks=len({one.task_sha256 for one in compared}),
        cancelled=content.cancelled,
        changed_tasks=apart.changed,
        other_replicates=apart.other_replicates,
        only_old=_one_sided(before, after, apart),
        only_new=_one_sided(after, before, apart),
        won=lists[False, True],
        lost=lists[True, False],
        both_pass=lists[True, True],
        both_fail=lists[False, False],
        sets=_set_rows(compared),
        own=_rae_change(shared, drawn, complete=complete, both=False),
        both=_rae_change(shared, drawn, complete=complete, both=True),
        sd=_sd_runs(shared),
        left_out=_left_out(
            [one for one in shared if not one.pending and not one.compared], without_skills=False
        ),
        rae_left_out=_left_out(
            [one for one in compared if not one.pending and not one.settled], without_skills=True
        ),
        p=p,
        p_method=method,
        p_adjusted=p,
        readings=content.readings if complete else (),
    )


@dataclass(frozen=True)
class _Apart:
    """Tasks that both sides have and no shared pair is of: keys in order.

    ``contents`` are those of ``other_replicates``, which may have another key in B.
    """

    changed: tuple[str, ...]
    other_replicates: tuple[str, ...]
    contents: frozenset[str]

    @classmethod
    def of(cls, before: _Units, after: _Units) -> _Apart:
        old, new = (
            {sha256: pair.record.task for (sha256, _), pair in side.items()}
            for side in (before, after)
        )
        renamed = {task: sha256 for sha256, task in new.items()}
        changed = [
            task
            for sha256, task in old.items()
            if task in renamed and sha256 not in new and renamed[task] not in old
        ]
        shared = {sha256 for sha256, _ in before.keys() & after.keys()}
        others = frozenset(old.keys() & new.keys() - shared)
        return cls(tuple(sorted(changed)), tuple(sorted(old[sha256] for sha256 in others)), others)


@dataclass(frozen=True)
class _Content:
    """The pairs of both cells, matched by content and replicate."""

    match: Match
    before: _Units
    after: _Units
    apart: _Apart
    shared: Sequence[_Shared]
    compared: Sequence[_Shared]

    @classmethod
    def of(cls, match: Match, old: Sequence[TaskPair], new: Sequence[TaskPair]) -> _Content:
        before, after = _by_unit(old), _by_unit(new)
        units = sorted(before.keys() & after.keys(), key=lambda u: (before[u].record.task, u))
        policies = (_policy(match.old), _policy(match.new))
        shared = [_Shared.of(before[unit], after[unit], policies) for unit in units]
        compared = [one for one in shared if one.compared]
        return cls(match, before, after, _Apart.of(before, after), shared, compared)

    @property
    def complete(self) -> bool:
        return not any(one.pending for one in self.shared)

    @property
    def cancelled(self) -> tuple[Side, ...]:
        sides = (
            (Side.A, self.match.old, any(one.old_record.pending for one in self.shared)),
            (Side.B, self.match.new, any(one.new_record.pending for one in self.shared)),
        )
        return tuple(side for side, cell, pending in sides if cell.cancelled and pending)

    @cached_property
    def test(self) -> _Test:
        """p of the change, each side read by its own policy, and its method."""
        return _test([(one.task_sha256, one.se_old, one.se_new) for one in self.compared])

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """What the runs with skills say under each policy, the same on both sides."""
        found: list[tuple[list[_Result], Reading]] = []
        for policy in FailurePolicy:
            results = [
                (one.task_sha256, _se(one.old_record, policy), _se(one.new_record, policy))
                for one in self.shared
            ]
            # Without a failed call all readings are the same.
            alike = [reading for was, reading in found if was == results]
            found.append(
                (results, replace(alike[0], policy=policy) if alike else _reading(results, policy))
            )
        return tuple(reading for _, reading in found)


def _reading(results: Sequence[_Result], policy: FailurePolicy) -> Reading:
    compared = [result for result in results if None not in result]
    p, method = _test(compared)
    return Reading(
        policy=policy,
        n_compared=len(compared),
        won=sum(bool(new) and not old for _, old, new in compared),
        lost=sum(bool(old) and not new for _, old, new in compared),
        p=p,
        p_method=method,
        p_adjusted=p,
    )


def _left_out(those: Sequence[_Shared], *, without_skills: bool) -> LeftOut:
    """Return why these pairs lack a result, by side."""

    def reasons(record: PairRecord) -> str | None:
        return record.sd_failure if without_skills else record.se_failure

    old = Counter(why for one in those if (why := reasons(one.old_record)))
    new = Counter(why for one in those if (why := reasons(one.new_record)))
    return LeftOut(len(those), dict(sorted(old.items())), dict(sorted(new.items())))


@dataclass(frozen=True, slots=True)
class _Shared:
    """A shared pair as it is counted."""

    task_sha256: str
    listed: SharedPair
    se_old: bool | None
    se_new: bool | None
    old: Transition | None
    new: Transition | None
    old_record: PairRecord
    new_record: PairRecord
    same_sd: bool

    @classmethod
    def of(
        cls, old: TaskPair, new: TaskPair, policies: tuple[FailurePolicy, FailurePolicy]
    ) -> _Shared:
        return cls(
            task_sha256=old.task_sha256,
            listed=_listed(old, new),
            se_old=_se(old.record, policies[0]),
            se_new=_se(new.record, policies[1]),
            old=transition_of(old.record, policies[0]),
            new=transition_of(new.record, policies[1]),
            old_record=old.record,
            new_record=new.record,
            same_sd=bool(old.sd_run) and old.sd_run == new.sd_run,
        )

    @property
    def retrieved_old(self) -> bool | None:
        return self.old_record.retrieved

    @property
    def retrieved_new(self) -> bool | None:
        return self.new_record.retrieved

    @property
    def pending(self) -> bool:
        return self.old_record.pending or self.new_record.pending

    @property
    def compared(self) -> bool:
        """Whether both SE runs have a result."""
        return self.se_old is not None and self.se_new is not None

    @property
    def settled(self) -> bool:
        """Whether all four runs have a result."""
        return self.old is not None and self.new is not None


def _se(record: PairRecord, policy: FailurePolicy) -> bool | None:
    """Return whether the SE run passed, under the failure policy."""
    if record.se is None and policy is FailurePolicy.INCORRECT:
        return False if record.se_failure == Failure.CALL else None
    return record.se


def _listed(old: TaskPair, new: TaskPair) -> SharedPair:
    change, added, removed, edited = _change(old, new)
    return SharedPair(
        task=old.record.task,
        replicate=old.record.replicate,
        old_pair=old.record.pair,
        new_pair=new.record.pair,
        change=change,
        added=added,
        removed=removed,
        edited=edited,
    )


_Slugs = tuple[str, ...]


def _change(old: TaskPair, new: TaskPair) -> tuple[SetChange, _Slugs, _Slugs, _Slugs]:
    """Return what became of the returned skills, and those added, removed and edited."""
    before, after = old.versions, new.versions
    states = (old.record.retrieved, new.record.retrieved)
    if before == after:
        # A skill of unknown version may have had another text.
        same = SetChange.SAME if before and all(before.values()) else SetChange.UNKNOWN
        return (
            _STATES.get(states, same if states == (True, True) else SetChange.UNKNOWN),
            (),
            (),
            (),
        )
    both = before.keys() & after.keys()
    unknown = {slug for slug in both if not (before[slug] and after[slug])}
    edited = tuple(sorted(slug for slug in both - unknown if before[slug] != after[slug]))
    added = tuple(sorted(after.keys() - before.keys()))
    removed = tuple(sorted(before.keys() - after.keys()))
    if states == (True, True):
        change = SetChange.CHANGED if added or removed or edited else SetChange.UNKNOWN
    else:
        change = _STATES.get(states, SetChange.UNKNOWN)
    return change, added, removed, edited


# What became of the returned skills where not both searches are known to have returned some.
_STATES: Mapping[tuple[bool | None, bool | None], SetChange] = MappingProxyType(
    {
        (True, False): SetChange.ONLY_A,
        (False, True): SetChange.ONLY_B,
        (False, False): SetChange.NEITHER,
    }
)


def _by_unit(pairs: Iterable[TaskPair]) -> dict[tuple[str, int], TaskPair]:
    found: dict[tuple[str, int], TaskPair] = {}
    for pair in pairs:
        if pair.unit in found:
            raise ValueError(f"two pairs of {pair.record.task}, replicate {pair.record.replicate}")
        found[pair.unit] = pair
    return found


def _policy(cell: CellAbout) -> FailurePolicy:
    return FailurePolicy(cell.protocol.get(Factor.FAILURE_POLICY) or FailurePolicy.CENSOR)


def _one_sided(here: _Units, there: _Units, apart: _Apart) -> tuple[str, ...]:
    """Return the tasks that the other side doesn't have, or single replicates of them."""
    tasks = {task for task, _ in there}
    changed = set(apart.changed)
    names = set()
    for (task, replicate), pair in here.items():
        if (task, replicate) in there or task in apart.contents or pair.record.task in changed:
            continue
        whole = task not in tasks
        names.add(pair.record.task if whole else f"{pair.record.task}, replicate {replicate}")
    return tuple(sorted(names))


# --- the change of the SE results ------------------------------------------------------------


def _test(results: Sequence[_Result]) -> _Test:
    """Return p of the change over ``results``, of which none is unknown, and its method."""
    if not results:
        return None, None
    by_task: dict[str, list[int]] = defaultdict(list)
    for task, old, new in results:
        by_task[task].append(int(bool(new)) - int(bool(old)))
    if all(len(changes) == 1 for changes in by_task.values()):
        changes = [change for (change,) in by_task.values()]
        return mcnemar_exact(b=changes.count(1), c=changes.count(-1)), PMethod.MCNEMAR_EXACT
    # Pairs of one task aren't independent: the test is over tasks.
    return sign_flip(differences=[sum(each) for each in by_task.values()]), PMethod.SIGN_FLIP_EXACT


def _set_rows(compared: Sequence[_Shared]) -> tuple[SetRow, ...]:
    rows = []
    for change in SetChange:
        those = [one for one in compared if one.listed.change is change]
        if those:
            won = sum(one.se_new is True and one.se_old is False for one in those)
            lost = sum(one.se_new is False and one.se_old is True for one in those)
            rows.append(SetRow(change, len(those), won, lost))
    return tuple(rows)


def _sd_runs(shared: Sequence[_Shared]) -> SdRuns:
    settled = [one for one in shared if one.settled]
    separate = [one for one in settled if not one.same_sd]
    differing = sum(_sd(one.old) != _sd(one.new) for one in separate)
    return SdRuns(len(settled) - len(separate), len(separate), differing)


def _sd(transition: Transition | None) -> bool:
    return transition in (Transition.BOTH_PASS, Transition.HARMFUL)


# --- the change of RAE -----------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class TaskNet:
    """What one task brings to both RAEs: won minus lost, and retrieved pairs, of A and of B."""

    old_net: int
    old_pairs: int
    new_net: int
    new_pairs: int

    @property
    def swapped(self) -> TaskNet:
        return TaskNet(self.new_net, self.new_pairs, self.old_net, self.old_pairs)


_Drawn = dict[tuple[TaskNet, ...], tuple[Interval | None, NoInterval | None, int]]


def _rae_change(
    shared: Sequence[_Shared], drawn: _Drawn, *, complete: bool, both: bool
) -> RaeChange:
    """Return the change of RAE over pairs with both results on both sides.

    ``drawn`` keeps intervals: where all pairs were retrieved in both, the two are one.
    """
    settled = [one for one in shared if one.settled]
    if both:
        settled = [one for one in settled if one.retrieved_old and one.retrieved_new]
    tasks: dict[str, list[_Shared]] = defaultdict(list)
    for one in settled:
        if one.retrieved_old or one.retrieved_new:
            tasks[one.task_sha256].append(one)
    nets = [_net(those) for those in tasks.values()]
    old = _rae([(one.retrieved_old, one.old) for one in settled], complete=complete)
    new = _rae([(one.retrieved_new, one.new) for one in settled], complete=complete)
    n_old, n_new = sum(net.old_pairs for net in nets), sum(net.new_pairs for net in nets)
    if old.value is None or new.value is None:
        return RaeChange(
            n_old, n_new, len(nets), old, new, None, _why(old, new), None, NoInterval.UNDEFINED
        )
    # From the counts, not from the two rounded shares: equal effects differ by exactly 0.
    difference = (
        sum(net.new_net for net in nets) * n_old - sum(net.old_net for net in nets) * n_new
    ) / (n_old * n_new)
    key = tuple(sorted(nets))
    if key not in drawn:
        drawn[key] = rae_difference_interval(tasks=nets)
    interval, why, dropped = drawn[key]
    return RaeChange(
        n_old=n_old,
        n_new=n_new,
        n_tasks=len(nets),
        old=old,
        new=new,
        difference=difference * 100,
        reason=None,
        interval=interval.in_points() if interval else None,
        no_interval=why,
        dropped=dropped,
    )


def _net(those: Sequence[_Shared]) -> TaskNet:
    sign = {Transition.HELPFUL: 1, Transition.HARMFUL: -1}
    return TaskNet(
        sum(sign.get(one.old, 0) for one in those if one.old and one.retrieved_old),
        sum(bool(one.retrieved_old) for one in those),
        sum(sign.get(one.new, 0) for one in those if one.new and one.retrieved_new),
        sum(bool(one.retrieved_new) for one in those),
    )


def _rae(results: Sequence[tuple[bool | None, Transition | None]], *, complete: bool) -> Estimate:
    if not complete:
        return Estimate(None, Undefined.INCOMPLETE)
    groups = (
        Counts.of(found for retrieved, found in results if found and retrieved is state)
        for state in (True, False, None)
    )
    return effects.rae(counts=CellCounts(*groups))


def _why(old: Estimate, new: Estimate) -> str:
    return "; ".join(
        f"{side}: {REASONS[estimate.reason]}"
        for side, estimate in ((Side.A, old), (Side.B, new))
        if estimate.reason
    )


def rae_difference_interval(
    *, tasks: Sequence[TaskNet], level: float = 0.95
) -> tuple[Interval | None, NoInterval | None, int]:
    """Return the interval of RAE of B minus RAE of A, or why none, and how many were dropped.

    In proportions: expanded percentiles (``_tail``) of 20,000 resamples of whole tasks from
    ``default_rng(42)``; a task brings all of its pairs, of both sides. How often each distinct
    contribution is drawn is multinomial, so those counts are drawn instead of the tasks: the
    same distribution, without its cost. Tasks without a retrieved pair bring nothing to either
    ratio and aren't resampled; of fewer than ``FEWEST_TASKS`` others there is no interval. A
    resample in which a side has no retrieved pair is dropped; above 1% there is no interval.
    """
    counted = [task for task in tasks if task.old_pairs or task.new_pairs]
    if len(counted) < 2:
        return None, NoInterval.ONE_TASK if counted else NoInterval.UNDEFINED, 0
    if len(counted) < FEWEST_TASKS:
        return None, NoInterval.FEW_TASKS, 0
    if not any(task.old_net or task.new_net for task in counted):
        return None, NoInterval.NO_FLIPS, 0
    found = sorted(Counter(counted).items())
    if len(found) == 1:
        return None, NoInterval.NO_VARIATION, 0
    # One order for a comparison and its reverse, so that swapping A and B only turns the sign.
    reverse = sorted(Counter(task.swapped for task in counted).items())
    turned = reverse < found
    low, high, dropped = _resampled(reverse if turned else found, level)
    if dropped > MOST_DROPPED * RESAMPLES:
        return None, NoInterval.RESAMPLES_DROPPED, dropped
    if reverse == found:  # A and B can't be told apart, so neither may their difference
        high = max(0.0, (high - low) / 2)
        low = -high
    elif turned:
        low, high = -high, -low
    return Interval(low, high, level, IntervalMethod.TASK_BOOTSTRAP), None, dropped


def _resampled(patterns: Sequence[tuple[TaskNet, int]], level: float) -> tuple[float, float, int]:
    """Return both percentiles of the resampled difference, and how many resamples were dropped."""
    rows = np.array(
        [[net.old_net, net.old_pairs, net.new_net, net.new_pairs] for net, _ in patterns]
    )
    times = np.array([count for _, count in patterns])
    m = int(times.sum())
    generator = np.random.default_rng(SEED)
    samples = []
    left = RESAMPLES
    while left:
        # The generator goes row by row, so blocks give the draws of one large call.
        block = min(left, max(1, _AT_ONCE // len(patterns)))
        samples.append(generator.multinomial(m, times / m, size=block) @ rows)
        left -= block
    old_net, old_pairs, new_net, new_pairs = np.concatenate(samples).T
    keep = (old_pairs > 0) & (new_pairs > 0)
    dropped = int(RESAMPLES - keep.sum())
    if dropped == RESAMPLES:
        return 0.0, 0.0, dropped
    drawn = new_net[keep] / new_pairs[keep] - old_net[keep] / old_pairs[keep]
    tail = _tail(m, level)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high), dropped


def _tail(tasks: int, level: float) -> float:
    """Return which share of resamples of ``tasks`` tasks lies outside the interval on a side.

    Plain percentiles are too narrow for few: they take the variance without its factor
    m / (m - 1) and the normal quantile for Student's. Both are put right by
    Phi(-sqrt(m / (m - 1)) t), t the quantile of m - 1 degrees of freedom.
    Source: Hesterberg (2015), The American Statistician 69, 371-386 (expanded percentiles).
    """
    normal = NormalDist()
    z = normal.inv_cdf((1 + level) / 2)
    # Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5): 5 digits from 9 degrees on.
    degrees = tasks - 1
    t = (
        z
        + (z**3 + z) / 4 / degrees
        + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / degrees**2
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / degrees**3
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160 / degrees**4
    )
    return normal.cdf(-math.sqrt(tasks / degrees) * t)


# --- what it says ----------------------------------------------------------------------------

BETTER, WORSE, UNDECIDED = "better", "worse", ""


def verdict(cell: CellComparison) -> str:
    """Return ``better`` or ``worse`` where the SE results show B to be that, else an empty text.

    It follows p after Holm's correction: at most .05 in the same direction however failed calls
    are read. Two runs of the same skills are never better or worse than each other.
    """
    if cell.match.same_skills:
        return UNDECIDED
    found = {_of(len(cell.won) - len(cell.lost), cell.p_adjusted)}
    found |= {_of(reading.won - reading.lost, reading.p_adjusted) for reading in cell.readings}
    return found.pop() if len(found) == 1 else UNDECIDED


def _of(net: int, p_adjusted: float | None) -> str:
    if p_adjusted is None or p_adjusted > ALPHA or not net:
        return UNDECIDED
    return BETTER if net > 0 else WORSE


def headline(cell: CellComparison) -> str:
    """Return one sentence that says what a compared cell shows, without a full stop."""
    what = "B's skills" if cell.match.skills_alone else "B"
    if not cell.n_shared and cell.other_replicates:
        return (
            "A and B share tasks of the same content but no replicate of the same number, so there "
            "is nothing to compare"
        )
    if not cell.n_shared:
        return "A and B share no task of the same content, so there is nothing to compare"
    unit = "shared pairs" if cell.repeats or cell.n_compared < cell.n_shared else "shared tasks"
    counted = f"{what} won {len(cell.won)} and lost {len(cell.lost)} of {cell.n_compared} {unit}"
    if cell.cancelled:
        were = "was" if len(cell.cancelled) == 1 else "were"
        return (
            f"{counted}; {' and '.join(cell.cancelled)} {were} cancelled before the others ended, "
            "so there are no figures"
        )
    if not cell.complete:
        return f"{counted} so far; figures follow when all have ended"
    if not cell.n_compared:
        return "No shared pair has a result with skills on both sides"
    left_out = f"{cell.left_out.pairs} more left out, " if cell.left_out.pairs else ""
    return f"{counted} ({left_out}p = {_p(cell.p)}); {_moved(cell.own)}; {_said(cell)}"


def _said(cell: CellComparison) -> str:
    if cell.match.same_skills:
        return "these are two runs of the same skills, so a difference is chance"
    found = verdict(cell)
    said = {BETTER: "B is better", WORSE: "B is worse"}.get(
        found, "not enough evidence that B is better or worse"
    )
    if not found and _of(len(cell.won) - len(cell.lost), cell.p_adjusted):
        said += ", as it depends on how failed calls are read"
    if not found and cell.p is not None and cell.p <= ALPHA < (cell.p_adjusted or 0):
        said += f" after the correction for {cell.n_family} cells"
    if disagrees := _interval_disagrees(cell):
        said += f", though the interval of RAE {disagrees}"
    return said


def _interval_disagrees(cell: CellComparison) -> str:
    """Return what the interval does where it doesn't agree with the verdict, else an empty text."""
    says, found = _interval_says(cell), verdict(cell)
    if says == found:
        return ""
    if not says:
        return "holds 0"
    return "points the other way" if found else "leaves 0 out"


def _interval_says(cell: CellComparison) -> str:
    """Return what the interval alone would say; without one, what the verdict says."""
    interval = cell.own.interval
    if interval is None:
        return verdict(cell)
    if not interval.excludes_zero:
        return UNDECIDED
    return BETTER if interval.low > 0 else WORSE


def _moved(change: RaeChange) -> str:
    if change.difference is None:
        return "RAE can't be compared"
    bracket = (
        f" [{change.interval.low:+.1f}, {change.interval.high:+.1f}]" if change.interval else ""
    )
    return f"RAE moved by {change.difference:+.1f} points{bracket}"


def notes(cell: CellComparison) -> tuple[tuple[str, str], ...]:
    """Return what a reader of the figures must know, each by the code of its rule."""
    match = cell.match
    found = {
        "allowed": _allowed_note(match),
        "same_library": match.same_skills
        and "Both searched the same skills under the same protocol: what differs is chance.",
        "library_unknown": not match.known and _unknown_note(match),
        "incomplete": not cell.complete and _incomplete_note(cell),
        "left_out": cell.complete
        and cell.left_out.pairs
        and f"Left out: {_plural(cell.left_out.pairs, 'shared pair')} in which a run with skills "
        f"has no result ({_reasons(cell.left_out)}).",
        "failure_readings": _readings_note(cell),
        "rae_left_out": cell.complete
        and cell.rae_left_out.pairs
        and f"No RAE is over {cell.rae_left_out.pairs} of the {_plural(cell.n_compared, 'pair')} "
        f"of won and lost: a run without skills has no result ({_reasons(cell.rae_left_out)}).",
        "changed_tasks": cell.changed_tasks
        and f"Of other content in B than in A, and left out: "
        f"{_plural(len(cell.changed_tasks), 'task')}.",
        "other_replicates": cell.other_replicates
        and f"Of the same content but with replicates of other numbers in B than in A, and left "
        f"out: {_plural(len(cell.other_replicates), 'task')}. Number the runs alike to compare "
        "them.",
        "sd": cell.complete and _sd_note(cell.sd),
        "own_sets": cell.own.difference is not None
        and "Each RAE is over the pairs where that side got a skill. Where these differ the "
        "difference also holds which pairs were searched; the row of pairs where both got one "
        "doesn't.",
        "few": cell.p is not None and _few_note(cell),
        "disagree": cell.p is not None and _disagreement(cell),
        "repeats": cell.repeats
        and f"{cell.n_compared} pairs come from {_plural(cell.n_tasks, 'task')}: the test and the "
        "interval take the task as the unit.",
        "several_cells": cell.n_family > 1 and cell.p_adjusted is not None and _family_note(cell),
    }
    return tuple((code, str(text)) for code, text in found.items() if text)


def _unknown_note(match: Match) -> str:
    cells = ((Side.A, match.old), (Side.B, match.new))
    sides = [side for side, cell in cells if not cell.library_known]
    return (
        f"Which skills {' and '.join(sides)} searched, and in which versions, isn't known: the "
        "runs don't say. Whether the skills differ can't be told."
    )


def _incomplete_note(cell: CellComparison) -> str:
    if cell.cancelled:
        return (
            f"{_plural(cell.n_pending, 'shared pair')} never ended: counts only, as what is looked "
            "at while it grows may have been stopped when it looked best."
        )
    return f"Not finished: {_plural(cell.n_pending, 'shared pair')}; counts only until all are."


def _reasons(left_out: LeftOut) -> str:
    sides = ((Side.A, left_out.old), (Side.B, left_out.new))
    return "; ".join(
        f"{side}: " + ", ".join(f"{FAILURES[code]} ({n})" for code, n in tally.items())
        for side, tally in sides
        if tally
    )


def _readings_note(cell: CellComparison) -> str:
    if len({(one.n_compared, one.won, one.lost) for one in cell.readings}) < 2:
        return ""
    words = {FailurePolicy.CENSOR: "left out", FailurePolicy.INCORRECT: "counted as wrong"}
    texts = "; ".join(
        f"{words[one.policy]}: won {one.won} and lost {one.lost} of {one.n_compared} "
        f"(p = {_p(one.p_adjusted)})"
        for one in cell.readings
    )
    corrected = f", p after the correction for {cell.n_family} cells" if cell.n_family > 1 else ""
    return (
        f"Failed calls of runs with skills, read both ways{corrected}: {texts}. Better or worse is "
        "said only where both agree."
    )


def _family_note(cell: CellComparison) -> str:
    unseen = cell.n_family - cell.n_shown
    of_them = f", of which {unseen} aren't shown here" if unseen else ""
    return (
        f"After Holm's correction for {cell.n_family} cells{of_them}, p = {_p(cell.p_adjusted)}. "
        "Intervals are of each cell alone and aren't corrected."
    )


def _allowed_note(match: Match) -> str:
    if not match.differences:
        return ""
    texts = "; ".join(one.text for one in match.differences)
    return (
        f"A and B also differ in {texts}, which was allowed: what came out may be due to that as "
        "well as to the skills."
    )


def _sd_note(sd: SdRuns) -> str:
    if not sd.separate:
        return (
            "A and B share their runs without skills, so what differs comes from the runs with "
            "skills alone."
            if sd.shared
            else ""
        )
    some = f" for {sd.separate} of {sd.shared + sd.separate} pairs" if sd.shared else ""
    return (
        f"The runs without skills were made separately{some}, so the difference of RAE holds "
        f"their noise too: {sd.differing} of {sd.separate} came out differently in A and B. Won "
        "and lost above compare the runs with skills only."
    )


def _few_note(cell: CellComparison) -> str:
    differing = len(cell.won) + len(cell.lost)
    if differing >= FEWEST_DISCORDANT:
        return ""
    return (
        f"Only {_plural(differing, 'pair')} came out differently: the exact "
        "test can't reach p = .05 whichever way they fall."
    )


def _disagreement(cell: CellComparison) -> str:
    disagrees = _interval_disagrees(cell)
    if not disagrees or cell.match.same_skills:
        return ""
    return (
        f"The interval of the RAE difference {disagrees} although p = {_p(cell.p_adjusted)}: p is "
        "of the runs with skills, the interval also of those without. The verdict follows p."
    )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _spoken(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_spoken(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_spoken, value))
    text = str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text
