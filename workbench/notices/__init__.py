"""Notices: what happened that leads and admins want to know of. Raters never see any."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Case, CharField, F, Q, QuerySet, Subquery, Value, When
from django.db.models.functions import Coalesce, Greatest

from workbench.kernel.dispatch import publish
from workbench.kernel.lists import Filter, Listing
from workbench.models import Delivery, Notice, NoticeReader, Webhook

DELIVER_TASK = "workbench.deliver"
MAIL_TASK = "workbench.mail"
QUEUE = "default"
# A badge counts no further; the list has them all.
COUNTED_AT_MOST = 99


class NoticeKind(StrEnum):
    """What a notice tells. Another kind needs a line here and a word in ``SAID``."""

    EXPERIMENT_PAUSED = "experiment_paused"
    EXPERIMENT_FINISHED = "experiment_finished"
    EXPERIMENT_FAILED = "experiment_failed"
    BUDGET_REACHED = "budget_reached"


# How a kind is written for people.
SAID: dict[str, str] = {
    NoticeKind.EXPERIMENT_PAUSED: "Paused",
    NoticeKind.EXPERIMENT_FINISHED: "Finished",
    NoticeKind.EXPERIMENT_FAILED: "Failed",
    NoticeKind.BUDGET_REACHED: "Budget reached",
}

LISTING = Listing(
    sorts={"at": "at"},
    default_sort="-at",
    filters={
        "kind": Filter("kind", tuple(kind.value for kind in NoticeKind)),
        "unread": Filter("unread", ("true", "false")),
    },
)


class NoticeMissing(Exception):
    """No notice has this uid."""


@dataclass(frozen=True)
class Subscription:
    """What a person gets beside the list: a mail at most once an hour, or none."""

    by_mail: bool


def notify(
    *,
    kind: NoticeKind,
    event: str,
    subject: str,
    text: str,
    path: str,
    at: datetime,
    actor: Any = None,
) -> None:
    """Store a notice once, with a delivery to each webhook that wants its kind.

    The same ``event`` told again changes nothing. Told inside the transaction of what
    happened, notice and event stand or fall together.

    Args:
        event: what makes it this event and no other.
        subject: what it is about, such as the experiment's slug.
        text: what happened, why, and what to do next, in plain words.
        path: of the page where one acts on it.
        actor: who made it happen; to them it is not unread.
    """
    with transaction.atomic():
        notice, new = Notice.objects.get_or_create(
            event=event,
            defaults={
                "kind": kind,
                "subject": subject,
                "text": text,
                "path": path,
                "actor": actor,
                "at": at,
            },
        )
        if not new:
            return
        wanted = [
            Delivery(notice=notice, webhook=webhook, at=at)
            for webhook in Webhook.objects.filter(removed_at=None).order_by("pk")
            if not webhook.kinds or kind in webhook.kinds
        ]
        Delivery.objects.bulk_create(wanted)
        publish(DELIVER_TASK, [one.uid for one in wanted], queue=QUEUE)


# --- reading --------------------------------------------------------------------


def notices_for(user: Any, *, only_unread: bool = False) -> QuerySet[Notice, Any]:
    """Return all notices, each with ``unread``, "true" or "false", as it is to ``user``.

    Args:
        only_unread: leave the others out where an index can, as the filter ``unread`` can't.
    """
    found = Notice.objects.filter(_news_to(user)) if only_unread else Notice.objects.all()
    return found.annotate(
        unread=Case(
            When(_news_to(user), then=Value("true")),
            default=Value("false"),
            output_field=CharField(),
        )
    )


def unread_count(user: Any) -> int:
    """Return how many notices ``user`` hasn't read, at most ``COUNTED_AT_MOST`` + 1: one query."""
    newest = Notice.objects.filter(_news_to(user)).order_by("-pk")
    return newest[: COUNTED_AT_MOST + 1].count()


def mark_read(*, user: Any, newest: UUID) -> None:
    """Mark the notice of this uid and all before it as read; what came after stays unread.

    Raises:
        NoticeMissing: there is none.
    """
    pk = Notice.objects.filter(uid=newest).values_list("pk", flat=True).first()
    if pk is None:
        raise NoticeMissing(f"there is no notice {newest}")
    reader = _reader_of(user)
    NoticeReader.objects.filter(pk=reader.pk).update(read_up_to=Greatest(F("read_up_to"), pk))


def newest_notice() -> Notice | None:
    """Return the notice that was stored last, or None."""
    return Notice.objects.order_by("-pk").first()


# --- subscriptions --------------------------------------------------------------


def subscription_of(user: Any) -> Subscription:
    """Return what ``user`` gets by mail."""
    return Subscription(NoticeReader.objects.filter(user=user, by_mail=True).exists())


def subscribe(*, user: Any, by_mail: bool) -> None:
    """Switch the mails of ``user`` on or off; no mail tells what happened before that."""
    reader = _reader_of(user)
    newest = newest_notice()
    fields = {"mailed_up_to": newest.pk if newest else 0} if by_mail else {}
    # Switched on again it changes nothing: what waits for its mail still waits.
    NoticeReader.objects.filter(pk=reader.pk, by_mail=not by_mail).update(by_mail=by_mail, **fields)


def news_for_mail(reader: NoticeReader) -> QuerySet[Notice, Any]:
    """Return what a reader has neither read nor been mailed, oldest first."""
    known = max(reader.read_up_to, reader.mailed_up_to)
    return Notice.objects.filter(_not_by(reader.user), pk__gt=known).order_by("pk")


def _reader_of(user: Any) -> NoticeReader:
    reader, _ = NoticeReader.objects.get_or_create(user=user)
    return reader


def _news_to(user: Any) -> Q:
    """Return the condition that a notice is unread: newer than the reader's mark, not their doing.

    What happened before they joined is none.
    """
    read = Subquery(NoticeReader.objects.filter(user=user).values("read_up_to")[:1])
    return _not_by(user) & Q(pk__gt=Coalesce(read, 0), at__gte=user.date_joined)


def _not_by(user: Any) -> Q:
    return Q(actor=None) | ~Q(actor=user)
