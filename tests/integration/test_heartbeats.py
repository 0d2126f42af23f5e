"""Who is heard of, what their silence means, and who is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import current_app
from django.db import DatabaseError
from django.test import Client
from django.urls import reverse

from runs.services.lifecycle import EXECUTIONS_QUEUE
from tests.factories import make_user
from tests.htmlchecks import faults_of
from workbench import heartbeats, jobs
from workbench.heartbeats import (
    BROKER_GONE,
    Part,
    Status,
    beat,
    look_at_system,
    send_beats,
    system_state,
    worker_of,
)
from workbench.kernel.queues import DEFAULT, EXECUTIONS, QUEUES
from workbench.kernel.roles import Role
from workbench.models import Heartbeat

pytestmark = pytest.mark.django_db

ping = heartbeats._broker  # before a test replaces it

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
WORKERS = [worker_of(queue) for queue in QUEUES]


@pytest.fixture(autouse=True)
def as_installed(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the patience of an installation, a broker that answers, and no look of before."""
    settings.SWEEP_SECONDS = 15
    settings.SILENT_SECONDS = 120
    settings.BROKER_URL = "redis://broker.example:6379/0"
    monkeypatch.setattr(heartbeats, "_broker", lambda url: Part(name="broker", status=Status.GREEN))
    heartbeats._shared.forget()
    yield
    heartbeats._shared.forget()


def ago(seconds: float) -> datetime:
    return NOON - timedelta(seconds=seconds)


def statuses(now: datetime = NOON) -> dict[str, str]:
    return {part.name: part.status.value for part in look_at_system(now=now).parts}


ALL_GREEN = {"database": "green", "broker": "green", "sweeper": "green", "worker": "green"}


def test_queues_have_one_name_everywhere() -> None:
    assert (EXECUTIONS_QUEUE, jobs.QUEUE) == (EXECUTIONS, DEFAULT)


@pytest.mark.both_databases
def test_a_beat_replaces_the_one_before() -> None:
    beat(["sweeper", "worker:default"], at=ago(5))
    beat(["sweeper"], at=NOON)
    assert dict(Heartbeat.objects.values_list("process", "at")) == {
        "sweeper": NOON,
        "worker:default": ago(5),
    }


def test_all_is_green_up_to_the_end_of_the_patience(django_assert_num_queries: Any) -> None:
    # Four sweeps of 15 s for the sweeper, 120 s for the workers.
    beat(["sweeper"], at=ago(60))
    beat(WORKERS, at=ago(120))
    with django_assert_num_queries(1):
        state = look_at_system(now=NOON)
    assert state.ready
    assert state.troubles == ()
    assert statuses() == ALL_GREEN
    assert statuses(NOON + timedelta(seconds=1)) == ALL_GREEN | {
        "sweeper": "red",
        # Without the sweeper's empty tasks nothing could be heard of an idle worker.
        "worker": "unknown",
    }


def test_a_slow_sweep_has_its_patience_and_a_fast_one_no_less_than_a_minute(settings: Any) -> None:
    beat(["sweeper"], at=ago(100))
    beat(WORKERS, at=NOON)
    assert statuses()["sweeper"] == "red"
    settings.SWEEP_SECONDS = 25
    assert statuses()["sweeper"] == "green"
    settings.SWEEP_SECONDS = 1
    beat(["sweeper"], at=ago(59))
    assert statuses()["sweeper"] == "green"


@pytest.mark.parametrize(
    ("silent", "seconds", "says"),
    [
        (WORKERS, 180, "The worker has been silent for 3 minutes: what is asked for waits."),
        (WORKERS, 3_600, "The worker has been silent for 1 hour:"),
        (WORKERS, 200_000, "The worker has been silent for 2 days:"),
        (["worker:labelling"], 121, "The worker of the queue labelling has been silent for 2 min"),
        (["worker:executions", "worker:default"], 150, "of the queue executions and default has"),
    ],
)
def test_a_worker_that_takes_nothing_up_is_red_with_what_to_do(
    silent: list[str], seconds: float, says: str
) -> None:
    beat(["sweeper", *WORKERS], at=NOON)
    beat(silent, at=ago(seconds))
    state = look_at_system(now=NOON)
    assert not state.ready
    [trouble] = state.troubles
    assert says in trouble
    assert "See worker.log" in trouble
    assert statuses() == ALL_GREEN | {"worker": "red"}


