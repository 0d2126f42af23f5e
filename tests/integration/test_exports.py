"""Exports: whole, exact, bounded in memory, and no one's but those who may have them."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import time
import tracemalloc
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import LazySettings
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from runs.domain.render import unguarded
from runs.domain.report import BEING_GRADED_AGAIN, CANCELLED, build_report
from runs.domain.rows import pair_rows, read_csv, read_jsonl
from runs.domain.tasks import Kind, TaskSpec
from runs.models import Arm, Attempt, Execution, Experiment, ExperimentStatus, PairArm
from runs.services import exporting
from runs.services.exporting import (
    KEPT_FOR,
    BadExport,
    ExportRemoved,
    file_of,
    perform_export,
    remove_old_exports,
    request_export,
)
from runs.services.pushing import read_push, store_push
from runs.services.reporting import report_of
from runs.services.writing import Column, Row, write_file
from tests.factories import (
    EMBEDDED_MODEL,
    NOW,
    cells_of,
    execution_of,
    finished_experiment,
    make_export,
    make_user,
    record,
    record_failure,
    set_status,
    trace,
)
from tests.factories import make_experiment as planned
from tests.integration.test_push import ROWS, figures, text_of
from workbench.jobs import Handle, JobMissing, perform
from workbench.kernel.leases import LeaseState
from workbench.kernel.roles import Role
from workbench.models import AuditEvent, Job

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(settings: LazySettings, tmp_path: Path) -> Path:
    settings.DATA_DIR = tmp_path
    return tmp_path / "exports"


def exported(kind: str, format: str, *slugs: str, **more: Any) -> tuple[Job, Path]:
    """Return the finished job of an export, and its file."""
    job = request_export(kind=kind, format=format, experiments=slugs, actor=None, at=NOW, **more)
    perform(job.uid, perform_export)
    job.refresh_from_db()
    assert job.state == LeaseState.DONE, job.problem
    return job, file_of(job)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trying() -> Experiment:
    """Return a finished experiment with every way in which a pair can end."""
    experiment = planned("panel", tasks=7, controls=("normal", "schema_empty"))
    for cell in cells_of(experiment):
        won, lost, alike, failed, leaked, unequal, host = cell.pairs.order_by("task__key")
        record(won, "b", skills=("two-pointer",))
        record(lost, "c", skills=("two-pointer", "prefix-sum"))
        record(alike, "a")
        record(unequal, "b", skills=("two-pointer",), dropped=["seed"])
        if cell.number == 1:  # the other cell's baselines are the same executions
            record_failure(failed, Arm.SD)
            record_failure(leaked, Arm.SD, failure="contaminated")
            record_failure(host, Arm.SE, failure="host")
    return set_status(experiment, ExperimentStatus.FINISHED)


# Said of what rows don't carry: how answers ended, and whether the search was called.
NOT_IN_ROWS = ("answers", "n_invoked", "n_malformed_decisions", "n_invalid_calls", "notes")


def of_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in cell.items() if name not in NOT_IN_ROWS}
        for cell in report["cells"]
    ]


# --- runs -------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["censor", "incorrect"])
@pytest.mark.parametrize(("format", "read"), [("jsonl", read_jsonl), ("csv", read_csv)])
def test_a_report_of_exported_runs_is_the_experiments(format: str, read: Any, policy: str) -> None:
    experiment = trying()
    Experiment.objects.filter(pk=experiment.pk).update(
        spec={**experiment.spec, "failure_policy": policy}
    )
    experiment.refresh_from_db()
    job, path = exported("runs", format, "panel")
    with path.open(encoding="utf-8", newline="") as lines:
        found = build_report(
            experiment={},
            cells=pair_rows(rows=read(lines).rows).cells,
            failure_policy=policy,
        )
    expected = report_of(experiment)
    assert of_rows(found) == of_rows(expected)
    assert found["sign_disagreements"] == expected["sign_disagreements"]
    assert [f["task"] for f in found["harmful_flips"]] == [
        f["task"] for f in expected["harmful_flips"]
    ]
    # Two cells of seven pairs with two arms each.
    assert job.result is not None
    assert job.result["rows"] == 28
    assert sum(cell["n_planned"] for cell in expected["cells"]) * 2 == 28


def test_an_unfinished_experiment_is_exported_as_unfinished() -> None:
    experiment = planned("panel", tasks=2)
    record(cells_of(experiment)[0].pairs.order_by("task__key")[0], "b", skills=("two-pointer",))
    _, path = exported("runs", "jsonl", "panel")
    assert [row["error_class"] for row in lines_of(path)].count("pending") == 2
    with path.open(encoding="utf-8") as lines:
        found = build_report(experiment={}, cells=pair_rows(rows=read_jsonl(lines).rows).cells)
    assert of_rows(found) == of_rows(report_of(experiment))
    assert found["cells"][0]["n_pending"] == 1


def test_a_row_says_what_was_recorded_of_the_run() -> None:
    experiment = finished_experiment("panel", retrieved="c")
    _, path = exported("runs", "jsonl", "panel")
    se, sd = lines_of(path)
    pair = cells_of(experiment)[0].pairs.get()
    of = {arm.arm: str(arm.execution.uid) for arm in PairArm.objects.filter(pair=pair)}
    assert se == {
        "task": "tasks/001",
        "arm": "SE",
        "replicate": 1,
        "outcome": 0,
        "score": None,
        "retrieved": True,
        "skill_ids": ["two-pointer", "edge-case-guard"],
        "cell": report_of(experiment)["cells"][0]["cell"],
        "model": "small-model",
        "agent": None,
        "tokens_in": 120,
        "tokens_out": 40,
        "duration_s": 0.5,
        "error_class": None,
        "source": "panel",
        "notices": [],
        "experiment": "panel",
        "pair": str(pair.uid),
        "execution": of["SE"],
        "verdict": "fail",
        "tier": "A",
        "attempts": 1,
    }
    assert (sd["arm"], sd["outcome"], sd["retrieved"], sd["skill_ids"]) == ("SD", 1, False, [])


def test_pushed_runs_come_out_as_they_went_in() -> None:
    rows = [
        *({"replicate": 1, **row} for row in ROWS),
        {"task": "t4", "arm": "SE", "replicate": 1, "outcome": 1, "score": 0.25, "model": "m"},
        {"task": "t4", "arm": "SE", "replicate": 1, "outcome": 0, "model": "m"},
        {"task": "t5", "arm": "SD", "replicate": 1, "outcome": 0, "error_class": "timeout"},
    ]
    experiment = store_push(
        read_push(text_of(rows), format="jsonl", slug="elsewhere"), actor=None, at=NOW
    )
    _, path = exported("runs", "jsonl", "elsewhere")
    again = [
        {
            name: row[name]
            for name in ("task", "arm", "replicate", "outcome", "retrieved", "skill_ids")
        }
        | {name: row[name] for name in ("score", "model", "error_class") if row[name]}
        for row in lines_of(path)
    ]
    with path.open(encoding="utf-8") as lines:
        found = build_report(experiment={}, cells=pair_rows(rows=read_jsonl(lines).rows).cells)
    assert figures({**found, "notices": []}) == figures({**report_of(experiment), "notices": []})
    # t4's two rows contradict each other: they come out as one that says so.
    assert {"task": "t5", "arm": "SD", "outcome": 0, "error_class": "timeout"}.items() <= next(
        row for row in again if row["task"] == "t5"
    ).items()
    (conflict,) = (row for row in again if row["task"] == "t4")
    assert (conflict["outcome"], conflict["error_class"]) == (None, "conflict")


def test_of_several_experiments_equal_cells_stay_apart() -> None:
    finished_experiment("one", retrieved="b")
    finished_experiment("two", retrieved="c")
    _, path = exported("runs", "jsonl", "one", "two")
    assert {row["cell"]["experiment"] for row in lines_of(path)} == {"one", "two"}
    with path.open(encoding="utf-8") as lines:
        pairing = pair_rows(rows=read_jsonl(lines).rows)
    assert (len(pairing.cells), pairing.conflicts) == (2, ())


def test_cells_can_be_chosen() -> None:
    experiment = trying()
    first, _ = cells_of(experiment)
    job, path = exported("pairs", "jsonl", "panel", cells=[first.sha256[:12]])
    assert {row["cell"] for row in lines_of(path)} == {first.sha256[:12]}
    assert job.result is not None
    assert job.result["rows"] == 7


# --- what every reader must go on being told ----------------------------------------


def told_by(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what ``report --runs`` makes of a file, and the report of the same rows, pushed.

    A run that never ended can't be pushed: its row is left out.
    """
    out = io.StringIO()
    call_command("report", "--runs", str(path), "--format", "json", stdout=out)
    if path.suffix == ".csv":
        lines: list[str] = path.read_text().splitlines(keepends=True)
    else:
        rows = [row for row in lines_of(path) if row["error_class"] != "pending"]
        lines = text_of(rows)
    push = read_push(lines, format=path.suffix[1:], slug=f"again-{path.suffix[1:]}")
    return json.loads(out.getvalue()), report_of(store_push(push, actor=None, at=NOW))


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_notices_outlive_an_export(format: str, client: Client) -> None:
    """Of four tasks of a demonstration one was checked unsandboxed, one in the own process.

    In a third one the endpoint refused the seed in both arms.
    """
    tasks = [
        TaskSpec(
            key=f"t{number}",
            prompt="p",
            kind=Kind.CODE,
            checker={"mode": "asserts", "checker_isolation": "in_process"}
            if number == 2
            else {"answers": []},
        )
        for number in range(4)
    ]
    experiment = planned("panel", tasks=tasks, model=EMBEDDED_MODEL)
    first, *others = cells_of(experiment)[0].pairs.order_by("task__key")
    for pair in others:
        record(pair, "b", skills=("two-pointer",))
    for arm in Arm:
        attempt = Attempt.objects.create(
            execution=execution_of(first, arm),
            number=1,
            trace=trace("x") | {"dropped_parameters": ["seed"]},
            exposed=arm == Arm.SE,
            invoked=False,
            retrieved=False,
            at=NOW,
        )
        Execution.objects.filter(pk=attempt.execution_id).update(state=LeaseState.DONE)
        attempt.grades.create(
            number=1, checker_sha256="c" * 64, verdict="pass", details={}, tier="A", at=NOW
        )
    for arm in Arm:
        attempt = execution_of(others[0], arm).attempts.get()
        attempt.grades.create(
            **{"number": 2, "checker_sha256": "c" * 64, "details": {}, "at": NOW},
            verdict="pass" if arm == Arm.SE else "fail",
            tier="unsandboxed",
        )
    set_status(experiment, ExperimentStatus.FINISHED)
    here = [
        "demonstration model",
        "answers were checked unsandboxed",
        "checked in the program's own process, where a pass can be forged: t2",
        "smollm2-135m: the endpoint refused seed",
    ]
    assert report_of(experiment)["notices"] == here
    _, path = exported("runs", format, "panel")
    for report in told_by(path):
        assert report["notices"][1:5] == [
            "answers were checked unsandboxed: t1",
            "checked in the program's own process, where a pass can be forged: t2",
            "demonstration model",
            "smollm2-135m: the endpoint refused seed: t0",
        ]
    # Pushed and exported once more they still say so.
    _, path = exported("runs", format, f"again-{format}")
    again = path.rename(path.with_name(f"x.{format}"))
    push = read_push(again.read_text().splitlines(keepends=True), format=format, slug="third")
    third = report_of(store_push(push, actor=None, at=NOW))
    assert third["notices"][1:5] == report["notices"][1:5]
    client.force_login(make_user("lee", Role.LEAD))
    assert (
        "<strong>Demonstration model.</strong>"
        in client.get("/experiments/third/").content.decode()
    )


