"""What each skill was returned for, alone and beside others."""

from __future__ import annotations

from runs.domain.exposure import Exposure, exposures
from runs.domain.report import PairRecord


def pair(number: int, *, se: bool | None, sd: bool, skills: tuple[str, ...]) -> PairRecord:
    return PairRecord(
        pair=f"p{number}",
        task=f"t{number}",
        replicate=1,
        retrieved=bool(skills),
        se=se,
        sd=sd,
        se_failure="host" if se is None else None,
        skills=skills,
    )


def test_sole_and_shared_exposure_are_told_apart() -> None:
    pairs = [
        pair(1, se=True, sd=False, skills=("heap",)),  # won, alone
        pair(2, se=False, sd=True, skills=("heap", "window")),  # lost, shared
        pair(3, se=False, sd=True, skills=("heap",)),  # lost, alone
        pair(4, se=True, sd=True, skills=("window",)),  # no flip
        pair(5, se=True, sd=False, skills=()),  # nothing returned: nobody's
        pair(6, se=None, sd=True, skills=("heap",)),  # censored: counts neither way
    ]
    heap, unused, window = exposures(pairs=pairs, skills=("unused",))
    assert heap == Exposure("heap", alone=2, shared=1, won=1, lost=2, won_alone=1, lost_alone=1)
    assert heap.returned == 3
    assert window == Exposure("window", alone=1, shared=1, won=0, lost=1)
    assert unused == Exposure("unused")
