"""Notices: the list, marking it read, the mails one gets, and the webhooks admins keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from workbench.kernel.leases import LeaseState
from workbench.kernel.lists import BadListQuery, page_of
from workbench.kernel.pages import render_page, utc
from workbench.kernel.roles import Role, only_for, role_of, unblinded_only
from workbench.mail import mail_is_on
from workbench.models import Delivery, Notice, Webhook
from workbench.notices import (
    LISTING,
    SAID,
    NoticeKind,
    NoticeMissing,
    mark_read,
    newest_notice,
    notices_for,
    subscribe,
    subscription_of,
)
from workbench.notices.webhooks import (
    LONGEST_URL,
    OFF,
    BadWebhook,
    WebhookMissing,
    active_webhooks,
    add_webhook,
    checked_url,
    deliveries_of,
    last_test,
    remove_webhook,
    secret_of,
    try_webhook,
)

SHOWN_AT_MOST = 10


@dataclass(frozen=True)
class NoticeRow:
    """One notice; ``unread`` as it is to the reader."""

    kind: str
    said: str
    subject: str
    text: str
    url: str
    at: str
    unread: bool


@dataclass(frozen=True)
class KindLink:
    """A filter: a kind of notice, or all."""

    label: str
    url: str
    current: bool


@dataclass(frozen=True)
class NoticesPage:
    """The notices, newest first. ``newest`` names the last one that the reader may have seen."""

    rows: tuple[NoticeRow, ...]
    kinds: tuple[KindLink, ...]
    filtered: bool
    next_query: str
    first: bool
    newest: str
    any_unread: bool
    by_mail: bool
    mail_is_on: bool
    address: str
    may_keep_webhooks: bool


@require_safe
@unblinded_only
def notices(request: HttpRequest) -> HttpResponse:
    """Show the notices, newest first; ``?kind=`` and ``?unread=true`` choose among them."""
    # Read before the list: what comes between the two stays unread.
    newest = newest_notice()
    found = notices_for(request.user, only_unread=request.GET.get("unread") == "true")
    try:
        page = page_of(found, listing=LISTING, query=request.GET.dict())
    except BadListQuery as bad:
        raise Http404(str(bad)) from bad
    return render_page(
        request,
        "notices.html",
        NoticesPage(
            rows=tuple(_row(notice) for notice in page.rows),
            kinds=_kinds(page.asked),
            filtered=bool(page.asked),
            next_query=page.next_query,
            first=page.first,
            newest=str(newest.uid) if newest else "",
            any_unread=any(notice.unread == "true" for notice in page.rows),
            by_mail=subscription_of(request.user).by_mail,
            mail_is_on=mail_is_on(),
            address=request.user.email,  # type: ignore[union-attr]
            may_keep_webhooks=role_of(request.user) is Role.ADMIN,
        ),
    )


def _row(notice: Notice) -> NoticeRow:
    unread: str = notice.unread  # type: ignore[attr-defined]
    return NoticeRow(
        kind=notice.kind,
        said=SAID.get(notice.kind, notice.kind),
        subject=notice.subject,
        text=notice.text,
        url=notice.path,
        at=utc(notice.at),
        unread=unread == "true",
    )


def _kinds(asked: Mapping[str, str]) -> tuple[KindLink, ...]:
    chosen = dict(asked)
    here = reverse("notices")
    unread = KindLink("Unread", f"{here}?unread=true", chosen == {"unread": "true"})
    by_kind = (
        KindLink(said, f"{here}?{urlencode({'kind': kind})}", chosen.get("kind") == kind)
        for kind, said in SAID.items()
    )
    return (KindLink("All", here, not chosen), unread, *by_kind)


@require_POST
@unblinded_only
def read(request: HttpRequest) -> HttpResponse:
    """Mark everything up to the newest notice that the page knew of as read."""
    try:
        mark_read(user=request.user, newest=UUID(request.POST.get("newest", "")))
    except (ValueError, NoticeMissing):
        messages.error(request, "Nothing was marked: load this page again, then mark it.")
    else:
        messages.success(request, "All marked as read.")
    return redirect("notices")


@require_POST
@unblinded_only
def mail(request: HttpRequest) -> HttpResponse:
    """Switch one's own mails on or off."""
    wanted = request.POST.get("by_mail") == "on"
    if wanted and not request.user.email:  # type: ignore[union-attr]
        messages.error(
            request, "Not switched on: no address is known for you. Give one on your account page."
        )
        return redirect("notices")
    subscribe(user=request.user, by_mail=wanted)
    if wanted:
        messages.success(request, "You will get a mail when something is new, at most hourly.")
    else:
        messages.success(request, "You will get no more mails about notices.")
    return redirect("notices")


# --- webhooks -------------------------------------------------------------------


@dataclass(frozen=True)
class DeliveryRow:
    """One delivery: what of, how it stands, and the last answer."""

    subject: str
    said: str
    state: str
    tries: int
    answer: str
    at: str
    next_try: str


