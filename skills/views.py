"""The text of a skill. Pages that show what became of a skill are served by ``runs``."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from skills.selectors import version_body
from workbench.kernel.roles import unblinded_only


@require_safe
@unblinded_only
def skill_text(request: HttpRequest, slug: str, number: int) -> HttpResponse:
    """Return one version's whole text as plain text that no browser renders."""
    body = version_body(slug, number)
    if body is None:
        raise Http404
    response = HttpResponse(body, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = "inline"
    response["Cache-Control"] = "no-store"
    return response
