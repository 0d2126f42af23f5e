"""The pairs that two cells share: their results, and what became of the returned skills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from runs.domain.effects import Transition
from runs.domain.report import Failure, FailurePolicy, PairRecord, transition_of


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


@dataclass(frozen=True, slots=True)
class Shared:
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
    ) -> Shared:
        return cls(
            task_sha256=old.task_sha256,
            listed=_listed(old, new),
            se_old=se_result(old.record, policies[0]),
            se_new=se_result(new.record, policies[1]),
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


def se_result(record: PairRecord, policy: FailurePolicy) -> bool | None:
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
