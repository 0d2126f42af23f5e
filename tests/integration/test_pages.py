"""Every page: its frame, its context, what it says in each state, and what it must not do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db.models import Model, QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from runs.models import Arm, Attempt, Experiment, ExperimentStatus, Grade, Pair
from runs.services.reporting import report_of
from runs.views import (
    cells,
    comparing,
    drafts,
    experiments,
    exports,
    libraries,
    pairs,
    pushes,
    skills,
    suites,
)
from tests.drafts import make_draft
from tests.factories import (
    EMBEDDED_MODEL,
    NOW,
    cells_of,
    execution_of,
    finished_experiment,
    make_experiment,
    make_job,
    make_library,
    make_tasks,
    make_user,
    make_version,
    record,
    record_failure,
    set_status,
)
from tests.htmlchecks import Page, faults_of
from workbench.api import schema
from workbench.kernel.roles import Role
from workbench.views import account, home, house, jobs, notices, people, signing_in

pytestmark = pytest.mark.django_db

ROOT = Path(__file__).resolve().parents[2]

PAGE_OF_TEMPLATE = {
    "home.html": home.HomePage,
    "rater_home.html": home.RaterHomePage,
    "sign_in_link.html": signing_in.LinkPage,
    "glossary.html": house.GlossaryPage,
    "api_docs.html": schema.ApiDocsPage,
    "notices.html": notices.NoticesPage,
    "webhooks.html": notices.WebhooksPage,
    "job.html": jobs.JobPage,
    "_job.html": jobs.JobFragment,
    "people/people.html": people.PeoplePage,
    "people/person.html": people.PersonPage,
    "people/account.html": account.AccountPage,
    "runs/exports.html": exports.ExportsPage,
    "runs/push.html": pushes.PushPage,
    "runs/experiments.html": experiments.ExperimentsPage,
    "runs/new.html": drafts.NewPage,
    "runs/draft.html": drafts.DraftPage,
    "runs/draft_form.html": drafts.DraftFormPage,
    "runs/draft_file.html": drafts.DraftFilePage,
    "runs/experiment.html": experiments.ExperimentPage,
    "runs/_progress.html": experiments.ProgressFragment,
    "runs/cell.html": cells.CellPage,
    "runs/compare.html": comparing.ComparePage,
    "runs/pair.html": pairs.PairPage,
    "runs/libraries.html": libraries.LibrariesPage,
    "runs/library.html": libraries.LibraryPage,
    "runs/library_new.html": libraries.LibraryNewPage,
    "runs/suites.html": suites.SuitesPage,
    "runs/suite.html": suites.SuitePage,
    "runs/suite_new.html": suites.SuiteNewPage,
    "runs/skills.html": skills.SkillsPage,
    "runs/skill.html": skills.SkillPage,
}
# What the settings' context processors add to every page.
FROM_SETTINGS = {
    "True", "False", "None", "request", "user", "perms", "messages", "DEFAULT_MESSAGE_LEVELS",
    "csrf_token", "frame",
}  # fmt: skip


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


@pytest.fixture
def panel() -> Experiment:
    return finished_experiment("panel", retrieved="abccdb", skipped="ad", model=EMBEDDED_MODEL)


def urls_of(experiment: Experiment) -> dict[str, str]:
    """Return one address of each page of an experiment, by template."""
    cell = cells_of(experiment)[0]
    pair = cell.pairs.order_by("task__key")[2]
    where = {"slug": experiment.slug}
    job = {"uid": make_job().uid}
    draft = make_draft().slug
    return {
        "home.html": reverse("home"),
        "glossary.html": reverse("glossary"),
        "api_docs.html": reverse("api-docs"),
        "notices.html": reverse("notices"),
        "job.html": reverse("job", kwargs=job),
        "_job.html": reverse("job-progress", kwargs=job),
        "people/people.html": reverse("people"),
        "people/person.html": reverse("person", kwargs={"name": "lee"}),
        "people/account.html": reverse("account"),
        "runs/exports.html": f"{reverse('exports')}?experiment={experiment.slug}",
        "runs/push.html": reverse("push"),
        "runs/experiments.html": reverse("experiments"),
        "runs/new.html": reverse("experiment-new"),
        "runs/draft.html": reverse("draft", kwargs={"slug": draft}),
        "runs/draft_form.html": reverse("draft-form", kwargs={"slug": draft}),
        "runs/draft_file.html": reverse("draft-edit", kwargs={"slug": draft}),
        "runs/experiment.html": reverse("experiment", kwargs=where),
        "runs/_progress.html": reverse("experiment-progress", kwargs=where),
        "runs/compare.html": reverse("compare"),
        "runs/cell.html": reverse("cell", kwargs={**where, "sha12": cell.sha256[:12]}),
        "runs/pair.html": reverse("pair", kwargs={"uid": pair.uid}),
        "runs/libraries.html": reverse("libraries"),
        "runs/library.html": reverse("library", kwargs={"slug": "coding"}),
        "runs/library_new.html": reverse("library-new"),
        "runs/suites.html": reverse("suites"),
        "runs/suite.html": reverse("suite", kwargs={"slug": "tasks"}),
        "runs/suite_new.html": reverse("suite-new"),
        "runs/skills.html": reverse("skills"),
        "runs/skill.html": reverse("skill", kwargs={"slug": "two-pointer"}),
    }


def show(client: Client, url: str, status: int = 200) -> str:
    response = client.get(url)
    assert response.status_code == status, (url, response.status_code)
    return response.content.decode()


# --- what every page keeps to ----------------------------------------------------


def test_every_page_keeps_to_the_rules_of_html(lead: Client, panel: Experiment) -> None:
    found = {}
    for template, url in urls_of(panel).items():
        html = show(lead, url)
        if not Path(template).name.startswith("_"):
            found[template] = faults_of(html)
    assert found == {template: [] for template in found}


def test_every_state_of_an_experiment_keeps_to_them_too(lead: Client) -> None:
    experiment = make_experiment("panel", tasks=4, controls=("normal", "schema_empty"))
    first, second, *_ = cells_of(experiment)[0].pairs.order_by("task__key")
    for status in ExperimentStatus:
        set_status(experiment, status, reason="the endpoint's key is wrong")
        for name in ("home.html", "runs/experiment.html", "runs/cell.html", "runs/pair.html"):
            assert faults_of(show(lead, urls_of(experiment)[name])) == [], (status, name)
        if status == ExperimentStatus.RUNNING:
            record(first, "c", skills=("two-pointer",))
            record_failure(second, Arm.SE)


def test_pages_for_people_who_are_not_signed_in_keep_to_them(client: Client) -> None:
    assert faults_of(show(client, reverse("sign-in"))) == []
    assert faults_of(client.post(reverse("sign-in"), {"username": "x"}).content.decode()) == []
    assert faults_of(show(client, reverse("sign-in-link", args=["unknown"]), 410)) == []
    assert faults_of(show(client, "/nothing-here/", 404)) == []


def test_raters_pages_keep_to_them(client: Client) -> None:
    client.force_login(make_user("ann", Role.ANNOTATOR))
    assert faults_of(show(client, reverse("home"))) == []
    assert faults_of(show(client, reverse("experiments"), 403)) == []


def test_a_page_gets_its_dataclass_and_nothing_else(lead: Client, panel: Experiment) -> None:
    rendered = {}
    for url in (*urls_of(panel).values(), reverse("sign-in-link", args=["unknown"])):
        template, context = context_of(lead, url)
        rendered[template] = context
    lead.force_login(make_user("ann", Role.ANNOTATOR))
    template, context = context_of(lead, reverse("home"))
    rendered[template] = context
    lead.force_login(make_user("ada", Role.ADMIN))
    template, context = context_of(lead, reverse("webhooks"))
    rendered[template] = context
    assert set(rendered) == set(PAGE_OF_TEMPLATE)
    for template, context in rendered.items():
        assert set(context) == {f.name for f in fields(PAGE_OF_TEMPLATE[template])}, template
        for value in context.values():
            assert not list(rows_in(value)), template


def context_of(client: Client, url: str) -> tuple[str, dict[str, Any]]:
    """Return the page's template and what its view gave it."""
    response: Any = client.get(url)
    first = response.context
    flat = (first[0] if isinstance(first, list) else first).flatten()
    given = {key: value for key, value in flat.items() if key not in FROM_SETTINGS}
    return str(response.templates[0].name), given


