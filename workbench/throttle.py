"""Guessing passwords and one-time links is slow: so many wrong ones, then a pause.

Names are stored and logged as keyed hashes only: people type passwords into the name field.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from django.utils.crypto import salted_hmac

from workbench.models import SignInFailure

logger = logging.getLogger(__name__)

WINDOW = timedelta(minutes=5)
LIMIT_OF_NAME = 10
LIMIT_OF_ADDRESS = 50
# What is stored for a wrong link: it was no guess at any person.
_LINK = ""


class HeldBack(Exception):
    """Too many wrong guesses: nothing is tried before ``retry_after_s`` seconds are over."""

    def __init__(self, retry_after_s: int) -> None:
        super().__init__(f"too many wrong guesses; wait {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Guess:
    """A guess that may be made; it counts as wrong until it is known to be right."""

    row: int
    name_sha256: str
    address: str


def begin_guess(*, name: str, address: str, at: datetime) -> Guess:
    """Return the right to try one password for ``name`` from ``address``.

    The guess is stored before the password is looked at, and each guess counts all that
    were stored before its own count: of many at once no more pass than one by one. Names
    that nobody has are counted alike.

    Raises:
        HeldBack: in the last 5 minutes there were 10 wrong ones for this name, or 50 from this
            address. It isn't counted itself, so that the pause ends.
    """
    digest = name_hash(name)
    row = SignInFailure.objects.create(name_sha256=digest, address=address, at=at)
    waits = [
        _wait(at=at, limit=LIMIT_OF_NAME, but=row.pk, name_sha256=digest),
        _wait(at=at, limit=LIMIT_OF_ADDRESS, but=row.pk, address=address),
    ]
    if any(waits):
        row.delete()
        logger.warning("a sign-in was held back: name %s, address %s", digest[:16], address)
        raise HeldBack(max(waits))
    return Guess(row=row.pk, name_sha256=digest, address=address)


def was_right(guess: Guess) -> None:
    """Take the guess back: it was no failure."""
    SignInFailure.objects.filter(pk=guess.row).delete()


def was_wrong(guess: Guess) -> None:
    """Say in the log that the guess failed; it is counted already."""
    logger.warning("a sign-in failed: name %s, address %s", guess.name_sha256[:16], guess.address)


def check_links_from(*, address: str, at: datetime) -> None:
    """Let one-time links be opened from ``address``.

    Raises:
        HeldBack: in the last 5 minutes 50 guesses from it were wrong, links and passwords
            together.
    """
    wait = _wait(at=at, limit=LIMIT_OF_ADDRESS, but=0, address=address)
    if wait:
        logger.warning("a one-time link was held back: address %s", address)
        raise HeldBack(wait)


def count_unknown_link(*, address: str, at: datetime) -> None:
    """Count a link that was never made here."""
    SignInFailure.objects.create(name_sha256=_LINK, address=address, at=at)
    logger.warning("an unknown one-time link was opened: address %s", address)


def forget_old_failures(*, now: datetime) -> None:
    """Delete what no longer counts."""
    SignInFailure.objects.filter(at__lte=now - WINDOW).delete()


def name_hash(name: str) -> str:
    """Return what stands for a user name here; without the secret key it can't be guessed."""
    return salted_hmac(__name__, name.lower(), algorithm="sha256").hexdigest()


def _wait(*, at: datetime, limit: int, but: int, **who: str) -> int:
    """Return after how many seconds fewer than ``limit`` failures are left in the window."""
    newest_first = (
        SignInFailure.objects.filter(**who, at__gt=at - WINDOW).exclude(pk=but).order_by("-at")
    )
    deciding = list(newest_first.values_list("at", flat=True)[limit - 1 : limit])
    return max(1, ceil((deciding[0] + WINDOW - at).total_seconds())) if deciding else 0
