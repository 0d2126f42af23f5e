"""People: who invites whom, one-time links, passwords, deactivation, roles; pages and API."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from datetime import timedelta
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import NOW, make_user
from tests.htmlchecks import Page, faults_of
from workbench import accounts
from workbench.accounts import (
    HasJoined,
    InvitationsRefused,
    Invitee,
    LastAdmin,
    LinkFault,
    LinkInvalid,
    NotActive,
    NotAllowed,
    PersonState,
    create_sign_in_link,
    deactivate,
    invite,
    link_fault,
    people,
    reactivate,
    redeem,
    redeem_with_password,
)
from workbench.kernel.roles import Role, role_of
from workbench.models import ApiToken, AuditEvent, LinkPurpose, SignInLink
from workbench.tokens import Scope, create_token
from workbench.views import links, signing_in
from workbench.views.people import read_invitees

pytestmark = pytest.mark.django_db

PASSWORD = "a long pass phrase"
DAY = timedelta(days=1)
INVITATION, RESET = LinkPurpose.INVITATION, LinkPurpose.PASSWORD_RESET


@pytest.fixture(autouse=True)
def quick_hashes(settings: Any) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def joined(name: str, role: Role | None) -> Any:
    """Return a person who has chosen a password."""
    user = make_user(name, role)
    user.set_password(PASSWORD)
    user.save()
    return user


@pytest.fixture
def ada() -> Any:
    return joined("ada", Role.ADMIN)


@pytest.fixture
def lou() -> Any:
    return joined("lou", Role.LEAD)


def signed_in(user: Any, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


def person(name: str) -> Any:
    return get_user_model().objects.get(username=name)


def verbs() -> list[str]:
    return list(AuditEvent.objects.order_by("pk").values_list("verb", flat=True))


def invited(actor: Any, name: str = "kim", role: Role = Role.ANNOTATOR, email: str = "") -> str:
    """Return the token of a new invitation."""
    made = invite(people=[Invitee(name, email)], role=role, actor=actor, at=timezone.now())
    return made[0].token


def form_of_password(password: str = PASSWORD, again: str | None = None) -> dict[str, str]:
    return {"password": password, "again": password if again is None else again}


def path_of(name: str, token: str) -> str:
    return reverse(name, kwargs={"token": token})


# --- who may invite whom ------------------------------------------------------------


@pytest.mark.parametrize("role", list(Role))
def test_admins_invite_anyone_and_leads_annotators_only(ada: Any, lou: Any, role: Role) -> None:
    ann = joined("ann", Role.ANNOTATOR)
    allowed = {"ada"} | ({"lou"} if role is Role.ANNOTATOR else set())
    for actor in (ada, lou, ann):
        new = f"new-{actor.username}"
        if actor.username in allowed:
            invited(actor, new, role)
            assert role_of(person(new)) is role
        else:
            with pytest.raises(NotAllowed):
                invited(actor, new, role)
            assert not get_user_model().objects.filter(username=new).exists()


def test_the_page_refuses_a_lead_who_invites_a_lead_and_says_nothing_of_it(lou: Any) -> None:
    client = signed_in(lou)
    for role in ("lead", "admin"):
        response = client.post(reverse("people"), {"people": "kim", "role": role})
        assert response.status_code == 403
    html = client.get(reverse("people")).content.decode()
    assert "lead: runs" not in html  # not even offered
    assert not get_user_model().objects.filter(username="kim").exists()


def test_a_demoted_lead_invites_nobody_even_with_an_old_page(ada: Any, lou: Any) -> None:
    accounts.change_role(user=lou, role=Role.ANNOTATOR, actor=ada, at=NOW)
    stale: Any = get_user_model().objects.get(pk=lou.pk)
    stale._role = Role.LEAD  # as the request found it a moment ago
    with pytest.raises(NotAllowed):
        invited(stale)


def test_a_pasted_list_invites_all_and_shows_each_link_once(ada: Any) -> None:
    client = signed_in(ada)
    text = "kim, kim@example.org\r\nmin\tmin@example.org\n\n  sam sam@example.org\nzoe\n"
    response = client.post(reverse("people"), {"people": text, "role": "annotator"})
    assert response.status_code == 200
    html = response.content.decode()
    assert faults_of(html) == []
    tokens = re.findall(r'data-copy title="link of (\w+)">http\S+/invite/([\w-]+)/<', html)
    assert [name for name, _ in tokens] == ["kim", "min", "sam", "zoe"]
    assert {link.user.email for link in SignInLink.objects.select_related("user")} == {
        "kim@example.org",
        "min@example.org",
        "sam@example.org",
        "",
    }
    later = client.get(reverse("people")).content.decode()
    for name, token in tokens:
        assert token not in later
        assert link_fault(token=token, now=timezone.now(), purpose=INVITATION) is None
        assert name in later
        assert not SignInLink.objects.filter(token_sha256__contains=token).exists()
    assert response["Cache-Control"] == "no-store"


def test_faults_are_told_by_line_and_nothing_typed_is_lost(ada: Any) -> None:
    make_user("Taken", Role.LEAD)
    text = "kim\n<script>\ntaken\nmin not-an-address\nkim x@example.org\nzoe a@b.example c"
    client = signed_in(ada)
    response = client.post(reverse("people"), {"people": text, "role": "annotator"})
    html = response.content.decode()
    assert response.status_code == 400
    assert faults_of(html) == []
    assert "write a user name, then a mail address, no more." in html
    assert "&lt;script&gt;" in html
    response = client.post(
        reverse("people"), {"people": text.replace(" c", ""), "role": "annotator"}
    )
    html = response.content.decode()
    for said in (
        ": Enter a valid username.",
        ": there is a user &#x27;taken&#x27; already",
        ": This is no mail address: ",
        ": &#x27;kim&#x27; stands here twice",
    ):
        assert said in html
    assert "Line 6" not in html
    assert faults_of(html) == []
    assert set(get_user_model().objects.values_list("username", flat=True)) == {"ada", "Taken"}
    assert not SignInLink.objects.exists()


def test_at_most_200_are_invited_at_once_and_at_least_one(ada: Any) -> None:
    assert "Write at least one" in read_invitees(" \n,\n")[2][0].text
    many = "\n".join(f"rater-{n}" for n in range(201))
    assert "At most 200" in read_invitees(many)[2][0].text
    assert len(read_invitees(many.rpartition("\n")[0])[0]) == 200
    assert read_invitees("x" * 20_001)[2]


@given(st.text())
def test_any_pasted_text_is_read_or_told_by_line(text: str) -> None:
    found, places, faults = read_invitees(text)
    assert len(found) == len(places)
    assert bool(found) or bool(faults)
    lines = text.splitlines()
    for one, place in zip(found, places, strict=True):
        assert one.name in lines[place - 1]
        assert one.email in lines[place - 1]


@pytest.mark.parametrize("name", ["..", ".", "a b", "a/b", "", "x" * 151])
def test_names_that_no_address_holds_are_refused(ada: Any, name: str) -> None:
    with pytest.raises(InvitationsRefused):
        invited(ada, name)


# --- accepting ----------------------------------------------------------------------


def test_an_invitation_lets_its_person_in_once_with_a_password_of_theirs(
    client: Client, ada: Any
) -> None:
    url = path_of("invite", invited(ada))
    for _ in range(3):  # previews
        for response in (client.get(url), client.head(url)):
            assert response.status_code == 200
    page = Page(client.get(url).content.decode())
    controls = {one["name"]: one for one in page.all("input") if one.get("name")}
    assert controls["username"]["value"] == "kim"
    assert controls["username"]["autocomplete"] == "username"
    assert controls["password"]["autocomplete"] == "new-password"
    assert controls["again"]["autocomplete"] == "new-password"
    assert "annotator" in page.text
    assert not person("kim").has_usable_password()
    assert SignInLink.objects.get().used_at is None
    response = client.post(url, form_of_password())
    assert response["Location"] == reverse("home")
    assert client.session["_auth_user_id"] == str(person("kim").pk)
    assert person("kim").check_password(PASSWORD)
    assert verbs()[-1] == "user.invitation_accepted"
    for again in (client.get(url), client.post(url, form_of_password("another long phrase"))):
        assert again.status_code == 410
        assert "used already" in again.content.decode()
    assert person("kim").check_password(PASSWORD)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "Choose a password."),
        (form_of_password("short"), "too short"),
        (form_of_password("1234567890123"), "entirely numeric"),
        (form_of_password("password1234"), "too common"),
        (form_of_password("kimberley-1"), "too similar to the username"),
        (form_of_password(PASSWORD, "another"), "not the same"),
    ],
)
def test_a_weak_or_mistyped_password_spends_nothing(
    client: Client, ada: Any, form: dict[str, str], said: str
) -> None:
    token = invited(ada, "kimberley")
    response = client.post(path_of("invite", token), form)
    html = response.content.decode()
    assert response.status_code == 400
    assert said in html
    assert faults_of(html) == []
    for value in form.values():
        assert f'value="{value}"' not in html
    assert "_auth_user_id" not in client.session
    assert client.post(path_of("invite", token), form_of_password()).status_code == 302


def test_an_invitation_lives_seven_days_and_a_reset_one(ada: Any) -> None:
    kim = joined("kim", Role.ANNOTATOR)
    invitation = invite(people=[Invitee("min")], role=Role.LEAD, actor=ada, at=NOW)[0]
    reset = accounts.create_reset_link(user=kim, actor=ada, at=NOW)
    for link, purpose, life in ((invitation, INVITATION, 7 * DAY), (reset, RESET, DAY)):
        just = NOW + life - timedelta(seconds=1)
        assert link.expires_at == NOW + life
        assert link_fault(token=link.token, now=just, purpose=purpose) is None
        late = link_fault(token=link.token, now=NOW + life, purpose=purpose)
        assert late is LinkFault.EXPIRED
        with pytest.raises(LinkInvalid):
            redeem_with_password(
                token=link.token, purpose=purpose, password=PASSWORD, now=NOW + life
            )


def test_a_link_serves_its_own_purpose_only(client: Client, ada: Any) -> None:
    kim = joined("kim", Role.ANNOTATOR)
    tokens = {
        "invite": invited(ada, "min"),
        "reset": accounts.create_reset_link(user=kim, actor=ada, at=timezone.now()).token,
        "sign-in-link": create_sign_in_link(user=kim, now=timezone.now()),
    }
    for name, token in tokens.items():
        for other in tokens:
            status = client.get(path_of(other, token)).status_code
            assert status == (200 if other == name else 410), (name, other)


def test_who_is_signed_in_as_another_is_told_before_they_are_signed_out(ada: Any) -> None:
    client = signed_in(ada)
    url = path_of("invite", invited(ada))
    assert "You are signed in as ada" in client.get(url).content.decode()
    client.post(url, form_of_password())
    assert client.session["_auth_user_id"] == str(person("kim").pk)


def test_a_form_without_its_token_spends_no_link_and_logs_none(
    ada: Any, caplog: pytest.LogCaptureFixture
) -> None:
    token = invited(ada)
    client = Client(enforce_csrf_checks=True)
    assert client.post(path_of("invite", token), form_of_password()).status_code == 403
    assert SignInLink.objects.get().used_at is None
    # The handler of the settings comes first and hides it for whoever comes after.
    assert "/invite/.../" in caplog.text
    assert token not in caplog.text


def test_what_accepting_gives_is_decided_by_the_invitation(client: Client, ada: Any) -> None:
    url = path_of("invite", invited(ada))
    for extra in ({"role": "admin"}, {"is_staff": "1"}, {"is_superuser": "on"}, {"user": "ada"}):
        assert client.post(url, form_of_password() | extra).status_code == 400
    # The name of the form is for password managers; it decides nothing.
    client.post(url, form_of_password() | {"username": "ada"})
    kim = person("kim")
    assert role_of(kim) is Role.ANNOTATOR
    assert (kim.is_staff, kim.is_superuser) == (False, False)
    assert person("ada").pk != int(client.session["_auth_user_id"])


# --- pending invitations ------------------------------------------------------------


def test_a_new_link_ends_the_one_before(ada: Any) -> None:
    first = invited(ada)
    second = accounts.invite_again(user=person("kim"), actor=ada, at=timezone.now()).token
    now = timezone.now()
    assert link_fault(token=first, now=now, purpose=INVITATION) is LinkFault.REVOKED
    assert link_fault(token=second, now=now, purpose=INVITATION) is None


def test_a_revoked_invitation_lets_nobody_in_and_can_be_made_again(ada: Any, lou: Any) -> None:
    token = invited(lou)
    client = signed_in(lou)
    where = {"name": "kim"}
    client.post(reverse("person-invitation-revoke", kwargs=where))
    assert Client().get(path_of("invite", token)).status_code == 410
    assert people().get(username="kim").invited_until is None
    before = verbs()
    client.post(reverse("person-invitation-revoke", kwargs=where))  # nothing is out any more
    assert verbs() == before
    html = client.post(reverse("person-invitation", kwargs=where)).content.decode()
    again = re.search(r"/invite/([\w-]+)/", html)
    assert again
    assert Client().get(path_of("invite", again[1])).status_code == 200


def test_who_has_joined_is_not_invited_again(ada: Any) -> None:
    joined("kim", Role.ANNOTATOR)
    with pytest.raises(HasJoined):
        accounts.invite_again(user=person("kim"), actor=ada, at=NOW)
    client = signed_in(ada)
    response = client.post(reverse("person-invitation", kwargs={"name": "kim"}), follow=True)
    assert "has joined already" in response.content.decode()
    assert not SignInLink.objects.exists()


# --- password resets ----------------------------------------------------------------


def test_a_reset_sets_the_password_and_ends_every_other_session_and_link(ada: Any) -> None:
    kim = joined("kim", Role.ANNOTATOR)
    elsewhere, stranger = signed_in(kim), signed_in(ada)
    sign_in = create_sign_in_link(user=kim, now=timezone.now())
    html = stranger.post(reverse("person-reset-link", kwargs={"name": "kim"})).content.decode()
    token = re.search(r"/reset/([\w-]+)/", html)
    assert token
    assert elsewhere.get(reverse("home")).status_code == 200  # until it is used
    client = Client()
    client.post(path_of("reset", token[1]), form_of_password("another long phrase"))
    assert client.get(reverse("account")).status_code == 200
    assert elsewhere.get(reverse("account")).status_code == 302
    assert stranger.get(reverse("account")).status_code == 200
    kim = person("kim")
    assert kim.check_password("another long phrase")
    assert not kim.check_password(PASSWORD)
    assert link_fault(token=sign_in, now=timezone.now()) is LinkFault.REVOKED


def test_leads_reset_annotators_only_and_annotators_nobody(ada: Any, lou: Any) -> None:
    ann, other = joined("ann", Role.ANNOTATOR), joined("bob", Role.LEAD)
    assert accounts.create_reset_link(user=ann, actor=lou, at=NOW)
    for user in (ada, other, lou):
        with pytest.raises(NotAllowed):
            accounts.create_reset_link(user=user, actor=lou, at=NOW)
    with pytest.raises(NotAllowed):
        accounts.create_reset_link(user=ann, actor=ann, at=NOW)
    for user in (ann, other, ada):
        assert accounts.create_reset_link(user=user, actor=ada, at=NOW)
    client = signed_in(lou)
    url = reverse("person-reset-link", kwargs={"name": "ada"})
    assert client.post(url).status_code == 403
    assert "Make a reset link" not in client.get(url.replace("reset-link/", "")).content.decode()


# --- races --------------------------------------------------------------------------


def both(*works: Callable[[], object]) -> list[object]:
    """Return what each of the works came to, started together."""
    barrier = Barrier(len(works))

    def one(work: Callable[[], object]) -> object:
        try:
            connection.ensure_connection()
            barrier.wait()
            return work()
        except Exception as error:
            return error
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(one, works))


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("purpose", [INVITATION, RESET])
def test_of_two_who_use_a_link_at_once_exactly_one_wins(purpose: LinkPurpose) -> None:
    ada = joined("ada", Role.ADMIN)
    token = invited(ada)
    if purpose == RESET:
        token = accounts.create_reset_link(user=person("kim"), actor=ada, at=timezone.now()).token

    def use(password: str) -> Callable[[], object]:
        return lambda: redeem_with_password(
            token=token, purpose=purpose, password=password, now=timezone.now()
        )

    phrases = [f"a long phrase of number {n}" for n in range(4)]
    found = both(*(use(phrase) for phrase in phrases))
    winners = [n for n, one in enumerate(found) if one == person("kim")]
    losers = [one for one in found if isinstance(one, LinkInvalid)]
    assert (len(winners), len(losers)) == (1, 3), found
    assert {one.fault for one in losers} == {LinkFault.USED}
    assert person("kim").check_password(phrases[winners[0]])
    verb = "user.invitation_accepted" if purpose == INVITATION else "user.password_reset"
    assert verbs().count(verb) == 1


@contextlib.contextmanager
def both_look_before_either_acts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold each at the look at the other admins until the other has looked as well."""
    looked = Barrier(2)
    look = accounts._admins_besides

    def slowly(user: Any) -> bool:
        found = look(user)
        # Where they take turns, the second never comes while the first waits.
        with contextlib.suppress(BrokenBarrierError):
            looked.wait(timeout=0.5)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(accounts, "_admins_besides", slowly)
        yield


