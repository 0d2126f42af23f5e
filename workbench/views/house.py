"""What belongs to no one part: theme, glossary, health, and the page for what isn't there."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST, require_safe

from workbench.glossary import INTRODUCTION, SECTIONS, Section
from workbench.heartbeats import system_state
from workbench.kernel.pages import render_page
from workbench.templatetags.workbench import THEME_COOKIE, THEMES

THEME_SECONDS = 365 * 24 * 3600


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


@login_not_required
@require_safe
def ready(request: HttpRequest) -> HttpResponse:
    """Say which part is green or red, and answer 503 unless all are green.

    Anybody may ask, so it tells no more; leads and admins read the rest on every page.
    """
    state = system_state(now=timezone.now())
    parts = {part.name: part.status.value for part in state.parts}
    response = JsonResponse(
        {"ready": state.ready, "parts": parts}, status=200 if state.ready else 503
    )
    # Monitoring asks every few seconds; Django would log each answer as an error of its own.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response
