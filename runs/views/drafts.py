"""Drafts of experiments: made by form, file or clone; looked over, estimated and started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from runs.addressed import draft_or_404, experiment_or_404
from runs.domain.drafts import (
    DraftForm,
    NotInForm,
    form_of,
    has_comments,
    read_form,
    write_form,
)
from runs.domain.effects import REPORTING_THRESHOLD
from runs.domain.plan import ExperimentSpec, Problem
from runs.models import Experiment, ExperimentDraft, Origin
from runs.services.drafting import (
    DraftChanged,
    DraftCheck,
    DraftMissing,
    NotClonable,
    UnreadableFile,
    check_draft,
    clone_draft,
    clone_experiment,
    create_draft,
    discard_draft,
    draft_by_slug,
    file_of,
    file_text,
    save_draft,
)
from runs.services.launching import (
    ESTIMATE_TASK,
    START_TASK,
    DraftBusy,
    DraftEstimate,
    DraftNotReady,
    estimate_of,
    is_outdated,
    job_of,
    request_estimate,
    request_start,
    start_of,
)
from runs.services.offering import (
    endpoint_choices,
    library_choices,
    older_libraries,
    older_suites,
    suite_choices,
)
from runs.views.draftforms import (
    FormView,
    Offer,
    changed_groups,
    faults_of,
    form_view,
    new_form,
)
from runs.views.live import duration
from workbench.jobviews import JobView, job_view
from workbench.kernel.forms import Fault, posted
from workbench.kernel.leases import LeaseState
from workbench.kernel.pages import render_page, utc
from workbench.kernel.roles import unblinded_only
from workbench.kernel.versions import split_version
from workbench.llm.endpoints import InvalidEndpoints

SHOWN_LINES = 1_000
CLONES_OFFERED = 50
_TITLES = {ESTIMATE_TASK: "Estimate", START_TASK: "Start"}


@dataclass(frozen=True)
class NewPage:
    """The ways to make an experiment; ``toml`` is what was handed in and could not be used."""

    clonable: tuple[str, ...]
    faults: tuple[Fault, ...]
    toml: str


@dataclass(frozen=True)
class ProblemView:
    """One thing wrong with the file; ``line`` is 0 where it has no place."""

    line: int
    text: str


@dataclass(frozen=True)
class ModelFigures:
    """What one model's runs will take, as text; what is unknown is a dash."""

    model: str
    endpoint: str
    probed: int
    call_rate: str
    probes: tuple[str, ...]
    n_cond: str
    n_cond_range: str
    pairs: str
    executions: str
    calls: str
    tokens: str
    cost: str


@dataclass(frozen=True)
class EstimateView:
    """What an estimate found, as text."""

    made: str
    outdated: bool
    pairs: str
    executions: str
    n_cond: str
    n_cond_range: str
    too_few: str
    calls: str
    tokens: str
    cost: str
    cost_unknown: str
    time: str
    workers: int
    over_budget: tuple[str, ...]
    models: tuple[ModelFigures, ...]


@dataclass(frozen=True)
class Fact:
    """One line of what a draft will run."""

    label: str
    text: str


@dataclass(frozen=True)
class DraftPage:
    """One draft: what it is, what is wrong with it, what it will take, what can be done."""

    slug: str
    author: str
    created: str
    updated: str
    pairs: int | None
    cells: int | None
    facts: tuple[Fact, ...]
    problems: tuple[ProblemView, ...]
    estimate: EstimateView | None
    job: JobView | None
    busy: bool
    not_in_form: str
    lines: tuple[str, ...]
    lines_left_out: int
    file_url: str


@dataclass(frozen=True)
class DraftFormPage:
    """The form of a draft, new or stored; ``slug`` is empty for a new one."""

    slug: str
    revision: int
    form: FormView
    faults: tuple[Fault, ...]
    checked: str
    may_save_anyway: bool
    drops_comments: bool
    theirs: str
    endpoints_fault: str
    no_endpoints: bool


