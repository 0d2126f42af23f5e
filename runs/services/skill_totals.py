"""What came of the pairs in which each skill was returned, by cell and version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db.models import OuterRef, Subquery, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from runs.domain.effects import Transition
from runs.domain.plan import EMBEDDED
from runs.models import Arm, Attempt, Cell, Failure, Outcome, PairArm
from runs.services.reporting import json_texts
from skills.selectors import version_numbers

# Where the search returned the best matches; what a stand-in returned says nothing of a skill.
COUNTED_CONTROL = "normal"
_DROPPED = KeyTextTransform("dropped_parameters", "execution__attempts__trace")


@dataclass
class Returned:
    """Pairs whose SE run was given a version of a skill, by their joint result."""

    pairs: int = 0
    alone: int = 0
    won: int = 0
    lost: int = 0

    def add(self, other: Returned) -> None:
        """Add the counts of ``other``."""
        self.pairs += other.pairs
        self.alone += other.alone
        self.won += other.won
        self.lost += other.lost


@dataclass(frozen=True)
class InCell:
    """What came of one version of a skill in one cell."""

    cell: int
    version: int
    returned: Returned


@dataclass(frozen=True)
class SkillTotals:
    """Every skill that was returned, cell by cell.

    Attributes:
        by_skill: by slug.
        demonstrations: cells whose model is the demonstration model.
    """

    by_skill: Mapping[str, tuple[InCell, ...]]
    demonstrations: frozenset[int]

    def versions(self, slug: str) -> dict[int, Returned]:
        """Return the skill's totals by version."""
        totals: dict[int, Returned] = defaultdict(Returned)
        for row in self.by_skill.get(slug, ()):
            totals[row.version].add(row.returned)
        return dict(totals)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON, short enough to be read for every page."""
        return {
            "demonstrations": sorted(self.demonstrations),
            "by_skill": {
                slug: [
                    [r.cell, r.version, t.pairs, t.alone, t.won, t.lost]
                    for r in rows
                    for t in [r.returned]
                ]
                for slug, rows in sorted(self.by_skill.items())
            },
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> SkillTotals:
        """Return what ``to_json`` stored."""
        return cls(
            {
                slug: tuple(
                    InCell(cell, version, Returned(*counts)) for cell, version, *counts in rows
                )
                for slug, rows in stored["by_skill"].items()
            },
            frozenset(stored["demonstrations"]),
        )


def count_skills() -> SkillTotals:
    """Return the totals, counted from the rows in five queries however many there are."""
    counted: dict[str, dict[tuple[int, int], Returned]] = defaultdict(dict)
    demonstrations = set()
    for given in _given():
        if given.demonstration:
            demonstrations.add(given.cell)
        for slug, version in given.versions.items():
            total = counted[slug].setdefault((given.cell, version), Returned())
            total.add(
                Returned(
                    1,
                    len(given.versions) == 1,
                    given.transition == Transition.HELPFUL,
                    given.transition == Transition.HARMFUL,
                )
            )
    return SkillTotals(
        {
            slug: tuple(InCell(cell, version, total) for (cell, version), total in rows.items())
            for slug, rows in counted.items()
        },
        frozenset(demonstrations),
    )


@dataclass(frozen=True)
class _Given:
    """One pair whose SE run was given skills, with its latest joint result or an empty text.

    Attributes:
        versions: the number of the given version of each skill, by slug.
    """

    cell: int
    demonstration: bool
    versions: Mapping[str, int] = field(default_factory=dict)
    transition: str = ""


def _given() -> Iterator[_Given]:
    given = {
        execution: json_texts(slugs)
        for execution, slugs in Attempt.objects.filter(
            failure=Failure.NONE, retrieved=True
        ).values_list("execution", Cast("returned_ids", TextField()))
    }
    cells = {
        cell: (library, endpoint == EMBEDDED)
        for cell, library, endpoint in Cell.objects.filter(
            treatment__spec__control=COUNTED_CONTROL
        ).values_list("pk", "library", "treatment__spec__endpoint")
    }
    numbers = version_numbers({library for library, _ in cells.values() if library})
    unequal = _unequal()
    latest = Outcome.objects.filter(pair=OuterRef("pair")).order_by("-pk").values("transition")[:1]
    arms = (
        PairArm.objects.filter(arm=Arm.SE)
        .annotate(transition=Subquery(latest))
        .values_list("pair", "pair__cell", "execution", "transition")
    )
    for pair, cell, execution, transition in arms:
        if execution in given and cell in cells:
            library, demonstration = cells[cell]
            yield _Given(
                cell,
                demonstration,
                {slug: numbers.get((library or 0, slug), 0) for slug in given[execution]},
                "" if pair in unequal else transition or "",
            )


def _unequal() -> set[int]:
    """Return the pairs that were won or lost with unequal settings in their arms."""
    dropped: dict[int, dict[str, frozenset[str]]] = defaultdict(dict)
    for pair, arm, names in PairArm.objects.filter(
        pair__outcomes__transition__in=(Transition.HELPFUL, Transition.HARMFUL),
        pair__outcomes__retrieved=True,
        execution__attempts__failure=Failure.NONE,
    ).values_list("pair", "arm", _DROPPED):
        dropped[pair][arm] = frozenset(json_texts(names))
    return {pair for pair, of_arms in dropped.items() if len(set(of_arms.values())) > 1}
