"""A report/1 dict as text: a table for the terminal, Markdown and CSV.

Pure functions of the report; figures are rounded here and nowhere earlier.
"""

from __future__ import annotations

import csv
import io
import json
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from runs.domain.estimates import INTERVAL_METHODS, IntervalMethod
from runs.domain.intervals import P_METHODS, PMethod
from runs.domain.report import (
    LABELS,
    NOT_REPORTABLE,
    RESULT_WORDS,
    TERMS,
    NotReportable,
    lacks_evidence,
    reason_text,
)

NONE = "–"
_SMALLEST_P = 1e-300


# --- single figures --------------------------------------------------------------------------


def points(value: float | None) -> str:
    """Return an effect with its sign and one decimal, or a dash."""
    return NONE if value is None else f"{value:+.1f}"


def percent(share: float | None) -> str:
    """Return a share (0 to 1) in per cent with one decimal, or a dash."""
    return NONE if share is None else f"{share * 100:.1f}"


def interval(value: Mapping[str, Any] | None) -> str:
    """Return an interval in points, or a dash."""
    return NONE if value is None else f"[{value['low']:+.1f}, {value['high']:+.1f}]"


def p_value(p: float | None) -> str:
    """Return a p value with three significant digits; a very small one keeps its digits."""
    if p is None:
        return NONE
    return f"{p:.3g}" if p > _SMALLEST_P else f"< {_SMALLEST_P:.0e}"


def interval_method(value: Mapping[str, Any] | None) -> str:
    """Return in words how an interval was computed, or a dash."""
    return NONE if value is None else INTERVAL_METHODS[IntervalMethod(value["method"])]


def p_method(code: str | None) -> str:
    """Return in words which test a p value is of, or a dash."""
    return NONE if code is None else P_METHODS[PMethod(code)]


def yes_no(value: bool | None) -> str:
    """Return yes, no or a dash."""
    return NONE if value is None else "yes" if value else "no"


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "n_pairs": str,
    "n_cond": str,
    "coverage": percent,
    "se_accuracy": percent,
    "sd_accuracy": percent,
    "aggregate_lift": points,
    "oae": points,
    "rae": points,
    "rae_ci": interval,
    "b": str,
    "c": str,
    "p": p_value,
    "sign_disagreement": yes_no,
}
# A column that stands right of another one's and says how its figure was computed.
_METHODS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "rae_ci": ("by", lambda cell: interval_method(cell["rae_ci"])),
    "p": ("test", lambda cell: p_method(cell["p_method"])),
}
_DESCRIBED_BY = ("model", "benchmark", "control")
_NAMED_ANYWAY = frozenset({*_DESCRIBED_BY, "partition", "design", "example", "source"})
# A terminal has no room for all columns side by side: what happened where skills were
# returned, then the whole cell.
_BANKS = (
    ("n_cond", "b", "c", "rae", "rae_ci", "p"),
    (
        "n_pairs",
        "coverage",
        "se_accuracy",
        "sd_accuracy",
        "aggregate_lift",
        "oae",
        "sign_disagreement",
    ),
)
_WIDTH = 98


# --- table and Markdown ----------------------------------------------------------------------


