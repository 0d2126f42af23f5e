"""The Python client against the real application, without a socket; and docs/api.md as it is."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pandas as pd
import pytest
from celery import current_app
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.utils import timezone

from runs import tasks
from runs.models import Experiment, ExperimentStatus, Pair
from runs.selectors import runnable_executions
from runs.services import sweeping
from runs.services.drafting import check_draft
from runs.services.preparing import import_suite
from runs.services.tasks import suite_load
from tests.drafts import TOML, store_suite
from tests.experiments import grader, write_tasks
from tests.factories import (
    finished_experiment,
    make_experiment,
    make_library,
    make_user,
    set_status,
)
from tests.shared import ROOT
from workbench import client
from workbench.client import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    JobFailed,
    NotFound,
    NotSignedIn,
    ServerFailed,
    TimedOut,
    TooManyRequests,
    Unreachable,
    Workbench,
    WorkbenchError,
)
from workbench.client import api as client_api
from workbench.client.transport import KEY_HEADER
from workbench.kernel.leases import LeaseState
from workbench.kernel.roles import Role
from workbench.models import IdempotencyKey, Job
from workbench.tokens import Scope, create_token
from workbench.wsgi import application

pytestmark = pytest.mark.django_db
URL = "http://localhost"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep files apart, the connection open between requests, and one grader for all."""
    settings.DATA_DIR = tmp_path
    monkeypatch.setattr(tasks, "process_grader", grader)
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def work(seconds: float = 0) -> None:
    """Do what workers and sweeper would do while the client waits."""
    for kind, uid in Job.objects.filter(state=LeaseState.PENDING).values_list("kind", "uid"):
        current_app.tasks[kind](uid=str(uid))
    for uid in runnable_executions().filter(state=LeaseState.PENDING).values_list("uid", flat=True):
        tasks.execute_task(uid=str(uid))
    sweeping.sweep(now=timezone.now())


def token_of(role: Role, *scopes: Scope, name: str = "") -> str:
    user = make_user(name or f"{role.value}-of-the-client", role)
    _, text = create_token(
        user=user, name="client", scopes=list(scopes or Scope), at=timezone.now()
    )
    return text


def client_of(role: Role = Role.ADMIN, *scopes: Scope, name: str = "", **more: Any) -> Workbench:
    """Return a client of somebody of ``role``."""
    wanted = {"transport": httpx2.WSGITransport(app=application), "sleep": work}
    return Workbench(URL, token_of(role, *scopes, name=name), **{**wanted, **more})


# --- the document ---------------------------------------------------------------------


SKILL = "---\nname: Sliding windows\ndescription: Counting windows of a prefix sum.\n---\n{text}\n"


