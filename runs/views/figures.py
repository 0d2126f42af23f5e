"""A report's figures as pages show them: text, reason, sign, and where to look further."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from runs.domain.effects import Transition
from runs.domain.render import (
    differing,
    interval,
    interval_method,
    p_method,
    p_value,
    percent,
    points,
    traits,
)
from runs.domain.report import (
    LABELS,
    NOT_REPORTABLE,
    RESULT_WORDS,
    TERMS,
    NotReportable,
    found_effect,
    lacks_evidence,
    reason_text,
)

# Half the width of a strip; zero is in its middle.
_HALF = 100.0
_MINUS = str.maketrans("-", "−")

# Run rows need not name a model.
UNNAMED = "model not named"
WORDS: Mapping[str, str] = {result.value: RESULT_WORDS[result.letter] for result in Transition}


@dataclass(frozen=True)
class Figure:
    """One figure: its text, or a dash and the reason why there is none.

    Attributes:
        sense: ``won`` or ``lost`` where it counts such pairs or shows an effect: RAE by its
            test and the evidence there is, the others where their interval leaves 0 out.
        method: how it was computed, where that isn't always the same.
    """

    key: str
    label: str
    text: str
    meaning: str
    reason: str = ""
    sense: str = ""
    method: str = ""


@dataclass(frozen=True)
class Strip:
    """An interval drawn on an axis that is symmetric about 0; positions of 0 to 200."""

    low: float
    high: float
    value: float
    sense: str
    limit: int


@dataclass(frozen=True)
class Quadrant:
    """One of the four ways a pair can come out."""

    letter: str
    transition: str
    word: str
    meaning: str
    count: int
    url: str


@dataclass(frozen=True)
class Matrix:
    """The pairs of one group by outcome: SE in rows, SD in columns."""

    key: str
    title: str
    n: int
    both_pass: Quadrant
    won: Quadrant
    lost: Quadrant
    both_fail: Quadrant


@dataclass(frozen=True)
class Missing:
    """Figures without a value, for one reason."""

    labels: str
    reason: str


@dataclass(frozen=True)
class Note:
    """Something a reader of the figures must know; ``code`` says which rule fired."""

    code: str
    text: str


@dataclass(frozen=True)
class CellView:
    """Everything a page says of one cell of a report.

    Attributes:
        traits: what else tells it from the report's other cells, such as ``k 3``.
    """

    anchor: str
    model: str
    benchmark: str
    partition: str
    control: str
    design: str
    traits: tuple[str, ...]
    url: str
    headline: str
    complete: bool
    cancelled: bool
    enough: bool
    remark: str
    sense: str
    figures: tuple[Figure, ...]
    rae: Figure
    rae_interval: Figure
    p: Figure
    lift: Figure
    lift_interval: Figure
    strip: Strip | None
    lift_strip: Strip | None
    retrieved: Matrix
    everything: Matrix
    parts: tuple[Figure, ...]
    missing: tuple[Missing, ...]
    notes: tuple[Note, ...]
    n_pairs: int
    n_censored: int
    n_planned: int

    @property
    def name(self) -> str:
        """The cell in one line."""
        return " · ".join(part for part in (self.model, self.about) if part)

    @property
    def about(self) -> str:
        """The name without the model."""
        return " · ".join(part for part in (self.benchmark, self.control, *self.traits) if part)


# What each column of the cells table shows, in order; the interval stands with its RAE.
COLUMNS = (
    "n_pairs",
    "n_cond",
    "coverage",
    "se_accuracy",
    "sd_accuracy",
    "aggregate_lift",
    "oae",
    "rae",
    "rae_ci",
    "b",
    "c",
    "p",
    "sign_disagreement",
)
UNITS: Mapping[str, str] = {
    "n_pairs": "count",
    "n_cond": "count",
    "coverage": "%",
    "se_accuracy": "%",
    "sd_accuracy": "%",
    "aggregate_lift": "points",
    "selection_gap": "points",
    "oae": "points",
    "rae": "points",
    "rae_ci": "points",
    "b": "count",
    "c": "count",
    "p": "exact",
    "sign_disagreement": "lift, RAE",
    "skipped_effect": "points",
}
HEADS: Mapping[str, str] = {
    **LABELS,
    "n_pairs": "Pairs",
    "n_cond": "Returned",
    "coverage": "Coverage",
    "se_accuracy": "With skills",
    "sd_accuracy": "Without",
    "aggregate_lift": "Lift",
    "selection_gap": "Selection gap",
    "b": "Won",
    "c": "Lost",
    "sign_disagreement": "Signs disagree",
    "skipped_effect": "Skipped effect",
}
_COUNTED = {"b": "won", "c": "lost"}
_EFFECTS = ("aggregate_lift", "selection_gap", "oae", "rae", "skipped_effect")


def cell_views(slug: str, report: Mapping[str, Any]) -> tuple[CellView, ...]:
    """Return the report's cells; their strips share one axis so that they can be compared."""
    limit = _axis([cell["rae_ci"] for cell in report["cells"]])
    names = telling_apart(report)
    return tuple(cell_view(slug, cell, limit=limit, names=names) for cell in report["cells"])


