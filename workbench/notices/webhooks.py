"""Webhooks: addresses that are told of notices, each delivery signed, tried again, and shown.

An address arrives by web, so only hosts that the operator lists in ``WORKBENCH_WEBHOOK_HOSTS``
may be named. An entry is ``host`` or ``host:port`` (https; port 443 where none is given),
``http://host:port`` (plain http, for receivers on this network), or ``*.domain`` (any name
below it, by https on port 443, and only at public addresses: the operator didn't name it).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import socket
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

import httpx2
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from django.utils.crypto import salted_hmac

from workbench.kernel.dispatch import publish
from workbench.kernel.leases import (
    AlreadyClaimed,
    LeaseLost,
    LeaseState,
    claim,
    expire_dead,
    settle,
)
from workbench.kernel.public import public_url
from workbench.models import AuditEvent, Delivery, Notice, Webhook
from workbench.notices import DELIVER_TASK, QUEUE, NoticeKind
from workbench.trail import record_event

logger = logging.getLogger(__name__)

LONGEST_URL = 500
# Every notice is sent to each of them, and one page shows them all.
MOST_WEBHOOKS = 20
TIMEOUT_S = 5.0
# One try at once and seven after these waits: 22 hours and 21 minutes in all.
WAITS = (
    timedelta(minutes=1),
    timedelta(minutes=5),
    timedelta(minutes=15),
    timedelta(hours=1),
    timedelta(hours=3),
    timedelta(hours=6),
    timedelta(hours=12),
)
MAX_TRIES = len(WAITS) + 1
# A delivery that nobody took up is sent again by the sweep after this long.
LOST_AFTER = timedelta(seconds=30)
SWEPT_AT_ONCE = 100
HEADER_SIGNATURE = "Workbench-Signature"
HEADER_ID = "Workbench-Delivery"
OFF = (
    "Webhooks are off: whoever runs this workbench lists the hosts that may be told in "
    "WORKBENCH_WEBHOOK_HOSTS, such as hooks.example.org, and starts it again."
)

_HOST = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]")
_PORTS = {"https": 443, "http": 80}
# RFC 4291: what is given out of IPv6.
_UNICAST = IPv6Network("2000::/3")
# Python 3.11 takes them for public: relays (RFC 7526), documentation (RFC 9637), segment
# routing (RFC 9602).
_DETOURS = tuple(map(ip_network, ("192.88.99.0/24", "3fff::/20", "5f00::/16")))


class BadWebhook(ValueError):
    """The address can't be a webhook's; the text says why and the fix."""


class WebhookMissing(Exception):
    """No webhook has this uid, or it was removed."""


class NotSent(Exception):
    """Nothing was sent; the text says why, without any of what was answered."""


@dataclass(frozen=True)
class Place:
    """Where a webhook is: one scheme, host and port, and nothing else."""

    scheme: str
    host: str
    port: int


# --- who may be told --------------------------------------------------------------


def checked_url(url: str) -> str:
    """Return ``url`` if it may be a webhook's.

    Raises:
        BadWebhook: it is no address, or its host isn't one that the operator lists.
    """
    place = _place_of(url)
    if not settings.WEBHOOK_HOSTS:
        raise BadWebhook(OFF)
    if _entry_for(place) is None:
        raise BadWebhook(
            f"{place.scheme}://{place.host}:{place.port} is not listed in WORKBENCH_WEBHOOK_HOSTS; "
            f"listed: {', '.join(settings.WEBHOOK_HOSTS)}. Whoever runs the workbench adds hosts"
        )
    return url


def _place_of(url: str) -> Place:
    if len(url) > LONGEST_URL:
        raise BadWebhook(f"the address may have {LONGEST_URL} characters; this has {len(url)}")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise BadWebhook("write the address in plain ASCII, without spaces; see your receiver's")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadWebhook(f"this is no address: {error}") from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise BadWebhook("the address must begin with https:// and name a host")
    if "@" in parts.netloc:
        raise BadWebhook("leave name and password out of the address; check the signature instead")
    if parts.fragment:
        raise BadWebhook("leave out what comes after #; it is never sent")
    return Place(parts.scheme, _host(parts), port or _PORTS[parts.scheme])


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(host):
        raise BadWebhook(f"'{host}' is no host name")
    return host


def _entry_for(place: Place) -> str | None:
    """Return the entry of the operator's list that allows this place, or None."""
    entries: list[str] = settings.WEBHOOK_HOSTS
    for entry in entries:
        plain = entry.strip().lower()
        if plain.startswith("*."):
            below = place.host.endswith(plain[1:]) and place.host != plain[2:]
            if below and place.scheme == "https" and place.port == 443:
                return entry
            continue
        try:
            allowed = _place_of(plain if "://" in plain else f"https://{plain}")
        except BadWebhook:
            continue  # a slip in the list opens nothing
        if allowed == place:
            return entry
    return None


# --- adding and removing ----------------------------------------------------------


def active_webhooks() -> QuerySet[Webhook, Any]:
    """Return the webhooks that are told of notices, oldest first."""
    return Webhook.objects.filter(removed_at=None).select_related("created_by").order_by("pk")


