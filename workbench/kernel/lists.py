"""Long lists: paged by key, filtered and sorted by the address, for pages and API alike.

A list says once what may be asked of it. What isn't named there can't reach a query.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Model, Q, QuerySet
from django.utils.dateparse import parse_datetime

DEFAULT_SIZE = 50
LARGEST_SIZE = 200
_OWN = ("cursor", "sort", "limit")


class BadListQuery(ValueError):
    """The address asks for what this list doesn't have; ``fields`` says what, by parameter."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in fields.items()))
        self.fields = dict(fields)


@dataclass(frozen=True)
class Filter:
    """One parameter: the lookup it sets and, where they are few, the values it takes."""

    lookup: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """What may be asked of a list.

    Attributes:
        sorts: by name the field that orders it. Fields must never be null.
        default_sort: a name, with ``-`` before it for descending.
        filters: by parameter.
    """

    sorts: Mapping[str, str]
    default_sort: str
    filters: Mapping[str, Filter] = field(default_factory=dict)


@dataclass(frozen=True)
class ListPage:
    """One page of a list.

    Attributes:
        rows: at most as many as were asked for.
        next_query: query string of the page after it, empty on the last.
        first: whether it is the first page.
        sort: the order it is in, as the address names it.
        asked: the filters in force, by parameter.
    """

    rows: Sequence[Any]
    next_query: str
    first: bool
    sort: str
    asked: Mapping[str, str]

    def sort_query(self, name: str) -> str:
        """Return the query string that orders by ``name``, or turns that order around."""
        turned = f"-{name}" if self.sort == name else name
        return urlencode({**self.asked, "sort": turned})


def page_of(
    queryset: QuerySet[Any], *, listing: Listing, query: Mapping[str, str], size: int = DEFAULT_SIZE
) -> ListPage:
    """Return the page of ``queryset`` that ``query`` asks for.

    Args:
        query: parameters of the address: ``cursor``, ``sort``, ``limit`` and the filters.

    Raises:
        BadListQuery: a parameter or value isn't one of the listing's.
    """
    faults = {
        name: f"unknown parameter; known: {', '.join([*_OWN, *listing.filters])}"
        for name in query
        if name not in (*_OWN, *listing.filters)
    }
    sort = query.get("sort") or listing.default_sort
    if sort.removeprefix("-") not in listing.sorts:
        faults["sort"] = f"it sorts by {', '.join(listing.sorts)}, with - before it for descending"
    limit = _limit(query.get("limit", ""), size, faults)
    asked = {name: query[name] for name in listing.filters if query.get(name)}
    for name, value in asked.items():
        choices = listing.filters[name].choices
        if choices and value not in choices:
            faults[name] = f"it takes {', '.join(choices)}"
    if faults:
        raise BadListQuery(faults)
    descending = sort.startswith("-")
    column = listing.sorts[sort.removeprefix("-")]
    found = queryset.filter(**{listing.filters[n].lookup: v for n, v in asked.items()})
    cursor = query.get("cursor", "")
    if cursor:
        found = found.filter(_after(cursor, sort, column, descending=descending))
    sign = "-" if descending else ""
    rows = list(found.order_by(f"{sign}{column}", f"{sign}pk")[: limit + 1])
    shown, more = rows[:limit], rows[limit:]
    kept = {**asked, "sort": sort} | ({"limit": query["limit"]} if query.get("limit") else {})
    return ListPage(
        rows=shown,
        next_query=(
            urlencode({**kept, "cursor": _cursor(shown[-1], sort, column)}) if more else ""
        ),
        first=not cursor,
        sort=sort,
        asked=asked,
    )


def _limit(text: str, size: int, faults: dict[str, str]) -> int:
    if not text:
        return size
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= LARGEST_SIZE:
        faults["limit"] = f"it takes a whole number from 1 to {LARGEST_SIZE}"
        return size
    return int(text)


def _cursor(row: Model, sort: str, column: str) -> str:
    value: Any = row
    for name in column.split("__"):
        value = getattr(value, name)
    if isinstance(value, datetime):
        value = {"at": value.isoformat()}
    return base64.urlsafe_b64encode(json.dumps([sort, value, row.pk]).encode()).decode()


def _after(cursor: str, sort: str, column: str, *, descending: bool) -> Q:
    """Return the condition for what comes after the row that the cursor names."""
    fault = BadListQuery({"cursor": "it is no cursor of this list in this order; leave it out"})
    try:
        made_for, value, pk = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if isinstance(value, dict):
            value = parse_datetime(value["at"])
    except (ValueError, TypeError, KeyError, binascii.Error, RecursionError) as error:
        raise fault from error
    if made_for != sort or value is None or isinstance(value, list) or type(pk) is not int:
        raise fault
    side = "lt" if descending else "gt"
    return Q(**{f"{column}__{side}": value}) | Q(**{column: value, f"pk__{side}": pk})
