"""Suites: those that come with the product and those that were stored, their tasks, and uploads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.http import content_disposition_header
from django.views.decorators.http import require_http_methods, require_safe

from runs.domain.suites import SUITE_NAMES, suite_kinds
from runs.domain.taskfiles import Format, Problem
from runs.domain.tasks import Kind
from runs.models import Task
from runs.selectors import (
    PROMPT_BEGINNING,
    SUITE_LISTING,
    TASK_LISTING,
    benchmark_version,
    isolation_counts,
    newest_benchmarks,
    suite_records,
    tasks_for_list,
)
from runs.services.benchmarks import suite_lines
from runs.services.uploading import (
    MAX_FILE_BYTES,
    MAX_PROBLEMS,
    MAX_TASKS,
    FileTooLarge,
    TaskFileRefused,
    check_suite_slug,
    receive_suite,
)
from runs.views.listing import FilterChoice, ListControls, list_controls, page_or_404
from runs.views.versions import VersionLink, version_links
from skills.services.uploading import BadSlug
from workbench.kernel.forms import Fault, posted
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only
from workbench.kernel.uploads import takes_upload

CHECKED = {
    "cases": "by separate cases",
    "two_processes": "by its whole test, apart from the answer",
    "in_process": "by its whole test, beside the answer",
}
_SHORT_ANSWER = "by its answer"


@dataclass(frozen=True)
class ShippedRow:
    """A suite that comes with the product; ``number`` is 0 until an experiment has stored it."""

    name: str
    tasks: int
    kinds: str
    missing: bool
    number: int
    url: str


@dataclass(frozen=True)
class SuiteRow:
    """The newest version of a stored suite."""

    slug: str
    number: int
    tasks: int
    kinds: str
    url: str


@dataclass(frozen=True)
class SuitesPage:
    """Every suite."""

    shipped: tuple[ShippedRow, ...]
    rows: tuple[SuiteRow, ...]
    controls: ListControls


@dataclass(frozen=True)
class TaskRow:
    """One task; ``cut`` where its prompt goes on."""

    key: str
    kind: str
    tags: tuple[str, ...]
    checked: str
    prompt: str
    cut: bool
    characters: int


@dataclass(frozen=True)
class Isolation:
    """How many of the code tasks are checked in one way."""

    how: str
    tasks: int


@dataclass(frozen=True)
class SuitePage:
    """One version of a stored suite."""

    slug: str
    number: int
    newest: bool
    newest_url: str
    sha256: str
    tasks: int
    kinds: str
    shipped: bool
    isolation: tuple[Isolation, ...]
    versions: tuple[VersionLink, ...]
    rows: tuple[TaskRow, ...]
    controls: ListControls
    download_url: str
    upload_url: str


@dataclass(frozen=True)
class LineFault:
    """What is wrong with one line of a task file; ``line`` is empty for the file as a whole."""

    line: str
    field: str
    reason: str
    fix: str


@dataclass(frozen=True)
class SuiteNewPage:
    """The upload form, with what was wrong with the last try."""

    suite: str
    formats: tuple[FilterChoice, ...]
    faults: tuple[Fault, ...]
    lines: tuple[LineFault, ...]
    cut: bool
    most_problems: int
    largest_mb: int
    most_tasks: str


@require_safe
@unblinded_only
def suites(request: HttpRequest) -> HttpResponse:
    """Show the suites that come with the product, then every stored one by its newest version."""
    page = page_or_404(newest_benchmarks(), SUITE_LISTING, request)
    rows = tuple(
        SuiteRow(found.slug, found.number, found.tasks, _kinds(found.kinds), _url(found.slug))
        for found in suite_records(page.rows)
    )
    return render_page(
        request,
        "runs/suites.html",
        SuitesPage(
            shipped=_shipped() if page.first else (),
            rows=rows,
            controls=list_controls(page, url=reverse("suites"), columns={"slug": "Suite"}),
        ),
    )


@require_safe
@unblinded_only
def suite(request: HttpRequest, slug: str, number: int | None = None) -> HttpResponse:
    """Show one version of a stored suite, the newest without ``number``."""
    found = benchmark_version(slug, number)
    newest = benchmark_version(slug)
    if found is None or newest is None:
        raise Http404
    page = page_or_404(tasks_for_list(found), TASK_LISTING, request)
    [record] = suite_records([found])
    counts = isolation_counts(found)
    return render_page(
        request,
        "runs/suite.html",
        SuitePage(
            slug=slug,
            number=found.number,
            newest=found.pk == newest.pk,
            newest_url=_url(slug),
            sha256=found.sha256,
            tasks=record.tasks,
            kinds=_kinds(record.kinds),
            shipped=slug in SUITE_NAMES,
            isolation=tuple(
                Isolation(CHECKED.get(how, how), counts[how]) for how in sorted(counts)
            ),
            versions=version_links(found, newest.number, _url),
            rows=tuple(_task_row(task) for task in page.rows),
            controls=list_controls(
                page,
                url=_url(slug, number),
                columns={"key": "Task"},
                choices={"kind": ("Kind", tuple(Kind))},
            ),
            download_url=reverse("suite-download", kwargs={"slug": slug, "number": found.number}),
            upload_url="" if slug in SUITE_NAMES else f"{reverse('suite-new')}?suite={slug}",
        ),
    )


@require_safe
@unblinded_only
def download(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Return a stored suite as a task file, byte for byte the same each time."""
    found = benchmark_version(slug, number)
    if found is None:
        raise Http404
    streamed: Any = StreamingHttpResponse(suite_lines(found), content_type="application/jsonl")
    streamed["Content-Disposition"] = content_disposition_header(True, f"{slug}-{number}.jsonl")
    return cast(HttpResponse, streamed)