def rows_in(value: Any) -> Iterator[Any]:
    """Yield every model instance and queryset below ``value``."""
    if isinstance(value, Model | QuerySet):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        anything: Any = value
        assert anything.__dataclass_params__.frozen, type(value)
        for field in fields(value):
            yield from rows_in(getattr(value, field.name))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from rows_in(item)


def test_templates_and_styles_name_no_foreign_address() -> None:
    for path in [
        *ROOT.joinpath("templates").rglob("*.html"),
        *ROOT.joinpath("workbench/static").rglob("*.css"),
        *ROOT.joinpath("workbench/static").rglob("*.js"),
    ]:
        text = path.read_text()
        assert not re.search(r"(?:src|href|action|@import|url\()\s*=?\s*['\"]?(?:https?:)?//", text)
        assert not re.search(r"https?://", text), path


def test_no_template_holds_inline_code_or_a_filter_that_stops_escaping() -> None:
    for path in ROOT.joinpath("templates").rglob("*.html"):
        text = path.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape\s+off|\|\s*safeseq", text), path
        assert not re.search(r"<style|\sstyle=|\son[a-z]+=|hx-on|hx-vals|javascript:", text), path
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), path


def test_responses_carry_the_policy_and_are_not_kept(lead: Client, panel: Experiment) -> None:
    for url in urls_of(panel).values():
        response = lead.get(url)
        policy = response["Content-Security-Policy"]
        for directive in (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ):
            assert directive in policy
        assert "unsafe" not in policy
        assert response["X-Content-Type-Options"] == "nosniff"
        assert response["Referrer-Policy"] == "same-origin"
        assert response["Cache-Control"] == "no-store"


