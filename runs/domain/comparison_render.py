"""A comparison as plain JSON, text and Markdown; figures are rounded here and nowhere earlier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runs.domain.comparing import (
    NO_INTERVAL,
    SET_CHANGES,
    CellAbout,
    CellComparison,
    Comparison,
    Factor,
    LeftOut,
    RaeChange,
    Reading,
    SharedPair,
    headline,
    notes,
    verdict,
)

SCHEMA = "comparison/1"
LISTED = 20


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as plain JSON of schema comparison/1."""
    return {
        "schema": SCHEMA,
        "a": comparison.old,
        "b": comparison.new,
        "allowed": list(comparison.allowed),
        "cells": [_cell_json(cell) for cell in comparison.cells],
        "unmatched": [
            {"side": str(one.side), **_about_json(one.cell), "reason": one.reason}
            for one in comparison.unmatched
        ],
    }


def _cell_json(cell: CellComparison) -> dict[str, Any]:
    return {
        "a": _about_json(cell.match.old),
        "b": _about_json(cell.match.new),
        "differences": [
            {"factor": one.factor, "part": one.part or None, "a": one.old, "b": one.new}
            for one in cell.match.differences
        ],
        "headline": headline(cell),
        "verdict": verdict(cell) or None,
        "same_skills": cell.match.same_skills if cell.match.known else None,
        "complete": cell.complete,
        "cancelled": [str(side) for side in cell.cancelled],
        "n_shared": cell.n_shared,
        "n_compared": cell.n_compared,
        "n_pending": cell.n_pending,
        "n_tasks": cell.n_tasks,
        "n_won": len(cell.won),
        "n_lost": len(cell.lost),
        "n_both_pass": len(cell.both_pass),
        "n_both_fail": len(cell.both_fail),
        "p": cell.p,
        "p_method": cell.p_method and str(cell.p_method),
        "p_adjusted": cell.p_adjusted,
        "n_family": cell.n_family,
        "n_shown": cell.n_shown,
        "failure_readings": [_reading_json(reading) for reading in cell.readings],
        "left_out": _left_out_json(cell.left_out),
        "rae_left_out": _left_out_json(cell.rae_left_out),
        "rae": {"own": _rae_json(cell.own), "both": _rae_json(cell.both)},
        "sd_runs": {
            "shared": cell.sd.shared,
            "separate": cell.sd.separate,
            "differing": cell.sd.differing,
        },
        "returned_sets": [
            {"change": str(row.change), "pairs": row.pairs, "won": row.won, "lost": row.lost}
            for row in cell.sets
        ],
        "won": [_pair_json(pair) for pair in cell.won],
        "lost": [_pair_json(pair) for pair in cell.lost],
        "both_pass": [_pair_json(pair) for pair in cell.both_pass],
        "both_fail": [_pair_json(pair) for pair in cell.both_fail],
        "changed_tasks": list(cell.changed_tasks),
        "other_replicates": list(cell.other_replicates),
        "only_a": list(cell.only_old),
        "only_b": list(cell.only_new),
        "notes": [{"code": code, "text": text} for code, text in notes(cell)],
    }


def _about_json(cell: CellAbout) -> dict[str, Any]:
    return {
        "experiment": cell.experiment,
        "sha12": cell.sha12,
        "library": cell.library,
        "library_known": cell.library_known,
        "partition": cell.partition,
    }


def _reading_json(reading: Reading) -> dict[str, Any]:
    return {
        "policy": str(reading.policy),
        "n_compared": reading.n_compared,
        "n_won": reading.won,
        "n_lost": reading.lost,
        "p": reading.p,
        "p_method": reading.p_method and str(reading.p_method),
        "p_adjusted": reading.p_adjusted,
    }


def _left_out_json(left_out: LeftOut) -> dict[str, Any]:
    return {"pairs": left_out.pairs, "a": dict(left_out.old), "b": dict(left_out.new)}


def _rae_json(change: RaeChange) -> dict[str, Any]:
    interval = change.interval
    return {
        "a": change.old.value,
        "b": change.new.value,
        "n_a": change.n_old,
        "n_b": change.n_new,
        "n_tasks": change.n_tasks,
        "difference": change.difference,
        "reason": change.reason,
        "interval": interval
        and {
            "low": interval.low,
            "high": interval.high,
            "level": interval.level,
            "method": str(interval.method),
        },
        "no_interval": None if change.no_interval is None else str(change.no_interval),
        "resamples_dropped": change.dropped,
    }


def _pair_json(pair: SharedPair) -> dict[str, Any]:
    return {
        "task": pair.task,
        "replicate": pair.replicate,
        "pair_a": pair.old_pair,
        "pair_b": pair.new_pair,
        "returned": str(pair.change),
        "added": list(pair.added),
        "removed": list(pair.removed),
        "edited": list(pair.edited),
    }


# --- as text ---------------------------------------------------------------------------------