def telling_apart(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the descriptor keys that a name needs so that no two cells share it."""
    cells = [cell["cell"] for cell in report["cells"] if not cell["cell"].get("example")]
    beside = [
        name
        for name in ("partition", "design")
        if any(cell.get(name) != cells[0].get(name) for cell in cells)
    ]
    return (*beside, *differing(report["cells"]))


def cell_view(
    slug: str,
    cell: Mapping[str, Any],
    *,
    limit: int | None = None,
    names: Sequence[str] = (),
) -> CellView:
    """Return one cell of a report for a page; an empty ``slug`` gives no links.

    Args:
        limit: end of the strips' axis; None fits it to this cell.
        names: see ``telling_apart``.
    """
    about = cell["cell"]
    sha12 = about.get("sha12", "example")
    url = (
        reverse("cell", kwargs={"slug": slug, "sha12": sha12}) if slug and "sha12" in about else ""
    )
    enough = not lacks_evidence(cell)
    remark = _remark(cell)
    sense = found_effect(cell)
    figures = {key: figure(cell, key) for key in (*COLUMNS, "selection_gap", "skipped_effect")}
    limit = limit or _axis([cell["rae_ci"], cell["aggregate_lift_ci"]])
    return CellView(
        anchor=f"cell-{sha12}",
        model=str(about.get("model") or UNNAMED),
        benchmark=str(about.get("benchmark", "")),
        partition=_partition(about.get("partition")),
        control=str(about.get("control") or ""),
        design=str(about.get("design", "se_sd")),
        traits=_traits(about, names),
        url=url,
        headline=cell["headline"],
        complete=cell["complete"],
        cancelled=cell["cancelled"],
        enough=enough,
        remark=remark,
        sense=sense,
        figures=tuple(figures[key] for key in COLUMNS),
        rae=figures["rae"],
        rae_interval=figures["rae_ci"],
        p=figures["p"],
        lift=figures["aggregate_lift"],
        lift_interval=figure(cell, "aggregate_lift_ci"),
        strip=_strip(cell["rae"], cell["rae_ci"], limit, sense),
        lift_strip=_strip(
            cell["aggregate_lift"],
            cell["aggregate_lift_ci"],
            limit,
            sense_of(cell["aggregate_lift_ci"]),
        ),
        retrieved=_matrix(cell, "retrieved", "Where a skill was returned", "", url),
        everything=_matrix(cell, "all", "All pairs", "all_", url),
        parts=_parts(cell, figures),
        missing=_missing(figures.values()),
        notes=tuple(Note(note["code"], note["text"]) for note in cell["notes"]),
        n_pairs=cell["n_pairs"],
        n_censored=cell["n_censored"],
        n_planned=cell["n_planned"],
    )


def _remark(cell: Mapping[str, Any]) -> str:
    if cell["reportable"] or not cell["complete"]:
        return ""
    if not cell["n_cond"]:
        return reason_text(cell["undefined"]["rae"])
    return NOT_REPORTABLE[NotReportable(cell["not_reportable"])]


def figure(cell: Mapping[str, Any], key: str) -> Figure:
    """Return the figure ``key`` of a report cell."""
    value = cell[key]
    code = cell["undefined"].get(key)
    sense = sense_of(cell.get(f"{key}_ci")) if key in _EFFECTS else ""
    if key == "rae":
        sense = found_effect(cell)
    if key in _COUNTED and value:
        sense = _COUNTED[key]
    return Figure(
        key=key,
        label=HEADS.get(key, key.replace("_", " ")),
        text=_text(key, value),
        meaning=TERMS.get(key, ""),
        reason=reason_text(code) if code else "",
        sense=sense,
        method=_method(cell, key),
    )


def _method(cell: Mapping[str, Any], key: str) -> str:
    if cell[key] is None:
        return ""
    if key == "p":
        return p_method(cell["p_method"])
    return interval_method(cell[key]) if key.endswith("_ci") else ""


def sense_of(ci: Mapping[str, Any] | None) -> str:
    """Return ``won`` or ``lost`` when an interval leaves 0 out, else an empty text."""
    if ci is None:
        return ""
    return "won" if ci["low"] > 0 else "lost" if ci["high"] < 0 else ""


def _text(key: str, value: Any) -> str:
    if key.endswith("_ci"):
        return interval(value).translate(_MINUS)
    if key in _EFFECTS or key.endswith("_part"):
        return points(value).translate(_MINUS)
    if key in ("coverage", "se_accuracy", "sd_accuracy"):
        return percent(value)
    if key == "p":
        return p_value(value)
    if key == "sign_disagreement":
        return "–" if value is None else "yes" if value else "no"
    return str(value)


def _parts(cell: Mapping[str, Any], figures: Mapping[str, Figure]) -> tuple[Figure, ...]:
    """Return OAE and what it is made of."""
    parts = cell["decomposition"]
    if parts is None:
        return ()
    shown = [
        ("retrieved_part", "from pairs where a skill was returned"),
        ("skipped_part", "from pairs where none was"),
        ("unknown_part", "from pairs where that is unknown"),
    ]
    return (
        figures["oae"],
        *(
            Figure(key, label, _text(key, parts[key]), TERMS["decomposition"])
            for key, label in shown
            if parts[key] is not None
        ),
    )


def _missing(figures: Iterable[Figure]) -> tuple[Missing, ...]:
    by_reason: dict[str, list[str]] = {}
    for item in figures:
        if item.reason:
            by_reason.setdefault(item.reason, []).append(item.label)
    return tuple(Missing(", ".join(labels), reason) for reason, labels in by_reason.items())


def _matrix(cell: Mapping[str, Any], key: str, title: str, prefix: str, url: str) -> Matrix:
    def quadrant(transition: Transition) -> Quadrant:
        query = {"transition": transition.value}
        if key == "retrieved":
            query["retrieved"] = "true"
        return Quadrant(
            letter=transition.letter,
            transition=transition.value,
            word=WORDS[transition],
            meaning=TERMS[transition.letter],
            count=cell[prefix + transition.letter],
            url=f"{url}?{urlencode(query)}#pairs" if url else "",
        )

    return Matrix(
        key=key,
        title=title,
        n=sum(cell[prefix + letter] for letter in "abcd"),
        both_pass=quadrant(Transition.BOTH_PASS),
        won=quadrant(Transition.HELPFUL),
        lost=quadrant(Transition.HARMFUL),
        both_fail=quadrant(Transition.BOTH_FAIL),
    )


def _traits(about: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    partition = _partition(about.get("partition")) if "partition" in names else ""
    others = traits(about, [name for name in names if name != "partition"])
    return (*([partition] if partition else []), *others)


def _partition(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{value.get('size')} tasks, seed {value.get('seed')}"
    return str(value or "")


def _axis(intervals: Sequence[Mapping[str, Any] | None]) -> int:
    """Return the end of an axis that holds every interval: a round number of points."""
    ends = [abs(ci[end]) for ci in intervals if ci for end in ("low", "high")]
    return min(100, max(20, 10 * math.ceil(max(ends, default=0) / 10)))


def _strip(
    value: float | None, ci: Mapping[str, Any] | None, limit: int, sense: str
) -> Strip | None:
    if value is None or ci is None:
        return None

    def place(points: float) -> float:
        return round(_HALF + max(-limit, min(limit, points)) / limit * _HALF, 1)

    return Strip(place(ci["low"]), place(ci["high"]), place(value), sense, limit)
