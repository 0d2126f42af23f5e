"""Finishing beside a retry, the sweep's restraint, and budgets that hold after a resume."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from runs.domain.plan import Budget, ModelSpec
from runs.models import Execution, Experiment, ExperimentStatus, Position
from runs.selectors import executions_of
from runs.services import arms, lifecycle, sweeping
from runs.services.executing import execute
from runs.services.usage import budget_reached, usage_of
from tests.experiments import grader, make_spec, plan, run_left, write_tasks
from tests.scripted_server import (
    Behaviour,
    ScriptedServer,
    always,
    completion,
    context_overflow,
    reply,
)
from workbench.kernel.leases import LeaseState
from workbench.models import Call

pytestmark = pytest.mark.django_db

RIGHT = reply("right")
# How long a lock is given to be noticed; only who isn't kept out is ever waited for in vain.
MOMENT_S = 0.3


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "counting.jsonl", number=3)


def left_with_the_dead(tasks: Path) -> Experiment:
    """Return a running experiment of which only dead executions are left."""
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    Execution.objects.update(state=LeaseState.DONE)
    dead = executions_of(experiment).order_by("pk").values_list("pk", flat=True)[:2]
    Execution.objects.filter(pk__in=list(dead)).update(state=LeaseState.DEAD, tries=3)
    return experiment


class Beside:
    """Does something in a thread with a connection of its own, once."""

    def __init__(self, act: Any) -> None:
        self._act = act
        self._thread = threading.Thread(target=self._run)
        self.result: Any = None

    def _run(self) -> None:
        try:
            self.result = self._act()
        finally:
            connection.close()

    def start(self) -> bool:
        """Start it if it wasn't; return whether it ended within a moment."""
        if self._thread.ident is None:
            self._thread.start()
        self._thread.join(MOMENT_S)
        return not self._thread.is_alive()

    def end(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.result


def retry(experiment: Experiment) -> int:
    again = Experiment.objects.get(pk=experiment.pk)
    return lifecycle.retry_failed(experiment=again, actor=None, at=timezone.now())


def finish(experiment: Experiment) -> bool:
    again = Experiment.objects.get(pk=experiment.pk)
    return lifecycle.finish_if_done(experiment=again, at=timezone.now())


def status_and_pending(experiment: Experiment) -> tuple[str, int]:
    experiment.refresh_from_db()
    pending = Execution.objects.filter(state=LeaseState.PENDING).count()
    return str(experiment.status), pending


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_a_retry_pressed_while_the_experiment_is_finished_runs(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = left_with_the_dead(tasks)
    pressed = Beside(lambda: retry(experiment))
    move = lifecycle._move

    def move_late(one: Experiment, **more: Any) -> Any:
        if more["to"] == ExperimentStatus.FINISHED:
            assert not pressed.start()  # it waits for the lock
        return move(one, **more)

    monkeypatch.setattr(lifecycle, "_move", move_late)
    assert finish(experiment)
    assert pressed.end() == 2
    assert status_and_pending(experiment) == (ExperimentStatus.RUNNING, 2)


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_an_experiment_is_not_finished_while_it_is_retried(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = left_with_the_dead(tasks)
    finishing = Beside(lambda: finish(experiment))
    append = lifecycle._append_positions

    def append_late(*args: Any) -> None:
        append(*args)
        assert not finishing.start()

    monkeypatch.setattr(lifecycle, "_append_positions", append_late)
    assert retry(experiment) == 2
    assert finishing.end() is False
    assert status_and_pending(experiment) == (ExperimentStatus.RUNNING, 2)


@pytest.mark.django_db(transaction=True)
def test_looking_before_locking_strands_what_is_retried(tasks: Path) -> None:
    """The same race without the lock: it must be lost, or the tests above are empty."""
    experiment = left_with_the_dead(tasks)
    left = executions_of(experiment).filter(state__in=(LeaseState.PENDING, LeaseState.RUNNING))
    assert not left.exists()
    assert retry(experiment) == 2
    now = timezone.now()
    lifecycle._move(
        experiment,
        allowed=(ExperimentStatus.RUNNING,),
        to=ExperimentStatus.FINISHED,
        actor=None,
        at=now,
    )
    assert status_and_pending(experiment) == (ExperimentStatus.FINISHED, 2)


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_of_two_retries_at_once_one_finds_something(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = left_with_the_dead(tasks)
    before = Position.objects.count()
    second = Beside(lambda: retry(experiment))
    append = lifecycle._append_positions

    def append_late(*args: Any) -> None:
        assert not second.start()
        append(*args)

    monkeypatch.setattr(lifecycle, "_append_positions", append_late)
    assert (retry(experiment), second.end()) == (2, 0)
    pairs = executions_of(experiment).filter(state=LeaseState.PENDING)
    retried = set(pairs.values_list("pair_arms__pair", flat=True))
    assert Position.objects.count() == before + len(retried)


def test_a_retry_is_counted_for_what_it_runs_again_and_nothing_else(tasks: Path) -> None:
    experiment = left_with_the_dead(tasks)
    dead = list(Execution.objects.filter(state=LeaseState.DEAD).order_by("pk"))
    served = {pk for one in dead for pk in one.pair_arms.values_list("pair", flat=True)}
    other = Execution.objects.exclude(pair_arms__pair__in=served).order_by("pk")[0]
    assert [arms.retries_of(one) for one in (*dead, other)] == [0, 0, 0]
    assert retry(experiment) == 2
    assert [arms.retries_of(one) for one in (*dead, other)] == [1, 1, 0]


# --- the sweep ----------------------------------------------------------------


@pytest.mark.parametrize(("waiting", "publishes"), [(0, True), (199, True), (200, False)])
def test_the_sweep_publishes_only_while_the_queue_is_short(
    waiting: int, publishes: bool, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    now = timezone.now()
    lost, due, *_ = executions_of(experiment).order_by("pk")
    past = now - timedelta(seconds=1)
    Execution.objects.filter(pk=lost.pk).update(
        state=LeaseState.RUNNING, lease_until=past, lease_owner="elsewhere"
    )
    Execution.objects.filter(pk=due.pk).update(next_attempt_at=past)
    published: list[Any] = []

    def publish(task: str, uids: Any, *, queue: str) -> None:
        published.extend(uids)

    monkeypatch.setattr(sweeping, "publish", publish)
    monkeypatch.setattr(lifecycle, "publish", publish)
    monkeypatch.setattr(sweeping, "waiting_messages", lambda queue: waiting)
    for _ in range(20):
        sweeping.sweep(now=now)
    assert bool(published) is publishes
    if publishes:
        assert published[:2] == [lost.uid, due.uid]
        assert set(published) == set(executions_of(experiment).values_list("uid", flat=True))


def test_the_sweep_finishes_and_expires_whatever_the_queues_length(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "waiting_messages", lambda queue: 10_000)
    experiment = left_with_the_dead(tasks)
    sweeping.sweep(now=timezone.now())
    assert status_and_pending(experiment) == (ExperimentStatus.FINISHED, 0)


# --- budgets ------------------------------------------------------------------


def started(
    tasks: Path, server: ScriptedServer, budget: Budget, price: float | None = None
) -> Experiment:
    model = ModelSpec(id="m", base_url=server.base_url, price_in=price, price_out=price)
    experiment = plan(make_spec(tasks, model=model, budget=budget))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    server.seen.clear()
    return experiment


def test_a_resume_does_not_get_past_a_budget(tasks: Path) -> None:
    with ScriptedServer(RIGHT) as server:
        experiment = started(tasks, server, Budget(calls=1))
        for uid in executions_of(experiment).order_by("pk").values_list("uid", flat=True):
            execute(uid=uid, open_grader=grader)
            experiment.refresh_from_db()
            if experiment.status == ExperimentStatus.PAUSED:
                assert "budget of 1 calls is reached (1 used)" in experiment.reason
                lifecycle.resume(experiment=experiment, actor=None, at=timezone.now())
        assert len(server.seen) == Call.objects.count() == 1
    # What it kept back has its tries still.
    tries = Execution.objects.order_by("pk").values_list("state", "tries")
    assert sorted(tries) == [(LeaseState.DONE, 1)] + [(LeaseState.PENDING, 0)] * 5


def test_without_the_check_before_each_run_every_run_is_made(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runs.services.executing._check_budgets", lambda experiments: None)
    with ScriptedServer(RIGHT) as server:
        experiment = started(tasks, server, Budget(calls=1))
        run_left(experiment)
        assert len(server.seen) == 6


@pytest.mark.parametrize(
    ("first", "requests"),
    [
        # 10 tokens in and 5 out, a million a million, cost 15 a reply: two reach 30.
        (RIGHT, 2),
        # A reply whose cost is unknown adds nothing, and hides nothing of what is known.
        (always(completion({"content": "right"}, usage=None)), 3),
        (context_overflow(), 3),
    ],
)
def test_a_cost_that_is_known_counts_beside_one_that_is_not(
    first: Behaviour, requests: int, tasks: Path
) -> None:
    with ScriptedServer(first, RIGHT) as server:
        experiment = started(tasks, server, Budget(cost=30), price=1e6)
        server.script(first, RIGHT)
        run_left(experiment)
        assert (len(server.seen), experiment.status) == (requests, ExperimentStatus.PAUSED)
    assert "budget of 30 cost is reached (30 used)" in experiment.reason
    used = usage_of(experiment)
    assert (used.cost, used.least_cost) == (30.0 if requests == 2 else None, 30.0)


def test_without_a_budget_nothing_is_counted(tasks: Path, django_assert_num_queries: Any) -> None:
    experiment = plan(make_spec(tasks))
    with django_assert_num_queries(0):
        assert budget_reached(experiment) is None
