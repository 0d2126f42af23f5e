"""Storing suites as frozen benchmarks, and their seeded partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Max

from runs.domain.partitions import choose_partition
from runs.domain.tasks import TaskSpec
from runs.models import Benchmark, Partition, Task
from workbench.kernel.identity import sha256_of


def store_benchmark(
    *, slug: str, tasks: Sequence[TaskSpec], checkers: Mapping[str, Mapping[str, Any]]
) -> Benchmark:
    """Return the benchmark of ``slug`` with exactly these tasks, stored once per content.

    Args:
        checkers: by task key, what answers are checked against.
    """
    digest = sha256_of(sorted(task.sha256 for task in tasks))
    with transaction.atomic():
        stored = Benchmark.objects.filter(slug=slug, sha256=digest).first()
        if stored:
            return stored
        last = Benchmark.objects.filter(slug=slug).aggregate(n=Max("number"))["n"] or 0
        benchmark = Benchmark.objects.create(slug=slug, number=last + 1, sha256=digest)
        Task.objects.bulk_create(
            Task(
                benchmark=benchmark,
                key=task.key,
                prompt=task.prompt,
                kind=task.kind.value,
                checker=dict(checkers[task.key]),
                gold_skills=list(task.gold_skills),
                tags=list(task.tags),
                sha256=task.sha256,
            )
            for task in tasks
        )
    return benchmark


def store_partition(*, benchmark: Benchmark, size: int | None, seed: int) -> Partition:
    """Return the seeded partition of ``size`` tasks (all of them when None), stored once.

    Raises:
        PartitionImpossible: the benchmark has fewer tasks.
    """
    hashes = dict(benchmark.tasks.values_list("key", "sha256"))
    keys = choose_partition(keys=hashes, size=size, seed=seed).keys
    partition, _ = Partition.objects.get_or_create(
        benchmark=benchmark,
        size=len(keys),
        seed=seed,
        defaults={"task_keys": list(keys), "sha256": sha256_of([hashes[key] for key in keys])},
    )
    return partition
