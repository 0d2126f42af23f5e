"""Pages over many rows: as many queries for much as for little, and figures with their moment.

Times aren't tested here: ``python3 manage.py benchmarks pages`` measures them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.http import parse_http_date

from runs.domain.report import report_sha256
from runs.models import Arm, EffectReport, Experiment, ExperimentStatus, Pair, Tally
from runs.services import pair_lists, standing
from runs.services.pair_lists import pairs_page, state_of
from runs.services.reporting import cell_record
from runs.services.skill_totals import SkillTotals, count_skills
from runs.services.standing import refresh_oldest, standing_report, standing_skill_totals
from tests.factories import (
    cells_of,
    finished_experiment,
    make_experiment,
    make_user,
    record,
    record_failure,
    set_status,
)
from tests.htmlchecks import Page
from workbench.kernel.roles import Role
from workbench.management.benchmarks.full import Size, build, trace_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


# --- how many queries ---------------------------------------------------------------


def paths_of(slug: str, other: str) -> dict[str, str]:
    """Return every list and page that could ask more of the database when there is more."""
    cell = cells_of(Experiment.objects.get(slug=slug))[0]
    where = {"slug": slug, "sha12": cell.sha256[:12]}
    page, pairs = reverse("cell", kwargs=where), reverse("api-cell-pairs", kwargs=where)
    pair = cell.pairs.filter(outcomes__retrieved=True).order_by("pk")[0]
    of_one = {"slug": slug}
    return {
        "home": reverse("home"),
        "experiments": reverse("experiments"),
        "experiments by name": reverse("experiments") + "?sort=-slug&status=finished",
        "experiment": reverse("experiment", kwargs=of_one),
        "progress": reverse("experiment-progress", kwargs=of_one),
        "cell": page,
        "lost pairs": f"{page}?transition=harmful&sort=-task",
        "pairs by skill": f"{page}?skill=skill-0001&retrieved=true",
        "pair": reverse("pair", kwargs={"uid": pair.uid}),
        "compare, to choose": reverse("compare"),
        "compare": f"{reverse('compare')}?a={other}&b={slug}",
        "skills": reverse("skills"),
        "skill": reverse("skill", kwargs={"slug": "skill-0001"}),
        "libraries": reverse("libraries"),
        "people": reverse("people"),
        "API experiments": reverse("api-experiments"),
        "API experiment": reverse("api-experiment", kwargs=of_one),
        "API cell": reverse("api-cell", kwargs=where),
        "API pairs of all cells": reverse("api-experiment-pairs", kwargs=of_one),
        "API won pairs by skill": f"{pairs}?transition=helpful&skill=skill-0001",
        "API pair": reverse("api-pair", kwargs={"uid": pair.uid}),
        "API tries": reverse(
            "api-execution-attempts", kwargs={"uid": pair.arms.get(arm="SE").execution.uid}
        ),
        "API report": reverse("api-experiment-report", kwargs=of_one),
        "API cells": reverse("api-experiment-cells", kwargs=of_one),
        "API pairs": pairs,
        "API skills": reverse("api-skills"),
        "API comparison": f"{reverse('api-comparisons')}?a={other}&b={slug}",
    }


def counts_of(client: Client, paths: dict[str, str]) -> dict[str, int]:
    counts = {}
    for name, path in paths.items():
        client.get(path)  # reports and totals are stored at the first look
        with CaptureQueriesContext(connection) as captured:
            assert client.get(path).status_code == 200, path
        counts[name] = len(captured)
    return counts


def test_no_page_asks_more_of_the_database_for_much_than_for_little(
    lead: Client,
) -> None:
    build(Size(experiments={"few-0": (10, 1, 1), "few-1": (10, 1, 1)}, skills=10))
    few = counts_of(lead, paths_of("few-1", "few-0"))
    # More experiments and skills than a page lists, and between the editions of the library.
    many = {f"one-{n}": (1, 1, 1) for n in range(60)}
    build(Size(experiments={"many-0": (200, 1, 1), **many, "many-1": (200, 1, 1)}, skills=60))
    assert counts_of(lead, paths_of("many-1", "many-0")) == few
    assert max(few.values()) <= 25, few


def test_the_invented_runs_are_what_a_run_leaves_behind() -> None:
    build(Size(experiments={"one": (40, 1, 1)}, skills=10, unfinished=frozenset()))
    experiment = Experiment.objects.get()
    (cell,) = standing_report(experiment).result["cells"]
    assert (cell["n_pairs"], cell["n_censored"], cell["complete"]) == (40, 0, True)
    assert 0 < cell["n_cond"] < 40
    assert 2_500 < len(str(trace_of(("a", "b", "c"), exposed=True))) < 4_000


# --- a large report and its moment --------------------------------------------------


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take anything above three pairs for too much to be counted while a page waits."""
    monkeypatch.setattr(standing, "COUNTED_AT_ONCE", 6)


