"""Verdicts, and the comparisons that decide them: values and short answers.

Two comparators judge a program's results. Both compare shape and type class
first and give floats a tolerance of ``DEFAULT_ABS_TOL``:

* ``exact``: types must match, so ``1``, ``1.0`` and ``True`` all differ;
* ``python_eq``: what ``==`` says of plain values, so those three are equal and
  a list still differs from a tuple.

NaN equals NaN in both, because an expected NaN says that NaN is the right
answer; an infinity equals only itself.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any

from runs.domain.rationals import bare_maths, parse_rational, raised_digits

DEFAULT_ABS_TOL = 1e-6
# Above some 10**9 neighbouring doubles lie further apart than the tolerance, and
# sums taken in another order differ by a few of these steps.
_ULPS = 4


class Verdict(StrEnum):
    """A checker's result for one reply.

    ``infra_error`` says that the host failed, not the program: the grade is
    tried again and never counts.
    """

    PASS = "pass"
    FAIL = "fail"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    NO_RESULT = "no_result"
    INFRA_ERROR = "infra_error"


# -- values ----------------------------------------------------------------------------------


def python_eq(expected: Any, got: Any, *, abs_tol: float = DEFAULT_ABS_TOL) -> bool:
    """Return whether plain values are equal as Python's ``==`` has it, floats within ``abs_tol``.

    The tolerance applies where ``expected`` is a float; an expected integer
    accepts only what equals it. Set members and dictionary keys are compared
    without tolerance.
    """
    if _is_number(expected) and _is_number(got):
        return _numbers_equal(expected, got, abs_tol)
    return _same(expected, got, python_eq, _same_class, abs_tol)


def exact(expected: Any, got: Any, *, abs_tol: float = DEFAULT_ABS_TOL) -> bool:
    """Return whether plain values have the same types throughout and are equal, as ``python_eq``.

    Set members and dictionary keys must have the same types, too.
    """
    if type(expected) is not type(got):
        return False
    if _is_number(expected):
        return _numbers_equal(expected, got, abs_tol)
    return _same(expected, got, exact, lambda a, b: type(a) is type(b), abs_tol)


COMPARATORS: Mapping[str, Callable[..., bool]] = {"exact": exact, "python_eq": python_eq}


def _same(
    expected: Any,
    got: Any,
    equal: Callable[..., bool],
    same_class: Callable[[Any, Any], bool],
    abs_tol: float,
) -> bool:
    if not same_class(expected, got):
        return False
    kind = type(expected)
    if kind is list or kind is tuple:
        return len(expected) == len(got) and all(
            equal(a, b, abs_tol=abs_tol) for a, b in zip(expected, got, strict=True)
        )
    typed = equal is exact
    if kind is set or kind is frozenset:
        return _keys(expected, typed) == _keys(got, typed)
    if kind is dict:
        ours = {_key(key, typed): value for key, value in expected.items()}
        theirs = {_key(key, typed): value for key, value in got.items()}
        return ours.keys() == theirs.keys() and all(
            equal(value, theirs[key], abs_tol=abs_tol) for key, value in ours.items()
        )
    return bool(expected == got)


def _same_class(a: Any, b: Any) -> bool:
    sets = (set, frozenset)
    return type(a) is type(b) or (type(a) in sets and type(b) in sets)


def _is_number(value: Any) -> bool:
    return type(value) in (bool, int, float, complex)


def _numbers_equal(expected: Any, got: Any, abs_tol: float) -> bool:
    if type(expected) is complex or type(got) is complex:
        a, b = complex(expected), complex(got)
        return _floats_equal(a.real, b.real, abs_tol) and _floats_equal(a.imag, b.imag, abs_tol)
    if type(expected) is not float:
        return bool(expected == got)
    if not math.isfinite(expected) or (type(got) is float and not math.isfinite(got)):
        return bool(expected == got) or (expected != expected and got != got)
    try:
        return _floats_equal(expected, float(got), abs_tol)
    except OverflowError:
        return False


def _floats_equal(expected: float, got: float, abs_tol: float) -> bool:
    if not (math.isfinite(expected) and math.isfinite(got)):
        return expected == got or (expected != expected and got != got)
    return abs(expected - got) <= abs_tol + _ULPS * math.ulp(expected)


def _keys(members: Iterable[Any], typed: bool) -> set[Any]:
    return {_key(member, typed) for member in members}


def _key(value: Any, typed: bool) -> Any:
    """Return a hashable stand-in for a set member: NaN equals itself, types count if ``typed``."""
    if type(value) is tuple:
        inner: Any = tuple(_key(part, typed) for part in value)
    elif type(value) is frozenset:
        inner = frozenset(_key(part, typed) for part in value)
    elif type(value) is float and value != value:
        inner = "nan"
    else:
        inner = value
    # A tuple always carries a mark, so that no value is taken for a stand-in.
    mark = type(value).__name__ if typed or inner is not value else ""
    return (mark, inner)


# -- text ------------------------------------------------------------------------------------

_WRAPPERS = " *_`\"'$“”‘’"


def normalise_text(text: str) -> str:
    """Return ``text`` to compare exactly: NFKC, case folded, single spaces, no quotes around it.

    Raised digits become powers first, and a factorial keeps its mark.
    """
    folded = unicodedata.normalize("NFKC", raised_digits(text)).casefold()
    return _without_stops(" ".join(folded.split()).strip(_WRAPPERS)).strip(_WRAPPERS)


def _without_stops(text: str) -> str:
    """Return ``text`` without stops at its end; after a number or a bracket ! is a factorial."""
    end = len(text)
    while end and text[end - 1] in " .!":
        start = end - 1
        if text[start] == "!":
            while start and text[start - 1] == "!":
                start -= 1
            if start and (text[start - 1].isdigit() or text[start - 1] in ")]}"):
                break
        end = start
    return text[:end]


def text_matches(answers: Iterable[str], got: str) -> bool:
    """Return whether ``got`` equals one of ``answers`` after ``normalise_text``."""
    normal = normalise_text(got)
    return bool(normal) and any(normalise_text(answer) == normal for answer in answers)


def maths_text_matches(gold: str, got: str) -> bool:
    r"""Return whether two answers are the same text apart from spacing and LaTeX's markup."""
    return bool(_plain_maths(got)) and _plain_maths(gold) == _plain_maths(got)