def test_htmx_is_told_to_evaluate_nothing(lead: Client) -> None:
    set_status(make_experiment(), ExperimentStatus.RUNNING)
    page = Page(show(lead, reverse("home")))
    config = next(meta for meta in page.all("meta") if meta.get("name") == "htmx-config")
    assert json.loads(config["content"]) == {
        "allowEval": False,
        "allowScriptTags": False,
        "includeIndicatorStyles": False,
        "selfRequestsOnly": True,
    }


# --- how many queries ------------------------------------------------------------


def test_no_page_asks_more_of_the_database_when_there_is_more_to_show(
    lead: Client, django_assert_max_num_queries: Any
) -> None:
    small = finished_experiment("small", retrieved="abcd", skipped="a")
    counts = query_counts(lead, small)
    bodies = {f"skill-{n}": f"Text {n}" for n in range(12)} | {"two-pointer": "Two", "x": "y"}
    large = finished_experiment(
        "large",
        retrieved="abcd" * 20,
        skipped="ad" * 5,
        library=make_library("large", bodies),
    )
    grown = query_counts(lead, large)
    assert grown == counts
    assert max(counts.values()) <= 40, counts


def query_counts(client: Client, experiment: Experiment) -> dict[str, int]:
    from django.db import connection

    counts = {}
    for template, url in urls_of(experiment).items():
        client.get(url)  # the report is stored once, at the first look
        with CaptureQueriesContext(
            connection,
        ) as captured:
            client.get(url)
        counts[template] = len(captured)
    return counts


# --- home ------------------------------------------------------------------------


def test_home_says_what_belongs_there_when_nothing_is_there(lead: Client) -> None:
    html = show(lead, reverse("home"))
    assert "No experiment yet" in html
    assert "python3 manage.py demo" in html
    assert "manage.py audit" not in html
    for name in ("library-new", "suite-new", "experiment-new"):
        assert f'href="{reverse(name)}"' in html
    assert "Invite people" not in html
    assert "Worked example, not from this installation" in html


def test_home_of_an_admin_without_a_password_asks_for_one_and_offers_to_invite(
    client: Client,
) -> None:
    user = make_user("first", Role.ADMIN)
    client.force_login(user)
    html = show(client, reverse("home"))
    assert "You have no password yet" in html
    assert f'href="{reverse("account")}">set one' in html
    assert f'href="{reverse("people")}">Invite people' in html
    user.set_password("correct horse battery")
    user.save()
    client.force_login(user)
    assert "You have no password yet" not in show(client, reverse("home"))


def test_home_leads_with_the_sentence_the_flips_and_the_demonstration_banner(
    lead: Client, panel: Experiment
) -> None:
    page = Page(show(lead, reverse("home")))
    # Six retrieved pairs, letters abccdb: 2 won, 2 lost; (2 - 2) / 6 = 0 points.
    assert "On the 6 tasks where a skill was returned, 2 were won and 2 lost" in page.text
    assert "+0.0" in page.text
    assert "Demonstration model." in page.text
    assert page.text.count("without skills\n") >= 2
    assert "return min(xs)" in page.text
    assert "return sorted(xs)" in page.text
    assert "two pointer" in page.text
    assert "2 of 2 pairs that were lost" in page.text


@pytest.mark.parametrize(
    ("retrieved", "said", "introduced"),
    [
        ("ac", "1 pair was lost", "Here the model passed by itself"),
        ("acc", "2 pairs were lost", "In each of these the model passed by itself"),
    ],
)
def test_one_lost_pair_is_told_in_the_singular(
    lead: Client, retrieved: str, said: str, introduced: str
) -> None:
    controls = ("normal", "schema_empty")
    experiment = make_experiment("panel", tasks=len(retrieved), controls=controls)
    for cell, letters in zip(
        experiment.cells.order_by("number"), (retrieved, "a" * len(retrieved)), strict=True
    ):
        for pair, letter in zip(cell.pairs.order_by("task__key"), letters, strict=True):
            record(pair, letter, skills=("two-pointer",))
    set_status(experiment, ExperimentStatus.FINISHED)
    assert introduced in Page(show(lead, reverse("home"))).text
    assert said in Page(show(lead, reverse("experiment", kwargs={"slug": "panel"}))).text


def test_home_has_no_banner_for_other_models(lead: Client) -> None:
    finished_experiment("panel")
    assert "Demonstration model." not in show(lead, reverse("home"))


def test_the_worked_example_shows_two_figures_of_opposite_sign(lead: Client) -> None:
    text = Page(show(lead, reverse("home"))).text
    # Printed in Skill Following, Table 17: lift +21.2, 8 won and 45 lost of 233: -15.9.
    assert "+21.2" in text
    assert "−15.9" in text


def test_home_polls_while_an_experiment_runs_and_not_after(lead: Client, panel: Experiment) -> None:
    assert "hx-trigger" not in show(lead, reverse("home"))
    set_status(panel, ExperimentStatus.RUNNING)
    page = Page(show(lead, reverse("home")))
    box = next(a for a in page.all("section") if a.get("id") == "progress")
    assert box["hx-get"] == reverse("experiment-progress", kwargs={"slug": "panel"})
    assert "every 2s" in box["hx-trigger"]
    assert any("htmx" in script["src"] for script in page.all("script"))
    assert "Reload to see how far it is" in page.text


