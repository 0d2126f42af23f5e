"""Signing in, by password or by one-time link, and out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.contrib.auth import login, logout
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_http_methods, require_POST

from workbench.accounts import LinkFault, LinkInvalid, link_fault, redeem
from workbench.kernel.pages import render_page

FAULTS = {
    LinkFault.UNKNOWN: "No such link was made here. It may have been copied only in part.",
    LinkFault.USED: "This link was used already; each one works once.",
    LinkFault.EXPIRED: "This link is too old.",
    LinkFault.INACTIVE: "The person it was made for can't sign in any more.",
}


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
