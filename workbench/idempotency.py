"""Writes that are done once however often they are sent.

A client names a key of its choice; sent again with the same key, the same request
gets the first answer again. A key that stands for another request is refused, and so
is one whose first request is still being answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from workbench.models import IdempotencyKey

LONGEST_KEY = 200
KEPT_FOR = timedelta(days=7)
# The process that was answering died; the request may be sent again.
ABANDONED_AFTER = timedelta(minutes=10)


class KeyReused(Exception):
    """The key was given for another request."""


class KeyInUse(Exception):
    """The first request with this key is still being answered."""


@dataclass(frozen=True)
class Answer:
    """What was answered the first time."""

    status: int
    body: Any


def begin(*, user: Any, key: str, request_sha256: str, at: datetime) -> Answer | None:
    """Take ``key`` for this request; return the first answer where it was given before.

    Raises:
        KeyReused: the key stands for another request.
        KeyInUse: the first request with it is still being answered.
    """
    own = IdempotencyKey.objects.filter(user=user, key=key)
    own.filter(status=None, created_at__lt=at - ABANDONED_AFTER).delete()
    try:
        with transaction.atomic():
            IdempotencyKey.objects.create(
                user=user, key=key, request_sha256=request_sha256, created_at=at
            )
    except IntegrityError:
        row = own.get()
        if row.request_sha256 != request_sha256:
            raise KeyReused("this key was used for another request; choose a new one") from None
        if row.status is None:
            raise KeyInUse("the first request with this key is still being answered") from None
        return Answer(row.status, row.body)
    return None


def finish(*, user: Any, key: str, status: int, body: Any) -> None:
    """Keep the answer to the request that took ``key``."""
    IdempotencyKey.objects.filter(user=user, key=key).update(status=status, body=body)


def release(*, user: Any, key: str) -> None:
    """Give the key back: the request came to nothing and may be sent again."""
    IdempotencyKey.objects.filter(user=user, key=key, status=None).delete()


def forget_old(*, now: datetime) -> None:
    """Forget the keys that are older than a week."""
    IdempotencyKey.objects.filter(created_at__lt=now - KEPT_FOR).delete()
