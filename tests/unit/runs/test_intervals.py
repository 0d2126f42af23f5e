"""Intervals and exact tests against worked vectors, closed forms and brute force."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain import intervals
from runs.domain.effects import Counts
from runs.domain.estimates import IntervalMethod
from runs.domain.intervals import (
    TaskFlips,
    TaskMeans,
    clustered_tango,
    design_effect,
    eight_cells,
    holm,
    mcnemar_exact,
    multinomial_percentile,
    sign_flip,
    tango,
    tango_z,
    task_mean_effect,
)
from tests.shared import SHARED, needs_shared

Z = 1.959963984540054

# n, b, c, low, high; each end checked against an independent implementation.
TANGO = (
    (30, 0, 0, -0.11351339317396875, 0.11351339317396875),
    (80, 0, 0, -0.045818129535527094, 0.045818129535527094),
    (30, 30, 0, 0.7729732136520624, 1.0),
    (30, 0, 30, -1.0, -0.7729732136520624),
    (10, 1, 0, -0.20528607984917813, 0.4041500267952385),
    (30, 1, 0, -0.08396383961310103, 0.16670390991409173),
    (44, 11, 2, 0.05038065106528805, 0.3616199815713478),
    (78, 1, 19, -0.3395364492064814, -0.13640358736204006),
    (80, 5, 5, -0.08697214819589336, 0.08697214819589336),
    (64, 2, 12, -0.2757177257111336, -0.048050015601960275),
    (233, 8, 45, -0.2194108052927986, -0.10236367801447177),
    (1000, 80, 110, -0.05724341796713635, -0.00300908973718702),
)


@pytest.mark.parametrize(("n", "b", "c", "low", "high"), TANGO)
def test_tango_vectors(n: int, b: int, c: int, low: float, high: float) -> None:
    found = tango(b=b, c=c, n=n)
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-12)
    assert found.method is IntervalMethod.TANGO


@pytest.mark.parametrize(
    ("n", "b", "c", "delta", "z"),
    [
        (80, 5, 5, 0.05, -1.2035861195886917),
        (78, 1, 19, -0.1, -2.6351112049333714),
        (44, 11, 2, 0.05, 1.964228664230076),
        (30, 0, 0, 0.1, -1.8257418583505536),
    ],
)
def test_tango_score(n: int, b: int, c: int, delta: float, z: float) -> None:
    assert tango_z(b=b, c=c, n=n, delta=delta) == pytest.approx(z, abs=1e-12)


def test_tango_at_an_adjusted_level() -> None:
    found = tango(b=3, c=4, n=80, level=1 - 0.05 / 10)
    assert (found.low, found.high) == pytest.approx(
        (-0.13720417181606331, 0.10893141429973019), abs=1e-12
    )


@pytest.mark.parametrize(("m", "fewest"), [(1, 35), (5, 60), (10, 71), (20, 83), (48, 97)])
def test_fewest_pairs_that_can_show_no_effect_within_ten_points(m: int, fewest: int) -> None:
    level = 1 - 0.05 / m
    assert tango(b=0, c=0, n=fewest, level=level).high <= 0.1
    assert tango(b=0, c=0, n=fewest - 1, level=level).high > 0.1


@given(st.integers(1, 500))
def test_tango_closed_forms(n: int) -> None:
    none, every = tango(b=0, c=0, n=n), tango(b=n, c=0, n=n)
    edge = Z**2 / (n + Z**2)
    assert (none.low, none.high) == pytest.approx((-edge, edge), abs=1e-12)
    assert (every.low, every.high) == pytest.approx(((n - Z**2) / (n + Z**2), 1.0), abs=1e-12)


@st.composite
def tables(draw: st.DrawFn, most: int = 400) -> tuple[int, int, int]:
    n = draw(st.integers(1, most))
    b = draw(st.integers(0, n))
    return b, draw(st.integers(0, n - b)), n


@given(tables())
def test_tango_mirrors_and_contains_the_estimate(table: tuple[int, int, int]) -> None:
    b, c, n = table
    found, mirrored = tango(b=b, c=c, n=n), tango(b=c, c=b, n=n)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found.high, -found.low), abs=1e-12)
    assert -1 <= found.low <= (b - c) / n <= found.high <= 1
    wider = tango(b=b, c=c, n=n, level=0.995)
    assert wider.low <= found.low
    assert wider.high >= found.high


@given(tables(most=150))
def test_tango_ends_are_where_the_score_reaches_z(table: tuple[int, int, int]) -> None:
    b, c, n = table
    found = tango(b=b, c=c, n=n)
    # Just inside the null isn't rejected, just outside it is.
    step = 1e-7
    if found.low > -1 + step:
        assert tango_z(b=b, c=c, n=n, delta=found.low - step) > Z
        assert tango_z(b=b, c=c, n=n, delta=found.low + step) < Z
    if found.high < 1 - step:
        assert tango_z(b=b, c=c, n=n, delta=found.high + step) < -Z
        assert tango_z(b=b, c=c, n=n, delta=found.high - step) > -Z


@given(tables(most=100), st.floats(1.0, 5.0))
def test_tango_takes_fractional_counts(table: tuple[int, int, int], g: float) -> None:
    b, c, n = table
    found, whole = tango(b=b / g, c=c / g, n=n / g), tango(b=b, c=c, n=n)
    assert found.low <= whole.low + 1e-9
    assert found.high >= whole.high - 1e-9


@pytest.mark.parametrize(
    ("n", "pb", "pc", "expected"),
    [
        (30, 0.01, 0.05, 0.9966065163311492),
        (30, 0.05, 0.1, 0.9672406408904327),
        (30, 0.25, 0.25, 0.9524541470512442),
        (30, 0.3, 0.0, 0.9297925092157686),
    ],
)
def test_exact_coverage_of_tango(n: int, pb: float, pc: float, expected: float) -> None:
    rest = 1 - pb - pc
    coverage = math.fsum(
        math.comb(n, b) * math.comb(n - b, c) * pb**b * pc**c * rest ** (n - b - c)
        for b in range(n + 1)
        for c in range(n + 1 - b)
        if (pc > 0 or c == 0) and _covers(b, c, n, pb - pc)
    )
    assert coverage == pytest.approx(expected, abs=1e-9)


def _covers(b: int, c: int, n: int, delta: float) -> bool:
    found = tango(b=b, c=c, n=n)
    return found.low <= delta <= found.high


def test_tango_refuses_what_is_no_table() -> None:
    for b, c, n in ((1, 1, 1), (-1, 0, 5), (0, 0, 0), (0, 0, -3), (0, 0, math.nan)):
        with pytest.raises(ValueError, match="not the counts"):
            tango(b=b, c=c, n=n)
    with pytest.raises(ValueError, match="level"):
        tango(b=0, c=0, n=3, level=1.0)


# --- the paper's interval --------------------------------------------------------------------


def test_percentile_interval_is_a_point_without_flips() -> None:
    found = multinomial_percentile(b=0, c=0, n=30)
    assert (found.low, found.high) == (0.0, 0.0)  # why it isn't the default
    assert found.method is IntervalMethod.MULTINOMIAL_PERCENTILE


def test_percentile_interval_is_fresh_each_call() -> None:
    first = multinomial_percentile(b=2, c=12, n=64)
    multinomial_percentile(b=9, c=1, n=20)
    assert multinomial_percentile(b=2, c=12, n=64) == first
    assert first.in_points().low == -26.5625
    assert first.in_points().high == -4.6875
    with pytest.raises(ValueError, match="not the counts"):
        multinomial_percentile(b=0, c=0, n=0)


def test_eight_cells_follow_their_definitions() -> None:
    retrieved, skipped = Counts(a=30, b=4, c=9, d=17), Counts(a=8, b=1, c=2, d=9)
    found = eight_cells(retrieved=retrieved, skipped=skipped)
    assert found.dropped == 0
    # The same resampling written out for one figure.
    cells = np.array([30, 4, 9, 17, 8, 1, 2, 9])
    draws = np.random.default_rng(42).multinomial(80, cells / 80, size=20_000)
    gap = draws[:, [0, 2]].sum(1) / draws[:, :4].sum(1)
    gap = gap - draws[:, [4, 6]].sum(1) / draws[:, 4:].sum(1)
    low, high = np.quantile(gap, [0.025, 0.975])
    assert (found.intervals["selection_gap"].low, found.intervals["selection_gap"].high) == (
        low,
        high,
    )
    expected = {
        "aggregate_lift": 34 / 60 - 9 / 20,
        "selection_gap": 39 / 60 - 10 / 20,
        "skipped_effect": -1 / 20,
        "retrieved_part": -5 / 80,
        "skipped_part": -1 / 80,
    }
    assert set(found.intervals) == set(expected)
    for name, value in expected.items():
        assert found.intervals[name].low < value < found.intervals[name].high


def test_unknown_pairs_are_resampled_with_the_others() -> None:
    retrieved, skipped = Counts(a=10, b=20), Counts(a=5, d=5)
    without = eight_cells(retrieved=retrieved, skipped=skipped).intervals
    # No unknown pairs: the very same draws.
    assert eight_cells(retrieved=retrieved, skipped=skipped, unknown=Counts()).intervals == without
    found = eight_cells(retrieved=retrieved, skipped=skipped, unknown=Counts(a=40, d=20)).intervals
    # 20 of 100: +-1.96 sqrt(.2 * .8 / 100) = .078; of the 40 alone it would be about .5.
    part = found["retrieved_part"]
    assert (part.low, part.high) == (pytest.approx(0.12, abs=0.01), pytest.approx(0.28, abs=0.01))
    assert without["retrieved_part"].low > 0.3


# --- several tests ---------------------------------------------------------------------------


def test_holm_follows_its_definition() -> None:
    # Sorted .01 .02 .03 .5 of four: 4 x .01 = .04, 3 x .02 = .06, 2 x .03 = .06, 1 x .5.
    assert holm(p_values=[0.5, 0.01, 0.03, 0.02]) == pytest.approx((0.5, 0.04, 0.06, 0.06))
    assert holm(p_values=[0.04]) == (0.04,)
    assert holm(p_values=[1.0, 0.9]) == (1.0, 1.0)  # 2 x .9, cut at 1; then not below it
    assert holm(p_values=[]) == ()
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm(p_values=[0.5, 1.5])


@given(st.lists(st.floats(0, 1), max_size=12), st.data())
def test_holm_lies_between_p_and_bonferroni_and_only_falls_as_others_do(
    p_values: list[float], data: st.DataObject
) -> None:
    adjusted = holm(p_values=p_values)
    for p, found in zip(p_values, adjusted, strict=True):
        assert p <= found <= min(1.0, len(p_values) * p)
    if p_values:
        index = data.draw(st.integers(0, len(p_values) - 1))
        lower = [*p_values]
        lower[index] *= data.draw(st.floats(0, 1))
        for before, after in zip(adjusted, holm(p_values=lower), strict=True):
            assert after <= before


def test_eight_cells_are_undefined_when_a_group_is_often_empty() -> None:
    # With 3 of 80 skipped, (77/80)^80 = 4.7% of the resamples have no skipped pair.
    found = eight_cells(retrieved=Counts(a=47, b=3, c=10, d=17), skipped=Counts(a=1, d=2))
    assert found.dropped == pytest.approx(0.047 * 20_000, rel=0.1)
    assert not found.intervals
    # With 7 of 240 it is 0.08%.
    fine = eight_cells(retrieved=Counts(a=108, b=8, c=45, d=72), skipped=Counts(a=2, c=1, d=4))
    assert 0 < fine.dropped < 200
    assert fine.intervals
    with pytest.raises(ValueError, match="at least one pair"):
        eight_cells(retrieved=Counts(), skipped=Counts())


# --- exact McNemar ---------------------------------------------------------------------------


def test_case_D01() -> None:
    table = [(0, 0), (5, 5), (1, 0), (3, 3)]
    assert [mcnemar_exact(b=b, c=c) for b, c in table] == [1.0, 1.0, 1.0, 1.0]


def test_case_D02() -> None:
    expected = {
        (1, 9): 0.021484375,
        (9, 1): 0.021484375,
        (13, 2): 0.00738525390625,
        (2, 14): 0.004180908203125,
        (1, 31): 1.5366822481155396e-08,
    }
    for (b, c), p in expected.items():
        assert mcnemar_exact(b=b, c=c) == pytest.approx(p, rel=1e-12)


def test_mcnemar_below_six_discordant_pairs_cannot_reach_five_per_cent() -> None:
    assert min(mcnemar_exact(b=b, c=5 - b) for b in range(6)) == 0.0625  # 2 / 2^5
    assert mcnemar_exact(b=0, c=6) == 0.03125


def test_a_very_small_p_keeps_its_digits() -> None:
    # 2 (1 + 1000) / 2^1000
    assert mcnemar_exact(b=1, c=999) == pytest.approx(2002 / 2**1000, rel=1e-12)
    with pytest.raises(ValueError, match="negative"):
        mcnemar_exact(b=-1, c=2)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_doubled_binomial_tail(b: int, c: int) -> None:
    n, k = b + c, min(b, c)
    tail = sum(math.comb(n, i) for i in range(k + 1))
    assert mcnemar_exact(b=b, c=c) == pytest.approx(min(1.0, 2 * tail / 2**n), rel=1e-12)
    assert mcnemar_exact(b=b, c=c) == mcnemar_exact(b=c, c=b)


def test_large_tables_agree_with_the_exact_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [(2400, 2550), (10, 4000), (1, 2), (0, 30)]
    exact = [mcnemar_exact(b=b, c=c) for b, c in tables]
    monkeypatch.setattr(intervals, "_EXACT_DISCORDANT", 0)
    assert [mcnemar_exact(b=b, c=c) for b, c in tables] == pytest.approx(exact, rel=1e-9)


# --- several pairs a task --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([3, -1, 2, 0, 1], 6 / 16),
        ([-5, -3, -2, -4, 1, -1, -3, 0], 6 / 128),
        ([1] * 2 + [-1] * 12 + [0] * 50, 212 / 2**14),
        ([0, 0, 0], 1.0),
        ([2] * 6, 2 / 64),
        ([], 1.0),
        ([3, -3], 1.0),
        # Task means -.4, -.25, -.5, -.2, .2, -.75 over their common denominator 20.
        ([0, -8, -5, -10, -4, 4, 0, -15], 6 / 64),
    ],
)
def test_sign_flip_vectors(differences: list[int], p: float) -> None:
    assert sign_flip(differences=differences) == p


@given(st.lists(st.integers(-6, 6), max_size=9))
def test_sign_flip_is_the_full_enumeration(differences: list[int]) -> None:
    moving = [d for d in differences if d]
    observed = abs(sum(moving))
    extreme = sum(
        abs(sum(sign * d for sign, d in zip(signs, moving, strict=True))) >= observed
        for signs in itertools.product((1, -1), repeat=len(moving))
    )
    assert sign_flip(differences=differences) == extreme / 2 ** len(moving)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40))
def test_sign_flip_with_one_pair_a_task_is_exact_mcnemar(b: int, c: int, ties: int) -> None:
    differences = [1] * b + [-1] * c + [0] * ties
    assert sign_flip(differences=differences) == pytest.approx(mcnemar_exact(b=b, c=c), rel=1e-12)


def test_sign_flip_by_floats_agrees_with_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    differences = [(7 * i) % 11 - 5 for i in range(300)] + [4] * 12
    exact = sign_flip(differences=differences)
    monkeypatch.setattr(intervals, "_EXACT_CONVOLUTION", 0)
    assert sign_flip(differences=differences) == pytest.approx(exact, rel=1e-10)


def flips(pairs: Sequence[int], won: Sequence[int], lost: Sequence[int]) -> list[TaskFlips]:
    return [TaskFlips(*counts) for counts in zip(pairs, won, lost, strict=True)]


PAIRS = (5, 5, 4, 5, 3, 5, 5, 2, 5, 5, 5, 4)


def test_design_effect_of_repeated_tasks() -> None:
    tasks = flips(PAIRS, (0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0), (3, 1, 0, 4, 0, 0, 0, 1, 0, 5, 0, 2))
    assert design_effect(tasks=tasks) == pytest.approx(3.007932168350724, abs=1e-12)
    found = clustered_tango(tasks=tasks)
    assert (found.low, found.high) == pytest.approx(
        (-0.4894892143417279, 0.06997609059958104), abs=1e-12
    )
    assert found.method is IntervalMethod.TANGO_DESIGN_EFFECT


def test_design_effect_without_flips_is_the_largest_possible() -> None:
    tasks = flips(PAIRS, [0] * 12, [0] * 12)
    # sum r^2 / R = 245 / 53
    assert design_effect(tasks=tasks) == pytest.approx(245 / 53, abs=1e-12)
    assert clustered_tango(tasks=tasks).high == pytest.approx(0.25096477504967263, abs=1e-12)


def test_one_pair_a_task_needs_no_correction() -> None:
    tasks = flips([1] * 30, [1] * 3 + [0] * 27, [0] * 3 + [1] * 6 + [0] * 21)
    assert design_effect(tasks=tasks) == 1.0
    found, plain = clustered_tango(tasks=tasks), tango(b=3, c=6, n=30)
    assert (found.low, found.high) == (plain.low, plain.high)


def test_a_single_task_counts_as_one() -> None:
    tasks = [TaskFlips(pairs=5, won=3, lost=0), TaskFlips(pairs=0, won=0, lost=0)]
    assert design_effect(tasks=tasks) == 5.0
    with pytest.raises(ValueError, match="at least one pair"):
        design_effect(tasks=[])
    with pytest.raises(ValueError, match="flips"):
        TaskFlips(pairs=1, won=1, lost=1)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_design_effect_stays_in_range(parts: list[tuple[int, int, int]]) -> None:
    tasks = [TaskFlips(pairs=b + c + rest, won=b, lost=c) for b, c, rest in parts]
    total = sum(task.pairs for task in tasks)
    if total:
        g = design_effect(tasks=tasks)
        assert 1 <= g <= sum(task.pairs**2 for task in tasks) / total
        d = sum(task.won - task.lost for task in tasks) / total
        found = clustered_tango(tasks=tasks)
        assert found.low - 1e-12 <= d <= found.high + 1e-12


def test_task_means() -> None:
    se = ((5, 5), (3, 5), (0, 5), (2, 4), (4, 5), (1, 5), (5, 5), (0, 3))
    sd = ((4, 4), (4, 4), (1, 4), (4, 4), (4, 4), (0, 4), (4, 4), (3, 4))
    found = task_mean_effect(
        tasks=[TaskMeans(*one, *other) for one, other in zip(se, sd, strict=True)]
    )
    assert found.mean == pytest.approx(-0.2375, abs=1e-15)  # -1.9 / 8
    assert found.design_effect == pytest.approx(0.41031585047812236, abs=1e-12)
    assert (found.interval.low, found.interval.high) == pytest.approx(
        (-0.46866684459244323, 0.0006639759463387253), abs=1e-12
    )
    assert found.p == 6 / 64
    assert found.interval.method is IntervalMethod.TANGO_TASK_MEAN


def test_task_means_of_identical_tasks_keep_the_plain_interval() -> None:
    found = task_mean_effect(tasks=[TaskMeans(2, 2, 3, 3)] * 10)
    plain = tango(b=0, c=0, n=10)
    assert (found.mean, found.design_effect, found.p) == (0.0, 1.0, 1.0)
    assert (found.interval.low, found.interval.high) == (plain.low, plain.high)
    with pytest.raises(ValueError, match="at least one task"):
        task_mean_effect(tasks=[])
    with pytest.raises(ValueError, match="run in each arm"):
        TaskMeans(0, 0, 1, 2)


def test_z_is_the_normal_quantile() -> None:
    assert NormalDist().inv_cdf(0.975) == pytest.approx(Z, abs=1e-15)


@needs_shared
def test_reference_vectors() -> None:
    vectors = json.loads((SHARED / "spec" / "statistics_vectors.json").read_text("utf-8"))
    for row in vectors["tango"]["rows"]:
        found = tango(b=row["b"], c=row["c"], n=row["n"])
        assert (found.low, found.high) == pytest.approx((row["lo"], row["hi"]), abs=1e-12)
    for row in vectors["paper_bootstrap"]:
        found = multinomial_percentile(b=row["b"], c=row["c"], n=row["n"]).in_points()
        assert (found.low, found.high) == pytest.approx((row["lo"], row["hi"]), abs=1e-9)
        assert mcnemar_exact(b=row["b"], c=row["c"]) == pytest.approx(row["p"], rel=1e-12)
    for row in vectors["signflip"]:
        assert sign_flip(differences=row["S"]) == row["extreme"] / row["patterns"]
    for row in vectors["clustered_tango"]:
        tasks = flips(*([int(count) for count in row[key]] for key in ("r", "b", "c")))
        found = clustered_tango(tasks=tasks)
        assert design_effect(tasks=tasks) == pytest.approx(row["deff"], abs=1e-12)
        assert (found.low, found.high) == pytest.approx((row["lo"], row["hi"]), abs=1e-12)
