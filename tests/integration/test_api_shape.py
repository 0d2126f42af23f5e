"""The JSON side: one shape for every error, and answers that hold what they promise."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import jsonschema
import pytest
from django.http import Http404
from django.test import Client
from django.urls import reverse
from rest_framework import exceptions
from rest_framework.views import APIView

from runs.services.reporting import report_of
from tests.factories import NOW, finished_experiment, make_experiment, make_library, make_user
from tests.integration.test_pages import ROOT
from workbench.kernel.api import Conflict, exception_handler
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db

LIST = "/api/v1/experiments/"


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


def error(client: Client, url: str, status: int, method: str = "get") -> dict[str, Any]:
    response = getattr(client, method)(url)
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    body: dict[str, Any] = response.json()
    assert set(body) == {"error", "message", "fields"}
    assert isinstance(body["error"], str)
    assert isinstance(body["message"], str)
    assert all(isinstance(said, list) for said in body["fields"].values())
    return body


def test_every_error_has_one_shape(client: Client) -> None:
    assert error(client, LIST, 401)["error"] == "not_signed_in"
    client.force_login(make_user("ann", Role.ANNOTATOR))
    assert error(client, LIST, 403)["error"] == "forbidden"
    client.force_login(make_user("lee", Role.LEAD))
    assert error(client, LIST + "none/report/", 404)["error"] == "not_found"
    assert error(client, "/api/v1/nothing/", 404)["error"] == "not_found"
    assert error(client, LIST, 405, "post")["error"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("limit=201", "limit"),
        ("before=panel", "before"),
        ("cursor=a b", "cursor"),
        ("status=great", "status"),
        ("status=running&status=paused", "status"),
        ("sort=author", "sort"),
        ("ordering=cells__pairs__task__checker", "ordering"),
        ("assigned_to__password__startswith=a", "assigned_to__password__startswith"),
    ],
)
def test_a_parameter_that_is_not_offered_is_refused_by_name(
    lead: Client, query: str, field: str
) -> None:
    body = error(lead, f"{LIST}?{query}", 400)
    assert body["error"] == "invalid"
    assert list(body["fields"]) == [field]


def test_a_refusal_says_nothing_about_what_exists(client: Client) -> None:
    make_experiment("panel")
    client.force_login(make_user("ann", Role.ANNOTATOR))
    known = client.get(LIST + "panel/report/")
    unknown = client.get(LIST + "nothing/report/")
    assert (known.status_code, known.content) == (unknown.status_code, unknown.content)


@pytest.mark.parametrize(
    ("raised", "code", "status"),
    [
        (Http404(), "not_found", 404),
        (exceptions.ParseError(), "unreadable", 400),
        (exceptions.UnsupportedMediaType("text/xml"), "unsupported_media_type", 415),
        (Conflict("it was changed meanwhile"), "conflict", 409),
        (exceptions.ValidationError(["one", "two"]), "invalid", 400),
        (exceptions.ValidationError({"a": "one"}), "invalid", 400),
    ],
)
def test_the_handler_shapes_what_is_anticipated(raised: Exception, code: str, status: int) -> None:
    response = exception_handler(raised, {"view": APIView()})
    assert response is not None
    assert response.status_code == status
    assert response.data["error"] == code
    assert set(response.data) == {"error", "message", "fields"}


def test_the_handler_leaves_faults_of_ours_alone() -> None:
    assert exception_handler(RuntimeError("bug"), {"view": APIView()}) is None


def test_experiments_are_listed_newest_first_and_paged_by_key(lead: Client) -> None:
    library = make_library()
    for day, slug in enumerate(("one", "two", "three")):
        make_experiment(slug, library=library, created_at=NOW + timedelta(days=day))
    url, seen = LIST + "?limit=2", []
    while url:
        body = lead.get(url).json()
        assert set(body) == {"results", "next"}
        seen += [experiment["slug"] for experiment in body["results"]]
        url = body["next"]
    assert seen == ["three", "two", "one"]
    (last,) = body["results"]
    assert set(last) == {
        "uid", "slug", "status", "reason", "origin", "author", "created_at", "started_at",
        "ended_at", "links",
    }  # fmt: skip
    assert last["created_at"] == "2026-03-02T09:30:00Z"
    assert last["started_at"] is None
    assert last["links"]["report"] == reverse("api-experiment-report", kwargs={"slug": "one"})
    assert [one["slug"] for one in lead.get(LIST + "?sort=slug").json()["results"]] == [
        "one",
        "three",
        "two",
    ]
    assert lead.get(LIST + "?status=running").json() == {"results": [], "next": None}


def test_the_report_is_the_one_of_the_pages_and_keeps_to_its_schema(lead: Client) -> None:
    experiment = finished_experiment("panel", retrieved="abccdb", skipped="ad")
    body = lead.get(LIST + "panel/report/").json()
    assert body == report_of(experiment)
    schema = json.loads(ROOT.joinpath("docs/report-schema.json").read_text())
    jsonschema.validate(body, schema)


def test_a_change_needs_the_forms_token_even_with_a_session() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("lee", Role.LEAD))
    assert client.post(LIST).status_code == 403
