"""A team's first study in a real browser, against ``serve`` with real processes behind it.

An admin invites a lead and two annotators by link; the lead uploads skills and tasks, prepares a
study in the form, sees what it will cost, starts it at an endpoint that answers by rule, watches
it finish, runs it again with an edited skill, compares the two and takes the runs away as a file.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.scripted_server import ScriptedServer
from tests.serving import Served
from tests.study import (
    EDITED_TEXT,
    FIRST_TEXT,
    TASKS,
    answer_by_rule,
    endpoint_file,
    skills_zip,
    task_file,
)
from workbench.kernel.hosts import listening_port

pytestmark = pytest.mark.xdist_group("browser")

PASSWORD = "a long walk at dusk"


@dataclass(frozen=True)
class Site:
    """The served workbench and the link of its first admin."""

    base: str
    first_link: str


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    port = listening_port(host="127.0.0.1", port=None, first=18_400)
    base = f"http://localhost:{port}"
    data = tmp_path / "data"
    data.mkdir()
    with ScriptedServer(answer_by_rule, models=("thinker",)) as endpoint:
        (data / "endpoints.toml").write_text(endpoint_file(endpoint.base_url))
        served = Served(
            *(data, "--port", str(port), "--public-url", base, "--no-model"),
            PAID_KEY="sk-paid-1234567890",
        )
        try:
            link = re.search(r"Sign in: (\S+)", served.up())
            assert link, served.text()
            yield Site(base, link[1])
        finally:
            served.end()


@pytest.fixture
def people(browser: Browser, site: Site) -> Iterator[dict[str, Page]]:
    """Return a page for each person, each in a browser of their own; all are watched."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []
    pages = {}
    for name in ("admin", "lee", "ann", "bo"):
        context = browser.new_context(base_url=site.base, accept_downloads=True)
        context.set_default_timeout(20_000)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        contexts.append(context)
        pages[name] = context.new_page()
    yield pages
    for context in contexts:
        context.close()
    assert complaints == []


def accessible(page: Page) -> None:
    """Assert that axe finds nothing on the page, light or dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page).response["violations"]
        assert found == [], (page.url, scheme, [(one["id"], one["nodes"][:2]) for one in found])


def press(page: Page, name: str) -> None:
    """Press one of the buttons that stand at the top of the page."""
    actions = page.get_by_role("group", name="What can be done")
    actions.get_by_role("button", name=name, exact=True).click()


def invite(page: Page, names: str, role: str) -> dict[str, str]:
    """Invite people and return each one's link."""
    page.goto("/people/")
    page.get_by_text("Invite people…").click()
    page.get_by_label("Who?").fill(names)
    page.get_by_label("As", exact=True).select_option(role)
    accessible(page)
    page.get_by_role("button", name="Make the links").click()
    accessible(page)
    links = page.locator("ul.links > li")
    expect(links).to_have_count(len(names.splitlines()))
    return {
        item.get_by_role("heading").inner_text(): item.locator("code.command").inner_text()
        for item in links.all()
    }


def come_in(page: Page, link: str) -> None:
    """Open an invitation, choose a password, be signed in."""
    page.goto(link)
    accessible(page)
    page.get_by_label("New password").fill(PASSWORD)
    page.get_by_label("The same again").fill(PASSWORD)
    page.get_by_role("button", name="Set the password and come in").click()
    expect(page.get_by_role("button", name="Sign out", exact=True)).to_be_visible()
    accessible(page)


def upload_library(page: Page, body: str) -> None:
    page.goto("/libraries/new/")
    page.get_by_label("Library").fill("team")
    file = {"name": "team.zip", "mimeType": "application/zip", "buffer": skills_zip(body)}
    page.get_by_label("Zip file").set_input_files(file)  # type: ignore[arg-type]
    accessible(page)
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("h1")).to_contain_text("team")
    accessible(page)


def run_draft(page: Page) -> None:
    """Start the draft that the page shows and follow it to the finished experiment."""
    press(page, "Start")
    page.wait_for_url(re.compile(r"/experiments/(?!drafts)[a-z0-9-]+/$"), timeout=60_000)
    expect(page.locator(".state.finished").first).to_be_visible(timeout=60_000)
    accessible(page)


