"""Every reference of every suite, graded for real in the sandbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runs.domain.suites import SUITE_NAMES, Suite, load_suite, load_task_file
from runs.domain.tasks import TaskSpec
from runs.domain.template import TEMPLATE
from runs.sandbox.grader import Grader, open_grader
from runs.services.tasks import ReferenceState, references_check


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with open_grader() as opened:
        if opened.tier == "none":
            pytest.skip("this machine can't isolate code")
        yield opened


@pytest.mark.parametrize("name", SUITE_NAMES)
def test_every_reference_passes(name: str, grader: Grader) -> None:
    checks = list(references_check(suite=load_suite(name), grader=grader))
    assert [check for check in checks if check.state is not ReferenceState.PASSED] == []


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
    assert checks[1].message


@pytest.mark.parametrize("name", ["starter", "starter-math"])
def test_neighbours_reference_fails(name: str, grader: Grader) -> None:
    """The check is alive: a reply to another task is refused, everywhere it is another answer."""
    tasks = load_suite(name).tasks
    swapped = tuple(_with_answer_of(task, tasks[n - 1]) for n, task in enumerate(tasks))
    checks = list(references_check(suite=Suite(name, "exact", swapped), grader=grader))
    states = Counter(check.state for check in checks)
    same = sum(
        task.checker.get("gold", n) == tasks[n - 1].checker.get("gold")
        for n, task in enumerate(tasks)
    )
    assert states[ReferenceState.PASSED] == same
    assert states[ReferenceState.FAILED] == len(tasks) - same


def _with_answer_of(task: TaskSpec, other: TaskSpec) -> TaskSpec:
    return replace(task, reference=other.reference)