@dataclass(frozen=True)
class WebhookRow:
    """One webhook with its last deliveries."""

    uid: str
    url: str
    fault: str
    kinds: tuple[str, ...]
    secret: str
    by: str
    added: str
    tested: str
    test: str
    deliveries: tuple[DeliveryRow, ...]


@dataclass(frozen=True)
class KindChoice:
    """A kind that a new webhook may be told of."""

    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class WebhooksPage:
    """The webhooks, and the form for another. ``off`` says why none can be added."""

    rows: tuple[WebhookRow, ...]
    off: str
    hosts: tuple[str, ...]
    url: str
    kinds: tuple[KindChoice, ...]
    error: str
    error_at: str
    longest_url: int


# How the states of a delivery are written for people.
_STATES = {
    LeaseState.PENDING: "waits",
    LeaseState.RUNNING: "being sent",
    LeaseState.DONE: "taken",
    LeaseState.DEAD: "given up",
}


@require_http_methods(["GET", "HEAD", "POST"])
@only_for(Role.ADMIN)
def webhooks(request: HttpRequest) -> HttpResponse:
    """Show the webhooks; a POST adds one."""
    if request.method != "POST":
        return _webhooks_page(request)
    url = request.POST.get("url", "").strip()
    asked = request.POST.getlist("kind")
    kinds = [kind for kind in NoticeKind if kind.value in asked]
    error = "" if kinds else "Told of: choose at least one kind of notice."
    if not error:
        try:
            # All of them means those of later versions too.
            chosen = [] if len(kinds) == len(NoticeKind) else kinds
            add_webhook(url=url, kinds=chosen, actor=request.user, at=timezone.now())
        except BadWebhook as bad:
            error = f"Address: {bad}"
    if error:
        return _webhooks_page(request, url=url, kinds=kinds, error=error, status=400)
    messages.success(request, "Added. Send it a test to see that it is taken.")
    return redirect("webhooks")


def _webhooks_page(
    request: HttpRequest,
    *,
    url: str = "",
    kinds: Sequence[NoticeKind] = tuple(NoticeKind),
    error: str = "",
    status: int = 200,
) -> HttpResponse:
    page = WebhooksPage(
        rows=tuple(_webhook_row(webhook) for webhook in active_webhooks()),
        off="" if settings.WEBHOOK_HOSTS else OFF,
        hosts=tuple(settings.WEBHOOK_HOSTS),
        url=url,
        kinds=tuple(KindChoice(kind, said, kind in kinds) for kind, said in SAID.items()),
        error=error,
        # An address can be wrong only where kinds were chosen.
        error_at="" if not error else "url" if kinds else "kinds",
        longest_url=LONGEST_URL,
    )
    return render_page(request, "webhooks.html", page, status=status)


def _webhook_row(webhook: Webhook) -> WebhookRow:
    fault = ""
    try:
        checked_url(webhook.url)
    except BadWebhook as bad:
        fault = str(bad)
    test = last_test(webhook)
    return WebhookRow(
        uid=str(webhook.uid),
        url=webhook.url,
        fault=fault,
        kinds=tuple(SAID.get(kind, kind) for kind in webhook.kinds),
        secret=secret_of(webhook),
        by=webhook.created_by.get_username(),
        added=utc(webhook.created_at),
        tested=utc(test.at) if test else "",
        test=test.reason if test else "",
        deliveries=tuple(
            _delivery_row(one) for one in deliveries_of(webhook).order_by("-pk")[:SHOWN_AT_MOST]
        ),
    )


def _delivery_row(delivery: Delivery) -> DeliveryRow:
    return DeliveryRow(
        subject=delivery.notice.subject,
        said=SAID.get(delivery.notice.kind, delivery.notice.kind),
        state=_STATES[LeaseState(delivery.state)],
        tries=delivery.tries,
        answer=delivery.answer,
        at=utc(delivery.at),
        next_try=utc(delivery.next_attempt_at),
    )


@require_POST
@only_for(Role.ADMIN)
def webhook_remove(request: HttpRequest, uid: UUID) -> HttpResponse:
    """Tell a webhook nothing more."""
    try:
        remove_webhook(uid=uid, actor=request.user, at=timezone.now())
    except WebhookMissing as error:
        raise Http404 from error
    messages.success(request, "Removed. Nothing more is sent there, not even what waited.")
    return redirect("webhooks")


@require_POST
@only_for(Role.ADMIN)
def webhook_test(request: HttpRequest, uid: UUID) -> HttpResponse:
    """Send a webhook a test."""
    try:
        took, answer = try_webhook(uid=uid, actor=request.user, at=timezone.now())
    except WebhookMissing as error:
        raise Http404 from error
    if took:
        messages.success(request, f"The test was taken: {answer}.")
    else:
        messages.error(request, f"The test was not taken: {answer}.")
    return redirect("webhooks")
