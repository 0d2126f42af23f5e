"""Work out a code task's expected values once, in the sandbox, before anything is graded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runs.domain.checking import DEFAULT_ABS_TOL, Verdict
from runs.sandbox import programs
from runs.sandbox.judging import Details, clean
from runs.sandbox.slots import NoSlot
from runs.sandbox.splitting import NotSplittable, instrument
from runs.sandbox.supervisor import Ending, Run, read_line

# A payload is stored with its task and sent with each grading.
MAX_CASES_CHARS = 4 << 20
# What an oracle does to results before they are compared (EvalPlus' special oracles).
ORACLE_VIEWS = {"as_sets": "set", "not_none": "not_none"}

_Run = Callable[[Mapping[str, Any]], Run]
_Passes = Callable[[Mapping[str, Any]], tuple[Verdict, Details]]


class ReferenceFailed(Exception):
    """The reference solution does not pass its own task's check, so no answer could be judged."""


class HostFailed(Exception):
    """The host could not run a reference: its fault, and no word on the task."""


def record_cases(
    *, checker: Mapping[str, Any], reference: str, run: _Run, passes: _Passes
) -> dict[str, Any]:
    """Return ``checker`` in the mode ``cases`` where that is possible, as ``Grader`` has it.

    Args:
        run: runs one request in the sandbox, with generous limits.
        passes: grades the reference with a payload.

    Raises:
        ReferenceFailed: the reference does not pass what was recorded.
        HostFailed: the sandbox failed, so nothing is known of the reference.
        ValueError: the checker's mode is unknown.
    """
    if checker["mode"] == "cases":
        return dict(checker)
    run, passes = _on_a_sound_host(run), _graded_on_a_sound_host(passes)
    if checker["mode"] == "inputs":
        payload = _from_inputs(checker, reference, run)
    elif checker["mode"] == "asserts":
        payload = _from_asserts(checker, run)
    else:
        raise ValueError(f"unknown mode {checker['mode']!r}")
    verdict, details = passes(payload)
    if verdict is not Verdict.PASS and payload["mode"] == "cases" and "test" in checker:
        # The check as published decides whether the task or the split is at fault.
        payload = _whole(checker, "the reference fails the separate cases")
        verdict, details = passes(payload)
    if verdict is not Verdict.PASS and payload["mode"] == "asserts":
        # The check wants more of a result than its plain value.
        payload = {**payload, "checker_isolation": "in_process"}
        verdict, details = passes(payload)
    if verdict is not Verdict.PASS:
        raise ReferenceFailed(f"the reference ends with {verdict}: {details.get('message', '')}")
    return payload


def _on_a_sound_host(run: _Run) -> _Run:
    """Return ``run``, raising ``HostFailed`` where the sandbox and not the program failed."""

    def checked(request: Mapping[str, Any]) -> Run:
        try:
            result = run(request)
        except NoSlot as error:
            raise HostFailed(str(error)) from error
        if result.ending is Ending.HOST:
            raise HostFailed(clean(f"the sandbox failed: {result.reason}"))
        return result

    return checked


def _graded_on_a_sound_host(passes: _Passes) -> _Passes:
    """Return ``passes``, raising ``HostFailed`` instead of an ``infra_error``."""

    def checked(payload: Mapping[str, Any]) -> tuple[Verdict, Details]:
        verdict, details = passes(payload)
        if verdict is Verdict.INFRA_ERROR:
            raise HostFailed(str(details.get("message", "")))
        return verdict, details

    return checked


def _from_asserts(checker: Mapping[str, Any], run: _Run) -> dict[str, Any]:
    prelude = checker.get("prelude", "")
    try:
        test = instrument(checker["test"], entry=checker["entry"], prelude=prelude)
        recorded = _recorded(run(programs.record(test=test, prelude=prelude)))
    except NotSplittable as reason:
        return _whole(checker, str(reason))
    half = len(recorded) // 2
    if recorded[:half] != recorded[half:]:
        return _whole(checker, "the check uses again what a program may have changed")
    cases = [_case(*message[1:]) for message in recorded[:half]]
    return _payload(checker, cases, comparator="python_eq")


def _recorded(run: Run) -> list[list[Any]]:
    """Return the cases an instrumented check reported, those of both its runs.

    Raises:
        NotSplittable: it ended otherwise, or reported something without a tagged form.
    """
    lines = [read_line(line) or ["unreadable"] for line in run.results.split(b"\n")[:-1]]
    if run.ending is not Ending.EXITED or not lines or lines[-1] != ["end"]:
        last = lines[-1] if lines else ["nothing"]
        said = str(last[1]) if len(last) > 1 else run.ending.value
        raise NotSplittable(f"recording ended early: {clean(said)}")
    if len(run.results) > 2 * MAX_CASES_CHARS:
        raise NotSplittable("the cases are too large to be stored")
    return lines[:-1]


def _case(
    args: list[Any], expected: Any, view: str, abs_tol: float | None, comparator: str
) -> dict[str, Any]:
    """Return one case; fields that say nothing special are left out."""
    case = {"args": args, "expected": expected}
    if view:
        case["view"] = view
    if abs_tol is not None and abs_tol != DEFAULT_ABS_TOL:
        case["abs_tol"] = abs_tol
    if comparator != "python_eq":
        case["comparator"] = comparator
    return case


def _from_inputs(checker: Mapping[str, Any], reference: str, run: _Run) -> dict[str, Any]:
    from runs.domain.values import decode

    oracle = checker.get("oracle")
    view = ORACLE_VIEWS.get(oracle, "") if oracle else ""
    inputs = checker["inputs"]
    request = programs.call_all(
        program=reference,
        entry=checker["entry"],
        prelude=checker.get("prelude", ""),
        cases=[([decode(value) for value in args], view) for args in inputs],
    )
    result = run(request)
    lines = [read_line(line) or ["unreadable"] for line in result.results.split(b"\n")[:-1]]
    if len(lines) != len(inputs) + 1 or lines[-1] != ["end"]:
        last = lines[-1] if lines else ["nothing"]
        said = str(last[1]) if len(last) > 1 else result.ending.value
        raise ReferenceFailed(f"the reference fails on input {len(lines) - 1}: {clean(said)}")
    tolerance = max(float(checker.get("atol", 0)), DEFAULT_ABS_TOL)
    cases = [
        _case(args, line[1], view, tolerance, "python_eq")
        for args, line in zip(inputs, lines, strict=False)
    ]
    payload = _payload(checker, cases, comparator=checker.get("comparator", "exact"))
    if oracle and not view:
        payload["oracle"] = oracle
    return payload


def _payload(
    checker: Mapping[str, Any], cases: list[dict[str, Any]], *, comparator: str
) -> dict[str, Any]:
    return {
        "mode": "cases",
        "entry": checker["entry"],
        "prelude": checker.get("prelude", ""),
        "cases": cases,
        "comparator": comparator,
        "timeout_s": checker.get("timeout_s", 10),
    }


def _whole(checker: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """Return a check that stays in one piece, apart from the program it calls."""
    return {**checker, "checker_isolation": "two_processes", "not_split_because": clean(reason)}