def test_of_a_cancelled_experiment_the_export_says_so() -> None:
    experiment = planned("panel", tasks=8)
    for pair in cells_of(experiment)[0].pairs.order_by("task__key")[:5]:
        record(pair, "b", skills=("two-pointer",))
    set_status(experiment, ExperimentStatus.CANCELLED)
    expected = report_of(experiment)
    _, path = exported("runs", "jsonl", "panel")
    of_file, of_push = told_by(path)
    assert of_rows(of_file) == of_rows(expected)
    assert of_file["cells"][0]["cancelled"]
    assert of_file["cells"][0]["headline"] == expected["cells"][0]["headline"]
    assert CANCELLED in of_file["notices"]
    assert CANCELLED in of_push["notices"]
    # Without the row's own word it would pass for one that is still running.
    bare = [{**row, "notices": []} for row in lines_of(path)]
    assert not pair_rows(rows=read_jsonl(text_of(bare)).rows).cancelled


def test_rows_say_when_others_are_still_being_graded_again() -> None:
    experiment = finished_experiment("panel", retrieved="b")
    Experiment.objects.filter(pk=experiment.pk).update(regrading_since=NOW)
    _, path = exported("runs", "jsonl", "panel")
    assert {tuple(row["notices"]) for row in lines_of(path)} == {(BEING_GRADED_AGAIN,)}


