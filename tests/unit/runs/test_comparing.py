"""Comparing two cells over shared tasks: expected numbers are derived beside each assertion."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runs.domain import comparing
from runs.domain.comparing import (
    CellAbout,
    CellComparison,
    Factor,
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
    match_pair,
    notes,
    rae_difference_interval,
    verdict,
)
from runs.domain.comparison_render import markdown, text, to_json
from runs.domain.intervals import PMethod
from runs.domain.report import PairRecord

PROTOCOL = {factor.value: "same" for factor in Factor} | {"failure_policy": "censor"}
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
        ([TaskNet(0, 1, 0, 1)] * 9, NoInterval.NO_FLIPS),
        ([TaskNet(1, 1, 0, 1)] * 9, NoInterval.NO_VARIATION),
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


def resampled_literally(tasks: Sequence[TaskNet], *, draws: int, seed: int) -> tuple[float, float]:
    """Draw whole tasks with replacement, one by one, as the definition says it."""
    chance = random.Random(seed)
    found = []
    for _ in range(draws):
        drawn = chance.choices(tasks, k=len(tasks))
        old_pairs, new_pairs = sum(t.old_pairs for t in drawn), sum(t.new_pairs for t in drawn)
        old_net, new_net = sum(t.old_net for t in drawn), sum(t.new_net for t in drawn)
        found.append(new_net / new_pairs - old_net / old_pairs)
    low, high = np.quantile(found, [0.025, 0.975])
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
    low, high = resampled_literally(tasks, draws=20_000, seed=11)
    # Two percentiles of 20,000 draws each: their Monte Carlo error is about 1% of the width.
    width = high - low
    assert interval.low == pytest.approx(low, abs=0.04 * width)
    assert interval.high == pytest.approx(high, abs=0.04 * width)


def test_replicates_cluster() -> None:
    # The same 40 net results, as 40 tasks or as 10 tasks whose 4 replicates agree: the latter
    # hold a quarter of the information, so the interval is about twice as wide.
    apart = [TaskNet(0, 1, n % 2, 1) for n in range(40)]
    together = [TaskNet(0, 4, 4 * (n % 2), 4) for n in range(10)]
    one, _, _ = rae_difference_interval(tasks=apart)
    other, _, _ = rae_difference_interval(tasks=together)
    assert one
    assert other
    ratio = (other.high - other.low) / (one.high - one.low)
    assert 1.8 < ratio < 2.2


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


def test_the_same_library_under_the_same_protocol_is_said_to_be_chance() -> None:
    same = Match(about("old"), about("new"))
    assert "what differs is chance" in dict(notes(cells("AB", "BA", match=same)))["same_library"]
    assert "same_library" not in dict(notes(cells("AB", "BA")))


# --- properties -------------------------------------------------------------------

LETTER = st.sampled_from("abcdABCD")
PAIRS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 2), LETTER, LETTER),
    max_size=14,
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


def test_json_text_and_markdown_say_the_same() -> None:
    old, new = sides([(n, 1, "D", "B") for n in range(6)])
    matching = match_cells(old=[MATCH.old, about("old", sha="7", k=9)], new=[MATCH.new])
    pairs = {MATCH.old.key: old, MATCH.new.key: new}
    comparison = compare(old="old", new="new", matching=matching, pairs=pairs)
    data = to_json(comparison)
    (cell,) = data["cells"]
    assert (cell["n_won"], cell["n_lost"], cell["verdict"]) == (6, 0, "better")
    assert data["unmatched"][0]["side"] == "A"
    said = "B's skills won 6 and lost 0 of 6 shared tasks (p = 0.0312)"
    for shown in (text(comparison), markdown(comparison), cell["headline"]):
        assert said in shown
    assert "k (9 / same)" in text(comparison)
