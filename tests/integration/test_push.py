"""Pushed run rows: the same figures as report --runs, stored like any other experiment."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs.domain.plan import from_json
from runs.domain.report import build_report
from runs.domain.rows import BadRows, UnmatchedReplicates, notices_of, pair_rows, read_jsonl
from runs.models import (
    Attempt,
    Cell,
    Execution,
    Experiment,
    ExperimentStatus,
    Grade,
    Origin,
    Outcome,
    Pair,
    PairArm,
    Task,
)
from runs.services import pushing
from runs.services.pushing import BadPush, OtherContent, read_push, store_push
from runs.services.reporting import report_of
from tests.factories import NOW, make_user
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db

ROWS: list[dict[str, Any]] = [
    # Three tasks in one cell: t1 was won with a skill, t2 lost, t3 lost its call.
    {"task": "t1", "arm": "SE", "outcome": 1, "retrieved": True, "skill_ids": ["a", "b"]},
    {"task": "t1", "arm": "SD", "outcome": 0, "retrieved": False},
    {"task": "t2", "arm": "SE", "outcome": 0, "retrieved": True, "skill_ids": ["a"]},
    {"task": "t2", "arm": "SD", "outcome": 1},
    {"task": "t3", "arm": "SE", "outcome": 0, "error_class": "transport", "retrieved": True},
    {"task": "t3", "arm": "SD", "outcome": 1},
]


def text_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]


def pushed(rows: Sequence[Mapping[str, Any]], slug: str = "elsewhere", **more: Any) -> Experiment:
    push = read_push(text_of(rows), format="jsonl", slug=slug, **more)
    return store_push(push, actor=None, at=NOW)


def report_of_file(rows: Sequence[Mapping[str, Any]], **how: Any) -> dict[str, Any]:
    """Return what ``report --runs FILE`` makes of the same rows."""
    file = read_jsonl(text_of(rows))
    pairing = pair_rows(rows=file.rows)
    notices = notices_of(ignored=file.ignored, pairing=pairing)
    return build_report(experiment={}, cells=pairing.cells, notices=notices, **how)


def figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a report says, but for what names rows of this database."""
    cells = []
    for cell in report["cells"]:
        about = {name: value for name, value in cell["cell"].items() if name != "sha12"}
        cells.append({**cell, "cell": about})
    cells.sort(key=lambda cell: json.dumps(cell["cell"], sort_keys=True))
    flips = [
        {name: flip[name] for name in ("task", "replicate", "skills", "failed_call")}
        for flip in report["harmful_flips"]
    ]
    return {
        "cells": cells,
        "harmful_flips": sorted(flips, key=lambda flip: json.dumps(flip, sort_keys=True)),
        **{name: report[name] for name in ("preset", "failure_policy", "notices")},
        "sign_disagreements": report["sign_disagreements"],
    }


# --- figures ----------------------------------------------------------------------


def test_figures_are_those_of_the_file() -> None:
    found = report_of(pushed(ROWS))
    assert figures(found) == figures(report_of_file(ROWS))
    (cell,) = found["cells"]
    # t1 is won, t2 lost and t3 left out: b = c = 1 of two pairs.
    assert (cell["n_pairs"], cell["b"], cell["c"], cell["n_censored"]) == (2, 1, 1, 1)
    assert found["notices"] == ["runs that were made elsewhere"]


def test_preset_and_policy_are_kept_and_counted_by() -> None:
    experiment = pushed(ROWS, preset="paper")
    report = report_of(experiment)
    expected = report_of_file(ROWS, preset="paper", failure_policy="incorrect")
    assert figures(report) == figures(expected)
    # The failed call of t3 counts as wrong: one more lost pair.
    assert (report["cells"][0]["n_pairs"], report["cells"][0]["c"]) == (3, 2)


def test_what_could_not_be_paired_is_told_and_never_averaged() -> None:
    rows: list[dict[str, Any]] = [
        {"task": "t1", "arm": "SE", "outcome": 1},
        {"task": "t1", "arm": "SE", "outcome": 0},
        {"task": "t1", "arm": "SD", "outcome": 1},
        {"task": "t2", "arm": "SE", "outcome": 1},
        {"task": "t3", "arm": "SE", "outcome": 1},
        {"task": "t3", "arm": "SD", "outcome": 1, "retrieved": True},
        {"task": "t4", "arm": "SE", "outcome": 1},
        {"task": "t4", "arm": "SD", "outcome": None, "strange": 4},
        {"task": "t5", "arm": "SE", "error_class": "unequal_parameters"},
        {"task": "t5", "arm": "SD", "error_class": "unequal_parameters"},
        {"task": "t6", "arm": "SE", "outcome": 1},
        {"task": "t6", "arm": "SE", "outcome": 1, "source": "again"},
        {"task": "t6", "arm": "SD", "outcome": 0, "error_class": "sandbox"},
    ]
    rows = [{"replicate": 1, **row} for row in rows]
    experiment = pushed(rows)
    assert figures(report_of(experiment)) == figures(report_of_file(rows))
    answer = experiment.spec["analysis"]["pushed"]
    assert answer["conflicts"] == [{"task": "t1", "arm": "SE", "replicate": 1}]
    assert answer["unpaired"] == [{"task": "t2", "replicate": 1}]
    assert (answer["repeated"], answer["ignored_columns"]) == (1, ["strange"])
    assert report_of(experiment)["cells"][0]["censored"] == {
        "se": {"conflict": 1, "unequal_parameters": 1},
        "sd": {
            **{"contaminated": 1, "host": 1, "missing": 1, "no_result": 1},
            "unequal_parameters": 1,
        },
    }
    # Both contradicting rows are kept to be looked at; the missing arm has no execution.
    assert Attempt.objects.filter(failure="conflict").count() == 2
    assert PairArm.objects.filter(pair__task__key="t2").count() == 1


