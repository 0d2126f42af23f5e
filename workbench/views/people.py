"""People: the list, one person, and what leads and admins may do for them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from django.contrib import messages
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from workbench import accounts
from workbench.accounts import PEOPLE, Invitee, PersonState
from workbench.kernel.forms import Fault, posted
from workbench.kernel.lists import BadListQuery, page_of
from workbench.kernel.pages import render_page, utc
from workbench.kernel.roles import CLOSED, Role, only_for, role_of, unblinded_only
from workbench.mail import mail_is_on
from workbench.models import LinkPurpose
from workbench.views.links import show_links

LONGEST_LIST = 20_000
LONGEST_QUOTED = 60
_SEPARATORS = re.compile(r"[\s,;]+")
ROLE_MEANINGS = {
    Role.ANNOTATOR: "will label cases (a later version), sees no results",
    Role.LEAD: "runs experiments, sees results, invites annotators",
    Role.ADMIN: "does everything, people too",
}


@dataclass(frozen=True)
class Choice:
    """One choice of a select."""

    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class PersonRow:
    """One line of the list."""

    name: str
    url: str
    email: str
    role: str
    state: str
    invitation: str
    last_sign_in: str


@dataclass(frozen=True)
class InviteForm:
    """Who is to be invited, as it was typed."""

    people: str
    roles: tuple[Choice, ...]
    by_mail: bool
    mail_is_on: bool
    faults: tuple[Fault, ...]
    open: bool


@dataclass(frozen=True)
class Sorting:
    """A column's head: the link that sorts by it and the order it is in now."""

    label: str
    url: str
    direction: str


@dataclass(frozen=True)
class PeoplePage:
    """Everybody, and the form that invites more."""

    rows: tuple[PersonRow, ...]
    heads: tuple[Sorting, ...]
    roles: tuple[Choice, ...]
    states: tuple[Choice, ...]
    filtered: bool
    first_url: str
    next_url: str
    form: InviteForm


@dataclass(frozen=True)
class PersonPage:
    """One person, and what the reader may do for them."""

    person: PersonRow
    joined: str
    is_reader: bool
    roles: tuple[Choice, ...]
    can_invite: bool
    can_revoke: bool
    can_reset: bool
    can_deactivate: bool
    can_reactivate: bool
    mail_is_on: bool


# --- the list -------------------------------------------------------------------


@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def people(request: HttpRequest) -> HttpResponse:
    """Show who is here; a POST invites more and shows their links."""
    if request.method != "POST":
        return _people_page(request, _form(request))
    form = posted(request, "people", "role", "by_mail")
    role = _role(form["role"])
    invitees, places, faults = read_invitees(form["people"])
    if role is None:
        faults.append(Fault("role", "Choose a role."))
    elif not accounts.reaches(role_of(request.user), role):
        raise PermissionDenied(CLOSED)
    if role and 0 < len(invitees) <= accounts.MOST_INVITED_AT_ONCE:
        try:
            # With lines that can't be read nobody is invited, and the others' faults are told too.
            links = accounts.invite(
                people=invitees,
                role=role,
                actor=request.user,
                at=timezone.now(),
                only_check=bool(faults),
            )
        except accounts.InvitationsRefused as refused:
            lines = form["people"].splitlines()
            faults += [
                Fault("people", _line_fault(places[n], lines[places[n] - 1], reason))
                for n, reason in refused.faults.items()
            ]
            faults.sort(key=_line_of)
        except accounts.NotAllowed as error:
            raise PermissionDenied(str(error)) from error
        if not faults:
            return show_links(
                request,
                links,
                LinkPurpose.INVITATION,
                by_mail=bool(form["by_mail"]),
                back_url=reverse("people"),
                back="Back to the people",
            )
    again = _form(
        request,
        people=form["people"],
        role=role,
        by_mail=bool(form["by_mail"]),
        faults=tuple(faults),
    )
    return _people_page(request, again, status=400)


