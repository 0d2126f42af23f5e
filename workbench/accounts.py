"""People: creating them, their role, and one-time sign-in links."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import transaction
from django.utils import timezone

from workbench.kernel.roles import Role, role_of
from workbench.models import SignInLink
from workbench.trail import record_event

LINK_LIFETIME = timedelta(hours=24)


class NameTaken(Exception):
    """A user of this name exists."""


class LinkFault(StrEnum):
    """Why a sign-in link doesn't work."""

    UNKNOWN = "unknown"
    USED = "used"
    EXPIRED = "expired"
    INACTIVE = "inactive"


class LinkInvalid(Exception):
    """The sign-in link can't be redeemed; ``fault`` says why."""

    def __init__(self, fault: LinkFault) -> None:
        super().__init__(f"the sign-in link can't be used: {fault.value}")
        self.fault = fault


def create_user(*, name: str, role: Role | None, at: datetime, actor: Any = None) -> Any:
    """Return a new user of ``role`` who can sign in by link only, until a password is set.

    Raises:
        NameTaken: the name is in use.
        ValidationError: it isn't a user name: letters, digits and @ . + - _ only.
    """
    users = get_user_model()
    users(username=name).clean_fields(exclude={"password"})
    with transaction.atomic():
        if users.objects.filter(username=name).exists():
            raise NameTaken(f"there is a user '{name}' already")
        user = users.objects.create_user(username=name)
        record_event(actor=actor, verb="user.created", subject=name, at=at)
        if role:
            set_role(user=user, role=role, at=at, actor=actor)
    return user


def ensure_user(*, name: str, role: Role) -> Any:
    """Return the user of this name with this role, created where there is none."""
    at = timezone.now()
    with transaction.atomic():
        user = get_user_model().objects.filter(username=name).first()
        if user is None:
            return create_user(name=name, role=role, at=at)
        if role_of(user) is not role:
            set_role(user=user, role=role, at=at)
    return user


def set_role(*, user: Any, role: Role, at: datetime, actor: Any = None) -> None:
    """Make ``role`` the one role of ``user``."""
    with transaction.atomic():
        group, _ = Group.objects.get_or_create(name=role.value)
        user.groups.remove(*user.groups.filter(name__in=list(Role)))
        user.groups.add(group)
        user.__dict__.pop("_role", None)
        record_event(
            actor=actor, verb="user.role_set", subject=user.get_username(), reason=role, at=at
        )


def create_sign_in_link(*, user: Any, now: datetime, lifetime: timedelta = LINK_LIFETIME) -> str:
    """Return the token of a new link that signs ``user`` in once, until ``now + lifetime``.

    The token is returned here and nowhere else: only its hash is stored.
    """
    token = secrets.token_urlsafe(32)
    SignInLink.objects.create(user=user, token_sha256=_digest(token), expires_at=now + lifetime)
    return token


def link_fault(*, token: str, now: datetime) -> LinkFault | None:
    """Return why ``token`` can't be redeemed at ``now``, or None; nothing is changed."""
    link = SignInLink.objects.select_related("user").filter(token_sha256=_digest(token)).first()
    if link is None:
        return LinkFault.UNKNOWN
    if link.used_at is not None:
        return LinkFault.USED
    if link.expires_at <= now:
        return LinkFault.EXPIRED
    return None if link.user.is_active else LinkFault.INACTIVE


def redeem(*, token: str, now: datetime) -> Any:
    """Spend the link of ``token`` and return its user; of two at once exactly one succeeds.

    Raises:
        LinkInvalid: it is unknown, used or expired, or its user is inactive.
    """
    fault = link_fault(token=token, now=now)
    if fault:
        raise LinkInvalid(fault)
    with transaction.atomic():
        link = SignInLink.objects.filter(token_sha256=_digest(token))
        # The condition is on the row's own columns, so that PostgreSQL checks it again
        # under the row's lock; a join here would let two redeem at once.
        if not link.filter(used_at=None).update(used_at=now):
            raise LinkInvalid(LinkFault.USED)
        user = link.select_related("user").get().user
        record_event(actor=user, verb="user.signed_in_by_link", subject=user.username, at=now)
    return user


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
