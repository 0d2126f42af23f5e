"""Uploading task files: every bad line told, every reference graded, and what pages show."""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from runs.models import Benchmark, Task
from runs.sandbox.grader import Grader, HostFailed, NoIsolation, open_grader
from runs.services import uploading
from runs.services.benchmarks import suite_lines
from runs.services.uploading import IMPORT_TASK, import_received
from tests.factories import make_user
from tests.htmlchecks import Page, faults_of
from tests.integration.test_uploads import HOSTILE, assert_inert
from workbench.jobs import perform
from workbench.kernel.leases import LeaseState
from workbench.kernel.roles import Role
from workbench.models import AuditEvent, Job
from workbench.tokens import Scope, create_token

pytestmark = pytest.mark.django_db

PAGE = "/suites/new/"
API = "/api/v1/suites/"


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with open_grader() as opened:
        yield opened


@pytest.fixture(autouse=True)
def uploads_folder(tmp_path: Path, settings: Any) -> Path:
    """Return a folder of this test's own for what is uploaded."""
    folder = tmp_path / "uploads"
    folder.mkdir(mode=0o700)
    settings.UPLOADS_DIR = settings.FILE_UPLOAD_TEMP_DIR = folder
    return folder


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


@pytest.fixture
def api() -> Client:
    _, text = create_token(
        user=make_user("ada", Role.LEAD),
        name="t",
        scopes=[Scope.READ, Scope.WRITE],
        at=timezone.now(),
    )
    return Client(headers={"Authorization": f"Bearer {text}"})


def task(key: str, answer: str = "right", **more: Any) -> dict[str, Any]:
    checker = {"answers": [answer]}
    return {"key": key, "kind": "exact", "prompt": f"Say {answer}.", "checker": checker, **more}


def file_of(*tasks: dict[str, Any] | str, name: str = "mine.jsonl") -> SimpleUploadedFile:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in tasks]
    return SimpleUploadedFile(name, "".join(f"{line}\n" for line in lines).encode())


def post(client: Client, file: Any, **form: str) -> Any:
    return client.post(PAGE, {"suite": "mine", "format": "", "file": file, **form})


def only_job() -> Job:
    return Job.objects.get(kind=IMPORT_TASK)


def run_job(grader: Grader | None = None) -> Job:
    """Do the job as a worker does."""

    def opened() -> Grader:
        assert grader is not None, "nothing is to be graded"
        return grader

    job = only_job()
    perform(job.uid, lambda handle: import_received(handle, open_grader=opened))
    job.refresh_from_db()
    return job


def left_behind() -> list[Path]:
    return list(Path(settings.UPLOADS_DIR).iterdir())


# --- from file to benchmark -------------------------------------------------------


def test_a_task_file_is_checked_kept_private_graded_and_stored(
    lead: Client, grader: Grader
) -> None:
    response = post(lead, file_of(task("b"), task("a", tags=["easy"])))
    job = only_job()
    assert response["Location"] == reverse("job", kwargs={"uid": job.uid})
    [kept] = left_behind()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert "2 tasks" not in Page(lead.get("/suites/").content.decode()).text
    job = run_job(grader)
    assert (job.state, job.problem) == (LeaseState.DONE, "")
    assert left_behind() == []
    [stored] = Benchmark.objects.all()
    assert (stored.slug, stored.number) == ("mine", 1)
    assert list(stored.tasks.order_by("key").values_list("key", "tags")) == [
        ("a", ["easy"]),
        ("b", []),
    ]
    event = AuditEvent.objects.get(verb="suite.uploaded")
    assert (event.subject, event.actor.username) == ("mine, number 1", "lee")  # type: ignore[union-attr]
    page = Page(lead.get(reverse("job", kwargs={"uid": job.uid})).content.decode())
    assert "/suites/mine/versions/1/" in [link.get("href") for link in page.all("a")]


def test_the_same_tasks_again_in_any_order_are_told_and_not_stored_twice(
    lead: Client, grader: Grader
) -> None:
    post(lead, file_of(task("a"), task("b")))
    run_job(grader)
    response = lead.post(
        PAGE, {"suite": "mine", "format": "", "file": file_of(task("b"), task("a"))}, follow=True
    )
    assert "version 1 of mine holds exactly these 2 tasks" in Page(response.content.decode()).text
    assert (Job.objects.count(), Benchmark.objects.count()) == (1, 1)
    assert left_behind() == []


