"""Pages of the house: home, sign-in, theme, glossary, health and errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth import login, logout
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from django.views.defaults import page_not_found

from runs.domain.report import build_report, paper_example
from runs.models import Experiment
from runs.services.reporting import report_of
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
from workbench.accounts import LinkFault, LinkInvalid, link_fault, redeem
from workbench.glossary import INTRODUCTION, SECTIONS, Section
from workbench.kernel.api import NOT_FOUND, error_body
from workbench.kernel.pages import render_page
from workbench.kernel.roles import is_unblinded, role_of
from workbench.templatetags.workbench import THEME_COOKIE, THEMES

THEME_SECONDS = 365 * 24 * 3600
FLIPS_SHOWN = 3
FAULTS = {
    LinkFault.UNKNOWN: "No such link was made here. It may have been copied only in part.",
    LinkFault.USED: "This link was used already; each one works once.",
    LinkFault.EXPIRED: "This link is too old.",
    LinkFault.INACTIVE: "The person it was made for can't sign in any more.",
}


# --- home -----------------------------------------------------------------------


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
            example=cell_view("", example),
            example_source=example["cell"]["source"],
        ),
    )


def _newest(experiment: Experiment) -> Newest:
    report = report_of(experiment)
    progress = progress_view(experiment, now=timezone.now())
    cells = cell_views(experiment.slug, report)
    flips = flips_of(report, at_most=FLIPS_SHOWN)
    return Newest(
        slug=experiment.slug,
        url=progress.url,
        progress=progress,
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


# --- signing in and out ---------------------------------------------------------


@dataclass(frozen=True)
class LinkPage:
    """A one-time link before it is confirmed, or why it doesn't work."""

    fault: str
    command: str


@method_decorator(login_not_required, name="dispatch")
class SignIn(LoginView):
    """Sign in by user name and password."""

    template_name = "sign_in.html"
    redirect_authenticated_user = True

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.headers.get("HX-Request"):
            # A fragment was asked for after the session ended: reload the page instead.
            return HttpResponse(headers={"HX-Refresh": "true"})
        response = super().dispatch(request, *args, **kwargs)
        response.headers["Cache-Control"] = "no-store"
        return response


@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in_by_link(request: HttpRequest, token: str) -> HttpResponse:
    """Ask for a confirmation, then sign in; a GET spends nothing, so previews do no harm."""
    if request.method != "POST":
        fault = link_fault(token=token, now=timezone.now())
        return _link_page(request, fault)
    try:
        user = redeem(token=token, now=timezone.now())
    except LinkInvalid as error:
        return _link_page(request, error.fault)
    login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return redirect("home")


def _link_page(request: HttpRequest, fault: LinkFault | None) -> HttpResponse:
    page = LinkPage(
        fault=FAULTS[fault] if fault else "", command="python3 manage.py sign_in_link USER"
    )
    return render_page(request, "sign_in_link.html", page, status=410 if fault else 200)


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    logout(request)
    return redirect("sign-in")


# --- theme, glossary, health ----------------------------------------------------


@login_not_required
@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Keep the chosen theme in a cookie and go back to where it was chosen."""
    chosen = request.POST.get("theme", "")
    back = request.POST.get("next", "/")
    safe = url_has_allowed_host_and_scheme(back, allowed_hosts=None)
    response = redirect(back if safe and back.startswith("/") else "home")
    if chosen in THEMES:
        response.set_cookie(
            THEME_COOKIE,
            chosen,
            max_age=THEME_SECONDS,
            httponly=True,
            samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )
    return response


@dataclass(frozen=True)
class GlossaryPage:
    """The house glossary."""

    introduction: str
    sections: tuple[Section, ...]


@require_safe
def glossary(request: HttpRequest) -> HttpResponse:
    """Show what the words mean."""
    return render_page(request, "glossary.html", GlossaryPage(INTRODUCTION, SECTIONS))


@login_not_required
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """Say ``ok`` when the pages and their database answer."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError:
        return HttpResponse("the database does not answer\n", content_type="text/plain", status=503)
    return HttpResponse("ok\n", content_type="text/plain")


# --- errors ---------------------------------------------------------------------


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Answer an unknown address in the shape of what was asked for."""
    if request.path.startswith("/api/"):
        return JsonResponse(error_body("not_found", NOT_FOUND), status=404)
    return page_not_found(request, exception)
