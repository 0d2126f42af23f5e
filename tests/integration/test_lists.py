"""Long lists: every row once and in order whatever happens meanwhile, and nothing else asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.factories import NOW, make_user
from workbench.kernel import lists
from workbench.kernel.lists import (
    BadListQuery,
    Filter,
    Listing,
    ListPage,
    moment,
    page_of,
    true_or_false,
)
from workbench.kernel.roles import Role
from workbench.models import ApiToken, Job

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

JOBS = Listing(
    sorts={"created": "created_at", "subject": "subject", "steps": "tries", "planned": "pk"},
    default_sort="-created",
    filters={
        "kind": Filter("kind", ("a", "b")),
        "since": Filter("created_at__gte", parse=moment),
        "even": Filter("", parse=true_or_false),
    },
)
SORTS = [f"{sign}{name}" for name in JOBS.sorts for sign in ("", "-")]


def make(*rows: tuple[str, int, int]) -> None:
    """Store jobs given as subject, minute and number of tries."""
    Job.objects.bulk_create(
        Job(kind="a", subject=subject, tries=tries, created_at=NOW + timedelta(minutes=minute))
        for subject, minute, tries in rows
    )


def walk(
    query: Mapping[str, str],
    between: Callable[[], None] = lambda: None,
    shown: lists.Shown | None = None,
) -> list[Any]:
    """Return the rows of all pages; ``between`` is called before every further one."""
    found: list[Any] = []
    for page in pages(query, between, shown):
        found += page.rows
    return found


def pages(
    query: Mapping[str, str], between: Callable[[], None], shown: lists.Shown | None
) -> Iterator[ListPage]:
    page = page_of(Job.objects.all(), listing=JOBS, query=query, shown=shown)
    yield page
    while page.next_query:
        between()
        asked = dict(parse_qsl(page.next_query, strict_parsing=True))
        page = page_of(Job.objects.all(), listing=JOBS, query=asked, shown=shown)
        yield page


@contextmanager
def undone() -> Iterator[None]:
    """Forget what the block stored: one example is not to see another's rows."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


# Few different values, so that equal ones are common.
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "B", "ä", "a b", "'%"]), st.integers(0, 2), st.integers(0, 1)
    ),
    max_size=12,
)
FEW = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@FEW
@given(rows=ROWS, sort=st.sampled_from(SORTS), limit=st.integers(1, 5))
def test_all_pages_together_are_the_list(rows: Any, sort: str, limit: int) -> None:
    with undone():
        make(*rows)
        found = walk({"sort": sort, "limit": str(limit)})
        assert found == in_order(sort)


def in_order(sort: str) -> list[Any]:
    sign = "-" if sort.startswith("-") else ""
    return list(Job.objects.order_by(sign + JOBS.sorts[sort.removeprefix("-")], f"{sign}pk"))


@FEW
@given(rows=ROWS, more=ROWS, sort=st.sampled_from(SORTS), limit=st.integers(1, 4))
def test_rows_that_come_meanwhile_move_no_others(
    rows: Any, more: Any, sort: str, limit: int
) -> None:
    with undone():
        make(*rows)
        there = in_order(sort)
        left = list(more)

        def two_more() -> None:
            make(*left[:2])
            del left[:2]

        found = walk({"sort": sort, "limit": str(limit)}, between=two_more)
        assert [row for row in found if row in there] == there
        assert len(set(found)) == len(found)
        # What came behind the place reached is there too, in its place.
        assert found == [row for row in in_order(sort) if row in found]


@FEW
@given(
    rows=ROWS,
    limit=st.integers(1, 4),
    even=st.sampled_from(["true", "false", ""]),
    batch=st.integers(1, 4),
    scanned=st.integers(1, 6),
)
def test_rows_left_out_by_the_list_itself_cost_no_others(
    rows: Any, limit: int, even: str, batch: int, scanned: int
) -> None:
    def shown(jobs: Sequence[Job], asked: Mapping[str, str]) -> list[int | None]:
        wanted = asked.get("even")
        return [
            job.pk if wanted is None or (job.tries % 2 == 0) is (wanted == "true") else None
            for job in jobs
        ]

    with undone(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "BATCH", batch)
        patch.setattr(lists, "SCANNED", scanned)
        make(*rows)
        wanted = {"sort": "planned", "limit": str(limit)} | ({"even": even} if even else {})
        found = walk(wanted, shown=shown)
        jobs = in_order("planned")
        assert found == [
            job.pk for job in jobs if not even or (job.tries % 2 == 0) is (even == "true")
        ]


def test_a_page_of_a_list_that_leaves_rows_out_looks_at_so_many_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lists, "BATCH", 10)
    monkeypatch.setattr(lists, "SCANNED", 30)
    make(*[("a", 0, 0)] * 100)
    with CaptureQueriesContext(
        connection,
    ) as captured:
        page = page_of(
            Job.objects.all(),
            listing=JOBS,
            query={"limit": "2"},
            shown=lambda rows, asked: [None] * len(rows),
        )
    # A first batch of 3 rows, then 10, 10 and 10: 33 of the 100.
    assert (page.rows, bool(page.next_query), len(captured)) == ([], True, 4)


