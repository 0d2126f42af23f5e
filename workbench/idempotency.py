"""Writes that are done once however often they are sent.

A client names a key of its choice; sent again with the same key, the same request
gets the first answer again. A key that stands for another request is refused, and so
is one whose first request is still being answered.

The answer is stored in the transaction of the effect, so that there is never one
without the other: a process that dies on the way has done nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from workbench.models import IdempotencyKey

HEADER = "Idempotency-Key"
LONGEST_KEY = 200
KEPT_FOR = timedelta(days=7)
# The process that was answering died; the request may be sent again.
ABANDONED_AFTER = timedelta(minutes=10)


class KeyReused(Exception):
    """The key was given for another request."""


class KeyInUse(Exception):
    """The first request with this key is still being answered."""


class KeyLost(Exception):
    """The request took so long that its key was given to the next one with it."""


@dataclass(frozen=True)
class Taken:
    """A key that now stands for one request, until its answer is kept or it is released."""

    pk: int


@dataclass(frozen=True)
class Answer:
    """What was answered the first time; ``body`` is None where it isn't kept."""

    status: int
    body: Any


def begin(*, user: Any, key: str, request_sha256: str, at: datetime) -> Taken | Answer:
    """Take ``key`` for this request; return the first answer where it was given before.

    Raises:
        KeyReused: the key stands for another request.
        KeyInUse: the first request with it is still being answered.
    """
    own = IdempotencyKey.objects.filter(user=user, key=key)
    own.filter(status=None, created_at__lt=at - ABANDONED_AFTER).delete()
    try:
        with transaction.atomic():
            row = IdempotencyKey.objects.create(
                user=user, key=key, request_sha256=request_sha256, created_at=at
            )
    except IntegrityError:
        first = own.first()
        # It was released between the two statements: whoever did it is only just answering.
        if first is None:
            raise KeyInUse(_IN_USE) from None
        if first.request_sha256 != request_sha256:
            raise KeyReused("this key was used for another request; choose a new one") from None
        if first.status is None:
            raise KeyInUse(_IN_USE) from None
        return Answer(first.status, first.body)
    return Taken(row.pk)


_IN_USE = "the first request with this key is still being answered; send it again later"


def finish(taken: Taken, *, status: int, body: Any) -> None:
    """Keep the answer to the request that took the key.

    Raises:
        KeyLost: another request has taken it meanwhile; undo what this one did.
    """
    held = IdempotencyKey.objects.filter(pk=taken.pk, status=None)
    if not held.update(status=status, body=body):
        raise KeyLost


def release(taken: Taken) -> None:
    """Give the key back: the request came to nothing and may be sent again."""
    IdempotencyKey.objects.filter(pk=taken.pk, status=None).delete()


def forget_old(*, now: datetime) -> None:
    """Forget the keys that are older than a week."""
    IdempotencyKey.objects.filter(created_at__lt=now - KEPT_FOR).delete()