def test_the_document_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block of docs/api.md is run, in order, on the scripted model."""
    monkeypatch.chdir(tmp_path)
    for folder, text in (("skills", "Move the window."), ("skills-edited", "Keep sums instead.")):
        skill = tmp_path / folder / "sliding-windows"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(SKILL.format(text=text))
    write_tasks(tmp_path / "tasks.jsonl", number=6)
    monkeypatch.setenv("WORKBENCH_TOKEN", token_of(Role.LEAD, Scope.READ, Scope.WRITE))

    def connected(url: str, token: str) -> Workbench:
        assert url == "https://workbench.example"
        transport = httpx2.WSGITransport(app=application)
        return Workbench(URL, token, transport=transport, sleep=work)

    monkeypatch.setattr(client, "Workbench", connected)
    text = (ROOT / "docs" / "api.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert len(blocks) >= 7
    known: dict[str, Any] = {}
    for block in blocks:
        code = block.replace("https://llm.example/v1", "scripted:mixed")
        code = re.sub(r"api_key_env = .*\n", "", code).replace("small-4b", "scripted")
        exec(compile(code, "docs/api.md", "exec"), known)

    # Of t1 (lost), t2 (both passed) and t3 (won, nothing returned): RAE (0 - 1) / 2, OAE 0 / 3.
    row = known["frame"].iloc[0]
    assert (row["n_pairs"], row["n_cond"], row["rae"], row["oae"]) == (3, 2, -50, 0)
    assert list(known["lost"]["task"]) == ["t1"]
    assert known["study"].status == "finished"
    assert known["first"] != known["second"]
    (cell,) = known["comparison"]["cells"]
    assert cell["n_shared"] == 6
    # Six tasks, two arms, two experiments.
    assert len(pd.read_csv(known["path"])) == 24
    assert "finished" in capsys.readouterr().out


def test_the_documents_study_fits_the_documents_endpoint(tmp_path: Path, settings: Any) -> None:
    """The draft of docs/api.md on an endpoint as docs/experiments.md configures it."""
    settings.DATA_DIR = tmp_path
    api, experiments = ((ROOT / "docs" / name).read_text() for name in ("api.md", "experiments.md"))
    (configured,) = re.findall(r"```toml\n(\[\[endpoint\]\].*?)```", experiments, re.S)
    (tmp_path / "endpoints.toml").write_text(configured)
    (draft,) = re.findall(r'create_draft\("""\n(.*?)"""\)', api, re.S)
    suite = suite_load(source=str(write_tasks(tmp_path / "interview.jsonl")))
    import_suite(suite=suite, open_grader=grader)
    make_library("algorithms")
    found = check_draft(draft)
    assert found.problems == ()
    assert found.spec is not None
    assert (found.spec.models[0].price_in, found.spec.models[0].price_out) == (0.2, 0.6)
    keyless = check_draft(re.sub(r"api_key_env = .*\n", "", draft))
    assert 'needs its key named: write api_key_env = "GATEWAY_KEY"' in str(keyless.problems)


def test_the_folder_alone_is_the_client(tmp_path: Path) -> None:
    """As docs/api.md brings it to another machine: with its two packages and nothing else."""
    shutil.copytree(ROOT / "workbench" / "client", tmp_path / "workbench" / "client")
    code = (
        "import sys, workbench.client as c; c.Workbench('http://127.0.0.1:9', 'token');"
        "print(c.__file__, sorted(m for m in sys.modules if m.startswith(('django', 'runs'))))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.strip() == f"{tmp_path / 'workbench' / 'client' / '__init__.py'} []"


def test_the_document_names_every_error_and_scope() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    for code in (
        "invalid", "unreadable", "not_signed_in", "forbidden", "not_found", "method_not_allowed",
        "unsupported_media_type", "conflict", "key_in_use", "key_reused", "too_large",
        "too_many_requests", "unexpected", *(scope.value for scope in Scope),
    ):  # fmt: skip
        assert f"`{code}`" in text, code


# --- every method -----------------------------------------------------------------------


@pytest.fixture
def panel() -> Experiment:
    return finished_experiment("panel", retrieved="abccdb", skipped="ad")


def test_experiments_are_read_as_they_are(panel: Experiment) -> None:
    wb = client_of(Role.LEAD, Scope.READ)
    finished_experiment("other", retrieved="a", library=None)
    assert [one.slug for one in wb.experiments(sort="slug")] == ["other", "panel"]
    assert list(wb.experiments(status="running")) == []
    found = wb.experiment("panel")
    assert (found.uid, found.status, found.ended) == (str(panel.uid), "finished", True)
    assert found.created_at == panel.created_at
    assert found.progress is not None
    assert (found.progress.executions, found.progress.done) == (16, 16)
    assert wb.report("panel")["cells"][0]["n_pairs"] == 8
    (cell,) = wb.cells("panel")
    assert wb.cell("panel", cell["sha12"])["figures"]["n_cond"] == 6
    lost = list(wb.pairs("panel", transition="harmful", retrieved="true", cell=cell["sha12"]))
    assert [(pair.task, pair.se.passed, pair.sd.passed) for pair in lost] == [
        ("tasks/003", False, True),
        ("tasks/004", False, True),
    ]
    assert list(wb.pairs("panel", censored=True)) == []
    assert len(list(wb.pairs("panel", skill="two-pointer"))) == 6
    pair = wb.pair(lost[0].uid)
    (attempt,) = wb.attempts(pair["arms"][1]["execution"])
    assert attempt["trace"]["status"] == "answered"


def test_frames_hold_what_the_rows_hold(panel: Experiment) -> None:
    wb = client_of(Role.LEAD, Scope.READ)
    report = wb.report_frame("panel")
    # b = 2, c = 2 of 6 returned pairs: RAE 0; one of two skipped is a, one d: OAE 0.
    assert (report.loc[0, "n_cond"], report.loc[0, "rae"], report.loc[0, "cell.model"]) == (
        6,
        0,
        "small-model",
    )
    pairs = wb.pairs_frame("panel")
    assert len(pairs) == 8
    assert int(pairs["se.passed"].sum()) == 4  # a, b, b and the skipped a
    empty = wb.pairs_frame("panel", skill="absent")
    assert (len(empty), set(empty.columns)) == (0, set(pairs.columns))


def test_lists_are_followed_from_page_to_page(
    panel: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.kernel.lists.DEFAULT_SIZE", 1)
    wb = client_of(Role.LEAD, Scope.READ)
    seen = [row["uid"] for row in wb._http.rows("experiments/panel/pairs/", limit=3)]
    assert sorted(seen) == sorted(str(uid) for uid in Pair.objects.values_list("uid", flat=True))


def test_an_experiment_is_paused_resumed_and_cancelled() -> None:
    wb = client_of(Role.LEAD)
    panel = set_status(make_experiment("panel"), ExperimentStatus.RUNNING)
    assert wb.pause("panel", "lunch").reason == "lunch"
    assert wb.change_budget("panel", calls=10_000).status == "paused"
    assert wb.resume("panel").status == "running"
    assert wb.retry("panel").status == "running"
    assert wb.cancel("panel", "enough").status == "cancelled"
    with pytest.raises(Conflict) as refused:
        wb.resume("panel")
    assert (refused.value.status, refused.value.code) == (409, "conflict")
    set_status(panel, ExperimentStatus.PLANNED)
    assert wb.start_planned("panel").status == "running"


def test_a_finished_experiment_is_graded_again() -> None:
    wb = client_of(Role.LEAD)
    finished_experiment("panel", retrieved="a")
    job = wb.rescore("panel")
    assert (job.state, wb.job(job.uid)) == ("pending", job)


def test_a_draft_is_made_checked_changed_estimated_started_and_cloned(tmp_path: Path) -> None:
    store_suite(tmp_path)
    make_library()
    wb = client_of(Role.LEAD)
    draft = wb.create_draft(TOML)
    assert [one.slug for one in wb.drafts()] == [draft.slug] == ["panel"]
    check = wb.validate("panel")
    assert (check.problems, check.pairs) == ((), 12)
    saved = wb.save_draft(draft, TOML.replace("seed = 7", "seed = 8"))
    assert saved.revision == 2
    with pytest.raises(Conflict):
        wb.save_draft(draft, TOML)
    broken = wb.save_draft(saved, TOML.replace('"coding"', '"absent"'))
    assert broken.check is not None
    assert [problem.line is not None for problem in broken.check.problems] == [True]
    wb.save_draft(broken, TOML)
    copy = wb.clone_draft("panel")
    assert wb.draft(copy.slug).toml
    wb.discard_draft(copy.slug)
    with pytest.raises(NotFound):
        wb.draft(copy.slug)
    wb.wait(wb.estimate("panel"))
    estimate = wb.draft("panel").estimate
    assert estimate is not None
    assert estimate["pairs"] == 12
    wb.wait(wb.start("panel"))
    *_, last = wb.follow("panel")
    assert (last.status, last.progress and last.progress.pairs_done) == ("finished", 12)
    assert "panel" in wb.experiment_toml("panel")
    assert wb.clone("panel").slug == "panel-2"


def test_a_draft_may_be_given_as_values(tmp_path: Path) -> None:
    store_suite(tmp_path)
    make_library()
    wb = client_of(Role.LEAD)
    draft = wb.create_draft(
        {
            "schema": 1,
            "slug": "by-values",
            "model": [{"id": "scripted", "base_url": "scripted:mixed"}],
            "benchmark": [{"suite": "counting"}],
            "cell": [{"library": "coding"}],
        }
    )
    assert wb.validate(draft.slug).pairs == 12


def test_following_ends_where_a_person_is_needed_and_waiting_where_time_is_up(
    panel: Experiment,
) -> None:
    wb = client_of(Role.LEAD, sleep=lambda seconds: None)
    set_status(panel, ExperimentStatus.PAUSED, "the budget is reached")
    assert [one.reason for one in wb.follow("panel")] == ["the budget is reached"]
    set_status(panel, ExperimentStatus.RUNNING)
    with pytest.raises(TimedOut):
        list(wb.follow("panel", timeout_s=0))
    with pytest.raises(TimedOut):
        wb.wait(wb.request_export("pairs", "csv", experiments=["panel"]).uid, timeout_s=0)


def test_a_job_that_fails_says_why() -> None:
    wb = client_of(Role.LEAD)
    rows = [{"task": "t", "arm": "SE", "outcome": "perhaps"}]
    with pytest.raises((JobFailed, Invalid)) as failed:
        wb.wait(wb.push_runs(rows, experiment="mine"))
    assert "outcome" in str(failed.value) or "outcome" in str(getattr(failed.value, "job", ""))


def test_pushed_runs_may_come_as_rows_or_as_a_frame() -> None:
    wb = client_of(Role.LEAD)
    rows = [
        {"task": "t1", "arm": "SE", "outcome": 1, "retrieved": True, "skill_ids": ("a", "b")},
        {"task": "t1", "arm": "SD", "outcome": 0, "retrieved": None},
    ]
    wb.wait(wb.push_runs(rows, experiment="rows"))
    wb.wait(wb.push_runs(pd.DataFrame(rows), experiment="frame"))
    for slug in ("rows", "frame"):
        (pair,) = wb.pairs(slug)
        assert (pair.transition, pair.retrieved, pair.skills) == ("helpful", True, ("a", "b"))


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (float("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (None, None),
        (pd.Series([1])[0], 1),
        (pd.Series([True])[0], True),
        (pd.Series([1.5])[0], 1.5),
        (pd.Series([[1, 2]])[0], [1, 2]),
        (pd.array([1, 2]).to_numpy(), [1, 2]),
        ({"a": pd.Series([1])[0]}, {"a": 1}),
        ("007", "007"),
    ],
)
def test_values_of_frames_become_plain_json(value: Any, plain: Any) -> None:
    found = client_api._plain(value)
    assert found == plain
    assert type(found) is type(plain)


def test_two_experiments_are_compared_and_refusals_told() -> None:
    wb = client_of(Role.LEAD)
    finished_experiment("before", retrieved="abc")
    finished_experiment("after", retrieved="abc", seed=43)
    assert wb.compare("before", "after")["cells"][0]["n_shared"] == 3
    with pytest.raises(Invalid):
        wb.compare("before", "before", allow=["weather"])
    with pytest.raises(NotFound):
        wb.compare("before", "absent")


def test_an_export_arrives_whole_or_not_at_all(
    panel: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wb = client_of(Role.LEAD)
    path = wb.export("pairs", "jsonl", tmp_path / "pairs.jsonl", experiments=["panel"])
    assert len(path.read_text().splitlines()) == 8
    monkeypatch.setattr(wb._http, "download", lambda path: iter([b"half"]))
    with pytest.raises(WorkbenchError, match="damaged"):
        wb.export("pairs", "jsonl", tmp_path / "again.jsonl", experiments=["panel"])
    assert not (tmp_path / "again.jsonl").exists()


def test_skills_and_tasks_are_uploaded(tmp_path: Path) -> None:
    wb = client_of(Role.LEAD)
    folder = tmp_path / "skills" / "sliding-windows"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL.format(text="Move the window."))
    made = wb.libraries.upload(tmp_path / "skills", "windows")
    assert (made["library"]["slug"], made["added"]) == ("windows", ["sliding-windows"])
    packed = tmp_path / "skills.zip"
    packed.write_bytes(client_api._zipped(tmp_path / "skills"))
    assert wb.libraries.upload(packed, "windows")["same"] is True
    assert [one["slug"] for one in wb.libraries.list()] == ["windows"]
    assert wb.libraries.get("windows")["number"] == 1
    assert [one["slug"] for one in wb.libraries.entries("windows", 1)] == ["sliding-windows"]
    assert [one["slug"] for one in wb.skills()] == ["sliding-windows"]

    file = write_tasks(tmp_path / "tasks.jsonl", number=3)
    received = wb.suites.upload(file, "counting")
    wb.wait(received["job"].rstrip("/").split("/")[-1])
    assert [one["slug"] for one in wb.suites.list()] == ["counting"]
    assert wb.suites.get("counting")["tasks"] == 3
    assert len(list(wb.suites.tasks("counting", 1))) == 3
    file.write_text('{"key": "x"}\n')
    with pytest.raises(Invalid) as refused:
        wb.suites.upload(file, "counting")
    assert any(name.startswith("rows.1") for name in refused.value.fields)


def test_people_are_invited_changed_and_reset() -> None:
    wb = client_of(Role.ADMIN)
    (ann, bob) = wb.people.invite("annotator", ["ann", "bob"], emails={"ann": "ann@example.org"})
    assert (ann.name, bob.name) == ("ann", "bob")
    assert ann.expires_at > timezone.now()
    assert wb.people.get("ann").email == "ann@example.org"
    assert wb.people.invite_again("ann").url != ann.url
    wb.people.revoke_invitation("ann")
    assert wb.people.change("bob", role="lead").role == "lead"
    make_user("joined", Role.ANNOTATOR)
    assert "joined" in {one.name for one in wb.people.list()}
    assert wb.people.reset_password("joined").name == "joined"
    assert wb.people.change("joined", active=False).state != wb.people.get("bob").state
    with pytest.raises(Invalid):
        wb.people.invite("annotator", ["ann"])


def test_the_rest_is_there_too() -> None:
    wb = client_of(Role.ADMIN)
    (token,) = wb.tokens.list()
    assert token.scopes == tuple(scope.value for scope in Scope)
    assert [one["name"] for one in wb.endpoints()] == ["scripted"]
    assert list(wb.notices()) == []
    assert wb.status()
    assert [one["verb"] for one in wb.audit_events(verb="token.created")] == ["token.created"]
    wb.tokens.revoke(token.uid)
    with pytest.raises(NotSignedIn):
        wb.status()


# --- errors, and sending again --------------------------------------------------------------


def test_every_refusal_is_an_exception_with_its_reason() -> None:
    lead = client_of(Role.LEAD, Scope.READ, name="reader")
    with pytest.raises(NotFound) as missing:
        lead.experiment("absent")
    assert (missing.value.code, missing.value.fields) == ("not_found", {})
    with pytest.raises(Invalid) as invalid:
        list(lead.experiments(sort="weather"))
    assert list(invalid.value.fields) == ["sort"]
    assert "sort: " in str(invalid.value)
    with pytest.raises(Forbidden):
        lead.create_draft(TOML)
    transport = httpx2.WSGITransport(app=application)
    with pytest.raises(NotSignedIn):
        Workbench(URL, "wb_wrong", transport=transport).status()


Answer = httpx2.Response | Exception


class Scripted(httpx2.BaseTransport):
    """Answers by a script; the last answer stays."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def keys(self) -> list[str | None]:
        return [request.headers.get(KEY_HEADER) for request in self.requests]


