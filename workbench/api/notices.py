"""Notices, one's own mails about them, and the webhooks that admins keep, as JSON."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from workbench.kernel.leases import LeaseState
from workbench.kernel.lists import Listing
from workbench.kernel.public import public_url
from workbench.kernel.roles import Role
from workbench.models import Notice, Webhook
from workbench.notices import (
    LISTING,
    NoticeKind,
    NoticeMissing,
    mark_read,
    notices_for,
    subscribe,
    subscription_of,
)
from workbench.notices.webhooks import (
    LONGEST_URL,
    BadWebhook,
    WebhookMissing,
    active_webhooks,
    add_webhook,
    deliveries_of,
    remove_webhook,
    secret_of,
    try_webhook,
    webhook_by_uid,
)
from workbench.rest import KEY_HEADER, Endpoint, checked_body, listed
from workbench.schema import listing_schema
from workbench.tokens import Scope

KINDS = tuple(kind.value for kind in NoticeKind)
WEBHOOKS = Listing(sorts={"created": "created_at"}, default_sort="created")
DELIVERIES = Listing(sorts={"at": "at"}, default_sort="-at")


class NoticeOutput(serializers.Serializer[Any]):
    """One notice; ``unread`` as it is to whoever asks."""

    uid = serializers.UUIDField()
    kind = serializers.CharField()
    subject = serializers.CharField(help_text="what it is about, such as an experiment's slug")
    text = serializers.CharField()
    url = serializers.SerializerMethodField(help_text="of the page where one acts on it")
    at = serializers.DateTimeField()
    unread = serializers.SerializerMethodField()

    def get_url(self, notice: Notice) -> str:
        return public_url(notice.path)

    def get_unread(self, notice: Notice) -> bool:
        return bool(notice.unread == "true")  # type: ignore[attr-defined]


class ReadInput(serializers.Serializer[Any]):
    """The newest notice that was read; all before it count as read too."""

    newest = serializers.UUIDField()


class SubscriptionInput(serializers.Serializer[Any]):
    """Whether to mail what is new, at most once an hour."""

    by_mail = serializers.BooleanField()


class SubscriptionOutput(SubscriptionInput):
    """What one gets by mail."""


class WebhookInput(serializers.Serializer[Any]):
    """An address and the kinds it is told of; no kind means all."""

    url = serializers.CharField(max_length=LONGEST_URL)
    kinds = serializers.ListField(
        child=serializers.ChoiceField(choices=KINDS), default=list, max_length=len(KINDS)
    )


class WebhookOutput(serializers.Serializer[Any]):
    """One webhook. Its signing secret is given when it is added, and stands on the page."""

    uid = serializers.UUIDField()
    url = serializers.CharField()
    kinds = serializers.ListField(child=serializers.CharField())
    created_by = serializers.CharField(source="created_by.username")
    created_at = serializers.DateTimeField()


class NewWebhookOutput(WebhookOutput):
    """A webhook that was just added, with the secret that signs what it is sent."""

    secret = serializers.SerializerMethodField()

    def get_secret(self, webhook: Webhook) -> str:
        return secret_of(webhook)


class DeliveryOutput(serializers.Serializer[Any]):
    """One notice on its way to one webhook; ``answer`` is what came of the last try."""

    uid = serializers.UUIDField()
    notice = serializers.UUIDField(source="notice.uid")
    state = serializers.ChoiceField(choices=LeaseState.values)
    tries = serializers.IntegerField()
    answer = serializers.CharField()
    at = serializers.DateTimeField()
    next_attempt_at = serializers.DateTimeField(allow_null=True)


class TestOutput(serializers.Serializer[Any]):
    """What came of a test: whether it was taken, and the status that was answered."""

    taken = serializers.BooleanField()
    answer = serializers.CharField()


class Notices(Endpoint):
    """List what happened that leads and admins want to know of."""

    @listing_schema(LISTING, NoticeOutput)
    def get(self, request: Request) -> Response:
        only_unread = request.query_params.get("unread") == "true"
        found = notices_for(request.user, only_unread=only_unread)
        return listed(request, found, listing=LISTING, output=NoticeOutput)


class NoticesRead(Endpoint):
    """Mark a notice and all before it as read."""

    @extend_schema(request=ReadInput, responses={204: None})
    def post(self, request: Request) -> Response:
        body = checked_body(request, ReadInput)
        try:
            mark_read(user=request.user, newest=body["newest"])
        except NoticeMissing as error:
            raise ValidationError({"newest": [str(error)]}) from error
        return Response(status=204)


class Subscriptions(Endpoint):
    """One's own mails about notices."""

    @extend_schema(responses=SubscriptionOutput)
    def get(self, request: Request) -> Response:
        """Show what you get by mail."""
        return Response(SubscriptionOutput(subscription_of(request.user)).data)

    @extend_schema(request=SubscriptionInput, responses=SubscriptionOutput)
    def put(self, request: Request) -> Response:
        """Choose what you get by mail."""
        body = checked_body(request, SubscriptionInput)
        if body["by_mail"] and not request.user.email:  # type: ignore[union-attr]
            raise ValidationError({"by_mail": ["no mail address is known for you; give one first"]})
        subscribe(user=request.user, by_mail=body["by_mail"])
        return Response(SubscriptionOutput(subscription_of(request.user)).data)


