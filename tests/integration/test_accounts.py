"""Signing in and out: passwords, one-time links, sessions, roles, and their commands."""

from __future__ import annotations

import logging
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from tests.factories import NOW, make_user
from workbench.accounts import (
    LinkFault,
    LinkInvalid,
    NameTaken,
    create_sign_in_link,
    create_user,
    ensure_user,
    link_fault,
    redeem,
    set_role,
)
from workbench.kernel.roles import Role, role_of
from workbench.models import AuditEvent, SignInLink

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


@pytest.fixture
def lee() -> Any:
    user = make_user("lee", Role.LEAD)
    user.set_password("a long pass phrase")
    user.save()
    return user


def path_of(token: str) -> str:
    return reverse("sign-in-link", kwargs={"token": token})


def fresh(user: Any) -> Any:
    """Return the user as the next request would load them."""
    return get_user_model().objects.get(pk=user.pk)


# --- people and roles ------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_a_user_has_the_role_they_were_created_with(role: Role) -> None:
    user = create_user(name="kim", role=role, at=NOW)
    assert role_of(fresh(user)) is role
    assert not user.has_usable_password()
    assert not user.is_staff
    events = list(AuditEvent.objects.order_by("pk").values_list("verb", "subject", "reason"))
    assert events == [("user.created", "kim", ""), ("user.role_set", "kim", role.value)]


def test_a_name_is_used_once_and_must_be_one(lee: Any) -> None:
    with pytest.raises(NameTaken):
        create_user(name="lee", role=None, at=NOW)
    with pytest.raises(ValidationError):
        create_user(name="<script>", role=Role.LEAD, at=NOW)
    assert get_user_model().objects.count() == 1


def test_a_role_replaces_the_one_before_and_leaves_other_groups(lee: Any) -> None:
    lee.groups.add(Group.objects.create(name="night shift"))
    assert role_of(lee) is Role.LEAD
    set_role(user=lee, role=Role.ANNOTATOR, at=NOW)
    assert role_of(lee) is Role.ANNOTATOR
    assert set(lee.groups.values_list("name", flat=True)) == {"annotator", "night shift"}


def test_a_superuser_is_an_admin_and_nobody_else_is_anything() -> None:
    root = get_user_model().objects.create_superuser("root")
    plain = create_user(name="kim", role=None, at=NOW)
    assert role_of(root) is Role.ADMIN
    assert role_of(plain) is None


def test_ensure_user_makes_one_user_and_gives_the_role_back() -> None:
    make_user("lee", Role.ADMIN)  # the demo's admin isn't the last one
    get_user_model().objects.update(last_login=NOW)
    first = ensure_user(name="demo", role=Role.ADMIN)
    assert ensure_user(name="demo", role=Role.ADMIN) == first
    set_role(user=first, role=Role.ANNOTATOR, at=NOW)
    assert role_of(fresh(ensure_user(name="demo", role=Role.ADMIN))) is Role.ADMIN


# --- links -----------------------------------------------------------------------


def test_a_link_signs_in_once(lee: Any) -> None:
    token = create_sign_in_link(user=lee, now=NOW, lifetime=HOUR)
    assert redeem(token=token, now=NOW) == lee
    with pytest.raises(LinkInvalid) as caught:
        redeem(token=token, now=NOW)
    assert caught.value.fault is LinkFault.USED
    assert AuditEvent.objects.filter(verb="user.signed_in_by_link").count() == 1


def test_a_link_works_to_the_end_of_its_time_and_not_at_it(lee: Any) -> None:
    late = create_sign_in_link(user=lee, now=NOW, lifetime=HOUR)
    with pytest.raises(LinkInvalid) as caught:
        redeem(token=late, now=NOW + HOUR)
    assert caught.value.fault is LinkFault.EXPIRED
    assert redeem(token=late, now=NOW + HOUR - timedelta(seconds=1)) == lee


def test_unknown_and_deactivated_links_are_refused(lee: Any) -> None:
    token = create_sign_in_link(user=lee, now=NOW, lifetime=HOUR)
    lee.is_active = False
    lee.save()
    assert link_fault(token="nonsense", now=NOW) is LinkFault.UNKNOWN
    with pytest.raises(LinkInvalid) as caught:
        redeem(token=token, now=NOW)
    assert caught.value.fault is LinkFault.INACTIVE
    assert SignInLink.objects.get().used_at is None


def test_only_a_hash_of_the_token_is_stored(lee: Any) -> None:
    token = create_sign_in_link(user=lee, now=NOW)
    link = SignInLink.objects.get()
    assert token not in link.token_sha256
    assert len(token) >= 43  # 32 random bytes in base64


def test_looking_at_a_link_spends_nothing_and_confirming_signs_in(client: Client, lee: Any) -> None:
    token = create_sign_in_link(user=lee, now=timezone.now())
    for _ in range(3):  # a mail client's preview, a chat's preview, the reader
        response = client.get(path_of(token))
        assert response.status_code == 200
        assert "Sign me in" in response.content.decode()
        assert client.head(path_of(token)).status_code == 200
    assert SignInLink.objects.get().used_at is None
    assert "_auth_user_id" not in client.session
    response = client.post(path_of(token), follow=True)
    assert response.redirect_chain == [(reverse("home"), 302)]
    assert client.session["_auth_user_id"] == str(lee.pk)


