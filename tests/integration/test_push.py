"""Pushed run rows: the same figures as report --runs, stored like any other experiment."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.conf import LazySettings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runs.api import run_rows
from runs.domain.plan import from_json
from runs.domain.report import build_report
from runs.domain.rows import BadRows, UnmatchedReplicates, notices_of, pair_rows, read_jsonl
from runs.domain.suites import Suite
from runs.models import (
    Attempt,
    Benchmark,
    Cell,
    Execution,
    Experiment,
    ExperimentDraft,
    ExperimentStatus,
    Grade,
    Origin,
    Outcome,
    Pair,
    PairArm,
    Task,
)
from runs.selectors import newest_benchmarks
from runs.services import handing_in, lifecycle, pushing, reporting
from runs.services.handing_in import perform_push
from runs.services.lifecycle import WrongStatus
from runs.services.preparing import NotReady, import_suite
from runs.services.pushing import BadPush, OtherContent, read_push, store_push
from runs.services.reporting import inputs_of, report_of
from tests.factories import NOW, make_experiment, make_user
from tests.htmlchecks import faults_of
from workbench.jobs import perform
from workbench.kernel.identity import sha256_of
from workbench.kernel.roles import Role
from workbench.models import Job

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
    assert answer["summary"] == (
        "13 rows became 6 pairs; 1 identical row counted once; 1 arm left out: rows contradict "
        "each other; 1 pair left out: one arm only."
    )
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


some_rows = st.fixed_dictionaries(
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
    rows=st.lists(some_rows, min_size=1, max_size=24),
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("C++", "C#"),  # both "c"
        ("数学", "代码"),  # both nothing
        ("Numbers", "numbers"),
        ("", "数学"),
        (None, ""),
        ("c", "C"),
        (5, "5"),
        ("x" * 81, "x" * 82),
        ("c", "c-" + sha256_of("c")[:8]),
    ],
)
def test_benchmarks_of_two_names_keep_their_tasks_apart(one: Any, other: Any) -> None:
    """Two benchmarks each have a task 1 with a prompt of its own: both are taken."""
    rows = [
        {"task": "1", "arm": arm, "outcome": 1, "prompt": f"in {name!r}", "cell": said}
        for name in (one, other)
        for said in ({"benchmark": name, "n": repr(name)},)
        for arm in ("SE", "SD")
    ]
    experiment = pushed(rows, "both")
    assert len(report_of(experiment)["cells"]) == 2
    prompts = dict(Task.objects.values_list("benchmark__slug", "prompt"))
    assert sorted(prompts.values()) == sorted((f"in {one!r}", f"in {other!r}"))
    assert all(re.fullmatch("imported(-[-a-z0-9_]+)?", slug) for slug in prompts)
    assert max(map(len, prompts)) <= 100


def test_tasks_of_pushed_runs_are_no_suite(lead: Client) -> None:
    pushed([{**row, "cell": {"benchmark": "starter"}} for row in ROWS], "one")
    assert not newest_benchmarks().exists()
    assert lead.get("/api/v1/suites/").json()["results"] == []
    assert "imported-starter" not in lead.get("/suites/").content.decode()
    suite = Suite(name="imported-starter", comparator="exact", tasks=())
    with pytest.raises(NotReady, match="kept for the tasks of pushed runs"):
        import_suite(suite=suite, open_grader=lambda: pytest.fail("nothing is graded"))


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


def test_figures_of_half_a_push_are_never_taken_for_those_of_all_of_it(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pushed(ROWS)
    assert len(report_of(whole)["cells"]) == 1
    # All rows are there, but not yet the last step.
    Experiment.objects.update(status=ExperimentStatus.PLANNED)
    half = Experiment.objects.get()
    assert report_of(half)["cells"] == []
    assert inputs_of(half) != inputs_of(whole)
    where = {"slug": "elsewhere"}
    cell = {**where, "sha12": Cell.objects.get().sha256[:12]}
    shown = lead.get(reverse("experiment", kwargs=where)).content.decode()
    assert "storing" in shown
    assert "still being stored" in shown
    assert faults_of(shown) == []
    assert "storing" in lead.get(reverse("experiments")).content.decode()
    assert lead.get(reverse("home")).status_code == 200
    assert lead.get(reverse("cell", kwargs=cell)).status_code == 404
    asked = {"kind": "runs", "format": "csv", "experiments": ["elsewhere"]}
    refused = lead.post(reverse("api-exports"), asked, "application/json")
    assert "still being stored" in refused.json()["fields"]["experiments"][0]
    with monkeypatch.context() as unguarded:  # what it would show without that
        unguarded.setattr(reporting, "is_being_pushed", lambda experiment: False)
        assert len(report_of(half)["cells"]) == 1
    assert len(report_of(pushed(ROWS))["cells"]) == 1


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


def test_lines_made_to_swell_are_refused_before_they_are_parsed() -> None:
    row = json.dumps(ROWS[0])
    many = row[:-1] + ', "cell": {"a": [' + "[]," * 60_000 + "1]}}"
    with pytest.raises(BadPush, match="line 2 may hold more than 100,000 values"):
        read_push([row, many], format="jsonl", slug="elsewhere")
    endless = io.StringIO(row + "\n" + "x" * 5_000_000)
    pieces = [len(line) for line in pushing.lines_of(endless)][1:]
    assert max(pieces) == pushing.LONGEST_LINE + 1, "never the whole line at once"
    for format in ("jsonl", "csv"):
        endless.seek(0)
        with pytest.raises(BadPush, match="line 2 has more than 1,000,000 characters"):
            read_push(pushing.lines_of(endless), format=format, slug="elsewhere")


# --- handing in -------------------------------------------------------------------


@pytest.fixture
def folder(settings: LazySettings, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path / "pushes"


@pytest.fixture
def lead(client: Client, folder: Path) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


def ndjson(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(text_of(rows)).encode()


def csv_of(rows: Sequence[Mapping[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    writer.writerows(
        {n: json.dumps(v) if isinstance(v, list) else v for n, v in row.items()} for row in rows
    )
    return out.getvalue().encode()


def send(client: Client, body: Any, kind: str = "application/json", query: str = "") -> Any:
    return client.post(reverse("api-run-rows") + query, body, content_type=kind)


def done_job(uid: str) -> Job:
    perform(UUID(uid), perform_push)
    return Job.objects.get(uid=uid)


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson", "text/csv"])
def test_programs_hand_rows_in_and_are_told_what_became_of_them(lead: Client, kind: str) -> None:
    bodies = {
        "application/json": {"experiment": "elsewhere", "rows": ROWS},
        "application/x-ndjson": ndjson(ROWS),
        "text/csv": csv_of(ROWS),
    }
    query = "" if kind == "application/json" else "?experiment=elsewhere"
    answer = send(lead, bodies[kind], kind, query)
    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert answer["Location"] == reverse("api-job", kwargs={"uid": answer.json()["uid"]})
    assert not Experiment.objects.exists()
    job = done_job(answer.json()["uid"])
    told = lead.get(answer["Location"]).json()
    assert (told["state"], told["problem"]) == ("done", "")
    result = told["result"]
    assert (result["rows"], result["pairs"], result["cells"]) == (6, 3, 1)
    assert (result["experiment"], result["path"]) == ("elsewhere", "/experiments/elsewhere/")
    assert Experiment.objects.get().author == job.actor
    found = lead.get(reverse("api-experiment-report", kwargs={"slug": "elsewhere"})).json()
    assert figures(found) == figures(report_of_file(ROWS))


def test_rows_that_cannot_be_used_are_all_named_and_none_is_stored(lead: Client) -> None:
    rows = [ROWS[0], {"task": "", "arm": "SX"}, *({"task": "t", "arm": "?"} for _ in range(60))]
    uid = send(lead, {"experiment": "elsewhere", "rows": rows}).json()["uid"]
    told = lead.get(reverse("api-job", kwargs={"uid": done_job(uid).uid})).json()
    assert told["state"] == "failed"
    # Two of row 2 and one of each of sixty more: programs get all 62, people the first twenty.
    problems = told["result"]["problems"]
    assert [(p["row"], p["column"]) for p in problems[:3]] == [(2, "task"), (2, "arm"), (3, "arm")]
    assert len(problems) == 62
    lines = told["problem"].splitlines()
    assert lines[0].startswith("Nothing was stored: 61 rows can't be used.")
    assert (lines[2], lines[-1]) == (
        "row 2, arm: 'SX' is no arm: SE (with skills) or SD (without)",
        "... and 42 more",
    )
    assert not Experiment.objects.exists()


@pytest.mark.parametrize(
    ("body", "kind", "query", "status", "field"),
    [
        ({"rows": ROWS}, "application/json", "", 400, "experiment"),
        ({"experiment": "Not a slug", "rows": ROWS}, "application/json", "", 400, "experiment"),
        ({"experiment": "push", "rows": ROWS}, "application/json", "", 400, "experiment"),
        ({"experiment": "a", "rows": []}, "application/json", "", 400, "rows"),
        ({"experiment": "a", "rows": ROWS, "k": 1}, "application/json", "", 400, "k"),
        ({"experiment": "a", "rows": ROWS, "preset": "x"}, "application/json", "", 400, "preset"),
        (b"{}", "application/x-ndjson", "", 400, "experiment"),
        (b"{}", "application/x-ndjson", "?experiment=a&failure_policy=x", 400, "failure_policy"),
        (b"{}", "application/xml", "", 415, None),
    ],
)
def test_what_is_no_push_is_refused_at_once(
    lead: Client, folder: Path, body: Any, kind: str, query: str, status: int, field: str | None
) -> None:
    answer = send(lead, body, kind, query)
    assert answer.status_code == status
    assert list(answer.json()["fields"]) == ([field] if field else [])
    assert not Job.objects.exists()
    assert list(folder.glob("*")) == []


def test_rows_beyond_the_limits_are_refused_and_not_kept(
    lead: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_rows, "LARGEST_JSON", 100)
    answer = send(lead, {"experiment": "a", "rows": ROWS})
    assert answer.status_code == 413
    assert "application/x-ndjson" in answer.json()["message"]
    monkeypatch.setattr(handing_in, "LARGEST_BYTES", 100)
    answer = send(lead, ndjson(ROWS), "application/x-ndjson", "?experiment=a")
    assert (answer.status_code, answer.json()["error"]) == (413, "too_large")
    assert list(folder.iterdir()) == []
    assert not Job.objects.exists()


def test_pushed_again_the_same_rows_are_taken_and_others_refused(
    lead: Client, folder: Path
) -> None:
    body = {"experiment": "elsewhere", "rows": ROWS}
    first = done_job(send(lead, body).json()["uid"])
    again = done_job(send(lead, {**body, "rows": list(reversed(ROWS))}).json()["uid"])
    assert again.result == first.result
    kept = set(folder.iterdir())
    refused = send(lead, {**body, "rows": ROWS[:4]})
    assert refused.status_code == 409
    assert "push these rows under another slug" in refused.json()["message"]
    assert send(lead, {**body, "preset": "paper"}).status_code == 409
    bad = send(lead, {**body, "rows": [{"task": "t", "arm": "?"}]})
    assert bad.status_code == 400
    assert "row 1, arm" in bad.json()["fields"]["rows"][0]
    assert set(folder.iterdir()) == kept  # nothing is kept of what was refused
    # Two at once: whoever comes second finds what the first has made of the slug.
    one, two = (
        send(lead, {"experiment": "both", "rows": rows}).json()["uid"] for rows in (ROWS, ROWS[:4])
    )
    assert done_job(one).problem == ""
    assert "under another slug" in done_job(two).problem


def test_a_push_that_names_a_key_is_done_once(lead: Client) -> None:
    answers = [
        lead.post(
            f"{reverse('api-run-rows')}?experiment=elsewhere",
            ndjson(ROWS),
            content_type="application/x-ndjson",
            headers={"Idempotency-Key": "june"},
        )
        for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json() == answers[1].json()
    assert Job.objects.count() == 1


def test_a_slug_of_something_else_is_refused(lead: Client) -> None:
    make_experiment("panel", tasks=1)
    answer = send(lead, {"experiment": "panel", "rows": ROWS})
    assert answer.status_code == 409
    assert "that is run here" in answer.json()["message"]
    ExperimentDraft.objects.create(slug="draft", toml="", created_at=NOW, updated_at=NOW)
    assert send(lead, {"experiment": "draft", "rows": ROWS}).status_code == 409


def test_kept_rows_are_removed_when_their_job_has_ended(lead: Client, folder: Path) -> None:
    uid = send(lead, {"experiment": "elsewhere", "rows": ROWS}).json()["uid"]
    (path,) = folder.iterdir()
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    later = timezone.now() + handing_in.KEPT_FOR + timedelta(minutes=1)
    handing_in.remove_old_rows(now=later)
    assert path.exists()
    done_job(uid)
    handing_in.remove_old_rows(now=timezone.now())
    assert path.exists()  # a crash just now would do the job again
    handing_in.remove_old_rows(now=later)
    assert not path.exists()
    Job.objects.filter(uid=uid).update(state="pending")
    assert "Push them again" in done_job(uid).problem


def test_people_hand_in_a_file_and_are_led_to_how_far_it_is(lead: Client) -> None:
    for name, body in (("rows.jsonl", ndjson(ROWS)), ("rows.CSV", csv_of(ROWS))):
        slug = f"of-{name[5:].lower()}"
        file = SimpleUploadedFile(name, body)
        response = lead.post(reverse("push"), {"experiment": slug, "file": file})
        job = Job.objects.latest("pk")
        assert response["Location"] == reverse("job", kwargs={"uid": job.uid})
        assert done_job(str(job.uid)).problem == ""
        page = lead.get(response["Location"]).content.decode()
        assert f'href="/experiments/{slug}/"' in page
        assert (
            figures(report_of(Experiment.objects.get(slug=slug)))["cells"]
            == (figures(report_of_file(ROWS))["cells"])
        )


@pytest.mark.parametrize(
    ("slug", "name", "body", "status", "said"),
    [
        ("Not a slug", "a.jsonl", b"{}", 400, "joined by hyphens"),
        ("a", "a.txt", b"{}", 400, "must end in .jsonl"),
        ("a", None, b"", 400, "choose a .jsonl or .csv"),
        ("taken", "a.jsonl", b'{"task": "t", "arm": "SE"}', 409, "under another slug"),
        ("taken", "a.jsonl", b'{"task": "t", "arm": "<b>"}', 400, "row 1, arm: &#x27;&lt;b&gt;"),
        ("taken", "a.jsonl", b"\xff", 400, "isn&#x27;t UTF-8"),
    ],
)
def test_a_refused_file_says_why_and_keeps_what_was_typed(
    lead: Client, slug: str, name: str | None, body: bytes, status: int, said: str
) -> None:
    pushed(ROWS, "taken")
    given: dict[str, Any] = {"experiment": slug, "preset": "paper"}
    if name:
        given["file"] = SimpleUploadedFile(name, body)
    response = lead.post(reverse("push"), given)
    html = response.content.decode()
    assert response.status_code == status
    assert said in html
    assert faults_of(html) == []
    assert f'value="{slug}"' in html
    assert '<option value="paper" selected>' in html
    assert not Job.objects.exists()


def test_the_command_needs_no_server_and_tells_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ndjson([*ROWS, {"task": "t9", "arm": "SE", "outcome": 1, "odd": 1}]))
    call_command("push_runs", str(path), experiment="elsewhere")
    said = capsys.readouterr().out
    assert "elsewhere: 7 rows, 4 pairs, 1 cell stored" in said
    assert "left out, one arm only (1): t9 0" in said
    assert "columns that were not read: odd" in said
    call_command("push_runs", str(path), experiment="elsewhere", json=True)
    assert json.loads(capsys.readouterr().out)["pairs"] == 4
    path.write_bytes(ndjson([{"task": "t", "arm": "SX"}]))
    for rows, why in ((path, "row 1, arm: 'SX'"), (tmp_path / "a.txt", "must end in")):
        with pytest.raises(CommandError, match=why) as refused:
            call_command("push_runs", str(rows), experiment="elsewhere")
        assert refused.value.returncode == 2
    assert Experiment.objects.count() == 1


# --- pages ------------------------------------------------------------------------

ODD: list[dict[str, Any]] = [
    {
        **{"task": "<b>&\u202e", "arm": arm, "outcome": arm == "SE", "retrieved": arm == "SE"},
        **{"answer": f"<script>{arm}", "queries": ["<i>"], "prompt": "<u>", "source": "<s>"},
        **{"skill_ids": ["<a>"] if arm == "SE" else [], "cell": cell},
    }
    for arm in ("SE", "SD")
    for cell in (
        {"model": 5, "benchmark": ["x"], "partition": 3, "control": {"a": None}, "k": [1]},
        {"model": "<m>", "benchmark": "", "partition": {"size": "x"}, "library": 7, "design": "?"},
        {"example": True},
        {"sha12": "made up", "<key>": "<value>"},
    )
]


def test_every_page_shows_pushed_runs_whatever_their_rows_say(lead: Client) -> None:
    rows: list[dict[str, Any]] = [
        *ODD,
        {"task": "one arm", "arm": "SE"},
        *({**ROWS[0], "outcome": n} for n in (0, 1)),
    ]
    rows = [{**row, "replicate": 1} for row in rows]
    experiment = pushed(rows)
    urls = [
        reverse("experiment", kwargs={"slug": "elsewhere"}),
        reverse("experiments"),
        reverse("home"),
        reverse("skills"),
        f"{reverse('exports')}?experiment=elsewhere",
        reverse("experiment-report", kwargs={"slug": "elsewhere", "format": "csv"}),
        reverse("experiment-report", kwargs={"slug": "elsewhere", "format": "md"}),
        reverse("api-experiment", kwargs={"slug": "elsewhere"}),
        reverse("suites"),
        *(reverse("suite", kwargs={"slug": b.slug}) for b in Benchmark.objects.all()),
    ]
    for cell in Cell.objects.filter(experiment=experiment):
        where = {"slug": "elsewhere", "sha12": cell.sha256[:12]}
        urls += [reverse(name, kwargs=where) for name in ("cell", "api-cell", "api-cell-pairs")]
    for pair in Pair.objects.all():
        urls += [
            reverse("pair", kwargs={"uid": pair.uid}),
            reverse("api-pair", kwargs={"uid": pair.uid}),
        ]
    for url in urls:
        response = lead.get(url)
        assert response.status_code == 200, url
        if response["Content-Type"].startswith("text/html"):
            html = response.content.decode()
            assert faults_of(html) == [], url
            for text in ("<b>&", "<script>SE", "<i>", "<u>", "<a>", "<m>", "<key>", "\u202e"):
                assert text not in html, (url, text)


def test_nothing_of_it_can_be_run_here_and_no_button_offers_it(lead: Client) -> None:
    experiment = pushed(ROWS)
    page = lead.get(reverse("experiment", kwargs={"slug": "elsewhere"})).content.decode()
    for name in ("pause", "resume", "cancel", "retry"):
        url = reverse(f"experiment-{name}", kwargs={"slug": "elsewhere"})
        assert f'action="{url}"' not in page
        response = lead.post(url, {"reason": "because"}, follow=True)
        assert "made elsewhere" in response.content.decode(), name
    with pytest.raises(WrongStatus, match="push new runs under another slug"):
        lifecycle.start(experiment=experiment, actor=None, at=NOW)
    before = counts()
    experiment.refresh_from_db()
    assert experiment.status == ExperimentStatus.FINISHED
    assert counts() == before