def test_cells_are_described_as_the_rows_describe_them() -> None:
    rows = [
        {**row, "model": "m", "agent": "a", "cell": {"benchmark": "b", "k": k}}
        for row in ROWS
        for k in (1, 3)
    ]
    report = report_of(pushed(rows))
    assert figures(report) == figures(report_of_file(rows))
    described = [{**cell["cell"], "sha12": ""} for cell in report["cells"]]
    assert sorted(cell["k"] for cell in described) == [1, 3]
    assert all(set(cell) == {"model", "agent", "benchmark", "k", "sha12"} for cell in described)


run_rows = st.fixed_dictionaries(
    {
        "task": st.sampled_from(["007", "NA", "ä/1"]),
        "arm": st.sampled_from(["SE", "SD"]),
        "replicate": st.integers(0, 2),
        "outcome": st.sampled_from([0, 1, None, True, 1.0]),
        "retrieved": st.sampled_from([True, False, None]),
        "skill_ids": st.lists(st.sampled_from(["a", "b"]), max_size=2),
        "error_class": st.sampled_from(
            [None, "timeout", "call", "sandbox", "contaminated", "unequal_parameters", "other"]
        ),
        "cell": st.sampled_from([{}, {"k": 3}, {"design": "aa"}, {"design": "x", "model": 5}]),
        "model": st.sampled_from([None, "m"]),
        "score": st.sampled_from([None, 0.5]),
    }
)


@given(
    rows=st.lists(run_rows, min_size=1, max_size=24),
    policy=st.sampled_from(["censor", "incorrect"]),
)
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_figures_are_those_of_the_file_whatever_the_rows(
    rows: list[dict[str, Any]], policy: str
) -> None:
    slug = f"rows-{Experiment.objects.count()}"
    report = report_of(pushed(rows, slug, failure_policy=policy))
    assert figures(report) == figures(report_of_file(rows, failure_policy=policy))


# --- what is stored ---------------------------------------------------------------


@pytest.mark.both_databases
def test_rows_become_the_rows_of_an_experiment() -> None:
    author = make_user("lee", Role.LEAD)
    rows = [
        {
            **{"task": "t1", "arm": "SE", "outcome": 1, "score": 0.75, "retrieved": True},
            **{"skill_ids": ["a"], "tokens_in": 10, "tokens_out": 3, "duration_s": 1.5},
            **{"source": "log 1", "prompt": "Add.", "answer": "x + y", "queries": ["adding"]},
        },
        {"task": "t1", "arm": "SD", "outcome": 0, "model": None},
    ]
    push = read_push(text_of(rows), format="jsonl", slug="elsewhere")
    experiment = store_push(push, actor=author, at=NOW)
    assert (experiment.origin, experiment.status) == (Origin.PUSHED, ExperimentStatus.FINISHED)
    assert (experiment.author, experiment.ended_at) == (author, NOW)
    assert from_json(experiment.spec).slug == "elsewhere"
    task = Task.objects.get()
    assert (task.prompt, task.kind, task.checker) == ("Add.", "imported", {})
    assert task.benchmark.slug == "imported"
    se, sd = Attempt.objects.order_by("-exposed")
    assert (se.exposed, se.invoked, se.retrieved, se.returned_ids) == (True, None, True, ["a"])
    assert (se.tokens_in, se.tokens_out, se.latency_s, se.source) == (10, 3, 1.5, "log 1")
    assert (se.trace["answer"], se.trace["searches"]) == ("x + y", [{"query": "adding"}])
    assert (sd.exposed, sd.retrieved, sd.source, "answer" in sd.trace) == (
        *(False, None, "pushed"),
        False,
    )
    assert {(g.verdict, g.tier, g.checker_sha256) for g in Grade.objects.all()} == {
        ("pass", "imported", "imported"),
        ("fail", "imported", "imported"),
    }
    assert Outcome.objects.get().transition == "helpful"
    # What the rows don't say is not made up.
    spec = Cell.objects.get().treatment.spec
    unsaid = ("model", "endpoint", "dialect", "temperature", "max_tokens", "strategy", "k")
    assert {spec[name] for name in unsaid} == {None}


