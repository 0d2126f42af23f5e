"""Keys to the API: a person's, named, limited to scopes, revocable. Only hashes are stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.authentication import SessionAuthentication as RestSessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from workbench.kernel.roles import Role, role_of
from workbench.kernel.texts import UNSEEN_REFUSED, has_unseen
from workbench.models import ApiToken
from workbench.trail import record_event

PREFIX = "wb_"
SHOWN = 9
LONGEST_NAME = 100
# One write a minute is enough to say when a token was last used.
LAST_USED_STEP = timedelta(minutes=1)
MOST_LIVE = 50


class Scope(StrEnum):
    """What a token may be used for; it never does more than its person may."""

    READ = "read"
    WRITE = "write"
    PEOPLE = "people"


# What the API has for a role. Raters' work is on pages only.
SCOPES_OF: Mapping[Role | None, tuple[Scope, ...]] = {
    Role.ADMIN: tuple(Scope),
    Role.LEAD: tuple(Scope),
}


class TokenRefused(Exception):
    """The token can't be made; ``field`` is what is wrong, and the text says why."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class TokenMissing(Exception):
    """The person has no such token."""


def scopes_of(user: Any) -> tuple[Scope, ...]:
    """Return the scopes that a token of ``user`` may have; none where they may have no token."""
    return SCOPES_OF.get(role_of(user), ())


def tokens_of(user: Any) -> QuerySet[ApiToken]:
    """Return all tokens of ``user``, ended ones too."""
    return ApiToken.objects.filter(user=user)


def is_live(token: ApiToken, *, now: datetime) -> bool:
    """Return whether ``token`` opens anything at ``now``."""
    return token.revoked_at is None and (token.expires_at is None or token.expires_at > now)


def create_token(
    *,
    user: Any,
    name: str,
    scopes: Sequence[Scope],
    at: datetime,
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """Return a new token's row and its text, which is shown here and nowhere else.

    Raises:
        TokenRefused: it has no name, or one with characters that aren't seen; no scope, or one
            that the person's role doesn't have; it ends in the past; or 50 live ones are there.
    """
    name = name.strip()
    if not 0 < len(name) <= LONGEST_NAME:
        raise TokenRefused("name", f"Name it in 1 to {LONGEST_NAME} characters.")
    if has_unseen(name):
        raise TokenRefused("name", UNSEEN_REFUSED)
    allowed = scopes_of(user)
    if not scopes:
        raise TokenRefused("scopes", "Choose at least one scope.")
    if beyond := [scope.value for scope in scopes if scope not in allowed]:
        raise TokenRefused("scopes", f"Your role has no scope {', '.join(beyond)}.")
    if expires_at is not None and expires_at <= at:
        raise TokenRefused("expires_at", "The end must be in the future.")
    text = PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        # Locked, so that none is made beside a deactivation that ends them all.
        if not get_user_model().objects.select_for_update().get(pk=user.pk).is_active:
            raise TokenRefused("name", "You are deactivated.")
        if tokens_of(user).filter(_live(at)).count() >= MOST_LIVE:
            raise TokenRefused("name", f"You have {MOST_LIVE} tokens; revoke one first.")
        token = ApiToken.objects.create(
            user=user,
            name=name,
            token_sha256=_digest(text),
            beginning=text[:SHOWN],
            scopes=[scope.value for scope in Scope if scope in scopes],
            created_at=at,
            expires_at=expires_at,
        )
        record_event(actor=user, verb="token.created", subject=_subject(token), at=at)
    return token, text


def revoke_token(*, user: Any, uid: UUID, at: datetime) -> None:
    """End a token of ``user``'s own; revoking it again changes nothing.

    Raises:
        TokenMissing: they have no such token.
    """
    with transaction.atomic():
        token = tokens_of(user).filter(uid=uid).first()
        if token is None:
            raise TokenMissing
        if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=at):
            record_event(actor=user, verb="token.revoked", subject=_subject(token), at=at)


class BearerAuthentication(BaseAuthentication):
    """``Authorization: Bearer wb_...``; ``request.auth`` is then the ApiToken."""

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        header = get_authorization_header(request).split()
        if not header or header[0].lower() != b"bearer":
            return None
        if len(header) != 2:
            raise AuthenticationFailed("Write the header as: Authorization: Bearer TOKEN")
        now = timezone.now()
        digest = _digest(header[1].decode(errors="replace"))
        token = (
            ApiToken.objects.select_related("user").filter(_live(now), token_sha256=digest).first()
        )
        if token is None or not token.user.is_active:
            raise AuthenticationFailed("This token isn't valid: unknown, revoked or expired.")
        if token.last_used_at is None or now - token.last_used_at >= LAST_USED_STEP:
            # The condition again, for those who came at the same moment.
            stale = Q(last_used_at=None) | Q(last_used_at__lte=now - LAST_USED_STEP)
            ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class SessionAuthentication(RestSessionAuthentication):
    """A page's session; what changes something names the form token in a header."""

    def enforce_csrf(self, request: Request) -> None:
        """Refuse a request without the token; its body, which might hold one, is left unread."""
        sent = request._request
        method = sent.method
        if method == "POST":
            # Of a POST alone Django would read the form; its size and sender aren't judged yet.
            sent.method = "PUT"
        try:
            super().enforce_csrf(request)
        finally:
            sent.method = method


def _live(now: datetime) -> Q:
    return Q(revoked_at=None) & (Q(expires_at=None) | Q(expires_at__gt=now))


def _subject(token: ApiToken) -> str:
    return f"{token.user.get_username()}: {token.name}"[:200]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
