"""Leases: exactly one worker gets an item, and an old token changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier

import pytest
from django.db import connection
from django.db.models import QuerySet
from django.utils import timezone

from runs.models import Execution
from tests.rows import make_execution
from workbench.kernel import leases
from workbench.kernel.leases import AlreadyClaimed, LeaseLost, LeaseState

LEASE = timedelta(seconds=60)

pytestmark = pytest.mark.both_databases


def one(execution: Execution) -> QuerySet[Execution]:
    return Execution.objects.filter(pk=execution.pk)


@pytest.mark.django_db
def test_a_claim_holds_until_its_lease_ends() -> None:
    execution, now = make_execution(), timezone.now()
    assert leases.claim(one(execution), now=now, lease=LEASE) == 1
    with pytest.raises(AlreadyClaimed):
        leases.claim(one(execution), now=now + LEASE, lease=LEASE)
    late = now + LEASE + timedelta(seconds=1)
    assert leases.claim(one(execution), now=late, lease=LEASE) == 2


@pytest.mark.django_db
def test_an_item_that_is_not_due_is_not_claimed() -> None:
    execution, now = make_execution(), timezone.now()
    one(execution).update(next_attempt_at=now + timedelta(seconds=5))
    with pytest.raises(AlreadyClaimed):
        leases.claim(one(execution), now=now, lease=LEASE)
    assert leases.claim(one(execution), now=now + timedelta(seconds=5), lease=LEASE) == 1


@pytest.mark.django_db
def test_an_old_token_can_neither_renew_nor_settle() -> None:
    execution, now = make_execution(), timezone.now()
    old = leases.claim(one(execution), now=now, lease=LEASE)
    new = leases.claim(one(execution), now=now + 2 * LEASE, lease=LEASE)
    assert not leases.renew(one(execution), token=old, until=now + 3 * LEASE)
    with pytest.raises(LeaseLost):
        leases.settle(one(execution), token=old, state=LeaseState.DONE)
    with pytest.raises(LeaseLost):
        leases.confirm(one(execution), token=old)
    leases.confirm(one(execution), token=new)
    leases.settle(one(execution), token=new, state=LeaseState.DONE)
    assert one(execution).get().state == LeaseState.DONE


@pytest.mark.django_db
def test_the_lease_of_a_dead_process_of_this_host_ends_at_once() -> None:
    mine, dead, now = make_execution(key="mine"), make_execution(key="dead"), timezone.now()
    leases.claim(one(mine), now=now, lease=LEASE)
    leases.claim(one(dead), now=now, lease=LEASE)
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        capture_output=True,
        text=True,
        check=True,
    )
    space = leases.this_process().partition("/")[0]
    one(dead).update(lease_owner=f"{space}/{child.stdout.strip()}:1")
    assert leases.expire_dead(Execution.objects.all(), now=now) == 1
    with pytest.raises(AlreadyClaimed):
        leases.claim(one(mine), now=now, lease=LEASE)
    assert leases.claim(one(dead), now=now, lease=LEASE) == 2


def test_who_is_dead() -> None:
    me = leases.this_process()
    space, _, process = me.partition("/")
    pid, _, start = process.partition(":")
    assert int(pid) == os.getpid()
    assert not leases.owner_is_dead(me)
    # A reused pid: the same number, started at another time.
    assert leases.owner_is_dead(f"{space}/{pid}:{int(start) + 1}")
    # Of another host, and of another pid namespace of this host, nothing is known.
    assert not leases.owner_is_dead(f"elsewhere/{pid}:{int(start) + 1}")
    host, boot, _ = space.split(":")
    assert not leases.owner_is_dead(f"{host}:{boot}:1/{pid}:{int(start) + 1}")


def race(claim: Callable[[Execution], object]) -> int:
    """Return how many of eight workers got the one item."""
    execution = make_execution()

    def worker(_: int) -> bool:
        try:
            claim(execution)
        except AlreadyClaimed:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(8) as pool:
        return sum(pool.map(worker, range(8)))


@pytest.mark.django_db(transaction=True)
def test_of_eight_workers_one_gets_the_item() -> None:
    now = timezone.now()
    assert race(lambda execution: leases.claim(one(execution), now=now, lease=LEASE)) == 1


@pytest.mark.django_db(transaction=True)
def test_reading_before_writing_lets_several_workers_in() -> None:
    """The same race without the compare-and-swap: it must be lost, or the test above is empty."""
    barrier = Barrier(8)

    def careless(execution: Execution) -> None:
        row = one(execution).get()
        barrier.wait()  # everybody has read before anybody writes
        if row.state != LeaseState.PENDING:
            raise AlreadyClaimed
        one(execution).update(state=LeaseState.RUNNING)

    assert race(careless) == 8