def read_invitees(text: str) -> tuple[list[Invitee], list[int], list[Fault]]:
    """Return who stands in a pasted list, on which line, and what can't be read.

    One person a line: the user name, then maybe a mail address, with comma, semicolon, space
    or tab between them. Empty lines count for nothing.
    """
    invitees: list[Invitee] = []
    places: list[int] = []
    faults: list[Fault] = []
    if len(text) > LONGEST_LIST:
        return [], [], [Fault("people", f"A list may have {LONGEST_LIST:,} characters.")]
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part for part in _SEPARATORS.split(line.strip("\ufeff \t,;")) if part]
        if not parts:
            continue
        if len(parts) > 2:
            faults.append(
                Fault(
                    "people",
                    _line_fault(number, line, "write a user name, then a mail address, no more."),
                )
            )
            continue
        invitees.append(Invitee(*parts))
        places.append(number)
    if len(invitees) > accounts.MOST_INVITED_AT_ONCE:
        most = f"At most {accounts.MOST_INVITED_AT_ONCE} people are invited at once."
        faults.append(Fault("people", most))
    if not invitees and not faults:
        faults.append(Fault("people", "Write at least one user name."))
    return invitees, places, faults


def _line_fault(number: int, line: str, reason: str) -> str:
    """Return what is wrong with one line, which is repeated: a list may be long."""
    text = " ".join(line.split())
    shown = text if len(text) <= LONGEST_QUOTED else f"{text[:LONGEST_QUOTED]}…"
    return f"Line {number}, “{shown}”: {reason}"


def _line_of(fault: Fault) -> int:
    """Return the number of the line that a fault speaks of, 0 where it speaks of the whole."""
    found = re.match(r"Line (\d+),", fault.text)
    return int(found[1]) if found else 0


def _people_page(request: HttpRequest, form: InviteForm, *, status: int = 200) -> HttpResponse:
    try:
        page = page_of(accounts.people(), listing=PEOPLE, query=request.GET.dict())
    except BadListQuery as bad:
        raise BadRequest(str(bad)) from bad
    now = timezone.now()
    here = reverse("people")
    heads = {"name": "Person", "last_sign_in": "Last sign-in"}
    kept = dict(page.asked)
    return render_page(
        request,
        "people/people.html",
        PeoplePage(
            rows=tuple(_row(person, now) for person in page.rows),
            heads=tuple(
                Sorting(
                    label=label,
                    url=f"{here}?{page.sort_query(name)}",
                    direction={name: "ascending", f"-{name}": "descending"}.get(page.sort, ""),
                )
                for name, label in heads.items()
            ),
            roles=_choices({"": "Any role"} | {r.value: r.value for r in Role}, kept.get("role")),
            states=_choices(
                {"": "Any state"} | {s.value: s.value for s in PersonState}, kept.get("state")
            ),
            filtered=bool(kept),
            first_url="" if page.first else f"{here}?{_without_cursor(request)}",
            next_url=f"{here}?{page.next_query}" if page.next_query else "",
            form=form,
        ),
        status=status,
    )


def _without_cursor(request: HttpRequest) -> str:
    query = request.GET.copy()
    query.pop("cursor", None)
    return query.urlencode()


def _row(person: Any, now: Any) -> PersonRow:
    until = person.invited_until
    invitation = ""
    if person.state == PersonState.INVITED:
        invitation = (
            "no link is out"
            if until is None
            else f"link works until {utc(until)}"
            if until > now
            else f"link ended {utc(until)}"
        )
    return PersonRow(
        name=person.get_username(),
        url=reverse("person", kwargs={"name": person.get_username()}),
        email=person.email,
        role=person.role,
        state=person.state,
        invitation=invitation,
        last_sign_in=utc(person.last_login),
    )


def _form(
    request: HttpRequest,
    *,
    people: str = "",
    role: Role | None = None,
    by_mail: bool = True,
    faults: tuple[Fault, ...] = (),
) -> InviteForm:
    mine = role_of(request.user)
    offered = [r for r in Role if accounts.reaches(mine, r)]
    labels = {r.value: f"{r.value}: {ROLE_MEANINGS[r]}" for r in offered}
    return InviteForm(
        people=people,
        roles=_choices(labels, role.value if role else None),
        by_mail=by_mail,
        mail_is_on=mail_is_on(),
        faults=faults,
        open=bool(faults),
    )


def _choices(labels: dict[str, str], chosen: str | None) -> tuple[Choice, ...]:
    return tuple(Choice(value, label, value == chosen) for value, label in labels.items())


def _role(text: str) -> Role | None:
    return Role(text) if text in list(Role) else None


# --- one person -----------------------------------------------------------------


