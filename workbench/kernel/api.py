"""What every JSON endpoint shares: the error shape, strict bodies and strict queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import IO, Any, NoReturn

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404
from django.utils.http import parse_header_parameters
from rest_framework import serializers, status
from rest_framework.exceptions import (
    APIException,
    AuthenticationFailed,
    MethodNotAllowed,
    NotAuthenticated,
    ParseError,
    Throttled,
    UnsupportedMediaType,
    ValidationError,
)
from rest_framework.exceptions import NotFound as ApiNotFound
from rest_framework.exceptions import PermissionDenied as ApiDenied
from rest_framework.parsers import JSONParser
from rest_framework.response import Response

NOT_FOUND = "There is nothing at this address."
UNEXPECTED = "Something failed that nobody foresaw; the server's log has it."
TOO_LARGE = "The body is larger than this address takes."
# What 64 bits hold; no column holds more.
LARGEST_INTEGER = 2**63 - 1
DEEPEST = 64
# Of what was sent without being known an answer repeats only this much.
MOST_SHOWN = 20
LONGEST_SHOWN = 100
# Text that can't be stored: NUL (PostgreSQL has none), and halves of a UTF-16 pair.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_CODES: tuple[tuple[type[Exception], str], ...] = (
    (ValidationError, "invalid"),
    (ParseError, "unreadable"),
    (NotAuthenticated, "not_signed_in"),
    (AuthenticationFailed, "not_signed_in"),
    (ApiDenied, "forbidden"),
    (PermissionDenied, "forbidden"),
    (ApiNotFound, "not_found"),
    (Http404, "not_found"),
    (MethodNotAllowed, "method_not_allowed"),
    (UnsupportedMediaType, "unsupported_media_type"),
    (Throttled, "too_many_requests"),
)


class Conflict(APIException):
    """The thing isn't in a state in which this can be done."""

    status_code = status.HTTP_409_CONFLICT
    default_code = "conflict"


class TooLarge(APIException):
    """The body has more bytes than the address takes."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_code = "too_large"
    default_detail = TOO_LARGE


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
    elif isinstance(error, RequestDataTooBig):
        error = TooLarge()
    if not isinstance(error, APIException):
        return None
    code = next((code for kind, code in _CODES if isinstance(error, kind)), error.default_code)
    headers = {}
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(context["view"].allowed_methods)
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if (wait := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(int(wait))
    return Response(
        error_body(code, _message(error), _fields(error)),
        status=error.status_code,
        headers=headers,
    )


class StrictJSONParser(JSONParser):
    """JSON that means one thing and can be stored: the same for every reader of it.

    UTF-8 alone; no name twice in an object, no NaN, no NUL or half of a UTF-16 pair in a text,
    no integer beyond 64 bits, at most ``DEEPEST`` levels.
    """

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the plain values of the body.

        Raises:
            UnsupportedMediaType: it names a charset other than UTF-8.
            ParseError: it isn't such JSON; the text says where or why.
        """
        # As it was sent: Django forgets a charset that it doesn't know.
        charset = parse_header_parameters(media_type or "")[1].get("charset", "utf-8")
        if charset.lower().replace("_", "-") not in ("utf-8", "utf8", "us-ascii"):
            raise UnsupportedMediaType(media_type or "", detail="JSON is read as UTF-8 alone.")
        try:
            data = json.loads(
                stream.read().decode(),
                object_pairs_hook=_object,
                parse_constant=_refuse_constant,
                parse_float=_finite,
            )
        except UnicodeDecodeError as error:
            raise ParseError("The body isn't UTF-8.") from error
        except RecursionError as error:
            raise ParseError(f"The body has more than {DEEPEST} levels.") from error
        except ValueError as error:
            raise ParseError(f"The body isn't JSON that can be used: {error}.") from error
        _check(data)
        return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{_shown(name)} stands twice")
        found[name] = value
    return found


def _shown(name: str) -> str:
    """Return a name that was sent, quoted, and cut where an answer would only repeat it."""
    return repr(name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}...")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text[:20]} is too large a number")
    return number


def _check(data: Any) -> None:
    """Refuse what no column holds, level by level: a deep body costs no deep stack."""
    level: list[Any] = [data]
    for _ in range(DEEPEST + 1):
        for value in level:
            if isinstance(value, str) and _UNSTORABLE.search(value):
                raise ParseError("A NUL or half a character is no part of any text.")
            if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
                raise ParseError("An integer in the body has more than 64 bits.")
        level = [one for value in level for one in _inside(value)]
        if not level:
            return
    raise ParseError(f"The body has more than {DEEPEST} levels.")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else ()


def single_values(query: Mapping[str, Any]) -> dict[str, str]:
    """Return each parameter's value.

    Raises:
        ValidationError: one is given more than once: which of them counts would be a guess.
    """
    getlist = getattr(query, "getlist", None)
    if getlist:
        query.looked_at = True  # type: ignore[attr-defined]
        twice = [name for name in query if len(getlist(name)) > 1][:MOST_SHOWN]
        if twice:
            raise ValidationError(
                {name[:LONGEST_SHOWN]: ["it stands more than once"] for name in twice}
            )
    return dict(query.items())


class NoParameters(serializers.Serializer[Any]):
    """The query of an address that takes none."""


def checked_query(
    query: Mapping[str, Any], serializer: type[serializers.Serializer[Any]]
) -> dict[str, Any]:
    """Return the validated query parameters.

    Raises:
        ValidationError: a value is wrong, or a parameter isn't one of the serializer's: what
            is not named here can't reach a query.
    """
    given = serializer(data=single_values(query))
    known_fields_only(query, given)
    given.is_valid(raise_exception=True)
    return dict(given.validated_data)


def known_fields_only(data: Mapping[str, Any], serializer: serializers.BaseSerializer[Any]) -> None:
    """Refuse names that the serializer doesn't have.

    Raises:
        ValidationError: naming the first ``MOST_SHOWN`` and what is known.
    """
    known = [name for name, field in serializer.fields.items() if not field.read_only]  # type: ignore[attr-defined]
    unknown = [name for name in data if name not in known]
    if not unknown:
        return
    said = f"unknown; known: {', '.join(known) or 'nothing'}"
    faults = {name[:LONGEST_SHOWN]: [said] for name in unknown[:MOST_SHOWN]}
    if len(unknown) > MOST_SHOWN:
        faults[""] = [f"and {len(unknown) - MOST_SHOWN:,} more unknown names"]
    raise ValidationError(faults)


def _message(error: APIException) -> str:
    if isinstance(error, ValidationError):
        return "Some of what was sent can't be used; see fields."
    return str(error.detail)


def _fields(error: APIException) -> dict[str, list[str]]:
    if not isinstance(error, ValidationError):
        return {}
    return _by_path(error.detail, "")


def _by_path(detail: Any, path: str) -> dict[str, list[str]]:
    """Return what is said of each field; one inside another is named ``rows.3.task``."""
    if isinstance(detail, Mapping):
        inside = [(str(name), said) for name, said in detail.items()]
    elif isinstance(detail, list) and any(isinstance(item, Mapping | list) for item in detail):
        # A list of errors by place in a list that was sent; {} stands for no error.
        inside = [(str(place), said) for place, said in enumerate(detail)]
    else:
        return {path: [str(item) for item in (detail if isinstance(detail, list) else [detail])]}
    found: dict[str, list[str]] = {}
    for name, said in inside:
        found |= _by_path(said, f"{path}.{name}" if path else name)
    return found