def test_nobody_was_heard_of_at_the_first_start() -> None:
    beat(["sweeper"], at=NOON)
    assert look_at_system(now=NOON).troubles[0].startswith("The worker has not been heard of yet:")


def test_a_broker_that_is_away_hides_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    beat(["sweeper"], at=NOON)
    gone = Part(name="broker", status=Status.RED, text=BROKER_GONE)
    monkeypatch.setattr(heartbeats, "_broker", lambda url: gone)
    assert statuses() == ALL_GREEN | {"broker": "red", "worker": "unknown"}
    assert look_at_system(now=NOON).troubles == (BROKER_GONE,)


def test_a_database_that_is_away_hides_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise DatabaseError

    monkeypatch.setattr(Heartbeat.objects, "values_list", gone)
    assert statuses() == {
        "database": "red",
        "broker": "green",
        "sweeper": "unknown",
        "worker": "unknown",
    }


def test_one_look_serves_all_who_ask_within_three_seconds(
    monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
) -> None:
    # 120 s of patience / 40.
    clock = [1_000.0]
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: clock[0])
    with django_assert_num_queries(1):
        assert not system_state(now=NOON).ready
        clock[0] += 2.9
        system_state(now=NOON)
    clock[0] += 0.1
    with django_assert_num_queries(1):
        system_state(now=NOON)


# --- the broker itself ------------------------------------------------------------


def test_a_broker_answers_a_ping_or_is_red(valkey_url: str, tmp_path: Any) -> None:
    assert ping(valkey_url).status is Status.GREEN
    assert ping(f"redis+socket://{tmp_path}/none.sock").text == BROKER_GONE
    assert ping("amqp://elsewhere").text == BROKER_GONE
    assert ping("redis://:secret@127.0.0.1:1/0").text == BROKER_GONE


# --- the sweeper's empty tasks ----------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def send_task(name: str, *, queue: str, expires: float, retry: bool) -> None:
        assert (name, expires, retry) == ("workbench.beat", 120, False)
        names.append(queue)

    monkeypatch.setattr(current_app, "send_task", send_task)
    monkeypatch.setattr(heartbeats, "waiting_messages", lambda queue: 0)
    return names


def test_an_empty_task_goes_through_each_queue_that_is_quiet(sent: list[str]) -> None:
    # A quarter of the patience is 30 s.
    beat([worker_of(EXECUTIONS)], at=ago(29))
    beat([worker_of(DEFAULT)], at=ago(30))
    send_beats(now=NOON)
    assert sent == ["labelling", "default"]


def test_empty_tasks_do_not_pile_up_where_nobody_consumes(
    sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "waiting_messages", lambda queue: len(sent))
    for _ in range(10):
        send_beats(now=NOON)
    assert len(sent) == heartbeats.BEATS_AT_MOST


