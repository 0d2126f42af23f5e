"""Intervals and exact tests for a paired difference of proportions.

Everything here is in proportions (-1 to 1); ``Interval.in_points`` converts. ``b`` counts pairs
won by the SE arm, ``c`` pairs lost, ``n`` all pairs of the group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from statistics import NormalDist
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from runs.domain.effects import Counts
from runs.domain.estimates import Interval, IntervalMethod

RESAMPLES = 20_000
SEED = 42
MOST_DROPPED = 0.01

# Beyond these sizes exact integers would take seconds; floats then carry 12 digits or more.
_EXACT_DISCORDANT = 5_000
_EXACT_CONVOLUTION = 5_000_000


class PMethod(StrEnum):
    """How a p value was computed; shown wherever the p value is."""

    MCNEMAR_EXACT = "mcnemar_exact"
    SIGN_FLIP_EXACT = "sign_flip_exact"


P_METHODS: Mapping[PMethod, str] = MappingProxyType(
    {PMethod.MCNEMAR_EXACT: "McNemar", PMethod.SIGN_FLIP_EXACT: "sign-flip"}
)


# --- one pair a task -------------------------------------------------------------------------


def tango_z(*, b: float, c: float, n: float, delta: float) -> float:
    """Return Tango's score statistic for H0: difference = ``delta`` (-1 to 1).

    z = (b - c - n D) / sqrt(n (2 q + D (1 - D))), q the constrained maximum-likelihood estimate
    of the loss rate. +-inf where the null variance is 0 and the data differ from the null.
    Source: Tango (1998), Statistics in Medicine 17, 891-908.
    """
    numerator = b - c - n * delta
    # The variance is written for D >= 0; a negative D is the mirrored table.
    size, won, lost = (delta, b, c) if delta >= 0 else (-delta, c, b)
    qa = 2 * n
    qb = -(won + lost) + (2 * n - won + lost) * size
    qc = -lost * size * (1 - size)
    root = math.sqrt(max(qb * qb - 4 * qa * qc, 0.0))
    # Two forms of the same root: each avoids the cancellation of the other.
    q = -2 * qc / (root + qb) if qb > 0 else (root - qb) / (2 * qa)
    variance = n * (2 * q + size * (1 - size))
    if variance <= 0:
        return 0.0 if numerator == 0 else math.copysign(math.inf, numerator)
    return numerator / math.sqrt(variance)


def tango(
    *,
    b: float,
    c: float,
    n: float,
    level: float = 0.95,
    method: IntervalMethod = IntervalMethod.TANGO,
) -> Interval:
    """Return Tango's score interval for (b - c) / n.

    Counts may be fractional (effective counts of repeated tasks). Exact coverage stays above
    92.9% for win and loss rates up to .5 in sum; nearer 1 it may fall to 84%.

    Raises:
        ValueError: n <= 0, a negative count, b + c > n, or a level outside (0, 1).
    """
    _check_counts(b, c, n)
    if not 0 < level < 1:
        raise ValueError(f"a level lies between 0 and 1, not at {level}")
    z = NormalDist().inv_cdf(1 - (1 - level) / 2)
    d = (b - c) / n

    def score(delta: float) -> float:
        return tango_z(b=b, c=c, n=n, delta=delta)

    low = -1.0 if d <= -1 else _falling_root(score, target=z, low=-1.0, high=d)
    high = 1.0 if d >= 1 else _falling_root(score, target=-z, low=d, high=1.0)
    return Interval(low, high, level, method)


def multinomial_percentile(*, b: int, c: int, n: int, level: float = 0.95) -> Interval:
    """Return the paper's interval: percentiles of resampled (b, c, rest) with n fixed.

    20,000 multinomial resamples from ``default_rng(42)``, fresh for each call; the order of the
    cells and numpy's linear quantile matter: together they give all 16 printed intervals. It is
    [0, 0] when nothing was won or lost, which is why it isn't the default.

    Raises:
        ValueError: n <= 0, a negative count or b + c > n.
    """
    _check_counts(b, c, n)
    draws = np.random.default_rng(SEED).multinomial(
        n, [b / n, c / n, (n - b - c) / n], size=RESAMPLES
    )
    low, high = _percentiles((draws[:, 0] - draws[:, 1]) / n, level)
    return Interval(low, high, level, IntervalMethod.MULTINOMIAL_PERCENTILE)


def mcnemar_exact(*, b: int, c: int) -> float:
    """Return the exact two-sided McNemar p: min(1, 2 P(X <= min(b, c))), X ~ Bin(b + c, 1/2).

    1 without discordant pairs. It is for independent tasks, one pair each. Very small values
    keep their digits. Above 5,000 discordant pairs floats replace integers (relative error
    below 1e-7).

    Raises:
        ValueError: a negative count.
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts can't be negative: b={b}, c={c}")
    n, k = b + c, min(b, c)
    if b == c:
        return 1.0
    if n > _EXACT_DISCORDANT:
        return _binomial_two_sided_by_ratios(n, k)
    tail, term = 0, 1
    for i in range(k + 1):
        tail += term
        term = term * (n - i) // (i + 1)
    # Integer true division rounds correctly however large both sides are.
    return min(1.0, tail / (1 << (n - 1)))