def text(comparison: Comparison) -> str:
    """Return the comparison as plain text for a terminal."""
    blocks = [f"A (old): {comparison.old}\nB (new): {comparison.new}"]
    blocks += [_cell_text(cell) for cell in comparison.cells]
    if comparison.unmatched:
        lines = [f"  {one.side}: {one.cell.name}: {one.reason}" for one in comparison.unmatched]
        blocks.append("\n".join(["Cells that are compared with none", *lines]))
    return "\n\n".join(blocks) + "\n"


def markdown(comparison: Comparison) -> str:
    """Return the comparison as a Markdown page."""
    lines = [f"# {comparison.old} and {comparison.new}", "", "A is the old one, B the new one."]
    for cell in comparison.cells:
        lines += ["", f"## {_title(cell)}", "", headline(cell) + ".", ""]
        lines += [f"- {note}" for _, note in notes(cell)]
        lines += ["", "| RAE | A | n | B | n | B - A | 95% interval |"]
        lines += [":---|---:|---:|---:|---:|---:|---:".join("||")]
        lines += [
            "| " + " | ".join([label, *_rae_row(change)]) + " |" for label, change in _raes(cell)
        ]
        for label, pairs in _lists(cell):
            names = ", ".join(f"`{_pair_name(pair)}`" for pair in pairs[:LISTED])
            lines += ["", f"**{label} ({len(pairs)}):** {names or 'none'}{_more(pairs)}"]
        for label, tasks in not_compared(cell):
            names = ", ".join(f"`{task}`" for task in tasks[:LISTED])
            lines += ["", f"**{label} ({len(tasks)}):** {names}{_more(tasks)}"]
    if comparison.unmatched:
        lines += ["", "## Cells that are compared with none", ""]
        lines += [f"- {one.side}: {one.cell.name}: {one.reason}" for one in comparison.unmatched]
    return "\n".join(lines) + "\n"


def _cell_text(cell: CellComparison) -> str:
    lines = [_title(cell), f"  {headline(cell)}.", ""]
    head = ("", "A", "n", "B", "n", "B - A", "95% interval")
    rows = [head, *((label, *_rae_row(change)) for label, change in _raes(cell))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        figures = [v.rjust(w) for v, w in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join(["", row[0].ljust(widths[0]), *figures, row[-1]]).rstrip())
    lines.append("")
    for label, pairs in _lists(cell):
        names = ", ".join(_pair_name(pair) for pair in pairs[:LISTED])
        lines.append(f"  {label} ({len(pairs)}): {names or 'none'}{_more(pairs)}")
    for label, tasks in not_compared(cell):
        lines.append(f"  {label} ({len(tasks)}): {', '.join(tasks[:LISTED])}{_more(tasks)}")
    lines += [
        f"  Skills returned, {SET_CHANGES[row.change]}: {row.pairs} "
        f"(won {row.won}, lost {row.lost})"
        for row in cell.sets
    ]
    lines += [f"  Note: {note}" for _, note in notes(cell)]
    return "\n".join(lines)


def _title(cell: CellComparison) -> str:
    old, new = cell.match.old, cell.match.new
    libraries = f"{old.library_text} to {new.library_text}"
    return f"{new.protocol.get(Factor.MODEL)} on {new.protocol.get(Factor.SUITE)}: {libraries}"


def _raes(cell: CellComparison) -> tuple[tuple[str, RaeChange], ...]:
    return (
        ("RAE, each on its own returned pairs", cell.own),
        ("RAE, pairs returned in both", cell.both),
    )


def _rae_row(change: RaeChange) -> tuple[str, str, str, str, str, str]:
    def points(value: float | None) -> str:
        return "–" if value is None else f"{value:+.1f}"

    why = change.reason or (NO_INTERVAL[change.no_interval] if change.no_interval else "")
    bracket = f"– ({why})"
    if change.interval:
        bracket = f"[{change.interval.low:+.1f}, {change.interval.high:+.1f}]"
    return (
        points(change.old.value),
        str(change.n_old),
        points(change.new.value),
        str(change.n_new),
        points(change.difference),
        bracket,
    )


def _lists(cell: CellComparison) -> tuple[tuple[str, tuple[SharedPair, ...]], ...]:
    return (
        ("Won", cell.won),
        ("Lost", cell.lost),
        ("Passed in both", cell.both_pass),
        ("Failed in both", cell.both_fail),
    )


def not_compared(cell: CellComparison) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the tasks that aren't compared, by why; each in words."""
    found = (
        ("Changed tasks: other content in B", cell.changed_tasks),
        ("Same content, but replicates of other numbers in B", cell.other_replicates),
        ("Run in A only", cell.only_old),
        ("Run in B only", cell.only_new),
    )
    return tuple((label, tasks) for label, tasks in found if tasks)


def _more(listed: Sequence[Any]) -> str:
    return f" and {len(listed) - LISTED} more" if len(listed) > LISTED else ""


def _pair_name(pair: SharedPair) -> str:
    return pair.task if pair.replicate == 1 else f"{pair.task} #{pair.replicate}"