def webhook_by_uid(uid: UUID) -> Webhook:
    """Return the webhook of ``uid``.

    Raises:
        WebhookMissing: there is none, or it was removed.
    """
    found: Webhook | None = Webhook.objects.filter(uid=uid, removed_at=None).first()
    if found is None:
        raise WebhookMissing(f"there is no webhook {uid}")
    return found


def deliveries_of(webhook: Webhook) -> QuerySet[Delivery, Any]:
    """Return what was sent to a webhook or waits for it, with its notices."""
    return Delivery.objects.filter(webhook=webhook).select_related("notice")


def add_webhook(*, url: str, kinds: Sequence[NoticeKind], actor: Any, at: datetime) -> Webhook:
    """Store a webhook that is told of these kinds from now on; of all kinds where none is named.

    Raises:
        BadWebhook: the address can't be one, or there are ``MOST_WEBHOOKS`` already.
    """
    checked = checked_url(url)
    if active_webhooks().count() >= MOST_WEBHOOKS:
        raise BadWebhook(f"there are {MOST_WEBHOOKS} webhooks, and no more are told; remove one")
    with transaction.atomic():
        webhook: Webhook = Webhook.objects.create(
            url=checked, kinds=[kind.value for kind in kinds], created_by=actor, created_at=at
        )
        _record("added", webhook, actor, at)
    return webhook


def remove_webhook(*, uid: UUID, actor: Any, at: datetime) -> None:
    """Tell this webhook nothing more, not even what is on its way.

    Raises:
        WebhookMissing: there is none, or it was removed already.
    """
    webhook = webhook_by_uid(uid)
    with transaction.atomic():
        if not Webhook.objects.filter(pk=webhook.pk, removed_at=None).update(removed_at=at):
            raise WebhookMissing(f"there is no webhook {uid}")
        Delivery.objects.filter(webhook=webhook, state=LeaseState.PENDING).update(
            state=LeaseState.DEAD, answer=_REMOVED, next_attempt_at=None
        )
        _record("removed", webhook, actor, at)


def _record(verb: str, webhook: Webhook, actor: Any, at: datetime, *, reason: str = "") -> None:
    # Only the host: many receivers' addresses are secrets.
    host = _place_of(webhook.url).host
    record_event(
        actor=actor,
        verb=f"webhook.{verb}",
        subject=f"{webhook.uid} at {host}"[:200],
        reason=reason,
        at=at,
    )


def secret_of(webhook: Webhook) -> str:
    """Return the secret that signs what this webhook is sent: derived, never stored."""
    return salted_hmac("workbench.webhook", str(webhook.uid), algorithm="sha256").hexdigest()


def signature(*, secret: str, body: bytes, at: datetime) -> str:
    """Return the signature header: ``t=SECONDS,v1=HEX``, an HMAC-SHA256 of ``SECONDS.BODY``."""
    seconds = str(int(at.timestamp()))
    signed = hmac.new(secret.encode(), seconds.encode() + b"." + body, hashlib.sha256)
    return f"t={seconds},v1={signed.hexdigest()}"


# --- delivering -------------------------------------------------------------------

_REMOVED = "not sent: the webhook was removed"


def deliver(*, uid: UUID) -> bool:
    """Send one delivery if it is due; return whether the receiver took it.

    It is sent at least once: after a crash the same delivery may come again under the same id.
    """
    item = Delivery.objects.filter(uid=uid)
    try:
        token = claim(item, now=timezone.now(), lease=timedelta(seconds=settings.LEASE_SECONDS))
    except AlreadyClaimed:
        return False
    delivery: Delivery = item.select_related("notice", "webhook").get()
    took, answer = False, _REMOVED
    # A worker that died in the last try left one more claim to settle it.
    spent = delivery.tries > MAX_TRIES
    if spent:
        answer = delivery.answer or "its worker ended while it was sent"
    elif delivery.webhook.removed_at is None:
        took, answer = _tried(delivery)
        spent = delivery.tries >= MAX_TRIES
    else:
        spent = True
    now = timezone.now()
    state = LeaseState.DONE if took else LeaseState.DEAD if spent else LeaseState.PENDING
    wait = WAITS[delivery.tries - 1] if state == LeaseState.PENDING else None
    try:
        settle(
            item,
            token=token,
            state=state,
            answer=answer[:200],
            at=now,
            next_attempt_at=now + wait if wait else None,
        )
    except LeaseLost:
        logger.warning("the delivery %s was taken over while it was sent", uid)
    return took


def _tried(delivery: Delivery) -> tuple[bool, str]:
    """Return whether the receiver took the delivery, and what is shown of its answer."""
    try:
        status = _post(delivery.webhook, _body(delivery.notice), uid=delivery.uid)
    except NotSent as error:
        return False, str(error)
    return _taken(status), _said(status)


