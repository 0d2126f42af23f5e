"""What a few probed pairs say of the many that are planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

LEVEL = 0.95
# Halvings of [0, 1]: the limit is exact to 15 digits.
_HALVINGS = 50


@dataclass(frozen=True)
class Probed:
    """Probed pairs that stand for others.

    Attributes:
        returned: of ``of`` probed pairs, in how many a skill was returned.
        pairs: how many planned pairs they stand for.
    """

    returned: int
    of: int
    pairs: int


@dataclass(frozen=True)
class Expected:
    """A number of pairs that is expected, with its 95% limits."""

    value: float
    low: float
    high: float


def expected_pairs(groups: Sequence[Probed]) -> Expected:
    """Return in how many planned pairs of all groups a skill will be returned.

    The limits are the sums of each group's exact binomial limits, at 1 - 0.05/m for m groups:
    all of them hold at once in at least 95% of experiments (Bonferroni), and then so does their
    sum. Groups for which no pair is planned have no part in it.
    """
    told = [group for group in groups if group.pairs]
    if not told:
        return Expected(0.0, 0.0, 0.0)
    level = 1 - (1 - LEVEL) / len(told)
    limits = [binomial_limits(group.returned, group.of, level=level) for group in told]
    return Expected(
        sum(group.returned / group.of * group.pairs for group in told),
        sum(low * group.pairs for group, (low, _) in zip(told, limits, strict=True)),
        sum(high * group.pairs for group, (_, high) in zip(told, limits, strict=True)),
    )


def binomial_limits(hits: int, of: int, *, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact limits of a proportion, both 0 to 1 (Clopper and Pearson, 1934).

    Args:
        of: how many were looked at, at least 1; ``hits`` of them had it.
    """
    if not 0 <= hits <= of or of < 1:
        raise ValueError(f"{hits} of {of} is no proportion")
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else _where(lambda p: 1 - _at_most(hits - 1, of, p), tail)
    high = 1.0 if hits == of else 1 - _where(lambda q: _at_most(hits, of, 1 - q), tail)
    return low, high


def _at_most(hits: int, of: int, p: float) -> float:
    """Return the probability of at most so many hits."""
    return sum(comb(of, k) * p**k * (1 - p) ** (of - k) for k in range(hits + 1))


def _where(rising: Callable[[float], float], target: float) -> float:
    """Return where ``rising``, which grows on [0, 1], reaches ``target``."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2
