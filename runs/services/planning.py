"""Turning an experiment file into rows: cells, pairs, their executions and their order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from django.db import transaction

from runs.domain.plan import ArmSpec, BenchmarkSpec, CellSpec, ExperimentSpec, ModelSpec
from runs.domain.prompts import prompts_sha256
from runs.models import (
    Arm,
    Cell,
    Execution,
    Experiment,
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
from skills.services.libraries import current_library
from workbench.kernel.identity import canonical_json, sha256_of, uid_for
from workbench.trail import record_event


class SlugTaken(Exception):
    """An experiment of this slug exists with another plan."""


class SameTasks(Exception):
    """Two benchmark entries stand for the very same tasks, which would then count twice."""


def plan_experiment(
    *, spec: ExperimentSpec, partitions: Mapping[BenchmarkSpec, Partition], at: datetime
) -> Experiment:
    """Return the planned experiment; planning the same file again returns the same one.

    Args:
        partitions: the stored partition of each of the spec's benchmark entries.

    Raises:
        SlugTaken: the slug stands for another plan.
        SameTasks: two benchmark entries come to the same set of tasks.
        LibraryMissing: a cell names a library that was never imported.
        LibraryQuarantined: a library holds a quarantined skill.
    """
    stored = spec.to_json()
    partition_hashes = [partitions[benchmark].sha256 for benchmark in spec.benchmarks]
    libraries = {cell.library: current_library(cell.library) for cell in spec.cells}
    library_hashes = {slug: library.sha256 for slug, library in sorted(libraries.items())}
    uid = uid_for("experiment", sha256_of([stored, partition_hashes, library_hashes]))
    with transaction.atomic():
        existing = Experiment.objects.filter(slug=spec.slug).first()
        if existing:
            if existing.uid != uid:
                raise SlugTaken(
                    f"an experiment '{spec.slug}' exists with another plan (its file, tasks or "
                    "skills differ); give this one another slug"
                )
            return existing
        _refuse_same_tasks(partitions)
        experiment = Experiment.objects.create(uid=uid, slug=spec.slug, spec=stored, created_at=at)
        number = 0
        for model in spec.models:
            for benchmark in spec.benchmarks:
                for cell in spec.cells:
                    number += 1
                    _plan_cell(
                        experiment=experiment,
                        spec=spec,
                        number=number,
                        model=model,
                        partition=partitions[benchmark],
                        cell_spec=cell,
                        library=libraries[cell.library],
                    )
        record_event(actor=None, verb="experiment.planned", subject=spec.slug, at=at)
    return experiment


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


def _named(entry: BenchmarkSpec) -> str:
    size = "all" if entry.size is None else str(entry.size)
    return f"'{entry.suite}' (size {size}, seed {entry.seed})"


def _plan_cell(
    *,
    experiment: Experiment,
    spec: ExperimentSpec,
    number: int,
    model: ModelSpec,
    partition: Partition,
    cell_spec: CellSpec,
    library: Library,
) -> None:
    treatment, baseline = arm_specs(
        model=model, partition=partition, cell=cell_spec, library=library
    )
    cell = Cell.objects.create(
        experiment=experiment,
        number=number,
        design=cell_spec.design,
        partition=partition,
        library=library,
        treatment=_store_arm(treatment),
        baseline=_store_arm(baseline),
        sha256=sha256_of([cell_spec.design, treatment.to_json(), baseline.to_json()]),
    )
    tasks = Task.objects.filter(benchmark=partition.benchmark, key__in=partition.task_keys)
    planned = sorted(
        ((task, replicate) for task in tasks for replicate in range(1, spec.replicates + 1)),
        key=lambda item: _order(spec.seed, cell.sha256, item[0].sha256, item[1]),
    )
    pairs = Pair.objects.bulk_create(
        Pair(
            uid=uid_for(str(experiment.uid), cell.sha256, task.sha256, replicate),
            cell=cell,
            task=task,
            replicate=replicate,
        )
        for task, replicate in planned
    )
    Position.objects.bulk_create(
        Position(cell=cell, number=n, pair=pair) for n, pair in enumerate(pairs, start=1)
    )
    for arm, arm_spec in ((Arm.SE, cell.treatment), (Arm.SD, cell.baseline)):
        executions = _store_executions(experiment, str(spec.seed), arm_spec, pairs)
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
    experiment: Experiment, seed_stream: str, arm_spec: StoredArmSpec, pairs: Iterable[Pair]
) -> list[Execution]:
    """Return one execution per pair; those of an equal arm in this experiment are reused."""
    scope = str(experiment.uid)
    wanted = [
        Execution(
            uid=uid_for(arm_spec.sha256, pair.task.sha256, pair.replicate, seed_stream, scope),
            arm_spec=arm_spec,
            task=pair.task,
            replicate=pair.replicate,
            seed_stream=seed_stream,
            reuse_scope=scope,
        )
        for pair in pairs
    ]
    Execution.objects.bulk_create(wanted, ignore_conflicts=True)
    stored = Execution.objects.in_bulk([e.uid for e in wanted], field_name="uid")
    return [stored[execution.uid] for execution in wanted]


def _order(seed: int, *parts: object) -> str:
    """Return the sort key that shuffles pairs by a seeded hash."""
    return hashlib.sha256(canonical_json([seed, *parts]).encode()).hexdigest()
