"""What each skill was returned for, alone or beside others, and what came of those pairs.

A pair whose run returned several skills counts for each of them: such pairs
say nothing about one skill alone, so the two groups are kept apart. This is a
description, never a reason to promote or retire a skill.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runs.domain.effects import Transition
from runs.domain.report import PairRecord


@dataclass(frozen=True)
class Exposure:
    """Pairs with both results in which ``skill`` was returned, by how it came and what came of it.

    Attributes:
        alone: pairs in which it was the only skill returned.
        shared: pairs in which others were returned too.
        won, lost: of all of them.
        won_alone, lost_alone: of those where it was alone.
    """

    skill: str
    alone: int = 0
    shared: int = 0
    won: int = 0
    lost: int = 0
    won_alone: int = 0
    lost_alone: int = 0

    @property
    def returned(self) -> int:
        """All pairs in which the skill was returned."""
        return self.alone + self.shared


def exposures(*, pairs: Iterable[PairRecord], skills: Iterable[str]) -> tuple[Exposure, ...]:
    """Return one exposure per skill of ``skills`` or of ``pairs``, by slug; zeros included."""
    tallies: dict[str, dict[str, int]] = {skill: {} for skill in skills}
    for pair in pairs:
        if pair.se is None or pair.sd is None:
            continue
        transition = Transition.of(se=pair.se, sd=pair.sd)
        alone = len(pair.skills) == 1
        for skill in pair.skills:
            tally = tallies.setdefault(skill, {})
            _add(tally, "alone" if alone else "shared")
            if transition in _NAMES:
                _add(tally, _NAMES[transition])
                if alone:
                    _add(tally, f"{_NAMES[transition]}_alone")
    return tuple(Exposure(skill, **tally) for skill, tally in sorted(tallies.items()))


_NAMES = {Transition.HELPFUL: "won", Transition.HARMFUL: "lost"}


def _add(tally: dict[str, int], name: str) -> None:
    tally[name] = tally.get(name, 0) + 1
