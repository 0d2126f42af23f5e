"""What a run's own failure is, and what is only the endpoint's: over a real socket.

A call failure needs a request that was sent and failed, and must end the run it
belongs to; a limit or an outage says nothing about a run and leaves it pending.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from runs.domain.pauses import advice_on
from runs.domain.plan import ModelSpec
from runs.models import Attempt, Execution, Experiment, ExperimentStatus, Failure, PairArm
from runs.selectors import executions_of
from runs.services import arms, lifecycle
from runs.services.executing import execute
from runs.services.reporting import report_of
from tests.experiments import grader, make_spec, plan, run_left, write_tasks
from tests.scripted_server import (
    Behaviour,
    ScriptedServer,
    cut,
    dies_after,
    reply,
    status,
    tool_call,
)
from workbench.kernel.leases import LeaseState
from workbench.llm.retry import Timing
from workbench.models import Call, EndpointGate

pytestmark = pytest.mark.django_db

HOUR = status(429, headers={"Retry-After": "3600"})
RIGHT = reply("right")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "counting.jsonl")


class Clock:
    """The calls' clock: it stands still but for their waits."""

    def __init__(self) -> None:
        self.now = timezone.now()

    def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    timing = Timing(now=lambda: clock.now, sleep=clock.sleep, random=lambda: 0.5)
    build = arms.chat_model_for
    monkeypatch.setattr(arms, "chat_model_for", lambda **given: build(**given, timing=timing))
    return clock


def started(tasks: Path, server: ScriptedServer, **more: Any) -> Experiment:
    """Plan and start an experiment on ``server``; forget what its preflight asked."""
    model = ModelSpec(id="m", base_url=server.base_url)
    experiment = plan(make_spec(tasks, model=model, **more))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    server.seen.clear()
    return experiment


def fails_on(*numbers: int) -> Behaviour:
    """Return a server that breaks whenever arm SE of one of the questions is asked."""

    def behave(seen: Any) -> Any:
        text = json.dumps(seen.body["messages"])
        poison = any(f"Question {number}:" in text for number in numbers)
        return (status(500) if poison and "tools" in seen.body else RIGHT)(seen)

    return behave


def due_at() -> set[datetime | None]:
    return set(Execution.objects.values_list("next_attempt_at", flat=True))


def let_an_hour_pass() -> None:
    Execution.objects.update(next_attempt_at=None)
    EndpointGate.objects.update(not_before=None)


def rounds(
    experiment: Experiment, clock: Clock, *, most: int, at_pause: Callable[[], None]
) -> None:
    """Run what is left, resume where it paused and let waits pass, at most ``most`` times."""
    for _ in range(most):
        run_left(experiment)
        if experiment.status == ExperimentStatus.FINISHED:
            return
        if experiment.status == ExperimentStatus.PAUSED:
            at_pause()
            clock.sleep(60)
            lifecycle.resume(experiment=experiment, actor=None, at=timezone.now())
        Execution.objects.update(next_attempt_at=None)
    raise AssertionError(f"not finished after {most} rounds: {experiment.reason}")


def test_a_long_limit_leaves_every_pair_pending_whatever_the_policy(
    tasks: Path, clock: Clock
) -> None:
    with ScriptedServer(RIGHT) as server:
        experiment = started(tasks, server, failure_policy="incorrect")
        server.script(HOUR)
        for _ in range(3):
            let_an_hour_pass()
            run_left(experiment)
        # One request each hour says it; the 23 other runs are never sent.
        assert len(server.seen) == 3
        assert (
            list(Call.objects.values_list("state", "failure")) == [("failed", "rate_limited")] * 3
        )
        assert not Attempt.objects.exists()
        assert set(Execution.objects.values_list("state", "tries")) == {(LeaseState.PENDING, 0)}
        assert experiment.status == ExperimentStatus.RUNNING
        soon, late = timezone.now() + timedelta(minutes=59), timezone.now() + timedelta(minutes=61)
        assert all(at is not None and soon < at < late for at in due_at())
        cell = report_of(experiment)["cells"][0]
        assert (cell["n_pairs"], cell["n_pending"], cell["n_censored"]) == (0, 12, 0)
        assert (cell["complete"], cell["oae"], cell["se_accuracy"]) == (False, None, None)

        server.script(RIGHT)
        let_an_hour_pass()
        run_left(experiment)
    assert experiment.status == ExperimentStatus.FINISHED
    cell = report_of(experiment)["cells"][0]
    assert (cell["n_pairs"], cell["n_pending"], cell["oae"]) == (12, 0, 0.0)


def test_a_limit_in_the_middle_of_a_run_costs_no_call_twice(tasks: Path, clock: Clock) -> None:
    search = tool_call(json.dumps({"query": "prefix sum windows"}))
    with ScriptedServer(RIGHT) as server:
        experiment = started(tasks, server)
        treated = PairArm.objects.filter(arm="SE", pair__cell__experiment=experiment)
        uid = treated.order_by("pk").values_list("execution__uid", flat=True)[0]
        server.script(search, HOUR)
        execute(uid=uid, open_grader=grader)
        execution = executions_of(experiment).get(uid=uid)
        assert (execution.state, execution.tries) == (LeaseState.PENDING, 0)
        server.script(RIGHT)
        let_an_hour_pass()
        execute(uid=uid, open_grader=grader)
        assert len(server.seen) == 3
    sent = Call.objects.filter(subject=uid).order_by("pk").values_list("step", "state")
    assert list(sent) == [(0, "completed"), (1, "failed"), (1, "completed")]
    attempt = Attempt.objects.get()
    assert (attempt.failure, attempt.retrieved) == (Failure.NONE, True)


