"""A person's own account: password, mail address, tokens, and signing out everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth import logout, update_session_auth_hash
from django.contrib.auth.password_validation import password_validators_help_texts
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST, require_safe

from workbench import accounts, throttle, tokens
from workbench.kernel.addresses import client_address
from workbench.kernel.forms import Fault, faults_of_field, posted
from workbench.kernel.pages import render_page, utc
from workbench.kernel.roles import CLOSED, role_of
from workbench.models import ApiToken
from workbench.tokens import Scope
from workbench.views.people import ROLE_MEANINGS
from workbench.views.signing_in import held_back, new_password

ENDED_SHOWN = 20
WRONG_PASSWORD = "This is not your password."
SCOPE_MEANINGS = {
    Scope.READ: "look at everything your role may see",
    Scope.WRITE: "create and change experiments, skills and the like",
    Scope.PEOPLE: "invite people and change who may do what",
}
# Days a token lives; 0 for no end.
LIFETIMES = {30: "30 days", 90: "90 days", 365: "a year", 0: "no end"}
DEFAULT_LIFETIME = 90


@dataclass(frozen=True)
class ScopeChoice:
    """One scope to tick."""

    value: str
    meaning: str
    chosen: bool


@dataclass(frozen=True)
class Lifetime:
    """How long a token may live."""

    days: int
    label: str
    chosen: bool


@dataclass(frozen=True)
class TokenRow:
    """One token of the reader's."""

    uid: UUID
    name: str
    beginning: str
    scopes: str
    created: str
    ends: str
    last_used: str
    live: bool


@dataclass(frozen=True)
class TokenForm:
    """A token to be made, as it was filled in."""

    name: str
    scopes: tuple[ScopeChoice, ...]
    lifetimes: tuple[Lifetime, ...]
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class AccountPage:
    """The reader's own account; ``new_token`` is shown once."""

    name: str
    role: str
    role_meaning: str
    email: str
    has_password: bool
    rules: tuple[str, ...]
    password_faults: tuple[Fault, ...]
    email_faults: tuple[Fault, ...]
    may_have_tokens: bool
    token_rows: tuple[TokenRow, ...]
    token_form: TokenForm
    new_token: str
    new_token_name: str


@require_safe
def account(request: HttpRequest) -> HttpResponse:
    """Show the reader's own account."""
    return _page(request)


@sensitive_post_parameters()
@require_POST
def password(request: HttpRequest) -> HttpResponse:
    """Set another password; every other session ends."""
    user: Any = request.user
    faults, chosen = new_password(request, "current")
    guess = None
    if user.has_usable_password():
        try:
            # A session left open somewhere is no way to find the password out.
            guess = throttle.begin_guess(
                name=user.get_username(), address=client_address(request), at=timezone.now()
            )
        except throttle.HeldBack as held:
            return held_back(request, held, what="password changes")
        if user.check_password(request.POST.get("current", "")):
            throttle.was_right(guess)
        else:
            throttle.was_wrong(guess)
            faults = (Fault("id_current", WRONG_PASSWORD), *faults)
    if not faults:
        try:
            accounts.change_password(user=user, password=chosen, at=timezone.now())
        except ValidationError as error:
            faults = faults_of_field("id_password", error.messages)
    if faults:
        return _page(request, password_faults=faults)
    update_session_auth_hash(request, user)
    messages.success(request, "Your password is set. All your other sessions are signed out.")
    return redirect("account")


@require_POST
def email(request: HttpRequest) -> HttpResponse:
    """Keep the reader's mail address."""
    given = posted(request, "email")["email"].strip()
    try:
        accounts.set_email(user=request.user, email=given, at=timezone.now())
    except ValidationError as error:
        faults = faults_of_field("id_email", error.messages)
        return _page(request, email=given, email_faults=faults)
    messages.success(request, f"Mail goes to {given}." if given else "You get no mail.")
    return redirect("account")


@require_POST
def sign_out_everywhere(request: HttpRequest) -> HttpResponse:
    """End all of the reader's sessions, this one too."""
    posted(request)
    accounts.sign_out_everywhere(user=request.user, at=timezone.now())
    logout(request)
    return redirect("sign-in")