def maths_certainly_differs(gold: str, got: str) -> bool:
    """Return whether a reader that drops commas and subscripts could hold unequal answers equal.

    A list in parentheses is no number (``(3,125)`` and 3125), and one numeral in
    two number bases is two numbers (``43_6`` and ``43_7``). A base that only one
    side names is left open.
    """
    if parse_rational(gold) is not None and _is_list(got):
        return True
    if _is_list(gold) and parse_rational(got) is not None:
        return True
    bases = _number_base(gold), _number_base(got)
    return None not in bases and bases[0] != bases[1]


def _is_list(text: str) -> bool:
    return re.fullmatch(r"\([^()]*,[^()]*\)", bare_maths(text)) is not None


def _number_base(text: str) -> int | None:
    """Return the base that the last numeral of ``text`` with a subscript names, or None."""
    bare = re.sub(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}", r"\1", bare_maths(text))
    numeral = r"(?<![\w\\])[0-9A-Z]*\d[0-9A-Z]*\s*_\s*(?:\{\s*(\d{1,3})\s*\}|(\d{1,2}))"
    found = re.findall(numeral, bare)
    return int("".join(found[-1])) if found else None


def _plain_maths(text: str) -> str:
    bare = bare_maths(text)
    bare = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", bare)
    # Letter case counts: in mathematics a and A are two names.
    return re.sub(r"\s+", "", unicodedata.normalize("NFKC", bare))


def number_matches(checker: Mapping[str, Any], got: Fraction) -> bool:
    """Return whether ``got`` lies within the checker's tolerance or limits, ends included.

    Worked out in fractions of the decimals as written, so that 3.21 is within
    0.01 of 3.2 although the nearest doubles are not.
    """
    if "low" in checker:
        return _decimal(checker["low"]) <= got <= _decimal(checker["high"])
    answer = _decimal(checker["answer"])
    if "rel_tol" in checker:
        return abs(got - answer) <= _decimal(checker["rel_tol"]) * abs(answer)
    return abs(got - answer) <= _decimal(checker.get("abs_tol", DEFAULT_ABS_TOL))


def _decimal(number: float) -> Fraction:
    return Fraction(repr(number))