def test_a_run_that_always_fails_ends_by_its_tries_and_is_censored(
    tasks: Path, clock: Clock
) -> None:
    paused: list[str] = []
    with ScriptedServer(fails_on(3)) as server:
        experiment = started(tasks, server)
        rounds(experiment, clock, most=3, at_pause=lambda: paused.append(experiment.reason))
        # 3 tries of 4 requests, and one for each of the 23 other runs.
        assert len(server.seen) == 3 * 4 + 23
    assert paused == []
    dead = Execution.objects.get(state=LeaseState.DEAD)
    assert list(dead.attempts.values_list("failure", flat=True)) == [Failure.CALL] * 3
    cell = report_of(experiment)["cells"][0]
    assert (cell["n_pairs"], cell["n_censored"], cell["n_pending"]) == (11, 1, 0)


def test_runs_that_always_fail_end_even_when_they_open_the_circuit(
    tasks: Path, clock: Clock
) -> None:
    """Once only such runs are left they open the circuit; each probe spends a try of one."""
    paused: list[str] = []
    with ScriptedServer(fails_on(0, 1, 2, 3, 4)) as server:
        experiment = started(tasks, server)
        rounds(experiment, clock, most=15, at_pause=lambda: paused.append(experiment.reason))
    assert paused
    assert all("runs in a row failed at" in reason for reason in paused)
    dead = Execution.objects.filter(state=LeaseState.DEAD)
    assert [execution.attempts.count() for execution in dead] == [3] * 5
    cell = report_of(experiment)["cells"][0]
    assert (cell["n_pairs"], cell["n_censored"]) == (7, 5)


def test_an_outage_pauses_and_spends_no_try_of_what_was_not_sent(tasks: Path, clock: Clock) -> None:
    with ScriptedServer(RIGHT) as server:
        experiment = started(tasks, server)
        server.script(status(503))
        run_left(experiment)
        # The calls of five runs fail, four requests each; then the circuit opens.
        assert len(server.seen) == 20
        assert experiment.status == ExperimentStatus.PAUSED
        assert "runs in a row failed at" in experiment.reason
        assert "circuit_open" not in experiment.reason
        assert "See whether it is up" in advice_on(experiment.reason)
        tries = Execution.objects.values_list("tries", flat=True)
        assert sorted(tries) == [0] * 19 + [1] * 5
        assert Attempt.objects.count() == 5

        server.script(RIGHT)
        rounds(experiment, clock, most=2, at_pause=lambda: None)
    assert report_of(experiment)["cells"][0]["n_pairs"] == 12


def test_a_key_that_dies_in_the_night_pauses_and_a_new_one_goes_on(
    tasks: Path, clock: Clock
) -> None:
    with ScriptedServer(RIGHT) as server:
        experiment = started(tasks, server)
        server.script(dies_after(7, RIGHT))
        run_left(experiment)
        assert experiment.status == ExperimentStatus.PAUSED
        assert "refused a request without a key (401: " in experiment.reason
        assert "wrong_key" not in experiment.reason
        assert "a valid one" in advice_on(experiment.reason)
        # Seven replies and the one refusal; each request has its row.
        assert len(server.seen) == Call.objects.count() == 8
        assert Call.objects.filter(state="completed").count() == 7
        assert not Attempt.objects.exclude(failure=Failure.NONE).exists()
        assert report_of(experiment)["cells"][0]["rae"] is None

        server.script(RIGHT)
        lifecycle.resume(experiment=experiment, actor=None, at=timezone.now())
        run_left(experiment)
        assert experiment.status == ExperimentStatus.FINISHED
        # Nothing that was answered is asked again: 24 runs of one call each, and the refusal.
        assert len(server.seen) == Call.objects.count() == 25
    assert report_of(experiment)["cells"][0]["n_pairs"] == 12


def test_a_bad_day_ends_with_every_request_accounted_for(tasks: Path, clock: Clock) -> None:
    """Limits, faults and cut replies between good ones: the pairs are as on a good day."""
    limited = status(429, headers={"Retry-After": "2"})
    day = [limited, status(500), RIGHT, cut(), RIGHT, status(503), limited, RIGHT]
    with ScriptedServer(RIGHT) as server:
        experiment = started(tasks, server)
        server.script(*day * 6, RIGHT)
        rounds(experiment, clock, most=5, at_pause=lambda: None)
        assert len(server.seen) == Call.objects.count() > 24
        assert Call.objects.filter(state="completed").count() == 24
    cell = report_of(experiment)["cells"][0]
    assert (cell["n_pairs"], cell["n_censored"], cell["oae"]) == (12, 0, 0.0)