@takes_upload(MAX_FILE_BYTES)
@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def new(request: HttpRequest) -> HttpResponse:
    """Show the upload form; check what was uploaded and lead to the job that stores it."""
    if request.method != "POST":
        return _form(request, request.GET.get("suite", ""), "")
    given = posted(request, "suite", "format", files=("file",))
    slug, format = given["suite"].strip(), given["format"]
    file = request.FILES.get("file")
    faults = []
    try:
        check_suite_slug(slug)
    except BadSlug as error:
        faults.append(Fault("suite", f"Suite: {error}."))
    if format and format not in tuple(Format):
        faults.append(Fault("format", f"Format: it takes {', '.join(Format)}."))
    if file is None:
        faults.append(Fault("file", "File: choose a task file."))
    if faults or file is None:
        return _form(request, slug, format, faults)
    try:
        received = receive_suite(
            file=file,
            file_name=str(file.name),
            slug=slug,
            format=Format(format) if format else None,
            actor=request.user,
            at=timezone.now(),
        )
    except FileTooLarge as error:
        return _form(request, slug, format, [Fault("file", f"File: {error}.")])
    except TaskFileRefused as refused:
        faults = [Fault("file", "File: nothing was stored; the lines to correct are listed above.")]
        return _form(request, slug, format, faults, refused)
    if received.stored:
        messages.info(
            request,
            f"Nothing new: version {received.stored.number} of {slug} holds exactly these "
            f"{received.tasks} tasks. {received.advice}".strip(),
        )
        return redirect(_url(slug, received.stored.number))
    assert received.job is not None
    if received.notices:
        messages.info(
            request,
            f"{len(received.notices)} lines repeat a task with the same content; each counts once.",
        )
    return redirect("job", uid=received.job.uid)


def _form(
    request: HttpRequest,
    suite: str,
    format: str,
    faults: list[Fault] | None = None,
    refused: TaskFileRefused | None = None,
) -> HttpResponse:
    formats = [FilterChoice("", "by its first line", not format)]
    formats += [FilterChoice(name.value, name.value, name == format) for name in Format]
    page = SuiteNewPage(
        suite=suite,
        formats=tuple(formats),
        faults=tuple(faults or ()),
        lines=tuple(map(_line_fault, refused.problems)) if refused else (),
        cut=refused.cut if refused else False,
        most_problems=MAX_PROBLEMS,
        largest_mb=MAX_FILE_BYTES // 1_000_000,
        most_tasks=f"{MAX_TASKS:,}",
    )
    return render_page(request, "runs/suite_new.html", page, status=400 if faults else 200)


def _line_fault(problem: Problem) -> LineFault:
    return LineFault(str(problem.line or ""), problem.field, problem.reason, problem.fix)


def _kinds(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))


def _url(slug: str, number: int | None = None) -> str:
    if number is None:
        return reverse("suite", kwargs={"slug": slug})
    return reverse("suite-version", kwargs={"slug": slug, "number": number})


def _shipped() -> tuple[ShippedRow, ...]:
    stored = dict(newest_benchmarks().filter(slug__in=SUITE_NAMES).values_list("slug", "number"))
    rows = []
    for name in SUITE_NAMES:
        kinds = _shipped_kinds(name)
        number = stored.get(name, 0)
        rows.append(
            ShippedRow(
                name=name,
                tasks=sum((kinds or {}).values()),
                kinds=_kinds(kinds or {}),
                missing=kinds is None,
                number=number,
                url=_url(name) if number else "",
            )
        )
    return tuple(rows)


@lru_cache(maxsize=len(SUITE_NAMES))
def _shipped_kinds(name: str) -> Mapping[str, int] | None:
    """Return how many tasks of each kind the suite has; None where its file is missing."""
    try:
        return suite_kinds(name)
    except OSError:
        return None


def _task_row(task: Task) -> TaskRow:
    mode, isolation = getattr(task, "mode", None), getattr(task, "isolation", None)
    how = isolation or ("cases" if mode else "")
    characters = int(getattr(task, "characters", 0))
    return TaskRow(
        key=task.key,
        kind=task.kind,
        tags=tuple(map(str, task.tags)),
        checked=CHECKED.get(how, _SHORT_ANSWER),
        prompt=str(getattr(task, "beginning", "")),
        cut=characters > PROMPT_BEGINNING,
        characters=characters,
    )