def test_an_edited_task_makes_a_new_version_and_the_old_one_stays(
    lead: Client, grader: Grader
) -> None:
    for answer in ("right", "wrong"):
        Job.objects.all().delete()
        post(lead, file_of(task("a", answer)))
        run_job(grader)
    assert list(Benchmark.objects.order_by("number").values_list("number", flat=True)) == [1, 2]
    assert "Say right." in lead.get("/suites/mine/versions/1/").content.decode()
    assert "Say wrong." in lead.get("/suites/mine/").content.decode()


@pytest.mark.xdist_group("sandbox")
def test_code_tasks_are_recorded_and_the_page_says_how_each_is_checked(
    lead: Client, grader: Grader
) -> None:
    code = {"kind": "code", "prompt": "Double.", "reference": "def f(x):\n    return 2 * x\n"}
    split = {"mode": "asserts", "entry": "f", "test": "assert f(1) == 2\nassert f(2) == 4\n"}
    post(lead, file_of({"key": "a", **code, "checker": split}, task("b")))
    job = run_job(grader)
    assert (job.state, job.problem) == (LeaseState.DONE, "")
    stored = Task.objects.get(key="a")
    assert stored.checker["mode"] == "cases"
    page = Page(lead.get("/suites/mine/").content.decode())
    assert re.search(r"by separate cases\s*1", page.text)
    assert "by its answer" in page.text


@pytest.mark.xdist_group("sandbox")
def test_references_that_fail_are_named_with_their_message_and_nothing_is_stored(
    lead: Client, grader: Grader
) -> None:
    code = {"kind": "code", "prompt": "Double.", "reference": "def f(x):\n    return 3 * x\n"}
    cases = {"mode": "cases", "entry": "f", "cases": [{"args": [1], "expected": 2}]}
    bad = {"key": "b", **code, "checker": cases}
    post(lead, file_of(task("a"), bad, task("c", reference="\\boxed{nothing}")))
    job = run_job(grader)
    assert job.state == LeaseState.DEAD
    first, *lines = job.problem.splitlines()
    assert first.startswith("Nothing was stored: of 3 tasks 2 references fail their own check.")
    assert "Correct the reference or the check" in first
    assert [line[:3] for line in lines] == ["b: ", "c: "]
    assert "expected 2" in lines[0]
    assert not Benchmark.objects.exists()
    html = lead.get(reverse("job", kwargs={"uid": job.uid})).content.decode()
    assert faults_of(html) == []
    assert "expected 2" in Page(html).text


class Broken:
    """A grader that can't do its work."""

    def __init__(self, fault: Callable[[], Exception]) -> None:
        self.fault = fault

    def grade(self, **_: Any) -> Any:
        raise self.fault()

    record_cases = grade


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (lambda: NoIsolation(()), "programs can't be graded on this machine"),
        (lambda: HostFailed("no slot"), "could not grade the reference of task a: no slot"),
    ],
)
def test_a_machine_that_cannot_grade_is_told_as_that(
    lead: Client, fault: Callable[[], Exception], said: str
) -> None:
    code = {"kind": "code", "prompt": "Double.", "reference": "def f(x):\n    return 2 * x\n"}
    split = {"mode": "asserts", "entry": "f", "test": "assert f(1) == 2\n"}
    post(lead, file_of({"key": "a", **code, "checker": split}))
    broken: Any = Broken(fault)
    job = run_job(broken)
    assert job.state == LeaseState.DEAD
    assert said in job.problem
    assert not Benchmark.objects.exists()


def test_a_job_that_runs_again_after_it_stored_ends_the_same(lead: Client, grader: Grader) -> None:
    post(lead, file_of(task("a")))
    first = run_job(grader)
    Job.objects.update(state=LeaseState.PENDING, result=None)
    again = run_job()
    assert again.result == first.result
    assert Benchmark.objects.count() == 1


def test_a_file_that_is_gone_is_asked_for_again(lead: Client, grader: Grader) -> None:
    post(lead, file_of(task("a")))
    left_behind()[0].unlink()
    job = run_job(grader)
    assert "Upload it again" in job.problem


# --- lines ------------------------------------------------------------------------

BAD_LINES: tuple[dict[str, Any] | str, ...] = (
    task("a"),
    "{broken",
    {**task("b"), "kind": "magic"},
    {**task("c"), "colour": "red"},
    task("a", "other"),
)


