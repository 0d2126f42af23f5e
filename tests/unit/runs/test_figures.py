"""Figures as pages show them."""

from __future__ import annotations

import pytest

from runs.domain.report import CellRecord, PairRecord, build_report, paper_example
from runs.views.figures import CellView, cell_view, cell_views, sense_of
from runs.views.live import duration


def view(letters: str, *, retrieved: bool = True) -> CellView:
    """Return the view of a cell whose pairs came to ``letters``."""
    results = {"a": (True, True), "b": (True, False), "c": (False, True), "d": (False, False)}
    pairs = tuple(
        PairRecord(
            pair=str(n),
            task=str(n),
            replicate=1,
            retrieved=retrieved,
            se=results[letter][0],
            sd=results[letter][1],
        )
        for n, letter in enumerate(letters)
    )
    report = build_report(experiment={}, cells=[CellRecord({"sha12": "0" * 12}, pairs)])
    return cell_view("panel", report["cells"][0])


def test_an_effect_has_a_colour_only_when_its_test_finds_it() -> None:
    # 0 won, 12 lost of 20: p = 2 / 2^12; 5 won, 5 lost: p = 1.
    assert view("c" * 12 + "a" * 8).sense == "lost"
    assert view("b" * 12 + "a" * 8).sense == "won"
    assert view("b" * 5 + "c" * 5 + "a" * 10).sense == ""


def test_few_pairs_are_called_not_enough_and_have_no_colour() -> None:
    few = view("c" * 9)  # one below the threshold of 10
    assert (few.enough, few.sense, few.rae.sense) == (False, "", "")
    assert view("c" * 10).enough


def test_cells_are_named_by_what_tells_them_apart_and_only_by_that() -> None:
    pairs = (PairRecord("p", "t", 1, retrieved=True, se=True, sd=False),)
    same = {"model": "m", "benchmark": "tasks@1", "control": "normal", "retriever": "bm25plus"}
    partitions = [{"size": 12, "seed": seed} for seed in (1, 2)]
    report = build_report(
        experiment={},
        cells=[
            CellRecord({**same, "k": k, "partition": partition, "sha12": f"{k}{n}" * 6}, pairs)
            for k in (1, 3)
            for n, partition in enumerate(partitions)
        ],
    )
    assert {view.name for view in cell_views("panel", report)} == {
        f"m · tasks@1 · normal · 12 tasks, seed {seed} · k {k}" for seed in (1, 2) for k in (1, 3)
    }
    alone = build_report(experiment={}, cells=[CellRecord({**same, "k": 3}, pairs)])
    assert [view.name for view in cell_views("panel", alone)] == ["m · tasks@1 · normal"]


def test_a_figure_stands_with_its_method() -> None:
    one = view("c" * 12)
    assert (one.p.method, one.rae_interval.method, one.rae.method) == ("McNemar", "Tango", "")
    assert view("abcd", retrieved=False).p.method == ""


def test_a_cell_without_returned_skills_has_a_reason_and_no_strip() -> None:
    none = view("abcd", retrieved=False)
    assert none.strip is None
    assert none.rae.text == "–"
    assert none.rae.reason == "no skill was returned"
    assert none.remark == "no skill was returned"
    (missing,) = none.missing
    assert "RAE" in missing.labels


def test_a_strip_places_the_interval_on_an_axis_about_zero() -> None:
    example = cell_view("", build_report(experiment={}, cells=[paper_example()])["cells"][0])
    strip = example.strip
    assert strip is not None
    # The lift's interval reaches 52.7 points, so the axis ends at 60; 100 is its middle.
    assert strip.limit == 60
    # RAE -15.88 of 60 is 26.5 of the half axis left of the middle.
    assert strip.value == pytest.approx(73.5, abs=0.05)
    assert strip.low < strip.value < strip.high < 100


def test_quadrants_lead_to_their_pairs_and_an_example_leads_nowhere() -> None:
    cell = view("abbcccdddd")
    counts = [
        q.count
        for q in (
            cell.retrieved.both_pass,
            cell.retrieved.won,
            cell.retrieved.lost,
            cell.retrieved.both_fail,
        )
    ]
    assert counts == [1, 2, 3, 4]
    assert cell.retrieved.lost.url == (
        f"/experiments/panel/cells/{'0' * 12}/?transition=harmful&retrieved=true#pairs"
    )
    assert "retrieved" not in cell.everything.lost.url
    example = cell_view("", build_report(experiment={}, cells=[paper_example()])["cells"][0])
    assert example.url == example.retrieved.lost.url == ""


@pytest.mark.parametrize(
    ("low", "high", "sense"), [(0.1, 5, "won"), (-5, -0.1, "lost"), (0, 5, ""), (-5, 0, "")]
)
def test_an_interval_that_touches_zero_has_no_sense(low: float, high: float, sense: str) -> None:
    assert sense_of({"low": low, "high": high}) == sense
    assert sense_of(None) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "less than a minute"),
        (29, "less than a minute"),
        (60, "1 min"),
        (3599, "1 h 0 min"),
        (3_660, "1 h 1 min"),
        (48 * 3600, "2 days 0 h"),
    ],
)
def test_durations_are_said_in_two_units_at_most(seconds: float, words: str) -> None:
    assert duration(seconds) == words