@dataclass(frozen=True)
class EightCells:
    """Intervals of figures that compare retrieved with skipped pairs, from one resampling.

    Attributes:
        dropped: resamples (of 20,000) left out because a group was empty.
        intervals: by name (aggregate_lift, selection_gap, skipped_effect, retrieved_part,
            skipped_part); empty when more than 1% were dropped.
    """

    dropped: int
    intervals: Mapping[str, Interval]


def eight_cells(
    *, retrieved: Counts, skipped: Counts, unknown: Counts | None = None, level: float = 0.95
) -> EightCells:
    """Return percentile intervals from resampling (retrieved a, b, c, d, skipped a, b, c, d).

    Unlike in ``multinomial_percentile`` the sizes of the groups vary. Pairs of ``unknown``
    retrieval are resampled with the others, as four more cells: the parts of OAE are shares of
    all pairs. 20,000 resamples from ``default_rng(42)``.

    Raises:
        ValueError: there are no pairs at all.
    """
    # Empty cells at the end would still use up random numbers and change every draw.
    groups = (retrieved, skipped, unknown) if unknown and unknown.n else (retrieved, skipped)
    cells = [count for group in groups for count in (group.a, group.b, group.c, group.d)]
    n = sum(cells)
    if not n:
        raise ValueError("eight-cell intervals need at least one pair")
    draws = np.random.default_rng(SEED).multinomial(
        n, [count / n for count in cells], size=RESAMPLES
    )
    n_retrieved, n_skipped = draws[:, :4].sum(axis=1), draws[:, 4:8].sum(axis=1)
    keep = (n_retrieved > 0) & (n_skipped > 0)
    dropped = int(RESAMPLES - keep.sum())
    if dropped > MOST_DROPPED * RESAMPLES:
        return EightCells(dropped, MappingProxyType({}))
    kept = draws[keep]
    ra, rb, rc, _, sa, sb, sc, _ = kept[:, :8].T
    nr, ns = n_retrieved[keep], n_skipped[keep]
    samples = {
        "aggregate_lift": (ra + rb) / nr - (sa + sb) / ns,
        "selection_gap": (ra + rc) / nr - (sa + sc) / ns,
        "skipped_effect": (sb - sc) / ns,
        "retrieved_part": (rb - rc) / n,
        "skipped_part": (sb - sc) / n,
    }
    return EightCells(
        dropped,
        MappingProxyType(
            {
                name: Interval(
                    *_percentiles(sample, level), level, IntervalMethod.EIGHT_CELL_PERCENTILE
                )
                for name, sample in samples.items()
            }
        ),
    )


# --- several tests ---------------------------------------------------------------------------