def test_the_fragment_asks_for_the_whole_page_once_the_experiment_stops(
    lead: Client, panel: Experiment
) -> None:
    url = urls_of(panel)["runs/_progress.html"]
    assert lead.get(url)["HX-Refresh"] == "true"
    set_status(panel, ExperimentStatus.RUNNING)
    assert "HX-Refresh" not in lead.get(url)


def test_a_fragment_after_the_session_ended_reloads_the_page(
    client: Client, panel: Experiment
) -> None:
    url = urls_of(panel)["runs/_progress.html"]
    response = client.get(url, headers={"HX-Request": "true"}, follow=True)
    assert response["HX-Refresh"] == "true"
    assert response.content == b""


def test_a_raters_home_tells_nothing_of_results(client: Client, panel: Experiment) -> None:
    client.force_login(make_user("ann", Role.ANNOTATOR))
    html = show(client, reverse("home"))
    for told in ("panel", "won", "lost", "smollm2", "two-pointer", reverse("experiments")):
        assert told not in html


# --- experiments -----------------------------------------------------------------


def test_the_list_is_paged_by_key(lead: Client) -> None:
    library = make_library()
    for slug in ("one", "two", "three"):
        make_experiment(slug, library=library)
    first = show(lead, reverse("experiments") + "?limit=2")
    assert experiments_in(first) == ["three", "two"]
    links = [a.get("href", "") for a in Page(first).all("a")]
    older = next(link for link in links if "cursor=" in link)
    assert experiments_in(show(lead, older)) == ["one"]
    assert "Make one" not in first


def experiments_in(html: str) -> list[str]:
    links = [a.get("href", "") for a in Page(html).all("a")]
    found = [re.fullmatch(r"/experiments/([^/?]+)/", link) for link in links]
    return [match[1] for match in found if match and match[1] not in ("new", "push")]


def test_the_list_is_filtered_and_sorted_by_its_address(lead: Client) -> None:
    library = make_library()
    for slug in ("one", "two", "three"):
        make_experiment(slug, library=library)
    set_status(Experiment.objects.get(slug="two"), ExperimentStatus.PAUSED)
    url = reverse("experiments")
    assert experiments_in(show(lead, f"{url}?sort=slug")) == ["one", "three", "two"]
    assert experiments_in(show(lead, f"{url}?status=paused")) == ["two"]
    assert experiments_in(show(lead, f"{url}?status=running")) == []
    assert lead.get(f"{url}?status=odd").status_code == 404
    assert lead.get(f"{url}?sort=author").status_code == 404


def test_an_empty_list_says_how_to_fill_it(lead: Client) -> None:
    html = show(lead, reverse("experiments"))
    assert f'href="{reverse("experiment-new")}">Prepare an experiment' in html
    assert "manage.py demo" in html


def test_cells_sort_by_link_with_missing_figures_last(lead: Client) -> None:
    library = make_library()
    experiment = make_experiment(
        "panel", tasks=4, controls=("normal", "schema_empty"), library=library
    )
    normal, empty = cells_of(experiment)
    for pair, letter in zip(normal.pairs.order_by("task__key"), "bbbc", strict=True):
        record(pair, letter, skills=("two-pointer",))
    for pair, letter in zip(empty.pairs.order_by("task__key"), "aaad", strict=True):
        record(pair, letter)
    set_status(experiment, ExperimentStatus.FINISHED)
    url = reverse("experiment", kwargs={"slug": "panel"})
    for sort, direction in (("rae", "ascending"), ("-rae", "descending")):
        html = show(lead, f"{url}?sort={sort}")
        assert html.index(normal.sha256[:12]) < html.index(empty.sha256[:12])
        head = next(th for th in Page(html).all("th") if th.get("aria-sort"))
        assert head["aria-sort"] == direction
    assert lead.get(f"{url}?sort=pairs__task__checker").status_code == 404


def test_an_undefined_figure_is_a_dash_whose_reason_can_be_reached(lead: Client) -> None:
    experiment = finished_experiment("panel", retrieved="", skipped="abcd")
    page = Page(show(lead, urls_of(experiment)["runs/experiment.html"]))
    assert "no skill was returned" in page.text
    summaries = [a.get("title") for tag, a in page.elements if tag == "summary"]
    assert "no skill was returned" in summaries  # a summary takes the keyboard's focus
    assert "NaN" not in page.text
    assert "None" not in page.text


def test_a_paused_experiment_says_why_and_what_to_do(lead: Client) -> None:
    experiment = set_status(
        make_experiment(), ExperimentStatus.PAUSED, reason="the key is wrong <b>401</b>"
    )
    html = show(lead, urls_of(experiment)["runs/experiment.html"])
    assert "the key is wrong &lt;b&gt;401&lt;/b&gt;" in html
    assert "manage.py" not in html
    assert reverse("experiment-resume", args=["panel"]) in html
    assert reverse("experiment-pause", args=["panel"]) not in html