class Webhooks(Endpoint):
    """The addresses that are told of notices."""

    roles = (Role.ADMIN,)
    write_scope = Scope.PEOPLE
    secret_answer = True

    @listing_schema(WEBHOOKS, WebhookOutput)
    def get(self, request: Request) -> Response:
        """List the addresses that are told of notices."""
        return listed(request, active_webhooks(), listing=WEBHOOKS, output=WebhookOutput)

    @extend_schema(request=WebhookInput, responses={201: NewWebhookOutput})
    def post(self, request: Request) -> Response:
        """Add an address that is told of notices."""
        body = checked_body(request, WebhookInput)
        kinds = [kind for kind in NoticeKind if kind.value in body["kinds"]]
        try:
            webhook = add_webhook(
                url=body["url"], kinds=kinds, actor=request.user, at=timezone.now()
            )
        except BadWebhook as bad:
            raise ValidationError({"url": [str(bad)]}) from bad
        return Response(NewWebhookOutput(webhook).data, status=201)


class OneWebhook(Endpoint):
    """One webhook; deleting it ends what is on its way there too."""

    roles = (Role.ADMIN,)
    write_scope = Scope.PEOPLE

    @extend_schema(responses=WebhookOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        """Show one webhook."""
        try:
            return Response(WebhookOutput(webhook_by_uid(uid)).data)
        except WebhookMissing as error:
            raise Http404 from error

    @extend_schema(responses={204: None})
    def delete(self, request: Request, uid: UUID) -> Response:
        """Remove a webhook; what is on its way there ends too."""
        try:
            remove_webhook(uid=uid, actor=request.user, at=timezone.now())
        except WebhookMissing as error:
            raise Http404 from error
        return Response(status=204)


class WebhookDeliveries(Endpoint):
    """List what was sent to one webhook, and what it answered."""

    roles = (Role.ADMIN,)

    @listing_schema(DELIVERIES, DeliveryOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        try:
            deliveries = deliveries_of(webhook_by_uid(uid))
        except WebhookMissing as error:
            raise Http404 from error
        return listed(request, deliveries, listing=DELIVERIES, output=DeliveryOutput)


class WebhookTest(Endpoint):
    """Send a webhook a test now."""

    roles = (Role.ADMIN,)
    write_scope = Scope.PEOPLE

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if self._taken:  # a keyed write is one transaction, which mustn't wait for a receiver
            self._release()
            raise ValidationError({KEY_HEADER: ["a test is sent each time; leave the key out"]})

    @extend_schema(request=None, responses=TestOutput)
    def post(self, request: Request, uid: UUID) -> Response:
        try:
            taken, answer = try_webhook(uid=uid, actor=request.user, at=timezone.now())
        except WebhookMissing as error:
            raise Http404 from error
        return Response(TestOutput({"taken": taken, "answer": answer}).data)
