"""Two experiments side by side: did the edited skills do better on the tasks both ran?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_safe

from runs.domain.comparing import (
    BETTER,
    NO_INTERVAL,
    SET_CHANGES,
    WORSE,
    CellComparison,
    Factor,
    ProtocolDiffers,
    RaeChange,
    SharedPair,
    headline,
    notes,
    verdict,
)
from runs.domain.comparison_render import not_compared
from runs.domain.intervals import P_METHODS
from runs.domain.render import p_value
from runs.models import Experiment
from runs.selectors import ExperimentMissing
from runs.services.comparing import (
    CannotCompare,
    ComparedExperiments,
    LibraryChange,
    SkillChange,
    comparison_of,
)
from workbench.kernel.forms import Fault
from workbench.kernel.pages import render_page, utc
from workbench.kernel.roles import unblinded_only

RECENT = 30
# Rows of one list on the page; the rest is in the JSON.
LISTED = 50
_MINUS = str.maketrans("-", "−")


@dataclass(frozen=True)
class FactorChoice:
    """One factor of a protocol that may be allowed to differ."""

    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class Asked:
    """What the form holds."""

    a: str
    b: str
    cell_a: str
    cell_b: str
    factors: tuple[FactorChoice, ...]

    @property
    def detailed(self) -> bool:
        return bool(self.cell_a or self.cell_b or any(one.chosen for one in self.factors))


@dataclass(frozen=True)
class Recent:
    """An experiment that could be compared, with the addresses that choose it."""

    slug: str
    status: str
    created: str
    url: str
    as_a_url: str
    as_b_url: str


@dataclass(frozen=True)
class PairLine:
    """A shared pair with both of its pages."""

    task: str
    replicate: int
    a_url: str
    b_url: str
    returned: str


@dataclass(frozen=True)
class PairList:
    """Shared pairs that came out alike; ``left_out`` more aren't listed here."""

    key: str
    word: str
    count: int
    lines: tuple[PairLine, ...]
    left_out: int
    open: bool


@dataclass(frozen=True)
class RaeRow:
    """RAE of both sides and what it moved by."""

    label: str
    a: str
    n_a: int
    b: str
    n_b: int
    moved: str
    interval: str
    reason: str
    sense: str


@dataclass(frozen=True)
class SetLine:
    """Shared pairs by what became of the returned skills."""

    label: str
    pairs: int
    won: int
    lost: int


@dataclass(frozen=True)
class Names:
    """Tasks that aren't compared; ``left_out`` more aren't named here."""

    label: str
    count: int
    shown: str
    left_out: int


@dataclass(frozen=True)
class ComparedCell:
    """One cell of A and its counterpart in B."""

    anchor: str
    title: str
    headline: str
    sense: str
    a_url: str
    b_url: str
    a_library: str
    b_library: str
    n_shared: int
    n_compared: int
    p: str
    p_method: str
    notes: tuple[str, ...]
    raes: tuple[RaeRow, ...]
    lists: tuple[PairList, ...]
    sets: tuple[SetLine, ...]
    changed: PairList | None
    apart: tuple[Names, ...]


@dataclass(frozen=True)
class SkillLine:
    """A skill that differs between the libraries."""

    slug: str
    old: str
    new: str
    old_url: str
    new_url: str
    diff: str
    cut: bool


@dataclass(frozen=True)
class LibraryLines:
    """What differs between two libraries."""

    old: str
    new: str
    alike: int
    skills: tuple[SkillLine, ...]


@dataclass(frozen=True)
class UnmatchedLine:
    """A cell that is compared with none."""

    side: str
    name: str
    url: str
    reason: str


@dataclass(frozen=True)
class Result:
    """What the comparison shows."""

    cells: tuple[ComparedCell, ...]
    unmatched: tuple[UnmatchedLine, ...]
    libraries: tuple[LibraryLines, ...]
    unedited: str
    json_url: str
    a_url: str
    b_url: str
    turned_url: str


@dataclass(frozen=True)
class ComparePage:
    """The form, and what it asked for."""

    asked: Asked
    faults: tuple[Fault, ...]
    recent: tuple[Recent, ...]
    result: Result | None


