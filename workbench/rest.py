"""The base of every JSON endpoint: roles and scopes, strict bodies, lists, writes done once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import APIView

from workbench import idempotency
from workbench.kernel.api import Conflict, known_fields_only
from workbench.kernel.lists import BadListQuery, Listing, page_of
from workbench.kernel.roles import UNBLINDED, Role, role_of
from workbench.models import ApiToken
from workbench.tokens import Scope

KEY_HEADER = "Idempotency-Key"
SAFE = ("GET", "HEAD", "OPTIONS")


class RoleAndScope(BasePermission):
    """The endpoint's roles, and where a token is used, its scope."""

    message = "This is not open to your role, or to this token's scopes."

    def has_permission(self, request: Request, view: Any) -> bool:
        if role_of(request.user) not in view.roles:
            return False
        scope = Scope.READ if request.method in SAFE else view.write_scope
        token: ApiToken | Any = request.auth
        return token is None or scope.value in token.scopes


class Endpoint(APIView):
    """What an endpoint of the workbench inherits.

    Attributes:
        roles: who may use it.
        write_scope: what a token needs for methods that change something.
        hash_body: False where the body is a file too large to be read for its hash.
    """

    roles: tuple[Role, ...] = UNBLINDED
    write_scope: Scope = Scope.WRITE
    hash_body = True
    permission_classes = (RoleAndScope,)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check who asks; give the first answer again where the request was sent before."""
        super().initial(request, *args, **kwargs)
        key = request.headers.get(KEY_HEADER, "")
        if not key or request.method in SAFE:
            return
        if len(key) > idempotency.LONGEST_KEY:
            raise ValidationError(
                {KEY_HEADER: [f"it may have {idempotency.LONGEST_KEY} characters"]}
            )
        body = request._request.body if self.hash_body else b""
        parts = [
            str(request.method),
            request.get_full_path(),
            request.headers.get("Content-Length", ""),
        ]
        digest = hashlib.sha256("\0".join(parts).encode() + b"\0" + body).hexdigest()
        try:
            before = idempotency.begin(
                user=request.user, key=key, request_sha256=digest, at=timezone.now()
            )
        except (idempotency.KeyReused, idempotency.KeyInUse) as refused:
            raise Conflict(str(refused)) from refused
        if before:
            raise _AnsweredBefore(before)
        self._key = key

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, _AnsweredBefore):
            return Response(exc.answer.body, status=exc.answer.status)
        try:
            return super().handle_exception(exc)
        except BaseException:
            self._release()
            raise

    def finalize_response(
        self, request: Any, response: Response, *args: Any, **kwargs: Any
    ) -> Response:
        final = super().finalize_response(request, response, *args, **kwargs)
        if key := getattr(self, "_key", ""):
            if isinstance(final, Response) and final.status_code < 500:
                idempotency.finish(
                    user=self.request.user,
                    key=key,
                    status=final.status_code,
                    body=_plain(final.data),
                )
            else:
                self._release()
        return final

    def _release(self) -> None:
        if key := getattr(self, "_key", ""):
            idempotency.release(user=self.request.user, key=key)


class _AnsweredBefore(Exception):
    def __init__(self, answer: idempotency.Answer) -> None:
        self.answer = answer


def checked_body(request: Request, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
    """Return the validated body.

    Raises:
        ValidationError: a value is wrong, or a field isn't one of the serializer's: what is not
            named there can't be set.
    """
    data = request.data
    if not isinstance(data, Mapping):
        raise ValidationError({"": ["the body must be a JSON object"]})
    given = serializer(data=data)
    known_fields_only(data, given)
    given.is_valid(raise_exception=True)
    return dict(given.validated_data)


def listed(
    request: Request,
    queryset: QuerySet[Any],
    *,
    listing: Listing,
    output: type[serializers.Serializer[Any]],
) -> Response:
    """Return one page: ``{"results": [...], "next": address or null}``.

    Raises:
        ValidationError: a parameter or value that the listing doesn't have.
    """
    try:
        page = page_of(queryset, listing=listing, query=request.query_params)
    except BadListQuery as bad:
        raise ValidationError({name: [reason] for name, reason in bad.fields.items()}) from bad
    here = request.path
    return Response(
        {
            "results": output(page.rows, many=True).data,
            "next": f"{here}?{page.next_query}" if page.next_query else None,
        }
    )


def _plain(data: Any) -> Any:
    """Return response data as plain JSON values."""
    return json.loads(json.dumps(data, cls=JSONEncoder))
