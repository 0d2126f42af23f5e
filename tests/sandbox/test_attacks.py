"""Forty-nine attacks on every tier of this host; what each tier lets through is stated here."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator

import pytest

from runs.sandbox import battery
from runs.sandbox.battery import ATTACKS, Canaries
from runs.sandbox.supervisor import Ending
from tests.sandbox import loosened
from tests.sandbox.conftest import tier_named
from tests.sandbox.test_tiers import as_nobody, weakened

pytestmark = pytest.mark.xdist_group("sandbox")

# Filling its own tmpfs of 16 MiB with empty files harms nobody: it goes with the process.
RESIDUAL = {"A": {"inode_fill"}, "A_user": {"inode_fill"}, "B": set()}
# What ends them is the supervisor, the same in every tier.
_LOOPS = ("busy_loop", "sleep_forever", "ignore_sigterm")
# Attacks on files, processes and objects of the program's own uid that Landlock doesn't see,
# and the calls that make each.
ON_THE_USER = {
    "change_mode": loosened.ATTRIBUTES,
    "change_owner": loosened.ATTRIBUTES,
    "change_times": ("utimensat",),
    "change_xattr": ("setxattr",),
    "read_xattr": ("getxattr",),
    "watch_files": ("inotify_init1", "inotify_add_watch"),
    "prlimit_other": ("prlimit64",),
    "renice_other": ("setpriority",),
    "schedule_other": ("sched_setaffinity",),
    "semaphore": ("semctl",),
    "unlink_queue": ("mq_unlink",),
}
STOPPED_BY = {
    "busy_loop": Ending.CPU,
    "sleep_forever": Ending.WALL,
    "ignore_sigterm": Ending.WALL,
    "mem_multi": Ending.MEMORY,
    "huge_stdout": Ending.OUTPUT,
}


@pytest.fixture(scope="module")
def canaries() -> Iterator[Canaries]:
    with battery.planted() as planted:
        yield planted


def test_there_are_forty_nine() -> None:
    assert len(ATTACKS) == 49


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_on_the_full_tier(attack: str, canaries: Canaries) -> None:
    tier = tier_named("A", "A_user")
    outcome = battery.run_attack(tier.jail, attack, canaries)
    assert outcome.owned is (attack in RESIDUAL[tier.name]), outcome
    assert outcome.run.ready is not None
    assert outcome.run.ending == STOPPED_BY.get(attack, Ending.EXITED)


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack != "busy_loop"])
def test_attack_on_tier_b(attack: str, canaries: Canaries) -> None:
    outcome = battery.run_attack(tier_named("B").jail, attack, canaries)
    assert outcome.owned is (attack in RESIDUAL["B"]), outcome


def test_attacks_on_the_full_tier_with_landlock_of_debian_12(canaries: Canaries) -> None:
    tier = tier_named("A", "A_user")
    config = {**tier.jail.config, "landlock_max": 2}
    jail = dataclasses.replace(tier.jail, config=config)
    # Those that Landlock's later versions would have stopped.
    for attack in ("kill_parent", "kill_sibling", "unix_abstract", "tcp_loopback", "write_outside"):
        assert not battery.run_attack(jail, attack, canaries).owned


@pytest.mark.parametrize("name", ["A_user", "B"])
def test_attacks_by_an_ordinary_user(name: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests already run as an ordinary user")
    assert owned_as_nobody(name, set(ATTACKS) - set(_LOOPS)) == RESIDUAL[name]


def test_an_ordinary_user_is_attacked_where_the_filter_has_gaps() -> None:
    """The guard removed: Landlock alone leaves the user's files and processes open."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become nobody")
    assert owned_as_nobody("B", set(ON_THE_USER), without=loosened.GAPS) == set(ON_THE_USER)


def test_each_call_on_the_users_own_is_attacked_alone() -> None:
    """The guard removed, attack by attack, from tier B without a uid of its own."""
    tier = tier_named("B")
    jail = dataclasses.replace(tier.jail, slots=None)
    with battery.planted() as canaries:
        for attack, names in ON_THE_USER.items():
            assert not battery.run_attack(jail, attack, canaries).owned, attack
            with loosened.filter_without(*names):
                assert battery.run_attack(jail, attack, canaries).owned, attack


def test_older_landlock_leaves_nothing_more_to_a_uid_of_its_own(canaries: Canaries) -> None:
    if os.geteuid() != 0:
        pytest.skip("without root tier B wants a Landlock that knows all of these")
    tier = tier_named("B")
    config = {**tier.jail.config, "landlock_max": 1}
    jail = dataclasses.replace(tier.jail, config=config)
    for attack in (*ON_THE_USER, "truncate", "signal_otherwise"):
        assert not battery.run_attack(jail, attack, canaries).owned, attack


def owned_as_nobody(name: str, attacks: set[str], without: tuple[str, ...] = ()) -> set[str]:
    """Return those of ``attacks`` on nobody's tier ``name`` that succeed."""
    said = as_nobody(
        "import json\n"
        "from runs.sandbox import battery, tiers\n"
        "from tests.sandbox.loosened import filter_without\n"
        f"tier = [t for t in tiers.candidates() if getattr(t, 'name', '') == {name!r}]\n"
        f"with battery.planted() as canaries, filter_without(*{without!r}):\n"
        f"    print(json.dumps([attack for attack in {sorted(attacks)!r}"
        " if battery.run_attack(tier[0].jail, attack, canaries).owned]))"
    )
    return set(json.loads(said))


def test_the_attacks_succeed_without_guards() -> None:
    """The guards removed: limits alone stop few of these."""
    harmless = [
        *["read_root_file", "read_etc_shadow", "parent_env", "read_expected_on_disk"],
        *["tcp_loopback", "udp_loopback", "unix_abstract", "unix_path", "write_outside"],
        *["see_host_procs", "mem_read_parent", *ON_THE_USER, "truncate", "signal_otherwise"],
        *["kill_sibling", "kill_parent"],
    ]
    jail = weakened(tier_named("B")).jail
    with battery.planted() as canaries:
        owned = {attack for attack in harmless if battery.run_attack(jail, attack, canaries).owned}
    expected = set(harmless) if os.geteuid() == 0 else set(harmless) - {"read_etc_shadow"}
    assert owned >= expected - {"read_etc_shadow"}