def test_a_broker_that_is_away_does_not_stop_the_sweeper(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    def send_task(name: str, **_: Any) -> None:
        tried.append(name)
        raise ConnectionError("no broker")

    monkeypatch.setattr(current_app, "send_task", send_task)
    monkeypatch.setattr(heartbeats, "waiting_messages", lambda queue: 0)
    send_beats(now=NOON)
    assert tried == ["workbench.beat"]
    assert "could not send" in caplog.text


# --- the worker's pulse -----------------------------------------------------------


class Beats:
    """Collects beats, and waits for them without a clock."""

    def __init__(self) -> None:
        self.said: list[tuple[str, ...]] = []
        self.heard = threading.Semaphore(0)

    def __call__(self, processes: Any, *, at: datetime) -> None:
        self.said.append(tuple(processes))
        self.heard.release()

    def more(self, number: int) -> bool:
        return all(self.heard.acquire(timeout=5) for _ in range(number))


@pytest.fixture
def pulse(monkeypatch: pytest.MonkeyPatch, settings: Any) -> tuple[heartbeats._Pulse, Beats]:
    """Return a pulse that beats every 10 ms from a thread that ends with the test."""
    settings.SILENT_SECONDS = 0.08
    beats = Beats()
    monkeypatch.setattr(heartbeats, "beat", beats)
    made = heartbeats._Pulse(["executions", "default"])
    threading.Thread(target=made.keep, daemon=True).start()
    return made, beats


def test_a_worker_is_heard_of_while_a_task_is_in_hand_however_long(
    pulse: tuple[heartbeats._Pulse, Beats],
) -> None:
    worker, beats = pulse
    worker.begin()
    # Sixteen beats are two patiences: a busy pool stays green.
    assert beats.more(16)
    assert set(beats.said) == {("worker:executions", "worker:default")}
    worker.end()
    beats.more(1)  # one may be under way
    beats.heard = threading.Semaphore(0)
    # Without a task in hand nothing is said: this is how a worker becomes silent.
    assert not beats.heard.acquire(timeout=0.1)


def test_a_task_that_came_and_went_is_said_once(pulse: tuple[heartbeats._Pulse, Beats]) -> None:
    worker, beats = pulse
    worker.begin()
    worker.end()
    assert beats.more(1)
    assert not beats.heard.acquire(timeout=0.1)


def test_a_database_that_is_away_does_not_end_the_pulse(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.SILENT_SECONDS = 0.08
    said = threading.Semaphore(0)

    def fail(processes: Any, *, at: datetime) -> None:
        said.release()
        raise DatabaseError

    monkeypatch.setattr(heartbeats, "beat", fail)
    worker = heartbeats._Pulse(["default"])
    threading.Thread(target=worker.keep, daemon=True).start()
    worker.begin()
    assert all(said.acquire(timeout=5) for _ in range(3))
    worker.end()


# --- who is told ------------------------------------------------------------------


def show(role: Role | None, path: str = "/") -> str:
    client = Client()
    client.force_login(make_user("reader", role))
    return client.get(path).content.decode()


@pytest.fixture
def worker_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats.timezone, "now", lambda: NOON)
    beat(["sweeper"], at=NOON)
    beat(WORKERS, at=ago(180))


@pytest.mark.parametrize("role", [Role.LEAD, Role.ADMIN])
def test_leads_and_admins_read_on_every_page_who_is_silent(role: Role, worker_silent: None) -> None:
    html = show(role)
    assert "The worker has been silent for 3 minutes" in html
    assert faults_of(html) == []
    heartbeats._shared.forget()
    beat(WORKERS, at=NOON)
    client = Client()
    client.force_login(make_user("other", role))
    assert "silent" not in client.get("/").content.decode()


@pytest.mark.parametrize("role", [Role.ANNOTATOR, None])
def test_raters_are_told_nothing_of_the_system(role: Role | None, worker_silent: None) -> None:
    assert "silent" not in show(role)
    heartbeats._shared.forget()
    assert "silent" not in Client().get("/sign-in/").content.decode()


def test_pages_without_a_broker_say_nothing(settings: Any, worker_silent: None) -> None:
    settings.BROKER_URL = ""
    assert "silent" not in show(Role.LEAD)


def test_anybody_may_ask_which_part_is_red_and_learns_no_more(
    worker_silent: None, caplog: pytest.LogCaptureFixture
) -> None:
    response = Client().get(reverse("ready"))
    assert response.status_code == 503
    assert response.json() == {"ready": False, "parts": ALL_GREEN | {"worker": "red"}}
    assert response["Cache-Control"] == "no-store"
    assert "Service Unavailable" not in caplog.text
    beat(WORKERS, at=NOON)
    heartbeats._shared.forget()
    response = Client().get(reverse("ready"))
    assert (response.status_code, response.json()["ready"]) == (200, True)


def test_the_api_tells_leads_what_to_do(worker_silent: None, client: Client) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    body = client.get(reverse("api-status")).json()
    assert body["ready"] is False
    assert {part["name"]: part["status"] for part in body["parts"]} == ALL_GREEN | {"worker": "red"}
    assert "See worker.log" in body["parts"][3]["text"]
    assert client.get(reverse("api-status"), {"x": "1"}).status_code == 400
