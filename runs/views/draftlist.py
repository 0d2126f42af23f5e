"""The drafts as the list of experiments shows them."""

from __future__ import annotations

from dataclasses import dataclass

from django.urls import reverse

from runs.selectors import drafts_for_list
from workbench.kernel.pages import utc

SHOWN = 50


@dataclass(frozen=True)
class DraftRow:
    """One draft in the list."""

    slug: str
    author: str
    updated: str
    url: str


def draft_rows() -> tuple[DraftRow, ...]:
    """Return the drafts that were touched last."""
    return tuple(
        DraftRow(
            slug=draft.slug,
            author=draft.author.get_username() if draft.author else "",
            updated=utc(draft.updated_at),
            url=reverse("draft", kwargs={"slug": draft.slug}),
        )
        for draft in drafts_for_list()[:SHOWN]
    )
