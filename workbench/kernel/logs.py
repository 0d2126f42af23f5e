"""What must never stand in a log."""

from __future__ import annotations

import logging
import re

# Django logs the path of what it refuses, and a one-time link that was refused (a form
# without its token, a password that is too short) may still be a key to the door.
_LINK = re.compile(r"/(invite|reset|sign-in/link)/[^/\s\"']+")


class HideLinks(logging.Filter):
    """Replaces the token of a one-time link by dots."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        hidden = _LINK.sub(r"/\1/...", said)
        if hidden != said:
            record.msg, record.args = hidden, None
        return True
