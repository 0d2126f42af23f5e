"""Comparing two experiments by page, command and API: the same answer everywhere."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from typing import Any
from urllib.parse import urlencode

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from runs.domain.plan import ModelSpec
from runs.models import Experiment
from runs.services.comparing import CannotCompare, comparison_of
from tests.factories import (
    SKILLS,
    cells_of,
    finished_experiment,
    make_experiment,
    make_library,
    make_tasks,
    make_user,
)
from tests.htmlchecks import Page, faults_of
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db

EDITED = dict(SKILLS) | {"two-pointer": SKILLS["two-pointer"] + "\nStop when they meet.\n"}
URL = "/compare/"


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


def before_and_after(
    before: str = "abcdddddd", after: str = "bbabbbbba", **plan: Any
) -> tuple[Experiment, Experiment]:
    """Return a run with the library as it was, and one with an edited skill."""
    make_library("coding", SKILLS)
    old = finished_experiment("before", retrieved=before, library=make_library("coding", SKILLS))
    library = make_library("coding", EDITED)
    return old, finished_experiment("after", retrieved=after, library=library, **plan)


def compare(**query: str) -> str:
    return f"{URL}?{urlencode(query)}"


def asked(*words: str) -> str:
    out = StringIO()
    call_command("compare", *words, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_an_edited_skill_is_compared_with_its_last_version(lead: Client) -> None:
    # SE of A by task: p p f f f f f f f (a b c d...); of B: p p p p p p p p p.
    # So tasks 3 to 9 are won, 7 of 9, none lost: p = 2 / 2^7 = .0156.
    # RAE of A: (1 - 1) / 9 = 0. B has b on 7 and a on 2: 7 / 9 = +77.8 points.
    before_and_after()
    html = lead.get(compare(a="before", b="after")).content.decode()
    page = Page(html)
    assert faults_of(html) == []
    assert "B's skills won 7 and lost 0 of 9 shared tasks (p = 0.0156)" in page.text
    assert "RAE moved by +77.8 points" in page.text
    assert "B is better" in page.text
    assert "From coding@1 to coding@2: 1 skill differs, 2 are alike" in page.text
    assert "+Stop when they meet." in page.text
    assert "another text of the same" in page.text  # its returned set changed by the edit
    links = [a.get("href", "") for a in page.all("a")]
    assert sum(link.startswith("/pairs/") for link in links) >= 2 * 9
    assert lead.get(next(link for link in links if link.startswith("/pairs/"))).status_code == 200


def test_page_command_and_api_say_the_same(lead: Client) -> None:
    before_and_after()
    found = lead.get(reverse("api-comparisons"), {"a": "before", "b": "after"}).json()
    (cell,) = found["cells"]
    assert (cell["n_won"], cell["n_lost"], cell["n_both_pass"]) == (7, 0, 2)
    assert cell["p"] == pytest.approx(2 / 2**7)
    assert cell["rae"]["own"]["difference"] == pytest.approx(700 / 9)
    assert json.loads(asked("before", "after", "--format", "json")) == found
    for shown in (
        asked("before", "after"),
        asked("before", "after", "--format", "md"),
        Page(lead.get(compare(a="before", b="after")).content.decode()).text,
    ):
        assert cell["headline"].split(";")[0] in shown
    assert "two-pointer: version 1 to version 2" in asked("before", "after")


def test_other_protocols_are_refused_with_each_difference_and_kept_in_the_form(
    lead: Client,
) -> None:
    before_and_after(model=ModelSpec(id="large-model", base_url="https://models.example/v1"))
    refused = lead.get(compare(a="before", b="after"))
    assert refused.status_code == 400
    html = refused.content.decode()
    assert faults_of(html) == []
    assert "model (small-model / large-model)" in Page(html).text
    kept = {field.get("name"): field.get("value") for field in Page(html).all("input")}
    assert (kept["a"], kept["b"]) == ("before", "after")
    with pytest.raises(CommandError, match="--allow model"):
        asked("before", "after")
    answer = lead.get(reverse("api-comparisons"), {"a": "before", "b": "after"})
    assert answer.status_code == 400
    assert "model (small-model / large-model)" in answer.json()["fields"][""][0]
    # Beside the refusal: the same two, with that factor allowed.
    allowed = lead.get(compare(a="before", b="after", allow="model"))
    assert allowed.status_code == 200
    assert "which was allowed" in Page(allowed.content.decode()).text
    assert "which was allowed" in asked("before", "after", "--allow", "model")


def test_comparing_with_itself_is_refused_kindly_but_two_of_its_cells_are_compared(
    lead: Client,
) -> None:
    before_and_after()
    refused = lead.get(compare(a="after", b="after"))
    assert refused.status_code == 400
    assert "compared with itself would show no difference" in Page(refused.content.decode()).text
    with pytest.raises(CommandError, match="with itself"):
        asked("after", "after")
    both = finished_experiment("both", retrieved="abcd", controls=("normal", "schema_empty"))
    one, other = (cell.sha256[:12] for cell in cells_of(both))
    found = comparison_of(a="both", b="both", cell_a=one, cell_b=other, allowed=["control"])
    (cell,) = found.comparison.cells
    # Both cells have the same SD executions.
    assert (cell.sd.shared, cell.sd.separate) == (4, 0)


def test_what_cannot_be_compared_says_why(lead: Client) -> None:
    old, _ = before_and_after()
    refusals: tuple[tuple[dict[str, Any], str], ...] = (
        ({"cell_a": "0" * 12}, "name a cell of both, or of neither"),
        ({"cell_a": "0" * 12, "cell_b": "0" * 12}, "no cell '000000000000'"),
        ({"allowed": ["colour"]}, "'colour' is no factor"),
    )
    for words, why in refusals:
        with pytest.raises(CannotCompare, match=why):
            comparison_of(a="before", b="after", **words)
    missing = lead.get(compare(a=old.slug, b="nothing"))
    assert missing.status_code == 400
    assert "there is no experiment 'nothing'" in Page(missing.content.decode()).text
    assert lead.get(reverse("api-comparisons"), {"a": "before", "b": "no"}).status_code == 404
    assert lead.get(reverse("api-comparisons"), {"a": "before"}).status_code == 400
    assert lead.get(compare(a="before", b="")).status_code == 400


def test_the_form_offers_recent_experiments_and_links_that_choose_them(lead: Client) -> None:
    empty = lead.get(URL).content.decode()
    assert "There is no experiment yet" in Page(empty).text
    before_and_after()
    html = lead.get(compare(b="after")).content.decode()
    assert faults_of(html) == []
    links = [a.get("href", "") for a in Page(html).all("a")]
    assert compare(a="before", b="after") in links
    assert lead.get(compare(a="before", b="after")).status_code == 200
    experiment = lead.get("/experiments/after/").content.decode()
    assert "/compare/?b=after" in [a.get("href") for a in Page(experiment).all("a")]


def test_changed_tasks_and_unfinished_pairs_are_said(lead: Client) -> None:
    # A ran tasks 1, 2, 3; B an edited 2, then 3 and 4, of which nothing is finished.
    one, two, three, four = make_tasks(4)
    library = make_library("coding", SKILLS)
    finished_experiment("before", retrieved="add", tasks=(one, two, three), library=library)
    tasks = (replace(two, prompt="Edited."), three, four)
    make_experiment("after", tasks=tasks, library=make_library("coding", EDITED))
    html = lead.get(compare(a="before", b="after")).content.decode()
    assert faults_of(html) == []
    terms = [" ".join(term.split()) for term in re.findall(r"<dt>(.*?)</dd>", html, re.DOTALL)]
    for said in (
        "Changed tasks: other content in B (1)</dt><dd>tasks/002",
        "Run in A only (1)</dt><dd>tasks/001",
        "Run in B only (1)</dt><dd>tasks/004",
    ):
        assert said in terms
    assert "figures follow when all have ended" in html
    assert "Not finished: 1 shared pair" in html


def test_a_comparison_asks_as_much_of_the_database_however_many_pairs_there_are(
    lead: Client,
) -> None:
    counts = []
    bodies = {f"skill-{n}": f"Text {n}" for n in range(12)} | dict(SKILLS)
    for size in (4, 40):
        slug = f"library-{size}"
        old = finished_experiment(
            f"old-{size}", retrieved="a" * size, library=make_library(slug, bodies)
        )
        edited = make_library(slug, bodies | {"two-pointer": f"Edited for {size}."})
        new = finished_experiment(f"new-{size}", retrieved="c" * size, library=edited)
        lead.get(compare(a=old.slug, b=new.slug))
        with CaptureQueriesContext(connection) as captured:
            assert lead.get(compare(a=old.slug, b=new.slug)).status_code == 200
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 20
