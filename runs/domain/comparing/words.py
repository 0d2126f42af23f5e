"""What the figures of a compared cell say: verdict, headline and notes."""

from __future__ import annotations

from runs.domain.comparing.cells import CellComparison, LeftOut, SdRuns
from runs.domain.comparing.matching import Match, Side
from runs.domain.comparing.rae import RaeChange
from runs.domain.report import ALPHA, FAILURES, FEWEST_DISCORDANT, FailurePolicy

BETTER, WORSE, UNDECIDED = "better", "worse", ""


def verdict(cell: CellComparison) -> str:
    """Return ``better`` or ``worse`` where the SE results show B to be that, else an empty text.

    It follows p after Holm's correction: at most .05 in the same direction however failed calls
    are read. Two runs of the same skills are never better or worse than each other.
    """
    if cell.match.same_skills:
        return UNDECIDED
    found = {_of(len(cell.won) - len(cell.lost), cell.p_adjusted)}
    found |= {_of(reading.won - reading.lost, reading.p_adjusted) for reading in cell.readings}
    return found.pop() if len(found) == 1 else UNDECIDED


def _of(net: int, p_adjusted: float | None) -> str:
    if p_adjusted is None or p_adjusted > ALPHA or not net:
        return UNDECIDED
    return BETTER if net > 0 else WORSE


def headline(cell: CellComparison) -> str:
    """Return one sentence that says what a compared cell shows, without a full stop."""
    what = "B's skills" if cell.match.skills_alone else "B"
    if not cell.n_shared and cell.other_replicates:
        return (
            "A and B share tasks of the same content but no replicate of the same number, so there "
            "is nothing to compare"
        )
    if not cell.n_shared:
        return "A and B share no task of the same content, so there is nothing to compare"
    unit = "shared pairs" if cell.repeats or cell.n_compared < cell.n_shared else "shared tasks"
    counted = f"{what} won {len(cell.won)} and lost {len(cell.lost)} of {cell.n_compared} {unit}"
    if cell.cancelled:
        were = "was" if len(cell.cancelled) == 1 else "were"
        return (
            f"{counted}; {' and '.join(cell.cancelled)} {were} cancelled before the others ended, "
            "so there are no figures"
        )
    if not cell.complete:
        return f"{counted} so far; figures follow when all have ended"
    if not cell.n_compared:
        return "No shared pair has a result with skills on both sides"
    left_out = f"{cell.left_out.pairs} more left out, " if cell.left_out.pairs else ""
    return f"{counted} ({left_out}p = {_p(cell.p)}); {_moved(cell.own)}; {_said(cell)}"


def _said(cell: CellComparison) -> str:
    if cell.match.same_skills:
        return "these are two runs of the same skills, so a difference is chance"
    found = verdict(cell)
    said = {BETTER: "B is better", WORSE: "B is worse"}.get(
        found, "not enough evidence that B is better or worse"
    )
    if not found and _of(len(cell.won) - len(cell.lost), cell.p_adjusted):
        said += ", as it depends on how failed calls are read"
    if not found and cell.p is not None and cell.p <= ALPHA < (cell.p_adjusted or 0):
        said += f" after the correction for {cell.n_family} cells"
    if disagrees := _interval_disagrees(cell):
        said += f", though the interval of RAE {disagrees}"
    return said


def _interval_disagrees(cell: CellComparison) -> str:
    """Return what the interval does where it doesn't agree with the verdict, else an empty text."""
    says, found = _interval_says(cell), verdict(cell)
    if says == found:
        return ""
    if not says:
        return "holds 0"
    return "points the other way" if found else "leaves 0 out"


def _interval_says(cell: CellComparison) -> str:
    """Return what the interval alone would say; without one, what the verdict says."""
    interval = cell.own.interval
    if interval is None:
        return verdict(cell)
    if not interval.excludes_zero:
        return UNDECIDED
    return BETTER if interval.low > 0 else WORSE


def _moved(change: RaeChange) -> str:
    if change.difference is None:
        return "RAE can't be compared"
    bracket = (
        f" [{change.interval.low:+.1f}, {change.interval.high:+.1f}]" if change.interval else ""
    )
    return f"RAE moved by {change.difference:+.1f} points{bracket}"


