"""Signing in, by password or by one-time link, and out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib.auth import authenticate, get_user_model, login, logout
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.password_validation import password_validators_help_texts
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from workbench import accounts, throttle
from workbench.accounts import LinkFault, LinkInvalid
from workbench.kernel.addresses import client_address
from workbench.kernel.forms import Fault, faults_of_field, posted
from workbench.kernel.pages import render_page
from workbench.kernel.roles import role_of
from workbench.models import LinkPurpose

BACKEND = "django.contrib.auth.backends.ModelBackend"
WRONG = "This user name and password don't belong together. Mind capital and small letters."
NOT_THE_SAME = "The two passwords are not the same."
FAULTS = {
    LinkFault.UNKNOWN: "No such link was made here. It may have been copied only in part.",
    LinkFault.USED: "This link was used already; each one works once.",
    LinkFault.REVOKED: "This link was taken back, or a newer one took its place.",
    LinkFault.EXPIRED: "This link is too old.",
    LinkFault.INACTIVE: "The person it was made for can't sign in any more.",
}
LINK_COMMAND = "python3 manage.py sign_in_link USER"


@dataclass(frozen=True)
class SignInPage:
    """The form that asks for name and password."""

    name: str
    next: str
    faults: tuple[Fault, ...]
    command: str


@dataclass(frozen=True)
class HeldBackPage:
    """Too many wrong guesses: how long to wait."""

    wait: str
    what: str


@dataclass(frozen=True)
class LinkPage:
    """A one-time sign-in link before it is confirmed, or why a link doesn't work."""

    fault: str
    advice: str
    command: str


@dataclass(frozen=True)
class PasswordPage:
    """An invitation or a reset before it is accepted: whose it is, and the new password."""

    invitation: bool
    name: str
    role: str
    signed_in_as: str
    rules: tuple[str, ...]
    faults: tuple[Fault, ...]


# --- by password ----------------------------------------------------------------


@sensitive_post_parameters("password")
@login_not_required
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """Sign in by user name and password."""
    if request.headers.get("HX-Request"):
        # A fragment was asked for after the session ended: reload the page instead.
        return HttpResponse(headers={"HX-Refresh": "true"})
    onward = _onward(request)
    if request.user.is_authenticated:
        return redirect(onward)
    if request.method != "POST":
        return _sign_in_page(request)
    form = posted(request, "username", "password", "next")
    faults = [
        Fault(f"id_{name}", f"{label} is missing.")
        for name, label in (("username", "The user name"), ("password", "The password"))
        if not form[name]
    ]
    if faults:
        return _sign_in_page(request, *faults, name=form["username"])
    # As Django's own form reads it, so that one person's name has one count.
    name = get_user_model().normalize_username(form["username"].strip())
    try:
        guess = throttle.begin_guess(name=name, address=client_address(request), at=timezone.now())
    except throttle.HeldBack as held:
        return held_back(request, held, what="sign-ins")
    user = authenticate(request, username=name, password=form["password"])
    if user is None:
        throttle.was_wrong(guess)
        return _sign_in_page(request, Fault("id_username", WRONG), name=name)
    throttle.was_right(guess)
    login(request, user)
    return redirect(onward)


