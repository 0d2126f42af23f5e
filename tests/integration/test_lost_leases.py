"""Workers that lose their lease, or the database, while they work."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import Error as DatabaseFault
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from runs.domain.plan import ModelSpec
from runs.models import Attempt, Execution, PairArm
from runs.services import arms, executing, lifecycle
from runs.services.executing import Claimed, execute
from tests.experiments import grader, make_spec, plan, write_tasks
from tests.rows import make_execution
from tests.scripted_server import ScriptedServer, tool_call
from workbench.kernel import leases
from workbench.kernel.leases import LeaseState
from workbench.llm.openai import OpenAIEndpoint
from workbench.models import Call

SEARCH = tool_call(json.dumps({"query": "prefix sum windows"}))
PATIENCE_S = 20


# --- the lease ----------------------------------------------------------------


def lose_the_lease_during_the_first_request(
    monkeypatch: pytest.MonkeyPatch, execution: Execution
) -> None:
    """Let another worker claim the execution while its first reply is under way."""
    send = OpenAIEndpoint.send
    taken: list[int] = []

    def send_slowly(self: OpenAIEndpoint, *args: Any, **more: Any) -> Any:
        reply = send(self, *args, **more)
        if not taken:
            row = Execution.objects.filter(pk=execution.pk)
            late = timezone.now() + timedelta(hours=1)
            taken.append(leases.claim(row, now=late, lease=timedelta(hours=1)))
        return reply

    monkeypatch.setattr(OpenAIEndpoint, "send", send_slowly)


def requests_of_a_late_worker(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many requests it makes in a run that would need five."""
    with ScriptedServer(SEARCH) as server:
        experiment = plan(make_spec(tasks, model=ModelSpec(id="m", base_url=server.base_url)))
        lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
        execution = PairArm.objects.filter(arm="SE").order_by("pk")[0].execution
        lose_the_lease_during_the_first_request(monkeypatch, execution)
        server.seen.clear()
        assert execute(uid=execution.uid, open_grader=grader)
        assert Call.objects.filter(subject=execution.uid).count() == len(server.seen)
    # Whatever it did, the row is the other's and nothing of it was recorded.
    execution.refresh_from_db()
    assert (execution.state, execution.fencing_token) == (LeaseState.RUNNING, 2)
    assert not Attempt.objects.exists()
    return len(server.seen)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "counting.jsonl")


@pytest.mark.django_db
def test_a_worker_that_lost_its_lease_makes_no_further_request(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert requests_of_a_late_worker(tasks, monkeypatch) == 1


@pytest.mark.django_db
def test_without_asking_for_its_lease_it_goes_on_to_the_end(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = arms.chat_model_for

    def unfenced(**given: Any) -> Any:
        return build(**{**given, "still_ours": lambda: None})

    monkeypatch.setattr(arms, "chat_model_for", unfenced)
    # Three searches are answered; a fourth is told that none is left, and is asked once more.
    assert requests_of_a_late_worker(tasks, monkeypatch) == 5


# --- renewal ------------------------------------------------------------------


def break_the_connection() -> None:
    """Break this thread's connection as the server or the network would."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    else:
        connection.ensure_connection()
        connection.connection.close()


def renewals(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Callable[[], list[str]]:
    """Return a function that renews through a break and says what came of five renewals."""
    settings.RENEW_SECONDS = 0.005
    monkeypatch.setattr(executing, "RENEW_AGAIN_S", 0.005)
    came: queue.Queue[str] = queue.Queue()

    def renew(row: QuerySet[Execution], *, token: int, until: datetime) -> bool:
        try:
            if came.qsize() == 1:
                break_the_connection()
            renewed = leases.renew(row, token=token, until=until)
        except DatabaseFault:
            came.put("broken")
            raise
        came.put("renewed" if renewed else "lost")
        return renewed

    monkeypatch.setattr(executing, "renew", renew)

    def act() -> list[str]:
        execution = make_execution()
        row = Execution.objects.filter(pk=execution.pk)
        token = leases.claim(row, now=timezone.now(), lease=timedelta(seconds=1))
        with executing._Renewing(Claimed(execution, token)) as renewing:
            deadline = timezone.now() + timedelta(seconds=PATIENCE_S)
            while came.qsize() < 5 and timezone.now() < deadline:
                renewing._thread.join(0.005)
        return [came.get() for _ in range(5)]

    return act


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_renewal_goes_on_after_the_connection_broke(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    act = renewals(monkeypatch, settings)
    before = timezone.now()
    assert act() == ["renewed", "broken", "renewed", "renewed", "renewed"]
    until = Execution.objects.get().lease_until
    assert until is not None
    assert until >= before + timedelta(seconds=settings.LEASE_SECONDS)


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_a_connection_that_is_not_given_up_stays_broken(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    act = renewals(monkeypatch, settings)

    class Kept:
        """The connection, but that nobody closes it."""

        def close(self) -> None:
            pass

    monkeypatch.setattr(executing, "connection", Kept())
    assert act() == ["renewed", "broken", "broken", "broken", "broken"]


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_renewal_ends_when_the_lease_is_another_workers(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.RENEW_SECONDS = 0.005
    execution = make_execution()
    row = Execution.objects.filter(pk=execution.pk)
    old = leases.claim(row, now=timezone.now(), lease=timedelta(seconds=1))
    late = timezone.now() + timedelta(hours=1)
    leases.claim(row, now=late, lease=timedelta(seconds=1))
    with executing._Renewing(Claimed(execution, old)) as renewing:
        renewing._thread.join(PATIENCE_S)
        assert not renewing._thread.is_alive()
    assert Execution.objects.get().lease_until == late + timedelta(seconds=1)