def notes(cell: CellComparison) -> tuple[tuple[str, str], ...]:
    """Return what a reader of the figures must know, each by the code of its rule."""
    match = cell.match
    found = {
        "allowed": _allowed_note(match),
        "same_library": match.same_skills
        and "Both searched the same skills under the same protocol: what differs is chance.",
        "library_unknown": not match.known and _unknown_note(match),
        "incomplete": not cell.complete and _incomplete_note(cell),
        "left_out": cell.complete
        and cell.left_out.pairs
        and f"Left out: {_plural(cell.left_out.pairs, 'shared pair')} in which a run with skills "
        f"has no result ({_reasons(cell.left_out)}).",
        "failure_readings": _readings_note(cell),
        "rae_left_out": cell.complete
        and cell.rae_left_out.pairs
        and f"No RAE is over {cell.rae_left_out.pairs} of the {_plural(cell.n_compared, 'pair')} "
        f"of won and lost: a run without skills has no result ({_reasons(cell.rae_left_out)}).",
        "changed_tasks": cell.changed_tasks
        and f"Of other content in B than in A, and left out: "
        f"{_plural(len(cell.changed_tasks), 'task')}.",
        "other_replicates": cell.other_replicates
        and f"Of the same content but with replicates of other numbers in B than in A, and left "
        f"out: {_plural(len(cell.other_replicates), 'task')}. Number the runs alike to compare "
        "them.",
        "sd": cell.complete and _sd_note(cell.sd),
        "own_sets": cell.own.difference is not None
        and "Each RAE is over the pairs where that side got a skill. Where these differ the "
        "difference also holds which pairs were searched; the row of pairs where both got one "
        "doesn't.",
        "few": cell.p is not None and _few_note(cell),
        "disagree": cell.p is not None and _disagreement(cell),
        "repeats": cell.repeats
        and f"{cell.n_compared} pairs come from {_plural(cell.n_tasks, 'task')}: the test and the "
        "interval take the task as the unit.",
        "several_cells": cell.n_family > 1 and cell.p_adjusted is not None and _family_note(cell),
    }
    return tuple((code, str(text)) for code, text in found.items() if text)


def _unknown_note(match: Match) -> str:
    cells = ((Side.A, match.old), (Side.B, match.new))
    sides = [side for side, cell in cells if not cell.library_known]
    return (
        f"Which skills {' and '.join(sides)} searched, and in which versions, isn't known: the "
        "runs don't say. Whether the skills differ can't be told."
    )


def _incomplete_note(cell: CellComparison) -> str:
    if cell.cancelled:
        return (
            f"{_plural(cell.n_pending, 'shared pair')} never ended: counts only, as what is looked "
            "at while it grows may have been stopped when it looked best."
        )
    return f"Not finished: {_plural(cell.n_pending, 'shared pair')}; counts only until all are."


def _reasons(left_out: LeftOut) -> str:
    sides = ((Side.A, left_out.old), (Side.B, left_out.new))
    return "; ".join(
        f"{side}: " + ", ".join(f"{FAILURES[code]} ({n})" for code, n in tally.items())
        for side, tally in sides
        if tally
    )


def _readings_note(cell: CellComparison) -> str:
    if len({(one.n_compared, one.won, one.lost) for one in cell.readings}) < 2:
        return ""
    words = {FailurePolicy.CENSOR: "left out", FailurePolicy.INCORRECT: "counted as wrong"}
    texts = "; ".join(
        f"{words[one.policy]}: won {one.won} and lost {one.lost} of {one.n_compared} "
        f"(p = {_p(one.p_adjusted)})"
        for one in cell.readings
    )
    corrected = f", p after the correction for {cell.n_family} cells" if cell.n_family > 1 else ""
    return (
        f"Failed calls of runs with skills, read both ways{corrected}: {texts}. Better or worse is "
        "said only where both agree."
    )


def _family_note(cell: CellComparison) -> str:
    unseen = cell.n_family - cell.n_shown
    of_them = f", of which {unseen} aren't shown here" if unseen else ""
    return (
        f"After Holm's correction for {cell.n_family} cells{of_them}, p = {_p(cell.p_adjusted)}. "
        "Intervals are of each cell alone and aren't corrected."
    )


def _allowed_note(match: Match) -> str:
    if not match.differences:
        return ""
    texts = "; ".join(one.text for one in match.differences)
    return (
        f"A and B also differ in {texts}, which was allowed: what came out may be due to that as "
        "well as to the skills."
    )


def _sd_note(sd: SdRuns) -> str:
    if not sd.separate:
        return (
            "A and B share their runs without skills, so what differs comes from the runs with "
            "skills alone."
            if sd.shared
            else ""
        )
    some = f" for {sd.separate} of {sd.shared + sd.separate} pairs" if sd.shared else ""
    return (
        f"The runs without skills were made separately{some}, so the difference of RAE holds "
        f"their noise too: {sd.differing} of {sd.separate} came out differently in A and B. Won "
        "and lost above compare the runs with skills only."
    )


def _few_note(cell: CellComparison) -> str:
    differing = len(cell.won) + len(cell.lost)
    if differing >= FEWEST_DISCORDANT:
        return ""
    how_many = f"Only {_plural(differing, 'pair')}" if differing else "No pair"
    return (
        f"{how_many} came out differently: the exact "
        "test can't reach p = .05 whichever way they fall."
    )


def _disagreement(cell: CellComparison) -> str:
    disagrees = _interval_disagrees(cell)
    if not disagrees or cell.match.same_skills:
        return ""
    return (
        f"The interval of the RAE difference {disagrees} although p = {_p(cell.p_adjusted)}: p is "
        "of the runs with skills, the interval also of those without. The verdict follows p."
    )


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
