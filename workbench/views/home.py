"""The first page: the newest experiment, or what belongs there."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from runs.domain.report import build_report, paper_example
from runs.models import Experiment
from runs.services.standing import standing_report
from runs.views.experiments import (
    Download,
    downloads,
    is_demonstration,
    most_lost,
    other_notices,
)
from runs.views.figures import CellView, cell_view, cell_views
from runs.views.flips import Flip, flips_of
from runs.views.live import ProgressView, progress_view
from workbench.kernel.pages import render_page, utc_seconds
from workbench.kernel.roles import Role, is_unblinded, role_of

FLIPS_SHOWN = 3


@dataclass(frozen=True)
class Next:
    """Something worth doing now; the first one is the page's primary action."""

    label: str
    url: str
    why: str


@dataclass(frozen=True)
class Newest:
    """The newest experiment: where it stands and what it says."""

    slug: str
    url: str
    progress: ProgressView
    as_of: str
    demonstration: bool
    notices: tuple[str, ...]
    cells: tuple[CellView, ...]
    flips: tuple[Flip, ...]
    n_flips: int
    caveat: str
    next: tuple[Next, ...]
    downloads: tuple[Download, ...]


@dataclass(frozen=True)
class HomePage:
    """The first page of leads and admins."""

    newest: Newest | None
    needs_password: bool
    may_invite: bool
    example: CellView
    example_source: str


@dataclass(frozen=True)
class RaterHomePage:
    """The first page of everyone else: nothing on it tells of results."""

    has_role: bool


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Show the newest experiment, or what belongs here."""
    if not is_unblinded(request.user):
        has_role = role_of(request.user) is not None
        return render_page(request, "rater_home.html", RaterHomePage(has_role))
    experiment = Experiment.objects.order_by("-created_at", "-pk").first()
    example = build_report(experiment={"slug": "example"}, cells=[paper_example()])["cells"][0]
    return render_page(
        request,
        "home.html",
        HomePage(
            newest=_newest(experiment) if experiment else None,
            needs_password=not request.user.has_usable_password(),  # type: ignore[union-attr]
            may_invite=role_of(request.user) is Role.ADMIN,
            example=cell_view("", example),
            example_source=example["cell"]["source"],
        ),
    )


def _newest(experiment: Experiment) -> Newest:
    standing = standing_report(experiment)
    report = standing.result
    progress = progress_view(experiment, now=timezone.now(), states=standing.states)
    cells = cell_views(experiment.slug, report)
    flips = flips_of(report, at_most=FLIPS_SHOWN)
    return Newest(
        slug=experiment.slug,
        url=progress.url,
        progress=progress,
        as_of=utc_seconds(standing.as_of),
        demonstration=is_demonstration(report),
        notices=other_notices(report),
        # The cell with the most to say first: the hero of the page.
        cells=tuple(sorted(cells, key=lambda cell: (not cell.enough, -cell.retrieved.n))),
        flips=flips,
        n_flips=len(report["harmful_flips"]),
        caveat=report["caveat"],
        next=_next(progress, cells),
        downloads=downloads(experiment.slug),
    )


def _next(progress: ProgressView, cells: tuple[CellView, ...]) -> tuple[Next, ...]:
    whole = Next("Open the experiment", progress.url, "Every cell, figure and pair.")
    if progress.status == "paused":
        return (Next("See why it is paused", progress.url, "And resume it there."),)
    if progress.live or not cells:
        return (whole,)
    lost = most_lost(cells)
    if lost is None:
        return (whole,)
    label = f"Read the {lost.count} lost {'pair' if lost.count == 1 else 'pairs'}"
    return (Next(label, lost.url, "Find out what the returned skill made the model do."), whole)
