"""Who may see what: three roles, held as Django groups.

A page that is closed to a role answers 403 before it looks anything up, so that
its answer says nothing about what exists. Whoever may see a kind of page gets 404
for what isn't there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

CLOSED = "This page is not open to your role."


class Role(StrEnum):
    """What a person is here for; the value is the name of the Django group."""

    ANNOTATOR = "annotator"
    LEAD = "lead"
    ADMIN = "admin"


# Those who may see arms, models, outcomes and labels of others.
UNBLINDED = (Role.LEAD, Role.ADMIN)

View = Callable[..., HttpResponse]


def role_of(user: Any) -> Role | None:
    """Return the highest role of ``user``, or None; a superuser is an admin."""
    if not user.is_authenticated:
        return None
    if not hasattr(user, "_role"):
        names = set(user.groups.values_list("name", flat=True))
        held = [role for role in Role if role in names]
        # One request asks several times; the groups are read once.
        user._role = Role.ADMIN if user.is_superuser else held[-1] if held else None
    role: Role | None = user._role
    return role


def is_unblinded(user: Any) -> bool:
    """Return whether ``user`` may see results."""
    return role_of(user) in UNBLINDED


def only_for(*roles: Role) -> Callable[[View], View]:
    """Return what closes a view to everyone but ``roles``.

    The middleware reads ``roles`` off the view and turns others away before the method and
    the body are looked at; the view refuses them once more, wherever it is called from.
    """

    def close(view: View) -> View:
        @wraps(view)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            if role_of(request.user) not in roles:
                raise PermissionDenied(CLOSED)
            return view(request, *args, **kwargs)

        guarded.roles = roles  # type: ignore[attr-defined]
        return guarded

    return close


def unblinded_only(view: View) -> View:
    """Close ``view`` to everyone but leads and admins."""
    return only_for(*UNBLINDED)(view)
