"""Jobs: claimed once, done again after a crash, and ended with a text that helps."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.conf import LazySettings
from django.db import connection
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from runs.models import ExperimentDraft
from runs.services.drafting import create_draft
from tests.factories import NOW, make_job, make_user
from tests.htmlchecks import faults_of
from workbench import jobs
from workbench.jobs import (
    DISK_FULL,
    MAX_TRIES,
    UNEXPECTED,
    Handle,
    JobFailed,
    JobMissing,
    job_by_uid,
    latest_job,
    perform,
    request_job,
    sweep_jobs,
)
from workbench.kernel import leases
from workbench.kernel.leases import LeaseLost, LeaseState
from workbench.kernel.roles import Role
from workbench.models import Job

Sent = list[tuple[str, list[str]]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Return the messages that are published instead of publishing them."""
    found: Sent = []
    monkeypatch.setattr(
        jobs, "publish", lambda kind, uids, *, queue: found.append((kind, list(map(str, uids))))
    )
    return found


def pending(**values: Any) -> Job:
    return make_job(state=LeaseState.PENDING, **{"created_at": timezone.now(), **values})


def again(job: Job) -> Job:
    job.refresh_from_db()
    return job


def done(handle: Handle) -> Mapping[str, Any]:
    return {"rows": 3}


# --- from asked for to done -------------------------------------------------------


@pytest.mark.django_db
def test_a_job_is_published_done_and_left_alone_then(sent: Sent) -> None:
    author = make_user("lee", Role.LEAD)
    job = request_job(kind="runs.export", subject="panel", params={"k": 1}, actor=author, at=NOW)
    assert sent == [("runs.export", [str(job.uid)])]
    seen: list[Any] = []

    def work(handle: Handle) -> Mapping[str, Any]:
        handle.report(finished=2, steps=5, note="x" * 400)
        seen.append(again(job))
        return {"rows": 3}

    perform(job.uid, work)
    (running,) = seen
    assert (running.finished_steps, running.steps, running.note) == (2, 5, "x" * 300)
    job = again(job)
    assert (job.state, job.result, job.problem) == (LeaseState.DONE, {"rows": 3}, "")
    assert job.ended_at is not None
    perform(job.uid, lambda handle: pytest.fail("done again"))
    assert again(job).tries == 1


@pytest.mark.django_db
def test_jobs_are_found_by_uid_kind_and_subject() -> None:
    first, newest = make_job(), make_job(created_at=NOW + timedelta(hours=1))
    make_job(subject="other", created_at=NOW + timedelta(hours=2))
    assert latest_job(kind="runs.export", subject="panel") == newest
    assert latest_job(kind="runs.other", subject="panel") is None
    assert job_by_uid(first.uid, kind="runs.export") == first
    with pytest.raises(JobMissing):
        job_by_uid(first.uid, kind="runs.other")


# --- failures ---------------------------------------------------------------------


@pytest.mark.django_db
def test_a_foreseen_failure_says_what_to_do_and_gives_programs_the_same() -> None:
    job = pending()

    def work(handle: Handle) -> Mapping[str, Any]:
        raise JobFailed("Row 3 has no task; add it.", result={"problems": [{"row": 3}]})

    perform(job.uid, work)
    job = again(job)
    assert (job.state, job.problem) == (LeaseState.DEAD, "Row 3 has no task; add it.")
    assert job.result == {"problems": [{"row": 3}]}


@pytest.mark.django_db
def test_an_unforeseen_failure_is_logged_and_tells_nothing_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = pending()

    def work(handle: Handle) -> Mapping[str, Any]:
        raise ValueError("the password is hunter2")

    perform(job.uid, work)
    job = again(job)
    assert (job.state, job.problem, job.result) == (LeaseState.DEAD, UNEXPECTED, None)
    assert "hunter2" in caplog.text


@pytest.mark.django_db
@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, DISK_FULL), (errno.EIO, UNEXPECTED)])
def test_a_full_disk_is_told_from_what_nobody_foresaw(number: int, said: str) -> None:
    job = pending()

    def work(handle: Handle) -> Mapping[str, Any]:
        raise OSError(number, "/secret/folder")

    perform(job.uid, work)
    assert again(job).problem == said