@pytest.mark.parametrize("how", ["used", "expired", "unknown"])
def test_a_link_that_no_longer_works_says_why_and_what_makes_a_new_one(
    client: Client, lee: Any, how: str
) -> None:
    past = timezone.now() - 2 * HOUR
    token = create_sign_in_link(user=lee, now=past, lifetime=HOUR if how == "expired" else 9 * HOUR)
    if how == "used":
        redeem(token=token, now=past)
    if how == "unknown":
        token = token[:-5]
    said = {"used": "was used already", "expired": "too old", "unknown": "No such link"}[how]
    for response in (client.get(path_of(token)), client.post(path_of(token))):
        assert response.status_code == 410
        html = response.content.decode()
        assert said in html
        assert "python3 manage.py sign_in_link USER" in html
    assert "_auth_user_id" not in client.session


def test_a_link_needs_the_forms_token(lee: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    token = create_sign_in_link(user=lee, now=timezone.now())
    assert client.post(path_of(token)).status_code == 403
    assert SignInLink.objects.get().used_at is None


# --- passwords and sessions ------------------------------------------------------


def test_a_password_signs_in_and_leads_back(client: Client, lee: Any) -> None:
    asked = client.get("/skills/")
    assert asked["Location"] == "/sign-in/?next=/skills/"
    form = {"username": "lee", "password": "a long pass phrase", "next": "/skills/"}
    response = client.post(reverse("sign-in"), form)
    assert response["Location"] == "/skills/"
    assert client.get(reverse("sign-in")).status_code == 302


@pytest.mark.parametrize("name", ["lee", "nobody"])
def test_a_wrong_password_and_an_unknown_name_answer_alike(
    client: Client, lee: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    form = {"username": name, "password": "wrong pass phrase"}
    response = client.post(reverse("sign-in"), form)
    html = response.content.decode()
    assert response.status_code == 200
    assert 'role="alert"' in html
    assert "don&#x27;t belong together" in html
    assert "wrong pass phrase" not in html
    assert "wrong pass phrase" not in caplog.text
    assert "_auth_user_id" not in client.session


def test_signing_in_leads_to_no_other_site(client: Client, lee: Any) -> None:
    form = {
        "username": "lee",
        "password": "a long pass phrase",
        "next": "https://evil.example/",
    }
    assert client.post(reverse("sign-in"), form)["Location"] == reverse("home")


def test_the_session_changes_its_id_at_sign_in_and_dies_at_sign_out(
    client: Client, lee: Any
) -> None:
    session = client.session  # a session of before, as an attacker would plant one
    session["planted"] = True
    session.save()
    planted = session.session_key
    assert planted
    client.cookies["workbench_session"] = planted
    client.post(reverse("sign-in"), {"username": "lee", "password": "a long pass phrase"})
    signed_in = client.cookies["workbench_session"]
    assert signed_in.value != planted
    assert signed_in["httponly"]
    assert signed_in["samesite"] == "Lax"
    assert signed_in["max-age"] == 12 * 3600
    assert client.get(reverse("sign-out")).status_code == 405
    client.post(reverse("sign-out"))
    thief = Client()
    thief.cookies["workbench_session"] = signed_in.value
    assert thief.get(reverse("home")).status_code == 302


def test_a_new_password_ends_other_sessions(client: Client, lee: Any) -> None:
    client.force_login(lee)
    assert client.get(reverse("home")).status_code == 200
    lee.set_password("another long pass phrase")
    lee.save()
    assert client.get(reverse("home")).status_code == 302


def test_a_deactivated_user_is_signed_out(client: Client, lee: Any) -> None:
    client.force_login(lee)
    lee.is_active = False
    lee.save()
    assert client.get(reverse("home")).status_code == 302


# --- command ---------------------------------------------------------------------


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("sign_in_link", *arguments, stdout=out)
    return out.getvalue().strip()


def test_the_command_prints_a_link_that_works(client: Client, lee: Any) -> None:
    url = run("lee", "--base-url", "https://audit.example/")
    assert url.startswith("https://audit.example/sign-in/link/")
    client.post(url.removeprefix("https://audit.example"))
    assert client.session["_auth_user_id"] == str(lee.pk)


def test_the_command_creates_a_user_only_when_told_their_role() -> None:
    with pytest.raises(CommandError, match=r"sign_in_link kim --role lead"):
        run("kim")
    assert not get_user_model().objects.exists()
    assert "/sign-in/link/" in run("kim", "--role", "annotator")
    assert role_of(get_user_model().objects.get(username="kim")) is Role.ANNOTATOR


def test_the_command_refuses_what_makes_no_link(lee: Any) -> None:
    with pytest.raises(CommandError, match="more than 0"):
        run("lee", "--hours", "0")
    with pytest.raises(CommandError, match="valid username"):
        run("not a name", "--role", "lead")
    lee.is_active = False
    lee.save()
    with pytest.raises(CommandError, match="deactivated"):
        run("lee")
    assert not SignInLink.objects.exists()
