"""The figures of matched cells: counts, tests, both readings and the family's correction."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from runs.domain.comparing.matching import CellAbout, Factor, Match, Matching, Side, Unmatched
from runs.domain.comparing.pairs import SetChange, Shared, SharedPair, TaskPair, se_result
from runs.domain.comparing.rae import Drawn, RaeChange, rae_change
from runs.domain.effects import Transition
from runs.domain.intervals import PMethod, holm, mcnemar_exact, sign_flip
from runs.domain.report import FailurePolicy, PairRecord


@dataclass(frozen=True)
class SetRow:
    """Shared pairs with both SE results by what became of the returned skills."""

    change: SetChange
    pairs: int
    won: int
    lost: int


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
    drawn: Drawn = {}
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
        own=rae_change(shared, drawn, complete=complete, both=False),
        both=rae_change(shared, drawn, complete=complete, both=True),
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
    shared: Sequence[Shared]
    compared: Sequence[Shared]

    @classmethod
    def of(cls, match: Match, old: Sequence[TaskPair], new: Sequence[TaskPair]) -> _Content:
        before, after = _by_unit(old), _by_unit(new)
        units = sorted(before.keys() & after.keys(), key=lambda u: (before[u].record.task, u))
        policies = (_policy(match.old), _policy(match.new))
        shared = [Shared.of(before[unit], after[unit], policies) for unit in units]
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
                (
                    one.task_sha256,
                    se_result(one.old_record, policy),
                    se_result(one.new_record, policy),
                )
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


def _left_out(those: Sequence[Shared], *, without_skills: bool) -> LeftOut:
    """Return why these pairs lack a result, by side."""

    def reasons(record: PairRecord) -> str | None:
        return record.sd_failure if without_skills else record.se_failure

    old = Counter(why for one in those if (why := reasons(one.old_record)))
    new = Counter(why for one in those if (why := reasons(one.new_record)))
    return LeftOut(len(those), dict(sorted(old.items())), dict(sorted(new.items())))


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


def _set_rows(compared: Sequence[Shared]) -> tuple[SetRow, ...]:
    rows = []
    for change in SetChange:
        those = [one for one in compared if one.listed.change is change]
        if those:
            won = sum(one.se_new is True and one.se_old is False for one in those)
            lost = sum(one.se_new is False and one.se_old is True for one in those)
            rows.append(SetRow(change, len(those), won, lost))
    return tuple(rows)


def _sd_runs(shared: Sequence[Shared]) -> SdRuns:
    settled = [one for one in shared if one.settled]
    separate = [one for one in settled if not one.same_sd]
    differing = sum(_sd(one.old) != _sd(one.new) for one in separate)
    return SdRuns(len(settled) - len(separate), len(separate), differing)


def _sd(transition: Transition | None) -> bool:
    return transition in (Transition.BOTH_PASS, Transition.HARMFUL)
