"""What came of the pairs in which each skill was returned, by cell and version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from runs.domain.effects import Transition
from runs.domain.plan import EMBEDDED
from runs.domain.report import FailurePolicy, transition_of
from runs.models import Arm, Cell, Experiment, ExperimentStatus, Origin, PairArm
from runs.services.reporting import evidence_of
from skills.selectors import version_numbers

# Where the search returned the best matches; what a stand-in returned says nothing of a skill.
COUNTED_CONTROL = "normal"
# Pairs of the cells whose rows are in memory at once.
PAIRS_AT_ONCE = 100_000


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
    """Return the totals, counted from the rows as reports count them."""
    counted: dict[str, dict[tuple[int, int], Returned]] = defaultdict(dict)
    demonstrations = set()
    for cells in _batches():
        libraries = {cell.library_id for cell in cells if cell.library_id}
        numbers = version_numbers(libraries)
        arms = _arms_given(cells)
        records = evidence_of(cells, arms, notes=False).records() if arms.exists() else ()
        for cell, record in zip(cells, records, strict=bool(records)):
            policy = FailurePolicy(cell.experiment.spec["failure_policy"])
            given = [pair for pair in record.pairs if pair.retrieved and pair.skills]
            if given and cell.treatment.spec.get("endpoint") == EMBEDDED:
                demonstrations.add(cell.pk)
            for pair in given:
                transition = transition_of(pair, policy)
                slugs = set(pair.skills)
                for slug in slugs:
                    number = numbers.get((cell.library_id or 0, slug), 0)
                    total = counted[slug].setdefault((cell.pk, number), Returned())
                    total.add(
                        Returned(
                            1,
                            len(slugs) == 1,
                            transition is Transition.HELPFUL,
                            transition is Transition.HARMFUL,
                        )
                    )
    return SkillTotals(
        {
            slug: tuple(InCell(cell, version, total) for (cell, version), total in rows.items())
            for slug, rows in counted.items()
        },
        frozenset(demonstrations),
    )


def being_pushed() -> QuerySet[Experiment]:
    """Return the experiments whose runs are still being stored, of which there is no report."""
    pushed = Experiment.objects.filter(origin=Origin.PUSHED)
    return pushed.exclude(status=ExperimentStatus.FINISHED)


def _batches() -> Iterator[list[Cell]]:
    """Yield the cells whose search returned the best matches, in groups that fit in memory."""
    cells = (
        Cell.objects.filter(treatment__spec__control=COUNTED_CONTROL)
        .exclude(experiment__in=being_pushed())
        .select_related("experiment", "treatment", "partition__benchmark", "library")
        .order_by("pk")
    )
    batch: list[Cell] = []
    pairs = 0
    for cell in cells:
        batch.append(cell)
        pairs += len(cell.partition.task_keys) * cell.experiment.spec["replicates"]
        if pairs >= PAIRS_AT_ONCE:
            yield batch
            batch, pairs = [], 0
    if batch:
        yield batch


def _arms_given(cells: Sequence[Cell]) -> QuerySet[PairArm]:
    """Return both arms of the pairs whose SE run was given skills."""
    given = PairArm.objects.filter(
        arm=Arm.SE, pair__cell__in=cells, execution__attempts__retrieved=True
    )
    return PairArm.objects.filter(pair__in=given.values("pair"))
