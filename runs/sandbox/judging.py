"""Decide a verdict from what came back of the sandbox; here alone expected values are known.

Nothing the sandbox sends is believed. A line is an output to compare, whoever
wrote it; a transcript that stops early is a result that never came.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from runs.domain.checking import COMPARATORS, DEFAULT_ABS_TOL, Verdict
from runs.domain.values import Malformed, decode, hashed_members
from runs.sandbox.supervisor import Ending, Run, read_line

Details = dict[str, Any]
_MAX_TEXT = 400

_ENDINGS = {
    Ending.CPU: (Verdict.TIMEOUT, "used up its processor time"),
    Ending.WALL: (Verdict.TIMEOUT, "did not finish in time"),
    Ending.MEMORY: (Verdict.MEMORY, "used more memory than it may"),
    Ending.OUTPUT: (Verdict.OUTPUT_LIMIT, "wrote more than it may"),
    Ending.HOST: (Verdict.INFRA_ERROR, "the sandbox failed"),
    Ending.EXITED: (Verdict.NO_RESULT, "ended without a complete result"),
}


def judge_cases(run: Run, checker: Mapping[str, Any]) -> tuple[Verdict, Details]:
    """Return the verdict on a program's outputs and the first case it failed, with its input."""
    cases: Sequence[Mapping[str, Any]] = checker["cases"]
    for index, line in enumerate(_lines(run)):
        message = read_line(line) or ["unreadable"]
        if message[0] == "end" and index == len(cases):
            if run.ending is Ending.OUTPUT:
                break
            return Verdict.PASS, {"cases": len(cases)}
        if index >= len(cases):
            break
        verdict, text, got = _judge_line(message, cases[index], checker)
        if verdict is not Verdict.PASS:
            shown = _shown_case(index, checker["entry"], cases[index], got)
            return verdict, {"cases": len(cases), "case": shown, "message": clean(text)}
    return _unfinished(run, len(cases))


def judge_check(run: Run) -> tuple[Verdict, Details]:
    """Return the verdict of a published check that ran beside the program."""
    lines = _lines(run)
    message = (read_line(lines[0]) if lines else None) or ["nothing"]
    if message[0] == "checked" and len(lines) == 1 and run.ending is Ending.EXITED:
        return Verdict.PASS, {}
    if message[0] in ("failed", "raise", "memory"):
        verdict = Verdict.MEMORY if message[0] == "memory" else Verdict.FAIL
        return verdict, {"message": clean(_said(message))}
    return _unfinished(run, None)


def clean(text: str) -> str:
    """Return ``text`` fit to be stored and shown: no NUL, no lone surrogate, no host path."""
    safe = text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\\x00")
    for path in _HOST_PATHS:
        safe = safe.replace(path, "<path>")
    return safe if len(safe) <= _MAX_TEXT else safe[: _MAX_TEXT - 1] + "…"


def _judge_line(
    message: list[Any], case: Mapping[str, Any], checker: Mapping[str, Any]
) -> tuple[Verdict, str, Any]:
    """Return verdict, reason and, where there is one, the value got for one case."""
    kind = message[0]
    if kind == "value" and len(message) == 2:
        try:
            got = decode(message[1], max_hashed=hashed_members(case["expected"]))
        except (Malformed, RecursionError) as error:
            return Verdict.FAIL, f"returned something else: {error}", None
        if _right(case, got, checker):
            return Verdict.PASS, "", got
        return Verdict.FAIL, "returned another value", [got]
    if kind == "memory":
        return Verdict.MEMORY, "used more memory than it may", None
    if kind == "missing":
        return Verdict.FAIL, f"the answer defines no function {checker['entry']}", None
    if kind in ("raise", "type"):
        return Verdict.FAIL, _said(message), None
    return Verdict.NO_RESULT, "wrote something else than results", None


def _right(case: Mapping[str, Any], got: Any, checker: Mapping[str, Any]) -> bool:
    tolerance = case.get("abs_tol", DEFAULT_ABS_TOL)
    oracle = ORACLES.get(checker.get("oracle", ""))
    if oracle is not None:
        return oracle([decode(value) for value in case["args"]], got, tolerance)
    equal = COMPARATORS[case.get("comparator", checker["comparator"])]
    return equal(decode(case["expected"]), got, abs_tol=tolerance)


def _polynomial_root(args: Sequence[Any], got: Any, tolerance: float) -> bool:
    """Whether ``got`` is a root of the polynomial with coefficients ``args[0]``, constant first.

    Source: EvalPlus' oracle for find_zero, any root of which is right.
    """
    if type(got) not in (int, float) or not math.isfinite(got):
        return False
    at = Fraction(got)
    terms = (Fraction(factor) * at**power for power, factor in enumerate(args[0]))
    return abs(sum(terms, Fraction(0))) <= Fraction(tolerance)


ORACLES: Mapping[str, Callable[[Sequence[Any], Any, float], bool]] = {
    "polynomial_root": _polynomial_root,
}


def _lines(run: Run) -> list[bytes]:
    # What follows the last newline was cut short.
    return run.results.split(b"\n")[:-1]


def _said(message: list[Any]) -> str:
    text = str(message[1]) if len(message) > 1 else str(message[0])
    line = message[2] if len(message) > 2 else None
    return f"{text} (line {line} of the answer)" if type(line) is int else text


def _unfinished(run: Run, cases: int | None) -> tuple[Verdict, Details]:
    verdict, text = _ENDINGS[run.ending]
    if run.reason:
        text = f"{text}: {run.reason}"
    if run.ending is Ending.EXITED and run.exit_code > 128:
        text = f"{text} (signal {run.exit_code - 128})"
    details: Details = {"message": clean(text)}
    if cases is not None:
        details["cases"] = cases
    return verdict, details


def _shown_case(index: int, entry: str, case: Mapping[str, Any], got: list[Any] | None) -> Details:
    call = ", ".join(_text_of(decode(value)) for value in case["args"])
    shown: Details = {"index": index, "input": clean(f"{entry}({call})")}
    shown["expected"] = clean(_text_of(decode(case["expected"])))
    if got is not None:
        shown["got"] = clean(_text_of(got[0]))
    return shown


def _text_of(value: Any) -> str:
    try:
        return repr(value)
    except (ValueError, RecursionError):
        return "a value too large to print"


_HOST_PATHS = tuple(
    sorted(
        {str(Path(__file__).resolve().parents[2]), sys.prefix, sys.base_prefix, str(Path.home())}
        - {"/", "/usr"},
        key=len,
        reverse=True,
    )
)