def test_buttons_change_the_status_and_get_does_not(lead: Client) -> None:
    experiment = set_status(make_experiment(), ExperimentStatus.RUNNING)

    def status() -> str:
        experiment.refresh_from_db()
        return experiment.status

    def press(name: str, **data: str) -> str:
        response = lead.post(reverse(f"experiment-{name}", args=["panel"]), data, follow=True)
        assert response.status_code == 200
        return response.content.decode()

    for name in ("pause", "resume", "cancel", "retry"):
        assert lead.get(reverse(f"experiment-{name}", args=["panel"])).status_code == 405
    assert status() == "running"
    assert "Paused." in press("pause")
    assert status() == "paused"
    assert experiment.reason == "paused by lee"
    assert "Resumed." in press("resume")
    assert status() == "running"
    assert "say why" in press("cancel", reason="  ")
    assert status() == "running"
    assert "Cancelled." in press("cancel", reason="wrong tasks")
    assert status() == "cancelled"
    assert "Nothing was changed" in press("resume")
    assert status() == "cancelled"


def test_failed_runs_are_retried_by_button(lead: Client) -> None:
    experiment = make_experiment(tasks=1)
    pair = cells_of(experiment)[0].pairs.get()
    record_failure(pair, Arm.SE)
    set_status(experiment, ExperimentStatus.FINISHED)
    html = show(lead, urls_of_small(experiment))
    assert "Retry 1 failed run" in html
    lead.post(reverse("experiment-retry", args=["panel"]))
    experiment.refresh_from_db()
    assert experiment.status == ExperimentStatus.RUNNING
    assert "Retry" not in show(lead, urls_of_small(experiment))


def urls_of_small(experiment: Experiment) -> str:
    return reverse("experiment", kwargs={"slug": experiment.slug})


def test_a_post_without_a_token_changes_nothing_and_is_told_so(panel: Experiment) -> None:
    set_status(panel, ExperimentStatus.RUNNING)
    client = Client(enforce_csrf_checks=True)
    client.force_login(make_user("lee", Role.LEAD))
    response = client.post(reverse("experiment-pause", args=["panel"]))
    assert response.status_code == 403
    assert "This form is out of date" in response.content.decode()
    assert faults_of(response.content.decode()) == []
    panel.refresh_from_db()
    assert panel.status == ExperimentStatus.RUNNING


# --- cells and pairs -------------------------------------------------------------


@pytest.mark.parametrize("policy", ["censor", "incorrect"])
def test_every_quadrant_leads_to_as_many_pairs_as_it_counts(lead: Client, policy: str) -> None:
    experiment = make_experiment(tasks=12, failure_policy=policy)
    ordered = list(cells_of(experiment)[0].pairs.order_by("task__key"))
    for pair, letter in zip(ordered, "abbcccdddd", strict=False):
        record(pair, letter, skills=("two-pointer",) if pair.task.key < "tasks/008" else ())
    for pair in ordered[10:]:
        record_arm_of(pair, Arm.SD)
        record_failure(pair, Arm.SE)
    set_status(experiment, ExperimentStatus.FINISHED)
    page = Page(show(lead, urls_of(experiment)["runs/experiment.html"]))
    links = {a["href"] for a in page.all("a") if "transition=" in a.get("href", "")}
    report = report_of(experiment)["cells"][0]
    seen = 0
    for link in links:
        prefix = "" if "retrieved=true" in link else "all_"
        letter = (
            next(
                letter
                for letter, word in zip(
                    "abcd", ("both_pass", "helpful", "harmful", "both_fail"), strict=True
                )
                if f"={word}" in link
            )
            if "censored" not in link
            else ""
        )
        count = report[prefix + letter] if letter else report["n_censored"]
        listed = Page(show(lead, link))
        rows = [a for a in listed.all("a") if a.get("href", "").startswith("/pairs/")]
        assert len(rows) == count, link
        seen += 1
    assert seen == (9 if report["n_censored"] else 8)


def record_arm_of(pair: Pair, arm: str) -> Grade:
    from tests.factories import record_arm

    return record_arm(pair, arm, True, "right")


def test_pairs_are_paged_by_key(lead: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "PAGE_SIZE", 3)
    experiment = finished_experiment("panel", retrieved="aaaa", skipped="aaa")
    url: str | None = urls_of(experiment)["runs/cell.html"]
    seen: list[str] = []
    while url:
        page = Page(show(lead, url))
        rows = [a["href"] for a in page.all("a") if a.get("href", "").startswith("/pairs/")]
        assert 0 < len(rows) <= 3
        seen += rows
        url = next((a["href"] for a in page.all("a") if "after=" in a.get("href", "")), None)
    assert len(seen) == len(set(seen)) == 7


@pytest.mark.parametrize(
    "query", ["transition=best", "retrieved=maybe", "after=tasks/001", "after=x|²"]
)
def test_a_filter_that_does_not_exist_is_not_found(
    lead: Client, panel: Experiment, query: str
) -> None:
    assert lead.get(f"{urls_of(panel)['runs/cell.html']}?{query}").status_code == 404


