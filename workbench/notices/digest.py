"""The digest: at most one mail an hour to each lead or admin who asked for it."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet
from django.utils import timezone

from workbench.kernel.dispatch import publish
from workbench.kernel.pages import utc
from workbench.kernel.public import public_url
from workbench.kernel.roles import UNBLINDED
from workbench.mail import Letter, mail_is_on, send
from workbench.models import Notice, NoticeReader
from workbench.notices import MAIL_TASK, QUEUE, news_for_mail

logger = logging.getLogger(__name__)

AT_MOST_EVERY = timedelta(hours=1)
# A mail that could not be sent, or whose worker died, is tried again after this long.
TRIED_AGAIN_AFTER = timedelta(minutes=5)
LISTED_AT_MOST = 50


def sweep_digests(*, now: datetime) -> None:
    """Publish the digests that are due; the mails themselves are a worker's, never the sweep's."""
    if not mail_is_on():
        return
    for reader in _subscribed().filter(_due(now)).order_by("pk"):
        if not news_for_mail(reader).exists():
            continue
        # One UPDATE on the row's own columns: of two sweeps one publishes.
        taken = NoticeReader.objects.filter(_due(now), pk=reader.pk).update(
            mail_due_at=now + TRIED_AGAIN_AFTER
        )
        if taken:
            publish(MAIL_TASK, [reader.pk], queue=QUEUE)


def mail_digest(*, reader: int) -> bool:
    """Mail a reader what is new to them; return whether a mail was handed in.

    A mail that can't be handed in is logged, and the sweep tries again. Should the worker die
    between handing it in and saying so, it is sent again.
    """
    found = _subscribed().filter(pk=reader).first()
    if found is None or not mail_is_on():
        return False
    newest = news_for_mail(found).order_by("-pk").values_list("pk", flat=True).first()
    if newest is None:  # read meanwhile, or this message came twice
        return False
    news = news_for_mail(found).filter(pk__lte=newest)
    [problem] = send([_letter(found.user.email, news[:LISTED_AT_MOST], news.count())])
    if problem:
        logger.warning("the digest of user %s waits: %s", found.user_id, problem)
        return False
    NoticeReader.objects.filter(pk=reader).update(
        mailed_up_to=newest, mail_due_at=timezone.now() + AT_MOST_EVERY
    )
    return True


def _subscribed() -> QuerySet[NoticeReader]:
    """Return the readers who get mail: those who asked, and may still see notices."""
    unblinded = Q(user__groups__name__in=UNBLINDED) | Q(user__is_superuser=True)
    return (
        NoticeReader.objects.filter(unblinded, by_mail=True, user__is_active=True)
        .exclude(user__email="")
        .select_related("user")
        .distinct()
    )


def _due(now: datetime) -> Q:
    return Q(mail_due_at=None) | Q(mail_due_at__lte=now)


def _letter(address: str, news: Iterable[Notice], count: int) -> Letter:
    """Return the digest: plain text, whose headers hold nothing of what the notices say."""
    blocks = [
        "\n".join(
            (
                f"{utc(notice.at)}  {_plain(notice.subject)}",
                _plain(notice.text),
                public_url(notice.path),
            )
        )
        for notice in news
    ]
    if more := count - len(blocks):
        blocks.append(f"And {more} more: {public_url('/notices/')}")
    blocks.append(f"You asked for these mails. Switch them off: {public_url('/notices/')}")
    said = "1 notice" if count == 1 else f"{count} notices"
    return Letter(
        to=address,
        subject=f"Skill Audit Workbench: {said}",
        text="\n\n".join(blocks) + "\n",
    )


def _plain(text: str) -> str:
    """Return text on one line, without characters that steer a terminal or the reading order."""
    shown = (
        " " if c.isspace() else "" if unicodedata.category(c) in ("Cc", "Cf") else c for c in text
    )
    return " ".join("".join(shown).split())
