"""Keys to the API: a person's, named, limited to scopes, revocable. Only hashes are stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db.models import Q
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from workbench.models import ApiToken
from workbench.trail import record_event

PREFIX = "wb_"
SHOWN = 9
# One write a minute is enough to say when a token was last used.
LAST_USED_STEP = timedelta(minutes=1)


class Scope(StrEnum):
    """What a token may be used for; it never does more than its person may."""

    READ = "read"
    WRITE = "write"
    PEOPLE = "people"


def create_token(
    *,
    user: Any,
    name: str,
    scopes: Sequence[Scope],
    at: datetime,
    expires_at: datetime | None = None,
) -> tuple[ApiToken, str]:
    """Return a new token's row and its text, which is shown here and nowhere else."""
    text = PREFIX + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        user=user,
        name=name,
        token_sha256=_digest(text),
        beginning=text[:SHOWN],
        scopes=[scope.value for scope in scopes],
        created_at=at,
        expires_at=expires_at,
    )
    record_event(actor=user, verb="token.created", subject=f"{user.get_username()}: {name}", at=at)
    return token, text


def revoke_token(*, token: ApiToken, actor: Any, at: datetime) -> None:
    """End the token; revoking it again changes nothing."""
    if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=at):
        subject = f"{token.user.get_username()}: {token.name}"
        record_event(actor=actor, verb="token.revoked", subject=subject, at=at)


class BearerAuthentication(BaseAuthentication):
    """``Authorization: Bearer wb_...``; ``request.auth`` is then the ApiToken."""

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        header = get_authorization_header(request).split()
        if not header or header[0].lower() != b"bearer":
            return None
        if len(header) != 2:
            raise AuthenticationFailed("Write the header as: Authorization: Bearer TOKEN")
        now = timezone.now()
        live = Q(expires_at=None) | Q(expires_at__gt=now)
        token = (
            ApiToken.objects.select_related("user")
            .filter(live, token_sha256=_digest(header[1].decode(errors="replace")), revoked_at=None)
            .first()
        )
        if token is None or not token.user.is_active:
            raise AuthenticationFailed("This token isn't valid: unknown, revoked or expired.")
        if token.last_used_at is None or now - token.last_used_at > LAST_USED_STEP:
            ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