def held_back(request: HttpRequest, held: throttle.HeldBack, *, what: str) -> HttpResponse:
    """Return the answer to one guess too many."""
    minutes = -(-held.retry_after_s // 60)
    wait = "a minute" if minutes == 1 else f"{minutes} minutes"
    response = render_page(request, "held_back.html", HeldBackPage(wait, what), status=429)
    response.headers["Retry-After"] = str(held.retry_after_s)
    return response


def _sign_in_page(request: HttpRequest, *faults: Fault, name: str = "") -> HttpResponse:
    page = SignInPage(name=name, next=_next(request), faults=faults, command=LINK_COMMAND)
    return render_page(request, "sign_in.html", page)


def _next(request: HttpRequest) -> str:
    return request.POST.get("next", request.GET.get("next", ""))


def _onward(request: HttpRequest) -> str:
    """Return where to go after signing in: nowhere but here."""
    url = _next(request)
    safe = url_has_allowed_host_and_scheme(
        url, allowed_hosts={request.get_host()}, require_https=request.is_secure()
    )
    return url if safe and url != reverse("sign-in") else reverse("home")


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session."""
    logout(request)
    return redirect("sign-in")


# --- by link --------------------------------------------------------------------

LinkView = Callable[[HttpRequest, str], HttpResponse]


def _by_link(purpose: LinkPurpose) -> Callable[[LinkView], Callable[..., HttpResponse]]:
    """Return what closes a view to links that don't work, and to those who try many.

    A GET spends nothing, so previews do no harm.
    """

    def made(view: LinkView) -> Callable[..., HttpResponse]:
        @sensitive_post_parameters()
        @login_not_required
        @require_http_methods(["GET", "HEAD", "POST"])
        @wraps(view)
        def guarded(request: HttpRequest, token: str) -> HttpResponse:
            now, address = timezone.now(), client_address(request)
            try:
                throttle.check_links_from(address=address, at=now)
            except throttle.HeldBack as held:
                return held_back(request, held, what="links")
            fault = accounts.link_fault(token=token, now=now, purpose=purpose)
            if fault is LinkFault.UNKNOWN:
                throttle.count_unknown_link(address=address, at=now)
            if fault:
                return _fault_page(request, fault, purpose)
            try:
                return view(request, token)
            except LinkInvalid as error:
                return _fault_page(request, error.fault, purpose)

        return guarded

    return made


@_by_link(LinkPurpose.SIGN_IN)
def sign_in_by_link(request: HttpRequest, token: str) -> HttpResponse:
    """Ask for a confirmation, then sign in."""
    if request.method != "POST":
        return render_page(request, "sign_in_link.html", LinkPage("", "", LINK_COMMAND))
    posted(request)
    login(request, accounts.redeem(token=token, now=timezone.now()), backend=BACKEND)
    return redirect("home")


@_by_link(LinkPurpose.INVITATION)
def invite(request: HttpRequest, token: str) -> HttpResponse:
    """Ask the invited person for a password, then sign them in."""
    return _choose_password(request, token, LinkPurpose.INVITATION)


@_by_link(LinkPurpose.PASSWORD_RESET)
def reset(request: HttpRequest, token: str) -> HttpResponse:
    """Ask for a new password, end all other sessions, and sign in."""
    return _choose_password(request, token, LinkPurpose.PASSWORD_RESET)


def _choose_password(request: HttpRequest, token: str, purpose: LinkPurpose) -> HttpResponse:
    user = accounts.person_of_link(token=token, purpose=purpose)
    if request.method != "POST":
        return _password_page(request, user, purpose)
    faults, password = new_password(request)
    if not faults:
        try:
            user = accounts.redeem_with_password(
                token=token, purpose=purpose, password=password, now=timezone.now()
            )
        except ValidationError as error:
            faults = faults_of_field("id_password", error.messages)
        else:
            login(request, user, backend=BACKEND)
            return redirect("home")
    return _password_page(request, user, purpose, faults=faults, status=400)


def new_password(request: HttpRequest, *others: str) -> tuple[tuple[Fault, ...], str]:
    """Return what is wrong with a new password and its repetition, and the password."""
    # The name is there for password managers; it decides nothing.
    form = posted(request, "username", "password", "again", *others)
    if not form["password"]:
        return (Fault("id_password", "Choose a password."),), ""
    if form["password"] != form["again"]:
        return (Fault("id_again", NOT_THE_SAME),), ""
    return (), form["password"]


def _password_page(
    request: HttpRequest,
    user: Any,
    purpose: LinkPurpose,
    *,
    faults: tuple[Fault, ...] = (),
    status: int = 200,
) -> HttpResponse:
    reader = request.user
    page = PasswordPage(
        invitation=purpose == LinkPurpose.INVITATION,
        name=user.get_username(),
        role=role_of(user) or "",
        signed_in_as=(
            reader.get_username() if reader.is_authenticated and reader.pk != user.pk else ""
        ),
        rules=tuple(password_validators_help_texts()),
        faults=faults,
    )
    return render_page(request, "set_password.html", page, status=status)


def _fault_page(request: HttpRequest, fault: LinkFault, purpose: LinkPurpose) -> HttpResponse:
    by_command = purpose == LinkPurpose.SIGN_IN
    page = LinkPage(
        fault=FAULTS[fault],
        advice=(
            "Whoever runs the workbench can print a new one:"
            if by_command
            else "A lead or an admin of the workbench can make you a new one."
        ),
        command=LINK_COMMAND if by_command else "",
    )
    return render_page(request, "sign_in_link.html", page, status=410)
