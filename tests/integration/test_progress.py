"""How fast a running experiment is and what it waits for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from runs.models import Attempt, Execution, Experiment, ExperimentStatus, Failure
from runs.selectors import executions_of
from runs.services import lifecycle
from runs.services.progress import RATE_ATTEMPTS, Wait, progress_of
from runs.views.live import progress_view
from tests.experiments import make_spec, plan, write_tasks
from tests.factories import make_user
from workbench.kernel.leases import LeaseState
from workbench.kernel.roles import Role
from workbench.models import EndpointGate

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 5, 4, 4, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LABEL = "scripted:mixed"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """24 executions, started two hours ago."""
    found = plan(make_spec(write_tasks(tmp_path / "counting.jsonl")))
    lifecycle.start(experiment=found, actor=None, at=NOW - 120 * MINUTE)
    return found


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


def end(experiment: Experiment, *moments: datetime) -> None:
    """Have one more execution end at each of ``moments``."""
    left = executions_of(experiment).filter(state=LeaseState.PENDING).order_by("pk")
    for execution, at in zip(left[: len(moments)], moments, strict=True):
        Attempt.objects.create(
            execution=execution, number=1, trace={}, exposed=False, retrieved=False, at=at
        )
        Execution.objects.filter(pk=execution.pk).update(state=LeaseState.DONE)


def figures(experiment: Experiment, now: datetime = NOW) -> tuple[float | None, float | None]:
    found = progress_of(experiment, now=now)
    return found.per_minute, found.seconds_left


def test_the_rate_is_of_the_last_minutes(experiment: Experiment) -> None:
    end(experiment, *[NOW - 110 * MINUTE] * 4)
    assert figures(experiment) == (None, None)  # nothing ended lately
    end(experiment, *[NOW - 5 * MINUTE] * 10)
    # 10 in the last 10 minutes; 10 of 24 are left, so 10 minutes.
    assert figures(experiment) == (1.0, 600.0)


def test_a_pause_counts_nowhere(experiment: Experiment) -> None:
    end(experiment, *[NOW - 119 * MINUTE] * 4)
    lifecycle.pause(experiment=experiment, reason="paused by lee", actor=None, at=NOW - 60 * MINUTE)
    assert figures(experiment) == (None, None)
    lifecycle.resume(experiment=experiment, actor=None, at=NOW - 2 * MINUTE)
    end(experiment, *[NOW - MINUTE] * 8)
    # 8 in the 2 minutes since it went on; 12 are left.
    assert figures(experiment) == (4.0, 180.0)
    view = progress_view(experiment, now=NOW)
    assert (view.rate, view.left) == ("4", "3 min")


def test_too_little_tells_no_rate(experiment: Experiment) -> None:
    end(experiment, NOW - MINUTE, NOW - MINUTE)
    assert figures(experiment) == (None, None)
    end(experiment, NOW)
    assert figures(experiment)[0] == pytest.approx(0.3)
    assert progress_view(experiment, now=NOW).rate == "less than 1"


def test_others_runs_are_not_counted(experiment: Experiment, tmp_path: Path) -> None:
    other = plan(make_spec(write_tasks(tmp_path / "t.jsonl"), slug="other", replicates=2))
    lifecycle.start(experiment=other, actor=None, at=NOW - 120 * MINUTE)
    own = set(executions_of(experiment).values_list("pk", flat=True))
    end(other, *[NOW - MINUTE] * executions_of(other).count())
    theirs = set(executions_of(other).values_list("pk", flat=True)) - own
    assert theirs
    assert progress_of(other, now=NOW).seconds_left == 0
    # An execution that serves both counts for both.
    shared = own & set(executions_of(other).values_list("pk", flat=True))
    assert progress_of(experiment, now=NOW).done == len(shared)
    assert figures(experiment)[0] == (len(shared) / 10 if len(shared) >= 3 else None)


def test_a_bounded_number_of_attempts_is_looked_at(experiment: Experiment) -> None:
    first = executions_of(experiment).order_by("pk")[0]
    Attempt.objects.bulk_create(
        Attempt(
            execution=first,
            number=number,
            failure=Failure.CALL,
            trace={},
            exposed=False,
            retrieved=False,
            at=NOW - 2 * MINUTE,
        )
        for number in range(2, RATE_ATTEMPTS)
    )
    end(experiment, *[NOW - MINUTE] * 6)
    # The 500 newest begin 2 minutes ago: 6 ended since.
    assert figures(experiment)[0] == 3.0
    with CaptureQueriesContext(connection) as queries:
        progress_of(experiment, now=NOW)
    assert len(queries) <= 12


@pytest.mark.parametrize("under_way", [0, 1])
def test_an_endpoint_that_asked_to_wait_is_told(
    experiment: Experiment, under_way: int, lead: Client
) -> None:
    now = timezone.now()
    end(experiment, *[now - MINUTE] * 9)
    until = now + timedelta(seconds=272)
    EndpointGate.objects.create(label=LABEL, not_before=until)
    EndpointGate.objects.create(label="another", not_before=until + MINUTE)
    pending = executions_of(experiment).filter(state=LeaseState.PENDING)
    some = list(pending.values_list("pk", flat=True)[:under_way])
    Execution.objects.filter(pk__in=some).update(
        state=LeaseState.RUNNING, lease_until=until + MINUTE
    )
    found = progress_of(experiment, now=now)
    assert found.waits == (Wait(LABEL, until),)
    assert (found.per_minute, found.seconds_left) == (None, None)
    html = lead.get(f"/experiments/{experiment.slug}/").content.decode()
    assert f"{LABEL} asked to wait until" in html
    assert f"{until:%H:%M:%S} UTC; nothing is sent to it before. It goes on by itself" in html
    assert "Time left" not in html
    told = lead.get(f"/api/v1/experiments/{experiment.slug}/").json()["progress"]
    assert [wait["endpoint"] for wait in told["waits"]] == [LABEL]
    assert told["seconds_left"] is None
    assert not progress_of(experiment, now=until).waits


def test_what_failed_waits_for_its_next_try(experiment: Experiment) -> None:
    end(experiment, *[NOW - MINUTE] * 22)
    left = executions_of(experiment).filter(state=LeaseState.PENDING)
    left.update(next_attempt_at=NOW + 2 * MINUTE)
    left_first = left.order_by("pk")[0]
    Execution.objects.filter(pk=left_first.pk).update(next_attempt_at=NOW + MINUTE)
    assert progress_of(experiment, now=NOW).waits == (Wait("", NOW + MINUTE),)
    view = progress_view(experiment, now=NOW)
    assert view.what_next.startswith("What is left failed and is tried again from 04:01:00 UTC on.")
    Execution.objects.filter(pk=left_first.pk).update(next_attempt_at=None)
    assert progress_of(experiment, now=NOW).waits == ()


@pytest.mark.parametrize("status", [ExperimentStatus.PAUSED, ExperimentStatus.CANCELLED])
def test_what_is_not_running_waits_for_nothing(experiment: Experiment, status: Any) -> None:
    EndpointGate.objects.create(label=LABEL, not_before=NOW + MINUTE)
    Experiment.objects.filter(pk=experiment.pk).update(status=status)
    experiment.refresh_from_db()
    found = progress_of(experiment, now=NOW)
    assert (found.waits, found.per_minute) == ((), None)
