"""Who may open what: every URL of the URLconf against every role. An unlisted URL fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse

from runs.models import Experiment
from tests.factories import cells_of, finished_experiment, make_job, make_user
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db

PEOPLE = ("anonymous", "no role", "annotator", "other annotator", "lead", "admin")
ROLES = {
    "no role": None,
    "annotator": Role.ANNOTATOR,
    "other annotator": Role.ANNOTATOR,
    "lead": Role.LEAD,
    "admin": Role.ADMIN,
}

# What a GET answers to PEOPLE, in their order; 302 sends the reader to sign in (or home).
OPEN = (200,) * 6
SIGNED_IN = (302, 200, 200, 200, 200, 200)
UNBLINDED = (302, 403, 403, 403, 200, 200)
API = (401, 403, 403, 403, 200, 200)
# Changes only: a GET changes nothing and is refused.
POST_OPEN = (405,) * 6
POST_SIGNED_IN = (302, 405, 405, 405, 405, 405)
SIGN_IN = (200, 302, 302, 302, 302, 302)
ABSENT = (410,) * 6

MATRIX = {
    "home": SIGNED_IN,
    "sign-in": SIGN_IN,
    "sign-in-link": ABSENT,
    "sign-out": POST_SIGNED_IN,
    "theme": POST_OPEN,
    "glossary": SIGNED_IN,
    "health": OPEN,
    "experiments": UNBLINDED,
    "experiment": UNBLINDED,
    "experiment-progress": UNBLINDED,
    "experiment-pause": POST_SIGNED_IN,
    "experiment-resume": POST_SIGNED_IN,
    "experiment-cancel": POST_SIGNED_IN,
    "experiment-retry": POST_SIGNED_IN,
    "experiment-report": UNBLINDED,
    "cell": UNBLINDED,
    "pair": UNBLINDED,
    "pair-text": UNBLINDED,
    "skills": UNBLINDED,
    "skill": UNBLINDED,
    "skill-text": UNBLINDED,
    "job": UNBLINDED,
    "job-progress": UNBLINDED,
    "api-job": API,
    "api-experiments": API,
    "api-experiment-report": API,
}
# What a POST answers: those who may act are led back to the page (302).
POST_MATRIX = {
    "sign-out": (302,) * 6,
    "theme": (302,) * 6,
    "experiment-pause": (302, 403, 403, 403, 302, 302),
    "experiment-resume": (302, 403, 403, 403, 302, 302),
    "experiment-cancel": (302, 403, 403, 403, 302, 302),
    "experiment-retry": (302, 403, 403, 403, 302, 302),
    "sign-in": (200, 302, 302, 302, 302, 302),
    "sign-in-link": (410,) * 6,
}


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
    one_slug: dict[str, dict[str, Any]] = {
        name: slug
        for name in MATRIX
        if name.startswith(("experiment", "api-experiment-")) and name != "experiments"
    }
    return one_slug | {
        "sign-in-link": {"token": "unknown"},
        "experiment-report": {**slug, "format": "json"},
        "cell": {**slug, "sha12": cell.sha256[:12]},
        "pair": {"uid": pair.uid},
        "pair-text": {"uid": pair.uid, "part": "prompt"},
        "job": job,
        "job-progress": job,
        "api-job": job,
        "skill": {"slug": "two-pointer"},
        "skill-text": {"slug": "two-pointer", "number": 1},
    }


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
    for name, route in listed.items():
        if route and name != "experiment-report":  # a file has an extension instead
            assert route.rstrip("$").endswith("/"), route
        assert "pk" not in route
        assert "<int:id" not in route


def test_every_url_answers_each_role_as_the_matrix_says() -> None:
    experiment = finished_experiment("panel", retrieved="abcd", skipped="ad")
    needed = arguments(experiment)
    found: dict[str, tuple[int, ...]] = {}
    people = signed_in_clients()
    for name in MATRIX:
        url = reverse(name, kwargs=needed.get(name))
        found[name] = tuple(people[person].get(url).status_code for person in PEOPLE)
        anonymous = people["anonymous"].get(url)
        if anonymous.status_code == 302:
            assert anonymous["Location"].startswith("/sign-in/?next="), name
    assert found == MATRIX


def test_every_url_answers_a_post_as_the_matrix_says() -> None:
    experiment = finished_experiment("panel", retrieved="abcd", skipped="ad")
    needed = arguments(experiment)
    expected, found = {}, {}
    clients = signed_in_clients()
    for name, row in MATRIX.items():
        url = reverse(name, kwargs=needed.get(name))
        reads_only = (405,) * 6 if row is OPEN else (302,) + (405,) * 5
        api = (401, 403, 403, 403, 405, 405)
        expected[name] = POST_MATRIX.get(name, api if row is API else reads_only)
        found[name] = tuple(clients[person].post(url).status_code for person in PEOPLE)
        if name == "sign-out":
            sign_in(clients)
    assert found == expected


# Pages of one thing each; the lists are there whatever exists.
OF_ONE_THING = [
    name
    for name, row in MATRIX.items()
    if row == UNBLINDED and name not in ("experiments", "skills")
]


@pytest.mark.parametrize("name", OF_ONE_THING)
def test_a_closed_page_looks_the_same_whether_or_not_it_exists(name: str) -> None:
    experiment = finished_experiment("panel", retrieved="ac")
    there = arguments(experiment)[name]
    absent = {
        "slug": "absent",
        "sha12": "0" * 12,
        "uid": "00000000-0000-0000-0000-000000000000",
        "part": "absent",
        "number": 99,
        "format": "json",
    }
    clients = signed_in_clients()
    client = clients["annotator"]
    known = client.get(reverse(name, kwargs=there))
    unknown = client.get(reverse(name, kwargs={key: absent[key] for key in there}))
    assert known.status_code == unknown.status_code == 403

    def plain(html: bytes, path: str) -> str:
        # The address itself stands in the theme form; nothing else may differ.
        text = html.decode().replace(path, "")
        return "\n".join(line for line in text.splitlines() if "csrfmiddlewaretoken" not in line)

    assert plain(known.content, known.request["PATH_INFO"]) == plain(
        unknown.content, unknown.request["PATH_INFO"]
    )
    lead = clients["lead"]
    assert lead.get(reverse(name, kwargs={key: absent[key] for key in there})).status_code == 404
