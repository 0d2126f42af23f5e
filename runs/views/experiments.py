"""The list of experiments, one experiment's page, its progress, its buttons and downloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from runs.addressed import experiment_or_404
from runs.domain.render import csv_text, markdown
from runs.domain.report import DEMONSTRATION, TERMS
from runs.models import Experiment, ExperimentStatus, Origin
from runs.selectors import (
    EXPERIMENT_LISTING,
    pair_counts,
)
from runs.services import lifecycle
from runs.services.reporting import is_being_pushed, report_of
from runs.services.standing import standing_report
from runs.views.draftlist import DraftRow, draft_rows
from runs.views.figures import COLUMNS, HEADS, UNITS, CellView, Quadrant, cell_views
from runs.views.listing import ListControls, list_controls, page_or_404
from runs.views.live import (
    STORING,
    Actions,
    BudgetView,
    ProgressView,
    actions_of,
    budget_from,
    budget_view,
    is_raised,
    progress_view,
)
from workbench.kernel.forms import Fault, posted
from workbench.kernel.pages import render_page, utc, utc_seconds
from workbench.kernel.roles import unblinded_only

LONGEST_REASON = 500
# What filter and table call where runs come from.
ORIGINS: Mapping[str, str] = {Origin.PLANNED.value: "run here", Origin.PUSHED.value: "pushed"}
_DOWNLOADS = (("JSON", "json"), ("CSV", "csv"), ("Markdown", "md"))


@dataclass(frozen=True)
class ExperimentRow:
    """One line of the list."""

    slug: str
    status: str
    origin: str
    author: str
    cells: int
    pairs_done: int
    pairs_total: int
    created: str
    ended: str
    url: str


@dataclass(frozen=True)
class ExperimentsPage:
    """The list of experiments."""

    rows: tuple[ExperimentRow, ...]
    controls: ListControls
    drafts: tuple[DraftRow, ...]


@dataclass(frozen=True)
class Column:
    """A column's head: its words, unit, meaning, and the link that sorts by it."""

    key: str
    label: str
    unit: str
    meaning: str
    sort_url: str
    direction: str


@dataclass(frozen=True)
class Download:
    """The report in one format."""

    label: str
    url: str


@dataclass(frozen=True)
class Disagreement:
    """Of ``cells`` cells with at least ``threshold`` pairs, how many have opposite signs.

    ``pending`` cells may still join them.
    """

    threshold: int
    disagreeing: int
    cells: int
    pending: int


@dataclass(frozen=True)
class ExperimentPage:
    """One experiment: state, what it says, what can be done."""

    slug: str
    uid: str
    created: str
    started: str
    ended: str
    progress: ProgressView
    actions: Actions
    notices: tuple[str, ...]
    demonstration: bool
    columns: tuple[Column, ...]
    cells: tuple[CellView, ...]
    disagreements: tuple[Disagreement, ...]
    flips: int
    lost: Quadrant | None
    caveat: str
    preset: str
    intervals: tuple[str, ...]
    failure_policy: str
    report_sha256: str
    as_of: str
    downloads: tuple[Download, ...]
    export_url: str
    author: str
    file_url: str
    budget: BudgetView | None


@dataclass(frozen=True)
class ProgressFragment:
    """The part of a page that is fetched again while an experiment runs."""

    progress: ProgressView


# --- list -----------------------------------------------------------------------


@require_safe
@unblinded_only
def experiments(request: HttpRequest) -> HttpResponse:
    """Show the experiments, newest first unless ``?sort=`` says otherwise, paged by key."""
    found = Experiment.objects.select_related("author").defer("spec", "toml")
    page = page_or_404(found, EXPERIMENT_LISTING, request)
    counts = pair_counts([experiment.pk for experiment in page.rows])
    rows = tuple(
        ExperimentRow(
            slug=experiment.slug,
            status=STORING if is_being_pushed(experiment) else experiment.status,
            origin=ORIGINS[experiment.origin],
            author=experiment.author.get_username() if experiment.author else "",
            cells=counts[experiment.pk].cells,
            pairs_done=counts[experiment.pk].done,
            pairs_total=counts[experiment.pk].planned,
            created=utc(experiment.created_at),
            ended=utc(experiment.ended_at),
            url=reverse("experiment", kwargs={"slug": experiment.slug}),
        )
        for experiment in page.rows
    )
    controls = list_controls(
        page,
        url=reverse("experiments"),
        columns={"slug": "Experiment", "created": "Planned"},
        choices={
            "status": ("Status", tuple(ExperimentStatus.values)),
            "origin": ("Origin", ORIGINS),
        },
        texts={"author": "Author"},
    )
    drafts = draft_rows() if page.first and not page.asked else ()
    return render_page(request, "runs/experiments.html", ExperimentsPage(rows, controls, drafts))


