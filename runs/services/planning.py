"""Turning an experiment file into rows: cells, pairs, their executions and their order.

The layout says everything that planning will write, under the uids it will write it under,
without writing it: an estimate runs on it, and so does planning. Uids derive from content, so
planning that was interrupted is taken up by planning the same file again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from runs.domain.plan import ArmSpec, BenchmarkSpec, CellSpec, ExperimentSpec, ModelSpec
from runs.domain.prompts import prompts_sha256
from runs.models import (
    Arm,
    Cell,
    Execution,
    Experiment,
    ExperimentStatus,
    Pair,
    PairArm,
    Partition,
    Position,
    Task,
)
from runs.models import (
    ArmSpec as StoredArmSpec,
)
from skills.domain.retrieval import TOKENISER_VERSION
from skills.models import Library
from skills.services.libraries import library_named
from workbench.kernel.identity import canonical_json, sha256_of, uid_for
from workbench.trail import record_event

# Other writers wait for one transaction of SQLite: about half a second for so many pairs.
PAIRS_AT_ONCE = 1_000
# Those who wait look every 100 ms whether they may write. Without so long a gap between the
# transactions they find the next one begun each time, and give up.
GAP_S = 0.12


class SlugTaken(Exception):
    """An experiment of this slug exists with another plan."""


class SameTasks(Exception):
    """Two entries stand for the very same tasks or skills, which would then count twice."""


@dataclass(frozen=True)
class PlannedCell:
    """One cell as it will be stored; ``number`` is its place in the plan, from 1."""

    number: int
    model: ModelSpec
    spec: CellSpec
    partition: Partition
    library: Library
    treatment: ArmSpec
    baseline: ArmSpec
    sha256: str

    def arm(self, arm: Arm) -> ArmSpec:
        """Return the spec of one of the two arms."""
        return self.treatment if arm == Arm.SE else self.baseline


@dataclass(frozen=True)
class Layout:
    """Everything that planning an experiment will write, before it is written."""

    uid: UUID
    spec: ExperimentSpec
    cells: tuple[PlannedCell, ...]

    def pairs_in(self, cell: PlannedCell) -> int:
        """Return how many pairs the cell will have."""
        return len(cell.partition.task_keys) * self.spec.replicates

    @property
    def pairs(self) -> int:
        """How many pairs the experiment will have."""
        return sum(self.pairs_in(cell) for cell in self.cells)

    def executions_of(self, cells: Iterable[PlannedCell]) -> int:
        """Return how many runs these cells will take; those of an equal arm are shared."""
        runs = {}
        for cell in cells:
            for arm in (cell.treatment, cell.baseline):
                runs[sha256_of(arm.to_json())] = self.pairs_in(cell)
        return sum(runs.values())

    def experiment(self) -> Experiment:
        """Return the experiment, unsaved."""
        return Experiment(uid=self.uid, slug=self.spec.slug, spec=self.spec.to_json())

    def ordered(self, cell: PlannedCell) -> list[tuple[Task, int]]:
        """Return the cell's tasks and replicates in the seeded order of the plan."""
        tasks = Task.objects.filter(
            benchmark=cell.partition.benchmark, key__in=cell.partition.task_keys
        )
        replicates = range(1, self.spec.replicates + 1)
        return sorted(
            ((task, replicate) for task in tasks for replicate in replicates),
            key=lambda item: _order(self.spec.seed, cell.sha256, item[0].sha256, item[1]),
        )

    def execution(self, arm: StoredArmSpec, task: Task, replicate: int) -> Execution:
        """Return the execution of one arm of one task, unsaved, under its own uid."""
        stream, scope = str(self.spec.seed), str(self.uid)
        return Execution(
            uid=uid_for(arm.sha256, task.sha256, replicate, stream, scope),
            arm_spec=arm,
            task=task,
            replicate=replicate,
            seed_stream=stream,
            reuse_scope=scope,
        )