# --- pairs, attempts, the audit trail ---------------------------------------------


def test_a_pair_says_how_it_came_out_or_why_it_was_left_out() -> None:
    trying()
    _, path = exported("pairs", "jsonl", "panel")
    rows = {row["task"]: row for row in lines_of(path)[:7]}
    assert [rows[f"tasks/00{n}"]["transition"] for n in range(1, 8)] == [
        *("helpful", "harmful", "both_pass", None, None, None, None),
    ]
    assert rows["tasks/002"]["skills"] == ["two-pointer", "prefix-sum"]
    # tasks/004 lost a call in SD and its SE run is still pending.
    assert (rows["tasks/004"]["sd_failure"], rows["tasks/006"]["left_out"]) == (
        *("call", "unequal_parameters"),
    )


def test_attempts_bring_their_traces_and_grades_whole() -> None:
    experiment = finished_experiment("panel", retrieved="c")
    job, path = exported("attempts", "jsonl", "panel")
    rows = lines_of(path)
    assert job.result is not None
    assert job.result["rows"] == len(rows) == 2
    for row in rows:
        attempt = Attempt.objects.get(execution__uid=row["execution"])
        assert row["trace"] == attempt.trace
        assert row["pairs"] == [str(cells_of(experiment)[0].pairs.get().uid)]
        assert [grade["verdict"] for grade in row["grades"]] in (["pass"], ["fail"])


