"""Mail, where a server is configured. Nothing depends on it: what is mailed is shown as well."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.core.mail import EmailMessage, get_connection

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Letter:
    """A plain text to one person."""

    to: str
    subject: str
    text: str


def mail_is_on() -> bool:
    """Return whether mail can be sent at all."""
    return bool(settings.SMTP_URL)


def send(letters: Sequence[Letter]) -> tuple[str, ...]:
    """Send the letters over one connection; return why each wasn't sent, empty where it was.

    A server that can't be reached is tried once, not once a letter.
    """
    if not mail_is_on():
        return tuple("no mail server is configured" for _ in letters)
    if not letters:
        return ()
    connection = get_connection()
    try:
        connection.open()
    except OSError as error:
        return tuple(_told(error) for _ in letters)
    problems = []
    try:
        for letter in letters:
            message = EmailMessage(
                letter.subject,
                letter.text,
                settings.MAIL_FROM,
                [letter.to],
                connection=connection,
            )
            try:
                message.send()
            except (OSError, ValueError) as error:  # smtplib's errors are OSErrors
                problems.append(_told(error))
            else:
                problems.append("")
    finally:
        connection.close()
    return tuple(problems)


def _told(error: Exception) -> str:
    """Return the fault in a few words; the text of a letter or a password is in none of them."""
    logger.warning("mail could not be sent: %s", type(error).__name__)
    reason = getattr(error, "strerror", None) or type(error).__name__
    return f"the mail server did not take it ({reason})"
