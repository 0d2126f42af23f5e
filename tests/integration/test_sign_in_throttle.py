"""Guessing is slow: passwords by name and by address, links by address; and nothing leaks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from statistics import median
from threading import Barrier
from time import perf_counter
from typing import Any

import pytest
from django.db import connection, connections
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from tests.factories import NOW, make_user
from workbench import throttle
from workbench.kernel.addresses import client_address
from workbench.kernel.logs import HideLinks
from workbench.kernel.roles import Role
from workbench.models import SignInFailure
from workbench.throttle import LIMIT_OF_ADDRESS, LIMIT_OF_NAME, WINDOW, HeldBack

PASSWORD = "a long pass phrase"
SECOND = timedelta(seconds=1)


@pytest.fixture
def lee(db: None, settings: Any) -> Any:
    # Thorough hashing is slow on purpose; only one test is about that.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    user = make_user("lee", Role.LEAD)
    user.set_password(PASSWORD)
    user.save()
    return user


def try_in(client: Client, name: str = "lee", password: str = "wrong", **extra: Any) -> Any:
    return client.post(reverse("sign-in"), {"username": name, "password": password}, **extra)


def wrong_guess(name: str = "lee", address: str = "192.0.2.1", at: Any = NOW) -> None:
    throttle.was_wrong(throttle.begin_guess(name=name, address=address, at=at))


# --- by name ------------------------------------------------------------------------


def test_the_eleventh_bad_sign_in_is_held_back_and_so_is_the_right_password(
    client: Client, lee: Any
) -> None:
    assert [try_in(client).status_code for _ in range(10)] == [200] * 10
    for password in ("wrong", PASSWORD):
        response = try_in(client, password=password)
        assert response.status_code == 429
        assert 1 <= int(response["Retry-After"]) <= 300
        assert "Wait 5 minutes" in response.content.decode()
    assert "_auth_user_id" not in client.session
    # The window ends: 5 minutes after the first of the ten.
    SignInFailure.objects.update(at=timezone.now() - WINDOW)
    assert try_in(client, password=PASSWORD).status_code == 302
    assert client.session["_auth_user_id"] == str(lee.pk)


def test_nine_bad_ones_leave_the_right_password_its_turn(client: Client, lee: Any) -> None:
    for _ in range(9):
        try_in(client)
    assert try_in(client, password=PASSWORD).status_code == 302
    # The right one was no failure.
    assert SignInFailure.objects.count() == 9


def test_a_name_that_nobody_has_is_held_back_alike(client: Client, lee: Any) -> None:
    answers = {}
    for name in ("lee", "nobody"):
        found = [try_in(client, name=name) for _ in range(11)]
        answers[name] = [
            (
                response.status_code,
                # What differs is the name itself and the form's token.
                [
                    line
                    for line in response.content.decode().replace(name, "NAME").splitlines()
                    if "csrfmiddlewaretoken" not in line
                ],
            )
            for response in found
        ]
    assert answers["lee"] == answers["nobody"]
    assert answers["lee"][-1][0] == 429


def test_a_person_without_a_password_and_a_deactivated_one_answer_alike(
    client: Client, lee: Any
) -> None:
    make_user("kim", Role.ANNOTATOR)
    lee.is_active = False
    lee.save()
    bodies = {
        try_in(client, name=name, password=PASSWORD).content.decode().count("belong together")
        for name in ("lee", "kim", "nobody")
    }
    assert bodies == {2}  # in the summary and at the field


def test_names_count_without_regard_to_case_and_width(client: Client, lee: Any) -> None:
    for name in ("lee", "LEE", "Lee ", " lEe", "ｌｅｅ") * 2:
        assert try_in(client, name=name).status_code == 200
    assert try_in(client, password=PASSWORD).status_code == 429


def test_other_names_go_on(client: Client, lee: Any) -> None:
    for _ in range(11):
        try_in(client, name="nobody")
    assert try_in(client, password=PASSWORD).status_code == 302


def test_being_held_back_makes_the_pause_no_longer(db: None) -> None:
    for n in range(LIMIT_OF_NAME):
        wrong_guess(at=NOW + n * SECOND)
    for n in range(100, 200):
        with pytest.raises(HeldBack) as caught:
            wrong_guess(at=NOW + n * SECOND)
        # It ends 300 s after the first of the ten.
        assert caught.value.retry_after_s == 300 - n
    assert SignInFailure.objects.count() == LIMIT_OF_NAME
    wrong_guess(at=NOW + WINDOW)  # one place is free
    with pytest.raises(HeldBack):
        wrong_guess(at=NOW + WINDOW)


# --- by address ---------------------------------------------------------------------


def test_the_51st_bad_sign_in_from_one_address_is_held_back(client: Client, lee: Any) -> None:
    for n in range(LIMIT_OF_ADDRESS):
        wrong_guess(name=f"name-{n}", address="192.0.2.7", at=timezone.now())
    held = try_in(client, password=PASSWORD, REMOTE_ADDR="192.0.2.7")
    assert held.status_code == 429
    assert try_in(client, password=PASSWORD, REMOTE_ADDR="192.0.2.8").status_code == 302


@pytest.mark.parametrize("name", ["sign-in-link", "invite", "reset"])
def test_guessing_links_is_held_back_by_address(client: Client, lee: Any, name: str) -> None:
    url = reverse(name, kwargs={"token": "x" * 43})
    for n in range(LIMIT_OF_ADDRESS):
        answer = client.get(url) if n % 2 else client.post(url)
        assert answer.status_code == 410
    for answer in (client.get(url), client.post(url), try_in(client, password=PASSWORD)):
        assert answer.status_code == 429
        assert int(answer["Retry-After"]) > 0
    assert client.get(url, REMOTE_ADDR="192.0.2.8").status_code == 410


def test_opening_a_used_link_again_is_no_guess(client: Client, lee: Any) -> None:
    from workbench.accounts import create_sign_in_link, redeem

    token = create_sign_in_link(user=lee, now=timezone.now())
    redeem(token=token, now=timezone.now())
    for _ in range(LIMIT_OF_ADDRESS + 1):
        answer = client.get(reverse("sign-in-link", kwargs={"token": token}))
        assert answer.status_code == 410
    assert not SignInFailure.objects.exists()


@pytest.mark.parametrize(
    ("proxies", "forwarded", "found"),
    [
        (0, "203.0.113.9", "192.0.2.1"),  # anybody can write that header
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "198.51.100.1, 203.0.113.9", "203.0.113.9"),  # the first was made up
        (2, "198.51.100.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        (2, "203.0.113.9", "192.0.2.1"),  # one hop is missing: believe nothing
        (1, "", "192.0.2.1"),
        (1, "unknown", "192.0.2.1"),
        (1, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        (1, "::ffff:203.0.113.9", "203.0.113.9"),
    ],
)
def test_the_clients_address_is_what_the_outermost_trusted_proxy_wrote(
    proxies: int, forwarded: str, found: str, settings: Any
) -> None:
    settings.TRUSTED_PROXIES = proxies
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    request = RequestFactory().get("/", REMOTE_ADDR="192.0.2.1", headers=headers)
    assert client_address(request) == found
    assert len(found) <= 45


def test_a_request_over_a_unix_socket_has_no_address() -> None:
    assert client_address(RequestFactory().get("/", REMOTE_ADDR="")) == ""


# --- many at once -------------------------------------------------------------------


def _all_at_once(number: int, work: Callable[[], bool]) -> int:
    """Return how many of ``number`` threads that start together were let through."""
    barrier = Barrier(number)

    def one(_: int) -> bool:
        try:
            connection.ensure_connection()
            barrier.wait()
            return work()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(number) as pool:
        return sum(pool.map(one, range(number)))


def _let_through(begin: Callable[..., Any]) -> bool:
    try:
        begin(name="lee", address="192.0.2.1", at=NOW)
    except HeldBack:
        return False
    return True


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_of_many_guesses_at_once_no_more_pass_than_one_by_one() -> None:
    for _ in range(LIMIT_OF_NAME - 3):
        wrong_guess()
    assert _all_at_once(12, lambda: _let_through(throttle.begin_guess)) <= 3
    assert SignInFailure.objects.count() <= LIMIT_OF_NAME


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_counted_before_it_is_stored_more_would_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above with the order turned round: it does notice."""
    counted = Barrier(6)

    def careless(**guess: Any) -> None:
        if throttle._wait(at=NOW, limit=LIMIT_OF_NAME, but=0, name_sha256=digest):
            raise HeldBack(1)
        counted.wait(timeout=20)
        SignInFailure.objects.create(name_sha256=digest, address=guess["address"], at=NOW)

    digest = throttle.name_hash("lee")
    for _ in range(LIMIT_OF_NAME - 3):
        wrong_guess()
    assert _all_at_once(6, lambda: _let_through(careless)) == 6


