"""One cell: what it says, its arms, and the list of its pairs by outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from runs.addressed import experiment_or_404
from runs.domain.plan import arm_from_json
from runs.domain.report import Failure, PairRecord
from runs.models import Cell, Origin
from runs.selectors import cells_of
from runs.services.pair_lists import CENSORED, PENDING, pairs_page, state_of
from runs.services.standing import standing_report
from runs.views.experiments import is_demonstration, other_notices
from runs.views.figures import WORDS, CellView, cell_view, telling_apart
from workbench.kernel.pages import render_page, utc_seconds
from workbench.kernel.roles import unblinded_only
from workbench.kernel.versions import versioned

PAGE_SIZE = 50
STATES: Mapping[str, str] = {**WORDS, CENSORED: "left out", PENDING: "pending"}
RETRIEVED: Mapping[str, str] = {"true": "yes", "false": "no", "unknown": "unknown"}
SORTS: Mapping[str, str] = {"task": "A to Z", "-task": "Z to A"}


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
    pushed: bool
    arms: tuple[ArmRow, ...]
    unequal: int
    rows: tuple[PairRow, ...]
    found: int | None
    sorts: tuple[Choice, ...]
    transitions: tuple[Choice, ...]
    retrievals: tuple[Choice, ...]
    skill: str
    filtered: bool
    next_url: str
    first_url: str
    as_of: str
    caveat: str


@require_safe
@unblinded_only
def cell(request: HttpRequest, slug: str, sha12: str) -> HttpResponse:
    """Show one cell and its pairs, by ``transition``, ``retrieved`` and ``skill``, paged by key."""
    experiment = experiment_or_404(slug)
    found = cells_of(experiment).filter(sha256__startswith=sha12).first()
    standing = standing_report(experiment)
    report = standing.result
    figures = next((c for c in report["cells"] if c["cell"].get("sha12") == sha12), None)
    if found is None or figures is None:
        raise Http404
    wanted = _wanted(request.GET)
    after = _after(request.GET.get("after", ""))
    unequal = figures["censored"]["se"].get(Failure.UNEQUAL_PARAMETERS, 0)
    page = pairs_page(
        found,
        policy=experiment.spec["failure_policy"],
        transition=wanted["transition"],
        retrieved=wanted["retrieved"],
        skill=wanted["skill"],
        # A report of an earlier moment may not know of them yet.
        unequal=bool(unequal or standing.as_of),
        descending=wanted["sort"] == "-task",
        after=after,
        size=PAGE_SIZE,
    )
    rows = tuple(_row(record, experiment.spec["failure_policy"]) for record in page.records)
    here = reverse("cell", kwargs={"slug": slug, "sha12": sha12})
    chosen = {name: value for name, value in wanted.items() if value}
    filtered = bool(chosen.keys() - {"sort"})
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
            pushed=experiment.origin == Origin.PUSHED,
            arms=_arms(found),
            unequal=unequal,
            rows=rows,
            found=None if filtered else figures["n_planned"],
            sorts=_choices(SORTS, wanted["sort"])[1:],
            transitions=_choices(STATES, wanted["transition"]),
            retrievals=_choices(RETRIEVED, wanted["retrieved"]),
            skill=wanted["skill"],
            filtered=filtered,
            next_url=_link(here, chosen, after="|".join(map(str, page.next))) if page.next else "",
            first_url=_link(here, chosen) if after else "",
            as_of=utc_seconds(standing.as_of),
            caveat=report["caveat"],
        ),
    )


def _after(text: str) -> tuple[str, int] | None:
    """Return the task and replicate after which the page begins.

    Raises:
        Http404: the text names none.
    """
    if not text:
        return None
    task, _, replicate = text.rpartition("|")
    if not replicate.isascii() or not replicate.isdigit() or len(replicate) > 9:
        raise Http404
    return task, int(replicate)


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


def _wanted(query: Mapping[str, Any]) -> dict[str, str]:
    """Return the filters of the query.

    Raises:
        Http404: a value that no filter has.
    """
    names = ("transition", "retrieved", "skill", "sort")
    wanted = {name: str(query.get(name, "")) for name in names}
    for name, known in (("transition", STATES), ("retrieved", RETRIEVED), ("sort", SORTS)):
        if wanted[name] and wanted[name] not in known:
            raise Http404
    return wanted


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
    imported = arm_from_json(cell.treatment.spec).imported
    if imported is not None:  # rows describe both arms at once
        return tuple(
            ArmRow(name.replace("_", " "), _shown(value), _shown(value), False)
            for name, value in imported["cell"].items()
        )
    treatment, baseline = dict(cell.treatment.spec), dict(cell.baseline.spec)
    for spec, offered in ((treatment, True), (baseline, False)):
        named = versioned(cell.library.slug, cell.library.number) if cell.library else None
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
