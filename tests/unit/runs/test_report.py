"""report/1: figures from pairs, failures, incompleteness, determinism, shape and words."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.report import (
    CAVEAT,
    FAILURES,
    LABELS,
    TERMS,
    CellRecord,
    Failure,
    PairRecord,
    build_report,
    found_effect,
    paper_example,
    report_sha256,
)
from workbench.kernel.identity import sha256_of

DOCS = Path(__file__).parents[3] / "docs"
SCHEMA: dict[str, Any] = json.loads((DOCS / "report-schema.json").read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

BOTH, WON, LOST, NEITHER = (True, True), (True, False), (False, True), (False, False)


def pairs(
    *groups: tuple[int, tuple[bool, bool], bool | None], prefix: str = "t"
) -> tuple[PairRecord, ...]:
    """Pairs of distinct tasks: (how many, (SE, SD), retrieved) each."""
    outcomes = [(result, got) for times, result, got in groups for _ in range(times)]
    return tuple(
        PairRecord(
            pair=f"{prefix}{i}", task=f"{prefix}{i:03}", replicate=0, retrieved=got, se=se, sd=sd
        )
        for i, ((se, sd), got) in enumerate(outcomes)
    )


def failed(arm: str, failure: str, *, retrieved: bool | None, other: bool = True) -> PairRecord:
    """A pair whose other arm passed or failed as ``other`` says."""
    uid = f"{arm}-{failure}-{retrieved}"
    return PairRecord(
        pair=uid,
        task=uid,
        replicate=0,
        retrieved=retrieved,
        se=None if arm == "se" else other,
        sd=None if arm == "sd" else other,
        se_failure=failure if arm == "se" else None,
        sd_failure=failure if arm == "sd" else None,
    )


def report_of(
    *records: Sequence[PairRecord], descriptor: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    cells = [
        CellRecord({"model": f"m{i}", **(descriptor or {})}, tuple(record))
        for i, record in enumerate(records)
    ]
    report = build_report(experiment={"slug": "x"}, cells=cells, **options)
    VALIDATOR.validate(report)
    return report


def cell_of(*records: PairRecord, **options: Any) -> dict[str, Any]:
    found: list[dict[str, Any]] = report_of(records, **options)["cells"]
    return found[0]


def codes(cell: Mapping[str, Any]) -> list[str]:
    return [note["code"] for note in cell["notes"]]


# Retrieved 43: a 10, b 6, c 13, d 14. Skipped 7: a 2, b 1, c 0, d 4.
FIFTY = pairs(
    (10, BOTH, True),
    (6, WON, True),
    (13, LOST, True),
    (14, NEITHER, True),
    (2, BOTH, False),
    (1, WON, False),
    (4, NEITHER, False),
)


# --- figures ---------------------------------------------------------------------------------


def test_counts_and_effects() -> None:
    cell = cell_of(*FIFTY)
    assert [cell[k] for k in "abcd"] == [10, 6, 13, 14]
    assert [cell[f"all_{k}"] for k in "abcd"] == [12, 7, 13, 18]
    assert [cell[f"skip_{k}"] for k in "abcd"] == [2, 1, 0, 4]
    assert (cell["n_planned"], cell["n_pairs"], cell["n_cond"], cell["n_skip"]) == (50, 50, 43, 7)
    assert cell["rae"] == (6 - 13) / 43 * 100
    assert cell["oae"] == (7 - 13) / 50 * 100
    assert cell["coverage"] == 0.86
    assert cell["se_accuracy"] == 19 / 50
    assert cell["sd_accuracy"] == 25 / 50
    # 16/43 - 3/7 = -5.6 and 23/43 - 2/7 = +24.9
    assert cell["aggregate_lift"] == pytest.approx((16 / 43 - 3 / 7) * 100)
    assert cell["selection_gap"] == pytest.approx((23 / 43 - 2 / 7) * 100)
    assert cell["decomposition"]["retrieved_part"] == pytest.approx(-14.0)  # -7 / 50
    assert cell["decomposition"]["skipped_part"] == pytest.approx(2.0)  # 1 / 50
    assert cell["decomposition"]["unknown_part"] is None
    assert cell["rae_ci"]["method"] == "tango"
    assert cell["mcnemar_p"] == cell["p"] == pytest.approx(0.16707, abs=1e-5)
    assert cell["sign_disagreement"] is False
    assert cell["undefined"] == {}
    assert cell["notes"] == []


def test_headline_says_what_happened() -> None:
    assert cell_of(*FIFTY)["headline"] == (
        "On the 43 tasks where a skill was returned, 6 were won and 13 lost against the same "
        "tasks without skills: -16.3 points [-35.1, +3.8]"
    )


def test_headline_of_a_single_task() -> None:
    headline = cell_of(*pairs((1, WON, True), (1, NEITHER, False)))["headline"]
    assert headline.startswith(
        "On the 1 task where a skill was returned, 1 was won and 0 lost against the same task "
        "without skills: +100.0 points ["
    )


def test_preset_paper_changes_intervals_only() -> None:
    ours, papers = cell_of(*FIFTY), cell_of(*FIFTY, preset="paper")
    assert papers["rae_ci"]["method"] == "multinomial_percentile"
    assert papers["oae_ci"]["method"] == "multinomial_percentile"
    assert papers["skipped_effect_ci"]["method"] == "eight_cell_percentile"
    assert ours["skipped_effect_ci"]["method"] == "tango"
    intervals = {key for key in ours if key.endswith("_ci")}
    same = {key: value for key, value in ours.items() if key not in intervals | {"headline"}}
    assert same == {key: papers[key] for key in same}


def test_no_skill_returned() -> None:
    cell = cell_of(*pairs((2, WON, False), (1, LOST, False), (17, BOTH, False)))
    for figure in ("rae", "rae_ci", "aggregate_lift", "mcnemar_p", "p", "sign_disagreement"):
        assert cell[figure] is None
        assert cell["undefined"][figure] == "no_skill_returned"
    assert cell["oae"] == 5.0
    assert cell["oae_ci"] is not None
    assert cell["coverage"] == 0.0
    assert cell["sign_disagreement_firm"] is None
    assert cell["not_reportable"] == "few_retrieved"
    assert cell["headline"] == (
        "No skill was returned on any of 20 tasks, so there is no RAE to show"
    )


def test_a_search_that_returned_nothing_is_said() -> None:
    searched = [
        PairRecord(
            pair=str(i), task=str(i), replicate=0, retrieved=False, se=True, sd=True, invoked=i < 2
        )
        for i in range(3)
    ]
    cell = cell_of(*searched)
    assert cell["n_invoked"] == 2
    assert "(the search was called in 2)" in cell["headline"]
    assert cell_of(*FIFTY)["n_invoked"] is None  # unknown is not zero


def test_every_task_retrieved() -> None:
    cell = cell_of(*pairs((3, WON, True), (9, NEITHER, True)))
    assert cell["rae"] == 25.0
    for figure in ("aggregate_lift", "aggregate_lift_ci", "selection_gap", "skipped_effect"):
        assert cell["undefined"][figure] == "every_task_retrieved"
    assert cell["sign_disagreement"] is None
    assert cell["reportable"] is False
    assert cell["not_reportable"] == "lift_undefined"


def test_unknown_retrieval_is_counted_apart() -> None:
    cell = cell_of(*FIFTY, *pairs((10, WON, None), prefix="u"))
    assert (cell["n_pairs"], cell["n_cond"], cell["n_unknown_retrieval"]) == (60, 43, 10)
    assert cell["rae"] == (6 - 13) / 43 * 100
    assert cell["oae"] == (17 - 13) / 60 * 100
    assert cell["decomposition"]["unknown_part"] == pytest.approx(10 / 60 * 100)
    (note,) = cell["notes"]
    assert note["code"] == "unknown_retrieval"
    assert "between 71.7% and 88.3%" in note["text"]  # 43/60, 53/60


def test_all_retrieval_unknown() -> None:
    cell = cell_of(*pairs((5, WON, None), (3, LOST, None)))
    assert cell["undefined"]["rae"] == cell["undefined"]["coverage"] == "retrieval_unknown"
    assert cell["oae"] == 25.0
    assert cell["headline"].startswith("It is unknown for 8 of 8 tasks whether")
    assert "+25.0 points" in cell["headline"]


def test_a_cell_without_pairs() -> None:
    for record in ((), (failed("sd", "host", retrieved=None),)):
        cell = cell_of(*record)
        assert cell["n_pairs"] == 0
        assert cell["undefined"]["rae"] == cell["undefined"]["oae"] == "no_pairs"
        assert cell["headline"].startswith("No pair has both results")


def test_a_lift_interval_with_few_skipped_pairs_is_undefined() -> None:
    # 3 of 80 skipped: 4.7% of the resamples have none.
    cell = cell_of(*pairs((77, NEITHER, True), (1, WON, False), (2, NEITHER, False)))
    assert cell["aggregate_lift"] is not None
    assert cell["aggregate_lift_ci"] is None
    assert cell["undefined"]["aggregate_lift_ci"] == "resamples_dropped"
    assert cell["resamples_dropped"] > 200
    assert cell["sign_disagreement_firm"] is False


def test_few_discordant_pairs_are_said() -> None:
    few = cell_of(*pairs((5, LOST, True), (75, BOTH, True), (20, BOTH, False)))
    assert codes(few) == ["few_discordant", "interval_and_test_disagree"]
    # n = 80, b = 0, c = 5: p = .0625 and yet [-13.8, -1.4].
    assert few["p"] == 0.0625
    assert "leaves 0 out although p = 0.0625 is above .05" in few["notes"][1]["text"]
    assert "5 pairs that differ the" in few["notes"][0]["text"]
    one = cell_of(*pairs((1, LOST, True), (20, BOTH, True)))
    assert "With 1 pair that differs the exact test" in one["notes"][0]["text"]
    assert codes(cell_of(*pairs((6, LOST, True), (75, BOTH, True)))) == []


def test_firm_sign_disagreement_needs_both_intervals() -> None:
    # Lift 40/100 - 0/100 = +40, RAE -20: both intervals leave 0 out.
    firm = cell_of(
        *pairs((40, BOTH, True), (20, LOST, True), (40, NEITHER, True), (100, NEITHER, False))
    )
    assert firm["sign_disagreement"] is True
    assert firm["sign_disagreement_firm"] is True
    loose = cell_of(*pairs((5, BOTH, True), (1, LOST, True), (6, NEITHER, True), (9, LOST, False)))
    assert loose["sign_disagreement"] is True
    assert loose["sign_disagreement_firm"] is False


# --- several pairs a task --------------------------------------------------------------------


def repeated(results: Sequence[Sequence[tuple[bool, bool]]]) -> list[PairRecord]:
    return [
        PairRecord(
            pair=f"{task}-{rep}", task=f"t{task}", replicate=rep, retrieved=True, se=se, sd=sd
        )
        for task, found in enumerate(results)
        for rep, (se, sd) in enumerate(found)
    ]


def test_repeated_tasks_use_the_design_effect_and_the_sign_flip_test() -> None:
    tasks = [[LOST] * 3] * 6 + [[WON] * 3] * 2 + [[BOTH] * 3] * 12
    for preset in ("default", "paper"):
        cell = cell_of(*repeated(tasks), preset=preset)
        assert (cell["n_cond"], cell["n_tasks_cond"]) == (60, 20)
        assert cell["rae"] == pytest.approx(-20.0)  # (6 - 18) / 60
        assert cell["rae_ci"]["method"] == "tango_design_effect"
        assert cell["design_effect"] == pytest.approx(3.0)  # three equal pairs tell as one
        # S = -3 (6 times), +3 (twice): the 8 signs of a 2:6 split: 2 (1 + 8 + 28) / 2^8.
        assert cell["p"] == 74 / 256
        assert cell["p_method"] == "sign_flip_exact"
        assert cell["mcnemar_descriptive"] is True
        assert cell["mcnemar_p"] < 0.05  # and it would have misled
        # Preset paper's interval is for one pair a task, and so isn't claimed.
        more = ["not_the_papers_interval"] if preset == "paper" else []
        assert codes(cell) == ["several_pairs_per_task", *more]
        assert f"({cell['mcnemar_p']:.3g}) is descriptive" in cell["notes"][0]["text"]
        assert cell["headline"].startswith("On the 60 pairs where a skill was returned, 6 were won")


def test_repeated_tasks_have_no_eight_cell_interval() -> None:
    cell = cell_of(*repeated([[LOST, BOTH]] * 12), *pairs((8, BOTH, False), prefix="s"))
    assert cell["aggregate_lift"] is not None
    assert cell["undefined"]["aggregate_lift_ci"] == "tasks_repeat"


def test_a_task_retrieved_once_is_no_repeat() -> None:
    # Two replicates, of which only one retrieved: the retrieved pairs are of distinct tasks.
    both = [
        PairRecord(
            pair=f"{t}-{r}", task=f"t{t}", replicate=r, retrieved=r == 0, se=True, sd=t % 2 == 0
        )
        for t in range(12)
        for r in (0, 1)
    ]
    cell = cell_of(*both)
    assert cell["rae_ci"]["method"] == "tango"
    assert cell["p_method"] == "mcnemar_exact"
    assert cell["oae_ci"]["method"] == "tango_design_effect"
    assert cell["design_effect"] is None


def test_too_few_differing_tasks_are_said() -> None:
    cell = cell_of(*repeated([[LOST] * 3] * 4 + [[BOTH] * 3] * 10))
    assert (
        "With 4 tasks with a net result"
        in {note["code"]: note["text"] for note in cell["notes"]}["few_discordant"]
    )


# --- failures --------------------------------------------------------------------------------


def test_failed_calls_follow_the_policy() -> None:
    record = [
        *FIFTY,
        failed("se", "call", retrieved=True),  # the partial trace shows a skill: lost
        failed("se", "call", retrieved=False),  # none was returned: skipped, lost
        failed("sd", "call", retrieved=True),  # won
    ]
    censor = cell_of(*record)
    assert (censor["n_pairs"], censor["n_censored"], censor["n_failed_calls"]) == (50, 3, 3)
    assert censor["censored"] == {"se": {"call": 2}, "sd": {"call": 1}}
    assert (censor["b"], censor["c"]) == (6, 13)

    wrong = cell_of(*record, failure_policy="incorrect")
    assert (wrong["n_pairs"], wrong["n_censored"]) == (53, 0)
    assert (wrong["n_cond"], wrong["b"], wrong["c"]) == (45, 7, 14)
    assert wrong["skip_c"] == 1
    assert codes(wrong) == ["calls_counted_wrong"]

    # Both readings stand in both reports.
    assert censor["failure_readings"] == wrong["failure_readings"]
    assert censor["failure_readings"]["censor"]["rae"] == censor["rae"]
    assert censor["failure_readings"]["incorrect"]["rae"] == wrong["rae"]
    assert cell_of(*FIFTY)["failure_readings"] is None


@pytest.mark.parametrize(
    "failure", ["host", "contaminated", "unequal_parameters", "no_result", "missing", "conflict"]
)
@pytest.mark.parametrize("policy", ["censor", "incorrect"])
def test_other_failures_always_censor(failure: str, policy: str) -> None:
    cell = cell_of(*FIFTY, failed("sd", failure, retrieved=True), failure_policy=policy)
    assert (cell["n_pairs"], cell["n_censored"]) == (50, 1)
    assert cell["censored"] == {"se": {}, "sd": {failure: 1}}
    (note,) = cell["notes"]
    assert note["code"] == "censored"
    assert FAILURES[failure] in note["text"]


def test_a_host_fault_beside_a_failed_call_still_censors() -> None:
    both = PairRecord(
        pair="x",
        task="x",
        replicate=0,
        retrieved=None,
        se=None,
        sd=None,
        se_failure="call",
        sd_failure="host",
    )
    cell = cell_of(*FIFTY, both, failure_policy="incorrect")
    assert cell["n_censored"] == 1
    assert cell["censored"] == {"se": {"call": 1}, "sd": {"host": 1}}


def test_an_arm_has_a_result_or_a_failure() -> None:
    for se, failure in ((True, "call"), (None, None)):
        with pytest.raises(ValueError, match="either a result or a failure"):
            PairRecord(
                pair="x",
                task="x",
                replicate=0,
                retrieved=None,
                se=se,
                sd=True,
                se_failure=failure,
            )
    with pytest.raises(ValueError, match="no_such_reason"):
        failed("se", "no_such_reason", retrieved=None)
    assert set(FAILURES) == set(Failure)


# --- incomplete ------------------------------------------------------------------------------


def test_an_incomplete_cell_shows_counts_only() -> None:
    cell = cell_of(*FIFTY, failed("sd", "pending", retrieved=True))
    assert cell["complete"] is False
    assert (cell["n_planned"], cell["n_pairs"], cell["n_pending"]) == (51, 50, 1)
    assert (cell["n_cond"], cell["b"], cell["c"]) == (43, 6, 13)
    for figure in ("rae", "rae_ci", "oae", "oae_ci", "aggregate_lift", "mcnemar_p", "p"):
        assert cell[figure] is None
        assert cell["undefined"][figure] == "incomplete"
    assert cell["decomposition"] is None
    assert cell["reportable"] is False
    assert cell["not_reportable"] == "incomplete"
    assert codes(cell) == ["incomplete"]
    assert cell["headline"] == (
        "50 of 51 pairs settled so far: of 43 tasks where a skill was returned, 6 were won and "
        "13 lost; figures follow when all have settled"
    )
    assert cell_of(*FIFTY)["complete"] is True


def test_pending_is_pending_under_both_policies() -> None:
    waiting = PairRecord(
        pair="x",
        task="x",
        replicate=0,
        retrieved=None,
        se=None,
        sd=None,
        se_failure="call",
        sd_failure="pending",
    )
    for policy in ("censor", "incorrect"):
        cell = cell_of(*FIFTY, waiting, failure_policy=policy)
        assert (cell["n_pending"], cell["n_censored"]) == (1, 0)


# --- designs, examples, the whole report -----------------------------------------------------


def test_headlines_name_what_the_design_compares() -> None:
    target = cell_of(*pairs((9, WON, True), (3, LOST, True)), descriptor={"design": "target"})
    assert target["headline"].startswith("On the 12 tasks where the target skill was given, 9 were")
    assert target["not_reportable"] == "other_design"
    noise = cell_of(
        *pairs((1, WON, False), (2, LOST, False), (7, BOTH, False)), descriptor={"design": "aa"}
    )
    assert noise["headline"] == (
        "Both arms ran without skills: 3 of 10 tasks came out differently by chance alone; this "
        "is noise, not an effect"
    )
    without = cell_of(*FIFTY, descriptor={"design": "leave_one_out"})
    assert "against the same tasks with that skill left out" in without["headline"]


def test_sign_disagreements_count_reportable_cells() -> None:
    # RAE (0 - 3) / 12 < 0 < lift 6/12 - 0/4.
    opposite = pairs((6, BOTH, True), (3, LOST, True), (3, NEITHER, True), (4, NEITHER, False))
    pending = (*opposite, failed("sd", "pending", retrieved=True))
    rows = report_of(opposite, FIFTY, pending)["sign_disagreements"]
    assert [(row["threshold"], row["disagreeing"], row["cells"]) for row in rows] == [
        (5, 1, 2),
        (10, 1, 2),
        (15, 0, 1),
        (20, 0, 1),
    ]
    other = report_of(opposite, descriptor={"design": "target"})
    assert other["sign_disagreements"][1]["cells"] == 0


def test_harmful_flips_are_the_lost_retrieved_pairs() -> None:
    lost = PairRecord(
        pair="u-1",
        task="mbpp/12",
        replicate=2,
        retrieved=True,
        se=False,
        sd=True,
        skills=("counting-hash",),
        path="/pairs/u-1/",
    )
    record = [lost, failed("se", "call", retrieved=True), *pairs((1, LOST, False), (1, WON, True))]
    (flip,) = report_of(record, descriptor={"sha12": "0123456789ab"})["harmful_flips"]
    assert flip == {
        "cell": "0123456789ab",
        "pair": "u-1",
        "task": "mbpp/12",
        "replicate": 2,
        "skills": ["counting-hash"],
        "path": "/pairs/u-1/",
        "failed_call": False,
    }
    both = report_of(record, failure_policy="incorrect")["harmful_flips"]
    assert [flip["failed_call"] for flip in both] == [False, True]


def test_worked_example_is_marked_and_kept_apart() -> None:
    report = build_report(experiment={}, cells=[paper_example(), CellRecord({}, FIFTY)])
    VALIDATOR.validate(report)
    real, example = report["cells"]
    assert example["cell"]["example"] is True
    assert "Table 17" in example["cell"]["source"]
    assert example["notes"][0]["code"] == "example"
    assert example["aggregate_lift"] > 0 > example["rae"]
    assert example["sign_disagreement"] is True
    assert "example" not in real["cell"]
    # Only the real cell is counted, and its signs agree.
    assert report["sign_disagreements"][1] == {
        "threshold": 10,
        "disagreeing": 0,
        "cells": 1,
        "pending": 0,
    }
    # Its p is its own: the correction is for the cells of the experiment.
    assert (example["n_family"], example["p_adjusted"]) == (1, example["p"])
    assert real["n_family"] == 1
    assert all(not flip["pair"].startswith("example") for flip in report["harmful_flips"])


# --- determinism -----------------------------------------------------------------------------


def test_the_order_of_cells_and_pairs_does_not_matter() -> None:
    record = [*repeated([[LOST, WON, BOTH], [LOST], [WON, NEITHER]] * 5), *FIFTY]
    cells = [CellRecord({"model": "a"}, tuple(record)), CellRecord({"model": "b"}, FIFTY)]
    first = build_report(experiment={}, cells=cells)
    shuffler = random.Random(7)
    for _ in range(3):
        shuffler.shuffle(record)
        shuffled = [cells[1], CellRecord({"model": "a"}, tuple(record))]
        assert json.dumps(build_report(experiment={}, cells=shuffled)) == json.dumps(first)


def test_the_hash_covers_everything_else() -> None:
    report = report_of(FIFTY)
    rest = {key: value for key, value in report.items() if key != "report_sha256"}
    assert report["report_sha256"] == sha256_of(rest) == report_sha256(report)
    assert report_sha256({**report, "as_of": "2026-03-02T09:30:00+00:00"}) == report_sha256(report)
    changed = copy.deepcopy(report)
    changed["cells"][0]["b"] += 1
    assert report_sha256(changed) != report["report_sha256"]
    assert (
        report_of(FIFTY, notices=["demonstration model"])["report_sha256"]
        != (report["report_sha256"])
    )


def test_ambiguous_input_is_refused() -> None:
    one = CellRecord({"model": "m"}, FIFTY)
    with pytest.raises(ValueError, match="two cells"):
        build_report(experiment={}, cells=[one, one])
    twin = PairRecord(pair="t0", task="other", replicate=0, retrieved=None, se=True, sd=True)
    with pytest.raises(ValueError, match="same uid"):
        report_of([*FIFTY, twin])
    twin = PairRecord(pair="new", task="t000", replicate=0, retrieved=None, se=True, sd=True)
    with pytest.raises(ValueError, match="same task and replicate"):
        report_of([*FIFTY, twin])
    with pytest.raises(ValueError, match="bootstrap"):
        report_of(FIFTY, preset="bootstrap")
    with pytest.raises(ValueError, match="JSON compliant"):
        build_report(experiment={"budget": float("nan")}, cells=[])


RESULTS = st.tuples(
    st.sampled_from([True, False, None]),
    st.sampled_from([True, False, None]),
    st.sampled_from([True, False, None]),
    st.sampled_from(["call", "host", "pending"]),
    st.integers(0, 5),
)


@given(
    st.lists(RESULTS, max_size=25),
    st.sampled_from(["default", "paper"]),
    st.sampled_from(["censor", "incorrect"]),
)
def test_any_pairs_give_a_valid_report(
    drawn: list[tuple[bool | None, bool | None, bool | None, str, int]], preset: str, policy: str
) -> None:
    record = [
        PairRecord(
            pair=str(i),
            task=f"t{task}",
            replicate=i,
            retrieved=got,
            se=se,
            sd=sd,
            se_failure=failure if se is None else None,
            sd_failure=failure if sd is None else None,
        )
        for i, (se, sd, got, failure, task) in enumerate(drawn)
    ]
    report = report_of(record, preset=preset, failure_policy=policy)
    json.dumps(report, allow_nan=False)
    (cell,) = report["cells"]
    assert cell["n_planned"] == cell["n_pairs"] + cell["n_censored"] + cell["n_pending"]
    assert cell["n_pairs"] == cell["n_cond"] + cell["n_skip"] + cell["n_unknown_retrieval"]
    figures = [name for name in SCHEMA["$defs"]["cell"]["properties"] if name in _UNDEFINABLE]
    for name in figures:
        assert (cell[name] is None) == (name in cell["undefined"]), name
    if cell["rae_ci"]:
        assert cell["rae_ci"]["low"] - 1e-9 <= cell["rae"] <= cell["rae_ci"]["high"] + 1e-9


_UNDEFINABLE = {
    "coverage",
    "se_accuracy",
    "sd_accuracy",
    "aggregate_lift",
    "selection_gap",
    "oae",
    "skipped_effect",
    "rae",
    "decomposition",
    "rae_ci",
    "oae_ci",
    "aggregate_lift_ci",
    "selection_gap_ci",
    "skipped_effect_ci",
    "retrieved_part_ci",
    "skipped_part_ci",
    "mcnemar_p",
    "p",
    "p_adjusted",
    "sign_disagreement",
}


# --- what else must be known -----------------------------------------------------------------


def test_pairs_of_unequal_parameters_count_nowhere_and_are_said() -> None:
    unequal = PairRecord(
        pair="u",
        task="u",
        replicate=0,
        retrieved=True,
        se=None,
        sd=None,
        se_failure="unequal_parameters",
        sd_failure="unequal_parameters",
        unequal=("temperature",),
    )
    for policy in ("censor", "incorrect"):
        cell = cell_of(*FIFTY, unequal, failure_policy=policy)
        assert (cell["n_pairs"], cell["n_censored"], cell["n_cond"]) == (50, 1, 43)
        assert cell["censored"]["se"] == {"unequal_parameters": 1}
        texts = {note["code"]: note["text"] for note in cell["notes"]}
        # Said once, though it stands in both arms.
        assert texts["censored"] == (
            "1 pair left out (the endpoint refused a parameter in one arm only (1))."
        )
        assert "refused temperature in one arm only" in texts["unequal_parameters"]
    assert "unequal_parameters" not in codes(cell_of(*FIFTY))


def test_empty_answers_and_unread_decisions_are_counted_and_said() -> None:
    record = [
        PairRecord(
            pair=str(i),
            task=str(i),
            replicate=0,
            retrieved=True,
            se=False,
            sd=True,
            se_status="context_overflow",
            sd_status="truncated" if i < 3 else "answered",
            malformed_decisions=1,
            invalid_calls=int(i == 0),
        )
        for i in range(12)
    ]
    cell = cell_of(*record)
    assert cell["answers"] == {
        "se": {"context_overflow": 12},
        "sd": {"answered": 9, "truncated": 3},
    }
    texts = {note["code"]: note["text"] for note in cell["notes"]}
    assert texts["unusual_answers"] == (
        "12 of 12 SE answers are empty: the context overflowed. "
        "3 of 12 SD answers were cut off at the limit of tokens."
    )
    assert texts["malformed_decisions"].startswith("12 decisions of SE runs could not be read")
    assert texts["invalid_calls"].startswith("1 search call of SE runs")
    assert cell["rae"] == -100.0  # it is said, and scored as ever
    quiet = cell_of(*FIFTY)
    assert quiet["answers"] == {"se": {}, "sd": {}}
    assert not set(codes(quiet)) & {"unusual_answers", "malformed_decisions", "invalid_calls"}


def test_answers_checked_in_process_are_reported_apart() -> None:
    record = [replace(pair, in_process=i < 2) for i, pair in enumerate(FIFTY[10:])]
    cell = cell_of(*FIFTY[:10], *record)
    # The first two after the 10 that passed in both arms were won: 6 - 2 = 4 of 41 are left.
    assert cell["checked_in_process"]["only"]["b"] == 2
    without = cell["checked_in_process"]["without"]
    assert (without["n_cond"], without["b"], without["c"]) == (41, 4, 13)
    assert without["rae"] == (4 - 13) / 41 * 100
    assert "2 won and 0 lost of 2" in cell["notes"][0]["text"]
    assert cell_of(*FIFTY)["checked_in_process"] is None


def test_an_effect_is_found_by_p_after_holm_over_all_planned_cells() -> None:
    # 0 won, 6 lost of 12: p = 2 / 2^6 = .03125. Alone it is found; of two cells 2 p = .0625.
    six = pairs((6, LOST, True), (6, BOTH, True))
    (alone,) = report_of(six)["cells"]
    assert (alone["p_adjusted"], found_effect(alone)) == (0.03125, "lost")
    waiting = [failed("se", "pending", retrieved=None)]
    for other in (six, FIFTY, waiting):
        cell = next(c for c in report_of(six, other)["cells"] if c["cell"]["model"] == "m0")
        assert (cell["n_family"], cell["p_adjusted"], found_effect(cell)) == (2, 0.0625, "")
        assert "several_cells" in codes(cell)
    # 0 won, 12 lost: 2 / 2^12, twice .00049 is found beside any one other.
    twelve = report_of(pairs((12, WON, True)), FIFTY)["cells"][0]
    assert (twelve["p_adjusted"], found_effect(twelve)) == (4 / 2**12, "won")


def test_no_effect_is_found_in_few_pairs_or_in_part_of_them() -> None:
    few = cell_of(*pairs((9, LOST, True)))  # p = 2 / 2^9, one pair below the threshold
    assert few["p"] == 2 / 2**9
    assert (few["p_adjusted"], found_effect(few)) == (1.0, "")
    part = cell_of(*pairs((12, LOST, True)), failed("se", "pending", retrieved=None))
    assert (part["p_adjusted"], found_effect(part)) == (None, "")


def test_a_cancelled_experiment_promises_no_figures() -> None:
    record = [*FIFTY, failed("se", "pending", retrieved=None)]
    going, ended = cell_of(*record), cell_of(*record, cancelled=True)
    assert "figures follow when all have settled" in going["headline"]
    assert ended["headline"] == (
        "Cancelled with 50 of 51 pairs settled: of 43 tasks where a skill was returned, 6 were "
        "won and 13 lost; a part of the pairs gives no figures"
    )
    assert ended["notes"][0]["text"] == "1 pair never ended."
    # All had settled before: it says what any other cell says.
    assert cell_of(*FIFTY, cancelled=True)["headline"] == cell_of(*FIFTY)["headline"]


def test_sign_disagreements_are_not_final_while_pairs_are_pending() -> None:
    waiting = [failed("se", "pending", retrieved=None)]
    assert {row["pending"] for row in report_of(FIFTY, waiting)["sign_disagreements"]} == {1}
    assert {row["pending"] for row in report_of(FIFTY)["sign_disagreements"]} == {0}


def test_the_interval_of_a_part_of_oae_is_a_share_of_all_pairs() -> None:
    # 20 won of 30 retrieved, 10 skipped, 60 unknown: the part is 20 of 100 pairs.
    cell = cell_of(
        *pairs((10, BOTH, True), (20, WON, True), (5, BOTH, False), (5, NEITHER, False)),
        *pairs((40, BOTH, None), (20, NEITHER, None), prefix="u"),
    )
    part, ci = cell["decomposition"]["retrieved_part"], cell["retrieved_part_ci"]
    assert part == 20.0
    # Binomial: 1.96 sqrt(.2 * .8 / 100) = 7.8 points to either side.
    assert (ci["low"], ci["high"]) == (pytest.approx(12.5, abs=1), pytest.approx(28, abs=1))


# --- documents -------------------------------------------------------------------------------


def test_the_schema_describes_every_key() -> None:
    VALIDATOR.check_schema(SCHEMA)
    report = report_of(FIFTY)
    # A report of an earlier moment says when it was counted; made now it holds no time.
    assert set(report) == set(SCHEMA["properties"]) - {"as_of"}
    assert set(report["cells"][0]) == set(SCHEMA["$defs"]["cell"]["properties"])
    assert set(report["harmful_flips"][0]) == set(SCHEMA["$defs"]["flip"]["properties"])


def test_the_schema_refuses_a_broken_report() -> None:
    report = report_of(FIFTY)
    for key, value in (("rae", "-16.3"), ("coverage", 86), ("p", None)):
        broken = copy.deepcopy(report)
        if value is None:
            del broken["cells"][0][key]
        else:
            broken["cells"][0][key] = value
        assert not VALIDATOR.is_valid(broken)


def test_every_term_is_explained_in_words_and_in_the_document() -> None:
    text = (DOCS / "statistics.md").read_text(encoding="utf-8")
    assert set(LABELS) <= set(TERMS)
    for name, sentence in TERMS.items():
        assert sentence.endswith(".")
        assert f"`{name}`" in text, f"docs/statistics.md doesn't explain {name}"


def test_every_report_says_what_rae_is_not() -> None:
    assert report_of(FIFTY)["caveat"] == CAVEAT
    assert "conditional on what this run retrieved" in CAVEAT
