"""Diffs: the standard library's lines, and texts that would keep it busy."""

from __future__ import annotations

import contextlib
import difflib
import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.textdiff import MOST_LINES, DiffWork, TooDifferent, text_diff

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "d e"]), max_size=30).map("\n".join)


def diff(old: str, new: str, work: DiffWork | None = None) -> list[str]:
    return text_diff(old, new, old_name="one", new_name="two", work=work)


@given(old=TEXTS, new=TEXTS)
def test_lines_are_those_of_the_standard_library(old: str, new: str) -> None:
    standard = difflib.unified_diff(old.splitlines(), new.splitlines(), "one", "two", lineterm="")
    assert diff(old, new) == list(standard)


def repeated(lines: int, alphabet: int, seed: int) -> str:
    rng = random.Random(seed)
    return "\n".join(f"{rng.randrange(alphabet):x}" for _ in range(lines))


def peeled(lines: int, other: str) -> str:
    """Every second line is common: one line is found in each search of all that is left."""
    return "\n".join(f"{n}\n{other}{n}" for n in range(lines // 2))


HARD = {
    "repeats": (repeated(2_000, 110, 1), repeated(2_000, 110, 2)),
    "few repeats": (repeated(2_000, 1_000, 1), repeated(2_000, 1_000, 2)),
    "below the popular": (repeated(199, 2, 1), repeated(199, 2, 2)),
    "one line": ("x\n" * 199, "x\n" * 198 + "y"),
    "peeled": (peeled(2_000, "a"), peeled(2_000, "b")),
    "peeled, smaller": (peeled(1_200, "a"), peeled(1_200, "b")),
    "blank lines": ("\n" * 60_000, "\n" * 50_000),
}


@pytest.mark.parametrize("name", HARD)
def test_texts_made_to_be_slow_are_given_up_in_time(name: str) -> None:
    began = time.process_time()
    with contextlib.suppress(TooDifferent):
        diff(*HARD[name])
    assert time.process_time() - began < 0.1


def test_a_page_of_slow_diffs_gives_up_in_time_and_says_so() -> None:
    work = DiffWork()
    began = time.process_time()
    given_up = 0
    for _ in range(40):
        try:
            diff(*HARD["peeled, smaller"], work)
        except TooDifferent:
            given_up += 1
    assert given_up
    assert time.process_time() - began < 0.5


def test_a_long_text_with_two_edits_is_shown_and_one_too_long_is_not() -> None:
    lines = [f"line {n}" for n in range(MOST_LINES)]
    changed = ["new", *lines[1:-1], "other"]
    assert "+other" in diff("\n".join(lines), "\n".join(changed))
    with pytest.raises(TooDifferent):
        diff("\n".join([*lines, "more"]), "\n".join(changed))
