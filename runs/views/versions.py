"""The versions of a library or a suite, as its page links them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from runs.models import Benchmark
from skills.models import Library

# So many are linked, the newest first.
SHOWN = 100


@dataclass(frozen=True)
class VersionLink:
    """One version; ``current`` where it is the one on the page."""

    number: int
    current: bool
    url: str


def version_links(
    found: Library | Benchmark, newest: int, url_of: Callable[[str, int | None], str]
) -> tuple[VersionLink, ...]:
    """Return the versions of what ``found`` is a version of.

    Args:
        newest: its highest number, whose page has the address without a number.
        url_of: from slug and number, or None for the newest, to the page.
    """
    numbers = type(found).objects.filter(slug=found.slug).order_by("-number")
    return tuple(
        VersionLink(
            number, number == found.number, url_of(found.slug, None if number == newest else number)
        )
        for number in numbers.values_list("number", flat=True)[:SHOWN]
    )