def test_the_audit_trail_is_exported_for_admins_alone(client: Client) -> None:
    lead, admin = make_user("lee", Role.LEAD), make_user("ada", Role.ADMIN)
    with pytest.raises(BadExport, match="it takes runs, pairs, attempts"):
        request_export(kind="audit-events", format="csv", actor=lead, at=NOW)
    job = request_export(kind="audit-events", format="csv", actor=admin, at=NOW)
    perform(job.uid, perform_export)
    job.refresh_from_db()
    rows = list(csv.DictReader(io.StringIO(file_of(job).read_text())))
    assert [row["verb"] for row in rows] == [e.verb for e in AuditEvent.objects.order_by("pk")]
    assert (rows[-1]["verb"], rows[-1]["actor"]) == ("export.requested", "ada")
    # To a lead it looks like one that isn't there, in the list too.
    urls = [
        reverse(name, kwargs={"uid": job.uid})
        for name in ("export-file", "api-export-file", "api-export")
    ]
    for person, status in ((lead, 404), (admin, 200)):
        client.force_login(person)
        assert [client.get(url).status_code for url in urls] == [status] * 3
        listed = client.get(reverse("api-exports")).json()["results"]
        assert len(listed) == (person is admin)


def test_every_export_leaves_an_event() -> None:
    finished_experiment("panel", retrieved="c")
    user = make_user("lee", Role.LEAD)
    request_export(kind="runs", format="csv", experiments=["panel"], actor=user, at=NOW)
    event = AuditEvent.objects.latest("pk")
    assert (event.verb, event.actor, event.subject, event.reason) == (
        *("export.requested", user, "runs of panel", "csv"),
    )


# --- formats ----------------------------------------------------------------------

NASTY = ["=1+1", "+1", "-1", "@x", "\ttab", "\rcr", "plain", 'q"uote', "a,b", "two\nlines", "ä"]


@pytest.mark.parametrize("text", NASTY)
def test_csv_runs_no_formula_and_gives_every_text_back(tmp_path: Path, text: str) -> None:
    columns = (Column("task", "text"), Column("n", "float"), Column("b", "bool"))
    path = tmp_path / "rows.csv"
    rows: list[Row] = [{"task": text, "n": -1.5, "b": True}, {"task": None, "n": None, "b": None}]
    written = write_file(path, columns=columns, chunks=[rows], format="csv")
    head, first, second = csv.reader(io.StringIO(path.read_bytes().decode(), newline=""))
    assert head == ["task", "n", "b"]
    assert first[0][0] not in "=+-@\t\r"
    # Numbers stay numbers, below 0 too.
    assert (unguarded(first[0]), first[1:], second) == (text, ["-1.5", "true"], ["", "", ""])
    assert written.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (written.rows, written.bytes) == (2, path.stat().st_size)


@pytest.mark.parametrize("text", [*NASTY, "\ud800 half", "\u2028", "\0", "'=1"])
def test_jsonl_holds_every_value_exactly(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"value": {"text": text, "numbers": [0.1, 10**30, None, True]}}
    write_file(path, columns=(Column("value", "json"),), chunks=[[row]], format="jsonl")
    assert [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]] == [row]


