"""What a few probed pairs say of the many that are planned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.forecasts import Expected, Probed, binomial_limits, expected_pairs


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [
        # Of none in n the upper limit solves (1 - p)^n = 0.025: 1 - 0.025^(1/3) = 0.70760.
        (0, 3, 0.0, 0.70760),
        (3, 3, 0.29240, 1.0),
        # 1 - (1 - p)^3 = 0.025 gives 0.00840; 3 p^2 - 2 p^3 of 1 - p, = 0.025, gives 0.90570.
        (1, 3, 0.00840, 0.90570),
        (2, 3, 0.09430, 0.99160),
        # Clopper and Pearson's limits of 5 in 10, as printed in tables: 18.71% and 81.29%.
        (5, 10, 0.18709, 0.81291),
    ],
)
def test_the_limits_are_those_of_the_tables(hits: int, of: int, low: float, high: float) -> None:
    assert binomial_limits(hits, of) == (
        pytest.approx(low, abs=1e-5),
        pytest.approx(high, abs=1e-5),
    )


@pytest.mark.parametrize(("hits", "of"), [(-1, 3), (4, 3), (0, 0)])
def test_what_is_no_proportion_is_refused(hits: int, of: int) -> None:
    with pytest.raises(ValueError, match="no proportion"):
        binomial_limits(hits, of)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_limits_enclose_the_share_and_mirror_its_complement(counts: tuple[int, int]) -> None:
    hits, of = counts
    low, high = binomial_limits(hits, of)
    assert 0 <= low <= hits / of <= high <= 1
    mirrored = binomial_limits(of - hits, of)
    assert (1 - high, 1 - low) == (pytest.approx(mirrored[0]), pytest.approx(mirrored[1]))


def test_none_of_three_is_not_told_as_no_pairs() -> None:
    # 0.70760 of 100 pairs.
    found = expected_pairs([Probed(0, 3, 100)])
    assert (found.value, found.low, found.high) == (0, 0, pytest.approx(70.760, abs=1e-3))


def test_groups_hold_at_once_and_those_without_pairs_have_no_part() -> None:
    # Each of two groups has limits at 97.5%: 1 - 0.0125^(1/3) = 0.76792 of 10 pairs, twice.
    two = expected_pairs([Probed(0, 3, 10), Probed(0, 3, 10), Probed(3, 3, 0)])
    assert two.high == pytest.approx(15.3584, abs=1e-4)
    assert expected_pairs([]) == expected_pairs([Probed(1, 3, 0)]) == Expected(0, 0, 0)
