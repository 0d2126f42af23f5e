"""Older versions of libraries and suites, named by number in experiment files and forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.plan import CellSpec
from runs.selectors import benchmark_named
from runs.services.drafting import check_draft
from runs.services.offering import OLDER_OFFERED, older_libraries, older_suites, suite_choices
from runs.services.planning import Layout, SameTasks, lay_out
from runs.services.preparing import prepare
from skills.services.libraries import VersionMissing, library_named
from tests.drafts import TOML, store_suite
from tests.experiments import grader, make_spec
from tests.factories import make_library, make_user
from workbench.kernel.roles import Role
from workbench.kernel.versions import split_version, versioned

pytestmark = pytest.mark.django_db

OLD = {"one": "old text"}
NEW = {"one": "new text"}


@pytest.fixture
def two(tmp_path: Path) -> None:
    make_library("mine", OLD)
    make_library("mine", NEW)
    store_suite(tmp_path, number=12)
    store_suite(tmp_path, number=5)


def planned(*libraries: str) -> Layout:
    cells = tuple(CellSpec(library=name) for name in libraries)
    spec = make_spec(Path("counting"), cells=cells)
    return lay_out(spec=spec, partitions=prepare(spec=spec, open_grader=grader, trusted=False))


@given(st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True), st.integers(1, 999_999_999))
def test_a_version_s_name_reads_back(slug: str, number: int) -> None:
    assert split_version(versioned(slug, number)) == (slug, number)
    assert split_version(slug) == (slug, None)


@pytest.mark.parametrize("name", ["a@0", "a@01", "a@", "@1", "a@b", "a@1 ", "A@1", "a@1@1", "a@٣"])
def test_what_is_no_version_s_name_is_a_name_of_its_own(name: str) -> None:
    assert split_version(name) == (name, None)


@pytest.mark.usefixtures("two")
def test_a_name_alone_is_the_newest_and_a_number_that_version() -> None:
    assert [library_named(name).number for name in ("mine", "mine@1", "mine@2")] == [2, 1, 2]
    with pytest.raises(VersionMissing, match="no version 3; its newest is 2"):
        library_named("mine@3")
    found = [benchmark_named(name) for name in ("counting", "counting@1", "counting@3")]
    assert [one and one.number for one in found] == [2, 1, None]


@pytest.mark.usefixtures("two")
def test_a_draft_may_name_versions_and_a_wrong_number_is_told_at_its_line() -> None:
    toml = TOML.replace('"coding"', '"mine@1"').replace('"counting"', '"counting@1"')
    check = check_draft(toml)
    assert not check.problems
    assert check.pairs == 12  # version 1 has 12 tasks, version 2 has 5
    (problem,) = check_draft(toml.replace("mine@1", "mine@7")).problems
    assert "has no version 7" in problem.message
    assert "mine@7" in toml.replace("mine@1", "mine@7").splitlines()[(problem.line or 0) - 1]
    (problem,) = check_draft(toml.replace("counting@1", "counting@7")).problems
    assert "there is no suite 'counting@7'" in problem.message


@pytest.mark.usefixtures("two")
def test_a_plan_searches_the_version_that_it_names() -> None:
    laid = [planned("mine"), planned("mine@1")]
    assert [[cell.library.number for cell in one.cells] for one in laid] == [[2], [1]]
    assert [cell.library.number for cell in planned("mine", "mine@1").cells] == [2, 1]


@pytest.mark.usefixtures("two")
def test_the_same_skills_under_two_names_are_refused_before_they_run_twice() -> None:
    with pytest.raises(SameTasks, match="'mine' and 'mine@2' hold the same skills"):
        planned("mine", "mine@2")


@pytest.mark.usefixtures("two")
def test_the_last_few_older_versions_are_offered() -> None:
    for number in range(3, 7):
        make_library("mine", {"one": f"text {number}"})
    # The newest is 6: of 5, 4, 3, 2 and 1 the first three are offered.
    names = [one.name for one in older_libraries() if one.name.startswith("mine")]
    assert names == ["mine@5", "mine@4", "mine@3"]
    assert len(names) == OLDER_OFFERED
    assert [(one.name, one.tasks) for one in older_suites()] == [("counting@1", 12)]
    assert [(one.name, one.tasks) for one in suite_choices({"counting@1"})] == [("counting@1", 12)]


@pytest.mark.usefixtures("two")
def test_the_form_offers_them(client: Client) -> None:
    client.force_login(make_user("lee", Role.LEAD))
    page = client.get("/experiments/new/form/").content.decode()
    assert '<option value="mine@1">' in page
    assert '<option value="counting@1">' in page
