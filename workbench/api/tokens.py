"""One's own tokens as JSON."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from workbench import tokens
from workbench.kernel.lists import Listing
from workbench.models import ApiToken
from workbench.rest import Endpoint, checked_body, listed
from workbench.schema import listing_schema
from workbench.tokens import Scope

TOKENS = Listing(
    sorts={"created": "created_at", "name": "name"},
    default_sort="-created",
)
MADE_BY_PEOPLE = (
    "A token makes no tokens: what leaks could otherwise outlive its own revocation. "
    "Make them on the page of your account."
)
SCOPES = tuple(scope.value for scope in Scope)


class TokenInput(serializers.Serializer[Any]):
    """A token to be made."""

    name = serializers.CharField(max_length=tokens.LONGEST_NAME, help_text="what it is for")
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=SCOPES), min_length=1, max_length=len(SCOPES)
    )
    expires_at = serializers.DateTimeField(default=None, allow_null=True)


class TokenOutput(serializers.Serializer[Any]):
    """One token, without its text."""

    uid = serializers.UUIDField()
    name = serializers.CharField()
    beginning = serializers.CharField(help_text="the first characters, to tell it by")
    scopes = serializers.ListField(child=serializers.CharField())
    created_at = serializers.DateTimeField()
    expires_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True, help_text="to the minute")
    revoked_at = serializers.DateTimeField(allow_null=True)


class NewTokenOutput(TokenOutput):
    """A token that was just made, with its text, which is in this answer and in no other."""

    token = serializers.CharField()


class Tokens(Endpoint):
    """List your own tokens, ended ones too."""

    secret_answer = True

    @listing_schema(TOKENS, TokenOutput)
    def get(self, request: Request) -> Response:
        mine = tokens.tokens_of(request.user)
        return listed(request, mine, listing=TOKENS, output=TokenOutput)

    @extend_schema(request=TokenInput, responses={201: NewTokenOutput})
    def post(self, request: Request) -> Response:
        """Make a token; only a signed-in person can."""
        if request.auth is not None:
            raise PermissionDenied(MADE_BY_PEOPLE)
        body = checked_body(request, TokenInput)
        try:
            token, text = tokens.create_token(
                user=request.user,
                name=body["name"],
                scopes=[Scope(scope) for scope in body["scopes"]],
                at=timezone.now(),
                expires_at=body["expires_at"],
            )
        except tokens.TokenRefused as refused:
            raise ValidationError({refused.field: [str(refused)]}) from refused
        return Response({**TokenOutput(token).data, "token": text}, status=201)


class OneToken(Endpoint):
    """Show one of your own tokens."""

    @extend_schema(responses=TokenOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        token: ApiToken | None = tokens.tokens_of(request.user).filter(uid=uid).first()
        if token is None:
            raise Http404
        return Response(TokenOutput(token).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, uid: UUID) -> Response:
        """Revoke it; revoked again it stays as it is."""
        try:
            tokens.revoke_token(user=request.user, uid=uid, at=timezone.now())
        except tokens.TokenMissing as error:
            raise Http404 from error
        return Response(status=204)
