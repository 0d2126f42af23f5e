"""Seeded partitions: decided by seed and keys alone."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.partitions import PartitionImpossible, choose_partition

KEYS = [f"task/{n}" for n in range(12)]


def test_keys_with_the_smallest_digests_are_chosen() -> None:
    # By hand: sort sha256("42:<key>") and take the first three.
    by_hand = sorted(KEYS, key=lambda key: hashlib.sha256(f"42:{key}".encode()).hexdigest())[:3]
    assert choose_partition(keys=KEYS, size=3, seed=42).keys == tuple(by_hand)


def test_choice_is_pinned_for_ever() -> None:
    """A change here would silently change which tasks earlier experiments ran."""
    assert choose_partition(keys=KEYS, size=3, seed=42).keys == (
        "task/2",
        "task/7",
        "task/8",
    )


@given(st.permutations(KEYS), st.integers(0, 2**31 - 1), st.integers(1, 12))
def test_order_of_the_file_does_not_matter(order: list[str], seed: int, size: int) -> None:
    here = choose_partition(keys=order, size=size, seed=seed)
    assert here == choose_partition(keys=KEYS, size=size, seed=seed)
    assert len(here.keys) == len(set(here.keys)) == size


@given(st.integers(0, 2**31 - 1), st.integers(1, 11))
def test_smaller_partition_is_part_of_the_larger_one(seed: int, size: int) -> None:
    small = choose_partition(keys=KEYS, size=size, seed=seed)
    large = choose_partition(keys=KEYS, size=size + 1, seed=seed)
    assert large.keys[:size] == small.keys
    assert large.sha256 != small.sha256


def test_seeds_differ_and_no_size_means_all() -> None:
    chosen = {choose_partition(keys=KEYS, size=4, seed=seed).keys for seed in (42, 43, 44)}
    assert len(chosen) == 3
    all_42 = choose_partition(keys=KEYS, size=None, seed=42)
    all_43 = choose_partition(keys=KEYS, size=None, seed=43)
    assert sorted(all_42.keys) == sorted(KEYS)
    # The same set of tasks is the same partition, in whatever order it was drawn.
    assert all_42.keys != all_43.keys
    assert all_42.sha256 == all_43.sha256


@pytest.mark.parametrize("size", [0, -1, 13])
def test_impossible_size_is_refused_with_the_range(size: int) -> None:
    with pytest.raises(PartitionImpossible, match="from 1 to 12"):
        choose_partition(keys=KEYS, size=size, seed=1)


def test_repeated_keys_are_refused() -> None:
    with pytest.raises(PartitionImpossible, match="1 task keys come twice"):
        choose_partition(keys=["a", "b", "a"], size=2, seed=1)
