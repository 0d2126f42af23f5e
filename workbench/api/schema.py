"""The API's own description, for programs and for people."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from workbench.kernel.api import checked_query
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only
from workbench.rest import Endpoint


class SchemaInput(serializers.Serializer[Any]):
    """In which form the description is wanted."""

    format = serializers.ChoiceField(choices=("json", "yaml"), default="json")


class Schema(Endpoint):
    """The API's description as OpenAPI 3, in JSON or YAML (``?format=yaml``)."""

    @extend_schema(exclude=True)
    def get(self, request: Request) -> HttpResponse:
        wanted = checked_query(request.query_params, SchemaInput)
        described = SchemaGenerator().get_schema(request=None, public=True)
        if wanted["format"] == "yaml":
            text = OpenApiYamlRenderer().render(described)
            return HttpResponse(text, content_type="application/yaml")
        return HttpResponse(json.dumps(described), content_type="application/json")


@dataclass(frozen=True)
class ApiDocsPage:
    """The API's description to read and to try."""

    schema_url: str


@require_safe
@unblinded_only
def docs(request: HttpRequest) -> HttpResponse:
    """Show the API's description."""
    return render_page(request, "api_docs.html", ApiDocsPage(reverse("api-schema")))
