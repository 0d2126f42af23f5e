"""What changed between two texts, line by line, with bounded work.

The standard library's comparison takes time by the square and more of lines that stand again and
again, and can't be stopped. Here its steps are counted before they are made.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

# Of either text. No skill that people read comes near it.
MOST_LINES = 2_000
# A step takes some 100 ns: about 0.04 s for one diff, and 0.25 s for all of a page.
MOST_STEPS = 400_000
MOST_STEPS_TOGETHER = 2_500_000


class TooDifferent(Exception):
    """The two texts take more comparing than is done while somebody waits."""


class DiffWork:
    """The steps that all diffs of one page may take together."""

    def __init__(self, steps: int = MOST_STEPS_TOGETHER) -> None:
        self.left = steps


class _Counted(difflib.SequenceMatcher[str]):
    """The standard matcher; it gives up before a search that would take too many steps."""

    a: Sequence[str]
    b2j: dict[str, list[int]]  # of the new text, where each line stands; very common ones not

    def __init__(self, old: Sequence[str], new: Sequence[str], work: DiffWork) -> None:
        super().__init__(None, old, new)
        counts = Counter({line: len(places) for line, places in self.b2j.items()})
        # What it costs to search the lines before each one: the line itself and its twins.
        self._cost = [0, *accumulate(1 + counts[line] for line in old)]
        self._work = work
        self._left = min(MOST_STEPS, work.left)

    def find_longest_match(
        self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None
    ) -> difflib.Match:
        steps = self._cost[len(self.a) if ahi is None else ahi] - self._cost[alo]
        self._left -= steps
        self._work.left -= steps
        if self._left < 0:
            raise TooDifferent
        return super().find_longest_match(alo, ahi, blo, bhi)


def text_diff(
    old: str, new: str, *, old_name: str, new_name: str, work: DiffWork | None = None
) -> list[str]:
    """Return the lines of a unified diff of two texts; none where they are alike.

    Args:
        work: what the diffs of one page share; a new one when None.

    Raises:
        TooDifferent: it would take too long to tell.
    """
    before, after = old.splitlines(), new.splitlines()
    if max(len(before), len(after)) > MOST_LINES:
        raise TooDifferent
    matcher = _Counted(before, after, work or DiffWork())
    lines = []
    for group in matcher.get_grouped_opcodes(3):
        (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
        lines.append(f"@@ -{_span(a1, a2)} +{_span(b1, b2)} @@")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                lines += [f" {line}" for line in before[i1:i2]]
                continue
            lines += [f"-{line}" for line in before[i1:i2]]
            lines += [f"+{line}" for line in after[j1:j2]]
    return [f"--- {old_name}", f"+++ {new_name}", *lines] if lines else []


def _span(start: int, stop: int) -> str:
    """Return a range of lines as diffs write it: from 1, and its length where it isn't one."""
    length = stop - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"
