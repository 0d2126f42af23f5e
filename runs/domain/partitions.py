"""Seeded partitions: which tasks of a benchmark a cell runs (paper: 80 tasks, seeds 42 to 44).

Every key gets the sha256 of ``"<seed>:<key>"``; the ``size`` keys with the
smallest digests are the partition. So a choice depends on the seed and the keys
alone: not on the order of the file, not on Python's hash or random module, and
a smaller partition of one seed is always part of a larger one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass


class PartitionImpossible(ValueError):
    """The keys can't give the partition asked for."""


@dataclass(frozen=True)
class Partition:
    """The tasks chosen from a benchmark.

    Attributes:
        keys: the chosen task keys in seeded hash order.
    """

    keys: tuple[str, ...]

    @property
    def sha256(self) -> str:
        """Return the hex sha256 of the chosen keys, sorted: equal sets, equal hash."""
        text = json.dumps(sorted(self.keys), separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def choose_partition(*, keys: Collection[str], size: int | None, seed: int) -> Partition:
    """Return ``size`` of ``keys`` (None: all of them) by seeded hash order.

    Raises:
        PartitionImpossible: ``size`` is below 1 or above the number of keys, or a key comes twice.
    """
    distinct = set(keys)
    if len(distinct) < len(keys):
        raise PartitionImpossible(f"{len(keys) - len(distinct)} task keys come twice")
    wanted = len(keys) if size is None else size
    if not 1 <= wanted <= len(keys):
        raise PartitionImpossible(
            f"a partition of {wanted} can't be chosen from {len(keys)} tasks: "
            f"choose a size from 1 to {len(keys)}"
        )
    # The key itself ends the sort key, so that the order is total whatever the digest.
    ordered = sorted(distinct, key=lambda key: (_digest(seed, key), key))
    return Partition(keys=tuple(ordered[:wanted]))


def _digest(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}:{key}".encode()).digest()
