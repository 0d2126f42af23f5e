"""Long lists: paged by key, filtered and sorted by the address, for pages and API alike.

A list says once what may be asked of it. What isn't named there can't reach a query. A page
begins behind the last row of the one before it, whatever came or went meanwhile; where that is
stands in a signed cursor, which nobody can make up or take to another list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core import signing
from django.db.models import Model, Q, QuerySet
from django.utils.dateparse import parse_datetime

DEFAULT_SIZE = 50
LARGEST_SIZE = 200
# Rows looked at for one page, and at once after the first batch.
SCANNED = 2_000
BATCH = 500
# Unknown parameters that a refusal names.
MOST_NAMED = 20
_OWN = ("cursor", "sort", "limit")


class BadListQuery(ValueError):
    """The address asks for what this list doesn't have; ``fields`` says what, by parameter."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in fields.items()))
        self.fields = dict(fields)


@dataclass(frozen=True)
class Filter:
    """One parameter of a list.

    Attributes:
        lookup: what it sets; it must not give a row twice, as one over several related rows may.
            Empty where the database can't tell: ``shown`` of ``page_of`` then sees to it.
        choices: the values it takes, where they are few.
        parse: turns its text into the lookup's value; its ValueError says what it takes.
        meaning: one sentence for the API's description.
    """

    lookup: str
    choices: tuple[str, ...] = ()
    parse: Callable[[str], Any] = str
    meaning: str = ""


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


# Given rows in order and the filters in force: what is shown of each, None for one left out.
Shown = Callable[[Sequence[Any], Mapping[str, str]], Sequence[Any]]


def page_of(
    queryset: QuerySet[Any],
    *,
    listing: Listing,
    query: Mapping[str, str],
    size: int = DEFAULT_SIZE,
    shown: Shown | None = None,
) -> ListPage:
    """Return the page of ``queryset`` that ``query`` asks for.

    Args:
        query: parameters of the address: ``cursor``, ``sort``, ``limit`` and the filters.
        shown: for what the database can't filter. Where it leaves rows out, at most ``SCANNED``
            rows are looked at for a page: it may then hold fewer rows than asked for, or none,
            and still have a next one.

    Raises:
        BadListQuery: a parameter or value isn't one of the listing's.
    """
    known = (*_OWN, *listing.filters)
    unknown = [name for name in query if name not in known][:MOST_NAMED]
    faults = {name: f"unknown parameter; known: {', '.join(known)}" for name in unknown}
    sort = query.get("sort") or listing.default_sort
    if sort.removeprefix("-") not in listing.sorts:
        faults["sort"] = f"it sorts by {', '.join(listing.sorts)}, with - before it for descending"
    limit = _limit(query.get("limit", ""), size, faults)
    asked = {name: query[name] for name in listing.filters if query.get(name)}
    wanted: dict[str, Any] = {}
    for name, value in asked.items():
        choices = listing.filters[name].choices
        if choices and value not in choices:
            faults[name] = f"it takes {', '.join(choices)}"
            continue
        try:
            parsed = listing.filters[name].parse(value)
            if lookup := listing.filters[name].lookup:
                wanted[lookup] = parsed
        except ValueError as fault:
            faults[name] = str(fault)
    if faults:
        raise BadListQuery(faults)
    descending = sort.startswith("-")
    column = listing.sorts[sort.removeprefix("-")]
    found = queryset.filter(**wanted)
    cursor = query.get("cursor", "")
    place = [queryset.model._meta.label, sort, column]
    if cursor:
        found = found.filter(_after(cursor, place, column, descending=descending))
    sign = "-" if descending else ""
    found = found.order_by(f"{sign}{column}", f"{sign}pk")
    show = (lambda rows: shown(rows, asked)) if shown else (lambda rows: rows)
    rows: list[Any] = []
    last: Any = None
    scanned, wanted_now, more = 0, limit + 1, True
    while more and scanned < SCANNED:
        behind = found if last is None else found.filter(_behind(last, column, descending))
        batch = list(behind[:wanted_now])
        # A full batch may have others behind it.
        more = len(batch) == wanted_now
        for row, as_shown in zip(batch, show(batch), strict=True):
            if as_shown is not None:
                if len(rows) == limit:
                    more = True
                    break
                rows.append(as_shown)
            last = row
        else:
            scanned, wanted_now = scanned + len(batch), BATCH
            continue
        break
    kept = {**asked, "sort": sort} | ({"limit": query["limit"]} if query.get("limit") else {})
    return ListPage(
        rows=rows,
        next_query=urlencode({**kept, "cursor": _cursor(last, place, column)}) if more else "",
        first=not cursor,
        sort=sort,
        asked=asked,
    )


def _limit(text: str, size: int, faults: dict[str, str]) -> int:
    if not text:
        return size
    short = len(text) <= len(str(LARGEST_SIZE)) and text.isascii() and text.isdigit()
    limit = int(text) if short else 0
    if 1 <= limit <= LARGEST_SIZE:
        return limit
    faults["limit"] = f"it takes a whole number from 1 to {LARGEST_SIZE}"
    return size


def true_or_false(text: str) -> bool:
    """Return what ``text`` says, for a filter.

    Raises:
        ValueError: it is neither.
    """
    if text not in ("true", "false"):
        raise ValueError("it takes true or false")
    return text == "true"


def moment(text: str) -> datetime:
    """Return the moment that ``text`` names, for a filter.

    Raises:
        ValueError: it is no ISO 8601 time with its offset.
    """
    said = "it takes a time such as 2026-03-02T09:30:00Z"
    try:
        found = parse_datetime(text)
    except ValueError as fault:
        raise ValueError(said) from fault
    if found is None or found.tzinfo is None:
        raise ValueError(said)
    try:
        # As the databases compare it; the first and the last day have hours that UTC hasn't.
        return found.astimezone(UTC)
    except OverflowError as fault:
        raise ValueError(said) from fault


def _signer() -> signing.Signer:
    return signing.Signer(salt="workbench.kernel.lists")


def _value(row: Model, column: str) -> Any:
    value: Any = row
    for name in column.split("__"):
        value = getattr(value, name)
    return value


def _behind(row: Model, column: str, descending: bool) -> Q:
    return _after_key(_value(row, column), row.pk, column, descending=descending)


def _after_key(value: Any, pk: Any, column: str, *, descending: bool) -> Q:
    side = "lt" if descending else "gt"
    # The first condition alone lets an index begin at the right place.
    return Q(**{f"{column}__{side}e": value}) & (
        Q(**{f"{column}__{side}": value}) | Q(**{f"pk__{side}": pk})
    )


def _cursor(row: Model, place: list[str], column: str) -> str:
    value = _value(row, column)
    if isinstance(value, datetime):
        value = {"at": value.isoformat()}
    elif isinstance(value, UUID):
        value = {"uid": str(value)}
    return _signer().sign_object([place, value, row.pk])


def _after(cursor: str, place: list[str], column: str, *, descending: bool) -> Q:
    """Return the condition for what comes after the row that the cursor names."""
    fault = BadListQuery({"cursor": "it is no cursor of this list in this order; leave it out"})
    try:
        made_for, value, pk = _signer().unsign_object(cursor)
    # Only a cursor of ours is read at all; one of an older version may differ.
    except (signing.BadSignature, ValueError, TypeError) as error:
        raise fault from error
    if made_for != place:
        raise fault
    if isinstance(value, dict):
        value = parse_datetime(value["at"]) if "at" in value else UUID(value["uid"])
    return _after_key(value, pk, column, descending=descending)
