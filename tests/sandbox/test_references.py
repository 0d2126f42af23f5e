"""Every reference of every suite, graded for real in the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runs.domain.partitions import choose_partition
from runs.domain.suites import Suite, load_suite, load_task_file
from runs.domain.template import TEMPLATE
from runs.sandbox.grader import Grader, open_grader
from runs.services.tasks import ReferenceState, references_check


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with open_grader() as opened:
        if opened.tier == "none":
            pytest.skip("this machine can't isolate code")
        yield opened


@pytest.mark.parametrize("name", ["starter", "starter-math"])
def test_every_reference_passes(name: str, grader: Grader) -> None:
    checks = list(references_check(suite=load_suite(name), grader=grader))
    assert [check for check in checks if check.state is not ReferenceState.PASSED] == []


def test_humaneval_references_pass(grader: Grader) -> None:
    """A seeded sixth of them; `check_tasks humaneval` does all 164 in half a minute."""
    suite = load_suite("humaneval")
    keys = choose_partition(keys=[task.key for task in suite.tasks], size=27, seed=42).keys
    some = replace(suite, tasks=tuple(task for task in suite.tasks if task.key in keys))
    checks = list(references_check(suite=some, grader=grader))
    assert [check for check in checks if check.state is not ReferenceState.PASSED] == []
    assert len(checks) == 27


def test_template_passes_its_own_check(grader: Grader, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_text(TEMPLATE)
    checks = list(references_check(suite=load_task_file(path, name="new"), grader=grader))
    assert {check.state for check in checks} == {ReferenceState.PASSED}


def test_reference_that_fails_its_own_cases_is_found(grader: Grader) -> None:
    tasks = load_suite("starter").tasks[:3]
    wrong = replace(tasks[1], reference="def is_even(n):\n    return n % 2 == 1\n")
    suite = Suite(name="x", comparator="exact", tasks=(tasks[0], wrong, tasks[2]))
    checks = list(references_check(suite=suite, grader=grader))
    assert [check.state.value for check in checks] == ["passed", "failed", "passed"]
    # The first case is 0, which is even: the reference says it is not.
    assert checks[1].message.startswith("is_even(0): returned another value (expected True")


def test_neighbours_reference_fails(grader: Grader) -> None:
    """The check is alive: the program of another task is refused."""
    tasks = load_suite("starter").tasks[:12]
    swapped = tuple(replace(task, reference=tasks[n - 1].reference) for n, task in enumerate(tasks))
    checks = list(references_check(suite=Suite("x", "exact", swapped), grader=grader))
    assert {check.state for check in checks} == {ReferenceState.FAILED}
