"""Names of numbered versions, such as ``algorithms@1``, as files and pages write them."""

from __future__ import annotations

import re

_VERSIONED = re.compile(r"(?P<slug>[a-z0-9-]+)@(?P<number>[1-9][0-9]{0,8})\Z", re.ASCII)


def split_version(name: str) -> tuple[str, int | None]:
    """Return the slug and number that ``name`` means; the number is None for the newest."""
    found = _VERSIONED.match(name)
    return (found["slug"], int(found["number"])) if found else (name, None)


def versioned(slug: str, number: int) -> str:
    """Return how one version is called everywhere."""
    return f"{slug}@{number}"