# --- what is kept and said ----------------------------------------------------------


def test_the_log_has_a_hash_and_neither_name_nor_password(
    client: Client, lee: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for _ in range(11):
        try_in(client, name="Somebody.Secret", password="hunter2hunter2")
    assert throttle.name_hash("somebody.secret")[:16] in caplog.text
    assert "held back" in caplog.text
    assert "secret" not in caplog.text.lower()
    assert "hunter2" not in caplog.text


def test_only_a_keyed_hash_of_the_name_is_stored(db: None, settings: Any) -> None:
    wrong_guess(name="my password by mistake")
    row = SignInFailure.objects.get()
    assert row.name_sha256 == throttle.name_hash("MY PASSWORD by mistake")
    settings.SECRET_KEY = "another-key" * 6
    assert throttle.name_hash("my password by mistake") != row.name_sha256


def test_old_failures_are_forgotten_and_new_ones_are_not(db: None) -> None:
    wrong_guess(at=NOW)
    wrong_guess(at=NOW + SECOND)
    throttle.forget_old_failures(now=NOW + WINDOW)
    assert [row.at for row in SignInFailure.objects.all()] == [NOW + SECOND]


def test_an_unknown_name_takes_as_long_as_a_wrong_password(
    client: Client, lee: Any, settings: Any
) -> None:
    """A password is hashed either way; without that the unknown name is 100 times faster."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.PBKDF2PasswordHasher"]
    lee.set_password(PASSWORD)
    lee.save()

    def seconds(name: str) -> float:
        taken = []
        for n in range(5):
            began = perf_counter()
            try_in(client, name=name, password=f"wrong {n}")
            taken.append(perf_counter() - began)
        return median(taken)

    known, unknown = seconds("lee"), seconds("nobody")
    assert 0.5 < known / unknown < 2


@pytest.mark.parametrize("path", ["invite", "reset", "sign-in/link"])
def test_no_link_stands_in_a_log(path: str) -> None:
    line = logging.LogRecord(
        "django.request", 30, "", 0, "%s: %s", ("Bad Request", f"/{path}/s3cret-T0ken/"), None
    )
    assert HideLinks().filter(line)
    assert line.getMessage() == f"Bad Request: /{path}/.../"
    other = logging.LogRecord("x", 30, "", 0, "at %s", ("/people/kim/",), None)
    HideLinks().filter(other)
    assert other.getMessage() == "at /people/kim/"


def test_the_log_of_the_settings_hides_links(settings: Any) -> None:
    handlers = settings.LOGGING["handlers"]
    assert all("links" in handler["filters"] for handler in handlers.values())
