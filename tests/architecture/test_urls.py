"""Who may do what: every URL of the URLconf, by every method, as every role.

A new URL is a line in MATRIX (what a GET answers), one in POST_MATRIX, PUT_MATRIX, PATCH_MATRIX
or DELETE_MATRIX for each method by which it changes something, and one in ``arguments`` where its
address names a thing. An unlisted URL fails, and so does a method that is offered unlisted.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from runs.models import Experiment
from tests.drafts import make_draft
from tests.factories import (
    cells_of,
    finished_experiment,
    make_export,
    make_job,
    make_user,
    make_webhook,
)
from workbench.kernel.api import NOT_FOUND
from workbench.kernel.roles import Role
from workbench.rest import RoleAndScope
from workbench.tokens import Scope, create_token

pytestmark = pytest.mark.django_db

PEOPLE = ("anonymous", "no role", "annotator", "other annotator", "lead", "admin")
ROLES = {
    "no role": None,
    "annotator": Role.ANNOTATOR,
    "other annotator": Role.ANNOTATOR,
    "lead": Role.LEAD,
    "admin": Role.ADMIN,
}

Row = tuple[int | frozenset[int], ...]

# Let in: what comes of an empty body is tested elsewhere.
IN = frozenset({200, 201, 202, 204, 400, 409})

# What a GET answers to PEOPLE, in their order; 302 sends the reader to sign in (or home).
OPEN = (200,) * 6
SIGNED_IN = (302, 200, 200, 200, 200, 200)
UNBLINDED = (302, 403, 403, 403, 200, 200)
ADMIN = (302, 403, 403, 403, 403, 200)
API = (401, 403, 403, 403, 200, 200)
API_ADMIN = (401, 403, 403, 403, 403, 200)
# Changes only: a GET changes nothing and is refused.
POST_OPEN = (405,) * 6
POST_SIGNED_IN = (302, 405, 405, 405, 405, 405)
PAGE_CHANGES = (302, 403, 403, 403, 405, 405)
ADMIN_CHANGES = (302, 403, 403, 403, 403, 405)
SIGN_IN = (200, 302, 302, 302, 302, 302)
ABSENT = (410,) * 6
# Open as well; the tests run without a broker.
NOT_READY = (503,) * 6
API_CHANGES = (401, 403, 403, 403, 405, 405)
API_ADMIN_CHANGES = (401, 403, 403, 403, 403, 405)
# What the methods answer that change something.
API_WRITE: Row = (401, 403, 403, 403, IN, IN)
# JSON is no file.
API_UPLOAD: Row = (401, 403, 403, 403, 415, 415)
PAGE_WRITE: Row = (302, 403, 403, 403, IN, IN)
PAGE_GONE: Row = (302, 403, 403, 403, 404, 404)  # an empty form names nothing
API_ADMIN_WRITE: Row = (401, 403, 403, 403, 403, IN)

MATRIX: dict[str, Row] = {
    "home": SIGNED_IN,
    "sign-in": SIGN_IN,
    "sign-in-link": ABSENT,
    "sign-out": POST_SIGNED_IN,
    "invite": ABSENT,
    "reset": ABSENT,
    "account": SIGNED_IN,
    "account-password": POST_SIGNED_IN,
    "account-email": POST_SIGNED_IN,
    "account-tokens": POST_SIGNED_IN,
    "account-token-revoke": POST_SIGNED_IN,
    "account-sign-out": POST_SIGNED_IN,
    "people": UNBLINDED,
    "person": UNBLINDED,
    "person-role": ADMIN_CHANGES,
    "person-deactivate": ADMIN_CHANGES,
    "person-reactivate": ADMIN_CHANGES,
    "person-reset-link": PAGE_CHANGES,
    "person-invitation": PAGE_CHANGES,
    "person-invitation-revoke": PAGE_CHANGES,
    "theme": POST_OPEN,
    "glossary": SIGNED_IN,
    "health": OPEN,
    "ready": NOT_READY,
    "experiments": UNBLINDED,
    "experiment-new": UNBLINDED,
    "experiment-new-form": UNBLINDED,
    "experiment-new-clone": PAGE_CHANGES,
    "draft": UNBLINDED,
    "draft-form": UNBLINDED,
    "draft-edit": UNBLINDED,
    "draft-file": UNBLINDED,
    "draft-estimate": PAGE_CHANGES,
    "draft-start": PAGE_CHANGES,
    "draft-clone": PAGE_CHANGES,
    "draft-discard": PAGE_CHANGES,
    "experiment": UNBLINDED,
    "experiment-file": UNBLINDED,
    "experiment-clone": PAGE_CHANGES,
    "experiment-start": PAGE_CHANGES,
    "experiment-budget": PAGE_CHANGES,
    "experiment-progress": UNBLINDED,
    "experiment-pause": PAGE_CHANGES,
    "experiment-resume": PAGE_CHANGES,
    "experiment-cancel": PAGE_CHANGES,
    "experiment-retry": PAGE_CHANGES,
    "experiment-report": UNBLINDED,
    "cell": UNBLINDED,
    "compare": UNBLINDED,
    "pair": UNBLINDED,
    "pair-text": UNBLINDED,
    "push": UNBLINDED,
    "exports": UNBLINDED,
    "export-file": UNBLINDED,
    "libraries": UNBLINDED,
    "library-new": UNBLINDED,
    "library": UNBLINDED,
    "library-version": UNBLINDED,
    "suites": UNBLINDED,
    "suite-new": UNBLINDED,
    "suite": UNBLINDED,
    "suite-version": UNBLINDED,
    "suite-download": UNBLINDED,
    "skills": UNBLINDED,
    "skill": UNBLINDED,
    "skill-text": UNBLINDED,
    "job": UNBLINDED,
    "job-progress": UNBLINDED,
    "notices": UNBLINDED,
    "notices-read": PAGE_CHANGES,
    "notices-mail": PAGE_CHANGES,
    "webhooks": ADMIN,
    "webhook-remove": ADMIN_CHANGES,
    "webhook-test": ADMIN_CHANGES,
    "api-people": API,
    "api-person": API,
    "api-person-invitation": API_CHANGES,
    "api-invitations": API_CHANGES,
    "api-password-resets": API_CHANGES,
    "api-tokens": API,
    "api-token": (401, 403, 403, 403, 404, 404),  # somebody else's
    "api-skills": API,
    "api-skill": API,
    "api-skill-versions": API,
    "api-libraries": API,
    "api-library": API,
    "api-library-versions": API,
    "api-library-entries": API,
    "api-suites": API,
    "api-suite": API,
    "api-suite-versions": API,
    "api-suite-tasks": API,
    "api-job": API,
    "api-status": API,
    "api-notices": API,
    "api-notices-read": API_CHANGES,
    "api-subscriptions": API,
    "api-webhooks": API_ADMIN,
    "api-webhook": API_ADMIN,
    "api-webhook-test": API_ADMIN_CHANGES,
    "api-webhook-deliveries": API_ADMIN,
    "api-schema": API,
    "api-docs": UNBLINDED,
    "api-audit-events": API_ADMIN,
    "api-exports": API,
    "api-export": API,
    "api-export-file": API,
    "api-run-rows": API_CHANGES,
    "api-endpoints": API,
    "api-drafts": API,
    "api-draft": API,
    "api-draft-validate": API,
    "api-draft-estimate": API_CHANGES,
    "api-draft-start": API_CHANGES,
    "api-draft-clone": API_CHANGES,
    "api-experiment-toml": API,
    "api-experiment-clone": API_CHANGES,
    "api-experiment-start": API_CHANGES,
    "api-experiment-pause": API_CHANGES,
    "api-experiment-resume": API_CHANGES,
    "api-experiment-cancel": API_CHANGES,
    "api-experiment-retry": API_CHANGES,
    "api-experiment-rescore": API_CHANGES,
    "api-experiment-budget": API_CHANGES,
    # Without the names of two experiments there is nothing to answer.
    "api-comparisons": (401, 403, 403, 403, 400, 400),
    "api-experiments": API,
    "api-experiment": API,
    "api-experiment-report": API,
    "api-experiment-cells": API,
    "api-experiment-pairs": API,
    "api-cell": API,
    "api-cell-pairs": API,
    "api-pair": API,
    "api-execution-attempts": API,
}
# What a POST answers: on pages, those who may act are led back to the page (302).
POST_MATRIX: dict[str, Row] = {
    "sign-out": (302,) * 6,
    "theme": (302,) * 6,
    "experiment-new": PAGE_WRITE,
    "experiment-new-form": PAGE_WRITE,
    "experiment-new-clone": PAGE_GONE,
    "draft-form": PAGE_WRITE,
    "draft-edit": PAGE_WRITE,
    "draft-estimate": (302, 403, 403, 403, 302, 302),
    "draft-start": (302, 403, 403, 403, 302, 302),
    "draft-clone": (302, 403, 403, 403, 302, 302),
    "draft-discard": (302, 403, 403, 403, 302, 302),
    "experiment-clone": (302, 403, 403, 403, 302, 302),
    "experiment-start": (302, 403, 403, 403, 302, 302),
    "experiment-budget": (302, 403, 403, 403, 302, 302),
    "api-drafts": API_WRITE,
    "api-draft-estimate": API_WRITE,
    "api-draft-start": API_WRITE,
    "api-draft-clone": API_WRITE,
    "api-experiment-clone": API_WRITE,
    "api-experiment-start": API_WRITE,
    "api-experiment-pause": API_WRITE,
    "api-experiment-resume": API_WRITE,
    "api-experiment-cancel": API_WRITE,
    "api-experiment-retry": API_WRITE,
    "api-experiment-rescore": API_WRITE,
    "experiment-pause": (302, 403, 403, 403, 302, 302),
    "experiment-resume": (302, 403, 403, 403, 302, 302),
    "experiment-cancel": (302, 403, 403, 403, 302, 302),
    "experiment-retry": (302, 403, 403, 403, 302, 302),
    "notices-read": (302, 403, 403, 403, 302, 302),
    "notices-mail": (302, 403, 403, 403, 302, 302),
    "webhooks": (302, 403, 403, 403, 403, 400),
    "webhook-remove": (302, 403, 403, 403, 403, 302),
    "webhook-test": (302, 403, 403, 403, 403, 302),
    "api-notices-read": API_WRITE,
    "api-webhooks": API_ADMIN_WRITE,
    "api-webhook-test": API_ADMIN_WRITE,
    "push": PAGE_WRITE,
    "exports": PAGE_WRITE,
    "api-exports": API_WRITE,
    "api-run-rows": API_WRITE,
    "library-new": PAGE_WRITE,
    "api-libraries": API_UPLOAD,
    "api-suites": API_UPLOAD,
    "suite-new": PAGE_WRITE,
    "sign-in": (200, 302, 302, 302, 302, 302),
    "sign-in-link": (410,) * 6,
    "invite": (410,) * 6,
    "reset": (410,) * 6,
    "account-password": (302, 400, 400, 400, 400, 400),
    "account-email": (302,) * 6,
    "account-tokens": (302, 403, 403, 403, 400, 400),
    "account-token-revoke": (302, 403, 403, 403, 404, 404),
    "account-sign-out": (302,) * 6,
    "people": (302, 403, 403, 403, 400, 400),
    "person-role": (302, 403, 403, 403, 403, 400),
    "person-deactivate": (302, 403, 403, 403, 403, 302),
    "person-reactivate": (302, 403, 403, 403, 403, 302),
    # The answer shows the link.
    "person-reset-link": (302, 403, 403, 403, 200, 200),
    "person-invitation": (302, 403, 403, 403, 200, 200),
    "person-invitation-revoke": (302, 403, 403, 403, 302, 302),
    "api-person-invitation": API_WRITE,
    "api-invitations": API_WRITE,
    "api-password-resets": API_WRITE,
    "api-tokens": API_WRITE,
}
PUT_MATRIX: dict[str, Row] = {
    "api-subscriptions": API_WRITE,
    "api-draft": API_WRITE,
    "api-experiment-budget": API_WRITE,
}
PATCH_MATRIX: dict[str, Row] = {"api-person": API_ADMIN_WRITE}
DELETE_MATRIX: dict[str, Row] = {
    "api-draft": (401, 403, 403, 403, 204, 204),
    "api-person-invitation": API_WRITE,
    "api-token": (401, 403, 403, 403, 404, 404),
    "api-webhook": API_ADMIN_WRITE,
}
CHANGES = {
    "POST": POST_MATRIX,
    "PUT": PUT_MATRIX,
    "PATCH": PATCH_MATRIX,
    "DELETE": DELETE_MATRIX,
}
METHODS = ("GET", "HEAD", *CHANGES, "OPTIONS")
# A method that a URL doesn't offer: whoever may not be there can be turned away first.
ANONYMOUS_REFUSED = frozenset({302, 401, 403, 405})
REFUSED = frozenset({403, 405})
NOT_OFFERED: Row = (ANONYMOUS_REFUSED,) + (REFUSED,) * 5
SIGN_IN_REFUSED: Row = (frozenset({200, 405}),) + (frozenset({302, 405}),) * 5


# A file has an extension instead of a slash.
FILE_ENDS = ("csv|md)", r"\.toml")


def patterns(resolver: URLResolver | None = None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every URL pattern with its route."""
    for entry in (resolver or get_resolver()).url_patterns:
        route = prefix + str(entry.pattern)
        if isinstance(entry, URLResolver):
            yield from patterns(entry, route)
        else:
            assert isinstance(entry, URLPattern)
            yield route, entry