def test_every_bad_line_is_listed_with_field_and_fix_and_what_was_typed_stays(
    lead: Client,
) -> None:
    response = post(lead, file_of(*BAD_LINES), format="own")
    html = response.content.decode()
    assert response.status_code == 400
    assert faults_of(html) == []
    page = Page(html)
    for line, said in ((2, "is not JSON"), (3, "kind"), (4, "colour"), (5, "stands in line 1 too")):
        assert re.search(rf"(?<!\d){line}(?!\d).{{0,30}}?{said}", page.text, re.DOTALL), line
    [name] = [field for field in page.all("input") if field.get("name") == "suite"]
    assert name["value"] == "mine"
    assert [o["value"] for o in page.all("option") if "selected" in o] == ["own"]
    assert (Job.objects.count(), left_behind()) == (0, [])


def test_the_api_names_lines_and_fields(api: Client) -> None:
    response = api.post(API, {"suite": "mine", "file": file_of(*BAD_LINES)})
    assert response.status_code == 400
    body = response.json()
    assert body["error"] == "invalid"
    assert sorted(body["fields"]) == ["rows.2", "rows.3.kind", "rows.4.colour", "rows.5.key"]


def test_a_file_whose_every_line_is_wrong_says_so_often_enough(
    lead: Client, api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "MAX_PROBLEMS", 3)
    response = post(lead, file_of(task("a"), *["{"] * 9))
    assert "Reading stopped after" in Page(response.content.decode()).text
    body = api.post(API, {"suite": "mine", "file": file_of(task("a"), *["{"] * 9)}).json()
    assert sorted(body["fields"]) == ["file", "rows.2", "rows.3", "rows.4"]


def test_an_identical_repeat_counts_once_and_is_noted(lead: Client, grader: Grader) -> None:
    response = lead.post(
        PAGE,
        {"suite": "mine", "format": "", "file": file_of(task("a"), task("a"))},
        follow=True,
    )
    assert "repeat a task with the same content" in Page(response.content.decode()).text
    run_job(grader)
    assert Task.objects.count() == 1


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"suite": "My Suite"}, "such as my-suite"),
        ({"suite": "starter"}, "starter comes with the product"),
        ({"suite": "imported"}, "kept for the tasks of pushed runs"),
        ({"suite": "imported-c"}, "kept for the tasks of pushed runs"),
        ({"suite": "new"}, "choose another"),
        ({"format": "xlsx"}, "it takes own, evalplus"),
        ({"file": None}, "choose a task file"),
        ({"file": SimpleUploadedFile("x.jsonl", b"#\n")}, "holds no task"),
        ({"file": SimpleUploadedFile("x.jsonl", b'[{"key": 1}]')}, "list of tasks"),
        ({"file": SimpleUploadedFile("x.jsonl", b'{"a": 1}\n')}, "fit no format"),
        ({"file": SimpleUploadedFile("x.jsonl.gz", b"no gzip")}, "can't be unpacked"),
        ({"file": SimpleUploadedFile("x.jsonl", b"\xff\xfe")}, "is not UTF-8"),
    ],
)
def test_a_form_that_cannot_be_used_says_why(lead: Client, form: dict[str, Any], said: str) -> None:
    given = {"suite": "mine", "format": "", "file": file_of(task("a")), **form}
    response = lead.post(PAGE, {name: value for name, value in given.items() if value is not None})
    html = response.content.decode()
    assert response.status_code == 400
    assert faults_of(html) == []
    assert said in Page(html).text
    assert (Job.objects.count(), left_behind()) == (0, [])


# --- sizes ------------------------------------------------------------------------


# What each packs into some KB: one endless line, or more values than a task has.
MEMORY = """
import gzip, io, os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "workbench.settings"
import django
django.setup()
from runs.services import uploading

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024

own = (
    b'{"key": "a", "kind": "code", "prompt": "p", "reference": "def f(a):\\\\n return 1\\\\n", '
    b'"checker": {"mode": "cases", "entry": "f", "comparator": "exact", "cases": [%s]}}'
)
repeats = b",".join(b'"%d": 1' % n for n in range(150_000))
packed = [
    gzip.compress(line, 1)
    for line in (
        b'{"key": "' + b"a" * (45 << 20),
        own % (b'{"args": [[' + b"[]," * 1_300_000 + b'1]], "expected": 1}'),
        own % (b'{"args": [[' + b'{"a":1},' * 245_000 + b'1]], "expected": 1}'),
        b"{" + repeats + b', "149999": 2}',
    )
]
sys.stdout.reconfigure(line_buffering=True)
for data in packed:
    before = peak()
    try:
        uploading._scan(uploading._lines(io.BytesIO(data), "x.gz"), io.StringIO(), "x.gz", None)
        said = "taken"
    except uploading.TaskFileRefused as refused:
        said = refused.problems[0].reason
    print(peak() - before, said)
"""


