"""Tokens: what opens the API, what doesn't, and what is kept of their use."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import time_machine
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from tests.factories import NOW, make_user
from tests.htmlchecks import faults_of
from workbench.accounts import change_role, deactivate
from workbench.kernel.roles import Role
from workbench.models import ApiToken, AuditEvent
from workbench.tokens import (
    LAST_USED_STEP,
    MOST_LIVE,
    Scope,
    TokenMissing,
    TokenRefused,
    create_token,
    revoke_token,
    scopes_of,
)

pytestmark = pytest.mark.django_db

URL = "/api/v1/people/"
SECOND = timedelta(seconds=1)


@pytest.fixture
def lou() -> Any:
    return make_user("lou", Role.LEAD)


def make(user: Any, *scopes: Scope, **fields: Any) -> str:
    """Return the text of a new token."""
    wanted: dict[str, Any] = {"name": "t", "at": timezone.now()} | fields
    return create_token(user=user, scopes=scopes or [Scope.READ], **wanted)[1]


def status(text: str, *, method: str = "get", url: str = URL, body: Any = None) -> int:
    """Return what a client without any cookie is answered."""
    client = Client(enforce_csrf_checks=True, headers={"Authorization": f"Bearer {text}"})
    found = getattr(client, method)(url, data=body, content_type="application/json")
    return int(found.status_code)


# --- what opens the API -------------------------------------------------------------


def test_a_token_opens_what_its_person_may_see_without_cookie_or_form_token(lou: Any) -> None:
    assert status(make(lou)) == 200
    assert status("wb_" + "x" * 43) == 401
    assert Client().get(URL).status_code == 401


def test_only_a_hash_is_stored_and_the_beginning_tells_tokens_apart(lou: Any) -> None:
    text = make(lou)
    token = ApiToken.objects.get()
    assert text.startswith("wb_")
    assert len(text) >= 46  # 32 random bytes in base64, and the prefix
    assert token.beginning == text[:9]
    assert text not in str(ApiToken.objects.values().get())
    assert not AuditEvent.objects.filter(subject__contains=text).exists()


def test_a_token_works_to_its_end_and_not_at_it(lou: Any) -> None:
    text = make(lou, expires_at=timezone.now() + timedelta(days=30))
    end = ApiToken.objects.get().expires_at
    assert end
    with time_machine.travel(end - SECOND, tick=False):
        assert status(text) == 200
    with time_machine.travel(end, tick=False):
        assert status(text) == 401


def test_a_revoked_token_is_refused_and_others_are_not(lou: Any) -> None:
    text, other = make(lou), make(lou)
    uid = ApiToken.objects.order_by("pk")[0].uid
    for _ in range(2):
        revoke_token(user=lou, uid=uid, at=NOW)
    assert status(text) == 401
    assert status(other) == 200
    assert AuditEvent.objects.filter(verb="token.revoked").count() == 1


def test_a_deactivated_persons_token_is_refused(lou: Any) -> None:
    text = make(lou)
    get_user_model().objects.filter(pk=lou.pk).update(is_active=False)
    assert status(text) == 401


def test_who_is_no_lead_any_more_has_a_token_that_opens_nothing(lou: Any) -> None:
    ada = make_user("ada", Role.ADMIN)
    text = make(lou)
    change_role(user=lou, role=Role.ANNOTATOR, actor=ada, at=NOW)
    assert status(text) == 403


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("Bearer TOKEN", 200),
        ("bearer TOKEN", 200),
        ("TOKEN", 401),
        ("Token TOKEN", 401),
        ("Basic TOKEN", 401),
        ("Bearer", 401),
        ("Bearer TOKEN more", 401),
        ("Bearer  ", 401),
        ("Bearer \xff\xfe", 401),
    ],
)
def test_the_header_is_written_in_one_way(lou: Any, header: str, wanted: int) -> None:
    text = make(lou)
    response = Client().get(URL, headers={"Authorization": header.replace("TOKEN", text)})
    assert response.status_code == wanted
    if wanted == 401:
        assert response["WWW-Authenticate"] == "Bearer"
        assert text not in response.content.decode()


def test_unknown_revoked_expired_and_inactive_answer_alike(lou: Any) -> None:
    revoked, expired = make(lou), make(lou, expires_at=timezone.now() + SECOND)
    revoke_token(user=lou, uid=ApiToken.objects.order_by("pk")[0].uid, at=NOW)
    gone = make_user("gone", Role.LEAD)
    inactive = make(gone)
    get_user_model().objects.filter(pk=gone.pk).update(is_active=False)
    with time_machine.travel(timezone.now() + 2 * SECOND, tick=False):
        bodies = {
            Client().get(URL, headers={"Authorization": f"Bearer {text}"}).content
            for text in ("wb_unknown", revoked, expired, inactive)
        }
    assert len(bodies) == 1


def test_a_token_is_for_the_api_and_a_session_for_both(lou: Any) -> None:
    headers = {"Authorization": f"Bearer {make(lou)}"}
    assert Client().get(reverse("people"), headers=headers).status_code == 302
    client = Client()
    client.force_login(lou)
    assert client.get(URL).status_code == 200


def test_a_session_that_changes_something_by_the_api_still_needs_the_forms_token(lou: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(lou)
    body = {"role": "annotator", "people": [{"name": "kim"}]}
    url = reverse("api-invitations")
    refused = client.post(url, body, content_type="application/json")
    assert refused.status_code == 403
    assert not get_user_model().objects.filter(username="kim").exists()
    client.get(reverse("account"))
    token = client.cookies["csrftoken"].value
    accepted = client.post(
        url, body, content_type="application/json", headers={"X-CSRFToken": token}
    )
    assert accepted.status_code == 201


# --- scopes -------------------------------------------------------------------------


@pytest.mark.parametrize("scope", list(Scope))
def test_people_are_changed_with_their_own_scope_only(lou: Any, scope: Scope) -> None:
    text = make(lou, scope)
    body = {"role": "annotator", "people": [{"name": "kim"}]}
    wanted = 201 if scope is Scope.PEOPLE else 403
    assert status(text, method="post", url=reverse("api-invitations"), body=body) == wanted
    assert get_user_model().objects.filter(username="kim").exists() == (wanted == 201)
    assert status(text) == (200 if scope is Scope.READ else 403)


def test_a_scope_gives_no_more_than_the_role(lou: Any) -> None:
    text = make(lou, Scope.PEOPLE)
    make_user("kim", Role.ANNOTATOR)
    url = reverse("api-person", kwargs={"name": "kim"})
    assert status(text, method="patch", url=url, body={"active": False}) == 403
    body = {"role": "lead", "people": [{"name": "min"}]}
    assert status(text, method="post", url=reverse("api-invitations"), body=body) == 403


@pytest.mark.parametrize("role", [None, Role.ANNOTATOR])
def test_roles_that_the_api_has_nothing_for_get_no_token(role: Role | None) -> None:
    user = make_user("kim", role)
    assert scopes_of(user) == ()
    with pytest.raises(TokenRefused) as caught:
        make(user)
    assert caught.value.field == "scopes"
    client = Client()
    client.force_login(user)
    assert client.post(reverse("account-tokens"), {"name": "t"}).status_code == 403
    assert not ApiToken.objects.exists()


def test_a_token_makes_no_tokens_but_lists_and_revokes_them(lou: Any) -> None:
    text = make(lou, *Scope)
    url = reverse("api-tokens")
    body = {"name": "more", "scopes": ["read"]}
    assert status(text, method="post", url=url, body=body) == 403
    assert ApiToken.objects.count() == 1
    assert status(text, url=url) == 200
    own = reverse("api-token", kwargs={"uid": ApiToken.objects.get().uid})
    assert status(text, method="delete", url=own) == 204
    assert status(text, url=url) == 401


# --- what is refused when one is made -----------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\u202eb"}, "name"),
        ({"name": "a\x1b[31mb"}, "name"),
        ({"name": "a\u200bb"}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"scopes": []}, "scopes"),
        ({"expires_at": NOW}, "expires_at"),
    ],
)
def test_a_token_that_could_not_be_used_or_told_is_not_made(
    lou: Any, fields: dict[str, Any], field: str
) -> None:
    given = {"name": "t", "scopes": [Scope.READ]} | fields
    with pytest.raises(TokenRefused) as caught:
        create_token(user=lou, at=NOW, **given)
    assert caught.value.field == field
    assert not ApiToken.objects.exists()


def test_a_person_has_at_most_50_live_tokens(lou: Any) -> None:
    for n in range(MOST_LIVE):
        make(lou, name=f"t{n}")
    with pytest.raises(TokenRefused, match="revoke one first"):
        make(lou)
    revoke_token(user=lou, uid=ApiToken.objects.order_by("pk")[0].uid, at=NOW)
    assert make(lou)


def test_whoever_was_deactivated_meanwhile_gets_no_token(lou: Any) -> None:
    deactivate(user=lou, actor=make_user("ada", Role.ADMIN), at=NOW)
    with pytest.raises(TokenRefused):
        make(lou)


# --- last use -----------------------------------------------------------------------


def test_the_last_use_is_written_at_most_once_a_minute(lou: Any) -> None:
    text = make(lou)

    def writes(at: Any) -> int:
        with time_machine.travel(at, tick=False), CaptureQueriesContext(connection) as captured:
            assert status(text) == 200
        return sum("UPDATE" in query["sql"] for query in captured.captured_queries)

    start = timezone.now().replace(microsecond=0)
    assert writes(start) == 1
    assert [writes(start + n * SECOND) for n in (0, 1, 30, 59)] == [0, 0, 0, 0]
    assert ApiToken.objects.get().last_used_at == start
    assert writes(start + LAST_USED_STEP) == 1
    assert ApiToken.objects.get().last_used_at == start + LAST_USED_STEP


def test_a_refused_token_writes_nothing(lou: Any) -> None:
    text = make(lou)
    revoke_token(user=lou, uid=ApiToken.objects.get().uid, at=NOW)
    status(text)
    assert ApiToken.objects.get().last_used_at is None


def test_no_token_stands_in_a_log(
    lou: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    text = make(lou)
    for url in (URL, URL + "?sort=nonsense", "/api/v1/nothing/"):
        status(text, url=url)
    status("wb_wrong_but_secret")
    status(text, method="post", url=reverse("api-invitations"), body={})
    said = caplog.text + capfd.readouterr().err
    assert text not in said
    assert "wb_wrong_but_secret" not in said


# --- one's own page and addresses ---------------------------------------------------


def test_the_page_makes_a_token_shows_it_once_and_revokes_it(lou: Any) -> None:
    client = Client()
    client.force_login(lou)
    form = {"name": "notebook", "scopes": ["read", "write"], "days": "30"}
    html = client.post(reverse("account-tokens"), form).content.decode()
    token = ApiToken.objects.get()
    assert faults_of(html) == []
    start = html.index('data-copy title="token notebook">') + len(
        'data-copy title="token notebook">'
    )
    text = html[start : html.index("<", start)]
    assert status(text) == 200
    assert token.scopes == ["read", "write"]
    assert token.expires_at
    assert timedelta(days=29) < token.expires_at - timezone.now() <= timedelta(days=30)
    later = client.get(reverse("account")).content.decode()
    assert text not in later
    assert token.beginning in later
    revoke = reverse("account-token-revoke", kwargs={"uid": token.uid})
    assert "is revoked" in client.post(revoke, follow=True).content.decode()
    assert status(text) == 401


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "Name it in 1 to 100 characters."),
        ({"scopes": []}, "Choose at least one scope."),
        ({"scopes": ["read", "everything"]}, "There is no scope"),
        ({"days": "31"}, "Choose how long it lives."),
    ],
)
def test_the_page_tells_what_is_wrong_and_keeps_the_rest(
    lou: Any, change: dict[str, Any], said: str
) -> None:
    client = Client()
    client.force_login(lou)
    form = {"name": "notebook", "scopes": ["write"], "days": "365"} | change
    response = client.post(reverse("account-tokens"), form)
    html = response.content.decode()
    assert response.status_code == 400
    assert said in html
    assert faults_of(html) == []
    assert ('value="notebook"' in html) == ("name" not in change)
    assert ('value="write" checked' in html) == ("scopes" not in change)
    assert ('value="365" selected' in html) == ("days" not in change)
    assert not ApiToken.objects.exists()


def test_somebody_elses_token_is_as_unknown_as_none(lou: Any) -> None:
    make(make_user("kim", Role.LEAD))
    theirs, none = ApiToken.objects.get().uid, uuid4()
    client = Client()
    client.force_login(lou)
    for name, method in (("api-token", "get"), ("api-token", "delete")):
        answers = [
            getattr(client, method)(reverse(name, kwargs={"uid": uid})) for uid in (theirs, none)
        ]
        assert [one.status_code for one in answers] == [404, 404]
        assert answers[0].content == answers[1].content
    for uid in (theirs, none):
        page = reverse("account-token-revoke", kwargs={"uid": uid})
        assert client.post(page).status_code == 404
        with pytest.raises(TokenMissing):
            revoke_token(user=lou, uid=uid, at=NOW)
    assert ApiToken.objects.get().revoked_at is None


def test_the_api_makes_lists_and_revokes_ones_own(lou: Any) -> None:
    make(make_user("kim", Role.LEAD), name="not mine")
    client = Client()
    client.force_login(lou)
    url = reverse("api-tokens")
    body = {"name": "notebook", "scopes": ["read"], "expires_at": "2099-01-01T00:00:00Z"}
    key = {"Idempotency-Key": "once"}
    made = client.post(url, body, content_type="application/json", headers=key)
    assert made.status_code == 201
    text = made.json()["token"]
    assert status(text) == 200
    again = client.post(url, body, content_type="application/json", headers=key)
    assert again.status_code == 409
    assert text not in again.content.decode()
    listed = client.get(url).json()["results"]
    assert [one["name"] for one in listed] == ["notebook"]
    assert "token" not in listed[0]
    assert listed[0]["last_used_at"]
    refusals: tuple[dict[str, Any], ...] = (
        {"scopes": ["admin"]},
        {"scopes": []},
        {"expires_at": "2001-01-01T00:00:00Z"},
        {"user": "kim"},
        {"token_sha256": "0" * 64},
    )
    for bad in refusals:
        refused = client.post(url, body | bad, content_type="application/json")
        assert refused.status_code == 400, bad
        assert next(iter(refused.json()["fields"])).partition(".")[0] in bad
    own = reverse("api-token", kwargs={"uid": listed[0]["uid"]})
    for _ in range(2):
        assert client.delete(own).status_code == 204
    assert status(text) == 401
    assert ApiToken.objects.count() == 2
