"""What every JSON endpoint shares: the error shape, strict queries and key-set pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework import serializers, status
from rest_framework.exceptions import (
    APIException,
    MethodNotAllowed,
    NotAuthenticated,
    ParseError,
    UnsupportedMediaType,
    ValidationError,
)
from rest_framework.exceptions import NotFound as ApiNotFound
from rest_framework.exceptions import PermissionDenied as ApiDenied
from rest_framework.response import Response

NOT_FOUND = "There is nothing at this address."

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (ValidationError, "invalid"),
    (ParseError, "unreadable"),
    (NotAuthenticated, "not_signed_in"),
    (ApiDenied, "forbidden"),
    (PermissionDenied, "forbidden"),
    (ApiNotFound, "not_found"),
    (Http404, "not_found"),
    (MethodNotAllowed, "method_not_allowed"),
    (UnsupportedMediaType, "unsupported_media_type"),
)


class Conflict(APIException):
    """The thing isn't in a state in which this can be done."""

    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


def error_body(
    code: str, message: str, fields: Mapping[str, list[str]] | None = None
) -> dict[str, Any]:
    """Return the one shape of every JSON error."""
    return {"error": code, "message": message, "fields": dict(fields or {})}


def exception_handler(error: Exception, context: Mapping[str, Any]) -> Response | None:
    """Return the response for an anticipated error; None lets anything else be a 500."""
    if isinstance(error, Http404):
        error = ApiNotFound(NOT_FOUND)
    elif isinstance(error, PermissionDenied):
        error = ApiDenied(str(error) or None)
    if not isinstance(error, APIException):
        return None
    code = next((code for kind, code in _CODES if isinstance(error, kind)), error.default_code)
    headers = {}
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(context["view"].allowed_methods)
    return Response(
        error_body(code, _message(error), _fields(error)),
        status=error.status_code,
        headers=headers,
    )


def checked_query(
    query: Mapping[str, Any], serializer: type[serializers.Serializer[Any]]
) -> dict[str, Any]:
    """Return the validated query parameters.

    Raises:
        ValidationError: a value is wrong, or a parameter isn't one of the serializer's: what
            is not named here can't reach a query.
    """
    given = serializer(data=dict(query.items()))
    known_fields_only(query, given)
    given.is_valid(raise_exception=True)
    return dict(given.validated_data)


def known_fields_only(data: Mapping[str, Any], serializer: serializers.BaseSerializer[Any]) -> None:
    """Refuse names that the serializer doesn't have.

    Raises:
        ValidationError: naming each and what is known.
    """
    known = [name for name, field in serializer.fields.items() if not field.read_only]  # type: ignore[attr-defined]
    unknown = {
        name: [f"unknown; known: {', '.join(known) or 'nothing'}"]
        for name in data
        if name not in known
    }
    if unknown:
        raise ValidationError(unknown)


def _message(error: APIException) -> str:
    if isinstance(error, ValidationError):
        return "Some of what was sent can't be used; see fields."
    return str(error.detail)


def _fields(error: APIException) -> dict[str, list[str]]:
    if not isinstance(error, ValidationError):
        return {}
    detail = error.detail
    if not isinstance(detail, dict):
        return {"": [str(item) for item in detail]}
    return {
        str(name): [str(item) for item in (items if isinstance(items, list) else [items])]
        for name, items in detail.items()
    }
