"""Verdicts, and the comparisons that decide them: values, rational numbers, short answers.

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


# -- rational numbers ------------------------------------------------------------------------

# An exact value beyond this is not worth the time: 2**100_000 has 30,000 digits.
_MAX_BITS = 100_000
_MAX_MATHS_CHARS = 2_000


def parse_rational(text: str) -> Fraction | None:
    r"""Return the exact value of a number written in plain text or LaTeX.

    Integers and decimals with thousands separators, ``\frac``, ``/``, products,
    sums, integer powers, factorials, parentheses and a leading sign. None for
    anything else: a unit, a variable, a percentage, a root, and a mixed number
    such as ``1\frac{1}{2}``, whose reading is not certain.
    """
    if len(text) > _MAX_MATHS_CHARS:
        return None
    try:
        return _Rational(_bare_maths(text)).value()
    except (_NotRational, ZeroDivisionError, RecursionError):
        return None


class _NotRational(Exception):
    """The text is not a rational number this reader is sure about."""


_TOKEN = re.compile(
    r"\s*(\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+\.?\d*|\.\d+|\\frac|\*\*|[-+*/^!(){}])\s*"
)
# \cdot and \times before digits are products; ":" and implicit products are not read.
_REWRITES = (
    (re.compile(r"^\$+|\$+$"), ""),
    (re.compile(r"^\\[(\[]|\\[)\]]$"), ""),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|displaystyle|,|;|!|:| )(?![A-Za-z])"), ""),
    (re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[×·]"), "*"),
    (re.compile(r"\\div(?![A-Za-z])|÷"), "/"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"[−–]"), "-"),
)


def _bare_maths(text: str) -> str:
    bare = text.strip()
    if not bare.endswith(".."):
        bare = bare.removesuffix(".")
    for pattern, replacement in _REWRITES:
        bare = pattern.sub(replacement, bare).strip()
    return bare


class _Rational:
    """A recursive descent over the tokens of one number, with bounded growth."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise _NotRational
            self._tokens.append(match[1])
            at = match.end()
        self._at = 0

    def value(self) -> Fraction:
        if not self._tokens:
            raise _NotRational
        value = self._sum()
        if self._at != len(self._tokens):
            raise _NotRational
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if token == "" or (wanted and token not in wanted):
            raise _NotRational
        self._at += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while self._peek() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            value = _bounded(value + sign * self._product())
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while self._peek() in ("*", "/"):
            times = self._take() == "*"
            factor = self._signed()
            value = _bounded(value * factor if times else value / factor)
        return value

    def _signed(self) -> Fraction:
        if self._peek() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            return sign * self._signed()
        return self._power()

    def _power(self) -> Fraction:
        base = self._postfix()
        if self._peek() not in ("^", "**"):
            return base
        caret = self._take() == "^"
        if self._peek() == "{":
            exponent = self._group("{", "}")
        elif caret and re.fullmatch(r"\d{2,}.*", self._peek()):
            raise _NotRational  # 2^10 is 2^1 0 to TeX and 1024 to people
        else:
            exponent = self._signed()
        return _raised(base, exponent)

    def _postfix(self) -> Fraction:
        value = self._atom()
        while self._peek() == "!":
            self._take()
            if value.denominator != 1 or not 0 <= value <= 5_000:
                raise _NotRational
            value = _bounded(Fraction(math.factorial(int(value))))
        return value

    def _atom(self) -> Fraction:
        token = self._peek()
        if token == "\\frac":
            self._take()
            above, below = self._argument(), self._argument()
            return _bounded(above / below)
        if token == "(":
            return self._group("(", ")")
        if token == "{":
            return self._group("{", "}")
        if token[:1].isdigit() or token[:1] == ".":
            return Fraction(self._take().replace(",", ""))
        raise _NotRational

    def _argument(self) -> Fraction:
        if self._peek() == "{":
            return self._group("{", "}")
        # \frac12 is one half: TeX takes one character at a time.
        digits = self._take()
        if not digits.isdigit():
            raise _NotRational
        if len(digits) > 1:
            self._at -= 1
            self._tokens[self._at] = digits[1:]
        return Fraction(digits[0])

    def _group(self, left: str, right: str) -> Fraction:
        self._take(left)
        value = self._sum()
        self._take(right)
        return value


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise _NotRational
    return value


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise _NotRational
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > _MAX_BITS or (base == 0 and exponent <= 0):
        raise _NotRational
    return base ** int(exponent)


# -- text ------------------------------------------------------------------------------------


def normalise_text(text: str) -> str:
    """Return ``text`` to compare exactly: NFKC, case folded, single spaces, no quotes around it."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(folded.split()).strip(" *_`\"'$“”‘’").rstrip(" .!").strip(" *_`\"'$“”‘’")


def text_matches(answers: Iterable[str], got: str) -> bool:
    """Return whether ``got`` equals one of ``answers`` after ``normalise_text``."""
    normal = normalise_text(got)
    return bool(normal) and any(normalise_text(answer) == normal for answer in answers)


def maths_text_matches(gold: str, got: str) -> bool:
    r"""Return whether two answers are the same text apart from spacing and LaTeX's markup."""
    return bool(_plain_maths(got)) and _plain_maths(gold) == _plain_maths(got)


def _plain_maths(text: str) -> str:
    bare = _bare_maths(text)
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
