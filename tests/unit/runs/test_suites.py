"""The suites that come with the product: complete, balanced, and right."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from runs.domain.fields import names_defined, parsed
from runs.domain.suites import (
    SUITE_NAMES,
    InvalidTaskFile,
    Suite,
    UnknownSuite,
    load_suite,
    load_task_file,
    suite_kinds,
)
from runs.domain.tasks import Kind, TaskSpec
from runs.domain.values import decode, encode
from tests.unit.runs.second_opinions import CODE, MATHS

CODING_POOL = {
    "binary-search-boundary", "counting-hash", "dfs-iterative", "edge-case-guard",
    "knapsack-01-dp", "prefix-sum", "rotate-left", "sliding-window-longest",
    "two-pointer-pair-sum",
}  # fmt: skip
MATHS_POOL = {
    "algebraic-substitution", "case-analysis", "check-by-substitution", "coordinate-distance",
    "factor-then-solve", "modular-arithmetic", "sequence-formulae", "systematic-enumeration",
}  # fmt: skip

# Runs every reference over its inputs in one child and prints the results as tagged values.
_CHILD = """
import json, sys
from runs.domain.values import decode, encode
for task in json.load(sys.stdin):
    space = {}
    exec(task["reference"], space)
    results = [space[task["entry"]](*map(decode, args)) for args in task["inputs"]]
    print(json.dumps([encode(result) for result in results]))
"""


@pytest.fixture(scope="module")
def starter() -> Suite:
    return load_suite("starter")


@pytest.fixture(scope="module")
def starter_math() -> Suite:
    return load_suite("starter-math")


@pytest.fixture(scope="module")
def humaneval() -> Suite:
    return load_suite("humaneval")


def _name(task: TaskSpec) -> str:
    return task.key.split("/")[1]


def _same(got: Any, expected: Any) -> bool:
    """Return whether two plain values are equal in type too, floats within 1e-6."""
    if type(got) is not type(expected):
        return False
    if isinstance(got, float):
        return math.isclose(got, expected, rel_tol=0, abs_tol=1e-6)
    if isinstance(got, list | tuple):
        return len(got) == len(expected) and all(map(_same, got, expected))
    return bool(got == expected)


def test_starter_has_the_promised_make_up(starter: Suite) -> None:
    groups = Counter(_group(task) for task in starter.tasks)
    levels = Counter(task.tags[0] for task in starter.tasks)
    # README: 22 + 21 + 18 = 61, of which 33 very easy.
    assert groups == {"gold": 22, "no_skill": 21, "related": 18}
    assert levels == {"very_easy": 33, "easy": 19, "moderate": 9}
    assert starter.comparator == "exact"
    assert {slug for task in starter.tasks for slug in task.gold_skills} == CODING_POOL


def test_starter_math_has_the_promised_make_up(starter_math: Suite) -> None:
    groups = Counter(_group(task) for task in starter_math.tasks)
    levels = Counter(task.tags[0] for task in starter_math.tasks)
    # README: 20 + 17 + 13 = 50, of which 23 very easy.
    assert groups == {"gold": 20, "no_skill": 17, "related": 13}
    assert levels == {"very_easy": 23, "easy": 21, "moderate": 6}
    assert {slug for task in starter_math.tasks for slug in task.gold_skills} == MATHS_POOL


@pytest.mark.parametrize("name", ["starter", "starter-math"])
def test_at_least_a_third_has_a_skill_and_a_third_has_none(name: str) -> None:
    tasks = load_suite(name).tasks
    groups = Counter(_group(task) for task in tasks)
    assert 3 * groups["gold"] >= len(tasks)
    assert 3 * groups["no_skill"] >= len(tasks)


def _group(task: TaskSpec) -> str:
    groups = [tag for tag in task.tags if tag in ("no_skill", "related")]
    assert len(groups) == (0 if task.gold_skills else 1), task.key
    return groups[0] if groups else "gold"


def test_every_starter_task_has_signature_reference_and_eight_hidden_cases(
    starter: Suite,
) -> None:
    for task in starter.tasks:
        entry = task.checker["entry"]
        assert task.prompt.startswith(f"def {entry}("), task.key
        assert '"""Write a function' in task.prompt, task.key
        assert task.reference, task.key
        assert task.checker["comparator"] == "exact"
        cases = [json.dumps(case["args"]) for case in task.checker["cases"]]
        assert len(set(cases)) == len(cases) >= 8, task.key


def test_no_hidden_case_stands_in_its_prompt(starter: Suite) -> None:
    for task in starter.tasks:
        calls = re.findall(r">>> (.*)", task.prompt)
        assert calls, task.key
        for case in task.checker["cases"]:
            args = ", ".join(repr(decode(value)) for value in case["args"])
            assert f"{task.checker['entry']}({args})" not in calls, task.key


def test_every_expected_value_is_what_the_reference_returns(starter: Suite) -> None:
    jobs = [
        {
            "reference": task.reference,
            "entry": task.checker["entry"],
            "inputs": [case["args"] for case in task.checker["cases"]],
        }
        for task in starter.tasks
    ]
    child = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    lines = child.stdout.splitlines()
    assert len(lines) == len(starter.tasks)
    for task, line in zip(starter.tasks, lines, strict=True):
        for case, got in zip(task.checker["cases"], json.loads(line), strict=True):
            assert _same(decode(got), decode(case["expected"])), (task.key, case, got)


