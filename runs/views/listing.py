"""A long list as a page shows it: its columns' sort links, its filters, and its pager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import Http404, HttpRequest

from workbench.kernel.lists import BadListQuery, Listing, ListPage, page_of


@dataclass(frozen=True)
class SortColumn:
    """A column that orders the list; ``direction`` is empty unless it does now."""

    key: str
    label: str
    url: str
    direction: str


@dataclass(frozen=True)
class FilterChoice:
    """One value of a filter."""

    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class FilterControl:
    """A filter: a choice among few values, or without choices a text."""

    name: str
    label: str
    value: str
    choices: tuple[FilterChoice, ...]


@dataclass(frozen=True)
class ListControls:
    """What stands around a list; the template ``runs/_filters.html`` and its like show it."""

    filters: tuple[FilterControl, ...] = ()
    sorts: Mapping[str, SortColumn] = field(default_factory=dict)
    sort: str = ""
    filtered: bool = False
    url: str = ""
    first_url: str = ""
    next_url: str = ""


def page_or_404(queryset: QuerySet[Any], listing: Listing, request: HttpRequest) -> ListPage:
    """Return the page that the address asks for.

    Raises:
        Http404: it asks for what the list doesn't have.
    """
    try:
        return page_of(queryset, listing=listing, query=request.GET.dict())
    except BadListQuery as error:
        raise Http404 from error


def list_controls(
    page: ListPage,
    *,
    url: str,
    columns: Mapping[str, str] | None = None,
    choices: Mapping[str, tuple[str, Sequence[str] | Mapping[str, str]]] | None = None,
    texts: Mapping[str, str] | None = None,
) -> ListControls:
    """Return what stands around ``page``.

    Args:
        columns: labels of the columns that order it, by sort.
        choices: labels and values of filters with few values, by parameter; a mapping also
            says how each value is called.
        texts: labels of the other filters.
    """
    filters = [
        FilterControl(name, label, page.asked.get(name, ""), _choices(values, page.asked, name))
        for name, (label, values) in (choices or {}).items()
    ]
    filters += [
        FilterControl(name, label, page.asked.get(name, ""), ())
        for name, label in (texts or {}).items()
    ]
    return ListControls(
        filters=tuple(filters),
        sorts={
            name: SortColumn(name, label, f"{url}?{page.sort_query(name)}", _direction(page, name))
            for name, label in (columns or {}).items()
        },
        sort=page.sort,
        filtered=bool(page.asked),
        url=url,
        first_url="" if page.first else f"{url}?{urlencode({**page.asked, 'sort': page.sort})}",
        next_url=f"{url}?{page.next_query}" if page.next_query else "",
    )


def _choices(
    values: Sequence[str] | Mapping[str, str], asked: Mapping[str, str], name: str
) -> tuple[FilterChoice, ...]:
    chosen = asked.get(name, "")
    called = values if isinstance(values, Mapping) else {str(value): str(value) for value in values}
    some = (FilterChoice(value, label, value == chosen) for value, label in called.items())
    return (FilterChoice("", "any", not chosen), *some)


def _direction(page: ListPage, name: str) -> str:
    if page.sort.removeprefix("-") != name:
        return ""
    return "descending" if page.sort.startswith("-") else "ascending"
