"""Work items held by a lease: claim, renew and settle by compare-and-swap.

A lease has an owner, an end and a fencing token that rises with each claim.
Whoever writes a result states the token it was given; a worker that lost its
lease holds an old token and its write changes no row.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.db import models, transaction
from django.db.models import F, Q


class LeaseState(models.TextChoices):
    """Where a work item stands."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"


class AlreadyClaimed(Exception):
    """Somebody else holds the item, it isn't due yet, or it is settled."""


class LeaseLost(Exception):
    """The caller's fencing token is no longer the current one."""


class Leased(models.Model):
    """A mutable work item. Only this module's functions change its lease.

    ``tries`` counts the claims that were spent: those after which the item was
    neither settled nor given back.
    """

    state = models.CharField(
        max_length=8, choices=LeaseState.choices, default=LeaseState.PENDING, db_default="pending"
    )
    tries = models.PositiveIntegerField(default=0)
    fencing_token = models.PositiveBigIntegerField(default=0)
    lease_owner = models.CharField(max_length=120, blank=True, default="")
    lease_until = models.DateTimeField(null=True, blank=True)
    next_attempt_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True


def this_process() -> str:
    """Return the owner name of this process: host, pid space, pid and start time.

    The start time keeps a reused pid from looking alive, the pid space (boot and
    pid namespace) keeps a process of another container from looking dead.
    """
    return f"{_pid_space()}/{os.getpid()}:{_start_ticks(os.getpid())}"


def owner_is_dead(owner: str) -> bool:
    """Return True only when ``owner`` is a process of this pid space that no longer runs."""
    space, _, process = owner.partition("/")
    pid, _, start = process.partition(":")
    return bool(start) and space == _pid_space() and _start_ticks(int(pid)) != start


@lru_cache(maxsize=1)
def _pid_space() -> str:
    """Return what makes a pid unique: host, boot and pid namespace; no owner without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return f"{socket.gethostname()}:{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return f"{socket.gethostname()}:unknown"


def _start_ticks(pid: int) -> str:
    """Return when the process started, in clock ticks since boot; empty when it isn't there."""
    try:
        # The name in brackets may hold spaces; field 22 counts from after it.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return ""


def claimable(now: datetime) -> Q:
    """Return the condition under which an item may be claimed at ``now``."""
    due = Q(next_attempt_at__isnull=True) | Q(next_attempt_at__lte=now)
    return (Q(state=LeaseState.PENDING) & due) | Q(state=LeaseState.RUNNING, lease_until__lt=now)


def claim(
    queryset: models.QuerySet[Any], *, now: datetime, lease: timedelta, only_if: Any = None
) -> int:
    """Claim the one item in ``queryset`` and return its new fencing token.

    One UPDATE decides: of any number of callers exactly one gets the item.

    Args:
        queryset: conditions on the row's own columns only, so that the database
            checks them again under the row's lock.
        only_if: one more condition, such as an EXISTS over other tables.

    Raises:
        AlreadyClaimed: the item is held, not due, settled or absent.
    """
    due = queryset.filter(claimable(now))
    if only_if is not None:
        due = due.filter(only_if)
    with transaction.atomic():  # the token read is the one of this claim
        changed = due.update(
            state=LeaseState.RUNNING,
            tries=F("tries") + 1,
            fencing_token=F("fencing_token") + 1,
            lease_owner=this_process(),
            lease_until=now + lease,
            next_attempt_at=None,
        )
        if changed != 1:
            raise AlreadyClaimed
        return int(queryset.values_list("fencing_token", flat=True).get())


def renew(queryset: models.QuerySet[Any], *, token: int, until: datetime) -> bool:
    """Extend the lease held under ``token`` and return whether it was still held."""
    held = queryset.filter(state=LeaseState.RUNNING, fencing_token=token)
    return held.update(lease_until=until) == 1


def settle(queryset: models.QuerySet[Any], *, token: int, state: str, **fields: Any) -> None:
    """Move the item held under ``token`` to ``state`` and end its lease.

    Raises:
        LeaseLost: ``token`` is no longer the current one; nothing was changed.
    """
    held = queryset.filter(state=LeaseState.RUNNING, fencing_token=token)
    changed = held.update(state=state, lease_owner="", lease_until=None, **fields)
    if changed != 1:
        raise LeaseLost


def confirm(queryset: models.QuerySet[Any], *, token: int) -> None:
    """Lock the item and prove inside a transaction that ``token`` is still current.

    Raises:
        LeaseLost: it is not.
    """
    if not queryset.filter(state=LeaseState.RUNNING, fencing_token=token).update(
        lease_until=F("lease_until")
    ):
        raise LeaseLost


def expire_dead(queryset: models.QuerySet[Any], *, now: datetime) -> int:
    """End the leases whose owner is a dead process of this host; return how many."""
    running = queryset.filter(state=LeaseState.RUNNING).exclude(lease_owner="")
    dead = [o for o in set(running.values_list("lease_owner", flat=True)) if owner_is_dead(o)]
    if not dead:
        return 0
    return running.filter(lease_owner__in=dead).update(lease_until=now - timedelta(seconds=1))