@dataclass(frozen=True)
class DraftFilePage:
    """The file of a draft, to be edited as text."""

    slug: str
    revision: int
    toml: str
    faults: tuple[Fault, ...]
    problems: tuple[ProblemView, ...]
    theirs: str


# --- making one -------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def new(request: HttpRequest) -> HttpResponse:
    """Show the ways to make an experiment; take a file, uploaded or pasted."""
    if request.method != "POST":
        return _new(request)
    given = posted(request, "toml", files=("file",))
    file = request.FILES.get("file")
    content: bytes | str = file.read() if file else given["toml"]
    field = "file" if file else "toml"
    if not content:
        return _new(request, [Fault("file", "File: choose a .toml file, or paste its text.")])
    try:
        toml = file_text(content)
    except UnreadableFile as refused:
        fault = Fault(field, f"File: {refused}.")
        return _new(request, [fault], given["toml"])
    draft = create_draft(toml=toml, author=request.user, at=timezone.now())
    messages.success(request, f"Kept as a draft named {draft.slug}. Nothing runs yet.")
    return redirect("draft", slug=draft.slug)


def _new(request: HttpRequest, faults: list[Fault] | None = None, toml: str = "") -> HttpResponse:
    clonable = Experiment.objects.exclude(origin=Origin.PUSHED).order_by("-created_at", "-pk")
    page = NewPage(
        clonable=tuple(clonable.values_list("slug", flat=True)[:CLONES_OFFERED]),
        faults=tuple(faults or ()),
        toml=toml,
    )
    return render_page(request, "runs/new.html", page, status=400 if faults else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def new_by_form(request: HttpRequest) -> HttpResponse:
    """Show the form of a new experiment, and keep what it comes to as a draft."""
    offer, fault = _offer()
    if request.method != "POST":
        return _form(request, None, new_form(offer), offer, fault)

    def save(toml: str) -> ExperimentDraft:
        return create_draft(toml=toml, author=request.user, at=timezone.now())

    return _formed(request, None, offer, fault, save)


@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def edit_by_form(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the form of a draft, and save what it comes to."""
    draft = draft_or_404(slug)
    offer, fault = _offer()
    if request.method != "POST":
        try:
            return _form(
                request, draft, form_of(draft.toml, endpoints=offer.endpoints), offer, fault
            )
        except NotInForm as reason:
            messages.error(request, f"The form can't show this draft: {reason}. Edit its file.")
            return redirect("draft-edit", slug=slug)

    def save(toml: str) -> ExperimentDraft:
        return save_draft(
            slug=slug,
            toml=toml,
            revision=_revision(request),
            actor=request.user,
            at=timezone.now(),
        )

    return _formed(request, draft, offer, fault, save)


def _formed(
    request: HttpRequest,
    draft: ExperimentDraft | None,
    offer: Offer,
    endpoints_fault: str,
    save: Callable[[str], ExperimentDraft],
) -> HttpResponse:
    """Do what the pressed button of a form says."""
    asked = request.POST.get("do", "check")
    form = read_form({name: request.POST.getlist(name) for name in request.POST})
    if asked.startswith(("add-", "remove-")):
        return _form(request, draft, changed_groups(form, asked), offer, endpoints_fault)
    written = write_form(form, endpoints=offer.endpoints)
    check = check_draft(written.text, slug=draft.slug if draft else "")
    faults = faults_of(written.faults, check.problems, written.fields)
    if asked == "check" or (faults and (asked != "save-anyway" or written.faults)):
        return _form(
            request,
            draft,
            form,
            offer,
            endpoints_fault,
            faults=faults,
            check=check,
            may_save_anyway=bool(faults) and not written.faults,
        )
    try:
        saved = save(written.text)
    except DraftChanged as changed:
        return _form(request, changed.now, form, offer, endpoints_fault, theirs=changed.now.toml)
    messages.success(request, f"Saved as a draft named {saved.slug}. Nothing runs yet.")
    return redirect("draft", slug=saved.slug)


def _form(
    request: HttpRequest,
    draft: ExperimentDraft | None,
    form: DraftForm,
    offer: Offer,
    endpoints_fault: str,
    *,
    faults: tuple[Fault, ...] = (),
    check: DraftCheck | None = None,
    may_save_anyway: bool = False,
    theirs: str = "",
) -> HttpResponse:
    revision = draft.revision if draft else 0
    if request.method == "POST" and not theirs:
        revision = _revision(request)  # the one that was changed, whatever it is by now
    page = DraftFormPage(
        slug=draft.slug if draft else "",
        revision=revision,
        form=form_view(form, offer, faults=faults),
        faults=faults,
        checked=_size(check) if check and not faults else "",
        may_save_anyway=may_save_anyway,
        drops_comments=bool(draft) and has_comments(draft.toml if draft else ""),
        theirs=theirs,
        endpoints_fault=endpoints_fault,
        no_endpoints=not offer.endpoints,
    )
    status = 409 if theirs else 400 if faults else 200
    return render_page(request, "runs/draft_form.html", page, status=status)


def _offer() -> tuple[Offer, str]:
    """Return what can be chosen, and why no endpoint can where their file has a problem."""
    fault = ""
    try:
        endpoints = endpoint_choices()
    except InvalidEndpoints as error:
        endpoints, fault = (), str(error)
    suites = (*suite_choices(), *older_suites())
    libraries = [*library_choices(), *older_libraries()]
    libraries.sort(key=lambda one: split_version(one.name)[0])
    return Offer(endpoints, suites, tuple(libraries)), fault


@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def edit_file(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the draft's file as text, and save it."""
    draft = draft_or_404(slug)
    if request.method != "POST":
        return _file(request, draft, draft.toml, draft.revision)
    given = posted(request, "toml", "revision")
    try:
        toml = file_text(given["toml"])
        saved = save_draft(
            slug=slug,
            toml=toml,
            revision=_revision(request),
            actor=request.user,
            at=timezone.now(),
        )
    except UnreadableFile as refused:
        fault = Fault("toml", f"File: {refused}.")
        return _file(request, draft, given["toml"], _revision(request), faults=(fault,))
    except DraftChanged as changed:
        now = changed.now
        return _file(request, now, given["toml"], now.revision, theirs=now.toml)
    messages.success(request, "Saved.")
    return redirect("draft", slug=saved.slug)


def _file(
    request: HttpRequest,
    draft: ExperimentDraft,
    toml: str,
    revision: int,
    *,
    faults: tuple[Fault, ...] = (),
    theirs: str = "",
) -> HttpResponse:
    found = () if faults else check_draft(toml, slug=draft.slug).problems
    problems = tuple(_problem(problem) for problem in found)
    page = DraftFilePage(draft.slug, revision, toml, faults, problems, theirs)
    status = 409 if theirs else 400 if faults else 200
    return render_page(request, "runs/draft_file.html", page, status=status)


def _revision(request: HttpRequest) -> int:
    text = request.POST.get("revision", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


# --- one draft --------------------------------------------------------------------


@require_safe
@unblinded_only
def draft(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one draft; where it has been started, go to the experiment."""
    try:
        found = draft_by_slug(slug)
    except DraftMissing as error:
        started = start_of(slug)
        if started and started.state == LeaseState.DONE and started.result:
            return redirect("experiment", slug=started.result["experiment"])
        raise Http404 from error
    check = check_draft(found.toml, slug=found.slug)
    estimate = estimate_of(found)
    job = _job_to_show(found)
    lines = found.toml.splitlines()
    return render_page(
        request,
        "runs/draft.html",
        DraftPage(
            slug=found.slug,
            author=found.author.get_username() if found.author else "the command line",
            created=utc(found.created_at),
            updated=utc(found.updated_at),
            pairs=check.pairs,
            cells=check.cells,
            facts=_facts(check.spec) if check.spec else (),
            problems=tuple(_problem(problem) for problem in check.problems),
            estimate=_estimate(estimate, found, cells=check.cells or 1) if estimate else None,
            job=job,
            busy=bool(job and job.live),
            not_in_form=_not_in_form(found.toml),
            lines=tuple(lines[:SHOWN_LINES]),
            lines_left_out=max(0, len(lines) - SHOWN_LINES),
            file_url=reverse("draft-file", kwargs={"slug": found.slug}),
        ),
    )


def _job_to_show(found: ExperimentDraft) -> JobView | None:
    """Return the newest job where there is something to say of it: it goes on or has failed."""
    jobs = [job for kind in _TITLES if (job := job_of(found, kind))]
    newest = max(jobs, key=lambda job: (job.created_at, job.pk), default=None)
    if newest is None or newest.state == LeaseState.DONE:
        return None
    return job_view(newest, title=_TITLES[newest.kind])


def _not_in_form(toml: str) -> str:
    try:
        form_of(toml, endpoints=())
    except NotInForm as reason:
        return str(reason)
    return ""


def _problem(problem: Problem) -> ProblemView:
    return ProblemView(problem.line or 0, problem.message)


def _size(check: DraftCheck) -> str:
    """Return how large a checked file is, as a sentence."""
    if check.spec is None:
        return ""
    spec = check.spec
    parts = [
        _count(len(spec.models), "model"),
        _count(len(spec.benchmarks), "benchmark"),
        _count(len(spec.cells), "cell entry", "cell entries"),
        _count(spec.replicates, "run of each task per arm", "runs of each task per arm"),
    ]
    return (
        f"{' × '.join(parts)} = {_count(check.cells or 0, 'cell')} with "
        f"{_count(check.pairs or 0, 'pair')}. Each pair is two runs; cells that differ only in "
        "their skills share the run without."
    )


def _count(number: int, word: str, plural: str = "") -> str:
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def _facts(spec: ExperimentSpec) -> tuple[Fact, ...]:
    budget = [
        f"{value:,g} {name}" for name, value in vars(spec.budget).items() if value is not None
    ]
    models = ", ".join(f"{model.id} at {model.endpoint}" for model in spec.models)
    tasks = ", ".join(
        f"{one.suite} ({f'{one.size} tasks' if one.size else 'every task'})"
        for one in spec.benchmarks
    )
    policy = {"censor": "leaves its pair out", "incorrect": "counts as wrong"}
    return (
        Fact("Models", models),
        Fact("Tasks", tasks),
        Fact("Libraries", ", ".join(dict.fromkeys(cell.library for cell in spec.cells))),
        Fact("Runs of each task per arm", str(spec.replicates)),
        Fact("Budget", ", ".join(budget) or "none: it runs to its end"),
        Fact("A failed call", policy[spec.failure_policy]),
    )


def _estimate(found: DraftEstimate, draft: ExperimentDraft, *, cells: int) -> EstimateView:
    job = job_of(draft, ESTIMATE_TASK)
    return EstimateView(
        made=utc(job.ended_at) if job else "",
        outdated=is_outdated(found, draft),
        pairs=f"{found.pairs:,}",
        executions=f"{found.executions:,}",
        n_cond=f"{found.expected_n_cond:,.0f}",
        n_cond_range=_range(found.n_cond_low, found.n_cond_high),
        too_few=_too_few(found.expected_n_cond / cells, cells=cells),
        calls=f"{found.calls:,.0f}",
        tokens=_figure(found.tokens, ",.0f"),
        cost=_figure(found.cost, ",.4g"),
        cost_unknown=found.cost_unknown,
        time=duration(found.seconds) if found.seconds is not None else "",
        workers=found.workers,
        over_budget=found.over_budget,
        models=tuple(
            ModelFigures(
                model=model.model,
                endpoint=model.endpoint,
                probed=model.probed,
                call_rate=f"{model.call_rate:.0%}",
                probes=tuple(
                    f"{probe.probed} pair{'s' * (probe.probed != 1)} of cell {probe.cell} "
                    f"({probe.name}) on {probe.benchmark}: a skill returned in {probe.returned}"
                    for probe in model.probes
                ),
                n_cond=f"{model.expected_n_cond:,.0f}",
                n_cond_range=_range(model.n_cond_low, model.n_cond_high),
                pairs=f"{model.pairs:,}",
                executions=f"{model.executions:,}",
                calls=f"{model.calls:,.0f}",
                tokens=_figure(model.tokens, ",.0f"),
                cost=_figure(model.cost, ",.4g"),
            )
            for model in found.models
        ),
    )


def _too_few(expected: float, *, cells: int) -> str:
    """Return a warning where a cell is likely to end without enough evidence, else nothing.

    Args:
        expected: pairs of a cell that will have a skill returned, the mean of all cells.
    """
    if expected >= REPORTING_THRESHOLD:
        return ""
    pairs = _count(round(expected), "pair")
    where = "" if cells == 1 else " of each cell"
    return (
        f"About {pairs}{where} will have a skill returned. Under {REPORTING_THRESHOLD} a cell is "
        "called not enough evidence: take more tasks, or more runs of each."
    )


def _range(low: float, high: float) -> str:
    """Return limits as whole pairs, rounded outwards."""
    return f"{floor(low):,} to {ceil(high - 1e-9):,}"


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


@require_safe
@unblinded_only
def file(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the draft's file."""
    return toml_response(draft_or_404(slug).toml, slug)


@require_safe
@unblinded_only
def experiment_file(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the file that an experiment was planned from, or one that says the same."""
    try:
        return toml_response(file_of(experiment_or_404(slug)), slug)
    except NotClonable as error:
        raise Http404 from error


def toml_response(toml: str, slug: str) -> HttpResponse:
    """Return an experiment file as a download."""
    response = HttpResponse(toml, content_type="application/toml; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{slug}.toml"'
    response["Cache-Control"] = "no-store"
    return response


# --- buttons ----------------------------------------------------------------------


@require_POST
@unblinded_only
def estimate(request: HttpRequest, slug: str) -> HttpResponse:
    """Have the workers estimate what the draft will take."""
    return _asked(request, slug, request_estimate)


@require_POST
@unblinded_only
def start(request: HttpRequest, slug: str) -> HttpResponse:
    """Have the workers plan the draft and start it."""
    return _asked(request, slug, request_start)


def _asked(request: HttpRequest, slug: str, ask: Callable[..., object]) -> HttpResponse:
    draft_or_404(slug)
    try:
        ask(slug=slug, actor=request.user, at=timezone.now())
    except (DraftNotReady, DraftBusy) as refused:
        messages.error(request, f"Nothing was done: {refused}.")
    except DraftMissing as error:
        raise Http404 from error
    return redirect("draft", slug=slug)


@require_POST
@unblinded_only
def discard(request: HttpRequest, slug: str) -> HttpResponse:
    """Delete the draft."""
    draft_or_404(slug)
    discard_draft(slug=slug, actor=request.user, at=timezone.now())
    messages.success(request, f"The draft {slug} is discarded.")
    return redirect("experiments")


@require_POST
@unblinded_only
def clone(request: HttpRequest, slug: str) -> HttpResponse:
    """Make another draft of the same file."""
    draft_or_404(slug)
    made = clone_draft(slug=slug, actor=request.user, at=timezone.now())
    messages.success(request, f"Cloned from the draft {slug}.")
    return redirect("draft", slug=made.slug)


@require_POST
@unblinded_only
def clone_of_experiment(request: HttpRequest, slug: str) -> HttpResponse:
    """Make a draft that plans the same as an experiment."""
    found = experiment_or_404(slug)
    try:
        made = clone_experiment(experiment=found, actor=request.user, at=timezone.now())
    except NotClonable as refused:
        messages.error(request, f"Nothing was cloned: {refused}.")
        return redirect("experiment", slug=slug)
    messages.success(request, f"Cloned from {slug}. Change what should differ, then start it.")
    return redirect("draft", slug=made.slug)


@require_POST
@unblinded_only
def clone_chosen(request: HttpRequest) -> HttpResponse:
    """Make a draft of the experiment that was chosen in a list."""
    return clone_of_experiment(request, posted(request, "experiment")["experiment"])
