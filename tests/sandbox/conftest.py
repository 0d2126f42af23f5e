"""One grader for all tests that run programs, and the tiers it could have taken."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from runs.sandbox import tiers
from runs.sandbox.grader import Grader, open_grader
from runs.sandbox.hosts import Obstacle
from runs.sandbox.tiers import Tier


@pytest.fixture(scope="session")
def grader() -> Iterator[Grader]:
    """Return a grader; a host without isolation skips, and fails where CI asks for all tests."""
    with open_grader() as opened:
        if opened.isolation is None:
            reason = "; ".join(f"{item.tier}: {item.reason}" for item in opened.obstacles)
            if os.environ.get("CI"):
                pytest.fail(f"no isolation: {reason}")
            pytest.skip(f"no isolation on this host: {reason}")
        yield opened


def tier_named(*names: str) -> Tier:
    """Return the first of this host's candidate tiers with one of ``names``, or skip."""
    for found in tiers.candidates():
        if isinstance(found, Tier) and found.name in names:
            return found
    missing = [f"{o.tier}: {o.reason}" for o in tiers.candidates() if isinstance(o, Obstacle)]
    pytest.skip(f"tier {' or '.join(names)} can't be built here: {'; '.join(missing)}")
