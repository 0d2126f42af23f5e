"""One cell: what it says, its arms, and the list of its pairs by outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from runs.domain.report import Failure, FailurePolicy, PairRecord, transition_of
from runs.models import Cell
from runs.selectors import cells_of
from runs.services.reporting import cell_record, report_of
from runs.views.experiments import experiment_or_404, is_demonstration, other_notices
from runs.views.figures import WORDS, CellView, cell_view, telling_apart
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only

PAGE_SIZE = 50
CENSORED, PENDING = "censored", "pending"
STATES: Mapping[str, str] = {**WORDS, CENSORED: "left out", PENDING: "pending"}
RETRIEVED: Mapping[str, str] = {"true": "yes", "false": "no", "unknown": "unknown"}


@dataclass(frozen=True)
class PairRow:
    """One line of the list of pairs."""

    task: str
    replicate: int
    state: str
    word: str
    retrieved: str
    skills: tuple[str, ...]
    failed_call: bool
    url: str


@dataclass(frozen=True)
class Choice:
    """One value of a filter."""

    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class ArmRow:
    """One setting and its value in each arm; ``differs`` where the arms part."""

    setting: str
    treatment: str
    baseline: str
    differs: bool


@dataclass(frozen=True)
class CellPage:
    """One cell of an experiment."""

    slug: str
    sha12: str
    experiment_url: str
    demonstration: bool
    notices: tuple[str, ...]
    cell: CellView
    arms: tuple[ArmRow, ...]
    unequal: int
    rows: tuple[PairRow, ...]
    found: int
    shown_from: int
    transitions: tuple[Choice, ...]
    retrievals: tuple[Choice, ...]
    skill: str
    filtered: bool
    next_url: str
    first_url: str
    caveat: str


@require_safe
@unblinded_only
def cell(request: HttpRequest, slug: str, sha12: str) -> HttpResponse:
    """Show one cell and its pairs, by ``transition``, ``retrieved`` and ``skill``, paged by key."""
    experiment = experiment_or_404(slug)
    found = cells_of(experiment).filter(sha256__startswith=sha12).first()
    report = report_of(experiment)
    figures = next((c for c in report["cells"] if c["cell"].get("sha12") == sha12), None)
    if found is None or figures is None:
        raise Http404
    wanted = _wanted(request.GET)
    rows = [
        row
        for row in pair_rows(found, policy=experiment.spec["failure_policy"])
        if _matches(row, wanted)
    ]
    start = _start(rows, request.GET.get("after", ""))
    shown = rows[start : start + PAGE_SIZE]
    here = reverse("cell", kwargs={"slug": slug, "sha12": sha12})
    chosen = {name: value for name, value in wanted.items() if value}
    more = start + PAGE_SIZE < len(rows)
    return render_page(
        request,
        "runs/cell.html",
        CellPage(
            slug=slug,
            sha12=sha12,
            experiment_url=reverse("experiment", kwargs={"slug": slug}),
            demonstration=is_demonstration(report),
            notices=other_notices(report),
            cell=cell_view(slug, figures, names=telling_apart(report)),
            arms=_arms(found),
            unequal=figures["censored"]["se"].get(Failure.UNEQUAL_PARAMETERS, 0),
            rows=tuple(shown),
            found=len(rows),
            shown_from=start + 1 if shown else 0,
            transitions=_choices(STATES, wanted["transition"]),
            retrievals=_choices(RETRIEVED, wanted["retrieved"]),
            skill=wanted["skill"],
            filtered=bool(chosen),
            next_url=_link(here, chosen, after=_key(shown[-1])) if more else "",
            first_url=_link(here, chosen) if start else "",
            caveat=report["caveat"],
        ),
    )


def pair_rows(cell: Cell, *, policy: str) -> list[PairRow]:
    """Return the cell's pairs by task and replicate, each as the report counts it."""
    records = sorted(cell_record(cell).pairs, key=lambda pair: (pair.task, pair.replicate))
    return [_row(record, policy) for record in records]


def _row(pair: PairRecord, policy: str) -> PairRow:
    state = state_of(pair, policy)
    return PairRow(
        task=pair.task,
        replicate=pair.replicate,
        state=state,
        word=STATES[state],
        retrieved={True: "true", False: "false", None: "unknown"}[pair.retrieved],
        skills=pair.skills,
        failed_call=Failure.CALL in (pair.se_failure, pair.sd_failure),
        url=reverse("pair", kwargs={"uid": pair.pair}),
    )


def state_of(pair: PairRecord, policy: str) -> str:
    """Return the pair's transition under the failure policy, or ``censored`` or ``pending``."""
    if pair.pending:
        return PENDING
    transition = transition_of(pair, FailurePolicy(policy))
    return CENSORED if transition is None else transition.value


def _wanted(query: Mapping[str, Any]) -> dict[str, str]:
    """Return the filters of the query.

    Raises:
        Http404: a value that no filter has.
    """
    wanted = {name: str(query.get(name, "")) for name in ("transition", "retrieved", "skill")}
    for name, known in (("transition", STATES), ("retrieved", RETRIEVED)):
        if wanted[name] and wanted[name] not in known:
            raise Http404
    return wanted


def _matches(row: PairRow, wanted: Mapping[str, str]) -> bool:
    return (
        wanted["transition"] in ("", row.state)
        and wanted["retrieved"] in ("", row.retrieved)
        and (not wanted["skill"] or wanted["skill"] in row.skills)
    )


def _key(row: PairRow) -> str:
    return f"{row.task}|{row.replicate}"


def _start(rows: list[PairRow], after: str) -> int:
    """Return the place of the first row behind the key ``after``; rows may have come since."""
    if not after:
        return 0
    task, _, replicate = after.rpartition("|")
    if not replicate.isascii() or not replicate.isdigit():
        raise Http404
    key = (task, int(replicate))
    return sum((row.task, row.replicate) <= key for row in rows)


def _link(here: str, chosen: Mapping[str, str], **more: str) -> str:
    query = urlencode({**chosen, **more})
    return f"{here}?{query}#pairs" if query else f"{here}#pairs"


def _choices(words: Mapping[str, str], chosen: str) -> tuple[Choice, ...]:
    return (
        Choice("", "any", not chosen),
        *(Choice(value, word, value == chosen) for value, word in words.items()),
    )


# Identity and plumbing; what is left is what a reader compares.
_UNSHOWN = ("schema", "benchmark_sha256", "partition_sha256", "prompt_sha256", "library_sha256")


def _arms(cell: Cell) -> tuple[ArmRow, ...]:
    treatment, baseline = dict(cell.treatment.spec), dict(cell.baseline.spec)
    for spec, offered in ((treatment, True), (baseline, False)):
        named = f"{cell.library.slug}, number {cell.library.number}" if cell.library else None
        spec["library"] = named if offered or spec.get("library_sha256") else None
    names = [name for name in treatment if name not in _UNSHOWN]
    return tuple(
        ArmRow(
            name.replace("_", " "),
            _shown(treatment.get(name)),
            _shown(baseline.get(name)),
            treatment.get(name) != baseline.get(name),
        )
        for name in sorted(names, key=lambda n: treatment.get(n) == baseline.get(n))
    )


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return str(value)
