"""Who works: the sweeper and the workers say so, and what their silence means for the whole.

The sweeper says so after each sweep. A worker's main process can live and yet take
nothing up any more, so what counts is work that was taken up: each pool process says so
for all queues of its worker while it has a task in hand, however long that takes. Where a
queue brings no work of its own, the sweeper sends an empty task through it. A worker that
stops taking work up is therefore noticed SILENT_SECONDS after it finished what it had.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from celery import current_app
from celery.signals import task_postrun, task_prerun
from django.conf import settings
from django.db import DatabaseError, connection
from django.utils import timezone
from redis import Redis, RedisError

from workbench.kernel.dispatch import waiting_messages
from workbench.kernel.queues import BEAT_TASK, QUEUES
from workbench.models import Heartbeat

logger = logging.getLogger(__name__)

SWEEPER = "sweeper"
# So many empty tasks may wait in a queue that nobody consumes.
BEATS_AT_MOST = 5
BROKER_PATIENCE_S = 1.0
# Readers of pages and probes share one look for this part of the worker's patience: 3 s of 120.
KEPT_FOR = 1 / 40


def worker_of(queue: str) -> str:
    """Return the name under which workers say that they serve ``queue``."""
    return f"worker:{queue}"


def beat(processes: Iterable[str], *, at: datetime) -> None:
    """Store that these processes worked at ``at``."""
    Heartbeat.objects.bulk_create(
        [Heartbeat(process=process, at=at) for process in processes],
        update_conflicts=True,
        unique_fields=["process"],
        update_fields=["at"],
    )


def sweeper_patience() -> timedelta:
    """Return how long the sweeper may be silent: four sweeps, and no less than 60 s."""
    return timedelta(seconds=max(4 * settings.SWEEP_SECONDS, settings.SILENT_SECONDS / 2))


def worker_patience() -> timedelta:
    """Return how long nothing may be heard of a queue's workers."""
    return timedelta(seconds=settings.SILENT_SECONDS)


# --- the sweeper's part ---------------------------------------------------------


def send_beats(*, now: datetime) -> None:
    """Send an empty task through each queue of which nothing was heard for a while."""
    quiet = now - worker_patience() / 4
    fresh = set(Heartbeat.objects.filter(at__gt=quiet).values_list("process", flat=True))
    for queue in QUEUES:
        # Messages that wait already will be heard of, or nobody takes any up.
        if worker_of(queue) in fresh or waiting_messages(queue) >= BEATS_AT_MOST:
            continue
        try:
            current_app.send_task(
                BEAT_TASK, queue=queue, expires=settings.SILENT_SECONDS, retry=False
            )
        except Exception as error:  # whatever the broker client raises, the next sweep asks again
            logger.warning("could not send %s through %s: %s", BEAT_TASK, queue, error)
            return


# --- the worker's part ----------------------------------------------------------


class _Pulse:
    """One pool process: says that its worker's queues are served while a task is in hand."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.processes = [worker_of(queue) for queue in queues]
        self.in_hand = 0
        self.taken_up = threading.Event()

    def begin(self, **_: Any) -> None:
        self.in_hand += 1
        self.taken_up.set()

    def end(self, **_: Any) -> None:
        self.in_hand -= 1

    def keep(self) -> None:
        """Beat for ever; between beats lies an eighth of the patience."""
        while True:
            self.taken_up.wait()
            self.taken_up.clear()
            if self.in_hand:
                self.taken_up.set()
            try:
                beat(self.processes, at=timezone.now())
            except Exception:
                logger.exception("could not say that this worker works; it is tried again")
            finally:
                connection.close()
            time.sleep(settings.SILENT_SECONDS / 8)


def keep_saying(queues: Iterable[str]) -> None:
    """Have this pool process say that it works, from now on and from a thread of its own."""
    pulse = _Pulse(queues)
    task_prerun.connect(pulse.begin, weak=False)
    task_postrun.connect(pulse.end, weak=False)
    threading.Thread(target=pulse.keep, name="pulse", daemon=True).start()


# --- what it means --------------------------------------------------------------


class Status(StrEnum):
    """What is known of a part; unknown where another part's trouble hides it."""

    GREEN = "green"
    RED = "red"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the system.

    Attributes:
        name: ``database``, ``broker``, ``sweeper`` or ``worker``.
        text: Where it is red: since when, what that costs and what to do.
    """

    name: str
    status: Status
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SystemState:
    """How the parts are."""

    parts: tuple[Part, ...]

    @property
    def ready(self) -> bool:
        """Return whether work that is asked for now will be done."""
        return all(part.status is Status.GREEN for part in self.parts)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Return what to tell whoever can do something about it."""
        return tuple(part.text for part in self.parts if part.status is Status.RED)