def test_a_team_prepares_runs_compares_and_takes_away_a_study(
    site: Site, people: dict[str, Page]
) -> None:
    admin, lee, ann, bo = people["admin"], people["lee"], people["ann"], people["bo"]
    admin.goto(site.first_link)
    admin.get_by_role("button", name="Sign me in").click()
    accessible(admin)
    links = invite(admin, "lee", "lead") | invite(admin, "ann\nbo", "annotator")
    assert set(links) == {"lee", "ann", "bo"}
    for name, page in (("lee", lee), ("ann", ann), ("bo", bo)):
        come_in(page, links[name])

    # What is the lead's is closed to raters, and a used link lets nobody in again.
    assert ann.goto("/experiments/").status == 403  # type: ignore[union-attr]
    accessible(ann)
    assert bo.goto(links["ann"]).status == 410  # type: ignore[union-attr]

    upload_library(lee, FIRST_TEXT)
    lee.goto("/suites/new/")
    lee.get_by_label("Suite").fill("ranges")
    tasks = {"name": "ranges.jsonl", "mimeType": "application/x-ndjson", "buffer": task_file()}
    lee.get_by_label("Task file").set_input_files(tasks)  # type: ignore[arg-type]
    accessible(lee)
    lee.get_by_role("button", name="Check and store").click()
    expect(lee.locator(".state.done")).to_be_visible(timeout=30_000)
    accessible(lee)

    lee.goto("/experiments/new/")
    accessible(lee)
    lee.get_by_role("link", name="Open the form").click()
    accessible(lee)
    lee.get_by_role("textbox", name="Name").fill("totals")
    lee.get_by_role("combobox", name="Endpoint").select_option("paid")
    lee.get_by_role("combobox", name="Model name").fill("thinker")
    lee.get_by_role("combobox", name="Suite").select_option("ranges")
    lee.get_by_role("combobox", name="Library").select_option("team")
    lee.get_by_role("button", name="Save the draft").click()
    expect(lee.locator("h1")).to_have_text("totals")
    # One model, one benchmark of 8 tasks, one cell.
    expect(lee.locator(".lede")).to_contain_text("8 pairs in 1 cell", use_inner_text=True)
    accessible(lee)

    press(lee, "Estimate")
    facts = lee.locator("dl.facts").first
    expect(facts).to_be_visible(timeout=60_000)
    # Three probe pairs: 2 calls in each SE run, 1 in each SD run, 10 tokens in and 5 out a call.
    # 8 pairs: 8 * 3 calls = 24, 24 * 15 = 360 tokens, 24 * (10 * 2 + 5 * 8) / 10^6 = 0.00144.
    expect(facts).to_contain_text("24")
    expect(facts).to_contain_text("360")
    expect(facts).to_contain_text("0.00144")
    expect(facts).to_contain_text("8 of 8")
    accessible(lee)
    run_draft(lee)
    # SE passes 0, 3, 6 and SD 0, 2, 4, 6: won 3, lost 2 and 4; (1 - 2) / 8 = -12.5.
    expect(lee.locator("main")).to_contain_text("−12.5")

    # The same study with an edited skill: a clone, which takes the newest library.
    upload_library(lee, EDITED_TEXT)
    lee.goto("/experiments/totals/")
    press(lee, "Clone")
    expect(lee.locator("h1")).to_have_text("totals-2")
    run_draft(lee)

    lee.goto("/compare/")
    accessible(lee)
    lee.get_by_label("A, the old one").fill("totals")
    lee.get_by_label("B, the new one").fill("totals-2")
    lee.get_by_role("button", name="Compare").click()
    # With the edited text 0..6 pass, before 0, 3, 6: won 1, 2, 4, 5 and lost none.
    expect(lee.locator("h1")).to_contain_text("totals-2 against totals")
    expect(lee.locator("main")).to_contain_text("won 4 and lost 0", use_inner_text=True)
    accessible(lee)

    lee.goto("/exports/?experiment=totals")
    lee.get_by_label("Experiment").select_option("totals")
    lee.get_by_label("Format").select_option("csv")
    accessible(lee)
    lee.get_by_role("button", name="Export").click()
    download = lee.get_by_role("link", name="Open the result")
    expect(download).to_be_visible(timeout=30_000)
    accessible(lee)
    with lee.expect_download() as started:
        download.first.click()
    rows = list(csv.DictReader(started.value.path().read_text().splitlines()))
    assert len(rows) == 2 * TASKS
    assert {row["arm"] for row in rows} == {"SE", "SD"}

    # The lead was told that both ended; raters were told nothing.
    lee.goto("/notices/")
    expect(lee.locator("main")).to_contain_text("totals-2")
    accessible(lee)
    ann.goto("/")
    assert "totals" not in ann.content()
    assert ann.goto("/notices/").status == 403  # type: ignore[union-attr]
