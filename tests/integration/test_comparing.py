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

from runs.domain.comparing import CellComparison, ProtocolDiffers, SetChange, verdict
from runs.domain.plan import ModelSpec
from runs.models import Experiment, ExperimentStatus
from runs.services import comparing, pushing
from runs.services.comparing import CannotCompare, comparison_of
from runs.services.pushing import read_push, store_push
from runs.services.reporting import BEING_PUSHED
from tests.factories import (
    NOW,
    SKILLS,
    cells_of,
    finished_experiment,
    make_experiment,
    make_library,
    make_tasks,
    make_user,
    record,
    set_status,
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


def test_a_cell_is_not_compared_with_itself_however_it_is_named() -> None:
    one, other = (
        cell.sha256
        for cell in cells_of(
            finished_experiment("both", retrieved="abcd", controls=("normal", "schema_empty"))
        )
    )
    with pytest.raises(CannotCompare, match="compared with itself"):
        comparison_of(a="both", b="both", cell_a=one[:8], cell_b=one[:12])
    found = comparison_of(
        a="both", b="both", cell_a=one[:8], cell_b=other[:12], allowed=["control"]
    )
    assert found.comparison.cells


def test_two_runs_of_the_same_skills_are_said_to_differ_by_chance(lead: Client) -> None:
    # 8 won of 8, p = 2 / 2^8: under one library that is chance all the same.
    library = make_library("coding", SKILLS)
    finished_experiment("before", retrieved="d" * 8, library=library)
    finished_experiment("after", retrieved="b" * 8, library=library)
    page = Page(lead.get(compare(a="before", b="after")).content.decode())
    assert "two runs of the same skills, so a difference is chance" in page.text
    assert "Nothing: both searched the same skills." in page.text
    assert "B is better" not in page.text


def test_a_cancelled_run_is_not_waited_for(lead: Client) -> None:
    library = make_library("coding", SKILLS)
    finished_experiment("before", retrieved="abcd", library=library)
    after = make_experiment("after", tasks=4, library=make_library("coding", EDITED))
    (cell,) = cells_of(after)
    for pair in cell.pairs.order_by("task__key")[:2]:
        record(pair, "b", skills=("two-pointer",))
    set_status(after, ExperimentStatus.CANCELLED)
    text = Page(lead.get(compare(a="before", b="after")).content.decode()).text
    assert "B was cancelled before the others ended, so there are no figures" in text
    assert "2 shared pairs never ended" in text
    assert "figures follow" not in text


# --- runs made elsewhere ----------------------------------------------------------


def rows_of(letters: str, *, replicate: int | None = None, **said: Any) -> list[dict[str, Any]]:
    """Return run rows of one pair a task; ``said`` is of every row."""
    passed = {"a": (1, 1), "b": (1, 0), "c": (0, 1), "d": (0, 0)}
    numbered = {} if replicate is None else {"replicate": replicate}
    return [
        {"task": f"t{n:02}", "arm": arm, "outcome": outcome, **given, **numbered, **said}
        for n, letter in enumerate(letters)
        for arm, outcome, given in (
            ("SE", passed[letter][0], {"retrieved": True, "skill_ids": ["x"]}),
            ("SD", passed[letter][1], {}),
        )
    ]


def push(slug: str, rows: list[dict[str, Any]]) -> None:
    lines = [json.dumps(row) + "\n" for row in rows]
    store_push(read_push(lines, format="jsonl", slug=slug), actor=None, at=NOW)


def pushed(slug: str, letters: str, **said: Any) -> None:
    push(slug, rows_of(letters, **said))


def compared(**words: Any) -> CellComparison:
    (cell,) = comparison_of(a="before", b="after", **words).comparison.cells
    return cell


def test_runs_that_are_still_being_stored_are_not_compared(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class CutOff(Exception):
        pass

    def cut_off(finished: int, steps: int, note: str) -> None:
        if finished == 12:
            raise CutOff

    said: dict[str, Any] = {"cell": {"library": "c@1"}}
    pushed("before", "d" * 12, **said)
    monkeypatch.setattr(pushing, "CHUNK", 6)
    rows = rows_of("b" * 6 + "d" * 6, cell={"library": "c@2"})
    lines = [json.dumps(row) + "\n" for row in rows]
    with pytest.raises(CutOff):
        store_push(read_push(lines, format="jsonl", slug="after"), actor=None, at=NOW, say=cut_off)
    for a, b in (("before", "after"), ("after", "before")):
        with pytest.raises(CannotCompare, match=f"'after' can't be compared yet: {BEING_PUSHED}"):
            comparison_of(a=a, b=b)
        refused = lead.get(compare(a=a, b=b))
        assert refused.status_code == 400
        assert BEING_PUSHED in Page(refused.content.decode()).text
        assert lead.get(reverse("api-comparisons"), {"a": a, "b": b}).status_code == 400
    # With the guard removed, the half that is stored passes for all: 6 won of 6, p = 2 / 2^6.
    with monkeypatch.context() as unguarded:
        unguarded.setattr(comparing, "is_being_pushed", lambda experiment: False)
        assert (compared().n_shared, verdict(compared())) == (6, "better")
    push("after", rows)
    assert compared().n_shared == 12


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ({"cell": {"temperature": 0.0}}, {"cell": {"temperature": 1.5}}, "decoding (temperature 0"),
        ({"cell": {"max_tokens": 1}}, {"cell": {"max_tokens": 9}}, "max_tokens 9"),
        ({"agent": "one"}, {"agent": "two"}, "agent (one / two)"),
        ({"cell": {"shots": 0}}, {"cell": {"shots": 5}}, "shots (0 / 5)"),
        ({"cell": {"shots": 5}}, {}, "shots (5 / not given)"),
        ({"model": "m"}, {"model": "n"}, "model (m / n)"),
        ({"cell": {"dialect": "x"}}, {"cell": {"dialect": "y"}}, "dialect (x / y)"),
        ({"cell": {"endpoint": "x"}}, {"cell": {"endpoint": "y"}}, "endpoint (x / y)"),
        ({"cell": {"prompt_sha256": "x"}}, {"cell": {"prompt_sha256": "y"}}, "prompt (x / y)"),
        ({"cell": {"tokeniser": "x"}}, {"cell": {"tokeniser": "y"}}, "tokeniser (x / y)"),
        ({"cell": {"max_searches": 1}}, {"cell": {"max_searches": 2}}, "max searches (1 / 2)"),
        ({"cell": {"k": 1}}, {"cell": {"k": 2}}, "k (1 / 2)"),
        ({"cell": {"design": "aa"}}, {"cell": {"design": "other"}}, "design (aa / other)"),
        # Benchmarks whose slugs are equal.
        ({"cell": {"benchmark": "C++"}}, {"cell": {"benchmark": "C#"}}, "suite (C++ / C#)"),
        ({"cell": {"benchmark": "数学"}}, {"cell": {"benchmark": "代码"}}, "suite (数学 / 代码)"),
    ],
)
def test_whatever_rows_say_of_their_protocol_must_be_equal(
    old: dict[str, Any], new: dict[str, Any], named: str
) -> None:
    def described(said: dict[str, Any], number: int) -> dict[str, Any]:
        return said | {"cell": said.get("cell", {}) | {"library": f"c@{number}"}}

    pushed("before", "dddd", **described(old, 1))
    pushed("after", "bbbb", **described(new, 2))
    with pytest.raises(ProtocolDiffers) as refused:
        comparison_of(a="before", b="after")
    assert named in str(refused.value)
    assert len(refused.value.differences) == 1
    factor = refused.value.differences[0].factor
    assert compared(allowed=[factor]).match.differences == refused.value.differences
    # Beside the refusal: equal protocols are compared.
    pushed("alike", "bbbb", **described(old, 2))
    assert comparison_of(a="before", b="alike").comparison.cells