def table(report: Mapping[str, Any]) -> str:
    """Return the report as plain text for a terminal, its figures explained below."""
    cells, varying = report["cells"], differing(report["cells"])
    terms = _terms(cells)
    blocks = [
        "\n".join(_title(report)),
        *(_block(number, cell, varying) for number, cell in enumerate(cells, start=1)),
        *(_bank(cells, names) for names in _BANKS if cells),
        _wrapped(_disagreements(report)),
        "\n".join(["What the words mean", *(_wrapped(term, indent=2) for term in terms)])
        if terms
        else "",
        _wrapped(report["caveat"]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def markdown(report: Mapping[str, Any]) -> str:
    """Return the report as a Markdown page."""
    heads = _heads(_FORMATS)
    head = [*_DESCRIBED_BY, *heads]
    aligned = [":---"] * len(_DESCRIBED_BY) + ["---:"] * len(heads)
    varying = differing(report["cells"])
    rows = [[*_described(cell, varying), *_row(cell, _FORMATS)] for cell in report["cells"]]
    terms = _terms(report["cells"])
    table_lines = [head, aligned, *([_escaped(text) for text in row] for row in rows)]
    title, *notices = _title(report)
    blocks = [
        f"# {_escaped(title)}",
        *(f"> {_escaped(notice)}" for notice in notices),
        "\n".join("| " + " | ".join(line) + " |" for line in table_lines),
        *(
            f"**{_escaped(_named(cell, varying))}**\n\n"
            + "\n".join(f"- {_escaped(sentence)}" for sentence in _sentences(cell))
            for cell in report["cells"]
        ),
        _escaped(_disagreements(report)),
        "## What the words mean" if terms else "",
        "\n".join(f"- {_escaped(term)}" for term in terms),
        _escaped(report["caveat"]),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


# --- CSV -------------------------------------------------------------------------------------

# The first characters that make a spreadsheet run a cell (OWASP), full-width forms included.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def guarded(value: Any) -> Any:
    """Return a CSV cell that no spreadsheet runs as a formula: text only, numbers untouched."""
    if isinstance(value, str) and value.startswith(_FORMULA_STARTS):
        return "'" + value
    return value


def unguarded(text: str) -> str:
    """Return the text that ``guarded`` was given."""
    if text.startswith("'") and text[1:].startswith(_FORMULA_STARTS):
        return text[1:]
    return text


def csv_text(report: Mapping[str, Any]) -> str:
    """Return one line a cell with every figure unrounded; undefined ones are empty cells.

    Heads are the report's keys, but for its letters a, b, c and d: ``won`` is b, ``all_won``
    is all_b. The column ``undefined`` holds the reasons. Descriptor keys have the prefix
    ``cell.``. What is said of the whole report stands in every line, so that a copied line still
    says it.
    """
    whole = {
        "preset": report["preset"],
        "failure_policy": report["failure_policy"],
        "notices": _listed(report["notices"]),
        "caveat": report["caveat"],
    }
    lines = [_flat(cell) | whole for cell in report["cells"]]
    described = sorted({name for line in lines for name in line if name.startswith("cell.")})
    figures = list(dict.fromkeys(n for line in lines for n in line if not n.startswith("cell.")))
    names = described + figures
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([guarded(name) for name in names])
    for line in lines:
        writer.writerow([guarded(line.get(name)) for name in names])
    return out.getvalue()


# --- parts -----------------------------------------------------------------------------------


def _title(report: Mapping[str, Any]) -> list[str]:
    experiment = report["experiment"]
    name = _plain(experiment.get("title") or experiment.get("slug") or "Report")
    calls = {"censor": "left out", "incorrect": "counted as wrong"}[report["failure_policy"]]
    how = f"{name}: preset {report['preset']}, failed model calls {calls}"
    return [how, *(f"Notice: {_plain(notice)}" for notice in report["notices"])]


def _block(number: int, cell: Mapping[str, Any], varying: Sequence[str]) -> str:
    sentences = (_wrapped(sentence, indent=3) for sentence in _sentences(cell))
    return "\n".join([f"{number}. {_named(cell, varying)}", *sentences])


def _bank(cells: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    rows = [["#", *_heads(names)]]
    rows += [[str(number), *_row(cell, names)] for number, cell in enumerate(cells, start=1)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def _heads(names: Iterable[str]) -> list[str]:
    heads = []
    for name in names:
        heads.append(LABELS[name])
        if name in _METHODS:
            heads.append(_METHODS[name][0])
    return heads


def _row(cell: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    texts = []
    for name in names:
        texts.append(_FORMATS[name](cell[name]))
        if name in _METHODS:
            texts.append(_METHODS[name][1](cell))
    return texts


def differing(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the descriptor keys that tell a report's cells apart.

    Without hashes, and without those that always stand in a cell's name.
    """
    descriptors = [cell["cell"] for cell in cells if not cell["cell"].get("example")]
    names = sorted({name for descriptor in descriptors for name in descriptor})
    return [
        name
        for name in names
        if name not in _NAMED_ANYWAY
        and "sha" not in name
        and len({json.dumps(descriptor.get(name)) for descriptor in descriptors}) > 1
    ]


def _described(cell: Mapping[str, Any], varying: Sequence[str]) -> list[str]:
    descriptor = cell["cell"]
    partition = descriptor.get("partition")
    if isinstance(partition, Mapping):
        partition = f"s{partition.get('seed')} n{partition.get('size')}"
    benchmark = " ".join(_plain(part) for part in (descriptor.get("benchmark"), partition) if part)
    model = _plain(descriptor.get("model") or NONE)
    extras = traits(descriptor, varying)
    if descriptor.get("example"):
        extras = ["example"]
    control = _plain(descriptor.get("control") or NONE)
    design = descriptor.get("design", "se_sd")
    return [
        f"{model} ({', '.join(extras)})" if extras else model,
        benchmark or NONE,
        control if design == "se_sd" else f"{control} ({_plain(design)})",
    ]


def traits(descriptor: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Return what a cell's descriptor says under ``names``, each with its name before it."""
    return [
        f"{name.replace('_', ' ')} {_plain(_scalar(descriptor[name]))}"
        for name in names
        if descriptor.get(name) is not None
    ]


def _named(cell: Mapping[str, Any], varying: Sequence[str]) -> str:
    return " / ".join(_described(cell, varying))


def _sentences(cell: Mapping[str, Any]) -> list[str]:
    found = [f"{cell['headline']}."]
    if lacks_evidence(cell):
        found.append(f"Not enough evidence: {NOT_REPORTABLE[NotReportable.FEW_RETRIEVED]}.")
    found += [note["text"] for note in cell["notes"]]
    readings = cell["failure_readings"]
    if readings:
        found.append(
            f"RAE with failed calls left out: {_reading(readings['censor'])}; "
            f"counted as wrong: {_reading(readings['incorrect'])}."
        )
    shown = [name for name in _FORMATS if name in cell["undefined"]]
    for code in dict.fromkeys(cell["undefined"][name] for name in shown):
        names = [LABELS[name] for name in shown if cell["undefined"][name] == code]
        found.append(f"Not shown: {', '.join(names)} ({reason_text(code)}).")
    return [_plain(sentence) for sentence in found]


def _reading(reading: Mapping[str, Any]) -> str:
    counts = f"{reading['b']} won and {reading['c']} lost of {reading['n_cond']}"
    return f"{points(reading['rae'])} ({counts})"


def _disagreements(report: Mapping[str, Any]) -> str:
    rows = report["sign_disagreements"]
    if not any(row["cells"] for row in rows):
        return ""
    counted = ", ".join(
        f"{row['disagreeing']} of {row['cells']} (from {row['threshold']} pairs)" for row in rows
    )
    pending = rows[0]["pending"]
    more = "1 more cell lacks" if pending == 1 else f"{pending} more cells lack"
    so_far = f" Not final: {more} results of pairs." if pending else ""
    return f"Cells in which lift and RAE point in opposite directions: {counted}.{so_far}"


def _terms(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the meaning of every figure that some cell has a value of."""
    shown = [name for name in _FORMATS if any(cell[name] is not None for cell in cells)]
    names = ("pair", "se", "sd", *shown) if cells else ()
    return [f"{LABELS[name]}: {TERMS[name]}" for name in names]


def _wrapped(text: str, *, indent: int = 0) -> str:
    return textwrap.fill(
        text,
        width=_WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 if indent else 0),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _plain(value: object) -> str:
    """Return text without characters that steer a terminal or break a line."""
    return "".join(
        " " if character in "\t\r\n" else character
        for character in str(value)
        if character in "\t\r\n" or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp")
    )


def _escaped(text: str) -> str:
    """Return text that Markdown shows as it is."""
    special = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    return "".join(
        special.get(character, f"\\{character}" if character in "\\`*_{}[]|#" else character)
        for character in text
    )


def _flat(cell: Mapping[str, Any]) -> dict[str, Any]:
    line: dict[str, Any] = {f"cell.{name}": _scalar(v) for name, v in cell["cell"].items()}
    for name, value in cell.items():
        if name.endswith("_ci"):
            ends = value or {}
            line[f"{name}_low"], line[f"{name}_high"] = ends.get("low"), ends.get("high")
            line[f"{name}_method"] = ends.get("method")
        elif name == "decomposition":
            line |= value or dict.fromkeys(("retrieved_part", "skipped_part", "unknown_part"))
        elif name == "undefined":
            line[name] = _listed(f"{figure}: {code}" for figure, code in sorted(value.items()))
        elif name == "notes":
            line[name] = _listed(note["text"] for note in value)
        elif name != "cell":
            line[_said(name)] = _scalar(value)
    return line


def _said(name: str) -> str:
    """Return a column's head: the letters of the four results are words, as on pages."""
    group, _, letter = name.rpartition("_")
    word = RESULT_WORDS.get(letter)
    return name if word is None else "_".join(filter(None, (group, word.replace(" ", "_"))))


def _listed(parts: Iterable[str]) -> str:
    return "; ".join(parts)


def _scalar(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    return value
