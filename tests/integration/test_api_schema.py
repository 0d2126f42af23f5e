"""The API keeps to its description: complete, and true of what is answered.

Every operation is found in the description, so a new endpoint is tested as soon as it has a URL;
what its address names is taken from the role matrix (``arguments``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from django.core.management import call_command
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from django.test import Client
from django.utils import timezone
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks

from tests.architecture.test_urls import arguments
from tests.factories import finished_experiment, make_user
from workbench.kernel.roles import Role
from workbench.schema import MARK, _names_by_route
from workbench.tokens import Scope, create_token
from workbench.wsgi import application

METHODS = ("get", "post", "put", "patch", "delete")
# For each operation: so many requests that fit the description, and so many that don't.
EXAMPLES = 4
FEW = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# What a token may never do, whatever its scopes: make another one.
OF_PEOPLE_ALONE = ("tokens_post",)
CHECKS: list[Any] = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


def description() -> dict[str, Any]:
    found: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return found


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield path, method and description of every operation."""
    for path, methods in description()["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, method, methods[method]


def addresses() -> dict[str, tuple[str, str]]:
    """Return path and method of every operation, by its id."""
    return {found["operationId"]: (path, method) for path, method, found in operations()}


@pytest.fixture
def one_connection() -> Iterator[None]:
    """Keep the test's connection open between requests, as Django's own test client does."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def token(db: None) -> str:
    """Return an admin's token that may do everything."""
    user = make_user("root", Role.ADMIN)
    _, text = create_token(user=user, name="t", scopes=list(Scope), at=timezone.now())
    return text


def real_parameters() -> Mapping[str, Mapping[str, str]]:
    """Return what each operation's address names, of things that exist."""
    named = arguments(finished_experiment("panel", retrieved="abcd", skipped="ad"))
    names = {
        re.sub(r"<\w+:(\w+)>", r"{\1}", f"/{route}"): name
        for route, name in _names_by_route().items()
        if name.startswith(MARK)
    }
    return {
        operation: {key: str(value) for key, value in named.get(names[path], {}).items()}
        for operation, (path, _) in addresses().items()
    }


def address_of(path: str, parameters: Mapping[str, str]) -> str:
    """Return the address; what the matrix doesn't name yet is not there."""
    return re.sub(r"{(\w+)}", lambda name: parameters.get(name[1], "absent"), path)


# --- the description --------------------------------------------------------------


def test_the_description_is_valid_and_made_without_a_warning() -> None:
    call_command("spectacular", validate=True, fail_on_warn=True, file="/dev/null")


def test_every_operation_says_what_it_does() -> None:
    ids, summaries = [], []
    for path, method, found in operations():
        where = f"{method} {path}"
        assert found["summary"], where
        assert len(found["summary"]) <= 120, where
        assert found["tags"], where
        assert found["security"] == [{"bearer": []}, {"session": []}], where
        error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorOutput"}}}
        wanted = {"400", "401", "403", "429"} | ({"404"} if "{" in path else set())
        wanted |= {"409", "413", "415"} if method != "get" else set()
        for status in wanted:
            assert found["responses"][status]["content"] == error, (where, status)
        sent = {one["name"] for one in found.get("parameters", ())}
        assert ("Idempotency-Key" in sent) is (method != "get"), where
        ids.append(found["operationId"])
        summaries.append((path, found["summary"]))
    assert len(set(ids)) == len(ids)
    # Two methods of one address that say the same say nothing.
    assert sorted(set(summaries)) == sorted(summaries)


def test_every_list_is_described_with_its_pages() -> None:
    for path, method, found in operations():
        answer = found["responses"].get("200", {}).get("content", {}).get("application/json")
        name = str((answer or {}).get("schema", {}).get("$ref", ""))
        if method == "get" and name.endswith("PageOutput"):
            sent = {one["name"] for one in found["parameters"]}
            assert {"cursor", "sort", "limit"} <= sent, path


def test_what_is_sent_and_what_is_answered_are_named_apart() -> None:
    """No component is a model's: each is an endpoint's own Input or Output."""
    error = description()["components"]["schemas"]["ErrorOutput"]
    assert set(error["properties"]) == {"error", "message", "fields"}


@pytest.mark.django_db
def test_the_description_is_for_those_who_see_results(client: Client) -> None:
    for path in ("/api/v1/schema/", "/api/v1/docs/"):
        client.logout()
        assert client.get(path).status_code in (302, 401)
        client.force_login(make_user(f"ann{len(path)}", Role.ANNOTATOR))
        assert client.get(path).status_code == 403
        client.force_login(make_user(f"lee{len(path)}", Role.LEAD))
        assert client.get(path).status_code == 200
    found = client.get("/api/v1/schema/")
    assert found.json()["openapi"].startswith("3.")
    found = client.get("/api/v1/schema/?format=yaml")
    assert (found["Content-Type"], found.content[:8]) == ("application/yaml", b"openapi:")
    assert client.get("/api/v1/schema/?format=xml").status_code == 400


def test_the_page_of_the_description_brings_no_code_of_its_own(client: Client, db: None) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    response = client.get("/api/v1/docs/")
    html = response.content.decode()
    assert "script-src 'self';" in response["Content-Security-Policy"] + ";"
    assert "unsafe" not in response["Content-Security-Policy"]
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\bstyle=|\son\w+=", html)
    for address in re.findall(r'(?:src|href)="(/static/[^"]+)"', html):
        assert client.get(address).status_code == 200, address


def test_an_unknown_parameter_is_refused_by_name_everywhere(token: str) -> None:
    client = Client(headers={"Authorization": f"Bearer {token}"})
    needed = real_parameters()
    wrong = {}
    for name, (path, method) in addresses().items():
        query = "owner__password__startswith=a"
        address = f"{address_of(path, needed[name])}?{query}"
        response = client.generic(method.upper(), address, b"{}", content_type="application/json")
        fields = response.json().get("fields", {}) if response.status_code == 400 else {}
        # Somebody else's token isn't there, whatever is asked of it.
        if query.split("=")[0] not in fields and response.status_code != 404:
            wrong[name] = f"{response.status_code} {response.content[:200]!r}"
    assert not wrong


# --- what is answered --------------------------------------------------------------


@pytest.mark.usefixtures("one_connection")
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_one_of_those_described(token: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(description())
    schema.app = application
    needed = real_parameters()
    statuses: set[int] = set()
    found: dict[str, str] = {}
    for name, (path, method) in addresses().items():
        operation = schema[path][method]
        takes = operation.body or operation.query or operation.path_parameters
        if mode is GenerationMode.NEGATIVE and not takes:
            continue
        cases = operation.as_strategy(
            generation_mode=mode, path_parameters=dict(needed[name]) or None
        )
        refused = {401} if name in OF_PEOPLE_ALONE else {401, 403}
        try:
            statuses |= statuses_of(cases, token=token, refused=refused)
        except (Exception, BaseExceptionGroup) as failure:
            found[name] = told(failure)
    assert not found, "\n\n".join(f"{name}: {said}" for name, said in found.items())
    assert 400 in statuses
    assert statuses & {200, 201}


def statuses_of(
    cases: SearchStrategy[schemathesis.Case], *, token: str, refused: set[int]
) -> set[int]:
    """Send some of ``cases``; return the statuses that were answered, all as described."""
    statuses = set()
    headers = {"Authorization": f"Bearer {token}"}

    @FEW
    @seed(1)
    @given(case=cases)
    def ask(case: schemathesis.Case) -> None:
        with transaction.atomic():
            # Undone: the next request finds what this one found.
            response = case.call(headers=headers)
            transaction.set_rollback(True)
        statuses.add(response.status_code)
        assert response.status_code not in refused, response.text
        case.validate_response(response, checks=CHECKS, headers=headers)

    ask()
    return statuses


def told(failure: BaseException) -> str:
    """Return what is wrong; failures come in groups."""
    if isinstance(failure, BaseExceptionGroup):
        return "\n".join(told(one) for one in failure.exceptions)
    return f"{type(failure).__name__}: {failure}"[:1200]


def test_a_method_that_is_not_described_is_not_offered(token: str) -> None:
    client = Client(headers={"Authorization": f"Bearer {token}"})
    needed = real_parameters()
    offered: dict[str, set[str]] = {}
    paths = {}
    for name, (path, method) in addresses().items():
        offered.setdefault(path, set()).add(method.upper())
        paths[path] = address_of(path, needed[name])
    for path, methods in offered.items():
        expected = methods | ({"HEAD"} if "GET" in methods else set())
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
            if method not in methods:
                response = client.generic(method, paths[path])
                assert response.status_code == 405, (method, path)
                assert set(response["Allow"].split(", ")) == expected, path
                assert response.json()["error"] == "method_not_allowed"


def test_no_operation_is_open_without_a_valid_token(db: None) -> None:
    needed = real_parameters()
    for name, (path, method) in addresses().items():
        address = address_of(path, needed[name])
        for headers in ({}, {"Authorization": "Bearer wb_wrong"}):
            response = Client(headers=headers).generic(method.upper(), address)
            assert response.status_code == 401, (name, headers)
            assert response["WWW-Authenticate"] == "Bearer"