def test_where_rows_come_from_and_their_skills_are_no_part_of_the_protocol() -> None:
    said = {"k": 3, "source": "a", "sha12": "0", "experiment": "x", "library": "c@1"}
    pushed("before", "dddd", cell=said | {"partition": {"size": 4, "seed": 1}})
    other = {"source": "b", "sha12": "1", "experiment": "y", "library": "c@2"}
    pushed("after", "bbbb", cell=said | other | {"partition": {"size": 9, "seed": 1}})
    assert compared().match.differences == ()
    assert compared().match.skills_alone


def test_rows_that_do_not_say_which_skills_were_searched_are_not_called_the_same(
    lead: Client,
) -> None:
    # 7 won of 7 differing: p = 2 / 2^7. Nothing says whether the skills are the same.
    pushed("before", "dddddddb")
    pushed("after", "bbbbbbbb", cell={})
    cell = compared()
    assert [row.change for row in cell.sets] == [SetChange.UNKNOWN]
    assert verdict(cell) == "better"
    text = Page(lead.get(compare(a="before", b="after")).content.decode()).text
    assert "B won 7 and lost 0 of 8 shared tasks" in text
    assert "Which skills A and B searched, and in which versions, isn't known" in text
    assert "what differs is chance" not in text
    assert "the same skills and texts in both" not in text
    assert "Not known: the runs don't say which skills" in text
    assert "library not known" in text