def half_done() -> tuple[Experiment, list[Pair]]:
    experiment = make_experiment("large", tasks=8)
    pairs = list(Pair.objects.order_by("task__key"))
    for pair in pairs[:4]:
        record(pair, "c", skills=("two-pointer",))
    return set_status(experiment, ExperimentStatus.RUNNING), pairs


def lost(found: Any) -> int:
    return int(found.result["cells"][0]["c"])


@pytest.mark.usefixtures("few_at_once")
def test_a_large_report_shows_its_moment_until_the_sweep_counts_again(lead: Client) -> None:
    experiment, pairs = half_done()
    first = standing_report(experiment)
    assert (lost(first), first.as_of) == (4, None)
    record(pairs[4], "c", skills=("two-pointer",))
    second = standing_report(experiment)
    assert lost(second) == 4
    assert second.as_of is not None
    text = Page(lead.get("/experiments/large/").content.decode()).text
    assert f"Counted {second.as_of:%-d %b %Y, %H:%M:%S} UTC" in text
    assert (
        f"Counted {second.as_of:%-d %b %Y, %H:%M:%S} UTC"
        in Page(lead.get("/").content.decode()).text
    )
    sha12 = second.result["cells"][0]["cell"]["sha12"]
    assert (
        f"Counted {second.as_of:%-d %b %Y, %H:%M:%S} UTC"
        in Page(lead.get(f"/experiments/large/cells/{sha12}/").content.decode()).text
    )
    answer = lead.get("/api/v1/experiments/large/report/")
    assert parse_http_date(answer["Last-Modified"]) == int(second.as_of.timestamp())
    moment = second.as_of.isoformat()
    assert answer.json()["as_of"] == moment
    assert report_sha256(answer.json()) == answer.json()["report_sha256"]
    # The four of the last count, and when that was; there are five by now.
    of_cell = lead.get(f"/api/v1/experiments/large/cells/{sha12}/").json()
    assert (of_cell["figures"]["c"], of_cell["as_of"]) == (4, moment)
    # Not sooner than the pause, so that counting takes a small share of the time.
    while refresh_oldest(now=second.as_of + timedelta(seconds=1)):
        pass
    assert standing_report(experiment).as_of == second.as_of
    assert refresh_oldest(now=second.as_of + timedelta(seconds=60))
    third = standing_report(experiment)
    assert (lost(third), third.as_of) == (5, None)
    assert "Counted" not in Page(lead.get("/").content.decode()).text
    of_cell = lead.get(f"/api/v1/experiments/large/cells/{sha12}/").json()
    assert (of_cell["figures"]["c"], of_cell["as_of"]) == (5, None)
    assert "as_of" not in lead.get("/api/v1/experiments/large/report/").json()
    assert not refresh_oldest(now=timezone.now() + timedelta(hours=1)), "nothing has changed"


def test_a_small_report_is_always_of_this_moment() -> None:
    experiment, pairs = half_done()
    assert lost(standing_report(experiment)) == 4
    record(pairs[4], "c", skills=("two-pointer",))
    found = standing_report(experiment)
    assert (lost(found), found.as_of) == (5, None)
    assert not Tally.objects.filter(key__startswith="report").exists()


@pytest.mark.usefixtures("few_at_once")
def test_the_sweep_counts_a_large_experiment_before_anybody_asks() -> None:
    experiment = finished_experiment("large", retrieved="abcdabcd")
    assert refresh_oldest(now=timezone.now())
    assert EffectReport.objects.filter(experiment=experiment).count() == 1
    assert not Tally.objects.filter(key="report:large").exists(), "the complete one is kept"
    found = standing_report(experiment)
    assert (lost(found), found.as_of) == (2, None)


@pytest.mark.usefixtures("few_at_once")
def test_a_finished_report_that_a_new_grade_changes_is_counted_again() -> None:
    experiment = finished_experiment("large", retrieved="abcdabcd")
    standing_report(experiment)
    pair = Pair.objects.order_by("task__key")[0]
    grade = pair.outcomes.get().se_grade
    grade.attempt.grades.create(
        number=2,
        checker_sha256="d" * 64,
        verdict="fail",
        details={},
        tier="A",
        at=timezone.now(),
    )
    found = standing_report(experiment)
    while found.as_of:
        assert refresh_oldest(now=timezone.now() + timedelta(hours=1))
        found = standing_report(experiment)
    assert lost(found) == 3  # the first pair was both pass; its SE answer now fails


