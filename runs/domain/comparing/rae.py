"""How RAE changed from A to B, and the interval of that difference."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from runs.domain import effects
from runs.domain.comparing.matching import Side
from runs.domain.comparing.pairs import Shared
from runs.domain.effects import CellCounts, Counts, Transition
from runs.domain.estimates import REASONS, Estimate, Interval, IntervalMethod, Undefined
from runs.domain.intervals import MOST_DROPPED, RESAMPLES, SEED

# Below it percentiles of resampled tasks cover too seldom (docs/statistics.md).
FEWEST_TASKS = 10

# Patterns times resamples that are held at once: 32 MB.
_AT_ONCE = 4_000_000


class NoInterval(StrEnum):
    """Why a difference of RAE has no interval."""

    UNDEFINED = "undefined"
    ONE_TASK = "one_task"
    FEW_TASKS = "few_tasks"
    NO_FLIPS = "no_flips"
    NO_VARIATION = "no_variation"
    RESAMPLES_DROPPED = "resamples_dropped"


NO_INTERVAL: Mapping[NoInterval, str] = MappingProxyType(
    {
        NoInterval.UNDEFINED: "the difference itself has no value",
        NoInterval.ONE_TASK: "all pairs are of one task, so there is nothing to resample",
        NoInterval.FEW_TASKS: (
            f"fewer than {FEWEST_TASKS} tasks have a returned skill: an interval from resampling "
            "so few would be too narrow"
        ),
        NoInterval.NO_FLIPS: (
            "no pair was won or lost against its run without skills, on either side: resampling "
            "can't tell how far from 0 the difference may be"
        ),
        NoInterval.NO_VARIATION: "every task came out alike, so resampling tasks changes nothing",
        NoInterval.RESAMPLES_DROPPED: (
            "in more than 1% of the resamples no skill was returned on one side"
        ),
    }
)


@dataclass(frozen=True)
class RaeChange:
    """RAE of both sides over shared pairs, and RAE of B minus RAE of A, in points.

    Attributes:
        n_old, n_new: retrieved pairs that each RAE is taken over; n_tasks: their tasks.
        reason: why the difference has no value.
        no_interval: why it has no interval.
        dropped: resamples left out because a side had no retrieved pair.
    """

    n_old: int
    n_new: int
    n_tasks: int
    old: Estimate
    new: Estimate
    difference: float | None
    reason: str | None
    interval: Interval | None
    no_interval: NoInterval | None
    dropped: int = 0


@dataclass(frozen=True, order=True)
class TaskNet:
    """What one task brings to both RAEs: won minus lost, and retrieved pairs, of A and of B."""

    old_net: int
    old_pairs: int
    new_net: int
    new_pairs: int

    @property
    def swapped(self) -> TaskNet:
        return TaskNet(self.new_net, self.new_pairs, self.old_net, self.old_pairs)


Drawn = dict[tuple[TaskNet, ...], tuple[Interval | None, NoInterval | None, int]]


def rae_change(shared: Sequence[Shared], drawn: Drawn, *, complete: bool, both: bool) -> RaeChange:
    """Return the change of RAE over pairs with both results on both sides.

    ``drawn`` keeps intervals: where all pairs were retrieved in both, the two are one.
    """
    settled = [one for one in shared if one.settled]
    if both:
        settled = [one for one in settled if one.retrieved_old and one.retrieved_new]
    tasks: dict[str, list[Shared]] = defaultdict(list)
    for one in settled:
        if one.retrieved_old or one.retrieved_new:
            tasks[one.task_sha256].append(one)
    nets = [_net(those) for those in tasks.values()]
    old = _rae([(one.retrieved_old, one.old) for one in settled], complete=complete)
    new = _rae([(one.retrieved_new, one.new) for one in settled], complete=complete)
    n_old, n_new = sum(net.old_pairs for net in nets), sum(net.new_pairs for net in nets)
    if old.value is None or new.value is None:
        return RaeChange(
            n_old, n_new, len(nets), old, new, None, _why(old, new), None, NoInterval.UNDEFINED
        )
    # From the counts, not from the two rounded shares: equal effects differ by exactly 0.
    difference = (
        sum(net.new_net for net in nets) * n_old - sum(net.old_net for net in nets) * n_new
    ) / (n_old * n_new)
    key = tuple(sorted(nets))
    if key not in drawn:
        drawn[key] = rae_difference_interval(tasks=nets)
    interval, why, dropped = drawn[key]
    return RaeChange(
        n_old=n_old,
        n_new=n_new,
        n_tasks=len(nets),
        old=old,
        new=new,
        difference=difference * 100,
        reason=None,
        interval=interval.in_points() if interval else None,
        no_interval=why,
        dropped=dropped,
    )


def _net(those: Sequence[Shared]) -> TaskNet:
    sign = {Transition.HELPFUL: 1, Transition.HARMFUL: -1}
    return TaskNet(
        sum(sign.get(one.old, 0) for one in those if one.old and one.retrieved_old),
        sum(bool(one.retrieved_old) for one in those),
        sum(sign.get(one.new, 0) for one in those if one.new and one.retrieved_new),
        sum(bool(one.retrieved_new) for one in those),
    )


def _rae(results: Sequence[tuple[bool | None, Transition | None]], *, complete: bool) -> Estimate:
    if not complete:
        return Estimate(None, Undefined.INCOMPLETE)
    groups = (
        Counts.of(found for retrieved, found in results if found and retrieved is state)
        for state in (True, False, None)
    )
    return effects.rae(counts=CellCounts(*groups))


def _why(old: Estimate, new: Estimate) -> str:
    return "; ".join(
        f"{side}: {REASONS[estimate.reason]}"
        for side, estimate in ((Side.A, old), (Side.B, new))
        if estimate.reason
    )


def rae_difference_interval(
    *, tasks: Sequence[TaskNet], level: float = 0.95
) -> tuple[Interval | None, NoInterval | None, int]:
    """Return the interval of RAE of B minus RAE of A, or why none, and how many were dropped.

    In proportions: expanded percentiles (``_tail``) of 20,000 resamples of whole tasks from
    ``default_rng(42)``; a task brings all of its pairs, of both sides. How often each distinct
    contribution is drawn is multinomial, so those counts are drawn instead of the tasks: the
    same distribution, without its cost. Tasks without a retrieved pair bring nothing to either
    ratio and aren't resampled; of fewer than ``FEWEST_TASKS`` others there is no interval. A
    resample in which a side has no retrieved pair is dropped; above 1% there is no interval.
    """
    counted = [task for task in tasks if task.old_pairs or task.new_pairs]
    if len(counted) < 2:
        return None, NoInterval.ONE_TASK if counted else NoInterval.UNDEFINED, 0
    if len(counted) < FEWEST_TASKS:
        return None, NoInterval.FEW_TASKS, 0
    if not any(task.old_net or task.new_net for task in counted):
        return None, NoInterval.NO_FLIPS, 0
    found = sorted(Counter(counted).items())
    if len(found) == 1:
        return None, NoInterval.NO_VARIATION, 0
    # One order for a comparison and its reverse, so that swapping A and B only turns the sign.
    reverse = sorted(Counter(task.swapped for task in counted).items())
    turned = reverse < found
    low, high, dropped = _resampled(reverse if turned else found, level)
    if dropped > MOST_DROPPED * RESAMPLES:
        return None, NoInterval.RESAMPLES_DROPPED, dropped
    if reverse == found:  # A and B can't be told apart, so neither may their difference
        high = max(0.0, (high - low) / 2)
        low = -high
    elif turned:
        low, high = -high, -low
    return Interval(low, high, level, IntervalMethod.TASK_BOOTSTRAP), None, dropped


def _resampled(patterns: Sequence[tuple[TaskNet, int]], level: float) -> tuple[float, float, int]:
    """Return both percentiles of the resampled difference, and how many resamples were dropped."""
    rows = np.array(
        [[net.old_net, net.old_pairs, net.new_net, net.new_pairs] for net, _ in patterns]
    )
    times = np.array([count for _, count in patterns])
    m = int(times.sum())
    generator = np.random.default_rng(SEED)
    samples = []
    left = RESAMPLES
    while left:
        # The generator goes row by row, so blocks give the draws of one large call.
        block = min(left, max(1, _AT_ONCE // len(patterns)))
        samples.append(generator.multinomial(m, times / m, size=block) @ rows)
        left -= block
    old_net, old_pairs, new_net, new_pairs = np.concatenate(samples).T
    keep = (old_pairs > 0) & (new_pairs > 0)
    dropped = int(RESAMPLES - keep.sum())
    if dropped == RESAMPLES:
        return 0.0, 0.0, dropped
    drawn = new_net[keep] / new_pairs[keep] - old_net[keep] / old_pairs[keep]
    tail = _tail(m, level)
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high), dropped


def _tail(tasks: int, level: float) -> float:
    """Return which share of resamples of ``tasks`` tasks lies outside the interval on a side.

    Plain percentiles are too narrow for few: they take the variance without its factor
    m / (m - 1) and the normal quantile for Student's. Both are put right by
    Phi(-sqrt(m / (m - 1)) t), t the quantile of m - 1 degrees of freedom.
    Source: Hesterberg (2015), The American Statistician 69, 371-386 (expanded percentiles).
    """
    normal = NormalDist()
    z = normal.inv_cdf((1 + level) / 2)
    # Cornish and Fisher's expansion (Abramowitz and Stegun 26.7.5): 5 digits from 9 degrees on.
    degrees = tasks - 1
    t = (
        z
        + (z**3 + z) / 4 / degrees
        + (5 * z**5 + 16 * z**3 + 3 * z) / 96 / degrees**2
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384 / degrees**3
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160 / degrees**4
    )
    return normal.cdf(-math.sqrt(tasks / degrees) * t)
