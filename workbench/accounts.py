"""People: inviting them, their role, one-time links, passwords, and ending all of it.

Each change is one transaction with one event in the audit trail. Whoever acts is looked up
again inside it: what the page knew of them may be a second old.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from django.contrib.auth import SESSION_KEY, get_user_model
from django.contrib.auth.models import Group
from django.contrib.auth.password_validation import validate_password
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import (
    Case,
    DateTimeField,
    Exists,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.utils import timezone

from workbench.kernel.lists import Filter, Listing
from workbench.kernel.roles import Role, role_of
from workbench.kernel.texts import UNSEEN_REFUSED, has_unseen
from workbench.models import ApiToken, LinkPurpose, SignInLink
from workbench.trail import record_event

LINK_LIFETIME = timedelta(hours=24)
LIFETIMES = {
    LinkPurpose.SIGN_IN: LINK_LIFETIME,
    LinkPurpose.PASSWORD_RESET: LINK_LIFETIME,
    LinkPurpose.INVITATION: timedelta(days=7),
}
MOST_INVITED_AT_ONCE = 200
# Of what a message repeats.
LONGEST_QUOTED = 60
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class NameTaken(Exception):
    """A user of this name exists."""


class NotAllowed(Exception):
    """The actor's role doesn't reach that far; the text says whose does."""


class LastAdmin(Exception):
    """Without this person nobody could administer the workbench."""

    def __init__(self) -> None:
        super().__init__("This is the last active admin. Make somebody else an admin first.")


class HasJoined(Exception):
    """The person has joined already, so there is nothing to invite them to."""


class NotActive(Exception):
    """The person is deactivated."""


class LinkFault(StrEnum):
    """Why a one-time link doesn't work."""

    UNKNOWN = "unknown"
    USED = "used"
    REVOKED = "revoked"
    EXPIRED = "expired"
    INACTIVE = "inactive"


class LinkInvalid(Exception):
    """The one-time link can't be redeemed; ``fault`` says why."""

    def __init__(self, fault: LinkFault) -> None:
        super().__init__(f"the one-time link can't be used: {fault.value}")
        self.fault = fault


class PersonState(StrEnum):
    """Where a person stands: invited until they first come in."""

    INVITED = "invited"
    ACTIVE = "active"
    INACTIVE = "inactive"


@dataclass(frozen=True)
class Invitee:
    """Somebody to invite."""

    name: str
    email: str = ""


@dataclass(frozen=True)
class OneTimeLink:
    """A link just made. Its token is here and nowhere else: only the hash is stored."""

    user: Any
    token: str
    expires_at: datetime