def test_a_pair_shows_both_answers_what_the_grader_said_and_what_it_cost(
    lead: Client, panel: Experiment
) -> None:
    text = Page(show(lead, urls_of(panel)["runs/pair.html"])).text
    for said in (
        "Write a function solve(xs) for problem 3.",
        "smallest element",
        "Move two indices towards each other",
        "score 2.500",
        "return min(xs)",
        "return sorted(xs)",
        "case 2: got 3",
        "Passed without skills, failed with them.",
        "Isolation tier A",
        "120",
        "0.00020",
    ):
        assert said in text, said


def test_a_pair_without_results_says_so(lead: Client) -> None:
    experiment = make_experiment(tasks=1)
    pair = cells_of(experiment)[0].pairs.get()
    record_failure(pair, Arm.SE, detail="server_error: <i>503</i>")
    html = show(lead, reverse("pair", kwargs={"uid": pair.uid}))
    assert "no joint result yet" in html
    assert "server_error: &lt;i&gt;503&lt;/i&gt;" in html
    assert "failed in all of its tries" in html


def test_a_huge_text_is_cut_on_the_page_and_whole_behind_its_link(lead: Client) -> None:
    tasks = [replace(task, prompt="p<" * 400_000) for task in make_tasks(1)]
    experiment = make_experiment(tasks=tasks)
    pair = cells_of(experiment)[0].pairs.get()
    record(
        pair,
        "c",
        skills=("two-pointer",),
        se_answer="x = '<&>\"'\n" * 200_000,
        sd_answer="\u202e<" * 500_000,
        details={"message": "m<" * 100_000},
    )
    response = lead.get(reverse("pair", kwargs={"uid": pair.uid}))
    assert len(response.content) <= 300_000
    prompt = lead.get(reverse("pair-text", kwargs={"uid": pair.uid, "part": "prompt"}))
    assert prompt.content.decode() == "p<" * 400_000
    assert prompt["Content-Type"] == "text/plain; charset=utf-8"
    home = lead.get(reverse("home"))
    assert len(home.content) <= 300_000


@pytest.mark.parametrize(
    ("part", "status"),
    [("prompt", 200), ("se-reply", 200), ("sd-graded", 200), ("se-trace", 200), ("key", 404)],
)
def test_each_text_of_a_pair_can_be_had_whole(
    lead: Client, panel: Experiment, part: str, status: int
) -> None:
    pair = cells_of(panel)[0].pairs.order_by("task__key")[2]
    url = reverse("pair-text", kwargs={"uid": pair.uid, "part": part})
    assert lead.get(url).status_code == status


def test_downloads_are_the_report(lead: Client, panel: Experiment) -> None:
    report = report_of(panel)

    def get(extension: str) -> Any:
        response = lead.get(
            reverse("experiment-report", kwargs={"slug": "panel", "format": extension})
        )
        assert f'filename="panel-report.{extension}"' in response["Content-Disposition"]
        return response

    assert json.loads(get("json").content) == report
    assert get("csv").content.decode().splitlines()[0].startswith("cell.")
    assert get("md").content.decode().startswith("# panel")


# --- skills ----------------------------------------------------------------------


def test_skills_are_listed_with_what_came_of_them(lead: Client, panel: Experiment) -> None:
    page = Page(show(lead, reverse("skills")))
    # Letters abccdb with two-pointer returned: 6 pairs, 2 won, 2 lost.
    assert re.search(
        r"two-pointer\s*1\s*procedure\s*candidate\s*unknown\s*coding\s*6\s*2\s*2\s*0", page.text
    )
    assert re.search(
        r"prefix-sum\s*1\s*procedure\s*candidate\s*unknown\s*coding\s*0\s*0\s*0\s*0", page.text
    )


def test_skills_of_the_demonstration_are_shown_under_its_banner(lead: Client) -> None:
    urls = [reverse("skills"), reverse("skill", kwargs={"slug": "two-pointer"})]
    finished_experiment("real", retrieved="abc")
    for url in urls:
        assert "Demonstration model." not in show(lead, url)
    finished_experiment("shown", retrieved="abc", model=EMBEDDED_MODEL)
    for url in urls:
        assert "Demonstration model." in show(lead, url)


def test_versions_of_a_skill_are_counted_apart_and_stand_ins_not_at_all(lead: Client) -> None:
    finished_experiment("old", retrieved="bbc")
    changed = make_library("coding", {"two-pointer": "Another text.", "edge-case-guard": "x"})
    finished_experiment("new", retrieved="ccccb", library=changed)
    stand_in = finished_experiment("stand-in", retrieved="cccc", controls=("schema_empty",))
    assert stand_in.cells.get().treatment.spec["control"] == "schema_empty"
    text = Page(show(lead, reverse("skills"))).text
    rows = re.findall(
        r"two-pointer\s*(\d)\s*procedure.*?coding\s*(\d+)\s*(\d+)\s*(\d+)", text, re.S
    )
    assert rows == [("2", "5", "1", "4"), ("1", "3", "2", "1")]
    page = Page(show(lead, reverse("skill", kwargs={"slug": "two-pointer"}))).text
    assert "Version 2: returned in 5 pairs: 1 won, 4 lost" in " ".join(page.split())
    assert "Version 1: returned in 3 pairs: 2 won, 1 lost" in " ".join(page.split())
    assert "stand-in" not in page.replace("stand-ins", "")


