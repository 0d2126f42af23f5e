"""Which cells of two experiments belong together, and in what their protocols differ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


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
        #: What is wrong, without how to say that it may be: each way in has its own.
        self.told = (
            "A and B differ in more than their skills: "
            + "; ".join(one.text for one in differences)
            + ". What comes out could be due to either. Compare runs that are alike, or"
        )
        self.factors = tuple(dict.fromkeys(one.factor for one in differences))
        super().__init__(
            f"{self.told} say that a factor may differ with "
            + " ".join(f"--allow {factor}" for factor in self.factors)
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


def _spoken(value: Any) -> str:
    if value is None:
        return "not given"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_spoken(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_spoken, value))
    text = str(value)
    return text[:12] if len(text) == 64 and text.isalnum() else text
