"""Check and complete the ``checker`` object of a task in the product's own format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from runs.domain import fields
from runs.domain.checking import COMPARATORS, DEFAULT_ABS_TOL
from runs.domain.fields import BadField
from runs.domain.tasks import CodeMode, Kind
from runs.domain.values import decode

DEFAULT_TIMEOUT_S = 10
MAX_TIMEOUT_S = 60

_AT = "checker."


def read_checker(row: Mapping[str, Any], *, kind: Kind, reference: str | None) -> dict[str, Any]:
    """Return ``row`` with its defaults filled in.

    ``reference`` is the task's: input cases without expected values need one,
    and a code reference must be valid Python that defines the entry function.

    Raises:
        BadField: a field is missing, unknown, of the wrong type or out of range.
    """
    if kind is Kind.CODE:
        return _code(row, reference)
    return _TEXT_KINDS[kind](row)


def check_tagged(value: Any, *, field: str) -> None:
    """Check that ``value`` is a tagged value (docs/tasks.md), as arguments and results are.

    Raises:
        BadField: a tag is unknown or holds what it can't hold.
    """
    try:
        decode(value)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        fix = 'Write plain JSON or a tag such as {"$tuple": [1, 2]}; docs/tasks.md lists them.'
        raise BadField(field, f"is no value: {error}", fix) from None


def code_checker(
    *,
    mode: CodeMode,
    entry: str,
    prelude: str,
    judged_by: Mapping[str, Any],
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> dict[str, Any]:
    """Return the checker object of a code task; ``judged_by`` holds the mode's own fields."""
    return {
        "mode": mode.value,
        "entry": entry,
        "prelude": prelude,
        "timeout_s": timeout_s,
        **judged_by,
    }


def judged_by_test(test: str) -> dict[str, Any]:
    """Return the fields of ``asserts``: an assert statement compares as Python's == does."""
    return {"test": test, "comparator": "python_eq"}


def check_program(*, entry: str, prelude: str, reference: str | None) -> None:
    """Check by reading alone that the sources parse and that ``entry`` gets defined.

    Raises:
        BadField: a source is no valid Python, or the reference doesn't define ``entry``.
    """
    fields.parsed(prelude, field=_AT + "prelude")
    if reference is None:
        return
    if entry not in fields.names_defined(fields.parsed(reference, field="reference")):
        fix = f"Start it with `def {entry}(...):`, or correct checker.entry."
        raise BadField("reference", f"doesn't define {entry!r}", fix)


def _code(row: Mapping[str, Any], reference: str | None) -> dict[str, Any]:
    mode = CodeMode(fields.chosen(row, "mode", where=_AT, among=tuple(CodeMode)))
    fields.only(row, ("mode", "entry", "prelude", "timeout_s", *_MODE_FIELDS[mode]), where=_AT)
    entry = fields.identifier(row, "entry", where=_AT)
    prelude = fields.text(row, "prelude", where=_AT, default="")
    timeout = fields.number(
        row, "timeout_s", where=_AT, least=0.1, most=MAX_TIMEOUT_S, default=DEFAULT_TIMEOUT_S
    )
    judged_by = _MODES[mode](row)
    if mode is CodeMode.INPUTS and reference is None:
        fix = "Add it: the expected values are what it returns. Or give cases with expected values."
        raise BadField("reference", "is missing", fix)
    check_program(entry=entry, prelude=prelude, reference=reference)
    return code_checker(
        mode=mode, entry=entry, prelude=prelude, judged_by=judged_by, timeout_s=timeout
    )


def _cases(row: Mapping[str, Any]) -> dict[str, Any]:
    cases = fields.listed(row, "cases", where=_AT)
    for index, case in enumerate(cases):
        where = f"{_AT}cases[{index}]."
        if not isinstance(case, dict):
            reason = f"must be an object, not {fields.json_type(case)}"
            raise BadField(where.rstrip("."), reason, 'Write {"args": [...], "expected": ...}.')
        fields.only(case, ("args", "expected"), where=where)
        _check_args(fields.required(case, "args", where=where), field=where + "args")
        expected = fields.required(case, "expected", where=where)
        check_tagged(expected, field=where + "expected")
    return {"cases": cases, "comparator": _comparator(row)}