def active_admins() -> set[str]:
    found = people().filter(role=Role.ADMIN, is_active=True)
    return set(found.values_list("username", flat=True))


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["role", "active", "mixed"])
def test_two_admins_who_end_each_other_at_once_leave_one(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, abe = joined("ada", Role.ADMIN), joined("abe", Role.ADMIN)

    def end(user: Any, actor: Any, how: str) -> Callable[[], object]:
        if how == "role":
            return lambda: accounts.change_role(user=user, role=Role.LEAD, actor=actor, at=NOW)
        return lambda: deactivate(user=user, actor=actor, at=NOW)

    hows = {"role": ("role", "role"), "active": ("a", "a"), "mixed": ("role", "a")}[way]
    with both_look_before_either_acts(monkeypatch):
        found = both(end(ada, abe, hows[0]), end(abe, ada, hows[1]))
    assert len(active_admins()) == 1, found
    assert [type(one) for one in found if one] == [NotAllowed]


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_without_its_lock_the_last_admin_can_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above with the guard removed: it does notice."""
    if connection.vendor == "sqlite":
        pytest.skip("on SQLite transactions that write take turns whatever is locked")
    ada, abe = joined("ada", Role.ADMIN), joined("abe", Role.ADMIN)
    joined("lou", Role.LEAD)  # else the second waits for the first to make the group
    monkeypatch.setattr(accounts, "_lock_admins", lambda: None)
    with both_look_before_either_acts(monkeypatch):
        both(
            lambda: accounts.change_role(user=ada, role=Role.LEAD, actor=abe, at=NOW),
            lambda: accounts.change_role(user=abe, role=Role.LEAD, actor=ada, at=NOW),
        )
    assert active_admins() == set()


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_two_who_invite_the_same_name_at_once_make_one_person() -> None:
    ada, abe = joined("ada", Role.ADMIN), joined("abe", Role.ADMIN)
    found = both(lambda: invited(ada), lambda: invited(abe))
    assert sorted(type(one).__name__ for one in found) == ["InvitationsRefused", "str"], found
    assert SignInLink.objects.filter(user__username="kim").count() == 1


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_a_link_used_while_its_person_is_deactivated_lets_nobody_in() -> None:
    ada = joined("ada", Role.ADMIN)
    token = invited(ada)
    kim = person("kim")
    both(
        lambda: deactivate(user=kim, actor=ada, at=timezone.now()),
        lambda: redeem_with_password(
            token=token, purpose=INVITATION, password=PASSWORD, now=timezone.now()
        ),
    )
    assert not person("kim").is_active
    fault = link_fault(token=token, now=timezone.now(), purpose=INVITATION)
    assert fault in (LinkFault.USED, LinkFault.INACTIVE)


def reset(user: Any, actor: Any) -> str:
    """Return the token of a new reset link."""
    return accounts.create_reset_link(user=user, actor=actor, at=timezone.now()).token


def fault_of(token: str, purpose: LinkPurpose) -> LinkFault | None:
    """Return what the page and the redemption say of the link, which is the same."""
    said = link_fault(token=token, now=timezone.now(), purpose=purpose)
    redeemed: LinkFault | None = None
    try:
        redeem_with_password(token=token, purpose=purpose, password=PASSWORD, now=timezone.now())
    except LinkInvalid as refused:
        redeemed = refused.fault
    assert redeemed is said
    return said


def test_another_role_ends_the_links_that_were_made_for_the_one_before(ada: Any, lou: Any) -> None:
    """A lead who holds an annotator's reset link doesn't become the admin they are made."""
    kim, kai = joined("kim", Role.ANNOTATOR), joined("kai", Role.ANNOTATOR)
    held, kept = reset(kim, lou), reset(kai, lou)
    token = create_sign_in_link(user=kim, now=timezone.now())
    accounts.change_role(user=kim, role=Role.ADMIN, actor=ada, at=timezone.now())
    accounts.change_role(user=kai, role=Role.ANNOTATOR, actor=ada, at=timezone.now())
    assert fault_of(held, RESET) is LinkFault.REVOKED
    assert link_fault(token=token, now=timezone.now()) is LinkFault.REVOKED
    assert fault_of(kept, RESET) is None  # the same role again changes nothing


@pytest.mark.parametrize("how", ["deactivated", "demoted"])
def test_links_end_with_whoever_made_them(how: str, ada: Any) -> None:
    """Neither a reset of an admin's password nor an account made ahead is a way back."""
    abe, eve = joined("abe", Role.ADMIN), joined("eve", Role.ADMIN)
    to_reset, to_come = reset(ada, eve), invited(eve, "ghost", Role.ADMIN)
    of_another = reset(eve, abe)
    if how == "deactivated":
        deactivate(user=eve, actor=abe, at=timezone.now())
    else:
        accounts.change_role(user=eve, role=Role.LEAD, actor=abe, at=timezone.now())
    assert fault_of(to_reset, RESET) is LinkFault.REVOKED
    assert fault_of(to_come, INVITATION) is LinkFault.REVOKED
    assert person("ada").check_password(PASSWORD)
    assert not accounts.has_joined(person("ghost"))
    assert fault_of(of_another, RESET) is not None  # eve's own, made for the admin they were
    assert fault_of(reset(ada, abe), RESET) is None


@pytest.mark.parametrize("how", ["deactivated", "demoted", "promoted"])
def test_a_link_that_was_left_open_is_checked_again_when_it_is_used(
    how: str, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made in the moment of the change, a link escapes it; whoever uses it is refused all the same.

    The ending is taken away, so that what refuses here is the look at the maker alone.
    """
    lou, kim = joined("lou2", Role.LEAD), joined("kim", Role.ANNOTATOR)
    held = reset(kim, lou)
    monkeypatch.setattr(accounts, "_end_links_made_by", lambda user, *, at: None)
    monkeypatch.setattr(accounts, "_end_links", lambda user, *, at, purpose=None: 0)
    assert link_fault(token=held, now=timezone.now(), purpose=RESET) is None
    if how == "deactivated":
        deactivate(user=lou, actor=ada, at=timezone.now())
    elif how == "demoted":
        accounts.change_role(user=lou, role=Role.ANNOTATOR, actor=ada, at=timezone.now())
    else:
        accounts.change_role(user=kim, role=Role.LEAD, actor=ada, at=timezone.now())
    assert fault_of(held, RESET) is LinkFault.REVOKED
    monkeypatch.setattr(accounts, "_may_still", lambda link: True)
    assert fault_of(held, RESET) is None  # the guard removed


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_a_link_used_while_its_maker_is_deactivated_comes_first_or_not_at_all() -> None:
    ada, eve = joined("ada", Role.ADMIN), joined("eve", Role.ADMIN)
    joined("kim", Role.ANNOTATOR)
    token = reset(person("kim"), eve)
    _, used = both(
        lambda: deactivate(user=eve, actor=ada, at=timezone.now()),
        lambda: redeem_with_password(
            token=token, purpose=RESET, password=PASSWORD + "!", now=timezone.now()
        ),
    )
    order = [verb for verb in verbs() if verb in ("user.password_reset", "user.deactivated")]
    if isinstance(used, LinkInvalid):
        assert (used.fault, order) == (LinkFault.REVOKED, ["user.deactivated"])
    else:
        assert order == ["user.password_reset", "user.deactivated"]


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_two_who_made_links_for_each_other_use_them_at_once() -> None:
    ada, abe = joined("ada", Role.ADMIN), joined("abe", Role.ADMIN)
    tokens = reset(ada, abe), reset(abe, ada)

    def use(token: str) -> Callable[[], object]:
        return lambda: redeem_with_password(
            token=token, purpose=RESET, password=PASSWORD + "!", now=timezone.now()
        )

    assert set(both(*map(use, tokens))) == {ada, abe}


def test_the_trail_says_who_made_a_link_that_was_used(ada: Any, lou: Any) -> None:
    kim = joined("kim", Role.ANNOTATOR)
    assert fault_of(reset(kim, lou), RESET) is None
    event = AuditEvent.objects.get(verb="user.password_reset")
    assert (event.actor, event.subject, event.reason) == (kim, "kim", "link made by lou")
    assert fault_of(invited(ada, "new"), INVITATION) is None
    event = AuditEvent.objects.get(verb="user.invitation_accepted")
    assert event.reason == "link made by ada"


def test_a_link_from_the_command_line_is_in_the_trail() -> None:
    kim = joined("kim", Role.LEAD)
    call_command("sign_in_link", "kim")
    event = AuditEvent.objects.get(verb="user.sign_in_link_made")
    assert (event.actor, event.subject) == (None, "kim")
    assert SignInLink.objects.get().user == kim


# --- deactivating and roles ---------------------------------------------------------


def test_deactivating_ends_sessions_tokens_and_links_and_keeps_what_was_done(ada: Any) -> None:
    kim = joined("kim", Role.LEAD)
    theirs, mine = signed_in(kim), signed_in(ada)
    _, text = create_token(user=kim, name="t", scopes=[Scope.READ], at=timezone.now())
    link = create_sign_in_link(user=kim, now=timezone.now())
    done = invited(kim, "by-kim")
    bearer = {"Authorization": f"Bearer {text}"}
    api = reverse("api-people")
    assert Client().get(api, headers=bearer).status_code == 200
    response = mine.post(reverse("person-deactivate", kwargs={"name": "kim"}), follow=True)
    assert "kim is deactivated and signed out everywhere" in response.content.decode()
    assert theirs.get(reverse("home")).status_code == 302
    assert Client().get(api, headers=bearer).status_code == 401
    with pytest.raises(LinkInvalid):
        redeem(token=link, now=timezone.now())
    form = {"username": "kim", "password": PASSWORD}
    assert Client().post(reverse("sign-in"), form).status_code == 200
    # What they did is there, under their name; a link of theirs that nobody used yet ended.
    assert AuditEvent.objects.filter(actor=kim, verb="user.invited").exists()
    assert link_fault(token=done, now=timezone.now(), purpose=INVITATION) is LinkFault.REVOKED
    # Back again: the password works, and nothing else of before.
    mine.post(reverse("person-reactivate", kwargs={"name": "kim"}))
    assert theirs.get(reverse("home")).status_code == 302
    assert Client().get(api, headers=bearer).status_code == 401
    with pytest.raises(LinkInvalid):
        redeem(token=link, now=timezone.now())
    assert Client().post(reverse("sign-in"), form).status_code == 302
    assert [verb for verb in verbs() if "active" in verb or "activated" in verb] == [
        "user.deactivated",
        "user.reactivated",
    ]


def test_a_deactivated_person_gets_no_links(ada: Any) -> None:
    kim = make_user("kim", Role.ANNOTATOR)
    deactivate(user=kim, actor=ada, at=NOW)
    for make in (accounts.create_reset_link, accounts.invite_again):
        with pytest.raises(NotActive):
            make(user=kim, actor=ada, at=NOW)
    before = verbs()
    deactivate(user=kim, actor=ada, at=NOW)
    assert verbs() == before


def test_only_admins_change_access_and_roles_and_never_their_own(ada: Any, lou: Any) -> None:
    kim = joined("kim", Role.ANNOTATOR)
    for change in (deactivate, reactivate):
        for actor in (lou, kim):
            with pytest.raises(NotAllowed, match="Only an admin"):
                change(user=kim, actor=actor, at=NOW)
        with pytest.raises(NotAllowed, match="their own account"):
            change(user=ada, actor=ada, at=NOW)
    with pytest.raises(NotAllowed, match="their own account"):
        accounts.change_role(user=ada, role=Role.LEAD, actor=ada, at=NOW)
    accounts.change_role(user=kim, role=Role.LEAD, actor=ada, at=NOW)
    assert role_of(person("kim")) is Role.LEAD
    before = verbs()
    accounts.change_role(user=kim, role=Role.LEAD, actor=ada, at=NOW)
    assert verbs() == before
    page = signed_in(ada).get(reverse("person", kwargs={"name": "ada"})).content.decode()
    assert "Change the role" not in page
    assert "Deactivate" not in page


def test_the_last_admin_who_can_come_in_stays_one(ada: Any) -> None:
    root = get_user_model().objects.create_superuser("root", password=PASSWORD)
    with pytest.raises(LastAdmin):
        deactivate(user=ada, actor=_demoted(root, ada), at=NOW)
    # Somebody who was invited and never came is no admin to count on.
    make_user("abe", Role.ADMIN)
    with pytest.raises(LastAdmin):
        accounts.set_role(user=ada, role=Role.LEAD, at=NOW)
    joined("amy", Role.ADMIN)
    accounts.set_role(user=ada, role=Role.LEAD, at=NOW)
    assert role_of(person("ada")) is Role.LEAD


def _demoted(root: Any, ada: Any) -> Any:
    """Return an admin who has not come in: they may act, and don't count."""
    root.set_unusable_password()
    root.save()
    return root


def test_the_command_keeps_the_last_admin_too(ada: Any) -> None:
    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match="last active admin"):
        call_command("sign_in_link", "ada", "--role", "annotator")
    assert role_of(person("ada")) is Role.ADMIN
    assert not SignInLink.objects.exists()


# --- the list and the pages ---------------------------------------------------------


def test_the_list_shows_role_state_invitation_and_last_sign_in(ada: Any, lou: Any) -> None:
    invited(lou, "kim", email="kim@example.org")
    gone = joined("zoe", Role.ANNOTATOR)
    deactivate(user=gone, actor=ada, at=NOW)
    client = signed_in(lou)
    html = client.get(reverse("people")).content.decode()
    assert faults_of(html) == []
    for said in ("kim@example.org", "link works until", "inactive", "invited", "never"):
        assert said in html
    for query, names in {
        "role=annotator": {"kim", "zoe"},
        "state=invited": {"kim"},
        "state=inactive": {"zoe"},
        "state=active": {"ada", "lou"},
        "role=lead&state=active": {"lou"},
        "role=lead&state=invited": set(),
    }.items():
        page = client.get(f"{reverse('people')}?{query}").content.decode()
        assert set(re.findall(r'href="/people/(\w+)/"', page)) == names, query
        assert faults_of(page) == []
    for bad in ("state=gone", "password__startswith=a", "sort=password", "cursor=x"):
        assert client.get(f"{reverse('people')}?{bad}").status_code == 400


def test_long_lists_are_paged_in_every_order_with_as_many_queries(
    ada: Any, django_assert_max_num_queries: Any
) -> None:
    invite(
        people=[Invitee(f"rater-{n:03}") for n in range(120)],
        role=Role.ANNOTATOR,
        actor=ada,
        at=timezone.now(),
    )
    client = signed_in(ada)
    for sort in ("name", "-name", "last_sign_in", "-last_sign_in"):
        url, names = f"{reverse('people')}?sort={sort}&limit=50", []
        while url:
            with django_assert_max_num_queries(8):
                html = client.get(url).content.decode()
            names += re.findall(r'<a href="/people/([\w-]+)/">', html)
            following = re.search(r'<a href="([^"]+)">Next</a>', html)
            url = following[1].replace("&amp;", "&") if following else ""
        assert len(names) == len(set(names)) == 121, sort


def test_names_and_addresses_are_shown_as_text(ada: Any) -> None:
    name = "kim@x+y.z"
    invited(ada, name, email='"<b>"@example.org')
    html = signed_in(ada).get(reverse("person", kwargs={"name": name})).content.decode()
    assert faults_of(html) == []
    assert "<b>" not in html
    assert "&lt;b&gt;" in html


STATES = ("invited", "active", "inactive", "no role")


@pytest.mark.parametrize("state", STATES)
def test_a_person_in_every_state_keeps_to_the_rules_of_pages(
    ada: Any, lou: Any, state: str
) -> None:
    kim = make_user("kim", None if state == "no role" else Role.ANNOTATOR)
    if state != "invited":
        kim.set_password(PASSWORD)
        kim.is_active = state != "inactive"
        kim.save()
    for reader in (ada, lou):
        html = signed_in(reader).get(reverse("person", kwargs={"name": "kim"})).content.decode()
        assert faults_of(html) == []
        admin = reader is ada
        assert ("Change the role" in html) == admin
        assert ("Deactivate…" in html) == (admin and state != "inactive")
        assert ("Reactivate kim" in html) == (admin and state == "inactive")
        assert ("Make a new link" in html) == (state == "invited")
        assert ("Make a reset link" in html) == (
            state == "active" or (admin and state == "no role")
        )


def test_pages_of_links_get_their_dataclass_and_nothing_else(client: Client, ada: Any) -> None:
    token = invited(ada)
    expected = {
        "set_password.html": signing_in.PasswordPage,
        "people/links.html": links.LinksPage,
        "sign_in.html": signing_in.SignInPage,
    }
    admin = signed_in(ada)
    responses: list[Any] = [
        client.get(path_of("invite", token)),
        admin.post(reverse("people"), {"people": "min", "role": "lead"}),
        client.get(reverse("sign-in")),
    ]
    from_settings = {
        "True", "False", "None", "request", "user", "perms", "messages",
        "DEFAULT_MESSAGE_LEVELS", "csrf_token", "frame",
    }  # fmt: skip
    for response, (template, page) in zip(responses, expected.items(), strict=True):
        assert response.templates[0].name == template
        given_to_it = set(response.context[0].flatten()) - from_settings
        assert given_to_it == {field.name for field in fields(page)}
        assert faults_of(response.content.decode()) == []


def test_forms_take_their_own_fields_only(ada: Any) -> None:
    make_user("kim", Role.ANNOTATOR)
    client = signed_in(ada)
    for url, form in {
        reverse("people"): {"people": "min", "role": "annotator"},
        reverse("person-role", args=["kim"]): {"role": "lead"},
        reverse("person-deactivate", args=["kim"]): {},
        reverse("account-email"): {"email": "ada@example.org"},
        reverse("account-tokens"): {"name": "t", "scopes": "read", "days": "30"},
        reverse("account-password"): {"current": PASSWORD, **form_of_password("other phrase x")},
    }.items():
        for extra in ("is_staff", "is_superuser", "user", "groups", "status"):
            assert client.post(url, form | {extra: "1"}).status_code == 400, (url, extra)
    kim = people().get(username="kim")
    assert (kim.role, kim.is_active, kim.is_staff) == ("annotator", True, False)
    assert person("ada").email == ""
    assert person("ada").check_password(PASSWORD)
    assert not ApiToken.objects.exists()


def test_every_change_of_people_needs_the_forms_token_and_refuses_get(ada: Any) -> None:
    make_user("kim", Role.ANNOTATOR)
    client = signed_in(ada, enforce_csrf_checks=True)
    before = verbs()
    names = ["role", "deactivate", "reactivate", "reset-link", "invitation", "invitation-revoke"]
    urls = [reverse(f"person-{name}", args=["kim"]) for name in names]
    urls += [reverse(f"account-{name}") for name in ("password", "email", "tokens", "sign-out")]
    for url in urls:
        assert client.post(url, {"role": "lead"}).status_code == 403, url
        assert client.get(url).status_code == 405, url
    assert client.post(reverse("people"), {"people": "min", "role": "lead"}).status_code == 403
    assert verbs() == before


def test_there_is_no_admin_site_and_nobody_is_staff(ada: Any, settings: Any) -> None:
    assert "django.contrib.admin" not in settings.INSTALLED_APPS
    client = signed_in(ada)
    for path in ("/admin/", "/admin/login/", "/sign-up/", "/register/", "/accounts/signup/"):
        assert client.get(path).status_code == 404
        # Strangers are told nothing at all.
        assert Client().get(path).status_code == 404
    invited(ada, "kim", Role.ADMIN)
    assert not get_user_model().objects.filter(is_staff=True).exists()


# --- one's own account --------------------------------------------------------------


def test_changing_the_password_ends_other_sessions_and_keeps_this_one(lou: Any) -> None:
    here, elsewhere = signed_in(lou), signed_in(lou)
    before = here.session.session_key
    link = create_sign_in_link(user=lou, now=timezone.now())
    form = {"current": PASSWORD, **form_of_password("another long phrase")}
    response = here.post(reverse("account-password"), form, follow=True)
    assert "Your password is set" in response.content.decode()
    assert here.session.session_key != before
    assert here.get(reverse("account")).status_code == 200
    assert elsewhere.get(reverse("account")).status_code == 302
    assert link_fault(token=link, now=timezone.now()) is LinkFault.REVOKED
    assert verbs()[-1] == "user.password_changed"


def test_the_password_is_changed_by_who_knows_it_and_guessing_is_held_back(lou: Any) -> None:
    client = signed_in(lou)
    form = form_of_password("another long phrase")
    for _ in range(10):
        response = client.post(reverse("account-password"), {"current": "wrong", **form})
        assert response.status_code == 400
        assert "This is not your password." in response.content.decode()
        assert faults_of(response.content.decode()) == []
    held = client.post(reverse("account-password"), {"current": PASSWORD, **form})
    assert held.status_code == 429
    assert person("lou").check_password(PASSWORD)


def test_who_came_by_link_sets_a_password_without_one_of_before() -> None:
    client = signed_in(make_user("kim", Role.ANNOTATOR))
    html = client.get(reverse("account")).content.decode()
    assert "Set a password" in html
    assert "Your password now" not in html
    assert client.post(reverse("account-password"), form_of_password()).status_code == 302
    assert person("kim").check_password(PASSWORD)


def test_signing_out_everywhere_ends_every_session_of_ones_own(ada: Any, lou: Any) -> None:
    here, elsewhere, other = signed_in(lou), signed_in(lou), signed_in(ada)
    link = create_sign_in_link(user=lou, now=timezone.now())
    assert here.post(reverse("account-sign-out"))["Location"] == reverse("sign-in")
    for client in (here, elsewhere):
        assert client.get(reverse("account")).status_code == 302
    assert other.get(reverse("account")).status_code == 200
    assert link_fault(token=link, now=timezone.now()) is LinkFault.REVOKED


def test_the_mail_address_is_kept_checked_and_removed(ada: Any, lou: Any) -> None:
    client = signed_in(lou)
    bad = client.post(reverse("account-email"), {"email": "not an address"})
    html = bad.content.decode()
    assert bad.status_code == 400
    assert 'value="not an address"' in html
    assert faults_of(html) == []
    assert person("lou").email == ""
    for unseen in ("lou@exam\u202eple.com", "lou@ex\u200bample.com", "lou@\x85example.com"):
        assert client.post(reverse("account-email"), {"email": unseen}).status_code == 400
        with pytest.raises(InvitationsRefused):
            invited(ada, email=unseen)
    assert person("lou").email == ""
    client.post(reverse("account-email"), {"email": " lou@example.org "})
    assert person("lou").email == "lou@example.org"
    client.post(reverse("account-email"), {"email": ""})
    assert person("lou").email == ""


@pytest.mark.parametrize("role", [None, *Role])
def test_everybody_has_an_account_page_that_keeps_to_the_rules(role: Role | None) -> None:
    user = joined("kim", role)
    html = signed_in(user).get(reverse("account")).content.decode()
    assert faults_of(html) == []
    assert ("Make a token" in html) == (role in (Role.LEAD, Role.ADMIN))


# --- mail ---------------------------------------------------------------------------


@pytest.fixture
def with_mail(settings: Any) -> None:
    settings.SMTP_URL = "smtp://mail.example"
    settings.MAIL_FROM = "workbench@example.org"


def test_links_are_mailed_where_that_is_asked_for_and_possible(ada: Any, with_mail: None) -> None:
    client = signed_in(ada)
    form = {"people": "kim kim@example.org\nmin", "role": "annotator", "by_mail": "1"}
    html = client.post(reverse("people"), form).content.decode()
    assert "Mailed to kim@example.org" in html
    assert "no mail address" in html
    [letter] = mail.outbox
    assert (letter.to, letter.from_email) == (["kim@example.org"], "workbench@example.org")
    token = re.search(r'title="link of kim">([^<]+)<', html)
    assert token
    assert token[1] in letter.body
    without = client.post(reverse("people"), {"people": "zoe z@example.org", "role": "annotator"})
    assert "Mailed" not in without.content.decode()
    assert len(mail.outbox) == 1


def test_mail_that_fails_is_told_and_the_links_are_there(
    ada: Any, with_mail: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(*_: object) -> int:
        raise ConnectionRefusedError(111, "Connection refused")

    caplog.set_level(logging.DEBUG)
    client = signed_in(ada)
    for method, name in (("open", "kim"), ("send_messages", "min")):
        with monkeypatch.context() as patched:
            patched.setattr(EmailBackend, method, refused)
            form = {"people": f"{name} {name}@example.org", "role": "lead", "by_mail": "1"}
            html = client.post(reverse("people"), form).content.decode()
        assert "1 link was not mailed" in html
        assert "Connection refused" in html
        assert faults_of(html) == []
        token = re.search(r"/invite/([\w-]+)/", html)
        assert token
        assert Client().get(path_of("invite", token[1])).status_code == 200
        assert token[1] not in caplog.text
    assert not mail.outbox


def test_nothing_is_said_of_mail_where_no_server_is_configured(ada: Any) -> None:
    client = signed_in(ada)
    assert "Mail each link" not in client.get(reverse("people")).content.decode()
    form = {"people": "kim kim@example.org", "role": "annotator", "by_mail": "1"}
    client.post(reverse("people"), form)
    assert not mail.outbox


# --- the same by the API ------------------------------------------------------------


def api(client: Client, method: str, url_name: str, /, body: Any = None, **where: Any) -> Any:
    return getattr(client, method)(
        reverse(url_name, kwargs=where), data=body, content_type="application/json"
    )


def test_the_api_invites_shows_links_once_and_keeps_no_secret(ada: Any) -> None:
    client = signed_in(ada)
    body = {"role": "lead", "people": [{"name": "kim", "email": "k@example.org"}, {"name": "min"}]}
    url = reverse("api-invitations")
    key = {"Idempotency-Key": "once"}
    made = client.post(url, body, content_type="application/json", headers=key)
    assert made.status_code == 201
    found = made.json()["invitations"]
    assert [one["name"] for one in found] == ["kim", "min"]
    token = found[0]["url"].rstrip("/").rpartition("/")[2]
    assert Client().get(path_of("invite", token)).status_code == 200
    again = client.post(url, body, content_type="application/json", headers=key)
    assert again.status_code == 409
    assert token not in again.content.decode()
    assert get_user_model().objects.filter(username="kim").count() == 1


def test_the_api_tells_faults_by_place_and_invites_nobody(ada: Any) -> None:
    body = {"role": "lead", "people": [{"name": "kim"}, {"name": "ada"}, {"name": "no name"}]}
    response = api(signed_in(ada), "post", "api-invitations", body)
    assert response.status_code == 400
    assert set(response.json()["fields"]) == {"people.1", "people.2"}
    assert get_user_model().objects.count() == 1


def test_the_api_lists_shows_and_changes_people(ada: Any, lou: Any) -> None:
    invited(lou, "kim")
    admin, lead = signed_in(ada), signed_in(lou)
    listed = lead.get(reverse("api-people") + "?state=invited").json()["results"]
    assert [one["name"] for one in listed] == ["kim"]
    assert listed[0]["invited_until"]
    assert listed[0]["last_sign_in_at"] is None
    one = api(lead, "get", "api-person", name="kim").json()
    assert one == listed[0]
    changed = api(admin, "patch", "api-person", {"role": "lead", "active": False}, name="kim")
    assert (changed.json()["role"], changed.json()["state"]) == ("lead", "inactive")
    back = api(admin, "patch", "api-person", {"active": True}, name="kim")
    assert back.json()["state"] == "invited"
    refused = api(lead, "patch", "api-person", {"active": False}, name="kim")
    assert refused.status_code == 403
    own = api(admin, "patch", "api-person", {"role": "lead"}, name="ada")
    assert own.status_code == 403
    assert api(admin, "patch", "api-person", {}, name="nobody").status_code == 404


@pytest.mark.parametrize("field", ["is_staff", "is_superuser", "name", "password", "user", "state"])
def test_the_api_changes_nothing_else_of_a_person(ada: Any, field: str) -> None:
    make_user("kim", Role.ANNOTATOR)
    body = {"role": "lead", field: "x"}
    response = api(signed_in(ada), "patch", "api-person", body, name="kim")
    assert response.status_code == 400
    assert list(response.json()["fields"]) == [field]
    assert role_of(person("kim")) is Role.ANNOTATOR


def test_the_api_renews_and_revokes_invitations_and_resets_passwords(ada: Any, lou: Any) -> None:
    token = invited(lou)
    lead = signed_in(lou)
    again = api(lead, "post", "api-person-invitation", name="kim")
    assert again.status_code == 201
    assert "/invite/" in again.json()["url"]
    assert Client().get(path_of("invite", token)).status_code == 410
    for _ in range(2):
        assert api(lead, "delete", "api-person-invitation", name="kim").status_code == 204
    assert people().get(username="kim").invited_until is None
    joined("ann", Role.ANNOTATOR)
    assert api(lead, "post", "api-person-invitation", name="ann").status_code == 409
    reset = api(lead, "post", "api-password-resets", {"name": "ann"})
    assert reset.status_code == 201
    assert "/reset/" in reset.json()["url"]
    assert api(lead, "post", "api-password-resets", {"name": "ada"}).status_code == 403
    assert api(lead, "post", "api-password-resets", {"name": "nobody"}).status_code == 400


def test_states_are_what_the_pages_and_the_service_call_them() -> None:
    assert [state.value for state in PersonState] == ["invited", "active", "inactive"]


def test_every_wrong_line_of_a_list_is_told_at_once_with_its_text(client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    typed = "kim, kim@example.org\nlee one two three\nno name@, x@example.org\nada\nmo, nonsense"
    html = client.post(
        reverse("people"), {"people": typed, "role": "annotator", "by_mail": ""}
    ).content.decode()
    found = re.findall(r'<a href="#people">(.*?)</a>', html)
    # In the order of the lines, whichever step found them; line 1 is right.
    assert [text[:6] for text in found] == ["Line 2", "Line 3", "Line 4", "Line 5"]
    assert "“lee one two three”" in found[0]
    assert "no mail address" in found[3]
    assert not get_user_model().objects.filter(username="kim").exists()


def test_one_link_is_spoken_of_as_one(client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    form = {"role": "annotator", "by_mail": ""}
    one = client.post(reverse("people"), {**form, "people": "kim"}).content.decode()
    assert "It is shown here and never again" in one
    assert "made on the person’s page" in one
    two = client.post(reverse("people"), {**form, "people": "lee\nmo"}).content.decode()
    assert "They are shown here and never again" in two