def test_a_pair_of_unequal_parameters_is_left_out_on_every_page(lead: Client) -> None:
    experiment = make_experiment("panel", tasks=3)
    first, second, third = cells_of(experiment)[0].pairs.order_by("task__key")
    record(first, "b", skills=("two-pointer",), dropped=("temperature",))
    record(second, "b", skills=("two-pointer",))
    record(third, "a")
    set_status(experiment, ExperimentStatus.FINISHED)
    urls = urls_of(experiment)
    cell = Page(show(lead, urls["runs/cell.html"])).text
    assert "all else is equal" not in cell
    assert "In 1 pair the endpoint refused temperature in one arm only" in cell
    pair = " ".join(Page(show(lead, reverse("pair", kwargs={"uid": first.uid}))).text.split())
    assert "left out The endpoint refused temperature in one arm only" in pair
    assert "won" in Page(show(lead, reverse("pair", kwargs={"uid": second.uid}))).text
    # Returned in both, won in the one that counts.
    assert re.search(r"coding\s*2\s*1\s*0", Page(show(lead, reverse("skills"))).text)
    equal = finished_experiment("equal", retrieved="bbcc")
    assert "all else is equal" in show(lead, urls_of(equal)["runs/cell.html"])


def test_a_skill_shows_its_versions_its_companions_and_where_it_was_returned(
    lead: Client, panel: Experiment
) -> None:
    make_version(
        "two-pointer",
        "New text",
        companions=["scripts/run.sh"],
        problems=["line 3: a tab was read as a space"],
    )
    text = Page(show(lead, reverse("skill", kwargs={"slug": "two-pointer"}))).text
    for said in (
        "Returned in 6 pairs",
        "2 won",
        "2 lost",
        "Version 2",
        "Version 1",
        "New text",
        "scripts/run.sh",
        "not",
        "line 3: a tab was read as a space",
        "panel",
    ):
        assert said in text, said
    whole = lead.get(reverse("skill-text", kwargs={"slug": "two-pointer", "number": 2}))
    assert whole.content.decode() == "New text"
    assert (
        lead.get(reverse("skill-text", kwargs={"slug": "two-pointer", "number": 9})).status_code
        == 404
    )


def test_a_skill_of_another_script_has_a_page(lead: Client) -> None:
    make_library("other", {"前缀-和": "Text"})
    assert "前缀-和" in show(lead, reverse("skill", kwargs={"slug": "前缀-和"}))


# --- glossary, health, errors ----------------------------------------------------


def test_the_glossary_page_and_its_document_are_one_text(lead: Client) -> None:
    from workbench.glossary import SECTIONS, markdown

    document = ROOT.joinpath("docs/glossary.md").read_text()
    assert document == markdown(), "run: python3 -m workbench.glossary > docs/glossary.md"
    text = Page(show(lead, reverse("glossary"))).text
    for section in SECTIONS:
        for entry in section.entries:
            assert entry.word in text
            assert entry.meaning in text


def test_health_needs_no_sign_in_and_is_plain(client: Client) -> None:
    response = client.get(reverse("health"))
    assert (response.status_code, response.content) == (200, b"ok\n")
    assert response["Content-Type"] == "text/plain"


def test_health_tells_when_the_database_is_gone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import OperationalError

    def gone() -> None:
        raise OperationalError

    monkeypatch.setattr("workbench.views.house.connection.cursor", gone)
    assert client.get(reverse("health")).status_code == 503


def test_a_fault_of_ours_has_a_page_that_tells_nothing(
    lead: Client, panel: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(experiments, "standing_report", broken)
    lead.raise_request_exception = False
    html = show(lead, urls_of(panel)["runs/experiment.html"], 500)
    assert "Something broke here" in html
    assert "secret detail" not in html
    assert faults_of(html) == []


def test_a_foreign_host_is_refused(client: Client) -> None:
    response = client.get("/health/", headers={"Host": "evil.example"})
    assert response.status_code == 400


# --- theme -----------------------------------------------------------------------


def test_the_theme_is_kept_in_a_cookie_without_javascript(client: Client) -> None:
    response = client.post(reverse("theme"), {"theme": "dark", "next": "/sign-in/?next=/skills/"})
    assert response["Location"] == "/sign-in/?next=/skills/"
    assert 'data-theme="dark"' in show(client, reverse("sign-in"))
    client.post(reverse("theme"), {"theme": '"><script>', "next": "/"})
    assert 'data-theme="dark"' in show(client, reverse("sign-in"))
    client.cookies["workbench_theme"] = "evil"
    assert 'data-theme="auto"' in show(client, reverse("sign-in"))


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\evil"]
)
def test_the_theme_form_leads_nowhere_else(client: Client, back: str) -> None:
    response = client.post(reverse("theme"), {"theme": "dark", "next": back})
    assert response["Location"] == reverse("home")


# --- stored XSS ------------------------------------------------------------------