@require_POST
def create_token(request: HttpRequest) -> HttpResponse:
    """Make a token of the reader's and show its text, once."""
    if not tokens.scopes_of(request.user):
        raise PermissionDenied(CLOSED)
    form = posted(request, "name", "days", many=("scopes",))
    chosen = request.POST.getlist("scopes")
    now = timezone.now()
    try:
        days = _days(form["days"])
        token, text = tokens.create_token(
            user=request.user,
            name=form["name"],
            scopes=_scopes(chosen),
            at=now,
            expires_at=now + timedelta(days=days) if days else None,
        )
    except tokens.TokenRefused as refused:
        field = {"scopes": "id_scopes", "expires_at": "id_days"}.get(refused.field, "id_name")
        return _page(
            request,
            token_form=_token_form(
                request.user,
                name=form["name"],
                chosen=chosen,
                days=form["days"],
                faults=(Fault(field, str(refused)),),
            ),
        )
    return _page(request, new_token=text, new_token_name=token.name)


@require_POST
def revoke_token(request: HttpRequest, uid: UUID) -> HttpResponse:
    """End one of the reader's tokens."""
    if not tokens.scopes_of(request.user):
        raise PermissionDenied(CLOSED)
    posted(request)
    try:
        tokens.revoke_token(user=request.user, uid=uid, at=timezone.now())
    except tokens.TokenMissing as error:
        raise Http404 from error
    messages.success(request, "The token is revoked. Whatever used it is refused from now on.")
    return redirect("account")


def _scopes(chosen: list[str]) -> list[Scope]:
    if unknown := [value for value in chosen if value not in list(Scope)]:
        raise tokens.TokenRefused("scopes", f"There is no scope {unknown[0]!r}.")
    return [Scope(value) for value in chosen]


def _days(text: str) -> int:
    if text not in {str(days) for days in LIFETIMES}:
        raise tokens.TokenRefused("expires_at", "Choose how long it lives.")
    return int(text)


def _page(
    request: HttpRequest,
    *,
    email: str | None = None,
    password_faults: tuple[Fault, ...] = (),
    email_faults: tuple[Fault, ...] = (),
    token_form: TokenForm | None = None,
    new_token: str = "",
    new_token_name: str = "",
) -> HttpResponse:
    user: Any = request.user
    role = role_of(user)
    form = token_form or _token_form(user)
    page = AccountPage(
        name=user.get_username(),
        role=role or "",
        role_meaning=ROLE_MEANINGS[role] if role else "",
        email=user.email if email is None else email,
        has_password=user.has_usable_password(),
        rules=tuple(password_validators_help_texts()),
        password_faults=password_faults,
        email_faults=email_faults,
        may_have_tokens=bool(tokens.scopes_of(user)),
        token_rows=_token_rows(user),
        token_form=form,
        new_token=new_token,
        new_token_name=new_token_name,
    )
    bad = password_faults or email_faults or form.faults
    return render_page(request, "people/account.html", page, status=400 if bad else 200)


def _token_form(
    user: Any,
    *,
    name: str = "",
    chosen: list[str] | None = None,
    days: str = str(DEFAULT_LIFETIME),
    faults: tuple[Fault, ...] = (),
) -> TokenForm:
    ticked = [Scope.READ.value] if chosen is None else chosen
    return TokenForm(
        name=name,
        scopes=tuple(
            ScopeChoice(scope.value, SCOPE_MEANINGS[scope], scope.value in ticked)
            for scope in tokens.scopes_of(user)
        ),
        lifetimes=tuple(Lifetime(n, label, str(n) == days) for n, label in LIFETIMES.items()),
        faults=faults,
    )


def _token_rows(user: Any) -> tuple[TokenRow, ...]:
    """Return the live tokens and the last of the ended ones, newest first."""
    now = timezone.now()
    newest = list(tokens.tokens_of(user).order_by("-created_at", "-pk"))
    live = [token for token in newest if tokens.is_live(token, now=now)]
    ended = [token for token in newest if not tokens.is_live(token, now=now)]
    return tuple(_token_row(token, live=True) for token in live) + tuple(
        _token_row(token, live=False) for token in ended[:ENDED_SHOWN]
    )


def _token_row(token: ApiToken, *, live: bool) -> TokenRow:
    if token.revoked_at:
        ends = f"revoked {utc(token.revoked_at)}"
    else:
        ends = utc(token.expires_at) or "no end"
    return TokenRow(
        uid=token.uid,
        name=token.name,
        beginning=token.beginning,
        scopes=", ".join(token.scopes),
        created=utc(token.created_at),
        ends=ends,
        last_used=utc(token.last_used_at) or "never",
        live=live,
    )
