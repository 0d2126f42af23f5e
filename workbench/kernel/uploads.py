"""Files that pages take: how long a request may be, said by the page and checked before it is read.

JSON endpoints say theirs as ``Endpoint.largest_body``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.conf import settings
from django.http import HttpRequest

# What a form has beside its file: other fields, boundaries, the file's name.
FORM_BYTES = 64 * 1024

View = TypeVar("View", bound=Callable[..., Any])


def takes_upload(largest_file: int) -> Callable[[View], View]:
    """Let a view's form hold a file of ``largest_file`` bytes; put it outermost."""

    def mark(view: View) -> View:
        view.largest_body = largest_file + FORM_BYTES  # type: ignore[attr-defined]
        return view

    return mark


def length_of(request: HttpRequest) -> int:
    """Return how many bytes the request says its body has; without a length it has none."""
    text = str(request.META.get("CONTENT_LENGTH") or "0")
    return int(text[:19]) if text.isascii() and text.isdigit() else 0


def largest_body_of(view: Callable[..., Any]) -> int:
    """Return how many bytes the body may have that a page is sent."""
    return int(getattr(view, "largest_body", settings.DATA_UPLOAD_MAX_MEMORY_SIZE))
