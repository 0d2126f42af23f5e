"""Storing suites as frozen benchmarks, and their seeded partitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from django.db import connection, transaction
from django.db.models import Max

from runs.domain.partitions import choose_partition
from runs.domain.tasks import TaskSpec
from runs.models import Benchmark, Partition, Task
from workbench.kernel.identity import sha256_of

# Tasks in memory at once while a suite is stored.
_BATCH = 500
_TEXTS = ("key", "prompt", "kind", "sha256")
_VALUES = ("checker", "gold_skills", "tags")
_FOUND_OUT = ("checker_isolation", "not_split_because")


def store_benchmark(
    *, slug: str, tasks: Sequence[TaskSpec], checkers: Mapping[str, Mapping[str, Any]]
) -> Benchmark:
    """Return the benchmark of ``slug`` with exactly these tasks, stored once per content.

    Args:
        checkers: by task key, what answers are checked against.
    """
    return store_rows(
        slug=slug,
        sha256=sha256_of(sorted(task.sha256 for task in tasks)),
        rows=(task_row(task, checkers[task.key]) for task in tasks),
    )


def task_row(task: TaskSpec, checker: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of ``task``, whose answers are checked against ``checker``."""
    return {
        "key": task.key,
        "prompt": task.prompt,
        "kind": task.kind.value,
        "checker": dict(checker),
        "gold_skills": list(task.gold_skills),
        "tags": list(task.tags),
        "sha256": task.sha256,
    }


def store_rows(*, slug: str, sha256: str, rows: Iterable[Mapping[str, Any]]) -> Benchmark:
    """Return the benchmark of ``slug`` with this content, stored once.

    Args:
        sha256: of the sorted hashes of the tasks.
        rows: each task's columns, as ``task_row`` gives them; read only where they are stored,
            and never all at once.
    """
    with transaction.atomic():
        stored = Benchmark.objects.filter(slug=slug, sha256=sha256).first()
        if stored:
            return stored
        last = Benchmark.objects.filter(slug=slug).aggregate(n=Max("number"))["n"] or 0
        benchmark = Benchmark.objects.create(slug=slug, number=last + 1, sha256=sha256)
        _insert(benchmark, iter(rows))
    return benchmark


def _insert(benchmark: Benchmark, rows: Iterator[Mapping[str, Any]]) -> None:
    """Insert the tasks without a model instance each, which would take most of the time."""
    fields: list[Any] = [Task._meta.get_field(name) for name in ("benchmark", *_TEXTS, *_VALUES)]
    columns = [field.column for field in fields]
    as_json = connection.ops.adapt_json_value
    quoted = ", ".join(connection.ops.quote_name(column) for column in columns)
    marks = ", ".join(["%s"] * len(columns))
    table = connection.ops.quote_name(Task._meta.db_table)
    with connection.cursor() as cursor:
        while batch := list(islice(rows, _BATCH)):
            cursor.executemany(
                f"INSERT INTO {table} ({quoted}) VALUES ({marks})",
                [
                    (
                        benchmark.pk,
                        *(row[name] for name in _TEXTS),
                        *(as_json(row[name], None) for name in _VALUES),
                    )
                    for row in batch
                ],
            )


def suite_lines(benchmark: Benchmark) -> Iterator[str]:
    """Yield a stored suite as the lines of a task file, by key; references aren't kept.

    How a recorded test is isolated is this product's finding and no part of the task.
    """
    found = Task.objects.filter(benchmark=benchmark).order_by("key")
    for task in found.iterator(chunk_size=_BATCH):
        row = {
            "key": task.key,
            "kind": task.kind,
            "prompt": task.prompt,
            "checker": {k: v for k, v in task.checker.items() if k not in _FOUND_OUT},
            "gold_skills": task.gold_skills,
            "tags": task.tags,
        }
        yield json.dumps(row, ensure_ascii=False) + "\n"


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
