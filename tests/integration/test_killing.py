"""Workers killed at 20 random moments of a 40-pair experiment: nothing lost, nothing repeated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from workbench.management.killing import RunFacts, run_with_kills

GOOD = RunFacts(
    report="{}",
    executions=80,
    attempts=80,
    most_attempts=1,
    completed_calls=120,
    repeated_calls=0,
    unfinished_calls=0,
    kills=0,
)


@pytest.mark.xdist_group("services")
def test_kills_change_nothing(tmp_path: Path) -> None:
    undisturbed = run_with_kills(folder=tmp_path / "undisturbed", pairs=40, points=0, seed=42)
    assert undisturbed.executions == 80
    assert undisturbed.faults(undisturbed) == []
    killed = run_with_kills(folder=tmp_path / "killed", pairs=40, points=20, seed=42)
    assert killed.kills == 20
    assert killed.unfinished_calls > 0  # the kills did hit calls in flight
    assert killed.faults(undisturbed) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"report": '{"rae": 1}'}, "report differs"),
        ({"attempts": 81, "most_attempts": 2}, "81 attempts"),
        ({"attempts": 79}, "79 attempts"),
        ({"repeated_calls": 1}, "made again"),
        ({"completed_calls": 121}, "121 completed calls"),
        ({"kills": 1, "unfinished_calls": 3}, "3 calls cut off"),
    ],
)
def test_the_comparison_notices_each_fault(change: dict[str, object], words: str) -> None:
    assert replace(GOOD, kills=1, unfinished_calls=2).faults(GOOD) == []
    faults = replace(GOOD, **change).faults(GOOD)  # type: ignore[arg-type]
    assert any(words in fault for fault in faults)
