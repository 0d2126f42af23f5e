"""People, their invitations and password resets, as JSON. Nothing here is mailed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from workbench import accounts
from workbench.accounts import (
    MOST_INVITED_AT_ONCE,
    PEOPLE,
    HasJoined,
    InvitationsRefused,
    Invitee,
    LastAdmin,
    NotActive,
    NotAllowed,
    OneTimeLink,
    PersonState,
)
from workbench.kernel.api import Conflict
from workbench.kernel.public import public_url
from workbench.kernel.roles import Role, role_of
from workbench.models import LinkPurpose
from workbench.rest import Endpoint, RoleAndScope, checked_body, listed
from workbench.schema import listing_schema
from workbench.tokens import Scope

ROLES = tuple(role.value for role in Role)
LONGEST_USER_NAME = 150
URL_NAMES = {LinkPurpose.INVITATION: "invite", LinkPurpose.PASSWORD_RESET: "reset"}


class PersonOutput(serializers.Serializer[Any]):
    """One person."""

    name = serializers.CharField(source="username")
    email = serializers.CharField(help_text="empty for none")
    role = serializers.SerializerMethodField(help_text="null for none")
    state = serializers.ChoiceField(choices=[state.value for state in PersonState])
    joined_at = serializers.DateTimeField(source="date_joined", help_text="or invited")
    last_sign_in_at = serializers.DateTimeField(source="last_login", allow_null=True)
    invited_until = serializers.DateTimeField(
        allow_null=True, help_text="end of the invitation that is out, null where none is"
    )

    def get_role(self, person: Any) -> str | None:
        return person.role or None


class PersonInput(serializers.Serializer[Any]):
    """What an admin may change of a person; what is left out stays."""

    role = serializers.ChoiceField(choices=ROLES, required=False)
    active = serializers.BooleanField(required=False, help_text="false signs them out everywhere")


class InviteeInput(serializers.Serializer[Any]):
    """Somebody to invite."""

    name = serializers.CharField(max_length=LONGEST_USER_NAME, help_text="the user name")
    email = serializers.EmailField(default="", allow_blank=True, max_length=254)


class InvitationsInput(serializers.Serializer[Any]):
    """Who is invited as what; all or nobody."""

    role = serializers.ChoiceField(choices=ROLES)
    people = serializers.ListField(
        child=InviteeInput(), min_length=1, max_length=MOST_INVITED_AT_ONCE
    )


class LinkOutput(serializers.Serializer[Any]):
    """A one-time link. It is in this answer and in no other."""

    name = serializers.CharField()
    url = serializers.CharField(help_text="works once")
    expires_at = serializers.DateTimeField()


class InvitationsOutput(serializers.Serializer[Any]):
    """One link for each person, in the order in which they were named."""

    invitations = LinkOutput(many=True)


class ResetInput(serializers.Serializer[Any]):
    """Whose password is to be chosen anew."""

    name = serializers.CharField(max_length=LONGEST_USER_NAME)


class People(Endpoint):
    """List the people."""

    @listing_schema(PEOPLE, PersonOutput)
    def get(self, request: Request) -> Response:
        return listed(request, accounts.people(), listing=PEOPLE, output=PersonOutput)


class OnePerson(Endpoint):
    """One person."""

    write_scope = Scope.PEOPLE

    @extend_schema(responses=PersonOutput)
    def get(self, request: Request, name: str) -> Response:
        """Show one person."""
        return Response(PersonOutput(_person_or_404(name)).data)

    @extend_schema(request=PersonInput, responses=PersonOutput)
    def patch(self, request: Request, name: str) -> Response:
        """Change a person's role, or whether they may come in; for admins."""
        if role_of(request.user) is not Role.ADMIN:
            raise PermissionDenied(RoleAndScope.message)
        person = _person_or_404(name)
        body = checked_body(request, PersonInput)
        now = timezone.now()
        with _refusals(), transaction.atomic():
            if role := body.get("role"):
                accounts.change_role(user=person, role=Role(role), actor=request.user, at=now)
            if "active" in body:
                change = accounts.reactivate if body["active"] else accounts.deactivate
                change(user=person, actor=request.user, at=now)
        return Response(PersonOutput(_person_or_404(name)).data)


class Invitations(Endpoint):
    """Invite people: leads invite annotators, admins anyone."""

    write_scope = Scope.PEOPLE
    secret_answer = True

    @extend_schema(request=InvitationsInput, responses={201: InvitationsOutput})
    def post(self, request: Request) -> Response:
        body = checked_body(request, InvitationsInput)
        invitees = [Invitee(name=one["name"], email=one["email"]) for one in body["people"]]
        try:
            with _refusals():
                links = accounts.invite(
                    people=invitees,
                    role=Role(body["role"]),
                    actor=request.user,
                    at=timezone.now(),
                )
        except InvitationsRefused as refused:
            raise ValidationError(
                {f"people.{place}": [reason] for place, reason in refused.faults.items()}
            ) from refused
        made = [_link(link, LinkPurpose.INVITATION) for link in links]
        return Response(InvitationsOutput({"invitations": made}).data, status=201)


class PersonInvitation(Endpoint):
    """The invitation of somebody who hasn't come in yet."""

    write_scope = Scope.PEOPLE

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self.secret_answer = request.method == "POST"
        super().initial(request, *args, **kwargs)

    @extend_schema(request=None, responses={201: LinkOutput})
    def post(self, request: Request, name: str) -> Response:
        """Make a new link; the ones before it end."""
        person = _person_or_404(name)
        with _refusals():
            link = accounts.invite_again(user=person, actor=request.user, at=timezone.now())
        return Response(LinkOutput(_link(link, LinkPurpose.INVITATION)).data, status=201)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Revoke the invitation; where none is out, nothing changes."""
        person = _person_or_404(name)
        with _refusals():
            accounts.revoke_invitation(user=person, actor=request.user, at=timezone.now())
        return Response(status=204)


class PasswordResets(Endpoint):
    """Make a link to a new password: leads for annotators, admins for anyone."""

    write_scope = Scope.PEOPLE
    secret_answer = True

    @extend_schema(request=ResetInput, responses={201: LinkOutput})
    def post(self, request: Request) -> Response:
        name = checked_body(request, ResetInput)["name"]
        person = accounts.people().filter(username=name).first()
        if person is None:
            raise ValidationError({"name": ["there is nobody of this name"]})
        with _refusals():
            link = accounts.create_reset_link(user=person, actor=request.user, at=timezone.now())
        return Response(LinkOutput(_link(link, LinkPurpose.PASSWORD_RESET)).data, status=201)


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn what the service refuses into the answer that says so."""
    try:
        yield
    except NotAllowed as error:
        raise PermissionDenied(str(error)) from error
    except (LastAdmin, HasJoined, NotActive) as error:
        raise Conflict(str(error)) from error


def _person_or_404(name: str) -> Any:
    person = accounts.people().filter(username=name).first()
    if person is None:
        raise Http404
    return person


def _link(link: OneTimeLink, purpose: LinkPurpose) -> dict[str, Any]:
    path = reverse(URL_NAMES[purpose], kwargs={"token": link.token})
    return {
        "name": link.user.get_username(),
        "url": public_url(path),
        "expires_at": link.expires_at,
    }