@require_safe
@unblinded_only
def compare(request: HttpRequest) -> HttpResponse:
    """Show how B compares with A: ``?a=&b=``, or the form to choose them."""
    asked = _asked(request.GET)
    faults: tuple[Fault, ...] = ()
    result = None
    if asked.a and asked.b:
        try:
            found = comparison_of(
                a=asked.a,
                b=asked.b,
                cell_a=asked.cell_a,
                cell_b=asked.cell_b,
                allowed=[one.value for one in asked.factors if one.chosen],
            )
            result = _result(found, asked)
        except ExperimentMissing as missing:
            field = "compare-a" if f"'{asked.a}'" in str(missing) else "compare-b"
            faults = (Fault(field, f"{missing}."),)
        except ProtocolDiffers as refused:
            ticks = ", ".join(factor.replace("_", " ") for factor in refused.factors)
            said = f"{refused.told} tick what may differ below ({ticks})."
            faults = (Fault("compare-b", said),)
        except CannotCompare as refused:
            faults = (Fault("compare-b", f"{refused}."),)
    elif asked.a or asked.b:
        missing_side = "b" if asked.a else "a"
        if request.GET.get("a") is not None and request.GET.get("b") is not None:
            faults = (Fault(f"compare-{missing_side}", "Choose this one too."),)
    page = ComparePage(asked, faults, () if result else _recent(asked), result)
    return render_page(request, "runs/compare.html", page, status=400 if faults else 200)


# --- the form -------------------------------------------------------------------


def _asked(query: QueryDict) -> Asked:
    allowed = set(query.getlist("allow"))
    return Asked(
        a=query.get("a", "").strip()[:100],
        b=query.get("b", "").strip()[:100],
        cell_a=query.get("cell_a", "").strip()[:64],
        cell_b=query.get("cell_b", "").strip()[:64],
        factors=tuple(
            FactorChoice(factor.value, factor.value.replace("_", " "), factor.value in allowed)
            for factor in Factor
        ),
    )


def _recent(asked: Asked) -> tuple[Recent, ...]:
    here = reverse("compare")
    return tuple(
        Recent(
            slug=experiment.slug,
            status=experiment.status,
            created=utc(experiment.created_at),
            url=reverse("experiment", kwargs={"slug": experiment.slug}),
            as_a_url=f"{here}?{_kept(a=experiment.slug, b=asked.b)}",
            as_b_url=f"{here}?{_kept(a=asked.a, b=experiment.slug)}",
        )
        for experiment in Experiment.objects.defer("spec", "toml").order_by("-created_at", "-pk")[
            :RECENT
        ]
    )


def _kept(**query: str) -> str:
    return urlencode({name: value for name, value in query.items() if value})


# --- the result -----------------------------------------------------------------


def _result(found: ComparedExperiments, asked: Asked) -> Result:
    comparison = found.comparison
    allowed = [one.value for one in asked.factors if one.chosen]
    kept = {"cell_a": asked.cell_a, "cell_b": asked.cell_b}
    json_query = _kept(a=asked.a, b=asked.b, **kept, allow=",".join(allowed))
    turned = _kept(a=asked.b, b=asked.a, cell_a=asked.cell_b, cell_b=asked.cell_a)
    turned += "".join(f"&allow={name}" for name in allowed)
    return Result(
        cells=tuple(_cell(cell, several=len(comparison.cells) > 1) for cell in comparison.cells),
        unmatched=tuple(
            UnmatchedLine(
                str(one.side),
                one.cell.name,
                _cell_url(one.cell.experiment, one.cell.sha12),
                one.reason,
            )
            for one in comparison.unmatched
        ),
        libraries=tuple(_library(change) for change in found.libraries),
        unedited=_unedited(comparison.cells),
        json_url=f"{reverse('api-comparisons')}?{json_query}",
        a_url=reverse("experiment", kwargs={"slug": comparison.old}),
        b_url=reverse("experiment", kwargs={"slug": comparison.new}),
        turned_url=f"{reverse('compare')}?{turned}",
    )


def _unedited(cells: Sequence[CellComparison]) -> str:
    """Return why no edited skill is listed."""
    if not all(cell.match.known for cell in cells):
        return (
            "Not known: the runs don't say which skills, or which versions of them, they searched."
        )
    if all(cell.match.old.library == cell.match.new.library for cell in cells):
        return "Nothing: both searched the same skills."
    return "Not known: the texts of these skills aren't stored here."


