"""Comparing two cells over shared tasks: expected numbers are derived beside each assertion."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.domain import comparing
from runs.domain.comparing import (
    CellAbout,
    CellComparison,
    Comparison,
    Factor,
    LeftOut,
    Match,
    NoInterval,
    ProtocolDiffers,
    SetChange,
    Side,
    TaskNet,
    TaskPair,
    compare,
    compare_cells,
    headline,
    match_cells,
    match_named,
    match_pair,
    notes,
    rae,
    rae_difference_interval,
    verdict,
)
from runs.domain.comparison_render import markdown, text, to_json
from runs.domain.intervals import PMethod
from runs.domain.report import PairRecord

PROTOCOL = {factor.value: "same" for factor in Factor} | {
    "failure_policy": "censor",
    "description": {},
}
# The four ways a pair can come out: (SE passed, SD passed).
LETTERS = {"a": (True, True), "b": (True, False), "c": (False, True), "d": (False, False)}


def about(
    experiment: str, *, library: str = "coding@1", sha: str = "0", **protocol: Any
) -> CellAbout:
    return CellAbout(
        experiment, (sha * 12)[:12], library, "4 tasks, seed 42", {**PROTOCOL, **protocol}
    )


def pair(
    task: int,
    letter: str,
    *,
    side: str,
    skills: dict[str, str] | None = None,
    replicate: int = 1,
    content: str = "",
    sd_run: str = "",
) -> TaskPair:
    """A pair of ``task`` that came to ``letter``; without ``skills`` none was returned."""
    se, sd = LETTERS[letter]
    versions = skills or {}
    return TaskPair(
        task_sha256=f"{content}{task}",
        record=PairRecord(
            pair=f"{side}{task}-{replicate}",
            task=f"t{task:03}",
            replicate=replicate,
            retrieved=bool(versions),
            se=se,
            sd=sd,
            skills=tuple(versions),
        ),
        versions=versions,
        sd_run=sd_run or f"{side}{task}-{replicate}",
    )


ONE = {"two-pointer": "1"}
MATCH = Match(about("old"), about("new", library="coding@2"))


def comparison(*cells: CellComparison) -> Comparison:
    return Comparison("old", "new", (), cells, ())


def cells(old: str, new: str, *, match: Match = MATCH) -> CellComparison:
    """Compare one pair a task: a letter each, upper case where a skill was returned."""
    sides = [
        [
            pair(n, letter.lower(), side=side, skills=ONE if letter.isupper() else {})
            for n, letter in enumerate(letters)
        ]
        for side, letters in (("A", old), ("B", new))
    ]
    return compare_cells(match=match, old=sides[0], new=sides[1])


# --- the protocol -----------------------------------------------------------------


def test_cells_that_differ_in_their_library_alone_are_compared() -> None:
    match = match_pair(old=about("old"), new=about("new", library="coding@2"))
    assert match.differences == ()


def test_every_other_difference_is_named_and_refused_unless_it_is_allowed() -> None:
    old, new = about("old", k=3, model="m"), about("new", k=5, model="n")
    with pytest.raises(ProtocolDiffers) as refused:
        match_pair(old=old, new=new)
    assert [one.factor for one in refused.value.differences] == ["model", "k"]
    assert "k (3 / 5)" in str(refused.value)
    assert "--allow model --allow k" in str(refused.value)
    with pytest.raises(ProtocolDiffers) as still:
        match_pair(old=old, new=new, allowed=["model"])
    assert [one.factor for one in still.value.differences] == ["k"]
    match = match_pair(old=old, new=new, allowed=["model", "k"])
    compared = cells("AB", "BA", match=match)
    assert "A and B also differ in model (m / n); k (3 / 5)" in dict(notes(compared))["allowed"]


def test_several_cells_are_matched_by_protocol_and_the_rest_say_why_not() -> None:
    old = [about("old", sha="1", k=1), about("old", sha="3", k=3), about("old", sha="9", k=9)]
    new = [about("new", sha="3", k=3), about("new", sha="1", k=1), about("new", sha="5", k=5)]
    matching = match_cells(old=old, new=new)
    assert {(m.old.sha12[0], m.new.sha12[0]) for m in matching.matched} == {("1", "1"), ("3", "3")}
    assert [(u.side, u.cell.sha12[0]) for u in matching.unmatched] == [(Side.A, "9"), (Side.B, "5")]
    assert "the nearest differs in k (9 / 3)" in matching.unmatched[0].reason


def test_cells_of_one_protocol_are_told_apart_by_partition_then_by_library() -> None:
    one, two = about("old", sha="1"), replace(about("old", sha="2"), partition="80 tasks, seed 7")
    new = [replace(cell, experiment="new", library="coding@2") for cell in (two, one)]
    found = match_cells(old=[one, two], new=new)
    assert {(m.old.sha12, m.new.sha12) for m in found.matched} == {
        (one.sha12, one.sha12),
        (two.sha12, two.sha12),
    }
    by_slug = match_cells(
        old=[about("old", sha="1", library="x@1"), about("old", sha="2", library="y@1")],
        new=[about("new", sha="3", library="y@2"), about("new", sha="4", library="x@2")],
    )
    assert {(m.old.library, m.new.library) for m in by_slug.matched} == {
        ("x@1", "x@2"),
        ("y@1", "y@2"),
    }


def test_cells_that_could_belong_to_several_belong_to_none() -> None:
    matching = match_cells(
        old=[about("old", sha="1"), about("old", sha="2")], new=[about("new", sha="3")]
    )
    assert matching.matched == ()
    assert len(matching.unmatched) == 3
    assert "name both cells" in matching.unmatched[0].reason


def test_one_cell_each_that_differ_are_refused_and_not_left_unmatched() -> None:
    with pytest.raises(ProtocolDiffers):
        match_cells(old=[about("old", k=1)], new=[about("new", k=2)])


# --- what is shared ---------------------------------------------------------------


def test_won_lost_and_unchanged_are_of_the_runs_with_skills() -> None:
    # SE of A: pass pass fail fail; SE of B: pass fail pass fail.
    found = cells("ABCD", "BCAD")
    assert [p.task for p in found.both_pass] == ["t000"]
    assert [p.task for p in found.lost] == ["t001"]
    assert [p.task for p in found.won] == ["t002"]
    assert [p.task for p in found.both_fail] == ["t003"]
    assert (found.n_shared, found.n_compared, found.n_tasks) == (4, 4, 4)


def test_changed_tasks_and_those_of_one_side_are_listed_and_left_out() -> None:
    old = [
        pair(1, "b", side="A", skills=ONE),
        pair(2, "b", side="A", skills=ONE),
        pair(3, "b", side="A", skills=ONE),
        pair(1, "b", side="A", skills=ONE, replicate=2),
    ]
    new = [
        pair(1, "c", side="B", skills=ONE),
        pair(2, "c", side="B", skills=ONE, content="edited"),
        pair(4, "c", side="B", skills=ONE),
    ]
    found = compare_cells(match=MATCH, old=old, new=new)
    assert found.n_shared == 1
    assert found.changed_tasks == ("t002",)
    assert found.only_old == ("t001, replicate 2", "t003")
    assert found.only_new == ("t004",)
    assert [p.task for p in found.lost] == ["t001"]
    assert "left out: 1 task." in dict(notes(found))["changed_tasks"]


def test_two_pairs_of_one_task_and_replicate_are_refused() -> None:
    twice = [pair(1, "a", side="A"), pair(1, "b", side="A")]
    with pytest.raises(ValueError, match="t001"):
        compare_cells(match=MATCH, old=twice, new=[])


def test_a_shared_pair_without_a_result_is_left_out_and_said() -> None:
    failed = pair(2, "a", side="B", skills=ONE)
    failed = replace(failed, record=replace(failed.record, se=None, se_failure="call"))
    old = [pair(1, "b", side="A", skills=ONE), pair(2, "b", side="A", skills=ONE)]
    new = [pair(1, "c", side="B", skills=ONE), failed]
    found = compare_cells(match=MATCH, old=old, new=new)
    assert (found.n_shared, found.n_compared, len(found.lost)) == (2, 1, 1)
    assert "Left out: 1 shared pair in which" in dict(notes(found))["left_out"]
    # Under the policy incorrect the failed call is a wrong answer.
    incorrect = Match(
        about("old", failure_policy="incorrect"), about("new", failure_policy="incorrect")
    )
    read = compare_cells(match=incorrect, old=old, new=new)
    assert (read.n_compared, len(read.lost)) == (2, 2)


def test_while_a_shared_pair_is_pending_there_are_counts_and_no_figures() -> None:
    waiting = pair(2, "a", side="B", skills=ONE)
    waiting = replace(waiting, record=replace(waiting.record, se=None, se_failure="pending"))
    old = [pair(1, "d", side="A", skills=ONE), pair(2, "b", side="A", skills=ONE)]
    found = compare_cells(match=MATCH, old=old, new=[pair(1, "b", side="B", skills=ONE), waiting])
    assert not found.complete
    assert (len(found.won), found.p, found.own.difference) == (1, None, None)
    assert "so far; figures follow when all have ended" in headline(found)
    # With the guard removed, the same pairs would give figures.
    done = compare_cells(match=MATCH, old=old[:1], new=[pair(1, "b", side="B", skills=ONE)])
    assert done.p is not None
    assert done.own.difference is not None


# --- the test ---------------------------------------------------------------------


def test_the_change_of_the_runs_with_skills_has_exact_mcnemar_p() -> None:
    # 5 won, 1 lost: 2 (C(6,0) + C(6,1)) / 2^6 = 14 / 64.
    found = cells("DDDDDA", "AAAAAD")
    assert found.p == pytest.approx(14 / 64)
    assert found.p_method is PMethod.MCNEMAR_EXACT
    # 8 won, none lost: 2 / 2^8.
    assert cells("DDDDDDDD", "AAAAAAAA").p == pytest.approx(2 / 256)


def test_replicates_of_a_task_are_one_unit_of_the_test() -> None:
    # Two tasks of four replicates each, all won: by pairs p = 2 / 2^8; by tasks 2 / 2^2.
    old = [pair(t, "d", side="A", skills=ONE, replicate=r) for t in (1, 2) for r in range(1, 5)]
    new = [pair(t, "b", side="B", skills=ONE, replicate=r) for t in (1, 2) for r in range(1, 5)]
    found = compare_cells(match=MATCH, old=old, new=new)
    assert found.p == pytest.approx(0.5)
    assert found.p_method is PMethod.SIGN_FLIP_EXACT
    assert "8 shared pairs" in headline(found)
    assert "8 pairs come from 2 tasks" in dict(notes(found))["repeats"]


def test_the_verdict_follows_p_after_holms_correction() -> None:
    pairs = {
        ("old", "1" * 12): [pair(n, "d", side="A", skills=ONE) for n in range(6)],
        ("new", "1" * 12): [pair(n, "b", side="B", skills=ONE) for n in range(6)],
        ("old", "2" * 12): [pair(n, "a", side="A", skills=ONE) for n in range(6)],
        ("new", "2" * 12): [pair(n, "a", side="B", skills=ONE) for n in range(6)],
    }
    matches = [
        Match(about("old", sha=s), about("new", sha=s, library="coding@2")) for s in ("1", "2")
    ]

    def first(those: Sequence[Match]) -> CellComparison:
        matching = comparing.Matching(tuple(those), ())
        return compare(old="old", new="new", matching=matching, pairs=pairs).cells[0]

    # 6 won of 6: p = 2 / 2^6 = .03125; in a family of two .0625.
    assert verdict(first(matches[:1])) == "better"
    assert first(matches).p_adjusted == pytest.approx(0.0625)
    assert verdict(first(matches)) == ""
    assert "not enough evidence" in headline(first(matches))


# --- returned sets ----------------------------------------------------------------


def test_what_became_of_the_returned_skills_is_told_apart() -> None:
    old = [
        pair(1, "d", side="A", skills={"x": "1", "y": "1"}),
        pair(2, "d", side="A", skills={"x": "1", "y": "1"}),
        pair(3, "d", side="A", skills={"x": "1"}),
        pair(4, "a", side="A", skills={"x": "1"}),
        pair(5, "d", side="A"),
        pair(6, "d", side="A"),
    ]
    new = [
        pair(1, "b", side="B", skills={"y": "1", "x": "1"}),  # order means nothing
        pair(2, "b", side="B", skills={"x": "2", "z": "1"}),
        pair(3, "d", side="B", skills={"x": "2"}),
        pair(4, "c", side="B"),
        pair(5, "b", side="B", skills={"x": "2"}),
        pair(6, "d", side="B"),
    ]
    found = compare_cells(match=MATCH, old=old, new=new)
    assert {row.change: (row.pairs, row.won, row.lost) for row in found.sets} == {
        SetChange.SAME: (1, 1, 0),
        SetChange.CHANGED: (2, 1, 0),
        SetChange.ONLY_A: (1, 0, 1),
        SetChange.ONLY_B: (1, 1, 0),
        SetChange.NEITHER: (1, 0, 0),
    }
    changed = {p.task: p for p in found.changed}
    assert set(changed) == {"t002", "t003", "t004", "t005"}
    second = changed["t002"]
    assert (second.added, second.removed, second.edited) == (("z",), ("y",), ("x",))


def test_unknown_retrieval_is_no_change() -> None:
    unknown = pair(1, "b", side="B")
    unknown = replace(unknown, record=replace(unknown.record, retrieved=None))
    found = compare_cells(match=MATCH, old=[pair(1, "d", side="A", skills=ONE)], new=[unknown])
    assert [row.change for row in found.sets] == [SetChange.UNKNOWN]
    assert found.own.difference is None
    assert "B: it is unknown" in str(found.own.reason)


# --- the difference of RAE --------------------------------------------------------


def test_rae_of_each_side_is_on_its_own_returned_pairs_and_on_those_of_both() -> None:
    # A is returned on 1-4: b, c, c, d: (1 - 2) / 4 = -25. B on 1, 2, 5: b, b, c: (2 - 1) / 3.
    found = cells("BCCDaa", "BBadCa")
    assert (found.own.n_old, found.own.n_new) == (4, 3)
    assert found.own.old.value == pytest.approx(-25.0)
    assert found.own.new.value == pytest.approx(100 / 3)
    assert found.own.difference == pytest.approx(100 / 3 + 25)
    # Both were returned on 1 and 2: A b, c = 0; B b, b = 100.
    assert (found.both.n_old, found.both.n_new) == (2, 2)
    assert (found.both.old.value, found.both.new.value) == (0.0, 100.0)
    assert found.both.difference == pytest.approx(100.0)


def test_without_a_returned_skill_on_a_side_there_is_no_difference() -> None:
    found = cells("bc", "BC")
    assert found.own.old.value is None
    assert (found.own.difference, found.own.interval) == (None, None)
    assert found.own.reason == "A: no skill was returned"
    assert "RAE can't be compared" in headline(found)


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        ([], NoInterval.UNDEFINED),
        ([TaskNet(1, 1, 0, 1)], NoInterval.ONE_TASK),
        # The tenth has no returned skill on either side, so nine are resampled.
        (
            [TaskNet(1, 1, 0, 1), TaskNet(0, 1, 1, 1)] * 4
            + [TaskNet(0, 1, 0, 1)]
            + [TaskNet(0, 0, 0, 0)],
            NoInterval.FEW_TASKS,
        ),
        ([TaskNet(0, 1, 0, 1)] * 10, NoInterval.NO_FLIPS),
        ([TaskNet(1, 1, 0, 1)] * 10, NoInterval.NO_VARIATION),
        # One task of 40 has all of B's pairs: it is missing from (39/40)^40 = 36% of resamples.
        ([TaskNet(1, 1, 0, 0)] * 39 + [TaskNet(0, 1, 1, 1)], NoInterval.RESAMPLES_DROPPED),
    ],
)
def test_where_resampling_tells_nothing_there_is_no_interval_but_a_reason(
    tasks: Sequence[TaskNet], why: NoInterval
) -> None:
    interval, reason, dropped = rae_difference_interval(tasks=tasks)
    assert interval is None
    assert reason is why
    assert (dropped > 200) == (why is NoInterval.RESAMPLES_DROPPED)


def test_ten_tasks_have_an_interval_and_nine_of_them_none() -> None:
    ten = [TaskNet(1, 1, 0, 1), TaskNet(0, 1, 1, 1)] * 5
    assert rae_difference_interval(tasks=ten)[0] is not None
    assert rae_difference_interval(tasks=ten[:9])[:2] == (None, NoInterval.FEW_TASKS)


def test_tasks_that_are_their_own_mirror_have_an_interval_that_is_its_own() -> None:
    # For each task there is one with A and B swapped, so that A and B can't be told apart and
    # any interval but a symmetric one would say that they can.
    half = [TaskNet(1, 2, 0, 1), TaskNet(-1, 1, 1, 1), TaskNet(0, 0, 1, 1), TaskNet(1, 3, 0, 2)] * 2
    tasks = [*half, *(task.swapped for task in half)]
    interval, _, _ = rae_difference_interval(tasks=tasks)
    assert interval is not None
    assert interval.low == -interval.high
    # And that of tasks with a difference, read from either side, is one interval with two signs.
    tasks = [*tasks, TaskNet(1, 1, 0, 1)]
    here, _, _ = rae_difference_interval(tasks=tasks)
    there, _, _ = rae_difference_interval(tasks=[task.swapped for task in tasks])
    assert here is not None
    assert there is not None
    assert (here.low, here.high) == (-there.high, -there.low)
    assert here.low != -here.high


@pytest.mark.parametrize(("tasks", "t"), [(10, 2.262157), (20, 2.093024), (121, 1.979930)])
def test_the_tail_is_that_of_students_t_with_the_variances_factor(tasks: int, t: float) -> None:
    # t: printed quantiles .975 of Student's t with 9, 19 and 120 degrees of freedom.
    found = rae._tail(tasks, 0.95)
    expected = NormalDist().cdf(-math.sqrt(tasks / (tasks - 1)) * t)
    assert found == pytest.approx(expected, rel=1e-4)
    assert found < 0.025  # wider than plain percentiles


def test_the_tail_of_many_tasks_is_that_of_plain_percentiles() -> None:
    assert rae._tail(1_000_000, 0.95) == pytest.approx(0.025, abs=1e-6)


def resampled_literally(
    tasks: Sequence[TaskNet], *, draws: int, seed: int, tail: float
) -> tuple[float, float]:
    """Draw whole tasks with replacement, one by one, as the definition says it."""
    chance = random.Random(seed)
    found = []
    for _ in range(draws):
        drawn = chance.choices(tasks, k=len(tasks))
        old_pairs, new_pairs = sum(t.old_pairs for t in drawn), sum(t.new_pairs for t in drawn)
        old_net, new_net = sum(t.old_net for t in drawn), sum(t.new_net for t in drawn)
        found.append(new_net / new_pairs - old_net / old_pairs)
    low, high = np.quantile(found, [tail, 1 - tail])
    return float(low), float(high)


def test_the_interval_is_that_of_resampling_whole_tasks() -> None:
    chance = random.Random(7)
    tasks = [
        TaskNet(
            chance.choice((-2, -1, 0, 0, 1)),
            3,
            chance.choice((-1, 0, 0, 1, 2)),
            chance.choice((2, 3)),
        )
        for _ in range(30)
    ]
    interval, _, dropped = rae_difference_interval(tasks=tasks)
    assert interval is not None
    assert dropped == 0
    # 30 tasks: t of 29 degrees of freedom is 2.04523, so the tail is Phi(-sqrt(30/29) 2.04523).
    low, high = resampled_literally(tasks, draws=20_000, seed=11, tail=0.018754)
    # Two percentiles of 20,000 draws each: their Monte Carlo error is about 1% of the width.
    width = high - low
    assert interval.low == pytest.approx(low, abs=0.04 * width)
    assert interval.high == pytest.approx(high, abs=0.04 * width)


def test_replicates_cluster() -> None:
    # The same 160 net results, as 160 tasks or as 40 tasks whose 4 replicates agree: the latter
    # hold a quarter of the information, so the interval is about twice as wide, and a little
    # more, as 40 tasks are fewer: 2 x (sqrt(40/39) 2.023) / (sqrt(160/159) 1.975) = 2.07.
    apart = [TaskNet(0, 1, n % 2, 1) for n in range(160)]
    together = [TaskNet(0, 4, 4 * (n % 2), 4) for n in range(40)]
    one, _, _ = rae_difference_interval(tasks=apart)
    other, _, _ = rae_difference_interval(tasks=together)
    assert one
    assert other
    ratio = (other.high - other.low) / (one.high - one.low)
    assert 1.9 < ratio < 2.25


def test_shared_runs_without_skills_leave_only_the_runs_with_skills() -> None:
    # On pairs that both sides retrieved, with the same SD run: RAE_B - RAE_A is the difference
    # of SE accuracy. SE of A passes 1 of 4, of B 3 of 4: 50 points.
    old = [pair(n, x, side="A", skills=ONE, sd_run=f"s{n}") for n, x in enumerate("bcdc")]
    new = [pair(n, x, side="B", skills=ONE, sd_run=f"s{n}") for n, x in enumerate("babc")]
    found = compare_cells(match=MATCH, old=old, new=new)
    assert found.own.difference == pytest.approx(50.0)
    assert (found.sd.shared, found.sd.separate, found.sd.differing) == (4, 0, 0)
    assert "share their runs without skills" in dict(notes(found))["sd"]


def test_separate_runs_without_skills_are_said_to_bring_noise() -> None:
    # SD of A: pass, fail; of B: fail, fail.
    found = cells("AB", "BB")
    assert (found.sd.separate, found.sd.differing) == (2, 1)
    assert "1 of 2 came out differently" in dict(notes(found))["sd"]


# --- what is known of the skills ------------------------------------------------------


def test_two_runs_of_the_same_skills_differ_by_chance_and_neither_is_better() -> None:
    same = Match(about("old"), about("new"))
    # 12 won of 12: p = 2 / 2^12, which is evidence of better skills only where they differ.
    found = cells("D" * 12, "B" * 12, match=same)
    assert found.p == pytest.approx(2 / 2**12)
    assert verdict(found) == ""
    assert "what differs is chance" in dict(notes(found))["same_library"]
    assert headline(found).startswith("B won 12 and lost 0")
    assert headline(found).endswith("two runs of the same skills, so a difference is chance")
    assert verdict(cells("D" * 12, "B" * 12)) == "better"
    assert "same_library" not in dict(notes(cells("AB", "BA")))
    # The same skills under another model are compared for the model.
    other = match_pair(old=about("old"), new=about("new", model="n"), allowed=["model"])
    assert verdict(cells("D" * 12, "B" * 12, match=other)) == "better"


@pytest.mark.parametrize("library", [None, "coding"])
def test_unknown_skills_are_neither_the_same_nor_said_to_be_what_won(library: str | None) -> None:
    old, new = (
        replace(about(slug), library=library, library_known=False) for slug in ("old", "new")
    )
    found = cells("DDDDDDA", "BBBBBBA", match=Match(old, new))
    assert "same_library" not in dict(notes(found))
    assert "Which skills A and B searched" in dict(notes(found))["library_unknown"]
    assert headline(found).startswith("B won 6 and lost 0")
    assert to_json(comparison(found))["cells"][0]["same_skills"] is None
    assert "not known to" in text(comparison(found))
    # One known side doesn't tell either.
    half = cells("DA", "BA", match=Match(old, about("new")))
    assert "Which skills A searched" in dict(notes(half))["library_unknown"]


def test_what_won_is_named_by_its_skills_only_where_nothing_else_differs() -> None:
    assert headline(cells("DA", "BA")).startswith("B's skills won 1")
    new = about("new", library="coding@2", model="n")
    allowed = match_pair(old=about("old"), new=new, allowed=["model"])
    assert headline(cells("DA", "BA", match=allowed)).startswith("B won 1")


def test_returned_skills_of_unknown_version_are_not_the_same_texts() -> None:
    # Each case: what A and B returned by version ("" = not known), and what can be said.
    cases: list[tuple[dict[str, str], dict[str, str], SetChange]] = [
        ({"x": "1"}, {"x": "1"}, SetChange.SAME),
        ({"x": ""}, {"x": ""}, SetChange.UNKNOWN),
        ({"x": "1"}, {"x": ""}, SetChange.UNKNOWN),
        ({"x": "1", "y": ""}, {"x": "1", "y": ""}, SetChange.UNKNOWN),
        # A known change is one, whatever else isn't known; so is another slug.
        ({"x": "1", "y": ""}, {"x": "2", "y": ""}, SetChange.CHANGED),
        ({"x": ""}, {"y": ""}, SetChange.CHANGED),
    ]
    old = [pair(n, "d", side="A", skills=case[0]) for n, case in enumerate(cases)]
    new = [pair(n, "b", side="B", skills=case[1]) for n, case in enumerate(cases)]
    found = compare_cells(match=MATCH, old=old, new=new)
    assert [one.change for one in found.won] == [case[2] for case in cases]
    assert found.won[4].edited == ("x",)
    # A skill was returned on both sides, but no row says which.
    nameless = [
        replace(one, record=replace(one.record, retrieved=True))
        for one in (pair(1, "d", side="A"), pair(1, "b", side="B"))
    ]
    said = compare_cells(match=MATCH, old=nameless[:1], new=nameless[1:])
    assert [row.change for row in said.sets] == [SetChange.UNKNOWN]


# --- failed calls ---------------------------------------------------------------------


def without_se(one: TaskPair, why: str) -> TaskPair:
    return replace(one, record=replace(one.record, se=None, se_failure=why))


def without_sd(one: TaskPair, why: str) -> TaskPair:
    return replace(one, record=replace(one.record, sd=None, sd_failure=why))


def test_better_is_said_only_where_it_holds_however_failed_calls_are_read() -> None:
    # A fails 8 tasks and passes 24. B passes the 8; its calls fail on the 24.
    old = [pair(n, "d" if n < 8 else "a", side="A", skills=ONE) for n in range(32)]
    new = [pair(n, "b", side="B", skills=ONE) for n in range(32)]
    failed = [one if n < 8 else without_se(one, "call") for n, one in enumerate(new)]
    found = compare_cells(match=MATCH, old=old, new=failed)
    # Left out: 8 won of 8, p = 2 / 2^8. As wrong: 8 won and 24 lost, which is p = .007 the
    # other way: 2 P(X <= 8), X binomial with 32 throws = 2 x 15,033,173 / 2^32.
    assert [(r.policy, r.n_compared, r.won, r.lost) for r in found.readings] == [
        ("censor", 8, 8, 0),
        ("incorrect", 32, 8, 24),
    ]
    assert found.readings[0].p == pytest.approx(2 / 2**8)
    assert found.readings[1].p == pytest.approx(2 * 15_033_173 / 2**32)
    assert found.p == found.readings[0].p
    assert verdict(found) == ""
    assert "won 8 and lost 0 of 8 shared pairs (24 more left out, p = 0.00781)" in headline(found)
    assert "it depends on how failed calls are read" in headline(found)
    noted = dict(notes(found))
    assert "B: a model call failed after its retries (24)" in noted["left_out"]
    assert "A:" not in noted["left_out"]
    assert "left out: won 8 and lost 0 of 8 (p = 0.00781)" in noted["failure_readings"]
    assert "counted as wrong: won 8 and lost 24 of 32 (p = 0.007)" in noted["failure_readings"]
    # With the guard removed, the reading of its own policy alone would say better.
    assert verdict(replace(found, readings=found.readings[:1])) == "better"
    # Beside it: calls that failed on both sides alike change nothing, and better is said.
    both = [one if n < 8 else without_se(one, "call") for n, one in enumerate(old)]
    assert verdict(compare_cells(match=MATCH, old=both, new=failed)) == "better"
    # And read by the policy incorrect it isn't said to be worse either.
    match = Match(
        about("old", failure_policy="incorrect"),
        about("new", library="coding@2", failure_policy="incorrect"),
    )
    assert verdict(compare_cells(match=match, old=old, new=failed)) == ""


def test_left_out_pairs_are_counted_by_side_and_reason() -> None:
    old = [pair(n, "d", side="A", skills=ONE) for n in range(6)]
    new = [pair(n, "b", side="B", skills=ONE) for n in range(6)]
    old[0], old[1] = without_se(old[0], "call"), without_se(old[1], "host")
    new[1], new[2] = without_se(new[1], "call"), without_sd(new[2], "call")
    found = compare_cells(match=MATCH, old=old, new=new)
    # 0 and 1 have no result with skills; 1 on both sides. 2 is compared, but has no RAE.
    assert found.left_out == LeftOut(2, {"call": 1, "host": 1}, {"call": 1})
    assert found.rae_left_out == LeftOut(1, {}, {"call": 1})
    assert (found.n_compared, found.own.n_old) == (4, 3)
    noted = dict(notes(found))
    assert "Left out: 2 shared pairs" in noted["left_out"]
    assert "No RAE is over 1 of the 4 pairs of won and lost" in noted["rae_left_out"]
    assert "B: a model call failed after its retries (1)" in noted["rae_left_out"]
    data = to_json(comparison(found))["cells"][0]
    assert data["left_out"] == {"pairs": 2, "a": {"call": 1, "host": 1}, "b": {"call": 1}}
    # Failed calls count as wrong: A's 0 becomes won by B; 1 stays out, as its host failed.
    assert [(r["policy"], r["n_compared"], r["n_won"]) for r in data["failure_readings"]] == [
        ("censor", 4, 4),
        ("incorrect", 5, 5),
    ]
    plain = dict(notes(cells("AB", "BA")))
    assert not {"left_out", "rae_left_out", "failure_readings"} & set(plain)


# --- cancelled ------------------------------------------------------------------------


def test_a_cancelled_side_never_promises_figures() -> None:
    waiting = without_se(pair(2, "a", side="B", skills=ONE), "pending")
    old = [pair(1, "d", side="A", skills=ONE), pair(2, "b", side="A", skills=ONE)]
    new = [pair(1, "b", side="B", skills=ONE), waiting]
    cancelled = replace(MATCH.new, cancelled=True)
    found = compare_cells(match=Match(MATCH.old, cancelled), old=old, new=new)
    assert (found.cancelled, found.p, found.own.difference) == ((Side.B,), None, None)
    assert "figures follow" not in headline(found)
    assert headline(found).endswith(
        "B was cancelled before the others ended, so there are no figures"
    )
    assert "1 shared pair never ended" in dict(notes(found))["incomplete"]
    # Where all that is shared had ended before, there are figures as of any other.
    ended = compare_cells(match=Match(MATCH.old, cancelled), old=old[:1], new=new[:1])
    assert (ended.cancelled, ended.complete) == ((), True)
    # And what waits for a side that still runs is waited for.
    running = compare_cells(
        match=Match(replace(MATCH.old, cancelled=True), MATCH.new), old=old, new=new
    )
    assert (running.cancelled, "figures follow" in headline(running)) == ((), True)


# --- replicates -----------------------------------------------------------------------


def test_replicates_of_other_numbers_are_not_called_other_content() -> None:
    old = [pair(n, "d", side="A", skills=ONE, replicate=0) for n in (1, 2, 3)]
    new = [
        pair(1, "b", side="B", skills=ONE, replicate=1),
        pair(2, "b", side="B", skills=ONE, replicate=1, content="edited"),
        pair(3, "b", side="B", skills=ONE, replicate=0),
    ]
    found = compare_cells(match=MATCH, old=old, new=new)
    assert found.n_shared == 1
    assert found.other_replicates == ("t001",)
    assert found.changed_tasks == ("t002",)
    assert (found.only_old, found.only_new) == ((), ())
    assert (
        "replicates of other numbers in B than in A, and left out: 1 task."
        in dict(notes(found))["other_replicates"]
    )
    assert "Same content, but replicates of other numbers in B (1): t001" in text(comparison(found))
    assert to_json(comparison(found))["cells"][0]["other_replicates"] == ["t001"]
    none = compare_cells(match=MATCH, old=old[:1], new=new[:1])
    assert headline(none).startswith("A and B share tasks of the same content but no replicate")
    # Content is what makes a task: under another key in B it is listed once, too.
    renamed = replace(new[0], record=replace(new[0].record, task="other"))
    moved = compare_cells(match=MATCH, old=old[:1], new=[renamed])
    assert (moved.other_replicates, moved.only_old, moved.only_new) == (("t001",), (), ())
    # Of a task with one replicate in both, the others are single ones of one side.
    more = [*old[2:], pair(3, "d", side="A", skills=ONE, replicate=2)]
    assert compare_cells(match=MATCH, old=more, new=new[2:]).only_old == ("t003, replicate 2",)


# --- several cells --------------------------------------------------------------------


def several(number: int, *, differing: int) -> tuple[list[CellAbout], list[CellAbout], Any]:
    """Return cells of A and of B by k, and their pairs: all won in the first ``differing``."""
    old = [about("old", sha=str(k), k=k) for k in range(1, number + 1)]
    new = [about("new", sha=str(k), k=k, library="coding@2") for k in range(1, number + 1)]
    pairs = {}
    for place, (before, after) in enumerate(zip(old, new, strict=True)):
        pairs[before.key] = [pair(n, "d", side="A", skills=ONE) for n in range(10)]
        letters = "bbbbbbdddd" if place < differing else "dddddddddd"
        pairs[after.key] = [pair(n, x, side="B", skills=ONE) for n, x in enumerate(letters)]
    return old, new, pairs


def test_naming_a_cell_does_not_make_the_others_untried() -> None:
    # 6 won of 6 differing: p = 2 / 2^6 = .03125. It is the smallest of 4: 4 x .03125 = .125.
    old, new, pairs = several(4, differing=1)
    everything = compare(old="old", new="new", matching=match_cells(old=old, new=new), pairs=pairs)
    named = match_pair(old=old[0], new=new[0])
    matching = match_named(named=named, old=old, new=new)
    one = compare(old="old", new="new", matching=matching, pairs=pairs, shown=1)
    assert [cell.match.new.sha12 for cell in one.cells] == [new[0].sha12]
    for found in (everything.cells[0], one.cells[0]):
        assert found.p_adjusted == pytest.approx(0.125)
        assert found.n_family == 4
        assert verdict(found) == ""
        assert "after the correction for 4 cells" in headline(found)
        assert "aren't corrected" in dict(notes(found))["several_cells"]
    assert "of which 3 aren't shown here" in dict(notes(one.cells[0]))["several_cells"]
    # With the guard removed, the cell alone would be better.
    alone = comparing.Matching((named,), ())
    assert verdict(compare(old="old", new="new", matching=alone, pairs=pairs).cells[0]) == "better"
    # Two cells of small p: Holm's second step. Named, it is corrected as among all.
    old, new, pairs = several(3, differing=2)
    among = compare(old="old", new="new", matching=match_cells(old=old, new=new), pairs=pairs)
    matching = match_named(named=match_pair(old=old[1], new=new[1]), old=old, new=new)
    by_name = compare(old="old", new="new", matching=matching, pairs=pairs, shown=1).cells[0]
    assert by_name.p_adjusted == among.cells[1].p_adjusted == pytest.approx(3 * 0.03125)


def test_cells_that_only_a_name_tells_apart_keep_their_place_in_the_family() -> None:
    # Two cells of one protocol on each side: it isn't clear which belong together, so none is
    # compared unless it is named, and whichever is named, two could have been.
    old = [about("old", sha=str(n)) for n in (1, 2)]
    new = [about("new", sha=str(n), library="coding@2") for n in (1, 2)]
    assert match_cells(old=old, new=new).undecided == 2
    pairs = {
        old[0].key: [pair(n, "d", side="A", skills=ONE) for n in range(6)],
        new[0].key: [pair(n, "b", side="B", skills=ONE) for n in range(6)],
    }
    matching = match_named(named=match_pair(old=old[0], new=new[0]), old=old, new=new)
    (found,) = compare(old="old", new="new", matching=matching, pairs=pairs, shown=1).cells
    assert (found.n_family, found.p_adjusted) == (2, pytest.approx(2 * 0.03125))
    # What is compared with none is still named.
    assert {(one.side, one.cell.sha12) for one in matching.unmatched} == {
        (Side.A, old[1].sha12),
        (Side.B, new[1].sha12),
    }


def test_within_one_experiment_the_family_is_what_a_could_be_compared_with() -> None:
    one = [about("one", sha=str(k), control=c) for k, c in enumerate(("x", "y", "z"))]
    named = match_pair(old=one[0], new=one[1], allowed=["control"])
    matching = match_named(named=named, old=one, new=one, allowed=["control"])
    assert [match.new.sha12 for match in matching.matched] == [one[1].sha12, one[2].sha12]
    # Without the permission no other cell could have been.
    strict = match_named(named=named, old=one, new=one)
    assert len(strict.matched) == 1


# --- the interval beside the verdict --------------------------------------------------


def test_an_interval_that_does_not_say_what_the_verdict_says_has_a_word_beside_it() -> None:
    # SE: 5 won of 12, none lost, p = 2 / 2^5 = .0625: no verdict. SD of both failed throughout,
    # so RAE moved by 5 / 12 and its interval leaves 0 out.
    found = cells("D" * 12, "B" * 5 + "D" * 7)
    assert found.own.interval is not None
    assert found.own.interval.excludes_zero
    assert verdict(found) == ""
    assert headline(found).endswith("though the interval of RAE leaves 0 out")
    assert "leaves 0 out although p = 0.0625" in dict(notes(found))["disagree"]
    # 6 won: p = .031. SD of B passed wherever its SE did: RAE stays 0 with an interval round it.
    other = cells("D" * 10 + "BC", "A" * 6 + "D" * 4 + "BC")
    assert verdict(other) == "better"
    assert headline(other).endswith("B is better, though the interval of RAE holds 0")
    # Where they agree nothing is added.
    assert headline(cells("D" * 12, "B" * 12)).endswith("B is better")


# --- what rows say of a cell ----------------------------------------------------------


def test_whatever_else_rows_say_of_a_cell_is_compared_by_its_own_name() -> None:
    old = about("old", description={"agent": "one", "shots": 0, "seed": 1})
    new = about("new", description={"agent": "two", "shots": 5, "seed": 1, "judge": "x"})
    with pytest.raises(ProtocolDiffers) as refused:
        match_pair(old=old, new=new)
    said = str(refused.value)
    assert "agent (one / two); judge (not given / x); shots (0 / 5)" in said
    assert "seed" not in said
    assert said.count("--allow description") == 1
    match = match_pair(old=old, new=new, allowed=["description"])
    assert [one.part for one in match.differences] == ["agent", "judge", "shots"]
    # Several cells: equal descriptions belong together whatever the order of their parts.
    turned = about(
        "new", sha="1", description={"seed": 1.0, "shots": 0, "agent": "one", "note": None}
    )
    found = match_cells(old=[old], new=[turned, replace(new, sha12="2" * 12)])
    assert [one.new.sha12 for one in found.matched] == ["1" * 12]


# --- properties -------------------------------------------------------------------

LETTER = st.sampled_from("abcdABCD")
PAIRS = st.lists(
    st.tuples(st.integers(0, 13), st.integers(1, 2), LETTER, LETTER),
    max_size=24,
    unique_by=lambda row: row[:2],
)


def sides(rows: Iterable[tuple[int, int, str, str]]) -> tuple[list[TaskPair], list[TaskPair]]:
    found: tuple[list[TaskPair], list[TaskPair]] = ([], [])
    for task, replicate, *letters in rows:
        for place, (side, letter) in enumerate(zip("AB", letters, strict=True)):
            skills = {"x": str(place)} if letter.isupper() else {}
            found[place].append(
                pair(task, letter.lower(), side=side, skills=skills, replicate=replicate)
            )
    return found


@given(PAIRS)
@settings(max_examples=60, deadline=None)
def test_swapping_a_and_b_turns_every_sign(rows: list[tuple[int, int, str, str]]) -> None:
    old, new = sides(rows)
    here = compare_cells(match=MATCH, old=old, new=new)
    turned = compare_cells(match=Match(MATCH.new, MATCH.old), old=new, new=old)
    assert [p.task for p in here.won] == [p.task for p in turned.lost]
    assert here.p == turned.p
    for one, other in ((here.own, turned.own), (here.both, turned.both)):
        assert one.old == other.new
        assert one.no_interval == other.no_interval
        if one.difference is None or other.difference is None:
            assert one.difference == other.difference
        else:
            assert one.difference == pytest.approx(-other.difference, abs=1e-9)
        if one.interval and other.interval:
            assert one.interval.low == pytest.approx(-other.interval.high, abs=1e-9)
            assert one.interval.high == pytest.approx(-other.interval.low, abs=1e-9)


@given(PAIRS, st.randoms(use_true_random=False), LETTER)
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_unshared_tasks_change_anything(
    rows: list[tuple[int, int, str, str]], chance: random.Random, letter: str
) -> None:
    old, new = sides(rows)
    plain = compare_cells(match=MATCH, old=old, new=new)
    chance.shuffle(old)
    chance.shuffle(new)
    assert compare_cells(match=MATCH, old=old, new=new) == plain
    extra = pair(99, letter.lower(), side="A", skills=ONE if letter.isupper() else {})
    more = compare_cells(match=MATCH, old=[*old, extra], new=new)
    assert more.only_old == ("t099",)
    assert replace(more, only_old=plain.only_old) == plain


@given(PAIRS)
@settings(max_examples=40, deadline=None)
def test_every_shared_pair_stands_in_one_list_and_one_row(
    rows: list[tuple[int, int, str, str]],
) -> None:
    old, new = sides(rows)
    found = compare_cells(match=MATCH, old=old, new=new)
    lists = (found.won, found.lost, found.both_pass, found.both_fail)
    assert sum(map(len, lists)) == found.n_compared == len(rows)
    assert sum(row.pairs for row in found.sets) == len(rows)
    assert sum(row.won for row in found.sets) == len(found.won)


# --- as text ----------------------------------------------------------------------


def test_text_and_markdown_name_what_one_side_ran_and_say_why_there_is_no_interval() -> None:
    old, new = sides([(n, 1, "D", "B") for n in range(3)])
    old += [pair(n, "d", side="A", skills=ONE) for n in range(20, 45)]
    new.append(pair(50, "d", side="B", skills=ONE))
    found = comparison(compare_cells(match=MATCH, old=old, new=new))
    for shown in (text(found).replace("`", ""), markdown(found).replace("`", "").replace("**", "")):
        # 25 tasks of A alone: the first 20 are named.
        assert "Run in A only (25): t020, t021" in shown
        assert "t039 and 5 more" in shown
        assert "t040" not in shown
        assert "Run in B only (1): t050" in shown
        # 3 tasks, fewer than 10.
        assert "– (fewer than 10 tasks have a returned skill" in shown


def test_json_text_and_markdown_say_the_same() -> None:
    old, new = sides([(n, 1, "D", "B") for n in range(6)])
    matching = match_cells(old=[MATCH.old, about("old", sha="7", k=9)], new=[MATCH.new])
    pairs = {MATCH.old.key: old, MATCH.new.key: new}
    found = compare(old="old", new="new", matching=matching, pairs=pairs)
    data = to_json(found)
    (cell,) = data["cells"]
    assert (cell["n_won"], cell["n_lost"], cell["verdict"]) == (6, 0, "better")
    assert data["unmatched"][0]["side"] == "A"
    said = "B's skills won 6 and lost 0 of 6 shared tasks (p = 0.0312)"
    for shown in (text(found), markdown(found), cell["headline"]):
        assert said in shown
    assert "k (9 / same)" in text(found)