DATABASE_GONE = "The database does not answer, so nothing can be stored or read. Start it again."
BROKER_GONE = (
    "The broker does not answer, so no work is handed out. Start it again: what waits is kept in "
    "the database and sent again."
)
NO_BROKER = "There is no broker, so no work is handed out: python3 manage.py serve starts one."
SWEEPER_SILENT = (
    "The sweeper {silence}: work that was cut off is not picked up. See sweeper.log in the logs "
    "folder, and start serve, or the sweeper's unit, again."
)
WORKER_SILENT = (
    "The worker{of} {silence}: what is asked for waits. See worker.log in the logs folder, and "
    "start serve, or the worker's unit, again. Nothing is lost."
)


def system_state(*, now: datetime) -> SystemState:
    """Return how the parts are at ``now``, or were up to 3 s before; one query and one ping."""
    return _shared.look(now)


def look_at_system(*, now: datetime, broker_url: str = "") -> SystemState:
    """Return how the parts are at ``now``; ``broker_url`` names another broker than ours."""
    try:
        heard = dict(Heartbeat.objects.values_list("process", "at"))
    except DatabaseError:
        unknown = [Part(name=name, status=Status.UNKNOWN) for name in ("sweeper", "worker")]
        gone = Part(name="database", status=Status.RED, text=DATABASE_GONE)
        return SystemState(parts=(gone, _broker(broker_url), *unknown))
    broker = _broker(broker_url)
    sweeper = _sweeper(heard.get(SWEEPER), now)
    blind = Status.RED in (broker.status, sweeper.status)
    return SystemState(
        parts=(
            Part(name="database", status=Status.GREEN),
            broker,
            sweeper,
            _worker({queue: heard.get(worker_of(queue)) for queue in QUEUES}, now, blind),
        )
    )


def _broker(url: str) -> Part:
    url = (url or settings.BROKER_URL).replace("redis+socket://", "unix://")
    if not url:
        return Part(name="broker", status=Status.RED, text=NO_BROKER)
    try:
        with Redis.from_url(
            url, socket_connect_timeout=BROKER_PATIENCE_S, socket_timeout=BROKER_PATIENCE_S
        ) as client:
            client.ping()
    except (RedisError, ValueError):
        return Part(name="broker", status=Status.RED, text=BROKER_GONE)
    return Part(name="broker", status=Status.GREEN)


def _sweeper(heard: datetime | None, now: datetime) -> Part:
    if heard and now - heard <= sweeper_patience():
        return Part(name="sweeper", status=Status.GREEN)
    text = SWEEPER_SILENT.format(silence=_silence(heard, now))
    return Part(name="sweeper", status=Status.RED, text=text)


def _worker(heard: dict[str, datetime | None], now: datetime, blind: bool) -> Part:
    """Judge the workers; without broker or sweeper nothing could be heard of them."""
    silent = [queue for queue, at in heard.items() if at is None or now - at > worker_patience()]
    if not silent:
        return Part(name="worker", status=Status.GREEN)
    if blind:
        return Part(name="worker", status=Status.UNKNOWN)
    known = [at for queue in silent if (at := heard[queue])]
    every = len(silent) == len(heard)
    text = WORKER_SILENT.format(
        of="" if every else f" of the queue {' and '.join(silent)}",
        silence=_silence(max(known, default=None), now),
    )
    return Part(name="worker", status=Status.RED, text=text)


def _silence(heard: datetime | None, now: datetime) -> str:
    if heard is None:
        return "has not been heard of yet"
    seconds = (now - heard).total_seconds()
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"has been silent for {count} {unit}{'' if count == 1 else 's'}"
    return f"has been silent for {seconds:.0f} seconds"


class _Shared:
    """One look for all who ask within a few seconds."""

    def __init__(self, look: Callable[..., SystemState]) -> None:
        self.fresh_look = look
        self.lock = threading.Lock()
        self.until = 0.0
        self.state: SystemState | None = None

    def look(self, now: datetime) -> SystemState:
        with self.lock:
            if self.state is None or time.monotonic() >= self.until:
                self.state = self.fresh_look(now=now)
                self.until = time.monotonic() + settings.SILENT_SECONDS * KEPT_FOR
            return self.state

    def forget(self) -> None:
        self.until = 0.0


_shared = _Shared(look_at_system)