def holm(*, p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's adjusted p values, in the order given; the family is all of them.

    With p(1) <= ... <= p(m): adjusted p(i) = min(1, max over j <= i of (m - j + 1) p(j)).
    Rejecting where it is <= alpha keeps the chance of any false rejection at alpha or less.
    Source: Holm (1979), Scandinavian Journal of Statistics 6, 65-70.

    Raises:
        ValueError: a p outside 0 to 1.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"a p value lies between 0 and 1: {list(p_values)}")
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, (len(p_values) - rank) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return tuple(adjusted)


# --- several pairs a task --------------------------------------------------------------------


@dataclass(frozen=True)
class TaskFlips:
    """One task's pairs in a group: ``pairs`` of them, ``won`` helpful and ``lost`` harmful."""

    pairs: int
    won: int
    lost: int

    def __post_init__(self) -> None:
        if min(self.pairs, self.won, self.lost) < 0 or self.won + self.lost > self.pairs:
            raise ValueError(f"not the flips of one task: {self}")


def design_effect(*, tasks: Sequence[TaskFlips]) -> float:
    """Return how much less the pairs tell than as many independent tasks would (>= 1).

    g = clip(Vc / Vn, 1, sum r^2 / R): the between-task variance of the mean over the variance
    that independent pairs would have. 1 when no task has more than one pair.

    Raises:
        ValueError: no task has a pair.
    """
    counted = [task for task in tasks if task.pairs]
    total = sum(task.pairs for task in counted)
    if not total:
        raise ValueError("a design effect needs at least one pair")
    d = sum(task.won - task.lost for task in counted) / total
    discordant = sum(task.won + task.lost for task in counted)
    most = sum(task.pairs**2 for task in counted) / total
    between = _between_task_variance(
        differences=[float(task.won - task.lost) for task in counted],
        weights=[float(task.pairs) for task in counted],
        mean=d,
    )
    independent = (discordant / total - d * d) / total
    if between is None or independent <= 0:
        return most
    return min(max(between / independent, 1.0), most)


def clustered_tango(*, tasks: Sequence[TaskFlips], level: float = 0.95) -> Interval:
    """Return Tango's interval on counts divided by the design effect (pair-weighted difference).

    With one pair a task it is ``tango``.

    Raises:
        ValueError: no task has a pair.
    """
    g = design_effect(tasks=tasks)
    n, b, c = (
        sum(task.pairs for task in tasks),
        sum(task.won for task in tasks),
        sum(task.lost for task in tasks),
    )
    return tango(b=b / g, c=c / g, n=n / g, level=level, method=IntervalMethod.TANGO_DESIGN_EFFECT)


def sign_flip(*, differences: Iterable[int]) -> float:
    """Return the exact task-level sign-flip p of whole-numbered task differences.

    T = |sum S_t|; under the null each S_t keeps its size and takes either sign with
    probability 1/2: p = P(|T*| >= T), from the full distribution (no seed, no resampling).
    1 when every difference is 0. With one pair a task it equals exact McNemar.
    """
    values = [int(value) for value in differences if value]
    sizes = sorted(abs(value) for value in values)
    reach, observed = sum(sizes), abs(sum(values))
    if not observed:
        return 1.0
    # T* = 2 J - reach, J the total size of the positive ones; reach - observed is even.
    last = (reach - observed) // 2
    if len(sizes) * (last + 1) > _EXACT_CONVOLUTION:
        return _sign_flip_by_floats(sizes, last)
    ways = [1] + [0] * last
    for size in sizes:
        shifted = [0] * min(size, last + 1) + ways[: max(last + 1 - size, 0)]
        ways = [stay + move for stay, move in zip(ways, shifted, strict=True)]
    return min(1.0, 2 * sum(ways) / (1 << len(sizes)))


