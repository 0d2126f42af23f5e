"""Thirty-six attacks on every tier of this host; what each tier lets through is stated here."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator

import pytest

from runs.sandbox import battery
from runs.sandbox.battery import ATTACKS, Canaries
from runs.sandbox.supervisor import Ending
from tests.sandbox.conftest import tier_named
from tests.sandbox.test_tiers import as_nobody, weakened

pytestmark = pytest.mark.xdist_group("sandbox")

# Filling its own tmpfs of 16 MiB with empty files harms nobody: it goes with the process.
RESIDUAL = {"A": {"inode_fill"}, "A_user": {"inode_fill"}, "B": set()}
# What ends them is the supervisor, the same in every tier.
_LOOPS = ("busy_loop", "sleep_forever", "ignore_sigterm")
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


def test_there_are_thirty_six() -> None:
    assert len(ATTACKS) == 36


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


def test_attacks_by_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests already run as an ordinary user")
    said = as_nobody(
        "import json\n"
        "from runs.sandbox import battery, tiers\n"
        "tier = next(iter(tiers.candidates()))\n"
        "with battery.planted() as canaries:\n"
        f"    attacks = [a for a in battery.ATTACKS if a not in {_LOOPS}]\n"
        "    print(json.dumps([tier.name] + [attack for attack in attacks"
        " if battery.run_attack(tier.jail, attack, canaries).owned]))"
    )
    name, *owned = json.loads(said)
    assert set(owned) == RESIDUAL[name]


def test_the_attacks_succeed_without_guards() -> None:
    """The guards removed: limits alone stop few of these."""
    harmless = [
        *["read_root_file", "read_etc_shadow", "parent_env", "read_expected_on_disk"],
        *["tcp_loopback", "udp_loopback", "unix_abstract", "unix_path", "write_outside"],
        *["see_host_procs", "mem_read_parent", "kill_sibling", "kill_parent"],
    ]
    jail = weakened(tier_named("B")).jail
    with battery.planted() as canaries:
        owned = {attack for attack in harmless if battery.run_attack(jail, attack, canaries).owned}
    expected = set(harmless) if os.geteuid() == 0 else set(harmless) - {"read_etc_shadow"}
    assert owned >= expected - {"read_etc_shadow"}
