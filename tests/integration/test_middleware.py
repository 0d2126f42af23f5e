"""What every request passes: NUL, caching, and how often a session is written."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.wsgi import WSGIRequest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.factories import finished_experiment, make_user
from workbench import middleware
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def lead() -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(make_user("lee", Role.LEAD))
    return client


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "url",
    [
        "/%00",
        "/experiments/%00/",
        "/experiments/?before=%00",
        "/experiments/?%00=1",
        "/experiments/?sort=a&sort=b%00",
        "/skills/a%00/",
        "/skills/a%00/text/1/",
        "/api/v1/experiments/?before=%00",
        "/api/v1/experiments/%00/report/",
        "/sign-in/link/%00/",
    ],
)
def test_a_nul_in_an_address_is_a_bad_request(url: str, lead: Client) -> None:
    for client in (lead, Client(raise_request_exception=False)):
        response = client.get(url)
        assert (response.status_code, response["Cache-Control"]) == (400, "no-store")


@pytest.mark.both_databases
def test_a_nul_in_a_form_is_a_bad_request_and_changes_nothing(lead: Client) -> None:
    experiment = finished_experiment("panel")
    forms: list[tuple[str, dict[str, Any]]] = [
        ("/sign-in/", {"username": "a\0b", "password": "x"}),
        ("/sign-in/", {"username": "a", "password": "x\0"}),
        ("/experiments/panel/cancel/", {"reason": "a\0b"}),
        ("/theme/", {"theme": "dark", "next": "/\0"}),
    ]
    for url, form in forms:
        response = lead.post(url, form)
        assert (response.status_code, response["Cache-Control"]) == (400, "no-store")
    before = experiment.status
    experiment.refresh_from_db()
    assert experiment.status == before
    assert lead.post("/theme/", {"theme": "dark", "next": "/"}).status_code == 302


@pytest.mark.parametrize(
    ("url", "signed_in", "status"),
    [
        ("/", True, 200),
        ("/", False, 302),
        ("/sign-in/", False, 200),
        ("/health/", False, 200),
        ("/nope/", True, 404),
        ("/experiments/nope/", True, 404),
        ("/api/v1/experiments/", True, 200),
        ("/api/v1/experiments/", False, 401),
        ("/api/v1/experiments/nope/report/", True, 404),
        ("/api/v1/experiments/?limit=many", True, 400),
        ("/api/v1/nope", True, 404),
    ],
)
def test_no_answer_is_kept(url: str, signed_in: bool, status: int, lead: Client) -> None:
    response = (lead if signed_in else Client()).get(url)
    assert (response.status_code, response["Cache-Control"]) == (status, "no-store")


def test_no_error_is_kept(lead: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise RuntimeError

    assert lead.get("/", HTTP_HOST="evil.example")["Cache-Control"] == "no-store"
    assert Client(enforce_csrf_checks=True).post("/sign-in/")["Cache-Control"] == "no-store"
    monkeypatch.setattr("workbench.views.home.render_page", broken)
    response = lead.get("/")
    assert (response.status_code, response["Cache-Control"]) == (500, "no-store")


def test_files_that_are_the_same_for_everybody_may_be_kept() -> None:
    response = Client().get("/static/workbench.css")
    assert response.status_code == 200
    assert "no-store" not in response["Cache-Control"]


# --- the session's life -------------------------------------------------------


def writes(client: Client, *urls: str, **headers: str) -> list[str]:
    """Return the statements that change anything while the pages are read."""
    with CaptureQueriesContext(connection) as captured:
        for url in urls:
            assert client.get(url, **headers).status_code == 200  # type: ignore[arg-type]
    return [
        query["sql"]
        for query in captured.captured_queries
        if query["sql"].split()[0] in ("INSERT", "UPDATE", "DELETE")
    ]


def test_reading_writes_the_session_once_in_ten_minutes(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [2_000_000_000.0]
    monkeypatch.setattr(middleware.time, "time", lambda: now[0])
    pages = ("/", "/experiments/", "/skills/", "/glossary/", "/api/v1/experiments/")
    first = writes(lead, *pages)
    assert len(first) == 1
    assert "django_session" in first[0]
    assert writes(lead, *pages) == []
    now[0] += 599
    assert writes(lead, *pages) == []
    ends = Session.objects.get().expire_date
    now[0] += 1
    assert len(writes(lead, *pages)) == 1
    assert Session.objects.get().expire_date > ends


def test_a_page_that_polls_keeps_no_session_alive(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware.time, "time", lambda: 2_000_000_000.0)
    assert writes(lead, "/glossary/", HTTP_HX_REQUEST="true") == []
    assert len(writes(lead, "/glossary/")) == 1


def test_who_is_not_signed_in_has_no_session() -> None:
    client = Client()
    assert writes(client, "/sign-in/", "/health/") == []
    assert not Session.objects.exists()


# --- what is read of whom -------------------------------------------------------


@pytest.mark.parametrize("who", ["nobody", "annotator", "lead"])
@pytest.mark.parametrize("url", ["/experiments/push/", "/suites/new/", "/libraries/new/"])
def test_a_file_is_read_only_from_whom_the_page_is_open_to(
    url: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    load = WSGIRequest._load_post_and_files

    def loaded(self: WSGIRequest) -> None:
        read.append(self.path)
        load(self)

    monkeypatch.setattr(WSGIRequest, "_load_post_and_files", loaded)
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    if who != "nobody":
        client.force_login(make_user("ann", Role(who)))
    file = SimpleUploadedFile("x.csv", b"x" * 2_000_000)
    response = client.post(url, {"file": file})
    if who == "nobody":
        assert response.status_code == 302
        assert response["Location"].startswith("/sign-in/?next=")
    else:
        assert response.status_code == 403
    # The lead's form is read for its token, which it lacks.
    assert bool(read) == (who == "lead")


def test_a_stranger_may_send_no_more_than_names_and_passwords(lead: Client) -> None:
    long = {"username": "a", "password": "x" * middleware.STRANGERS_BYTES}
    for url in ("/sign-in/", "/theme/", "/invite/unknown/", "/reset/unknown/"):
        response = Client().post(url, long)
        assert (response.status_code, response["Cache-Control"]) == (413, "no-store"), url
    short = {"username": "a", "password": "x" * 1_000}
    assert Client().post("/sign-in/", short).status_code == 200
    assert lead.post("/theme/", {"theme": "dark", "next": "/", **long}).status_code == 302


def test_who_has_no_form_token_is_told_so_where_they_are_signed_in(lead: Client) -> None:
    """The order of the looks: signed in, of the right role, short enough, and then the token."""
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    assert client.post("/account/email/", {"email": ""}).status_code == 302
    assert client.post("/sign-in/", {"username": "a"}).status_code == 403
    client.cookies = lead.cookies
    assert client.post("/account/email/", {"email": ""}).status_code == 403