def test_lines_made_to_swell_are_refused_in_little_memory(tmp_path: Path) -> None:
    given = {**os.environ, "WORKBENCH_DATA": str(tmp_path)}
    command = [sys.executable, "-c", MEMORY]
    root = Path(uploading.__file__).parents[2]
    found = subprocess.check_output(command, text=True, cwd=root, env=given).splitlines()
    assert [line.partition(" ")[2] for line in found] == [
        "is longer than 4 MB",
        "may hold more than 500,000 values",
        "taken",
        "stands twice in one object",
    ]
    assert all(int(line.partition(" ")[0]) < 150 for line in found), found


def test_a_packed_file_is_counted_as_it_unpacks(
    lead: Client, api: Client, grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = json.dumps(task("a")).encode()
    monkeypatch.setattr(uploading, "MAX_FILE_BYTES", 10_000)
    fits = SimpleUploadedFile("x.jsonl.gz", gzip.compress(line + b"\n" * (10_000 - len(line))))
    assert post(lead, fits).status_code == 302
    run_job(grader)
    assert Task.objects.count() == 1
    packed = gzip.compress(line + b"\n" * (10_001 - len(line)))
    assert len(packed) < 1_000
    response = post(lead, SimpleUploadedFile("x.jsonl.gz", packed))
    assert response.status_code == 400
    assert "it has more than" in Page(response.content.decode()).text
    response = api.post(API, {"suite": "mine", "file": SimpleUploadedFile("x.gz", packed)})
    assert (response.status_code, response.json()["error"]) == (413, "too_large")
    assert left_behind() == []


def test_too_many_tasks_are_refused(lead: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "MAX_TASKS", 2)
    response = post(lead, file_of(*(task(str(n)) for n in range(3))))
    assert "it has more than 2 tasks" in Page(response.content.decode()).text
    assert post(lead, file_of(task("a"), task("b"))).status_code == 302


def test_files_that_no_job_took_are_removed_in_time(lead: Client) -> None:
    folder = Path(settings.UPLOADS_DIR)
    old, other = folder / "suite-old.jsonl", folder / "not-ours"
    form = folder / "tmpx.upload.jsonl"
    for path in (old, other, form):
        path.write_text("x")
        os.utime(path, (0, 0))
    post(lead, file_of(task("a")))
    assert not old.exists()
    assert not form.exists()
    assert other.exists()
    other.unlink()
    assert len(left_behind()) == 1


# --- the API ----------------------------------------------------------------------


def test_a_form_and_a_bare_file_do_the_same(api: Client, grader: Grader) -> None:
    response = api.post(API, {"suite": "mine", "file": file_of(task("a"), task("b"))})
    assert response.status_code == 202, response.content
    body = response.json()
    assert (body["tasks"], body["number"]) == (2, None)
    assert body["job"] == response["Location"]
    assert api.get(body["job"]).json()["state"] == "pending"
    run_job(grader)
    done = api.get(body["job"]).json()
    assert (done["state"], done["result"]["number"]) == ("done", 1)
    data = b"".join(file_of(task("b"), task("a")).chunks())
    again = api.post(f"{API}?suite=mine", data, content_type="application/x-ndjson")
    assert again.status_code == 200, again.content
    assert (again.json()["number"], again.json()["job"]) == (1, None)
    [shown] = api.get(API).json()["results"]
    assert (shown["slug"], shown["tasks"], shown["kinds"]) == ("mine", 2, {"exact": 2})
    rows = api.get(f"{shown['tasks_url']}?kind=exact&limit=1").json()
    assert [row["key"] for row in rows["results"]] == ["a"]
    assert [row["key"] for row in api.get(rows["next"]).json()["results"]] == ["b"]
    assert api.get("/api/v1/suites/mine/").json()["number"] == 1
    assert len(api.get(shown["versions_url"]).json()["results"]) == 1
    for path in ("suites/none/", "suites/none/versions/", "suites/mine/versions/9/tasks/"):
        assert api.get(f"/api/v1/{path}").status_code == 404
    assert api.get(f"{shown['tasks_url']}?prompt__contains=x").status_code == 400


def test_an_empty_body_and_a_reader_are_refused(api: Client) -> None:
    assert api.post(f"{API}?suite=mine", b"", content_type="application/x-ndjson").status_code in (
        400,
        415,
    )
    _, text = create_token(
        user=make_user("ria", Role.LEAD), name="t", scopes=[Scope.READ], at=timezone.now()
    )
    reader = Client(headers={"Authorization": f"Bearer {text}"})
    assert reader.post(API, {"suite": "mine", "file": file_of(task("a"))}).status_code == 403
    assert (Job.objects.count(), left_behind()) == (0, [])


# --- pages ------------------------------------------------------------------------


def test_a_stored_suite_is_downloaded_as_a_file_that_reads_back(
    lead: Client, grader: Grader
) -> None:
    post(lead, file_of(task("b", gold_skills=["x"]), task("a", "é\u202e")))
    run_job(grader)
    response = lead.get("/suites/mine/versions/1/download/")
    data = b"".join(response.streaming_content)  # type: ignore[attr-defined]
    assert response["Content-Disposition"] == 'attachment; filename="mine-1.jsonl"'
    assert data.decode() == "".join(suite_lines(Benchmark.objects.get()))
    again = SimpleUploadedFile("again.jsonl", data)
    response = lead.post(PAGE, {"suite": "mine", "format": "", "file": again}, follow=True)
    assert "holds exactly these 2 tasks" in Page(response.content.decode()).text


def test_suites_are_paged_with_few_queries_and_long_prompts_are_cut(
    lead: Client, grader: Grader
) -> None:
    long = task("long", prompt="p" * 300_000)
    post(lead, file_of(*(task(f"t{n:04}") for n in range(300)), long))
    run_job(grader)
    lead.get("/suites/")
    with CaptureQueriesContext(connection) as found:
        html = lead.get("/suites/mine/").content.decode()
    assert len(found) < 20
    page = Page(html)
    assert "t0048" in page.text
    assert "t0049" not in page.text
    assert "300000 characters" in page.text
    assert len(html) < 100_000
    [url] = [a["href"] for a in page.all("a") if "cursor=" in a.get("href", "")]
    assert "t0049" in Page(lead.get(url).content.decode()).text
    assert "t0299" in lead.get("/suites/mine/?sort=-key").content.decode()


def test_shipped_suites_are_listed_with_their_tasks(lead: Client) -> None:
    text = Page(lead.get("/suites/").content.decode()).text
    assert re.search(r"starter-math\s*\d+\s*\d+ maths", text)
    assert "with the first experiment that names it" in text


def test_hostile_tasks_are_inert_on_every_page(lead: Client, grader: Grader) -> None:
    printable = [text for text in HOSTILE if text.isprintable()]
    tasks = [task(text, tags=[HOSTILE[n]]) for n, text in enumerate(printable)]
    tasks += [task(f"prompt-{n}", prompt=text) for n, text in enumerate(HOSTILE)]
    post(lead, file_of(*tasks))
    assert run_job(grader).state == LeaseState.DONE
    pages = [lead.get("/suites/mine/").content.decode()]
    bad = [{**task("x"), text: 1, "kind": text} for text in HOSTILE]
    pages.append(post(lead, file_of(*bad), suite=HOSTILE[1]).content.decode())
    pages.append(post(lead, file_of(*bad, name=HOSTILE[0] + ".jsonl")).content.decode())
    Job.objects.all().delete()
    failing = [task(text, reference=f"\\boxed{{{HOSTILE[n]}}}") for n, text in enumerate(printable)]
    post(lead, file_of(*failing))
    job = run_job(grader)
    assert job.state == LeaseState.DEAD
    pages.append(lead.get(reverse("job", kwargs={"uid": job.uid})).content.decode())
    for html in pages:
        assert faults_of(html) == []
        assert_inert(html)


def test_a_zip_is_told_to_be_one_and_where_skills_are_uploaded(lead: Client) -> None:
    response = post(lead, SimpleUploadedFile("good.zip", b"PK\x03\x04\x14\x00\x00\x00rest"))
    assert response.status_code == 400
    text = " ".join(Page(response.content.decode()).text.split())
    assert "is a zip; tasks are JSONL" in text
    assert "Skills are uploaded as a zip, under Skills." in text
    assert left_behind() == []