def lay_out(*, spec: ExperimentSpec, partitions: Mapping[BenchmarkSpec, Partition]) -> Layout:
    """Return what planning ``spec`` will write; nothing is written.

    Args:
        partitions: the stored partition of each of the spec's benchmark entries.

    Raises:
        SameTasks: two benchmark entries come to the same set of tasks, or two cells to the same
            skills under the same settings.
        LibraryMissing: a cell names a library that was never imported.
        LibraryQuarantined: a library holds a quarantined skill.
    """
    stored = spec.to_json()
    partition_hashes = [partitions[benchmark].sha256 for benchmark in spec.benchmarks]
    libraries = {name: library_named(name) for name in {cell.library for cell in spec.cells}}
    library_hashes = {name: library.sha256 for name, library in sorted(libraries.items())}
    _refuse_same_tasks(partitions)
    cells: list[PlannedCell] = []
    for model in spec.models:
        for benchmark in spec.benchmarks:
            for cell in spec.cells:
                partition, library = partitions[benchmark], libraries[cell.library]
                treatment, baseline = arm_specs(
                    model=model, partition=partition, cell=cell, library=library
                )
                cells.append(
                    PlannedCell(
                        number=len(cells) + 1,
                        model=model,
                        spec=cell,
                        partition=partition,
                        library=library,
                        treatment=treatment,
                        baseline=baseline,
                        sha256=sha256_of([cell.design, treatment.to_json(), baseline.to_json()]),
                    )
                )
    _refuse_same_cells(cells)
    return Layout(
        uid=uid_for("experiment", sha256_of([stored, partition_hashes, library_hashes])),
        spec=spec,
        cells=tuple(cells),
    )


def plan_experiment(
    *,
    spec: ExperimentSpec,
    partitions: Mapping[BenchmarkSpec, Partition],
    at: datetime,
    toml: str = "",
    actor: Any = None,
) -> Experiment:
    """Return the planned experiment; planning the same file again returns the same one.

    It is written in several transactions, so that a large plan doesn't keep other writers
    waiting. Until all of it is there the experiment can't be started.

    Args:
        partitions: the stored partition of each of the spec's benchmark entries.
        toml: the file, which stays downloadable.
        actor: the user who plans it, or None for the command line.

    Raises:
        SlugTaken: the slug stands for another plan.
        SameTasks, LibraryMissing, LibraryQuarantined: see ``lay_out``.
    """
    layout = lay_out(spec=spec, partitions=partitions)
    experiment = _stored_experiment(layout, toml=toml, actor=actor, at=at)
    if experiment.status == ExperimentStatus.PLANNED and not is_complete(experiment):
        for cell in layout.cells:
            _store_cell(layout, cell, experiment)
    return experiment


def is_complete(experiment: Experiment) -> bool:
    """Return whether every pair of the plan is stored with both of its arms."""
    spec = experiment.spec
    cells = list(experiment.cells.select_related("partition"))
    if len(cells) != len(spec["models"]) * len(spec["benchmarks"]) * len(spec["cells"]):
        return False
    pairs: int = sum(len(cell.partition.task_keys) for cell in cells) * spec["replicates"]
    # A pair's arms are written in the transaction that writes the pair and its position.
    arms: int = PairArm.objects.filter(pair__cell__experiment=experiment).count()
    return arms == 2 * pairs


def _stored_experiment(layout: Layout, *, toml: str, actor: Any, at: datetime) -> Experiment:
    existing = Experiment.objects.filter(slug=layout.spec.slug).first()
    if existing is None:
        experiment = layout.experiment()
        experiment.toml, experiment.author, experiment.created_at = toml, actor, at
        try:
            with transaction.atomic():
                experiment.save(force_insert=True)
                record_event(
                    actor=actor, verb="experiment.planned", subject=layout.spec.slug, at=at
                )
            return experiment
        except IntegrityError:  # somebody planned it meanwhile
            existing = Experiment.objects.get(slug=layout.spec.slug)
    if existing.uid != layout.uid:
        raise SlugTaken(
            f"an experiment '{layout.spec.slug}' exists with another plan (its file, tasks or "
            "skills differ); give this one another slug"
        )
    return existing


def _refuse_same_tasks(partitions: Mapping[BenchmarkSpec, Partition]) -> None:
    seen: dict[frozenset[str], BenchmarkSpec] = {}
    for entry, partition in partitions.items():
        tasks = frozenset(
            Task.objects.filter(
                benchmark=partition.benchmark, key__in=partition.task_keys
            ).values_list("sha256", flat=True)
        )
        if tasks in seen:
            raise SameTasks(
                f"the [[benchmark]] entries {_named(seen[tasks])} and {_named(entry)} come to the "
                "same tasks, which would count twice: remove one, or give each a size below the "
                "suite's so that their seeds choose different tasks"
            )
        seen[tasks] = entry


def _refuse_same_cells(cells: Sequence[PlannedCell]) -> None:
    seen: dict[str, str] = {}
    for cell in cells:
        other = seen.setdefault(cell.sha256, cell.spec.library)
        if other != cell.spec.library:
            raise SameTasks(
                f"the libraries '{other}' and '{cell.spec.library}' hold the same skills, so "
                "their cells would be the same runs twice: remove one of them"
            )