# --- one experiment -------------------------------------------------------------


@require_safe
@unblinded_only
def experiment(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one experiment; ``?sort=rae`` or ``?sort=-rae`` orders its cells."""
    return _experiment(request, experiment_or_404(slug))


def _experiment(
    request: HttpRequest, found: Experiment, *, refused: BudgetView | None = None
) -> HttpResponse:
    """Show the experiment, with a budget that was typed and ``refused``."""
    slug = found.slug
    standing = standing_report(found)
    report = standing.result
    sort = request.GET.get("sort", "")
    key = sort.removeprefix("-")
    if key and key not in COLUMNS:
        raise Http404
    report = {**report, "cells": _sorted(report["cells"], key, descending=sort.startswith("-"))}
    progress = progress_view(found, now=timezone.now(), states=standing.states)
    cells = cell_views(slug, report)
    return render_page(
        request,
        "runs/experiment.html",
        ExperimentPage(
            slug=found.slug,
            uid=str(found.uid),
            created=utc(found.created_at),
            started=utc(found.started_at),
            ended=utc(found.ended_at),
            progress=progress,
            actions=actions_of(found, progress),
            notices=other_notices(report),
            demonstration=is_demonstration(report),
            columns=tuple(_column(slug, name, sort) for name in COLUMNS),
            cells=cells,
            disagreements=tuple(
                Disagreement(**row) for row in report["sign_disagreements"] if row["cells"]
            ),
            flips=len(report["harmful_flips"]),
            lost=most_lost(cells) if progress.status == ExperimentStatus.FINISHED else None,
            caveat=report["caveat"],
            preset=report["preset"],
            intervals=tuple(dict.fromkeys(c.rae_interval.method for c in cells)),
            failure_policy=report["failure_policy"],
            report_sha256=report["report_sha256"],
            as_of=utc_seconds(standing.as_of),
            downloads=downloads(slug),
            export_url=f"{reverse('exports')}?experiment={slug}",
            author=found.author.get_username() if found.author else "",
            file_url=(
                reverse("experiment-file", kwargs={"slug": slug})
                if found.origin == Origin.PLANNED
                else ""
            ),
            budget=refused or budget_view(found, raised=is_raised(found)),
        ),
        status=400 if refused else 200,
    )


def most_lost(cells: Sequence[CellView]) -> Quadrant | None:
    """Return the lost pairs of the cell that has most of them, or None when none was lost."""
    lost = [cell.retrieved.lost for cell in cells if cell.retrieved.lost.count]
    return max(lost, key=lambda quadrant: quadrant.count, default=None)


def is_demonstration(report: Mapping[str, Any]) -> bool:
    """Return whether the figures come from the demonstration model."""
    return DEMONSTRATION in report["notices"]


def other_notices(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the report's notices but the one that has a banner of its own."""
    return tuple(notice for notice in report["notices"] if notice != DEMONSTRATION)


def downloads(slug: str) -> tuple[Download, ...]:
    """Return where the report of ``slug`` can be had, by format."""
    return tuple(
        Download(label, reverse("experiment-report", kwargs={"slug": slug, "format": extension}))
        for label, extension in _DOWNLOADS
    )


def _column(slug: str, key: str, sort: str) -> Column:
    direction = {key: "ascending", f"-{key}": "descending"}.get(sort, "")
    target = f"-{key}" if direction == "ascending" else key
    return Column(
        key=key,
        label=HEADS[key],
        unit=UNITS[key],
        meaning=TERMS[key],
        sort_url=f"{reverse('experiment', kwargs={'slug': slug})}?sort={target}#cells",
        direction=direction,
    )


def _sorted(
    cells: list[Mapping[str, Any]], key: str, *, descending: bool
) -> list[Mapping[str, Any]]:
    """Return the cells by one figure; those without it come last either way."""
    if not key:
        return cells

    def value(cell: Mapping[str, Any]) -> float:
        found = cell[key]
        return float(found["low"] if isinstance(found, Mapping) else found)

    known = sorted((cell for cell in cells if cell[key] is not None), key=value, reverse=descending)
    return known + [cell for cell in cells if cell[key] is None]


@require_safe
@unblinded_only
def progress(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the progress alone; once the experiment stops the whole page is asked for again."""
    found = experiment_or_404(slug)
    shown = progress_view(found, now=timezone.now())
    response = render_page(request, "runs/_progress.html", ProgressFragment(shown))
    if not shown.live:
        response["HX-Refresh"] = "true"
    return response


# --- buttons --------------------------------------------------------------------


@require_POST
@unblinded_only
def start(request: HttpRequest, slug: str) -> HttpResponse:
    """Start an experiment that was planned at the command line."""
    found = experiment_or_404(slug)
    return _done(
        request,
        found,
        lambda: lifecycle.start(experiment=found, actor=request.user, at=timezone.now()),
        "Started.",
    )


@require_POST
@unblinded_only
def budget(request: HttpRequest, slug: str) -> HttpResponse:
    """Put other caps in force; an empty field is no cap."""
    found = experiment_or_404(slug)
    given = posted(request, "calls", "tokens", "cost")
    try:
        wanted = budget_from(given)
        lifecycle.change_budget(
            experiment=found, budget=wanted, actor=request.user, at=timezone.now()
        )
    except lifecycle.BadBudget as refused:
        faults = tuple(
            Fault(f"budget-{name}", f"{name.capitalize()}: {text}.")
            for name, text in refused.faults.items()
        )
        return _experiment(request, found, refused=BudgetView(**given, open=True, faults=faults))
    except lifecycle.WrongStatus as error:
        messages.error(request, f"The budget stays as it was: {error}.")
    else:
        messages.success(request, "The budget is changed. Resume it to go on.")
    return redirect("experiment", slug=slug)


@require_POST
@unblinded_only
def pause(request: HttpRequest, slug: str) -> HttpResponse:
    """Pause the experiment."""
    found = experiment_or_404(slug)
    reason = f"paused by {request.user.get_username()}"
    return _done(
        request,
        found,
        lambda: lifecycle.pause(
            experiment=found, reason=reason, actor=request.user, at=timezone.now()
        ),
        "Paused. Runs that are under way still finish.",
    )


@require_POST
@unblinded_only
def resume(request: HttpRequest, slug: str) -> HttpResponse:
    """Resume the experiment."""
    found = experiment_or_404(slug)
    return _done(
        request,
        found,
        lambda: lifecycle.resume(experiment=found, actor=request.user, at=timezone.now()),
        "Resumed.",
    )


@require_POST
@unblinded_only
def cancel(request: HttpRequest, slug: str) -> HttpResponse:
    """Cancel the experiment; a reason is required, since it can't be undone."""
    found = experiment_or_404(slug)
    reason = request.POST.get("reason", "").strip()[:LONGEST_REASON]
    if not reason:
        messages.error(request, "Not cancelled: say why, for those who find it later.")
        return redirect("experiment", slug=slug)
    return _done(
        request,
        found,
        lambda: lifecycle.cancel(
            experiment=found, reason=reason, actor=request.user, at=timezone.now()
        ),
        "Cancelled. What was recorded stays.",
    )


@require_POST
@unblinded_only
def retry(request: HttpRequest, slug: str) -> HttpResponse:
    """Give the experiment's dead executions new tries."""
    found = experiment_or_404(slug)
    return _done(
        request,
        found,
        lambda: lifecycle.retry_failed(experiment=found, actor=request.user, at=timezone.now()),
        "The failed runs will be tried again.",
    )


def _done(
    request: HttpRequest, found: Experiment, act: Callable[[], object], said: str
) -> HttpResponse:
    try:
        act()
    except lifecycle.WrongStatus as error:
        messages.error(request, f"Nothing was changed: {error}.")
    else:
        messages.success(request, said)
    return redirect("experiment", slug=found.slug)


# --- downloads ------------------------------------------------------------------


@require_safe
@unblinded_only
def report(request: HttpRequest, slug: str, format: str) -> HttpResponse:
    """Return the report as a file."""
    data = report_of(experiment_or_404(slug))
    if format == "json":
        response: HttpResponse = JsonResponse(
            data, json_dumps_params={"indent": 2, "ensure_ascii": False}
        )
    elif format == "csv":
        response = HttpResponse(csv_text(data), content_type="text/csv; charset=utf-8")
    else:
        response = HttpResponse(markdown(data), content_type="text/markdown; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{slug}-report.{format}"'
    response["Cache-Control"] = "no-store"
    return response