def arguments(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return what each URL needs, of things that exist."""
    cell = cells_of(experiment)[0]
    pair = cell.pairs.order_by("task__key")[0]
    slug = {"slug": experiment.slug}
    job = {"uid": make_job().uid}
    webhook = {"uid": make_webhook().uid}
    one_slug: dict[str, dict[str, Any]] = {
        name: slug
        for name in MATRIX
        if name.startswith(("experiment", "api-experiment"))
        and name not in ("experiments", "api-experiments")
    }
    person = {"name": make_user("pat", Role.ANNOTATOR).username}
    token, _ = create_token(
        user=make_user("lou", Role.LEAD), name="t", scopes=[Scope.READ], at=timezone.now()
    )
    of_people = {name: person for name in MATRIX if name.removeprefix("api-").startswith("person")}
    draft = {"slug": make_draft().slug}
    return (
        one_slug
        | {name: draft for name in MATRIX if re.match(r"(api-)?draft(-|\Z)", name)}
        | {"experiment-new": {}, "experiment-new-form": {}, "experiment-new-clone": {}}
        | of_people
        | {
            "sign-in-link": {"token": "unknown"},
            "invite": {"token": "unknown"},
            "reset": {"token": "unknown"},
            "account-token-revoke": {"uid": token.uid},
            "api-token": {"uid": token.uid},
            "experiment-report": {**slug, "format": "json"},
            "cell": {**slug, "sha12": cell.sha256[:12]},
            "pair": {"uid": pair.uid},
            "api-cell": {**slug, "sha12": cell.sha256[:12]},
            "api-cell-pairs": {**slug, "sha12": cell.sha256[:12]},
            "api-pair": {"uid": pair.uid},
            "api-execution-attempts": {"uid": pair.arms.get(arm="SE").execution.uid},
            "pair-text": {"uid": pair.uid, "part": "prompt"},
            "export-file": {"uid": make_export().uid},
            "api-export": {"uid": make_export().uid},
            "api-export-file": {"uid": make_export().uid},
            **{name: webhook for name in MATRIX if re.match(r"(api-)?webhook\b", name)},
            "job": job,
            "job-progress": job,
            "api-job": job,
            "api-skill": {"slug": "two-pointer"},
            "api-skill-versions": {"slug": "two-pointer"},
            "api-library": {"slug": "coding"},
            "api-library-versions": {"slug": "coding"},
            "api-library-entries": {"slug": "coding", "number": 1},
            "api-suite": {"slug": "tasks"},
            "api-suite-versions": {"slug": "tasks"},
            "api-suite-tasks": {"slug": "tasks", "number": 1},
            "library": {"slug": "coding"},
            "library-version": {"slug": "coding", "number": 1},
            "suite": {"slug": "tasks"},
            "suite-version": {"slug": "tasks", "number": 1},
            "suite-download": {"slug": "tasks", "number": 1},
            "skill": {"slug": "two-pointer"},
            "skill-text": {"slug": "two-pointer", "number": 1},
        }
    )


def signed_in_clients() -> dict[str, Client]:
    """Return one client for each of PEOPLE."""
    for person, role in ROLES.items():
        make_user(person.replace(" ", "-"), role)
    found = {person: Client() for person in PEOPLE}
    sign_in(found)
    return found


def sign_in(clients: dict[str, Client]) -> None:
    for person in ROLES:
        clients[person].force_login(User.objects.get(username=person.replace(" ", "-")))


def test_every_url_is_listed_and_ends_in_a_slash() -> None:
    listed = {pattern.name: route for route, pattern in patterns()}
    assert None not in listed, "a URL without a name"
    assert set(listed) == set(MATRIX), "list the URL in MATRIX with who may open it"
    for route in listed.values():
        if route and not route.rstrip("$").endswith(FILE_ENDS):
            assert route.rstrip("$").endswith("/"), route
        assert "pk" not in route
        assert "<int:id" not in route


def expected_of(method: str, name: str) -> Row:
    """Return what ``method`` answers to PEOPLE at the URL of this name."""
    if method in ("GET", "HEAD"):
        return MATRIX[name]
    if name in CHANGES.get(method, {}):
        return CHANGES[method][name]
    # Who is signed in is led home, whatever they try at the sign-in.
    return SIGN_IN_REFUSED if name == "sign-in" else NOT_OFFERED


def send(client: Client, method: str, url: str) -> Any:
    """Return the answer; what the request changed is undone."""
    api = url.startswith("/api/")
    cookies = copy.deepcopy(client.cookies)
    with transaction.atomic():
        if method in ("POST", "PUT", "PATCH") and api:
            response = client.generic(method, url, b"{}", content_type="application/json")
        else:
            response = getattr(client, method.lower())(url)
        transaction.set_rollback(True)
    client.cookies = cookies
    return response


def fits(wanted: int | frozenset[int], found: int) -> bool:
    return found in wanted if isinstance(wanted, frozenset) else found == wanted


def said(row: Row) -> list[Any]:
    return [sorted(one) if isinstance(one, frozenset) else one for one in row]


@pytest.mark.parametrize("method", METHODS)
def test_every_url_answers_each_role_as_the_matrix_says(method: str) -> None:
    needed = arguments(finished_experiment("panel", retrieved="abcd", skipped="ad"))
    people = signed_in_clients()
    wrong = {}
    for name in MATRIX:
        url = reverse(name, kwargs=needed.get(name))
        wanted = expected_of(method, name)
        answers = [send(people[person], method, url) for person in PEOPLE]
        found = [answer.status_code for answer in answers]
        if not all(map(fits, wanted, found)):
            wrong[name] = f"{said(wanted)} expected, {found} found"
        if found[0] == 302 and name not in POST_MATRIX:
            assert answers[0]["Location"].startswith("/sign-in/?next="), name
        if method == "HEAD":
            assert all(answer.getvalue() == b"" for answer in answers), name
    assert not wrong


@pytest.mark.parametrize("method", METHODS)
def test_a_token_that_may_only_read_does_what_its_person_may_read(method: str) -> None:
    """The lead's token with the scope ``read``: reads as its person, changes nothing."""
    needed = arguments(finished_experiment("panel", retrieved="abcd", skipped="ad"))
    user = make_user("lee", Role.LEAD)
    _, text = create_token(user=user, name="t", scopes=[Scope.READ], at=timezone.now())
    client = Client(headers={"Authorization": f"Bearer {text}"})
    lead = PEOPLE.index("lead")
    wrong = {}
    for name in MATRIX:
        url = reverse(name, kwargs=needed.get(name))
        found = send(client, method, url).status_code
        if not url.startswith("/api/") or (MATRIX[name] == UNBLINDED):
            wanted = expected_of(method, name)[0]  # a page knows no tokens
        elif method in ("GET", "HEAD"):
            wanted = MATRIX[name][lead]
        else:
            wanted = REFUSED if method == "OPTIONS" else 403
        if not fits(wanted, found):
            wrong[name] = f"{said((wanted,))} expected, {found} found"
    assert not wrong


def test_options_and_refusals_tell_an_annotator_nothing() -> None:
    """One body whatever the address, the method, and whether the thing exists."""
    needed = arguments(finished_experiment("panel", retrieved="abcd", skipped="ad"))
    client = signed_in_clients()["annotator"]
    annotator = PEOPLE.index("annotator")
    bodies = set()
    for name, row in MATRIX.items():
        url = reverse(name, kwargs=needed.get(name))
        for method in ("OPTIONS", "GET", "POST", "PUT", "PATCH", "DELETE"):
            if url.startswith("/api/") and row[annotator] == 403 and row != UNBLINDED:
                response = send(client, method, url)
                assert response.status_code == 403, (name, method)
                assert "Allow" not in response, (name, method)
                bodies.add(response.content)
            elif row[annotator] == 403:
                # A page too: closed, whatever the method.
                response = send(client, method, url)
                assert response.status_code == 403, (name, method)
                assert "Allow" not in response, (name, method)
            elif method == "OPTIONS":
                assert send(client, method, url).content.count(b"panel") == 0, name
    assert len(bodies) == 1
    assert RoleAndScope.message.encode() in bodies.pop()


# Pages and addresses of one thing each; the lists are there whatever exists.
def of_one_thing() -> list[str]:
    routes = {pattern.name: route for route, pattern in patterns()}
    return [name for name in MATRIX if "<" in routes[name] and "<slug:token>" not in routes[name]]


ABSENT_THINGS = {
    "slug": "absent",
    "sha12": "0" * 12,
    "uid": "00000000-0000-0000-0000-000000000000",
    "part": "absent",
    "number": 99,
    "format": "json",
    "name": "nobody",
}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_what_is_closed_looks_the_same_whether_or_not_it_exists(method: str) -> None:
    needed = arguments(finished_experiment("panel", retrieved="ac"))
    clients = signed_in_clients()
    lead = PEOPLE.index("lead")
    for name in of_one_thing():
        if method != "GET" and name not in CHANGES[method]:
            continue
        absent_thing = {key: ABSENT_THINGS[key] for key in needed[name]}
        addresses = reverse(name, kwargs=needed[name]), reverse(name, kwargs=absent_thing)
        for person, row in zip(PEOPLE, expected_of(method, name), strict=True):
            if row == 403:
                known, unknown = (send(clients[person], method, url) for url in addresses)
                assert known.status_code == unknown.status_code == 403, (name, person)
                assert plain(known) == plain(unknown), (name, person)
        if not fits(expected_of(method, name)[lead], 403) and method == "GET":
            unknown = send(clients["lead"], method, addresses[1])
            offered = MATRIX[name][lead] != 405
            assert unknown.status_code == (404 if offered else 405), name
            if offered and addresses[1].startswith("/api/"):
                assert unknown.json() == {
                    "error": "not_found",
                    "message": NOT_FOUND,
                    "fields": {},
                }, name


def plain(response: Any) -> str:
    """Return the page without what every one has of its own: its address and its form token."""
    text = response.content.decode().replace(response.request["PATH_INFO"], "")
    return "\n".join(line for line in text.splitlines() if "csrfmiddlewaretoken" not in line)