PAYLOADS = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    '"><script>alert(1)</script>',
    "'><img src=x onerror=alert(1)>",
    "</pre><script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    '<a href="javascript:alert(1)">x</a>',
    "[x](javascript:alert(1))",
    "![x](http://attacker.example/p.png)",
    '<img src="http://attacker.example/p.png">',
    '<iframe src="data:text/html,<script>alert(1)</script>"></iframe>',
    "data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==",
    "<style>@import 'http://attacker.example/x.css';</style>",
    '<div style="background:url(http://attacker.example)">',
    '<meta http-equiv=refresh content="0;url=http://attacker.example">',
    '<base href="http://attacker.example/">',
    '<form action="http://attacker.example"><button>x</button></form>',
    "<details open ontoggle=alert(1)>",
    "<input autofocus onfocus=alert(1)>",
    '<object data="data:text/html,x"></object>',
    "<math><mtext></mtext><script>alert(1)</script></math>",
    "{{ 7|add:7 }}{% load static %}",
    '<b hx-get="/x/" hx-trigger="load" data-hx-on:load="alert(1)">',
    "\x1b[31mred\x1b[0m\x1b]8;;http://attacker.example\x07link",
    "user\u202etxt.exe\u202c \u2066hidden\u2069",
    "zero\u200bwidth\ufeff\u00adtext",
    "&lt;script&gt;alert(1)&lt;/script&gt;&#x3C;img src=x onerror=alert(1)&#x3E;",
)


def test_item_text_stays_text_everywhere(lead: Client) -> None:
    """Each payload sits in a key, prompt, answer, query, grader's word, skill and file name."""
    library = make_library("coding", {f"skill-{n}": payload for n, payload in enumerate(PAYLOADS)})
    for n, payload in enumerate(PAYLOADS):
        make_version(
            f"skill-{n}",
            payload + " again",
            name=payload[:100],
            description=payload,
            companions=[payload],
            problems=[payload],
        )
    tasks = [
        replace(task, key=f"{n:02} {payload}"[:190], prompt=payload)
        for n, (task, payload) in enumerate(zip(make_tasks(30), PAYLOADS, strict=True))
    ]
    experiment = make_experiment(tasks=tasks, library=library)
    (cell,) = cells_of(experiment)
    ordered = list(cell.pairs.order_by("task__key"))
    for n, (pair, payload) in enumerate(zip(ordered, PAYLOADS, strict=True)):
        record(
            pair,
            "c",
            skills=(f"skill-{n}",),
            se_answer=payload,
            sd_answer=payload + " too",
            query=payload,
            details={"message": payload, payload: payload},
        )
    record_failure_again(ordered[0], " ".join(PAYLOADS))
    set_status(experiment, ExperimentStatus.PAUSED, reason=" ".join(PAYLOADS))
    cell_url = reverse("cell", kwargs={"slug": "panel", "sha12": cell.sha256[:12]})
    for url in (
        reverse("home"),
        reverse("experiments"),
        reverse("skills"),
        reverse("experiment", kwargs={"slug": "panel"}),
        cell_url,
        *(f"{cell_url}?{urlencode({'skill': payload})}" for payload in PAYLOADS),
        *(reverse("pair", kwargs={"uid": pair.uid}) for pair in ordered),
        *(reverse("skill", kwargs={"slug": f"skill-{n}"}) for n in range(len(PAYLOADS))),
    ):
        html = show(lead, url)
        assert faults_of(html) == [], url
        assert not STEERING.search(html), url
        for tag, attributes in Page(html).elements:
            assert tag in KNOWN_TAGS, (url, tag)
            assert not HARMFUL & set(attributes), url


# What steers a terminal, the direction of text, or the eye by having no width.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f\u00ad\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
HARMFUL = {"data-hx-on:load", "ontoggle", "onfocus", "onerror", "onload", "autofocus", "style"}
_TAGS = """
    a article aside body button caption circle code dd details div dl dt fieldset footer form h1 h2
    h3 h4 head header html img input label legend li line link main meta nav ol option p pre
    progress q script section select span strong summary svg table tbody td th thead title tr ul
"""
KNOWN_TAGS = set(_TAGS.split())


def record_failure_again(pair: Pair, detail: str) -> None:
    """Add a failed try whose error text an endpoint chose."""
    execution = execution_of(pair, Arm.SE)
    Attempt.objects.create(
        execution=execution,
        number=2,
        failure="call",
        failure_detail=detail,
        trace={},
        exposed=True,
        invoked=False,
        retrieved=None,
        at=NOW,
    )


def test_a_file_is_served_as_text_that_no_browser_renders(lead: Client) -> None:
    experiment = finished_experiment("panel", retrieved="c", library=None)
    pair = cells_of(experiment)[0].pairs.get()
    for url in (
        reverse("pair-text", kwargs={"uid": pair.uid, "part": "se-reply"}),
        reverse("skill-text", kwargs={"slug": "two-pointer", "number": 1}),
    ):
        response = lead.get(url)
        assert response["Content-Type"] == "text/plain; charset=utf-8"
        assert response["X-Content-Type-Options"] == "nosniff"
        assert "default-src 'none'" in response["Content-Security-Policy"]
