"""The one way to make an address that leaves this process: in mail, on a console, in a link."""

from __future__ import annotations

from django.conf import settings

NOWHERE = "http://127.0.0.1:8000"


def public_url(path: str, *, served: str = "") -> str:
    """Return the whole address of ``path`` as people reach it.

    It comes from the settings, never from a request: a Host header is anybody's to write.

    Args:
        path: what ``reverse`` gives, starting with a slash.
        served: where the pages are served, for a process that no web server runs beside;
            used where the settings say nothing.
    """
    base = settings.PUBLIC_URL or settings.WEB_URL or served or NOWHERE
    return base.rstrip("/") + "/" + path.lstrip("/")
