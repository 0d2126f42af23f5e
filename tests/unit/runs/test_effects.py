"""Effects from counts: definitions, identities, and what is undefined and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.effects import (
    CellCounts,
    Counts,
    NotReportable,
    Prevalence,
    Transition,
    aggregate_lift,
    coverage,
    decompose,
    oae,
    prevalence,
    rae,
    sd_accuracy,
    se_accuracy,
    selection_gap,
    signs_disagree,
    skipped_effect,
    why_not_reportable,
)
from runs.domain.estimates import Estimate, Interval, IntervalMethod, Undefined

# (SE right, SD right, retrieved) of ten tasks.
TEN_TASKS = (
    (1, 1, 1),
    (1, 0, 1),
    (0, 1, 1),
    (0, 1, 1),
    (1, 1, 0),
    (0, 0, 0),
    (1, 0, 0),
    (0, 0, 0),
    (1, 1, 1),
    (0, 0, 1),
)


def counted(tasks: tuple[tuple[int, int, int | None], ...]) -> CellCounts:
    def group(state: int | None) -> Counts:
        return Counts.of(
            Transition.of(se=bool(se), sd=bool(sd)) for se, sd, got in tasks if got == state
        )

    return CellCounts(group(1), group(0), group(None))


def test_transitions_have_the_papers_letters() -> None:
    letters = {
        (se, sd): Transition.of(se=se, sd=sd).letter for se in (True, False) for sd in (True, False)
    }
    assert letters == {
        (True, True): "a",
        (True, False): "b",
        (False, True): "c",
        (False, False): "d",
    }


def test_every_effect_of_ten_tasks() -> None:
    counts = counted(TEN_TASKS)
    assert counts.all == Counts(a=3, b=2, c=2, d=3)
    assert counts.retrieved == Counts(a=2, b=1, c=2, d=1)
    assert counts.skipped == Counts(a=1, b=1, c=0, d=2)
    assert oae(counts=counts).value == 0.0  # (2 - 2) / 10
    assert rae(counts=counts).value == pytest.approx(-100 / 6, abs=1e-12)  # (1 - 2) / 6
    assert skipped_effect(counts=counts).value == 25.0  # (1 - 0) / 4
    # SE right: 3 of 6 retrieved, 2 of 4 skipped; SD right: 4 of 6 and 1 of 4.
    assert aggregate_lift(counts=counts).value == 0.0
    assert selection_gap(counts=counts).value == pytest.approx((4 / 6 - 1 / 4) * 100, abs=1e-12)
    assert coverage(counts=counts).value == 0.6
    assert se_accuracy(counts=counts).value == 0.5
    assert sd_accuracy(counts=counts).value == 0.5


def test_lift_and_gap_are_undefined_when_every_task_retrieved() -> None:
    counts = counted(((1, 0, 1), (0, 1, 1)))
    assert rae(counts=counts) == Estimate(0.0)
    for figure in (aggregate_lift, selection_gap, skipped_effect):
        assert figure(counts=counts) == Estimate(None, Undefined.EVERY_TASK_RETRIEVED)
    parts = decompose(counts=counts)
    assert parts is not None
    assert (parts.retrieved, parts.skipped) == (0.0, None)


def test_rae_is_undefined_and_oae_is_not_when_no_skill_was_returned() -> None:
    counts = counted(((1, 0, 0), (0, 0, 0)))
    assert rae(counts=counts) == Estimate(None, Undefined.NO_SKILL_RETURNED)
    assert aggregate_lift(counts=counts) == Estimate(None, Undefined.NO_SKILL_RETURNED)
    assert oae(counts=counts) == Estimate(50.0)
    assert skipped_effect(counts=counts) == Estimate(50.0)
    assert coverage(counts=counts) == Estimate(0.0)


def test_without_pairs_everything_is_undefined() -> None:
    for figure in (oae, rae, skipped_effect, aggregate_lift, selection_gap, coverage, se_accuracy):
        assert figure(counts=CellCounts()) == Estimate(None, Undefined.NO_PAIRS)
    assert decompose(counts=CellCounts()) is None


def test_unknown_retrieval_counts_in_oae_only() -> None:
    known = counted(TEN_TASKS)
    counts = known + CellCounts(unknown=Counts(b=2))
    assert rae(counts=counts) == rae(counts=known)
    assert aggregate_lift(counts=counts) == aggregate_lift(counts=known)
    assert oae(counts=counts).value == pytest.approx(2 / 12 * 100)  # (4 - 2) / 12
    assert coverage(counts=counts).value == 0.5  # 6 / 12


def test_unknown_retrieval_is_never_called_no_skill_returned() -> None:
    some = CellCounts(skipped=Counts(d=3), unknown=Counts(b=1))
    every = CellCounts(unknown=Counts(b=1, d=1))
    assert rae(counts=some) == Estimate(None, Undefined.RETRIEVAL_UNKNOWN)
    assert rae(counts=every) == Estimate(None, Undefined.RETRIEVAL_UNKNOWN)
    assert coverage(counts=every) == Estimate(None, Undefined.RETRIEVAL_UNKNOWN)
    assert coverage(counts=some) == Estimate(0.0)


def test_pooling_adds_counts_and_never_averages_rates() -> None:
    # +50.0 on 2 pairs and -33.3 on 18: the pooled effect is -5/20, the mean of rates +8.3.
    small = CellCounts(Counts(b=1, d=1))
    large = CellCounts(Counts(c=6, d=12))
    assert rae(counts=small + large).value == -25.0


def test_rounding_reproduces_the_printed_share() -> None:
    counts = CellCounts(Counts(d=23), Counts(d=57))
    share = coverage(counts=counts).value
    assert share is not None
    assert f"{share * 100:.1f}" == "28.7"  # 23/80; 100 * 23 / 80 would print 28.8


@pytest.mark.parametrize(
    ("lift", "effect", "expected"),
    [
        (6.2, -15.6, True),
        (-5.0, 2.5, True),
        (-11.8, 0.0, False),
        (0.0, -20.0, False),
        (1.4, 1.4, False),
        (-0.001, 0.001, True),
    ],
)
def test_signs_disagree_strictly(lift: float, effect: float, expected: bool) -> None:
    assert signs_disagree(lift=Estimate(lift), effect=Estimate(effect)) is expected


def test_signs_of_an_undefined_figure_are_undefined() -> None:
    missing = Estimate(None, Undefined.EVERY_TASK_RETRIEVED)
    assert signs_disagree(lift=missing, effect=Estimate(-3.0)) is None
    assert signs_disagree(lift=Estimate(-3.0), effect=missing) is None


def test_equal_rates_of_different_groups_are_an_exact_zero_lift() -> None:
    # 1/3 and 33/99 are the same rate: no rounding noise may give the lift a sign.
    counts = CellCounts(Counts(b=1, d=2), Counts(a=33, d=66))
    assert aggregate_lift(counts=counts).value == 0.0


def test_reporting_filter() -> None:
    nine = CellCounts(Counts(b=1, d=8), Counts(d=5))
    ten = CellCounts(Counts(b=1, d=9), Counts(d=5))
    full = CellCounts(Counts(b=1, d=9))
    assert why_not_reportable(counts=nine) is NotReportable.FEW_RETRIEVED
    assert why_not_reportable(counts=ten) is None
    assert why_not_reportable(counts=full) is NotReportable.LIFT_UNDEFINED
    assert why_not_reportable(counts=CellCounts(), threshold=0) is NotReportable.FEW_RETRIEVED


def test_prevalence_by_threshold() -> None:
    # Lift 2/12 - 1/2 < 0 < RAE 2/12: opposite signs at n_cond = 12.
    opposite = CellCounts(Counts(b=2, d=10), Counts(a=1, d=1))
    same = CellCounts(Counts(b=2, d=18), Counts(d=2))
    full = CellCounts(Counts(b=2, d=18))  # no lift: leaves the denominator
    cells = [opposite, same, full]
    assert prevalence(cells=cells, threshold=10) == Prevalence(10, 1, 2)
    assert prevalence(cells=cells, threshold=15) == Prevalence(15, 0, 1)


COUNT = st.integers(0, 200)
COUNTS = st.builds(Counts, COUNT, COUNT, COUNT, COUNT)


@given(COUNTS, COUNTS, COUNTS)
def test_oae_is_the_sum_of_its_parts(a: Counts, b: Counts, c: Counts) -> None:
    counts = CellCounts(a, b, c)
    parts = decompose(counts=counts)
    total = oae(counts=counts).value
    if total is None:
        assert parts is None
        return
    assert parts is not None
    found = [part for part in (parts.retrieved, parts.skipped, parts.unknown) if part is not None]
    assert sum(found) == pytest.approx(total, abs=1e-9)
    effect = rae(counts=counts).value
    if effect is not None:
        assert parts.retrieved == pytest.approx(a.n / counts.all.n * effect, abs=1e-9)


@given(COUNTS, COUNTS)
def test_lift_is_gap_plus_rae_minus_skipped_effect(a: Counts, b: Counts) -> None:
    counts = CellCounts(a, b)
    lift, gap = aggregate_lift(counts=counts).value, selection_gap(counts=counts).value
    effect, skipped = rae(counts=counts).value, skipped_effect(counts=counts).value
    if lift is None:
        assert gap is None
        return
    assert gap is not None
    assert effect is not None
    assert skipped is not None
    assert lift == pytest.approx(gap + effect - skipped, abs=1e-9)


@given(COUNTS, COUNTS)
def test_accuracies_differ_by_oae(a: Counts, b: Counts) -> None:
    counts = CellCounts(a, b)
    se, sd = se_accuracy(counts=counts).value, sd_accuracy(counts=counts).value
    if se is not None and sd is not None:
        assert (se - sd) * 100 == pytest.approx(oae(counts=counts).value, abs=1e-9)


def test_counts_refuse_negative_numbers() -> None:
    with pytest.raises(ValueError, match="negative"):
        Counts(a=-1)


def test_an_estimate_is_a_value_or_a_reason() -> None:
    assert Estimate(0.0).value == 0.0
    for value, reason in ((None, None), (1.0, Undefined.NO_PAIRS), (float("nan"), None)):
        with pytest.raises(ValueError, match="estimate"):
            Estimate(value, reason)


def test_an_interval_is_ordered_and_finite() -> None:
    found = Interval(-0.2, 0.1, 0.95, IntervalMethod.TANGO)
    assert found.in_points() == Interval(-20.0, 10.0, 0.95, IntervalMethod.TANGO)
    assert not found.excludes_zero
    assert Interval(0.1, 0.2, 0.95, IntervalMethod.TANGO).excludes_zero
    assert not Interval(0.0, 0.2, 0.95, IntervalMethod.TANGO).excludes_zero
    for low, high, level in ((0.2, 0.1, 0.95), (float("nan"), 1, 0.95), (0, 1, 1.0)):
        with pytest.raises(ValueError, match=r"interval|level"):
            Interval(low, high, level, IntervalMethod.TANGO)