def scripted(*answers: Answer, retries: int = 4) -> tuple[Workbench, Scripted, list[float]]:
    transport, slept = Scripted(*answers), list[float]()
    wb = Workbench(URL, "wb_x", transport=transport, retries=retries, sleep=slept.append)
    return wb, transport, slept


def said(
    status: int, body: Mapping[str, Any] | None = None, *, retry_after: str = ""
) -> httpx2.Response:
    headers = {"Retry-After": retry_after} if retry_after else {}
    return httpx2.Response(status, json=body or {}, headers=headers)


IN_USE = {"error": "key_in_use", "message": "", "fields": {}}
DRAFT = {"slug": "a", "revision": 1, "author": None, "created_at": "2026-03-02T09:30:00Z",
         "updated_at": "2026-03-02T09:30:00Z", "links": {}}  # fmt: skip


@pytest.mark.parametrize(
    "first",
    [
        said(502),
        said(503),
        said(504),
        said(429),
        httpx2.ConnectError("refused"),
        httpx2.ReadTimeout("slow"),
        httpx2.RemoteProtocolError("cut"),
    ],
    ids=str,
)
def test_what_got_no_answer_is_sent_again_with_the_same_key(first: Answer) -> None:
    wb, transport, slept = scripted(first, said(409, IN_USE), said(201, DRAFT))
    assert wb.create_draft(TOML).slug == "a"
    assert len(transport.requests) == 3
    assert len(set(transport.keys)) == 1
    assert transport.keys[0]
    assert len({request.content for request in transport.requests}) == 1
    # Half a second and one second, each shortened by half at most.
    assert 0.25 <= slept[0] <= 0.5 <= slept[1] <= 1
    wb, transport, _ = scripted(first, said(200, {"endpoints": []}))
    assert wb.endpoints() == []
    assert transport.keys == [None, None]


