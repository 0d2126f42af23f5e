"""The fewest rows that a test of the kernel needs."""

from __future__ import annotations

from typing import Any

from runs.models import ArmSpec, Benchmark, Execution, Task
from workbench.kernel.identity import sha256_of, uid_for


def make_task(*, key: str = "double", **fields: Any) -> Task:
    """Return a task of the benchmark ``small``, made if it isn't there."""
    benchmark, _ = Benchmark.objects.get_or_create(
        slug="small", number=1, defaults={"sha256": "0" * 64}
    )
    task: Task = Task.objects.create(
        benchmark=benchmark,
        key=key,
        prompt="Double a number.",
        kind="exact",
        checker={"answers": ["2"]},
        sha256=sha256_of(key),
        **fields,
    )
    return task


def make_execution(*, key: str = "double") -> Execution:
    """Return a pending execution of a task of its own."""
    arm, _ = ArmSpec.objects.get_or_create(sha256="1" * 64, defaults={"spec": {}})
    return Execution.objects.create(
        uid=uid_for("test", key),
        arm_spec=arm,
        task=make_task(key=key),
        replicate=1,
        seed_stream="42",
        reuse_scope="test",
    )