def try_webhook(*, uid: UUID, actor: Any, at: datetime) -> tuple[bool, str]:
    """Send this webhook a notice of kind ``test`` now; return whether it took it, and its answer.

    Raises:
        WebhookMissing: there is none, or it was removed.
    """
    webhook = webhook_by_uid(uid)
    text = "This is a test: nothing happened, and nothing is to be done."
    body = _json(uid=uuid.uuid4(), kind="test", subject="test", text=text, path="/notices/", at=at)
    try:
        status = _post(webhook, body, uid=uuid.uuid4())
        took, answer = _taken(status), _said(status)
    except NotSent as error:
        took, answer = False, str(error)
    said = f"{_TOOK if took else 'not taken'}: {answer}"
    _record("tested", webhook, actor, at, reason=said)
    return took, answer


_TOOK = "taken"


def last_test(webhook: Webhook) -> AuditEvent | None:
    """Return the event of the webhook's last test; its reason says what came of it."""
    events = AuditEvent.objects.filter(verb="webhook.tested", subject__startswith=f"{webhook.uid} ")
    return events.order_by("-pk").first()


def _taken(status: int) -> bool:
    return 200 <= status < 300


def _said(status: int) -> str:
    return f"answered {status}" + ("; redirects are not followed" if 300 <= status < 400 else "")


def _body(notice: Notice) -> bytes:
    return _json(
        uid=notice.uid,
        kind=notice.kind,
        subject=notice.subject,
        text=notice.text,
        path=notice.path,
        at=notice.at,
    )


def _json(*, uid: UUID, kind: str, subject: str, text: str, path: str, at: datetime) -> bytes:
    fields = {
        "id": str(uid),
        "kind": kind,
        "subject": subject,
        "text": text,
        "url": public_url(path),
        "at": at.isoformat(),
    }
    return json.dumps(fields, ensure_ascii=False).encode()


def _post(webhook: Webhook, body: bytes, *, uid: UUID) -> int:
    """Send ``body`` once and return the status of the answer, whose body is never read.

    Raises:
        NotSent: the host isn't listed any more, or it can't be reached.
    """
    try:
        checked_url(webhook.url)
    except BadWebhook as error:
        raise NotSent(f"not sent: {error}") from error
    place = _place_of(webhook.url)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "skill-audit-workbench",
        HEADER_ID: str(uid),
        HEADER_SIGNATURE: signature(secret=secret_of(webhook), body=body, at=timezone.now()),
    }
    url = httpx2.URL(webhook.url)
    extensions: dict[str, Any] = {}
    if (_entry_for(place) or "").startswith("*."):
        # The address that was checked is the one that is called.
        headers["Host"] = place.host
        extensions["sni_hostname"] = place.host
        url = url.copy_with(host=public_address(place.host, place.port))
    try:
        with (
            httpx2.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
            client.stream(
                "POST", url, content=body, headers=headers, extensions=extensions
            ) as response,
        ):
            return int(response.status_code)
    except httpx2.TimeoutException as error:
        raise NotSent(f"no answer within {TIMEOUT_S:g} s") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        where = f"{place.host}:{place.port}"
        if _is_refused(error):
            raise NotSent(f"nothing listens at {where}") from error
        raise NotSent(f"{where} can't be reached ({type(error).__name__})") from error


def _is_refused(error: BaseException) -> bool:
    """Return whether ``error`` comes down to a connection that was refused."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ConnectionRefusedError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


Resolve = Callable[..., list[Any]]


def public_address(host: str, port: int, *, resolve: Resolve = socket.getaddrinfo) -> str:
    """Return the first address of ``host``.

    Raises:
        NotSent: it has none, or one of them is private, of this machine or otherwise not public.
    """
    try:
        found = [entry[4][0] for entry in resolve(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
        raise NotSent(f"not sent: {host} has no address") from error
    if not all(_is_public(ip_address(text.partition("%")[0])) for text in found):
        raise NotSent(f"not sent: {host} is not at a public address")
    if not found:
        raise NotSent(f"not sent: {host} has no address")
    return str(found[0])


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Return whether ``address`` is of one machine that everybody reaches, and no detour."""
    if not address.is_global or address.is_multicast:
        return False
    if any(address in network for network in _DETOURS if network.version == address.version):
        return False
    if isinstance(address, IPv4Address):
        return True
    # Everything else of IPv6 isn't given out: mapped and compatible addresses, NAT64,
    # site-local ones.
    return address in _UNICAST and (address.sixtofour is None or _is_public(address.sixtofour))


def sweep_deliveries(*, now: datetime) -> None:
    """Publish the deliveries that are due, or whose message or worker was lost."""
    expire_dead(Delivery.objects.all(), now=now)
    due = Delivery.objects.filter(
        Q(state=LeaseState.PENDING, next_attempt_at__lte=now)
        | Q(state=LeaseState.PENDING, next_attempt_at=None, at__lt=now - LOST_AFTER)
        | Q(state=LeaseState.RUNNING, lease_until__lt=now)
    )
    publish(
        DELIVER_TASK, due.order_by("at").values_list("uid", flat=True)[:SWEPT_AT_ONCE], queue=QUEUE
    )