def test_named_libraries_are_known_though_their_texts_are_not(lead: Client) -> None:
    pushed("before", "dddddddb", cell={"library": "c@1"})
    pushed("after", "bbbbbbbb", cell={"library": "c@2"})
    assert compared().match.skills_alone
    assert [row.change for row in compared().sets] == [SetChange.UNKNOWN]
    page = Page(lead.get(compare(a="before", b="after")).content.decode())
    assert "the texts of these skills aren't stored here" in page.text
    # One name without a version says too little; the same name and version is the same.
    pushed("slug", "bbbbbbbb", cell={"library": "c"})
    assert not comparison_of(a="slug", b="after").comparison.cells[0].match.known
    pushed("same", "bbbbbbbb", cell={"library": "c@1", "source": "again"})
    (same,) = comparison_of(a="before", b="same").comparison.cells
    assert (same.match.same_skills, verdict(same)) == (True, "")


def test_runs_numbered_otherwise_are_the_same_tasks(lead: Client) -> None:
    push("before", rows_of("dddd", cell={"library": "c@1"}))
    push("after", rows_of("bbbb", replicate=1, cell={"library": "c@2"}))
    cell = compared()
    assert (cell.n_shared, cell.changed_tasks) == (0, ())
    assert cell.other_replicates == ("t00", "t01", "t02", "t03")
    text = Page(lead.get(compare(a="before", b="after")).content.decode()).text
    assert "Same content, but replicates of other numbers in B (4)" in text
    assert "other content" not in text


def test_naming_a_cell_leaves_the_family_as_it_was(lead: Client) -> None:
    # One cell of four: 6 won of 6 differing, p = 2 / 2^6 = .03125, times 4 = .125.
    said = [{"k": k, "library": "c@1"} for k in range(1, 5)]
    later = [{"k": k, "library": "c@2"} for k in range(1, 5)]
    push("before", [row for each in said for row in rows_of("d" * 10, cell=each)])
    first, *others = later
    push(
        "after",
        rows_of("bbbbbbdddd", cell=first)
        + [row for each in others for row in rows_of("d" * 10, cell=each)],
    )
    everything = comparison_of(a="before", b="after").comparison.cells
    (found,) = [cell for cell in everything if cell.won]
    one = compared(cell_a=found.match.old.sha12, cell_b=found.match.new.sha12)
    assert (one.n_family, one.n_shown) == (4, 1)
    assert one.p_adjusted == found.p_adjusted == pytest.approx(0.125)
    assert verdict(one) == ""
    query = {
        "a": "before",
        "b": "after",
        "cell_a": one.match.old.sha12,
        "cell_b": one.match.new.sha12,
    }
    assert "of which 3 aren't shown here" in Page(lead.get(compare(**query)).content.decode()).text


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