def test_each_write_has_a_key_of_its_own() -> None:
    wb, transport, _ = scripted(said(201, DRAFT))
    wb.create_draft(TOML)
    wb.create_draft(TOML)
    assert len(set(transport.keys)) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 500])
def test_what_was_answered_is_not_sent_again(status: int) -> None:
    wb, transport, slept = scripted(said(status, {"error": "x", "message": "y", "fields": {}}))
    with pytest.raises(ApiError) as refused:
        wb.create_draft(TOML)
    assert (refused.value.status, len(transport.requests), slept) == (status, 1, [])


def test_a_key_in_use_is_a_conflict_where_it_is_not_our_own() -> None:
    wb, transport, _ = scripted(said(409, IN_USE))
    with pytest.raises(Conflict):
        wb.create_draft(TOML)
    assert len(transport.requests) == 1


def test_the_server_says_how_long_to_wait() -> None:
    wb, _, slept = scripted(
        said(503, retry_after="7"),
        said(429, retry_after="100000"),
        said(503, retry_after="Mon, 02 Mar 2026 09:30:00 GMT"),
        said(200, {"endpoints": []}),
    )
    wb.endpoints()
    assert slept[:2] == [7, 60]
    assert 1 <= slept[2] <= 2


def test_after_so_many_tries_it_is_told() -> None:
    wb, transport, slept = scripted(httpx2.ConnectError("refused"), retries=2)
    with pytest.raises(Unreachable, match="refused"):
        wb.status()
    assert (len(transport.requests), len(slept)) == (3, 2)
    for answer, kind in ((said(503), ServerFailed), (said(429), TooManyRequests)):
        wb, transport, _ = scripted(answer, retries=1)
        with pytest.raises(kind):
            wb.status()
        assert len(transport.requests) == 2