def test_parquet_holds_the_same_rows() -> None:
    from pyarrow import parquet

    trying()
    job, path = exported("runs", "parquet", "panel")
    table = parquet.read_table(path)
    _, lines = exported("runs", "jsonl", "panel")
    expected = lines_of(lines)
    assert job.result is not None
    assert table.num_rows == job.result["rows"] == len(expected)
    for found, wanted in zip(table.to_pylist(), expected, strict=True):
        assert json.loads(found.pop("cell")) == wanted.pop("cell")
        assert json.loads(found.pop("skill_ids")) == wanted.pop("skill_ids")
        assert json.loads(found.pop("notices")) == wanted.pop("notices")
        assert found == wanted
    assert job.result["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_without_pyarrow_parquet_is_refused_with_the_remedy(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_experiment("panel", retrieved="c")
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(BadExport) as refused:
        exported("runs", "parquet", "panel")
    # Into the Python that runs this, and no other.
    assert f"run {sys.executable} -m pip install 'pyarrow" in str(refused.value)
    assert "then restart serve" in str(refused.value)
    exported("runs", "csv", "panel")
    client.force_login(make_user("lee", Role.LEAD))
    html = client.get("/exports/").content.decode()
    assert '<option value="parquet" disabled>' in html
    monkeypatch.undo()
    assert '<option value="parquet">' in client.get("/exports/").content.decode()


# --- files ------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_file_is_there_whole_or_not_at_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished_experiment("panel", retrieved="cccc")
    monkeypatch.setattr(exporting, "CHUNK", 1)
    job = request_export(kind="runs", format="csv", experiments=["panel"], actor=None, at=NOW)
    reports: list[tuple[int, int | None]] = []

    def killed(handle: Handle) -> Mapping[str, Any]:
        def report(*, finished: int, steps: int | None = None, note: str = "") -> None:
            reports.append((finished, steps))
            assert list(folder.glob("*.csv")) == []
            if finished == 3:
                raise Killed

        monkeypatch.setattr(handle, "report", report)
        return perform_export(handle)

    with pytest.raises(Killed):
        perform(job.uid, killed)
    assert reports == [(0, 4), (1, 4), (2, 4), (3, 4)]
    assert list(folder.iterdir()) == []
    Job.objects.filter(pk=job.pk).update(state=LeaseState.PENDING)
    perform(job.uid, perform_export)
    job.refresh_from_db()
    path = file_of(job)
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert job.result is not None
    assert job.result["rows"] == 8 == len(path.read_text().splitlines()) - 1


def test_files_are_kept_for_a_week_and_can_be_made_again(client: Client, folder: Path) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    finished_experiment("panel", retrieved="c")
    job, path = exported("runs", "csv", "panel")
    now = timezone.now()
    assert remove_old_exports(now=now + KEPT_FOR - timedelta(minutes=1)) == 0
    old = time.time() - KEPT_FOR.total_seconds() - 60
    os.utime(path, (old, old))
    assert remove_old_exports(now=now) == 1
    with pytest.raises(ExportRemoved):
        file_of(job)
    page = client.get(reverse("exports")).content.decode()
    assert "removed" in page
    assert "Make it again" in page
    response = client.get(reverse("export-file", kwargs={"uid": job.uid}), follow=True)
    assert "make the export again" in response.content.decode()
    answer = client.get(reverse("api-export-file", kwargs={"uid": job.uid}))
    assert (answer.status_code, answer.json()["error"]) == (410, "gone")
    assert client.get(reverse("api-export", kwargs={"uid": job.uid})).json()["file"] is None


def test_a_file_is_saved_and_never_shown(client: Client) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    finished_experiment("panel", retrieved="c")
    job, path = exported("runs", "csv", "panel")
    for name in ("export-file", "api-export-file"):
        response: Any = client.get(reverse(name, kwargs={"uid": job.uid}))
        assert response.getvalue() == path.read_bytes()
        assert response["Content-Disposition"] == 'attachment; filename="panel-runs.csv"'
        assert response["Content-Type"] == "application/octet-stream"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert response["Cache-Control"] == "no-store"
    pending = request_export(kind="runs", format="csv", experiments=["panel"], actor=None, at=NOW)
    with pytest.raises(JobMissing):
        file_of(pending)
    assert client.get(reverse("export-file", kwargs={"uid": pending.uid})).status_code == 404


def test_memory_does_not_grow_with_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times the rows, the same peak: less than half as much again."""
    monkeypatch.setattr(exporting, "CHUNK", 10)

    def peak(slug: str, pairs: int) -> int:
        rows = [
            {"task": f"t{n}", "arm": arm, "outcome": 1, "source": "x" * 100, "skill_ids": ["a"]}
            for n in range(pairs)
            for arm in ("SE", "SD")
        ]
        push = read_push(text_of(rows), format="jsonl", slug=slug)
        store_push(push, actor=None, at=NOW)
        del rows, push
        exported("runs", "jsonl", slug)  # whatever is loaded once is loaded now
        tracemalloc.start()
        job, _ = exported("runs", "jsonl", slug)
        _, found = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert job.result is not None
        assert job.result["rows"] == 2 * pairs
        return found

    small, large = peak("small", 60), peak("large", 240)
    assert large < 1.5 * small, (small, large)


# --- pages and addresses ----------------------------------------------------------


def test_the_form_asks_for_an_export_and_leads_to_how_far_it_is(client: Client) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    trying()
    page = client.get(reverse("experiment", kwargs={"slug": "panel"})).content.decode()
    assert f"{reverse('exports')}?experiment=panel" in page
    form = client.get(f"{reverse('exports')}?experiment=panel").content.decode()
    assert '<option value="panel" selected>' in form
    assert form.count('name="cell"') == 2
    response = client.post(
        reverse("exports"), {"kind": "pairs", "format": "csv", "experiment": "panel"}
    )
    job = Job.objects.get()
    assert response["Location"] == reverse("job", kwargs={"uid": job.uid})
    perform(job.uid, perform_export)
    shown = client.get(response["Location"]).content.decode()
    assert reverse("export-file", kwargs={"uid": job.uid}) in shown
    listed = client.get(reverse("exports")).content.decode()
    # Two cells of seven pairs: as many rows on the page as in the file.
    assert ">14<" in listed
    assert len(file_of(Job.objects.get()).read_text().splitlines()) - 1 == 14


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "runs", "format": "csv"}, "choose at least one experiment"),
        ({"kind": "runs", "format": "csv", "experiment": "absent"}, "no experiment absent"),
        ({"kind": "runs", "format": "xls", "experiment": "panel"}, "it takes csv, jsonl, parquet"),
        ({"kind": "attempts", "format": "csv", "experiment": "panel"}, "choose jsonl"),
        ({"kind": "audit-events", "format": "csv"}, "it takes runs, pairs, attempts"),
        (
            {"kind": "runs", "format": "csv", "experiment": "panel", "cell": "0" * 12},
            "has the cell 000000000000",
        ),
    ],
)
def test_what_cannot_be_exported_is_refused_with_the_reason(
    client: Client, given: dict[str, str], said: str
) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    finished_experiment("panel", retrieved="c")
    response = client.post(reverse("exports"), given)
    assert response.status_code == 400
    assert said in response.content.decode()
    body = {"kind": given["kind"], "format": given["format"]}
    lists = {
        "experiments": [given["experiment"]] if "experiment" in given else [],
        "cells": [given["cell"]] if "cell" in given else [],
    }
    answer = client.post(reverse("api-exports"), {**body, **lists}, "application/json")
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid"
    assert not Job.objects.exists()


def test_programs_ask_for_an_export_watch_it_and_get_the_file(client: Client) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    finished_experiment("panel", retrieved="c")
    answer = client.post(
        reverse("api-exports"),
        {"kind": "runs", "format": "jsonl", "experiments": ["panel"]},
        "application/json",
    )
    asked = answer.json()
    assert (answer.status_code, asked["state"], asked["file"]) == (202, "pending", None)
    perform(Job.objects.get().uid, perform_export)
    export = client.get(reverse("api-export", kwargs={"uid": asked["uid"]})).json()
    assert (export["state"], export["rows"]) == ("done", 2)
    got: Any = client.get(export["file"])
    assert hashlib.sha256(got.getvalue()).hexdigest() == export["sha256"]
    listed = client.get(f"{reverse('api-exports')}?kind=runs&by=lee").json()
    assert [one["uid"] for one in listed["results"]] == [asked["uid"]]
    assert client.get(f"{reverse('api-exports')}?kind=pairs").json()["results"] == []


def test_the_list_asks_no_more_of_the_database_when_it_is_longer(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    for _ in range(20):
        make_export()
    assert Execution.objects.count() == 0
    with django_assert_max_num_queries(12):
        assert client.get(reverse("exports")).content.decode().count("Download</a>") == 20