def test_every_expected_value_has_a_second_opinion(starter: Suite) -> None:
    assert {_name(task) for task in starter.tasks} == set(CODE)
    for task in starter.tasks:
        second = CODE[_name(task)]
        for case in task.checker["cases"]:
            got = second(*map(decode, case["args"]))
            assert _same(got, decode(case["expected"])), (task.key, case["args"], got)


def test_the_examples_in_the_prompts_are_right(starter: Suite) -> None:
    for task in starter.tasks:
        second = {task.checker["entry"]: CODE[_name(task)]}
        for call, result in re.findall(r">>> (.*)\n +(.*)", task.prompt):
            # The texts are ours, read from the suite in this repository.
            assert eval(call, dict(second)) == eval(result), (task.key, call)


def test_every_maths_answer_has_a_second_opinion(starter_math: Suite) -> None:
    assert {_name(task) for task in starter_math.tasks} == set(MATHS)
    for task in starter_math.tasks:
        gold, second = _value(task.checker["gold"]), MATHS[_name(task)]()
        if isinstance(second, float) or isinstance(gold, float):
            assert math.isclose(gold, second, rel_tol=1e-9), task.key
        else:
            assert gold == second, task.key


def test_every_maths_reference_ends_in_its_boxed_gold(starter_math: Suite) -> None:
    for task in starter_math.tasks:
        assert task.kind is Kind.MATHS
        assert task.reference is not None
        assert task.reference.endswith(f"\\boxed{{{task.checker['gold']}}}"), task.key


def _value(gold: str) -> Fraction | float:
    r"""Return the value of the few LaTeX forms the suite uses: 3, 1.75, \frac{1}{2}, 2\sqrt{5}."""
    fraction = re.fullmatch(r"\\frac\{(-?\d+)\}\{(\d+)\}", gold)
    if fraction:
        value = Fraction(int(fraction[1]), int(fraction[2]))
        assert value.denominator == int(fraction[2]), f"{gold} is not in lowest terms"
        return value
    root = re.fullmatch(r"(\d+)\\sqrt\{(\d+)\}", gold)
    return int(root[1]) * math.sqrt(int(root[2])) if root else Fraction(gold)


def test_humaneval_comes_whole_from_its_wheel(humaneval: Suite) -> None:
    assert [task.key for task in humaneval.tasks] == [f"HumanEval/{n}" for n in range(164)]
    assert humaneval.comparator == "python_eq"
    for task in humaneval.tasks:
        assert task.checker["mode"] == "asserts"
        assert "def check(" in task.checker["test"]
        assert (task.reference or "").startswith(task.prompt)


def test_humaneval_helpers_are_in_the_prelude_and_the_answer_is_not(humaneval: Suite) -> None:
    tasks = {task.key: task for task in humaneval.tasks}
    # 38 asks for decode_cyclic and gives encode_cyclic; 0 imports List; 2 has neither.
    assert "def encode_cyclic" in tasks["HumanEval/38"].checker["prelude"]
    assert "def decode_cyclic" not in tasks["HumanEval/38"].checker["prelude"]
    assert tasks["HumanEval/0"].checker["prelude"].strip() == "from typing import List"
    assert tasks["HumanEval/2"].checker["prelude"] == ""
    for task in humaneval.tasks:
        names = names_defined(parsed(task.checker["prelude"], field="prelude"))
        assert task.checker["entry"] not in names, task.key


@pytest.mark.parametrize("name", SUITE_NAMES)
def test_suites_are_the_same_whatever_the_order_of_their_lines(name: str) -> None:
    suite = load_suite(name)
    keys = [task.key for task in suite.tasks]
    assert len(set(keys)) == len(keys)
    turned = Suite(name=suite.name, comparator=suite.comparator, tasks=suite.tasks[::-1])
    assert turned.sha256 == suite.sha256
    fewer = Suite(name=suite.name, comparator=suite.comparator, tasks=suite.tasks[1:])
    assert fewer.sha256 != suite.sha256


def test_unknown_suite_names_the_known_ones() -> None:
    with pytest.raises(UnknownSuite, match="starter, starter-math, humaneval"):
        load_suite("Starter")


def test_file_becomes_a_suite_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    row = {"key": "a", "kind": "maths", "prompt": "1+1?", "checker": {"gold": "2"}}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    suite = load_task_file(path, name="mine")
    assert [task.key for task in suite.tasks] == ["a"]
    assert [notice.line for notice in suite.notices] == [2]
    with pytest.raises(InvalidTaskFile, match="No such file"):
        load_task_file(tmp_path / "absent.jsonl", name="absent")


def test_values_used_by_the_suites_survive_their_encoding(starter: Suite) -> None:
    for task in starter.tasks:
        for case in task.checker["cases"]:
            for value in (*case["args"], case["expected"]):
                assert encode(decode(value)) == value


@pytest.mark.parametrize("name", SUITE_NAMES)
def test_kinds_are_counted_as_the_suite_has_them(name: str) -> None:
    assert suite_kinds(name) == Counter(task.kind.value for task in load_suite(name).tasks)
