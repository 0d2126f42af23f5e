"""Values of command options."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from runs.management.running import at_least_one


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "", "²"])
def test_a_count_below_one_is_refused_with_the_limit(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="must be a whole number from 1"):
        at_least_one(text)


def test_a_count_is_read() -> None:
    assert (at_least_one("1"), at_least_one("16")) == (1, 16)