@pytest.mark.django_db
def test_a_job_whose_worker_dies_every_time_ends_after_its_tries() -> None:
    job = pending(tries=MAX_TRIES - 1)
    perform(job.uid, done)
    assert again(job).state == LeaseState.DONE
    job = pending(tries=MAX_TRIES)
    perform(job.uid, lambda handle: pytest.fail("tried once more"))
    job = again(job)
    assert job.state == LeaseState.DEAD
    assert job.problem.startswith(f"It was tried {MAX_TRIES} times")


# --- crashes ----------------------------------------------------------------------


class Killed(BaseException):
    """Stands for the end of the process: nothing after it is done."""


@pytest.mark.django_db
def test_a_job_that_was_cut_off_is_swept_and_done_again(sent: Sent, settings: Any) -> None:
    settings.LEASE_SECONDS = 3600  # nothing here waits for its end
    job = pending()
    began: list[int] = []

    def killed(handle: Handle) -> Mapping[str, Any]:
        handle.report(finished=1, steps=2)
        began.append(handle.token)
        raise Killed

    with pytest.raises(Killed):
        perform(job.uid, killed)
    assert again(job).state == LeaseState.RUNNING
    now = timezone.now()
    sweep_jobs(now=now)
    assert sent == []  # its lease still holds: this process lives
    perform(job.uid, lambda handle: pytest.fail("claimed twice"))
    # The process is gone: the lease ends at once and the sweep sends the job again.
    space = leases.this_process().partition("/")[0]
    Job.objects.filter(pk=job.pk).update(lease_owner=f"{space}/{2**22 + 1}:1")
    sweep_jobs(now=now)
    assert sent == [("runs.export", [str(job.uid)])]
    perform(job.uid, done)
    job = again(job)
    assert (job.state, job.tries, job.result) == (LeaseState.DONE, 2, {"rows": 3})


@pytest.mark.django_db
def test_a_job_whose_message_was_lost_is_sent_again_after_a_while(sent: Sent) -> None:
    job, now = pending(), timezone.now()
    make_job(created_at=now - timedelta(days=1))  # done: never sent again
    sweep_jobs(now=now)
    assert sent == []
    sweep_jobs(now=now + jobs.LOST_AFTER + timedelta(seconds=1))
    assert sent == [("runs.export", [str(job.uid)])]


@pytest.mark.django_db
def test_while_messages_wait_only_abandoned_jobs_are_sent_again(
    sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = timezone.now()
    pending(created_at=now - timedelta(hours=1))
    abandoned = make_job(
        state=LeaseState.RUNNING, lease_until=now - timedelta(seconds=1), created_at=now
    )
    monkeypatch.setattr(jobs, "waiting_messages", lambda queue: jobs.TOP_UP_BELOW)
    sweep_jobs(now=now)
    assert sent == [("runs.export", [str(abandoned.uid)])]
    monkeypatch.setattr(jobs, "waiting_messages", lambda queue: jobs.TOP_UP_BELOW - 1)
    sweep_jobs(now=now)
    assert len(sent) == 3


@pytest.mark.django_db
@pytest.mark.both_databases
def test_a_worker_that_lost_its_lease_stops_and_writes_nothing() -> None:
    job = pending()

    def taken_over(handle: Handle) -> Mapping[str, Any]:
        Job.objects.filter(pk=job.pk).update(fencing_token=handle.token + 1)
        with pytest.raises(LeaseLost):
            handle.report(finished=9)
        return {"rows": "of the one that lost"}

    perform(job.uid, taken_over)
    job = again(job)
    assert (job.state, job.finished_steps, job.result) == (LeaseState.RUNNING, 0, None)

    def told(handle: Handle) -> Mapping[str, Any]:
        Job.objects.filter(pk=job.pk).update(fencing_token=handle.token + 1)
        handle.report(finished=9)
        pytest.fail("went on without its lease")

    Job.objects.filter(pk=job.pk).update(state=LeaseState.PENDING)
    perform(job.uid, told)
    assert again(job).problem == ""


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_of_many_workers_one_does_the_job() -> None:
    job = pending()
    ready = threading.Barrier(4)
    times: list[int] = []

    def work(handle: Handle) -> Mapping[str, Any]:
        times.append(handle.token)
        return {}

    def worker(_: int) -> None:
        try:
            ready.wait(timeout=10)
            perform(job.uid, work)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(worker, range(4)))
    assert times == [1]
    assert (again(job).state, again(job).tries) == (LeaseState.DONE, 1)