def _named(entry: BenchmarkSpec) -> str:
    size = "all" if entry.size is None else str(entry.size)
    return f"'{entry.suite}' (size {size}, seed {entry.seed})"


def _store_cell(layout: Layout, planned: PlannedCell, experiment: Experiment) -> None:
    """Store the cell and those of its pairs that aren't stored yet."""
    with _alone(experiment):
        cell, _ = Cell.objects.get_or_create(
            experiment=experiment,
            number=planned.number,
            defaults={
                "design": planned.spec.design,
                "partition": planned.partition,
                "library": planned.library,
                "treatment": _store_arm(planned.treatment),
                "baseline": _store_arm(planned.baseline),
                "sha256": planned.sha256,
            },
        )
    ordered = list(enumerate(layout.ordered(planned), start=1))
    for first in range(0, len(ordered), PAIRS_AT_ONCE):
        if first and connection.vendor == "sqlite" and not connection.in_atomic_block:
            time.sleep(GAP_S)
        with _alone(experiment):
            _store_pairs(layout, cell, ordered[first : first + PAIRS_AT_ONCE])


@contextmanager
def _alone(experiment: Experiment) -> Iterator[None]:
    """A transaction that others who plan the same experiment wait for."""
    with transaction.atomic():
        Experiment.objects.select_for_update().get(pk=experiment.pk)
        yield


def _store_pairs(
    layout: Layout, cell: Cell, ordered: Sequence[tuple[int, tuple[Task, int]]]
) -> None:
    """Store pairs with their places in the plan order, their executions and their arms."""
    numbers = {
        uid_for(str(layout.uid), cell.sha256, task.sha256, replicate): (number, task, replicate)
        for number, (task, replicate) in ordered
    }
    stored = set(Pair.objects.filter(uid__in=numbers).values_list("uid", flat=True))
    pairs = Pair.objects.bulk_create(
        Pair(uid=uid, cell=cell, task=task, replicate=replicate)
        for uid, (_, task, replicate) in numbers.items()
        if uid not in stored
    )
    Position.objects.bulk_create(
        Position(cell=cell, number=numbers[pair.uid][0], pair=pair) for pair in pairs
    )
    for arm, arm_spec in ((Arm.SE, cell.treatment), (Arm.SD, cell.baseline)):
        executions = _store_executions(layout, arm_spec, pairs)
        PairArm.objects.bulk_create(
            PairArm(pair=pair, arm=arm, execution=execution)
            for pair, execution in zip(pairs, executions, strict=True)
        )


def arm_specs(
    *, model: ModelSpec, partition: Partition, cell: CellSpec, library: Library
) -> tuple[ArmSpec, ArmSpec]:
    """Return the treatment and the baseline of a cell: all else is equal between them."""
    baseline = ArmSpec(
        model=model.id,
        endpoint=model.endpoint,
        dialect=model.dialect,
        benchmark=partition.benchmark.slug,
        benchmark_sha256=partition.benchmark.sha256,
        partition_sha256=partition.sha256,
        prompt_sha256=prompts_sha256(exposed=False, dialect=model.dialect),
        temperature=cell.temperature,
        max_tokens=cell.max_tokens,
        strategy="direct",
    )
    treatment = replace(
        baseline,
        prompt_sha256=prompts_sha256(exposed=True, dialect=model.dialect),
        strategy=cell.strategy,
        library_sha256=library.sha256,
        control=cell.control,
        k=cell.k,
        types=cell.types,
        retriever=cell.retriever,
        tokeniser=TOKENISER_VERSION,
        max_searches=cell.max_searches,
    )
    return treatment, baseline


def _store_arm(spec: ArmSpec) -> StoredArmSpec:
    stored, _ = StoredArmSpec.objects.get_or_create(
        sha256=sha256_of(spec.to_json()), defaults={"spec": spec.to_json()}
    )
    return stored


def _store_executions(
    layout: Layout, arm_spec: StoredArmSpec, pairs: Sequence[Pair]
) -> list[Execution]:
    """Return one execution per pair; those of an equal arm in this experiment are reused."""
    wanted = [layout.execution(arm_spec, pair.task, pair.replicate) for pair in pairs]
    Execution.objects.bulk_create(wanted, ignore_conflicts=True)
    stored = Execution.objects.in_bulk([e.uid for e in wanted], field_name="uid")
    return [stored[execution.uid] for execution in wanted]


def _order(seed: int, *parts: object) -> str:
    """Return the sort key that shuffles pairs by a seeded hash."""
    return hashlib.sha256(canonical_json([seed, *parts]).encode()).hexdigest()
