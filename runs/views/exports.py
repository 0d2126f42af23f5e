"""Exports: the form that asks for one, those that were made, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from runs.domain.render import traits
from runs.models import Cell, Experiment
from runs.services.exporting import (
    EXPORT_LISTING,
    PARQUET_MISSING,
    BadExport,
    ExportKind,
    ExportRemoved,
    export_by_uid,
    exports_for,
    file_of,
    is_kept,
    kinds_for,
    parquet_is_there,
    request_export,
    wanted_of,
)
from runs.services.reporting import descriptor_of
from runs.services.writing import FORMATS
from runs.views.listing import ListControls, list_controls
from workbench.jobs import JobMissing
from workbench.jobviews import job_view
from workbench.kernel.downloads import attachment
from workbench.kernel.forms import Fault, posted
from workbench.kernel.lists import BadListQuery, page_of
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only
from workbench.kernel.texts import size_text
from workbench.models import Job

EXPERIMENTS_SHOWN = 200
CELLS_SHOWN = 100
WORDS = {
    ExportKind.RUNS: ("Runs", "one row for each run of an arm: what report --runs reads"),
    ExportKind.PAIRS: ("Pairs", "one row for each pair: both results, or why it was left out"),
    ExportKind.ATTEMPTS: ("Attempts", "every try with its trace and its grades; JSONL alone"),
    ExportKind.AUDIT_EVENTS: ("Audit trail", "who did what, when and why; choose no experiment"),
}


@dataclass(frozen=True)
class Option:
    """One choice of the form."""

    value: str
    label: str
    note: str
    chosen: bool


@dataclass(frozen=True)
class ExportRow:
    """One export; ``file_url`` is empty while there is no file, or no longer."""

    named: str
    format: str
    state: str
    rows: str
    size: str
    by: str
    requested: str
    job_url: str
    file_url: str
    removed: bool
    kind: str
    experiments: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class ExportsPage:
    """The form and the list, newest first."""

    kinds: tuple[Option, ...]
    formats: tuple[Option, ...]
    experiments: tuple[Option, ...]
    cells: tuple[Option, ...]
    parquet_missing: str
    faults: tuple[Fault, ...]
    rows: tuple[ExportRow, ...]
    controls: ListControls
    mine_url: str


@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def exports(request: HttpRequest) -> HttpResponse:
    """Show the form and the list; ask for an export and show how far it is."""
    if request.method != "POST":
        chosen = request.GET.get("experiment", "")
        return _page(request, experiments=[chosen] if chosen else [])
    given = posted(request, "kind", "format", many=("experiment", "cell"))
    experiments = [slug for slug in request.POST.getlist("experiment") if slug]
    cells = request.POST.getlist("cell")
    try:
        job = request_export(
            kind=given["kind"],
            format=given["format"],
            experiments=experiments,
            cells=cells,
            actor=request.user,
            at=timezone.now(),
        )
    except BadExport as refused:
        names = {"kind": "kind", "format": "format", "experiments": "experiment", "cells": "cell"}
        faults = tuple(
            Fault(names[name], f"{_LABELS[name]}: {text}.") for name, text in refused.fields.items()
        )
        return _page(request, given["kind"], given["format"], experiments, cells, faults)
    return redirect("job", uid=job.uid)


@require_safe
@unblinded_only
def file(request: HttpRequest, uid: UUID) -> HttpResponse:
    """Return an export's file."""
    try:
        job = export_by_uid(uid, actor=request.user)
        path = file_of(job)
    except JobMissing as error:
        raise Http404 from error
    except ExportRemoved as removed:
        messages.error(request, f"{str(removed).capitalize()}.")
        return redirect("exports")
    assert job.result is not None
    return cast(HttpResponse, attachment(path.open("rb"), name=job.result["file"]))


_LABELS = {
    "kind": "What",
    "format": "Format",
    "experiments": "Experiment",
    "cells": "Cells",
}


def _page(
    request: HttpRequest,
    kind: str = ExportKind.RUNS,
    format: str = "csv",
    experiments: Sequence[str] = (),
    cells: Sequence[str] = (),
    faults: tuple[Fault, ...] = (),
) -> HttpResponse:
    query = {name: str(value) for name, value in request.GET.items() if name != "experiment"}
    try:
        page = page_of(exports_for(request.user), listing=EXPORT_LISTING, query=query)
    except BadListQuery as error:
        raise Http404 from error
    url = reverse("exports")
    kinds = kinds_for(request.user)
    shown = ExportsPage(
        kinds=tuple(Option(one.value, *WORDS[one], one.value == kind) for one in kinds),
        formats=tuple(Option(one, one.upper(), "", one == format) for one in FORMATS),
        experiments=_experiments(experiments),
        cells=_cells(experiments, cells),
        parquet_missing="" if parquet_is_there() else PARQUET_MISSING,
        faults=faults,
        rows=tuple(map(_row, page.rows)),
        controls=list_controls(
            page,
            url=url,
            choices={"kind": ("What", tuple(one.value for one in kinds))},
            texts={"by": "Asked for by"},
        ),
        mine_url="" if "by" in query else f"{url}?by={request.user.get_username()}",
    )
    return render_page(request, "runs/exports.html", shown, status=400 if faults else 200)


def _experiments(chosen: Sequence[str]) -> tuple[Option, ...]:
    newest = Experiment.objects.order_by("-created_at", "-pk")
    slugs = list(newest.values_list("slug", flat=True)[:EXPERIMENTS_SHOWN])
    older = newest.filter(slug__in=[slug for slug in chosen if slug not in slugs])
    slugs += older.values_list("slug", flat=True)
    return tuple(Option(slug, slug, "", slug in chosen) for slug in slugs)


def _cells(experiments: Sequence[str], chosen: Sequence[str]) -> tuple[Option, ...]:
    """Return the cells of the chosen experiment; a single one's cell is no choice."""
    found = list(
        Cell.objects.filter(experiment__slug__in=experiments)
        .select_related("partition__benchmark", "library", "treatment")
        .order_by("experiment__slug", "number")[:CELLS_SHOWN]
    )
    if len(found) < 2:
        return ()
    return tuple(
        Option(cell.sha256[:12], cell.sha256[:12], _about(cell), cell.sha256[:12] in chosen)
        for cell in found
    )


def _about(cell: Cell) -> str:
    about = descriptor_of(cell)
    named = [about.get(name) for name in ("model", "benchmark", "library", "control")]
    return " · ".join([str(value) for value in named if value is not None] + traits(about, ["k"]))


def _row(job: Job) -> ExportRow:
    view, wanted = job_view(job), wanted_of(job)
    done = view.state == "done"
    kept = done and is_kept(job)
    result = job.result or {}
    return ExportRow(
        named=wanted.named,
        format=wanted.format,
        state=view.state,
        rows=f"{result['rows']:,}" if done else "",
        size=size_text(result["bytes"]) if done else "",
        by=view.by,
        requested=view.requested,
        job_url=view.url,
        file_url=reverse("export-file", kwargs={"uid": job.uid}) if kept else "",
        removed=done and not kept,
        kind=wanted.kind.value,
        experiments=wanted.experiments,
        cells=wanted.cells,
    )