def _inputs(row: Mapping[str, Any]) -> dict[str, Any]:
    inputs = fields.listed(row, "inputs", where=_AT)
    for index, args in enumerate(inputs):
        _check_args(args, field=f"{_AT}inputs[{index}]")
    atol = fields.number(row, "atol", where=_AT, least=0, default=DEFAULT_ABS_TOL)
    return {"inputs": inputs, "atol": atol, "comparator": _comparator(row)}


def _asserts(row: Mapping[str, Any]) -> dict[str, Any]:
    test = fields.text(row, "test", where=_AT)
    fields.parsed(test, field=_AT + "test")
    return judged_by_test(test)


def _check_args(args: Any, *, field: str) -> None:
    if not isinstance(args, list):
        reason = f"must be a list of arguments, not {fields.json_type(args)}"
        raise BadField(field, reason, "Write [...], also around a single argument.")
    for number, value in enumerate(args):
        check_tagged(value, field=f"{field}[{number}]")


def _comparator(row: Mapping[str, Any]) -> str:
    return fields.chosen(row, "comparator", where=_AT, among=tuple(COMPARATORS), default="exact")


_MODES: Mapping[CodeMode, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    CodeMode.CASES: _cases,
    CodeMode.INPUTS: _inputs,
    CodeMode.ASSERTS: _asserts,
}
_MODE_FIELDS = {
    CodeMode.CASES: ("cases", "comparator"),
    CodeMode.INPUTS: ("inputs", "atol", "comparator"),
    CodeMode.ASSERTS: ("test",),
}


def _maths(row: Mapping[str, Any]) -> dict[str, Any]:
    fields.only(row, ("gold",), where=_AT)
    return {"gold": fields.text(row, "gold", where=_AT)}


def _exact(row: Mapping[str, Any]) -> dict[str, Any]:
    fields.only(row, ("answers",), where=_AT)
    fields.listed(row, "answers", where=_AT)
    return {"answers": list(fields.texts(row, "answers", where=_AT))}


def _choice(row: Mapping[str, Any]) -> dict[str, Any]:
    fields.only(row, ("answer", "options"), where=_AT)
    options = fields.mapping(row, "options", where=_AT)
    if len(options) < 2:
        raise BadField(_AT + "options", f"has {len(options)} entries", "Give at least two.")
    for label in options:
        fields.text(options, label, where=_AT + "options.")
    answer = fields.text(row, "answer", where=_AT)
    if answer not in options:
        fix = f"Choose one of {', '.join(options)}."
        raise BadField(_AT + "answer", f"{answer!r} is none of the options", fix)
    return {"answer": answer, "options": dict(options)}


def _number(row: Mapping[str, Any]) -> dict[str, Any]:
    shape = next((shape for shape in _NUMBER_SHAPES if set(shape) == set(row)), None)
    if shape is None:
        fields.only(row, ("answer", "abs_tol", "rel_tol", "low", "high"), where=_AT)
        fix = 'Write {"answer", "abs_tol"}, {"answer", "rel_tol"} or {"low", "high"}.'
        raise BadField(_AT.rstrip("."), f"has the fields {', '.join(sorted(row)) or 'none'}", fix)
    values = {
        name: fields.number(row, name, where=_AT, least=0 if name.endswith("_tol") else -math.inf)
        for name in shape
    }
    if "low" in values and values["low"] > values["high"]:
        raise BadField(_AT + "low", "is above high", "Swap them.")
    return values


_NUMBER_SHAPES = (("answer", "abs_tol"), ("answer", "rel_tol"), ("low", "high"))

_TEXT_KINDS: Mapping[Kind, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    Kind.MATHS: _maths,
    Kind.EXACT: _exact,
    Kind.CHOICE: _choice,
    Kind.NUMBER: _number,
}