def test_tasks_are_shared_by_pushes_and_never_pass_for_a_suites() -> None:
    cell = {"benchmark": "starter"}
    pushed([{**row, "cell": cell} for row in ROWS], "one")
    pushed([{**row, "cell": {**cell, "k": 5}} for row in ROWS], "two")
    assert Task.objects.count() == 3
    assert {task.benchmark.slug for task in Task.objects.all()} == {"imported-starter"}


# --- again ------------------------------------------------------------------------


def counts() -> list[int]:
    kept = (Experiment, Cell, Pair, Execution, PairArm, Attempt, Grade, Outcome, Task)
    return [model.objects.count() for model in kept]


def test_the_same_rows_in_any_order_change_nothing() -> None:
    first = pushed(ROWS)
    before = counts()
    assert pushed(list(reversed(ROWS))) == first
    assert counts() == before
    # Under another slug they are another experiment.
    assert pushed(ROWS, "other").pk != first.pk


@pytest.mark.parametrize(
    "other", [ROWS[:4], [*ROWS[:5], {**ROWS[5], "outcome": 0}]], ids=["fewer", "changed"]
)
def test_other_rows_under_the_slug_are_refused(other: list[dict[str, Any]]) -> None:
    pushed(ROWS)
    before = counts()
    with pytest.raises(OtherContent, match="push these rows under another slug"):
        pushed(other)
    with pytest.raises(OtherContent):
        pushed(ROWS, preset="paper")
    assert counts() == before


class Crash(Exception):
    """The worker died."""


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_a_push_that_was_cut_off_shows_nothing_and_is_taken_up_where_it_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pushing, "CHUNK", 1)
    push = read_push(text_of(ROWS), format="jsonl", slug="elsewhere")

    def crash(finished: int, steps: int, note: str) -> None:
        assert (steps, note) == (3, "storing cell 1 of 1")
        if finished == 2:
            raise Crash

    with pytest.raises(Crash):
        store_push(push, actor=None, at=NOW, say=crash)
    stored = Experiment.objects.get()
    # The chunk that was being stored is undone, the one before it is kept.
    assert (stored.status, Pair.objects.count()) == (ExperimentStatus.PLANNED, 1)
    report = report_of(stored)
    assert (report["cells"], report["notices"]) == ([], [pushing_notice()])
    again = store_push(push, actor=None, at=NOW)
    assert again.status == ExperimentStatus.FINISHED
    assert figures(report_of(again)) == figures(report_of_file(ROWS))
    assert Attempt.objects.count() == 6


def pushing_notice() -> str:
    from runs.services.reporting import BEING_PUSHED

    return BEING_PUSHED


# --- refusals ---------------------------------------------------------------------


def test_every_unusable_row_is_named_and_nothing_is_stored() -> None:
    rows: list[dict[str, Any]] = [
        ROWS[0],
        {"task": "x" * 201, "arm": "SE"},
        {"task": "t2", "arm": "SE", "replicate": -1},
        {"task": "t2", "arm": "SE", "tokens_in": 2**31},
        {"task": "t2", "arm": "SE", "cell": {"a": ["\0"]}},
        {"task": "t2", "arm": "SE", "error_class": "pending"},
        {"task": "t3", "arm": "SE", "prompt": "one"},
        {"task": "t3", "arm": "SD", "prompt": "two"},
    ]
    with pytest.raises(BadRows) as caught:
        pushed(rows)
    assert [(p.line, p.column) for p in caught.value.problems] == [
        (2, "task"),
        (3, "replicate"),
        (4, "tokens_in"),
        (5, "cell"),
        (6, "error_class"),
        (8, "prompt"),
    ]
    assert "row 7 gives the task t3 another prompt" in str(caught.value)
    assert not Experiment.objects.exists()


def test_what_is_no_push_as_a_whole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadPush, match="holds no runs"):
        pushed([])
    for slug in ("", "Not a slug", "x" * 101, "push"):
        with pytest.raises(BadPush):
            pushed(ROWS, slug)
    with pytest.raises(BadPush, match="default, paper"):
        pushed(ROWS, preset="other")
    with pytest.raises(BadPush, match="censor, incorrect"):
        pushed(ROWS, failure_policy="other")
    with pytest.raises(UnmatchedReplicates):
        pushed([ROWS[0], {**ROWS[0], "outcome": 0}])
    monkeypatch.setattr(pushing, "MOST_ROWS", 5)
    with pytest.raises(BadPush, match="more than"):
        pushed(ROWS)
