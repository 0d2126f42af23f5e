"""Read an exact rational number out of plain text or LaTeX, or say that it isn't one.

Numbers are compared exactly where both sides are rational: float comparison
holds 1/3**60 and 1/3**61 equal.
"""

from __future__ import annotations

import math
import re
import unicodedata
from fractions import Fraction

# An exact value beyond this is not worth the time: 2**100_000 has 30,000 digits.
_MAX_BITS = 100_000
_MAX_MATHS_CHARS = 2_000


def parse_rational(text: str) -> Fraction | None:
    r"""Return the exact value of a number written in plain text or LaTeX.

    Integers and decimals with thousands separators (outside parentheses, where
    a comma makes a point), ``\frac``, ``/``, products, sums, integer powers,
    factorials, parentheses and a leading sign. None for
    anything else: a unit, a variable, a percentage, a root, and a mixed number
    such as ``1\frac{1}{2}``, whose reading is not certain.
    """
    if len(text) > _MAX_MATHS_CHARS:
        return None
    try:
        return _Rational(bare_maths(text)).value()
    except (_NotRational, ZeroDivisionError, RecursionError):
        return None


class _NotRational(Exception):
    """The text is not a rational number this reader is sure about."""


_TOKEN = re.compile(
    r"\s*(\d{1,3}(?:,\d{3})+(?![\d,])(?:\.\d+)?|\d+\.?\d*|\.\d+|\\frac|\*\*|[-+*/^!(){}])\s*"
)
_SCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋₍₎"
_SCRIPT_RUN = re.compile("|".join(f"[{characters}]+" for characters in _SCRIPTS))
_VULGAR_FRACTION = re.compile("[¼½¾⅐-⅞]")
# \cdot and \times before digits are products; ":" and implicit products are not read.
_REWRITES = (
    (re.compile(r"^\$+|\$+$"), ""),
    (re.compile(r"^\\[(\[]|\\[)\]]$"), ""),
    (re.compile(r"\\[dt]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|displaystyle|!)(?![A-Za-z])"), ""),
    # A space between digits groups thousands or stands between two numbers.
    (re.compile(r"(?<=\d)\\[,;: ](?=\d{3}(?!\d))"), ""),
    (re.compile(r"\\[,;: ](?![A-Za-z])"), " "),
    (re.compile(r"\\(?:cdot|times)(?![A-Za-z])|[×·]"), "*"),
    (re.compile(r"\\div(?![A-Za-z])|÷"), "/"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"[−–]"), "-"),
)


def raised_digits(text: str) -> str:
    """Return ``text`` with raised and lowered characters as ``^`` and ``_``: 10² is not 102."""
    return _SCRIPT_RUN.sub(_as_script, text)


def _as_script(run: re.Match[str]) -> str:
    mark = "^" if run[0][0] in _SCRIPTS[0] else "_"
    plain = unicodedata.normalize("NFKC", run[0]).replace("−", "-")
    return f"{mark}{plain}" if len(plain) == 1 else f"{mark}{{{plain}}}"


def ascii_maths(text: str) -> str:
    """Return ``text`` with raised and lowered characters and fractions such as ½ in LaTeX."""
    return _VULGAR_FRACTION.sub(_as_fraction, raised_digits(text))


def _as_fraction(character: re.Match[str]) -> str:
    above, _, below = unicodedata.normalize("NFKC", character[0]).partition("\u2044")
    return rf"\frac{{{above}}}{{{below}}}"


def bare_maths(text: str) -> str:
    """Return ``text`` without delimiters, spacing commands and a final stop; one sign for each."""
    bare = ascii_maths(text).strip()
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
        self._parentheses = 0

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
            if self._parentheses and "," in token:
                raise _NotRational  # (3,125) is a point
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
        self._parentheses += left == "("
        value = self._sum()
        self._parentheses -= left == "("
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
