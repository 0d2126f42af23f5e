"""What must never stand in a log, and what would only fill it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from workbench.kernel.queues import BEAT_TASK

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


class DropBeats(logging.Filter):
    """Drops the worker's lines about the sweeper's empty tasks, unless something was wrong."""

    def filter(self, record: logging.LogRecord) -> bool:
        told = record.args
        beat = isinstance(told, Mapping) and told.get("name") == BEAT_TASK
        return not beat or record.levelno > logging.INFO
