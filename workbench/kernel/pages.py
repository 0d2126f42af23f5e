"""Rendering a page from its one frozen dataclass."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def render_page(
    request: HttpRequest, template: str, page: Any, *, status: int = 200
) -> HttpResponse:
    """Return ``template`` rendered with the fields of the dataclass ``page`` and nothing else.

    Nothing of it is kept by the browser: after signing out, Back shows no page.
    """
    context = {field.name: getattr(page, field.name) for field in fields(page)}
    response = render(request, template, context, status=status)
    response["Cache-Control"] = "no-store"
    return response


def utc(moment: datetime | None) -> str:
    """Return ``moment`` for people, with its offset, or an empty text."""
    return f"{moment:%-d %b %Y, %H:%M} UTC" if moment else ""


def utc_seconds(moment: datetime | None) -> str:
    """Return ``moment`` to the second, where minutes are too coarse, or an empty text."""
    return f"{moment:%-d %b %Y, %H:%M:%S} UTC" if moment else ""
