"""Messages are hints: publish by task name once the rows are committed.

A message that can't be sent is logged and forgotten; the sweep finds the row
and publishes it again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from celery import current_app
from django.db import transaction

logger = logging.getLogger(__name__)

_unsent: ContextVar[list[str] | None] = ContextVar("unsent", default=None)


@contextmanager
def noting_unsent() -> Iterator[list[str]]:
    """Yield a list that gets the reason of each publication inside the block that fails."""
    found: list[str] = []
    token = _unsent.set(found)
    try:
        yield found
    finally:
        _unsent.reset(token)


def publish(task_name: str, uids: Iterable[object], *, queue: str) -> None:
    """Send one message per uid to ``queue`` after the current transaction commits."""
    named = [str(uid) for uid in uids]
    if named:
        transaction.on_commit(partial(_send, task_name, named, queue))


def _send(task_name: str, uids: list[str], queue: str) -> None:
    """Send all of them over one connection; the first failure ends the attempt."""
    try:
        with current_app.producer_or_acquire() as producer:
            for uid in uids:
                current_app.send_task(
                    task_name, kwargs={"uid": uid}, queue=queue, retry=False, producer=producer
                )
    except Exception as error:  # whatever the broker client raises, the row stays the truth
        noted = _unsent.get()
        if noted is None:
            logger.warning("could not publish %s: %s; the sweep will", task_name, error)
        else:
            noted.append(f"{task_name}: {error}")


def waiting_messages(queue: str) -> int:
    """Return how many messages wait in ``queue``; 0 when the broker can't be asked."""
    try:
        with current_app.connection_for_read() as connection:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
    except Exception as error:  # an absent queue or broker: publishing will say the rest
        logger.info("could not ask the broker for the length of %s: %s", queue, error)
        return 0