def test_a_page_takes_one_query_however_long_the_list_is() -> None:
    make(*[("a", 0, 0)] * 30)
    with CaptureQueriesContext(connection) as captured:
        page = page_of(Job.objects.all(), listing=JOBS, query={"limit": "10"})
        page_of(Job.objects.all(), listing=JOBS, query=dict(parse_qsl(page.next_query)))
    assert len(captured) == 2


def test_the_filters_stay_from_page_to_page() -> None:
    make(*[("a", 0, 0)] * 3)
    Job.objects.create(kind="b", subject="x", created_at=NOW)
    found = walk({"kind": "a", "limit": "1"})
    assert {job.kind for job in found} == {"a"}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        ({"limit": "0"}, ["limit"]),
        ({"limit": "201"}, ["limit"]),
        ({"limit": "-1"}, ["limit"]),
        ({"limit": "²"}, ["limit"]),
        ({"limit": "9" * 5000}, ["limit"]),
        # Its first digits alone would do.
        ({"limit": "000000100999"}, ["limit"]),
        ({"limit": "000000001" + "9" * 5000}, ["limit"]),
        ({"limit": "0050"}, ["limit"]),
        ({"sort": "kind"}, ["sort"]),
        ({"sort": "--created"}, ["sort"]),
        ({"sort": "created_at"}, ["sort"]),
        ({"sort": "actor__password"}, ["sort"]),
        ({"actor__password__startswith": "a"}, ["actor__password__startswith"]),
        ({"kind": "c"}, ["kind"]),
        ({"since": "yesterday"}, ["since"]),
        ({"since": "2026-02-30T00:00:00Z"}, ["since"]),
        ({"since": "2026-02-03T00:00:00"}, ["since"]),
        # In UTC they are in the years 0 and 10000.
        ({"since": "0001-01-01T00:00:00+14:00"}, ["since"]),
        ({"since": "9999-12-31T23:59:59-14:00"}, ["since"]),
        ({f"x{n:02}": "" for n in range(50)}, [f"x{n:02}" for n in range(20)]),
        ({"even": "maybe"}, ["even"]),
        ({"even": "maybe", "kind": "c", "x": ""}, ["even", "kind", "x"]),
        ({"cursor": "x"}, ["cursor"]),
        ({"cursor": "e30:x"}, ["cursor"]),
        ({"cursor": "\0"}, ["cursor"]),
        ({"cursor": "ä" * 300}, ["cursor"]),
    ],
)
def test_what_the_list_does_not_have_is_refused_by_name(
    query: dict[str, str], fields: list[str]
) -> None:
    with pytest.raises(BadListQuery) as refused:
        page_of(Job.objects.all(), listing=JOBS, query=query)
    assert sorted(refused.value.fields) == fields


def cursor_of(query: Mapping[str, str]) -> str:
    page = page_of(Job.objects.all(), listing=JOBS, query={"limit": "1", **query})
    return dict(parse_qsl(page.next_query))["cursor"]


def test_a_cursor_serves_the_list_and_order_that_it_is_from() -> None:
    make(("a", 0, 0), ("b", 1, 0))
    own = cursor_of({"sort": "subject"})
    assert page_of(Job.objects.all(), listing=JOBS, query={"sort": "subject", "cursor": own}).rows
    user = make_user("lee", Role.LEAD)
    ApiToken.objects.create(user=user, name="a", token_sha256="0" * 64, created_at=NOW)
    others = Listing(sorts={"subject": "name"}, default_sort="subject")
    for sort in ("-subject", "created"):
        with pytest.raises(BadListQuery):
            page_of(Job.objects.all(), listing=JOBS, query={"sort": sort, "cursor": own})
    with pytest.raises(BadListQuery):
        page_of(ApiToken.objects.all(), listing=others, query={"cursor": own})


@FEW
@given(place=st.integers(0, 10_000), other=st.characters(codec="utf-8"))
def test_a_cursor_that_was_touched_is_no_cursor(place: int, other: str) -> None:
    with undone():
        make(("a", 0, 0), ("b", 1, 0))
        own = cursor_of({})
        place %= len(own)
        touched = own[:place] + other + own[place + 1 :]
        if touched != own:
            with pytest.raises(BadListQuery):
                page_of(Job.objects.all(), listing=JOBS, query={"cursor": touched})


def test_without_the_signature_a_cursor_could_be_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard removed: the refusal above is the signature's doing."""
    make(("a", 0, 0), ("b", 1, 0))
    other = lists._signer()
    other.key = "another key"
    forged = other.sign_object([["workbench.Job", "planned", "pk"], 0, 0])
    query = {"sort": "planned", "cursor": forged}
    with pytest.raises(BadListQuery):
        page_of(Job.objects.all(), listing=JOBS, query=query)
    monkeypatch.setattr(lists, "_signer", lambda: other)
    assert len(page_of(Job.objects.all(), listing=JOBS, query=query).rows) == 2
