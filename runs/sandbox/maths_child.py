"""Compare mathematical answers with math-verify, in a process of its own that may be killed.

math-verify's own time limits need signals on the main thread and don't stop
every loop of sympy, so its parent sets the deadline. Two kinds of false accept
of math-verify 0.9 are vetoed here:

* numbers that differ but vanish in fifteen decimals, such as e^-100 and e^-101
  (values are compared relatively, with 60 digits);
* a set for an ordered tuple, and one known unit of length, time, mass or angle
  for another.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Two exact expressions that agree to so many digits are the same number.
_DIGITS = 60
_EXACT_TOLERANCE = 1e-40
# Where one side is a decimal fraction, six decimals (math-verify's own rounding)
# of a number not much below 0.01 agree to this.
_DECIMAL_TOLERANCE = 1e-4

_UNITS = {
    "mm": "mm", "millimeter": "mm", "cm": "cm", "centimeter": "cm", "m": "m", "meter": "m",
    "km": "km", "kilometer": "km", "in": "in", "inch": "in", "inches": "in", "ft": "ft",
    "foot": "ft", "feet": "ft", "yd": "yd", "yard": "yd", "mile": "mile", "mi": "mile",
    "s": "s", "sec": "s", "second": "s", "min": "min", "minute": "min", "h": "h", "hr": "h",
    "hour": "h", "day": "day", "week": "week", "year": "year", "g": "g", "gram": "g", "kg": "kg",
    "kilogram": "kg", "degree": "degree", "rad": "rad", "radian": "rad",
}  # fmt: skip


def serve(send: Callable[[list[Any]], None]) -> None:
    """Answer one JSON request a line (``{"gold", "answer"}``) until input ends."""
    import logging

    logging.disable(logging.CRITICAL)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    compare("$1$", "\\boxed{2}")
    send(["serving"])
    for line in sys.stdin.buffer:
        request = json.loads(line)
        try:
            send(["equal", compare(request["gold"], request["answer"])])
        except (Exception, RecursionError) as error:
            send(["unknown", type(error).__name__])


def compare(gold: str, answer: str) -> bool:
    """Return whether ``answer`` (with its delimiters or box) equals ``gold``; gold comes first.

    The order counts: math-verify reads an interval as the solution of a gold
    inequality, but not the other way round.
    """
    from math_verify import parse, verify

    wanted = parse(gold, parsing_timeout=None)
    given = parse(answer, parsing_timeout=None)
    if _different_shape(gold, answer) or _different_unit(gold, answer):
        return False
    for one in wanted:
        for other in given:
            if verify([one], [other], timeout_seconds=None) and not _differ(one, other):
                return True
    return False


def _bare(text: str) -> str:
    return re.sub(r"^[\s$]+|[\s$]+$|\\(?:left|right)|^\\boxed\{(?=.*\}$)", "", text.strip())


def _different_shape(gold: str, answer: str) -> bool:
    r"""Whether one is a set in braces and the other a tuple or interval."""
    shapes = set()
    for text in (gold, answer):
        bare = _bare(_bare(text))
        shapes.add("set" if bare.startswith("\\{") else "tuple" if bare[:1] in ("(", "[") else "")
    return shapes == {"set", "tuple"}


def _different_unit(gold: str, answer: str) -> bool:
    units = [_unit(gold), _unit(answer)]
    return None not in units and units[0] != units[1]


def _unit(text: str) -> str | None:
    match = re.search(r"\\(?:text|mathrm|mbox)\s*\{\s*([a-z]+)\.?\s*\}", text)
    if match is None:
        return None
    word = match[1]
    return _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))


def _differ(one: Any, other: Any) -> bool:
    """Whether two values that math-verify holds equal are in truth different numbers."""
    from sympy import Basic, Eq, FiniteSet, Interval, MatrixBase, Tuple  # type: ignore[import-untyped]

    if not isinstance(one, Basic | MatrixBase) or not isinstance(other, Basic | MatrixBase):
        return False
    if isinstance(one, MatrixBase) and isinstance(other, MatrixBase):
        return _any_differ(zip(one, other, strict=False))
    one, other = (side.rhs if isinstance(side, Eq) else side for side in (one, other))
    if isinstance(one, Interval) and isinstance(other, Interval):
        return _any_differ([(one.start, other.start), (one.end, other.end)])
    if isinstance(one, Tuple) and isinstance(other, Tuple):
        return _any_differ(zip(one, other, strict=False))
    # A number in braces is read as a set of one.
    many = [list(side) if isinstance(side, FiniteSet | Tuple) else [side] for side in (one, other)]
    if many != [[one], [other]]:
        return any(all(_differ(a, b) for b in many[1]) for a in many[0])
    return _numbers_differ(one, other)


def _any_differ(pairs: Iterable[tuple[Any, Any]]) -> bool:
    return any(_differ(a, b) for a, b in pairs)


def _numbers_differ(one: Any, other: Any) -> bool:
    """Compare numbers relatively; expressions at one point with positive rational coordinates.

    Whatever can't be evaluated, and percentages, which math-verify reads both
    as 9 and as 0.09, are left to its verdict.
    """
    from sympy import Expr, Float, N, Rational, UnevaluatedExpr

    if not isinstance(one, Expr) or not isinstance(other, Expr):
        return False
    if one.has(UnevaluatedExpr) or other.has(UnevaluatedExpr):
        return False
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if symbols and one.free_symbols != other.free_symbols:
        return False
    point = {symbol: Rational(7 + 2 * at, 13 + 5 * at) for at, symbol in enumerate(symbols)}
    tolerance = _DECIMAL_TOLERANCE if one.has(Float) or other.has(Float) else _EXACT_TOLERANCE
    try:
        a, b = (N(side.subs(point).doit(), _DIGITS) for side in (one, other))
        if not (a.is_number and b.is_number and a.is_finite and b.is_finite):
            return False
        return bool(abs(a - b) > tolerance * max(abs(a), abs(b)))
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return False
