"""Comparators: values, rational numbers, texts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.checking import (
    Verdict,
    exact,
    maths_certainly_differs,
    maths_text_matches,
    normalise_text,
    number_matches,
    python_eq,
    text_matches,
)
from runs.domain.rationals import parse_rational

NAN, INF = math.nan, math.inf


def test_verdicts_are_the_seven_codes() -> None:
    codes = "pass fail timeout memory output_limit no_result infra_error"
    assert [verdict.value for verdict in Verdict] == codes.split()


@pytest.mark.parametrize("equal", [python_eq, exact])
@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ([], [2.5], False),
        (2.5, [2.5], False),
        ([0.30000000000000004], [0.3], True),
        ([1, 2.0000001], [1, 2.0], True),
        ("2.5", 2.5, False),
        (None, 0.0, False),
    ],
)
def test_case_A07(equal: Any, got: Any, expected: Any, same: bool) -> None:
    assert equal(expected, got) is same


@pytest.mark.parametrize("equal", [python_eq, exact])
@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        (2.0, 2.000001, True),  # at the tolerance
        (2.0, 2.0000021, False),
        (0.0, -0.0, True),
        (1e10, 1e10 + 4e-6, True),  # two steps of doubles there, 1.9e-6 each
        (1e10, 1e10 + 1e-4, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (INF, INF, True),
        (INF, -INF, False),
        (INF, 1e308, False),
        (1 + 2j, 1 + 2.0000001j, True),
        (1 + 2j, 1 - 2j, False),
        ([NAN, (1, {2})], [NAN, (1, {2})], True),
        ({NAN}, {NAN}, True),
        ({1: 0.1}, {1: 0.10000001}, True),
        ({1: 1}, {1: 1, 2: 2}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], (1, 2), False),
        ([1, 2], [2, 1], False),
        ("a", b"a", False),
        (b"a", b"a", True),
        ([[]], [[], []], False),
        ({0.1}, {0.10000001}, False),  # members are compared without tolerance
        (3, 3.0000001, False),
        (10**400, 10**400, True),
        (1.5, 10**400, False),
        (frozenset({(1, 2)}), frozenset({(1, 2)}), True),
    ],
)
def test_both_comparators(equal: Any, expected: Any, got: Any, same: bool) -> None:
    assert equal(expected, got) is same


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        *[(1, True), (1, 1.0), (1.0, 1), (0, False), ({1}, {True}), ({1: "a"}, {1.0: "a"})],
        *[({1}, frozenset({1})), ([1, [2]], [1, [2.0]]), ({(1, 2)}, {(1, 2.0)}), (1, 1 + 0j)],
    ],
)
def test_python_eq_follows_python_and_exact_wants_the_types(expected: Any, got: Any) -> None:
    assert expected == got
    assert python_eq(expected, got)
    assert not exact(expected, got)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN, PLAIN)
def test_without_floats_python_eq_is_what_python_says(a: Any, b: Any) -> None:
    assert python_eq(a, b) is (a == b)
    assert python_eq(a, a)
    assert exact(a, a)
    assert not exact(a, b) or python_eq(a, b)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", "7"),
        ("-3", "-3"),
        ("$+3$", "3"),
        ("0.50", "1/2"),
        ("1,000,000", "1000000"),
        (r"1{,}234", "1234"),
        (r"\frac{1}{2}", "1/2"),
        (r"\dfrac{-3}{4}", "-3/4"),
        (r"-\tfrac 12", "-1/2"),
        ("3/4", "3/4"),
        (r"3 \cdot 10^{2}", "300"),
        ("2^{10}", "1024"),
        ("(-2)^3", "-8"),
        ("-2^2", "-4"),  # the sign is taken last
        ("2**3**2", "512"),  # powers group to the right
        ("3!!", "720"),  # (3!)!
        (r"\left(1+\frac{1}{2}\right)/3", "1/2"),
        (r"\[ 5 \]", "5"),
        ("5.", "5"),
        ("10²", "100"),  # not 102
        ("10⁻¹²", "1/1000000000000"),
        ("½", "1/2"),
        ("3,125", "3125"),  # a comma groups thousands outside parentheses alone
        ("(3125)", "3125"),
        ("(2)+3,125", "3127"),
        (r"1\,000\ 000", "1000000"),
    ],
)
def test_rational_numbers(text: str, value: str) -> None:
    assert parse_rational(text) == Fraction(value)


def test_rational_numbers_are_exact() -> None:
    assert parse_rational(r"\frac{1}{3^{60}}") == Fraction(1, 3**60) == parse_rational("3^{-60}")
    assert parse_rational(r"\frac{1}{90!}") == Fraction(1, math.factorial(90))


@pytest.mark.parametrize(
    "text",
    [
        *["(3,125)", "(1,234,567)", "((1,000)+1)", r"3\ 4", "1½"],
        *["", "x", "2x", "1,2", "(1,2)", "1,23", "5 cm", r"\sqrt{4}", r"1\frac{1}{2}", r"50\%"],
        *["1/0", "0^{-1}", "2^{1/2}", "2^10", "2^{10000000}", "100000!", "(" * 1500, "9" * 3000],
        *[
            "1 2",
            "()",
            "1+",
            r"\frac{1}",
            "0.3...",
            r"\pi",
            "2^{2^{2^{2^{2^{2}}}}}",
            "10^{-999999}",
        ],
    ],
)
def test_no_rational_number_this_reader_is_sure_of(text: str) -> None:
    assert parse_rational(text) is None


@given(st.fractions())
def test_any_fraction_reads_back(value: Fraction) -> None:
    assert parse_rational(rf"\frac{{{value.numerator}}}{{{value.denominator}}}") == value


def test_texts() -> None:
    assert text_matches(["8:00 PM"], " **8:00  pm.** ")
    assert text_matches(["no", "yes"], "Yes!")
    assert not text_matches(["8:00 PM"], "18:00 PM")
    assert not text_matches([""], "")
    assert normalise_text("“Ａ”") == "a"  # full-width letter and quotes
    assert maths_text_matches(r"\text{Evelyn}", "Evelyn")
    assert maths_text_matches(r"$x + 1$", "x+1")
    assert not maths_text_matches("a", "A")
    assert not maths_text_matches("", "")


def test_raised_digits_are_powers_in_texts() -> None:
    for gold, got in [("102", "10²"), ("32", "3²"), ("x2", "x²"), ("a1", "a₁")]:
        assert not text_matches([gold], got)
        assert not text_matches([got], gold)
        assert not maths_text_matches(gold, got)
    assert text_matches(["10^2"], "10²")
    assert maths_text_matches("x^{10}", "x¹⁰")


def test_a_factorial_keeps_its_mark_and_a_sentence_loses_it() -> None:
    for gold, got in [("5!", "5"), ("5", "5!"), ("(n+1)!", "(n+1)"), ("5!!", "5!")]:
        assert not text_matches([gold], got)
    assert text_matches(["5!"], "5!.")
    assert text_matches(["paris"], "Paris!!")


@pytest.mark.parametrize(
    ("gold", "got", "differ"),
    [
        ("(3,125)", "3125", True),
        ("3125", "(3,125)", True),
        ("(3,125)", r"\left(3,125\right)", False),
        ("1,2", "(1,2)", False),  # whether a list is a point is left to math-verify
        ("4343_6", "4343_7", True),
        ("4343_{6}", "4343_{7}", True),
        ("4343_6", "4343_{6}", False),
        ("1010₂", "1010_3", True),
        ("10_{16}", "10_16", False),
        ("4343_6", "4343", False),  # the question may have named the base
        ("x_1", "x_2", False),  # two names, which math-verify knows apart
        (r"3\log_2 5", r"3\log_3 5", False),
    ],
)
def test_what_certainly_differs(gold: str, got: str, differ: bool) -> None:
    assert maths_certainly_differs(gold, got) is differ


@pytest.mark.parametrize(
    ("checker", "got", "right"),
    [
        ({"answer": 3.2, "abs_tol": 0.01}, "3.21", True),  # the end counts, in decimals
        ({"answer": 3.2, "abs_tol": 0.01}, "3.2101", False),
        ({"answer": 200, "rel_tol": 0.05}, "190", True),
        ({"answer": 200, "rel_tol": 0.05}, "189.9", False),
        ({"answer": -200, "rel_tol": 0.05}, "-210", True),
        ({"low": 1.5, "high": 2}, "1.5", True),
        ({"low": 1.5, "high": 2}, "2.01", False),
    ],
)
def test_numbers_within_tolerance(checker: dict[str, float], got: str, right: bool) -> None:
    assert number_matches(checker, Fraction(got)) is right
