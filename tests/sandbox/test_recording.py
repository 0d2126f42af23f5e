"""Published checks become cases where that is provably the same, and stay whole elsewhere."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from runs.domain.checking import Verdict
from runs.domain.suites import load_suite
from runs.sandbox import supervisor
from runs.sandbox.grader import Grader, HostFailed, ReferenceFailed
from runs.sandbox.slots import NoSlot
from runs.sandbox.splitting import NotSplittable, instrument
from runs.sandbox.supervisor import Ending, Run

pytestmark = pytest.mark.xdist_group("sandbox")

# HumanEval/32 looks at a root's polynomial, HumanEval/33 compares with the program itself.
WHOLE = {"HumanEval/32", "HumanEval/33"}


def asserts(test: str, *, prelude: str = "", entry: str = "f") -> dict[str, Any]:
    return {"mode": "asserts", "entry": entry, "prelude": prelude, "test": test, "timeout_s": 2}


def check(*lines: str) -> str:
    return "def check(candidate):\n" + "".join(f"    {line}\n" for line in lines)


def test_humaneval_splits_but_for_two() -> None:
    whole = set()
    tasks = load_suite("humaneval").tasks
    assert len(tasks) == 164
    for task in tasks:
        checker = task.checker
        try:
            instrument(checker["test"], entry=checker["entry"], prelude=checker["prelude"])
        except NotSplittable:
            whole.add(task.key)
    assert whole == WHOLE


def test_humaneval_references_pass_what_was_recorded(grader: Grader) -> None:
    """Those whose checks are more than literal asserts, and every twentieth."""
    unusual = [2, 4, 8, 25, 32, 33, 37, 38, 44, 50, 52, 53, 56, 61, 72, 90, 129, 151]
    tasks = load_suite("humaneval").tasks
    for number, task in enumerate(tasks):
        if number % 20 and number not in unusual:
            continue
        assert task.reference is not None
        payload = grader.record_cases(checker=task.checker, reference=task.reference)
        assert (payload["mode"] == "asserts") is (task.key in WHOLE), task.key
        result = grader.grade(kind="code", checker=payload, reply=task.reference)
        assert result.verdict == Verdict.PASS, task.key
        expected = "two_processes" if task.key in WHOLE else "process"
        assert result.details["checker_isolation"] == expected
        wrong = f"def {task.checker['entry']}(*args): return 'wrong'"
        assert grader.grade(kind="code", checker=payload, reply=wrong).verdict == Verdict.FAIL


@pytest.mark.parametrize(
    ("line", "case"),
    [
        ("assert candidate(1) == 2", {"args": [1], "expected": 2}),
        ("assert 2 == candidate(1), candidate", {"args": [1], "expected": 2}),
        ("assert candidate(3 * 2) == [n for n in range(2)]", {"args": [6], "expected": [0, 1]}),
        ("assert candidate(1)", {"args": [1], "expected": True, "view": "bool"}),
        ("assert not candidate(1)", {"args": [1], "expected": False, "view": "bool"}),
        ("assert candidate(1) is None", {"args": [1], "expected": None, "comparator": "exact"}),
        (
            "assert tuple(candidate(1)) == (2,)",
            {"args": [1], "expected": {"$tuple": [2]}, "view": "tuple"},
        ),
        ("assert abs(candidate(1) - 2) < 1e-2", {"args": [1], "expected": 2.0, "abs_tol": 0.01}),
        ("assert abs(2 - candidate(1)) < 1e-6", {"args": [1], "expected": 2.0}),
    ],
)
def test_forms_of_one_case(grader: Grader, line: str, case: dict[str, Any]) -> None:
    references = {
        "[n": "def f(x):\n    return [0, 1]",
        "not ": "def f(x):\n    return 0",
        "is None": "def f(x):\n    return None",
        "tuple": "def f(x):\n    return iter([2])",
    }
    reference = next(
        (body for mark, body in references.items() if mark in line), "def f(x):\n    return x + 1"
    )
    payload = grader.record_cases(checker=asserts(check(line)), reference=reference)
    assert payload["cases"] == [case]
    assert payload["comparator"] == "python_eq"


def test_plain_assert_statements_and_loops(grader: Grader) -> None:
    test = (
        "import math\nfor n in range(3):\n    assert f(n) == math.factorial(n)\nassert f(4) == 24"
    )
    reference = "def f(n):\n    return 1 if n < 2 else n * f(n - 1)"
    payload = grader.record_cases(checker=asserts(test), reference=reference)
    assert [case["args"] for case in payload["cases"]] == [[0], [1], [2], [4]]
    assert [case["expected"] for case in payload["cases"]] == [1, 1, 2, 24]


def test_random_inputs_are_drawn_once(grader: Grader) -> None:
    test = check(
        "import random",
        "for _ in range(5):",
        "    x, y = random.randint(0, 10**6), random.randint(0, 10**6)",
        "    assert candidate(x, y) == x + y",
    )
    reference = "def f(x, y):\n    return x + y"
    payloads = [grader.record_cases(checker=asserts(test), reference=reference) for _ in range(2)]
    assert payloads[0] == payloads[1]
    assert len(payloads[0]["cases"]) == 5


@pytest.mark.parametrize(
    "lines",
    [
        ["assert candidate(1) != 2"],
        ["assert candidate(1) > 2"],
        ["assert candidate(1) in (2, 3)"],
        ["assert candidate(1) == candidate(2)"],
        ["assert candidate(candidate(1)) == 2"],
        ["assert candidate(1) == f(1)"],
        ["x = candidate(1)", "assert x == 2"],
        ["assert len(candidate(1)) == 2"],
        ["assert math.isclose(candidate(1), 2)"],
        ["assert candidate(1) == 2 and candidate(2) == 3"],
        ["assert candidate(*[1]) == 2"],
        ["assert candidate(x=1) == 2"],
        ["try:", "    assert candidate(1) == 2", "except ValueError: pass"],
        ["for x in candidate(3): assert x == 2"],
        ["if candidate(1): assert candidate(1) == 2"],
        ["assert (lambda: candidate(1))() == 2"],
        ["assert candidate(1) == helper(2)"],
        ["assert candidate(1) == eval('2')"],
        ["candidate = len", "assert candidate([]) == 0"],
        ["assert candidate(1) is 2"],
        ["assert abs(candidate(1) - 2) < 1e-6 or True"],
        ["pass"],
    ],
)
def test_what_is_not_provably_equality_stays_whole(lines: list[str]) -> None:
    with pytest.raises(NotSplittable):
        instrument(check(*lines), entry="f", prelude="")


def test_a_helper_of_the_task_is_no_obstacle_and_one_of_the_program_is() -> None:
    test = check("assert candidate(1) == helper(2)")
    assert "__case__" in instrument(test, entry="f", prelude="def helper(x): return x")
    with pytest.raises(NotSplittable, match="helper, which the task doesn't define"):
        instrument(test, entry="f", prelude="")


@pytest.mark.parametrize(
    "lines",
    [
        ["x = [1]", "assert candidate(x) == 1", "assert candidate(x) == 1"],
        ["x = [1]", "y = x", "assert candidate(x) == 1", "assert candidate(y) == 1"],
        ["x = [1]", "for _ in range(2): assert candidate(x) == 1"],
        ["x = [1]", "assert candidate(x) == x[0]"],
        ["x = {'a': [1]}", "assert candidate((x,)) == 1", "assert candidate(x['a']) == 1"],
    ],
)
def test_arguments_a_program_could_change_keep_the_check_whole(
    grader: Grader, lines: list[str]
) -> None:
    reference = "def f(x):\n    return 1"
    payload = grader.record_cases(checker=asserts(check(*lines)), reference=reference)
    assert payload["mode"] == "asserts"
    assert payload["checker_isolation"] == "two_processes"
    assert (
        "changed" in payload["not_split_because"] or "ended early" in payload["not_split_because"]
    )
    result = grader.grade(kind="code", checker=payload, reply=reference)
    assert (result.verdict, result.details["checker_isolation"]) == (Verdict.PASS, "two_processes")


@pytest.mark.parametrize(
    ("lines", "reference", "wrong"),
    [
        (
            ["x = [2, 1]", "candidate(x)", "assert x == [1, 2]"],
            "def f(x):\n    x.sort()",
            "def f(x):\n    return sorted(x)",
        ),
        (
            ["x = [3]", "assert candidate(x) == 3", "assert candidate(x) == 3"],
            "def f(x):\n    return x[0]",
            "def f(x):\n    return x.pop() if x else None",
        ),
        (
            ["x = {'a': [1]}", "y = x['a']", "candidate(x)", "assert y == [1, 2]"],
            "def f(x):\n    x['a'].append(2)",
            "def f(x):\n    x['a'] = [1, 2]",
        ),
    ],
)
def test_what_a_program_changes_is_changed_for_a_check_apart(
    grader: Grader, lines: list[str], reference: str, wrong: str
) -> None:
    payload = grader.record_cases(checker=asserts(check(*lines)), reference=reference)
    assert payload["checker_isolation"] == "two_processes"
    assert grader.grade(kind="code", checker=payload, reply=reference).verdict == Verdict.PASS
    failed = grader.grade(kind="code", checker=payload, reply=wrong).verdict
    # A list put in another's place is equal here, and the same list to an in-process check.
    assert failed == (Verdict.PASS if "'a'" in lines[0] else Verdict.FAIL)


def test_a_check_that_wants_more_than_plain_values_runs_in_one_process(grader: Grader) -> None:
    checker = asserts(check("assert callable(candidate(1))"))
    reference = "def f(x):\n    return lambda: x"
    payload = grader.record_cases(checker=checker, reference=reference)
    assert payload["checker_isolation"] == "in_process"
    result = grader.grade(kind="code", checker=payload, reply=reference)
    assert (result.verdict, result.details["checker_isolation"]) == (Verdict.PASS, "in_process")


def test_exceptions_reach_a_check_apart(grader: Grader) -> None:
    lines = ["try:", "    candidate(0)", "except ZeroDivisionError: return", "assert False"]
    checker = asserts(check(*lines))
    payload = grader.record_cases(checker=checker, reference="def f(x):\n    return 1 // x")
    assert payload["checker_isolation"] == "two_processes"
    wrong = grader.grade(kind="code", checker=payload, reply="def f(x):\n    return 0")
    assert wrong.verdict == Verdict.FAIL


def test_arguments_used_once_or_copied_split(grader: Grader) -> None:
    lines = [
        "import copy",
        "x = [1]",
        "assert candidate(copy.copy(x)) == 1",
        "assert candidate(x) == 1",
    ]
    reference = "def f(x):\n    return 1"
    payload = grader.record_cases(checker=asserts(check(*lines)), reference=reference)
    assert [case["args"] for case in payload["cases"]] == [[[1]], [[1]]]


def test_expected_objects_keep_the_check_whole(grader: Grader) -> None:
    test = check(
        "class Near:",
        "    def __eq__(self, other): return abs(other - 2) < 1",
        "assert candidate(1) == Near()",
    )
    payload = grader.record_cases(checker=asserts(test), reference="def f(x):\n    return 2.5")
    assert payload["mode"] == "asserts"
    assert "Near is not a plain value" in payload["not_split_because"]


def test_a_reference_that_fails_its_own_check_is_refused(grader: Grader) -> None:
    checker = asserts(check("assert candidate(1) == 2"))
    with pytest.raises(ReferenceFailed, match="the reference ends with fail"):
        grader.record_cases(checker=checker, reference="def f(x):\n    return 3")


@pytest.mark.parametrize("mode", ["inputs", "asserts"])
@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_host_that_fails_while_recording_blames_no_reference(
    mode: str, fails_at: int, monkeypatch: pytest.MonkeyPatch, grader: Grader
) -> None:
    """The first run records, the second grades the reference with what was recorded."""
    run, seen = supervisor.run, []

    def fails(*args: Any) -> Run:
        seen.append(1)
        result = run(*args)
        if len(seen) < fails_at:
            return result
        return dataclasses.replace(result, ending=Ending.HOST, results=b"", reason="no processor")

    monkeypatch.setattr(supervisor, "run", fails)
    checker = inputs() if mode == "inputs" else asserts(check("assert candidate(1) == 1"))
    with pytest.raises(HostFailed, match="no processor"):
        grader.record_cases(checker=checker, reference="def f(x):\n    return x")
    assert len(seen) == fails_at


def test_no_free_slot_while_recording_blames_no_reference(
    monkeypatch: pytest.MonkeyPatch, grader: Grader
) -> None:
    def none_free(*_: Any) -> Run:
        raise NoSlot("every slot is busy")

    monkeypatch.setattr(supervisor, "run", none_free)
    with pytest.raises(HostFailed, match="every slot is busy"):
        grader.record_cases(checker=inputs(), reference="def f(x):\n    return x")


def inputs(**changes: Any) -> dict[str, Any]:
    base = {"mode": "inputs", "entry": "f", "prelude": "", "inputs": [[1], [2]], "atol": 0}
    return {**base, "comparator": "python_eq", "timeout_s": 2, **changes}


def test_inputs_are_recorded_from_the_reference(grader: Grader) -> None:
    payload = grader.record_cases(checker=inputs(), reference="def f(x):\n    return (x, {x})")
    expected = [{"$tuple": [1, {"$set": [1]}]}, {"$tuple": [2, {"$set": [2]}]}]
    assert [case["expected"] for case in payload["cases"]] == expected
    assert payload["mode"] == "cases"
    with pytest.raises(ReferenceFailed, match="fails on input 1: ZeroDivisionError"):
        grader.record_cases(checker=inputs(), reference="def f(x):\n    return 1 // (x - 2)")
    with pytest.raises(ReferenceFailed, match="not a plain value"):
        grader.record_cases(checker=inputs(), reference="def f(x):\n    return object()")


def test_oracles_of_inputs(grader: Grader) -> None:
    def verdict(reference: str, answer: str, **changes: Any) -> Verdict:
        payload = grader.record_cases(checker=inputs(**changes), reference=reference)
        return grader.grade(kind="code", checker=payload, reply=answer).verdict

    ordered = "def f(x):\n    return [x, 7]"
    assert verdict(ordered, "def f(x):\n    return (7, x, x)", oracle="as_sets") == "pass"
    assert verdict(ordered, "def f(x):\n    return [7, x]") == "fail"
    found = "import re\ndef f(x):\n    return re.match('1', str(x))"
    assert verdict(found, "def f(x):\n    return 'yes' if x == 1 else None", oracle="not_none") == (
        "pass"
    )
    assert verdict(found, "def f(x):\n    return x", oracle="not_none") == "fail"
    near = "def f(x):\n    return x / 3"
    assert verdict(near, "def f(x):\n    return x / 3 + 0.001", atol=0.01) == "pass"
    assert verdict(near, "def f(x):\n    return x / 3 + 0.001") == "fail"
    # x**2 - 4 has two roots, and either is right.
    root = {"oracle": "polynomial_root", "inputs": [[[-4, 0, 1]]], "atol": 1e-4}
    assert verdict("def f(c):\n    return 2.0", "def f(c):\n    return -2", **root) == "pass"
    assert verdict("def f(c):\n    return 2.0", "def f(c):\n    return 1.9", **root) == "fail"
    cheat = "def f(c):\n    return float('nan')"
    assert verdict("def f(c):\n    return 2.0", cheat, **root) == "fail"


def test_cases_come_back_as_they_are_and_unknown_modes_do_not(grader: Grader) -> None:
    cases = {"mode": "cases", "entry": "f", "cases": [], "comparator": "exact"}
    assert grader.record_cases(checker=cases, reference="") == cases
    for mode in ("inputs", "what"):
        with pytest.raises(ValueError, match="mode"):
            grader.grade(kind="code", checker={"mode": mode, "entry": "f"}, reply="x = 1")
    with pytest.raises(ValueError, match="kind"):
        grader.grade(kind="poem", checker={}, reply="")