@dataclass(frozen=True)
class TaskMeans:
    """One task's runs when replicates can't be matched: passes of runs, each arm (runs >= 1)."""

    se_right: int
    se_runs: int
    sd_right: int
    sd_runs: int

    def __post_init__(self) -> None:
        if not (0 <= self.se_right <= self.se_runs and 0 <= self.sd_right <= self.sd_runs):
            raise ValueError(f"not the runs of one task: {self}")
        if not (self.se_runs and self.sd_runs):
            raise ValueError(f"a task mean needs a run in each arm: {self}")

    @property
    def difference(self) -> Fraction:
        """Mean of the SE runs minus mean of the SD runs, exact."""
        return Fraction(self.se_right, self.se_runs) - Fraction(self.sd_right, self.sd_runs)


@dataclass(frozen=True)
class TaskMeanEffect:
    """The task-weighted effect: mean, interval (proportions) and exact sign-flip p."""

    mean: float
    interval: Interval
    p: float
    design_effect: float


def task_mean_effect(*, tasks: Sequence[TaskMeans], level: float = 0.95) -> TaskMeanEffect:
    """Return the effect in which each task weighs the same whatever its number of runs.

    Tango on the effective number of tasks m / g with b and c the summed positive and negative
    task differences, g = clip(Vc / Vn, 1/L, 1), L the fewest runs of one arm in any task.

    Raises:
        ValueError: there are no tasks.
    """
    if not tasks:
        raise ValueError("a task mean needs at least one task")
    exact = [task.difference for task in tasks]
    m = len(exact)
    mean = float(sum(exact) / m)
    won = float(sum((d for d in exact if d > 0), Fraction(0)))
    lost = float(sum((-d for d in exact if d < 0), Fraction(0)))
    between = _between_task_variance(
        differences=[float(d) for d in exact], weights=[1.0] * m, mean=mean
    )
    independent = ((won + lost) / m - mean * mean) / m
    fewest = min(min(task.se_runs, task.sd_runs) for task in tasks)
    g = 1.0
    if between is not None and independent > 0:
        g = min(max(between / independent, 1 / fewest), 1.0)
    scale = math.lcm(*(d.denominator for d in exact))
    return TaskMeanEffect(
        mean=mean,
        interval=tango(
            b=won / g, c=lost / g, n=m / g, level=level, method=IntervalMethod.TANGO_TASK_MEAN
        ),
        p=sign_flip(differences=[int(d * scale) for d in exact]),
        design_effect=g,
    )


# --- parts -----------------------------------------------------------------------------------


def _check_counts(b: float, c: float, n: float) -> None:
    # Fractional counts may exceed n by a rounding error.
    if not n > 0 or b < 0 or c < 0 or b + c > n * (1 + 1e-12):
        raise ValueError(f"not the counts of a paired group: b={b}, c={c}, n={n}")


def _falling_root(
    function: Callable[[float], float], *, target: float, low: float, high: float
) -> float:
    """Return where the falling ``function`` meets ``target``, by bisection to the last bit."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if function(middle) > target:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _percentiles(sample: NDArray[np.float64], level: float) -> tuple[float, float]:
    low, high = np.quantile(sample, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _between_task_variance(
    *, differences: Sequence[float], weights: Sequence[float], mean: float
) -> float | None:
    """Return m / (m - 1) sum (S_t - d r_t)^2 / R^2, or None for a single task."""
    m, total = len(differences), sum(weights)
    if m < 2:
        return None
    squares = math.fsum((s - mean * r) ** 2 for s, r in zip(differences, weights, strict=True))
    return m / (m - 1) * squares / total**2


def _binomial_two_sided_by_ratios(n: int, k: int) -> float:
    log_top = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    total = ratio = 1.0
    for i in range(k, 0, -1):
        ratio *= i / (n - i + 1)
        total += ratio
        if ratio < total * 1e-17:
            break
    return min(1.0, 2 * math.exp(log_top - n * math.log(2)) * total)


def _sign_flip_by_floats(sizes: Sequence[int], last: int) -> float:
    chance = np.zeros(last + 1)
    chance[0] = 1.0
    for size in sizes:
        moved = np.zeros_like(chance)
        if size <= last:
            moved[size:] = chance[: last + 1 - size]
        chance = (chance + moved) / 2
    return min(1.0, 2 * float(chance.sum()))