@require_safe
@unblinded_only
def person(request: HttpRequest, name: str) -> HttpResponse:
    """Show one person."""
    found = _person_or_404(name)
    mine, theirs = role_of(request.user), _role(found.role)
    admin, self = mine is Role.ADMIN, found.pk == request.user.pk
    reach = accounts.reaches(mine, theirs)
    waits = found.state == PersonState.INVITED
    can_change = admin and not self
    return render_page(
        request,
        "people/person.html",
        PersonPage(
            person=_row(found, timezone.now()),
            joined=utc(found.date_joined),
            is_reader=self,
            roles=_choices({r.value: f"{r.value}: {ROLE_MEANINGS[r]}" for r in Role}, found.role)
            if can_change
            else (),
            can_invite=reach and waits,
            can_revoke=reach and waits and found.invited_until is not None,
            can_reset=reach and found.state == PersonState.ACTIVE and not self,
            can_deactivate=can_change and found.is_active,
            can_reactivate=can_change and not found.is_active,
            mail_is_on=mail_is_on() and bool(found.email),
        ),
    )


def _person_or_404(name: str) -> Any:
    found = accounts.people().filter(username=name).first()
    if found is None:
        raise Http404
    return found


Action = Callable[[HttpRequest, Any], HttpResponse]


def _acts_on_person(*roles: Role) -> Callable[[Action], Callable[..., HttpResponse]]:
    """Return what makes a view of an action: by POST, for ``roles``, on one person."""

    def made(action: Action) -> Callable[..., HttpResponse]:
        @only_for(*roles)
        @wraps(action)
        def view(request: HttpRequest, name: str) -> HttpResponse:
            user = _person_or_404(name)
            try:
                return action(request, user)
            except accounts.NotAllowed as error:
                raise PermissionDenied(str(error)) from error
            except (accounts.LastAdmin, accounts.HasJoined, accounts.NotActive) as error:
                messages.error(request, str(error))
                return _to(user)

        return require_POST(view)

    return made


def _to(user: Any) -> HttpResponse:
    return redirect("person", name=user.get_username())


@_acts_on_person(Role.ADMIN)
def role(request: HttpRequest, user: Any) -> HttpResponse:
    """Give the person another role."""
    chosen = _role(posted(request, "role")["role"])
    if chosen is None:
        raise BadRequest("no such role")
    accounts.change_role(user=user, role=chosen, actor=request.user, at=timezone.now())
    messages.success(request, f"{user.get_username()} is {_an(chosen)} now.")
    return _to(user)


@_acts_on_person(Role.ADMIN)
def deactivate(request: HttpRequest, user: Any) -> HttpResponse:
    """Let the person in no more."""
    posted(request)
    accounts.deactivate(user=user, actor=request.user, at=timezone.now())
    messages.success(
        request,
        f"{user.get_username()} is deactivated and signed out everywhere. What they did stays.",
    )
    return _to(user)


@_acts_on_person(Role.ADMIN)
def reactivate(request: HttpRequest, user: Any) -> HttpResponse:
    """Let the person in again."""
    posted(request)
    accounts.reactivate(user=user, actor=request.user, at=timezone.now())
    messages.success(request, f"{user.get_username()} can sign in again.")
    return _to(user)


@_acts_on_person(Role.LEAD, Role.ADMIN)
def reset_link(request: HttpRequest, user: Any) -> HttpResponse:
    """Make a link by which the person sets a new password, and show it."""
    by_mail = bool(posted(request, "by_mail")["by_mail"])
    link = accounts.create_reset_link(user=user, actor=request.user, at=timezone.now())
    return _show(request, link, LinkPurpose.PASSWORD_RESET, by_mail=by_mail)


@_acts_on_person(Role.LEAD, Role.ADMIN)
def invite_again(request: HttpRequest, user: Any) -> HttpResponse:
    """Make a new invitation and show its link; the one before ends."""
    by_mail = bool(posted(request, "by_mail")["by_mail"])
    link = accounts.invite_again(user=user, actor=request.user, at=timezone.now())
    return _show(request, link, LinkPurpose.INVITATION, by_mail=by_mail)


@_acts_on_person(Role.LEAD, Role.ADMIN)
def revoke_invitation(request: HttpRequest, user: Any) -> HttpResponse:
    """End the person's invitation."""
    posted(request)
    accounts.revoke_invitation(user=user, actor=request.user, at=timezone.now())
    messages.success(request, f"The invitation of {user.get_username()} is revoked.")
    return _to(user)


def _show(
    request: HttpRequest, link: accounts.OneTimeLink, purpose: LinkPurpose, *, by_mail: bool
) -> HttpResponse:
    return show_links(
        request,
        [link],
        purpose,
        by_mail=by_mail,
        back_url=reverse("person", kwargs={"name": link.user.get_username()}),
        back="Back to the person",
    )


def _an(role: Role) -> str:
    return "a lead" if role is Role.LEAD else f"an {role.value}"