def _cell(cell: CellComparison, *, several: bool) -> ComparedCell:
    old, new = cell.match.old, cell.match.new
    lists = (
        _pairs("won", "Won", cell.won, opened=True),
        _pairs("lost", "Lost", cell.lost, opened=True),
        _pairs("both_pass", "Passed in both", cell.both_pass),
        _pairs("both_fail", "Failed in both", cell.both_fail),
    )
    title = [str(new.protocol.get(Factor.MODEL)), str(new.protocol.get(Factor.SUITE))]
    if several:
        title += [new.partition, f"cell {new.sha12}"]
    return ComparedCell(
        anchor=f"cell-{new.sha12}",
        title=" · ".join(title),
        headline=headline(cell),
        sense={BETTER: "won", WORSE: "lost"}.get(verdict(cell), ""),
        a_url=_cell_url(old.experiment, old.sha12),
        b_url=_cell_url(new.experiment, new.sha12),
        a_library=old.library_text,
        b_library=new.library_text,
        n_shared=cell.n_shared,
        n_compared=cell.n_compared,
        p=p_value(cell.p),
        p_method=P_METHODS[cell.p_method] if cell.p_method else "",
        notes=tuple(text for _, text in notes(cell)),
        raes=(
            _rae("Each on the pairs where it got a skill", cell.own, said=verdict(cell)),
            _rae("On pairs where both got one", cell.both, said=verdict(cell)),
        ),
        lists=lists,
        sets=tuple(
            SetLine(SET_CHANGES[row.change], row.pairs, row.won, row.lost) for row in cell.sets
        ),
        changed=_pairs("changed", "Pairs with a changed set", cell.changed)
        if cell.changed
        else None,
        apart=tuple(_names(label, tasks) for label, tasks in not_compared(cell)),
    )


def _cell_url(slug: str, sha12: str) -> str:
    return reverse("cell", kwargs={"slug": slug, "sha12": sha12})


def _pairs(key: str, word: str, pairs: Sequence[SharedPair], *, opened: bool = False) -> PairList:
    return PairList(
        key=key,
        word=word,
        count=len(pairs),
        lines=tuple(_line(pair) for pair in pairs[:LISTED]),
        left_out=max(0, len(pairs) - LISTED),
        open=opened,
    )


def _line(pair: SharedPair) -> PairLine:
    parts = [
        f"{word} {', '.join(slugs)}"
        for word, slugs in (
            ("added", pair.added),
            ("removed", pair.removed),
            ("edited", pair.edited),
        )
        if slugs
    ]
    return PairLine(
        task=pair.task,
        replicate=pair.replicate,
        a_url=reverse("pair", kwargs={"uid": pair.old_pair}),
        b_url=reverse("pair", kwargs={"uid": pair.new_pair}),
        returned="; ".join(parts) or SET_CHANGES[pair.change],
    )


def _rae(label: str, change: RaeChange, *, said: str) -> RaeRow:
    """Return one row; ``said`` is the verdict, without which no figure is coloured."""
    interval = change.interval
    bracket = f"[{interval.low:+.1f}, {interval.high:+.1f}]" if interval else ""
    sense = ""
    if interval and interval.excludes_zero:
        sense = "won" if interval.low > 0 else "lost"
        if said != {"won": BETTER, "lost": WORSE}[sense]:
            sense = ""
    return RaeRow(
        label=label,
        a=_points(change.old.value),
        n_a=change.n_old,
        b=_points(change.new.value),
        n_b=change.n_new,
        moved=_points(change.difference),
        interval=bracket.translate(_MINUS),
        reason=change.reason or (NO_INTERVAL[change.no_interval] if change.no_interval else ""),
        sense=sense,
    )


def _points(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}".translate(_MINUS)


def _names(label: str, names: Sequence[str]) -> Names:
    shown = ", ".join(names[:LISTED])
    return Names(label, len(names), shown, max(0, len(names) - LISTED))


def _library(change: LibraryChange) -> LibraryLines:
    return LibraryLines(change.old, change.new, change.alike, tuple(_skills(change.changes)))


def _skills(changes: Iterable[SkillChange]) -> Iterable[SkillLine]:
    for change in changes:
        urls = [
            reverse("skill-text", kwargs={"slug": change.slug, "number": number}) if number else ""
            for number in (change.old, change.new)
        ]
        yield SkillLine(
            slug=change.slug,
            old=f"version {change.old}" if change.old else "not in it",
            new=f"version {change.new}" if change.new else "not in it",
            old_url=urls[0],
            new_url=urls[1],
            diff="\n".join(change.diff),
            cut=change.cut,
        )