class InvitationsRefused(Exception):
    """Nobody was invited; ``faults`` says by position, from 0, what is wrong with whom."""

    def __init__(self, faults: dict[int, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.faults = faults


# --- looking people up -----------------------------------------------------------


def people() -> QuerySet[Any]:
    """Return everybody, each with ``role``, ``state``, ``last_seen`` and ``invited_until``.

    ``role`` is empty for none, ``last_seen`` is 1970 for never, and ``invited_until`` is the
    end of the newest invitation that was neither accepted nor revoked, or None.
    """
    users = get_user_model()
    held = users.groups.through.objects.filter(user_id=OuterRef("pk"))
    open_invitations = SignInLink.objects.filter(
        user_id=OuterRef("pk"), purpose=LinkPurpose.INVITATION, used_at=None, revoked_at=None
    )
    found: QuerySet[Any] = users.objects.annotate(
        role=Case(
            When(Q(is_superuser=True), then=Value(Role.ADMIN.value)),
            *(
                When(Exists(held.filter(group__name=role.value)), then=Value(role.value))
                for role in reversed(Role)
            ),
            default=Value(""),
        ),
        state=Case(
            When(is_active=False, then=Value(PersonState.INACTIVE.value)),
            When(_HAS_JOINED, then=Value(PersonState.ACTIVE.value)),
            default=Value(PersonState.INVITED.value),
        ),
        last_seen=Coalesce("last_login", Value(_NEVER, output_field=DateTimeField())),
        invited_until=Subquery(open_invitations.order_by("-expires_at").values("expires_at")[:1]),
    )
    return found


def has_joined(user: Any) -> bool:
    """Return whether ``user`` ever came in or could, by a password of their own."""
    return bool(user.has_usable_password() or user.last_login)


PEOPLE = Listing(
    sorts={"name": "username", "last_sign_in": "last_seen", "joined": "date_joined"},
    default_sort="name",
    filters={
        "role": Filter("role", tuple(Role)),
        "state": Filter("state", tuple(PersonState)),
    },
)
# An unusable password begins with an exclamation mark.
_HAS_JOINED = ~Q(password__startswith="!") | Q(last_login__isnull=False)


def reaches(role: Role | None, other: Role | None) -> bool:
    """Return whether a person of ``role`` may invite people of the role ``other``.

    The same rule says whose password they may reset: an admin everyone's, a lead an
    annotator's.
    """
    return role is Role.ADMIN or (role is Role.LEAD and other is Role.ANNOTATOR)


# --- people ----------------------------------------------------------------------


def create_user(
    *, name: str, role: Role | None, at: datetime, actor: Any = None, email: str = ""
) -> Any:
    """Return a new user of ``role`` who can sign in by link only, until a password is set.

    Raises:
        NameTaken: the name is in use, in whatever case.
        ValidationError: it isn't a user name: letters, digits and @ . + - _ only; or ``email``
            is no address.
    """
    users = get_user_model()
    name = users.normalize_username(name)
    users(username=name, email=email).clean_fields(exclude={"password", "email"})
    _check_email(email)
    if not name.strip("."):
        raise ValidationError("A user name takes more than dots.")
    with transaction.atomic():
        if users.objects.filter(username__iexact=name).exists():
            raise NameTaken(f"there is a user '{name}' already")
        try:
            with transaction.atomic():
                user = users.objects.create_user(username=name, email=email)
        except IntegrityError:  # somebody else's transaction was faster
            raise NameTaken(f"there is a user '{name}' already") from None
        record_event(actor=actor, verb="user.created", subject=name, at=at)
        if role:
            _give_role(user=user, role=role, at=at, actor=actor)
    return user


def ensure_user(*, name: str, role: Role) -> Any:
    """Return the user of this name with this role, created where there is none."""
    at = timezone.now()
    with transaction.atomic():
        user = get_user_model().objects.filter(username=name).first()
        if user is None:
            return create_user(name=name, role=role, at=at)
        if role_of(user) is not role:
            set_role(user=user, role=role, at=at)
    return user


def set_role(*, user: Any, role: Role, at: datetime, actor: Any = None) -> None:
    """Make ``role`` the one role of ``user``; with another one their open links end.

    A link was made for who they were. Those that they made for others end too, unless they may
    make more now than before.

    Raises:
        LastAdmin: it would leave no admin.
    """
    with transaction.atomic():
        _lock_admins()
        if role is not Role.ADMIN:
            _keep_an_admin(without=user)
        # Locked, as whoever spends a link locks its person and its maker. Not their key: events
        # that name them as their actor hold on to that.
        before = role_of(get_user_model().objects.select_for_update(no_key=True).get(pk=user.pk))
        if before is not role:
            _end_links(user, at=at)
            if role is not Role.ADMIN:
                _end_links_made_by(user, at=at)
        user.groups.remove(*user.groups.filter(name__in=list(Role)))
        _give_role(user=user, role=role, at=at, actor=actor)


def change_role(*, user: Any, role: Role, actor: Any, at: datetime) -> None:
    """Give ``user`` another role; the same one again changes nothing.

    Raises:
        NotAllowed: ``actor`` is no admin, or ``user`` themselves.
        LastAdmin: it would leave no admin.
    """
    with transaction.atomic():
        _lock_admins()
        _acting_admin(actor, on=user)
        if role_of(_fresh(user)) is not role:
            set_role(user=user, role=role, at=at, actor=actor)


def set_email(*, user: Any, email: str, at: datetime) -> None:
    """Keep the person's own mail address, or none.

    Raises:
        ValidationError: it is no address.
    """
    _check_email(email)
    user.email = email
    with transaction.atomic():
        user.save(update_fields=["email"])
        record_event(actor=user, verb="user.email_set", subject=user.get_username(), at=at)


def deactivate(*, user: Any, actor: Any, at: datetime) -> None:
    """Let ``user`` in no more: sessions, tokens and links end; what they did stays.

    Links that they made for others end too: one of them might be kept for coming back.

    Deactivating again changes nothing.

    Raises:
        NotAllowed: ``actor`` is no admin, or ``user`` themselves.
        LastAdmin: it would leave no admin.
    """
    with transaction.atomic():
        _lock_admins()
        _acting_admin(actor, on=user)
        _keep_an_admin(without=user)
        mine = get_user_model().objects.filter(pk=user.pk, is_active=True)
        if not mine.update(is_active=False):
            return
        ApiToken.objects.filter(user_id=user.pk, revoked_at=None).update(revoked_at=at)
        _end_links(user, at=at)
        _end_links_made_by(user, at=at)
        _end_sessions(user, at=at)
        record_event(actor=actor, verb="user.deactivated", subject=user.get_username(), at=at)


def reactivate(*, user: Any, actor: Any, at: datetime) -> None:
    """Let ``user`` in again, with the password they had; tokens and links stay ended.

    Raises:
        NotAllowed: ``actor`` is no admin.
    """
    with transaction.atomic():
        _lock_admins()
        _acting_admin(actor, on=user)
        if get_user_model().objects.filter(pk=user.pk, is_active=False).update(is_active=True):
            # One that began while the person was being deactivated would come to life again.
            _end_sessions(user, at=at)
            record_event(actor=actor, verb="user.reactivated", subject=user.get_username(), at=at)


# --- invitations and resets ------------------------------------------------------


def invite(
    *, people: Sequence[Invitee], role: Role, actor: Any, at: datetime, only_check: bool = False
) -> tuple[OneTimeLink, ...]:
    """Create the people and return a link for each, that lets them in for the first time.

    All or nobody.

    Args:
        only_check: create nobody and return nothing, but raise what would be raised.

    Raises:
        NotAllowed: ``actor``'s role doesn't invite people of this ``role``.
        InvitationsRefused: names or addresses that can't be, are in use or stand there twice.
    """
    faults: dict[int, str] = {}
    links = []
    with transaction.atomic():
        _acting(actor, reach=role)
        seen: set[str] = set()
        for place, one in enumerate(people):
            try:
                if one.name.lower() in seen:
                    raise NameTaken(f"'{one.name}' stands here twice")
                seen.add(one.name.lower())
                user = create_user(name=one.name, role=role, at=at, actor=actor, email=one.email)
            except NameTaken as error:
                faults[place] = str(error)
            except ValidationError as error:
                faults[place] = " ".join(error.messages)
            else:
                links.append(_new_link(user, LinkPurpose.INVITATION, at=at, actor=actor))
                record_event(actor=actor, verb="user.invited", subject=user.username, at=at)
        if faults:
            raise InvitationsRefused(faults)
        if only_check:
            transaction.set_rollback(True)
            return ()
    return tuple(links)


def invite_again(*, user: Any, actor: Any, at: datetime) -> OneTimeLink:
    """Return a new invitation; the ones before it end.

    Raises:
        NotAllowed: ``actor``'s role doesn't reach ``user``.
        HasJoined: there is nothing to invite them to.
        NotActive: they are deactivated.
    """
    with transaction.atomic():
        found = _reached(user, actor)
        if has_joined(found):
            raise HasJoined(f"'{found.username}' has joined already; reset the password instead")
        _end_links(found, at=at, purpose=LinkPurpose.INVITATION)
        link = _new_link(found, LinkPurpose.INVITATION, at=at, actor=actor)
        record_event(actor=actor, verb="user.invited", subject=found.username, at=at)
    return link


def revoke_invitation(*, user: Any, actor: Any, at: datetime) -> None:
    """End the pending invitations of ``user``; where there is none, nothing changes.

    Raises:
        NotAllowed: ``actor``'s role doesn't reach ``user``.
    """
    with transaction.atomic():
        _acting(actor, reach=role_of(_fresh(user)))
        if _end_links(user, at=at, purpose=LinkPurpose.INVITATION):
            record_event(
                actor=actor, verb="user.invitation_revoked", subject=user.get_username(), at=at
            )


def create_reset_link(*, user: Any, actor: Any, at: datetime) -> OneTimeLink:
    """Return a link by which ``user`` sets a new password; the ones before it end.

    The password of before works until the link is used.

    Raises:
        NotAllowed: ``actor``'s role doesn't reach ``user``.
        NotActive: they are deactivated.
    """
    with transaction.atomic():
        found = _reached(user, actor)
        _end_links(found, at=at, purpose=LinkPurpose.PASSWORD_RESET)
        link = _new_link(found, LinkPurpose.PASSWORD_RESET, at=at, actor=actor)
        record_event(actor=actor, verb="user.reset_link_made", subject=found.username, at=at)
    return link


def create_sign_in_link(*, user: Any, now: datetime, lifetime: timedelta = LINK_LIFETIME) -> str:
    """Return the token of a new link that signs ``user`` in once, until ``now + lifetime``.

    Only the command line makes such links. The token is returned here and nowhere else: only
    its hash is stored.
    """
    with transaction.atomic():
        link = _new_link(user, LinkPurpose.SIGN_IN, at=now, lifetime=lifetime)
        record_event(actor=None, verb="user.sign_in_link_made", subject=user.get_username(), at=now)
    return link.token


def link_fault(
    *, token: str, now: datetime, purpose: LinkPurpose = LinkPurpose.SIGN_IN
) -> LinkFault | None:
    """Return why ``token`` can't be redeemed at ``now``, or None; nothing is changed."""
    link = _link(token, purpose).select_related("user", "created_by").first()
    if link is None:
        return LinkFault.UNKNOWN
    if link.used_at is not None:
        return LinkFault.USED
    if not link.user.is_active:
        return LinkFault.INACTIVE
    if link.revoked_at is not None or not _may_still(link):
        return LinkFault.REVOKED
    return LinkFault.EXPIRED if link.expires_at <= now else None


def person_of_link(*, token: str, purpose: LinkPurpose) -> Any:
    """Return whom the link of ``token`` was made for, or None."""
    link = _link(token, purpose).select_related("user").first()
    return link.user if link else None


def redeem(*, token: str, now: datetime) -> Any:
    """Spend the sign-in link of ``token`` and return its user.

    Of two at once exactly one succeeds.

    Raises:
        LinkInvalid: it is unknown, used, revoked or expired, or its user is inactive.
    """
    with transaction.atomic():
        user = _spend(token, LinkPurpose.SIGN_IN, now=now)
        record_event(actor=user, verb="user.signed_in_by_link", subject=user.username, at=now)
    return user


def redeem_with_password(*, token: str, purpose: LinkPurpose, password: str, now: datetime) -> Any:
    """Spend an invitation or reset, set the password, and return the user.

    Every session and every other link of theirs ends. Of two at once exactly one succeeds.

    Raises:
        LinkInvalid: it is unknown, used, revoked or expired, or its user is inactive.
        ValidationError: the password is too weak; the link isn't spent.
    """
    verb = {
        LinkPurpose.INVITATION: "user.invitation_accepted",
        LinkPurpose.PASSWORD_RESET: "user.password_reset",
    }[purpose]
    fault = link_fault(token=token, now=now, purpose=purpose)
    if fault:
        raise LinkInvalid(fault)
    validate_password(password, person_of_link(token=token, purpose=purpose))
    with transaction.atomic():
        user = _spend(token, purpose, now=now)
        maker = _link(token, purpose).select_related("created_by").get().created_by
        made_by = f"link made by {maker.get_username()}" if maker else ""
        _set_password(user, password, at=now)
        _end_sessions(user, at=now)
        record_event(actor=user, verb=verb, subject=user.username, reason=made_by, at=now)
    return user


def change_password(*, user: Any, password: str, at: datetime) -> None:
    """Set another password; links end, and so does every session that isn't told of it.

    Raises:
        ValidationError: the password is too weak.
    """
    validate_password(password, user)
    with transaction.atomic():
        _set_password(user, password, at=at)
        record_event(actor=user, verb="user.password_changed", subject=user.username, at=at)


def sign_out_everywhere(*, user: Any, at: datetime) -> None:
    """End every session and link of ``user``, this one too; tokens stay."""
    with transaction.atomic():
        _end_links(user, at=at)
        _end_sessions(user, at=at)
        record_event(actor=user, verb="user.signed_out_everywhere", subject=user.username, at=at)


# --- within ----------------------------------------------------------------------


def _give_role(*, user: Any, role: Role, at: datetime, actor: Any) -> None:
    """Give ``role`` to somebody who has none."""
    group, _ = Group.objects.get_or_create(name=role.value)
    user.groups.add(group)
    user.__dict__.pop("_role", None)
    record_event(actor=actor, verb="user.role_set", subject=user.get_username(), reason=role, at=at)


def _check_email(email: str) -> None:
    """Refuse what is no mail address, or shows another one than it is."""
    try:
        get_user_model()(email=email).clean_fields(exclude={"password", "username"})
    except ValidationError:
        raise ValidationError(
            f"This is no mail address: {email[:LONGEST_QUOTED]!r}; write one such as "
            "kim@example.org."
        ) from None
    if has_unseen(email):  # Django takes it for part of a domain
        raise ValidationError(UNSEEN_REFUSED)


def _fresh(user: Any) -> Any:
    """Return the person as they are now."""
    return get_user_model().objects.get(pk=user.pk)


def _acting(actor: Any, *, reach: Role | None) -> None:
    """Check that ``actor`` may act on people of the role ``reach``."""
    now = _fresh(actor)
    if not now.is_active or not reaches(role_of(now), reach):
        raise NotAllowed("Leads act for annotators; for anyone else ask an admin.")


def _acting_admin(actor: Any, *, on: Any) -> None:
    now = _fresh(actor)
    if not now.is_active or role_of(now) is not Role.ADMIN:
        raise NotAllowed("Only an admin can do this.")
    if now.pk == on.pk:
        raise NotAllowed("Nobody does this to their own account; ask another admin.")


def _reached(user: Any, actor: Any) -> Any:
    """Return ``user``, locked, where ``actor`` may make links for them."""
    found = get_user_model().objects.select_for_update(no_key=True).get(pk=user.pk)
    _acting(actor, reach=role_of(found))
    if not found.is_active:
        raise NotActive(f"'{found.username}' is deactivated; reactivate them first")
    return found


def _lock_admins() -> None:
    """Let one transaction at a time change who is an admin.

    Two admins who demote each other would each still see the other one. On SQLite
    transactions that write take turns anyway.
    """
    Group.objects.get_or_create(name=Role.ADMIN.value)
    Group.objects.select_for_update().get(name=Role.ADMIN.value)


def _keep_an_admin(*, without: Any) -> None:
    """Check that there is an active admin besides, if this person is one."""
    if role_of(_fresh(without)) is Role.ADMIN and not _admins_besides(without):
        raise LastAdmin


def _admins_besides(user: Any) -> bool:
    """Return whether somebody else is an admin who can come in."""
    others = get_user_model().objects.filter(_HAS_JOINED, is_active=True).exclude(pk=user.pk)
    return others.filter(Q(is_superuser=True) | Q(groups__name=Role.ADMIN)).exists()


def _link(token: str, purpose: LinkPurpose) -> QuerySet[SignInLink]:
    return SignInLink.objects.filter(token_sha256=_digest(token), purpose=purpose)


def _new_link(
    user: Any,
    purpose: LinkPurpose,
    *,
    at: datetime,
    actor: Any = None,
    lifetime: timedelta | None = None,
) -> OneTimeLink:
    token = secrets.token_urlsafe(32)
    link = SignInLink.objects.create(
        user=user,
        purpose=purpose,
        token_sha256=_digest(token),
        created_by=actor,
        created_at=at,
        expires_at=at + (lifetime or LIFETIMES[purpose]),
    )
    return OneTimeLink(user=user, token=token, expires_at=link.expires_at)


def _spend(token: str, purpose: LinkPurpose, *, now: datetime) -> Any:
    """Spend a link and return its user, both locked until the transaction ends."""
    fault = link_fault(token=token, now=now, purpose=purpose)
    if fault:
        raise LinkInvalid(fault)
    link = _link(token, purpose)
    made = link.get()
    # The people first, as deactivating and changing a role do it: who waits for the other sees
    # what was done. In one order, so that two who made links for each other don't wait in a ring.
    both = [made.user_id, made.created_by_id]
    locked = (
        get_user_model()
        .objects.select_for_update(no_key=True)
        .filter(pk__in=[pk for pk in both if pk])
    )
    user = {one.pk: one for one in locked.order_by("pk")}[made.user_id]
    # Under the locks: what either may do may have changed meanwhile.
    if fault := link_fault(token=token, now=now, purpose=purpose):
        raise LinkInvalid(fault)
    # The condition is on the row's own columns, so that PostgreSQL checks it again
    # under the row's lock; a join here would let two redeem at once.
    if not link.filter(used_at=None, revoked_at=None).update(used_at=now):
        raise LinkInvalid(link_fault(token=token, now=now, purpose=purpose) or LinkFault.USED)
    return user


def _set_password(user: Any, password: str, *, at: datetime) -> None:
    user.set_password(password)
    user.save(update_fields=["password"])
    _end_links(user, at=at)


def _end_links(user: Any, *, at: datetime, purpose: LinkPurpose | None = None) -> int:
    """End the links of ``user`` that could still be used; return how many."""
    links = SignInLink.objects.filter(user_id=user.pk, used_at=None, revoked_at=None)
    if purpose:
        links = links.filter(purpose=purpose)
    return links.update(revoked_at=at)


def _end_links_made_by(user: Any, *, at: datetime) -> None:
    """End the unused links that ``user`` made for others."""
    SignInLink.objects.filter(created_by_id=user.pk, used_at=None, revoked_at=None).update(
        revoked_at=at
    )


def _may_still(link: SignInLink) -> bool:
    """Return whether whoever made ``link`` could make it now; the command line always can."""
    maker = link.created_by
    return maker is None or (maker.is_active and reaches(role_of(maker), role_of(link.user)))


def _end_sessions(user: Any, *, at: datetime) -> None:
    """Delete the sessions of ``user``.

    Whose a session is stands inside it, so that all of them are read: a few hundred at
    most, since one ends 12 hours after its last use.
    """
    theirs = [
        session.pk
        for session in Session.objects.filter(expire_date__gt=at).iterator()
        if session.get_decoded().get(SESSION_KEY) == str(user.pk)
    ]
    Session.objects.filter(pk__in=theirs).delete()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
