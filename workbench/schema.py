"""The API's description (OpenAPI): what every operation has is added here, once.

Of an endpoint it takes the URL's name, the docstrings, the serializers named by
``@extend_schema`` and, for a list, ``@listing_schema``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import (
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    inline_serializer,
)
from rest_framework import serializers

from workbench.idempotency import HEADER, LONGEST_KEY
from workbench.kernel.lists import DEFAULT_SIZE, LARGEST_SIZE, Listing

PREFIX = "api/v1/"
MARK = "api-"


class ErrorOutput(serializers.Serializer[Any]):
    """The shape of every error."""

    error = serializers.CharField(help_text="a code for programs")
    message = serializers.CharField(help_text="a sentence for people")
    fields = serializers.DictField(  # type: ignore[assignment]
        child=serializers.ListField(child=serializers.CharField()),
        help_text="what is wrong, by field or parameter; '' is the whole body",
    )


_ERRORS: Mapping[int, str] = {
    400: "It can't be read, or some of it can't be used; see `fields`.",
    401: "Not signed in: no token or session, or one that isn't valid.",
    403: "Not open to your role, or to this token's scopes.",
    404: "There is nothing at this address.",
    409: "The thing isn't in a state in which this can be done, or the key is in use.",
    413: "The body is too long.",
    415: "The body is of a kind that isn't taken here.",
    429: "Too many requests; see the header `Retry-After`.",
}
_OF_WRITES = (409, 413, 415)


class ApiSchema(AutoSchema):
    """How one operation is described."""

    def get_operation_id(self) -> str:
        """Return a name that stays while the URL's name does: ``experiment_report_get``."""
        return f"{self._name()}_{self.method.lower()}"

    def get_tags(self) -> list[str]:
        return [self.path.strip("/").removeprefix(PREFIX).split("/")[0]]

    def get_summary(self) -> str | None:
        return self._doc()[0]

    def get_description(self) -> str:  # type: ignore[override]
        return self._doc()[1]

    def get_override_parameters(self) -> list[Any]:
        found = super().get_override_parameters()
        if self.method not in ("GET", "HEAD"):
            key = {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY}
            found.append(
                OpenApiParameter(
                    HEADER,
                    {**key, "pattern": "^[!-~]+$"},
                    OpenApiParameter.HEADER,
                    description="Sent again with the same key, the write isn't done again: "
                    "the first answer is given.",
                )
            )
        return found

    def _get_response_bodies(self, direction: Any = "response") -> Any:
        found = super()._get_response_bodies(direction)
        wanted = [400, 401, 403, 429]
        named = [one for one in self._get_parameters() if one.get("required")]
        wanted += [404] if any(one["in"] in ("path", "query") for one in named) else []
        wanted += _OF_WRITES if self.method not in ("GET", "HEAD") else ()
        for status in sorted(wanted):
            if str(status) not in found:
                described = OpenApiResponse(ErrorOutput, description=_ERRORS[status])
                found[str(status)] = self._get_response_for_code(
                    described, str(status), ["application/json"], direction
                )
        return dict(sorted(found.items()))

    def _name(self) -> str:
        name = _names_by_route().get(self.path_regex, self.path_regex)
        return name.removeprefix(MARK).replace("-", "_")

    def _doc(self) -> tuple[str, str]:
        """Return the docstring's first paragraph without its full stop, and the rest."""
        first, _, rest = super().get_description().strip().partition("\n\n")
        summary, semicolon, more = " ".join(first.split()).partition("; ")
        if semicolon:
            rest = f"{more[:1].upper()}{more[1:]}\n\n{rest}".strip()
        return summary.rstrip("."), rest


class BearerScheme(OpenApiAuthenticationExtension):
    """How a token is sent."""

    target_class = "workbench.tokens.BearerAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "wb_..."}


class SessionScheme(OpenApiAuthenticationExtension):
    """How the pages are signed in."""

    target_class = "workbench.tokens.SessionAuthentication"
    name = "session"
    priority = 1

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:
        return {"type": "apiKey", "in": "cookie", "name": "workbench_session"}


def listing_schema(
    listing: Listing, output: type[serializers.Serializer[Any]], **more: Any
) -> Callable[[Any], Any]:
    """Describe a list: its filters, sorts and pages. For the method that returns ``listed``.

    Args:
        more: further arguments of ``extend_schema``.
    """
    sorts = [f"{sign}{name}" for name in listing.sorts for sign in ("", "-")]
    own = [
        OpenApiParameter(
            "cursor",
            str,
            description="Where the page begins; taken from `next` of the page before it.",
        ),
        OpenApiParameter(
            "sort",
            str,
            enum=sorts,
            default=listing.default_sort,
            description="The order; `-` before a name turns it around.",
        ),
        OpenApiParameter(
            "limit",
            {
                "type": "integer",
                "minimum": 1,
                "maximum": LARGEST_SIZE,
                "default": DEFAULT_SIZE,
            },
            description="The most rows on a page.",
        ),
    ]
    filters = [
        OpenApiParameter(
            name,
            str,
            enum=one.choices or None,
            description=one.meaning or f"Only those with this {name}.",
        )
        for name, one in listing.filters.items()
    ]
    return extend_schema(parameters=[*filters, *own], responses=_page(output), **more)


@functools.cache
def _page(output: type[serializers.Serializer[Any]]) -> Any:
    return inline_serializer(
        f"{output.__name__.removesuffix('Output')}PageOutput",
        {
            "results": output(many=True),
            "next": serializers.CharField(
                allow_null=True, help_text="address of the next page; null on the last one"
            ),
        },
    )


@functools.cache
def _names_by_route() -> Mapping[str, str]:
    """Return the names of the URLs by their routes, as drf-spectacular writes them."""
    found: dict[str, str] = {}

    def walk(resolver: URLResolver, prefix: str) -> None:
        for entry in resolver.url_patterns:
            route = prefix + str(entry.pattern)
            if isinstance(entry, URLResolver):
                walk(entry, route)
            elif isinstance(entry, URLPattern) and entry.name:
                found[route] = entry.name

    walk(get_resolver(), "")
    return found