@pytest.mark.django_db(transaction=True)
@pytest.mark.both_databases
def test_the_lease_is_renewed_while_the_work_goes_on(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = pending()
    settings.RENEW_SECONDS = 0.01
    renewed = threading.Event()
    answers = iter([ConnectionError("the database is away"), True])

    def renew(item: Any, *, token: int, until: Any) -> bool:
        answer = next(answers, True)
        if isinstance(answer, Exception):
            raise answer  # such a try is lost, and the next one is made
        held = leases.renew(item, token=token, until=until)
        renewed.set()
        return held

    monkeypatch.setattr(jobs, "renew", renew)
    before: list[Any] = []

    def work(handle: Handle) -> Mapping[str, Any]:
        before.append(handle.job.lease_until)
        assert renewed.wait(timeout=10)
        before.append(again(job).lease_until)
        return {}

    perform(job.uid, work)
    assert before[1] > before[0]
    assert again(job).state == LeaseState.DONE


# --- pages and addresses ----------------------------------------------------------

STATES: list[tuple[dict[str, Any], list[str]]] = [
    ({"state": "pending"}, ["It waits for a worker", "hx-get", "Refresh"]),
    (
        {"state": "running", "finished_steps": 30, "steps": 40, "note": "writing <b>"},
        ["writing &lt;b&gt;", "30 of 40 (75 %)", 'value="30"', "hx-get", "Refresh"],
    ),
    ({"state": "running"}, ["known yet", "<progress aria-label"]),
    (
        {"state": "done", "result": {"path": "/exports/", "summary": "3 <rows>."}},
        ["It is done", "3 &lt;rows&gt;.", 'href="/exports/"'],
    ),
    ({"state": "dead", "problem": "Mend row 3.\nThen <again>"}, ["Mend row 3.", "&lt;again&gt;"]),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("values", "shown"), STATES)
def test_the_page_says_how_far_it_is_and_what_to_do(
    client: Client, values: dict[str, Any], shown: list[str]
) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    job = make_job(**values)
    html = client.get(reverse("job", kwargs={"uid": job.uid})).content.decode()
    assert faults_of(html) == []
    for text in shown:
        assert text in html
    live = values["state"] in ("pending", "running")
    assert ("hx-get" in html) is live
    fragment = client.get(reverse("job-progress", kwargs={"uid": job.uid}))
    # When it ends, the whole page is asked for again.
    assert fragment.headers.get("HX-Refresh") == (None if live else "true")
    assert "<html" not in fragment.content.decode()


@pytest.mark.django_db
def test_the_address_tells_programs_the_same(client: Client) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    job = make_job(state="dead", problem="Mend row 3.", finished_steps=1, steps=2)
    assert client.get(reverse("api-job", kwargs={"uid": job.uid})).json() == {
        "uid": str(job.uid),
        "kind": "runs.export",
        "subject": "panel",
        "state": "failed",
        "finished": 1,
        "steps": 2,
        "note": "",
        "result": None,
        "problem": "Mend row 3.",
        "created_at": "2026-03-02T09:30:00Z",
        "ended_at": None,
    }


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("kind", "section", "again"),
    [
        (
            "runs.push_rows",
            "/experiments/",
            'href="/experiments/push/?experiment=panel">Push again',
        ),
        ("runs.import_suite", "/suites/", 'href="/suites/new/?suite=panel">Upload again'),
        ("runs.export", "/exports/", 'href="/exports/">Export again'),
        ("runs.rescore", "/experiments/", 'href="/experiments/panel/">Open the experiment'),
        ("runs.start_draft", "/experiments/", 'href="/experiments/drafts/panel/">Open the draft'),
    ],
)
def test_a_failed_job_leads_back_to_where_it_is_mended(
    client: Client, kind: str, section: str, again: str
) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    create_draft(toml='slug = "panel"\n', author=None, at=NOW)
    for state, leads in (("dead", True), ("running", False)):
        job = make_job(kind=kind, subject="panel", state=state)
        html = client.get(reverse("job", kwargs={"uid": job.uid})).content.decode()
        assert f'<p class="eyebrow"><a href="{section}">' in html
        assert (again in html) is leads
    ExperimentDraft.objects.all().delete()
    job = make_job(kind="runs.start_draft", subject="panel", state="dead")
    assert "Open the draft" not in client.get(reverse("job", args=[job.uid])).content.decode()