# --- what came of skills ------------------------------------------------------------


def totals() -> SkillTotals:
    return SkillTotals.from_json(standing_skill_totals().result)


def test_skill_totals_are_those_of_the_rows_and_may_be_lost_at_any_time() -> None:
    finished_experiment("panel", retrieved="bbc", skipped="c")
    # Both skills were returned on three pairs: two won, one lost, never alone.
    (total,) = totals().versions("two-pointer").values()
    assert (total.pairs, total.alone, total.won, total.lost) == (3, 0, 2, 1)
    assert totals() == count_skills()
    Tally.objects.all().delete()
    assert totals() == count_skills()


def test_skill_totals_of_many_pairs_show_their_moment(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_experiment("panel", retrieved="bbc")
    totals()
    assert not Tally.objects.exists(), "few pairs are counted each time"
    monkeypatch.setattr(standing, "COUNTED_AT_ONCE", 4)
    assert standing_skill_totals().as_of is None, "the first look counts"
    finished_experiment("again", retrieved="c")
    assert standing_skill_totals().as_of is not None
    assert "pairs that ended since follow" in lead.get("/skills/").content.decode()
    assert "pairs that ended since follow" in lead.get("/skills/two-pointer/").content.decode()
    while refresh_oldest(now=timezone.now() + timedelta(hours=1)):
        pass
    assert standing_skill_totals().as_of is None
    assert "pairs that ended since follow" not in lead.get("/skills/").content.decode()


# --- pairs of a cell, page by page --------------------------------------------------


@pytest.fixture
def mixed() -> Experiment:
    """An experiment with pairs of every state, some of which no outcome tells."""
    experiment = make_experiment("mixed", tasks=24)
    pairs = list(Pair.objects.order_by("task__key"))
    for pair, letter in zip(pairs[:16], "abcd" * 4, strict=True):
        record(pair, letter, skills=("two-pointer",) if pairs.index(pair) % 3 else ())
    record(pairs[16], "b", skills=("prefix-sum",), dropped=("temperature",))
    record_failure(pairs[17], Arm.SE)
    record_failure(pairs[17], Arm.SD)
    record_failure(pairs[18], Arm.SE)
    return set_status(experiment, ExperimentStatus.RUNNING)


@pytest.mark.parametrize("chunk", [2, 200])
@pytest.mark.parametrize("policy", ["censor", "incorrect"])
def test_the_pages_of_any_filter_hold_each_matching_pair_once_and_in_order(
    mixed: Experiment, policy: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_lists, "CHUNK", chunk)
    cell = cells_of(mixed)[0]
    records = sorted(cell_record(cell).pairs, key=lambda pair: pair.task)
    states = {state_of(pair, policy) for pair in records}
    assert {"helpful", "harmful", "both_pass", "both_fail", "censored", "pending"} >= states
    assert len(states) >= 5
    words = {True: "true", False: "false", None: "unknown"}
    for state in ("", *states):
        for retrieved in ("", "true", "false"):
            for skill in ("", "two-pointer", "prefix-sum"):
                wanted = [
                    pair.task
                    for pair in records
                    if state in ("", state_of(pair, policy))
                    and retrieved in ("", words[pair.retrieved])
                    and (not skill or skill in pair.skills)
                ]
                query = {"transition": state, "retrieved": retrieved, "skill": skill}
                for descending in (False, True):
                    found = walked(cell, policy=policy, descending=descending, **query)
                    assert found == (wanted[::-1] if descending else wanted), query


def walked(cell: Any, **query: Any) -> list[str]:
    """Return the tasks of all pages, one after the other."""
    found: list[str] = []
    after = None
    while True:
        page = pairs_page(cell, after=after, size=3, **query)
        found += [record.task for record in page.records]
        assert len(page.records) <= 3
        if page.next is None:
            return found
        after = page.next


def test_a_page_that_found_nothing_yet_leads_on(
    lead: Client, mixed: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_lists, "CHUNK", 1)
    monkeypatch.setattr(pair_lists, "CHUNKS", 2)
    sha12 = cells_of(mixed)[0].sha256[:12]
    url: str | None = f"/experiments/mixed/cells/{sha12}/?transition=censored"
    seen, looked = 0, 0
    while url:
        page = Page(lead.get(url).content.decode())
        seen += sum(a.get("href", "").startswith("/pairs/") for a in page.all("a"))
        url = next((a["href"] for a in page.all("a") if "after=" in a.get("href", "")), None)
        looked += 1
    assert seen == 2  # the unequal one, and the one whose arms are both dead
    assert looked > 1
