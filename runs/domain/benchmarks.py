"""Read the rows of published benchmarks: EvalPlus, HumanEval, MBPP and MATH-500.

Fields that decide nothing here (``contract``, ``challenge_test_list``,
``source_file`` and the like) are left aside; what is read and what isn't stands
in docs/tasks.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from runs.domain import fields
from runs.domain.checkers import check_program, code_checker, judged_by_test
from runs.domain.fields import BadField
from runs.domain.tasks import CodeMode, Kind, TaskSpec
from runs.domain.values import encode

Row = Mapping[str, Any]


def read_evalplus(row: Row) -> TaskSpec:
    """Return one HumanEval+ or MBPP+ task (EvalPlus' own JSONL) with its inputs.

    The release holds inputs alone: the expected values are what
    ``canonical_solution`` returns, recorded later in the sandbox.

    Raises:
        BadField: a field is missing, of the wrong type or inconsistent.
    """
    key = _key(row, prefix="Mbpp")
    entry = fields.identifier(row, "entry_point")
    prompt, prelude, reference = _completion(row, entry)
    base = _inputs(row, "base_input", key=key)
    if not base:
        raise BadField("base_input", "is empty", "Give at least one list of arguments.")
    judged_by = {
        "inputs": [*base, *_inputs(row, "plus_input", key=key)],
        "atol": fields.number(row, "atol", least=0),
        "comparator": "python_eq",
    }
    oracles = _MBPP_ORACLES if key.startswith("Mbpp/") else _HUMANEVAL_ORACLES
    if entry in oracles:
        judged_by["oracle"] = oracles[entry]
    loose = key.startswith("Mbpp/") and entry in _SECOND_ANSWERS
    return TaskSpec(
        key=key,
        prompt=prompt,
        kind=Kind.CODE,
        checker=code_checker(
            mode=CodeMode.INPUTS, entry=entry, prelude=prelude, judged_by=judged_by
        ),
        reference=reference,
        tags=("loose_oracle",) if loose else (),
    )


def read_humaneval(row: Row) -> TaskSpec:
    """Return one HumanEval task; its ``test`` defines ``check(candidate)``.

    Raises:
        BadField: a field is missing, of the wrong type or inconsistent.
    """
    entry = fields.identifier(row, "entry_point")
    prompt, prelude, reference = _completion(row, entry)
    test = fields.text(row, "test")
    if "check" not in fields.names_defined(fields.parsed(test, field="test")):
        raise BadField("test", "defines no function check", "Define `def check(candidate):`.")
    return TaskSpec(
        key=_key(row, prefix="HumanEval"),
        prompt=prompt,
        kind=Kind.CODE,
        checker=_asserts(entry, prelude, test),
        reference=reference,
    )


def read_mbpp(row: Row) -> TaskSpec:
    """Return one MBPP task (full, sanitized, or the hub's MBPP+ with its ``test``).

    The prompt gets the reference's signature and the first test, because MBPP's
    text alone doesn't say what the function is called.

    Raises:
        BadField: a field is missing, of the wrong type or inconsistent.
    """
    text_field = "text" if "text" in row else "prompt"
    text = fields.text(row, text_field).strip()
    reference = fields.text(row, "code").replace("\r\n", "\n").strip() + "\n"
    tests = [test.strip() for test in fields.texts(row, "test_list", distinct=False)]
    if not tests:
        raise BadField("test_list", "is empty", "Give at least one assert statement.")
    setup = fields.text(row, "test_setup_code", default="").replace("\r\n", "\n")
    imports = fields.texts(row, "test_imports", distinct=False)
    # The hub's MBPP+ repeats test_list within "test": the longer one is the benchmark.
    body = [fields.text(row, "test")] if row.get("test") is not None else [setup, *tests]
    test = "\n".join(part for part in (*imports, *body) if part.strip()) + "\n"
    fields.parsed(test, field="test")
    tree = fields.parsed(reference, field="code")
    entry = _called(tests, defined=fields.names_defined(tree))
    check_program(entry=entry, prelude="", reference=reference)
    return TaskSpec(
        key=_key(row, prefix="mbpp"),
        prompt=f"{text}\n\nSignature: {_signature(tree, entry)}\nExample: {tests[0]}",
        kind=Kind.CODE,
        checker=_asserts(entry, "", test),
        reference=reference,
    )


def read_math500(row: Row) -> TaskSpec:
    """Return one MATH-500 problem; subject and level become tags.

    Raises:
        BadField: a field is missing or of the wrong type.
    """
    tags = []
    if row.get("subject") is not None:
        tags.append("_".join(fields.text(row, "subject").lower().replace("&", "and").split()))
    if row.get("level") is not None:
        tags.append(f"level_{fields.number(row, 'level', least=1, most=5):g}")
    return TaskSpec(
        key=fields.text(row, "unique_id"),
        prompt=fields.text(row, "problem"),
        kind=Kind.MATHS,
        checker={"gold": fields.text(row, "answer")},
        reference=fields.text(row, "solution") if row.get("solution") is not None else None,
        tags=tuple(tags),
    )


def _asserts(entry: str, prelude: str, test: str) -> dict[str, Any]:
    return code_checker(
        mode=CodeMode.ASSERTS, entry=entry, prelude=prelude, judged_by=judged_by_test(test)
    )


def _key(row: Row, *, prefix: str) -> str:
    """Return ``task_id``, of which some releases give the bare number."""
    value = fields.required(row, "task_id")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{prefix}/{value}"
    return fields.text(row, "task_id")


def _completion(row: Row, entry: str) -> tuple[str, str, str]:
    """Return prompt, prelude and reference of a row with ``canonical_solution``.

    In HumanEval the solution continues the prompt, whose imports and helper
    functions a whole-function answer may rely on: they become the prelude. In
    MBPP+ the solution stands alone.
    """
    prompt = fields.text(row, "prompt")
    solution = fields.text(row, "canonical_solution")
    start = _definition_start(prompt, entry)
    if start is None:
        check_program(entry=entry, prelude="", reference=solution)
        if not re.search(rf"\b{entry}\b", prompt):
            tree = fields.parsed(solution, field="canonical_solution")
            prompt = f"{prompt.rstrip()}\n\nSignature: {_signature(tree, entry)}"
        return prompt, "", solution
    reference = prompt + solution
    check_program(entry=entry, prelude=prompt[:start], reference=reference)
    return prompt, prompt[:start].strip() and prompt[:start], reference


def _definition_start(prompt: str, entry: str) -> int | None:
    """Return where the last ``def entry(`` at the left margin starts, or None."""
    at = max(prompt.rfind(f"\ndef {entry}("), prompt.rfind(f"\ndef {entry} ("))
    if at >= 0:
        return at + 1
    return 0 if prompt.startswith((f"def {entry}(", f"def {entry} (")) else None


def _signature(tree: ast.Module, entry: str) -> str:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            return f"def {entry}({ast.unparse(node.args)}){returns}:"
    return entry


def _called(tests: list[str], *, defined: set[str]) -> str:
    """Return the function that the tests call and the reference defines."""
    for index, test in enumerate(tests):
        for node in ast.walk(fields.parsed(test, field=f"test_list[{index}]")):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in defined
            ):
                return node.func.id
    fix = "Make a test call the function by its name."
    raise BadField("test_list", "calls no function that code defines", fix)


def _inputs(row: Row, name: str, *, key: str) -> list[Any]:
    """Return a field of argument lists as tagged values."""
    value = fields.required(row, name)
    if not isinstance(value, list):
        reason = f"must be a list of argument lists, not {fields.json_type(value)}"
        raise BadField(name, reason, "Write [[...], ...], or [] for none.")
    convert = _conversion(key)
    tagged = []
    for index, args in enumerate(value):
        if not isinstance(args, list):
            reason = f"must be a list of arguments, not {fields.json_type(args)}"
            raise BadField(f"{name}[{index}]", reason, "Write [...] around the arguments.")
        try:
            tagged.append([encode(arg) for arg in convert(args)])
        except (TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            fix = f"Compare it with the published {key}."
            raise BadField(f"{name}[{index}]", f"doesn't fit the task: {error}", fix) from None
    return tagged


# MBPP+ stores its inputs as plain JSON, though some functions expect tuples, sets or
# complex numbers; which argument of which task is a fact of the release (EvalPlus 0.3.1,
# Apache-2.0, evalplus/data/mbpp.py), stated here as a table.
Convert = Callable[[list[Any]], list[Any]]


def _each(convert: Callable[[Any], Any]) -> Convert:
    return lambda args: [convert(arg) for arg in args]


def _first(convert: Callable[[Any], Any]) -> Convert:
    return lambda args: [convert(args[0]), *args[1:]]


def _second(convert: Callable[[Any], Any]) -> Convert:
    return lambda args: [args[0], convert(args[1]), *args[2:]]


def _list_of_tuples(value: list[Any]) -> list[Any]:
    return [tuple(item) for item in value]


def _tuple_of_tuples(value: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(item) for item in value)


def _tuple_of_mixed(value: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in value)


def _deep_tuple(value: Any) -> Any:
    return tuple(_deep_tuple(item) for item in value) if isinstance(value, list) else value


def _sets_or_dicts(value: list[Any]) -> list[Any]:
    return [set(item) if isinstance(item, list) and item else {} for item in value]


def _tuple_values(value: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(item) for name, item in value.items()}


_ALL_TUPLES = frozenset((
    2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470,
    560, 579, 596, 616, 630, 726, 740, 744, 809,
))  # fmt: skip
_MBPP_CONVERSIONS: tuple[tuple[Convert, frozenset[int]], ...] = (
    (_each(tuple), _ALL_TUPLES),
    (
        _each(_list_of_tuples),
        frozenset((63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)),
    ),
    (_first(_list_of_tuples), frozenset((75, 413, 444, 753))),
    (_first(tuple), frozenset((250, 307, 405, 446, 617, 720, 763, 808))),
    (_second(tuple), frozenset((106, 750))),
    (_each(_tuple_of_tuples), frozenset((259, 401, 445))),
    (_each(_deep_tuple), frozenset((580, 615, 791))),
    (_each(_tuple_of_mixed), frozenset((278,))),
    (_first(_sets_or_dicts), frozenset((115,))),
    (_first(_tuple_values), frozenset((722,))),
    (_first(complex), frozenset((252,))),
    (lambda args: [float(args[0]), complex(args[1])], frozenset((124,))),
)


def _conversion(key: str) -> Convert:
    prefix, _, number = key.rpartition("/")
    if prefix == "Mbpp" and number.isdecimal():
        for convert, numbers in _MBPP_CONVERSIONS:
            if int(number) in numbers:
                return convert
    return lambda args: args


# How EvalPlus compares where equality won't do (evalplus/eval/_special_oracle.py).
_MBPP_ORACLES = {
    "similar_elements": "as_sets",
    "find_char_long": "as_sets",
    "common_in_nested_lists": "as_sets",
    "extract_singly": "as_sets",
    "larg_nnum": "as_sets",
    "intersection_array": "as_sets",
    "find_dissimilar": "as_sets",
    "Diff": "as_sets",
    "check_str": "not_none",
    "text_match_three": "not_none",
    "text_starta_endb": "not_none",
}
_HUMANEVAL_ORACLES = {"find_zero": "polynomial_root"}
# Here EvalPlus takes a second answer for right beside the reference's; we don't, and tag it.
_SECOND_ANSWERS = ("are_equivalent", "sum_div", "surface_Area", "digit_distance_nums")
