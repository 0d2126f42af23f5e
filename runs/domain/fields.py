"""Typed reading of one JSON object: every refusal names the field and the fix."""

from __future__ import annotations

import ast
import difflib
import math
import warnings
from collections.abc import Collection, Mapping
from typing import Any


class BadField(Exception):
    """One field of a row can't be used.

    Attributes:
        field: dotted name, such as ``checker.cases[2].args``; empty for the whole row.
        reason: what is wrong with it.
        fix: what to write instead.
    """

    def __init__(self, field: str, reason: str, fix: str) -> None:
        super().__init__(f"{field}: {reason}. {fix}" if field else f"{reason}. {fix}")
        self.field = field
        self.reason = reason
        self.fix = fix


_NAMES = {
    bool: "true or false",
    str: "text",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def json_type(value: Any) -> str:
    """Return the everyday name of ``value``'s JSON type."""
    return _NAMES.get(type(value), type(value).__name__)


def required(row: Mapping[str, Any], name: str, *, where: str = "") -> Any:
    """Return ``row[name]``.

    Raises:
        BadField: the field is missing.
    """
    if name not in row:
        raise BadField(where + name, "is missing", f'Add "{name}".')
    return row[name]


def text(row: Mapping[str, Any], name: str, *, where: str = "", default: str | None = None) -> str:
    """Return the text of ``row[name]``, which may be empty only if ``default`` is.

    Raises:
        BadField: missing without a default, not text, blank, or not storable as UTF-8.
    """
    if default is not None and row.get(name) is None:
        return default
    value = required(row, name, where=where)
    check_text(value, field=where + name)
    if not value.strip() and default != "":
        raise BadField(where + name, "is blank", "Write the text, or leave the whole task out.")
    return str(value)


def check_text(value: Any, *, field: str) -> None:
    """Check that ``value`` is text that a database can hold.

    Raises:
        BadField: not text, or holds NUL or half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise BadField(field, f"must be text, not {json_type(value)}", "Put it in double quotes.")
    if "\0" in value:
        raise BadField(field, "holds a NUL character", "Remove \\u0000.")
    try:
        value.encode()
    except UnicodeEncodeError:
        fix = "Write the character itself or both halves of the pair."
        raise BadField(field, "holds half of a surrogate pair", fix) from None


def texts(
    row: Mapping[str, Any], name: str, *, where: str = "", distinct: bool = True
) -> tuple[str, ...]:
    """Return the list of texts in ``row[name]``; missing or null is an empty one.

    Raises:
        BadField: not a list, or an entry is not text, is blank or, where they
            must be ``distinct``, comes twice.
    """
    value = row.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        raise BadField(
            where + name, f"must be a list of texts, not {json_type(value)}", 'Write ["..."].'
        )
    for index, entry in enumerate(value):
        field = f"{where}{name}[{index}]"
        check_text(entry, field=field)
        if not entry.strip():
            raise BadField(field, "is blank", "Remove it.")
        if distinct and entry in value[:index]:
            raise BadField(field, f"{entry!r} comes twice", "Keep one of them.")
    return tuple(value)


def number(
    row: Mapping[str, Any],
    name: str,
    *,
    where: str = "",
    least: float = -math.inf,
    most: float = math.inf,
    default: float | None = None,
) -> int | float:
    """Return the finite number ``row[name]`` within ``least`` to ``most``.

    Raises:
        BadField: missing without a default, not a number (true and false are none),
            not finite or out of range.
    """
    if default is not None and row.get(name) is None:
        return default
    value = required(row, name, where=where)
    if isinstance(value, bool) or not isinstance(value, int | float):
        fix = "Write it without quotes."
        raise BadField(where + name, f"must be a number, not {json_type(value)}", fix)
    if isinstance(value, float) and not math.isfinite(value):
        raise BadField(where + name, "must be finite", "Write a plain number.")
    if not least <= value <= most:
        limits = f"{least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
        raise BadField(where + name, f"is {value:g}", f"Choose {limits}.")
    return value


def chosen(
    row: Mapping[str, Any],
    name: str,
    *,
    among: Collection[str],
    where: str = "",
    default: str | None = None,
) -> str:
    """Return ``row[name]``, one of the words ``among``.

    Raises:
        BadField: missing without a default, or another word (with the nearest one).
    """
    value = text(row, name, where=where, default=default)
    if value not in among:
        near = difflib.get_close_matches(value, list(among), n=1)
        hint = f' Did you mean "{near[0]}"?' if near else ""
        raise BadField(
            where + name, f"{value!r} is unknown", f"Choose one of {', '.join(among)}.{hint}"
        )
    return value


def mapping(row: Mapping[str, Any], name: str, *, where: str = "") -> Mapping[str, Any]:
    """Return the object ``row[name]``.

    Raises:
        BadField: missing or not an object.
    """
    value = required(row, name, where=where)
    if not isinstance(value, dict):
        raise BadField(
            where + name, f"must be an object, not {json_type(value)}", 'Write {"...": ...}.'
        )
    return value


def listed(row: Mapping[str, Any], name: str, *, where: str = "") -> list[Any]:
    """Return the list ``row[name]``, which may not be empty.

    Raises:
        BadField: missing, not a list, or empty.
    """
    value = required(row, name, where=where)
    if not isinstance(value, list):
        raise BadField(where + name, f"must be a list, not {json_type(value)}", "Write [...].")
    if not value:
        raise BadField(where + name, "is empty", "Give at least one entry.")
    return value


def only(row: Mapping[str, Any], names: Collection[str], *, where: str = "") -> None:
    """Check that ``row`` has no field but ``names``: a misspelt field is never dropped.

    Raises:
        BadField: an unknown field, with the nearest known one.
    """
    for name in row:
        if name not in names:
            near = difflib.get_close_matches(name, list(names), n=1)
            hint = f'Did you mean "{near[0]}"?' if near else f"Known: {', '.join(names)}."
            raise BadField(where + name, "is no field of this format", hint)


def identifier(row: Mapping[str, Any], name: str, *, where: str = "") -> str:
    """Return ``row[name]``, a Python name.

    Raises:
        BadField: missing, not text or not a Python name.
    """
    value = text(row, name, where=where)
    if not value.isidentifier():
        fix = "Write the function's name alone, without brackets."
        raise BadField(where + name, f"{value!r} is no Python name", fix)
    return value


def parsed(source: str, *, field: str) -> ast.Module:
    """Return the syntax tree of Python ``source``; nothing is run.

    Raises:
        BadField: ``source`` is no valid Python.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a doubtful escape is the author's business
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        place = f" in its line {line}" if line else ""
        reason = f"is no valid Python{place}: {getattr(error, 'msg', error)}"
        raise BadField(field, reason, "Correct the source.") from None


def names_defined(tree: ast.Module) -> set[str]:
    """Return the names that a module binds at its top level (functions, classes, assignments)."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((a.asname or a.name).split(".")[0] for a in node.names)
    return names