def test_a_lost_answer_does_a_write_once(tmp_path: Path) -> None:
    """The answer to the first request is lost on the way; the second one gets it."""
    real = httpx2.WSGITransport(app=application)

    class Losing(httpx2.BaseTransport):
        lost = 0

        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            response = real.handle_request(request)
            if request.method == "POST" and not self.lost:
                self.lost += 1
                response.read()
                raise httpx2.ReadError("cut")
            return response

    transport = Losing()
    wb = client_of(Role.LEAD, transport=transport, sleep=lambda seconds: None)
    draft = wb.create_draft(TOML)
    assert transport.lost == 1
    assert [one.slug for one in wb.drafts()] == [draft.slug]
    assert IdempotencyKey.objects.count() == 1


def test_the_token_stays_with_its_server() -> None:
    wb, transport, _ = scripted(
        httpx2.Response(302, headers={"Location": "https://elsewhere.example/"})
    )
    with pytest.raises(ApiError):
        wb.status()
    assert [str(request.url.host) for request in transport.requests] == ["localhost"]


@pytest.mark.parametrize("url", ["workbench.example", "ftp://x", "http://", "file:///etc", ""])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="https://"):
        Workbench(url, "wb_x")


def test_an_answer_of_something_else_is_told_as_such() -> None:
    wb, _, _ = scripted(httpx2.Response(404, text="<h1>nginx</h1>"))
    with pytest.raises(NotFound, match="isn't the workbench's"):
        wb.status()


# --- alone --------------------------------------------------------------------------------


def test_the_client_imports_nothing_of_ours() -> None:
    for file in Path(client.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [str(node.module)]
            for name in names:
                ours = name.split(".")[0] in ("workbench", "runs", "skills", "annotation", "django")
                assert not ours or name.startswith("workbench.client"), (file.name, name)


def test_importing_the_client_brings_neither_django_nor_pandas() -> None:
    code = (
        "import sys, workbench.client; "
        "print([name for name in ('django', 'pandas', 'celery') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_method_is_tested_here() -> None:
    text = Path(__file__).read_text()
    for kind, prefix in (
        (client_api.Workbench, ""),
        (client_api.Libraries, "libraries."),
        (client_api.Suites, "suites."),
        (client_api.People, "people."),
        (client_api.Tokens, "tokens."),
    ):
        for name in vars(kind):
            if not name.startswith("_") and callable(getattr(kind, name)):
                assert f".{prefix}{name}(" in text or name in ("close",), f"{prefix}{name}"
