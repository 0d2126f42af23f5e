"""Pages in a real browser: accessibility, keyboard, no JavaScript, policy, themes and widths."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import reverse
from playwright.sync_api import Page, ViewportSize, expect

from runs.models import Arm, Experiment, ExperimentStatus
from tests.browser.conftest import Watched
from tests.factories import (
    EMBEDDED_MODEL,
    cells_of,
    make_experiment,
    make_library,
    make_user,
    record,
    record_failure,
    set_status,
)
from workbench.accounts import create_sign_in_link
from workbench.kernel.roles import Role

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]

Open = Callable[..., Watched]
REFUSED = "/compare/?a=panel&b=panel"
WIDE, NARROW, NARROWEST = (ViewportSize(width=w, height=900) for w in (1280, 360, 320))


def panel() -> Experiment:
    """Return an experiment that has something of everything to show."""
    library = make_library()
    experiment = make_experiment(
        "panel",
        tasks=16,
        controls=("normal", "schema_empty"),
        library=library,
        model=EMBEDDED_MODEL,
    )
    normal, empty = cells_of(experiment)
    letters = "aaabccccccdd"
    pairs = list(normal.pairs.order_by("task__key"))
    for pair, letter in zip(pairs, letters + "ad", strict=False):
        given = ("two-pointer", "prefix-sum") if pairs.index(pair) < len(letters) else ()
        record(pair, letter, skills=given, sd_answer="def solve(xs):\n    return " + "x" * 300)
    for pair in pairs[14:]:
        record_failure(pair, Arm.SE)
    for pair in list(empty.pairs.order_by("task__key"))[:14]:
        record(pair, "a")
    return set_status(experiment, ExperimentStatus.FINISHED)


def paths_of(experiment: Experiment) -> dict[str, str]:
    cell = cells_of(experiment)[0]
    lost, *_ = cell.pairs.filter(outcomes__transition="harmful").order_by("task__key")
    where = {"slug": experiment.slug}
    compare = f"{reverse('compare')}?a={experiment.slug}&b={experiment.slug}"
    shas = [each.sha256[:12] for each in cells_of(experiment)]
    return {
        "home": reverse("home"),
        "experiments": reverse("experiments"),
        "compare": reverse("compare"),
        "compared": f"{compare}&cell_a={shas[0]}&cell_b={shas[-1]}&allow=control",
        "experiment": reverse("experiment", kwargs=where),
        "cell": reverse("cell", kwargs={**where, "sha12": cell.sha256[:12]}),
        "pair": reverse("pair", kwargs={"uid": lost.uid}),
        "skills": reverse("skills"),
        "skill": reverse("skill", kwargs={"slug": "two-pointer"}),
        "glossary": reverse("glossary"),
        "notices": reverse("notices"),
        "people": reverse("people"),
        "person": reverse("person", kwargs={"name": "lee"}),
        "account": reverse("account"),
    }


def sign_in(watch: Watched, name: str = "lee", role: Role = Role.LEAD) -> Page:
    """Return a page on which a new user has just signed in by link."""
    from django.utils import timezone

    token = create_sign_in_link(user=make_user(name, role), now=timezone.now())
    page = watch.page()
    page.goto(reverse("sign-in-link", kwargs={"token": token}))
    page.get_by_role("button", name="Sign me in").click()
    page.wait_for_url("**/")
    return page


def open_everything(page: Page) -> None:
    """Open every <details>, so that what is hidden at first is looked at too."""
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {node['html'][:200]}" for v in found for node in v["nodes"]]


# --- accessibility ---------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(watched: Open, scheme: str) -> None:
    paths = paths_of(panel())
    watch = watched(color_scheme=scheme, viewport=WIDE)
    page = watch.page()
    found = {}
    for name, path in (("sign-in", "/sign-in/"), ("bad link", "/sign-in/link/unknown/")):
        page.goto(path)
        found[name] = violations(page)
    page = sign_in(watch)
    for name, path in (*paths.items(), ("not found", "/nothing/"), ("refused", REFUSED)):
        page.goto(path)
        open_everything(page)
        found[name] = violations(page)
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_axe_finds_nothing_while_an_experiment_is_paused_on_a_narrow_screen(
    watched: Open,
) -> None:
    experiment = set_status(make_experiment(), ExperimentStatus.PAUSED, reason="no key")
    watch = watched(viewport=NARROW, color_scheme="dark")
    page = sign_in(watch)
    for path in (reverse("home"), reverse("experiment", kwargs={"slug": experiment.slug})):
        page.goto(path)
        open_everything(page)
        assert violations(page) == []


def test_controls_are_large_enough_to_hit(watched: Open) -> None:
    paths = paths_of(panel())
    page = sign_in(watched(viewport=NARROW))
    for name, path in paths.items():
        page.goto(path)
        small = page.evaluate(
            """() => [...document.querySelectorAll(
                'button, summary, select, input, nav a, thead a, .button')]
              .filter(e => e.type !== 'hidden' && e.checkVisibility())
              .map(e => [e.getBoundingClientRect(), e.outerHTML.slice(0, 120)])
              .filter(([box]) => box.width < 24 || box.height < 24)
              .map(([box, html]) => `${box.width}x${box.height} ${html}`)"""
        )
        assert small == [], name


# --- keyboard --------------------------------------------------------------------


def test_the_skip_link_comes_first_and_leads_to_the_content(watched: Open) -> None:
    paths = paths_of(panel())
    page = sign_in(watched())
    page.goto(paths["experiment"])
    page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_every_stop_of_the_keyboard_shows_where_it_is(watched: Open) -> None:
    paths = paths_of(panel())
    page = sign_in(watched())
    for name in ("home", "experiment", "pair"):
        page.goto(paths[name])
        seen = set()
        for _ in range(45):
            page.keyboard.press("Tab")
            stop = page.evaluate(
                """() => { const e = document.activeElement, s = getComputedStyle(e);
                  return [e.outerHTML.slice(0, 90), s.outlineStyle, parseFloat(s.outlineWidth)];
                }"""
            )
            if stop[0].startswith("<body"):
                break
            assert stop[1] != "none", (name, stop)
            assert stop[2] >= 1, (name, stop)
            seen.add(stop[0])
        assert len(seen) > 15, name


def test_the_reason_of_a_dash_can_be_read_by_keyboard(watched: Open) -> None:
    paths = paths_of(panel())
    page = sign_in(watched())
    page.goto(paths["experiment"])
    row = page.locator("tr", has_text="schema_empty")
    dash = row.locator("summary").first
    reason = row.locator("details.why").first
    assert not reason.evaluate("e => e.open")
    dash.focus()
    page.keyboard.press("Enter")
    assert reason.evaluate("e => e.open")
    assert "pairs are still pending" in reason.inner_text()


def test_a_lead_gets_from_home_to_a_lost_answer_by_keyboard(watched: Open) -> None:
    panel()
    page = sign_in(watched())
    page.get_by_role("link", name="Read the 6 lost pairs").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**transition=harmful**")
    page.locator(".frame a[href^='/pairs/']").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/pairs/**")
    expect(page.get_by_role("heading", name="With skills (SE) failed")).to_be_visible()


# --- without JavaScript ----------------------------------------------------------


def test_everything_works_without_javascript(
    watched: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No broker runs beside these pages.
    monkeypatch.setattr("runs.services.lifecycle.publish", lambda *_, **__: None)
    experiment = panel()
    set_status(experiment, ExperimentStatus.RUNNING)
    page = sign_in(watched(java_script_enabled=False, viewport=WIDE))
    expect(page.get_by_role("link", name="Reload to see how far it is")).to_be_visible()
    page.get_by_role("button", name="Dark").click()
    assert page.locator("html").get_attribute("data-theme") == "dark"
    paths = paths_of(experiment)
    page.goto(paths["experiment"])
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("Paused.")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("Resumed.")
    page.get_by_text("Cancel…").click()
    page.get_by_label("Why?").fill("wrong tasks")
    page.get_by_role("button", name="Cancel the experiment").click()
    expect(page.get_by_role("status")).to_contain_text("Cancelled.")
    page.get_by_role("link", name="Lift", exact=False).first.click()
    assert "sort=aggregate_lift" in page.url
    page.goto(paths["cell"])
    page.get_by_label("Outcome").select_option("harmful")
    page.get_by_role("button", name="Show").click()
    assert page.locator(".frame a[href^='/pairs/']").count() == 6
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


# --- live ------------------------------------------------------------------------


def test_progress_shows_by_itself_and_the_report_follows(watched: Open) -> None:
    experiment = set_status(make_experiment(tasks=1), ExperimentStatus.RUNNING)
    (pair,) = cells_of(experiment)[0].pairs.all()
    watch = watched()
    page = sign_in(watch)
    expect(page.locator("#progress h2")).to_contain_text("0 of 1 pairs")
    record(pair, "c", skills=("two-pointer",))
    expect(page.locator("#progress h2")).to_contain_text("1 of 1 pairs")
    set_status(experiment, ExperimentStatus.FINISHED)
    expect(page.get_by_text("On the 1 task where a skill was returned")).to_be_visible()
    assert page.locator("#progress").count() == 0
    assert watch.complaints == []


def test_back_after_signing_out_shows_nothing(watched: Open) -> None:
    experiment = panel()
    page = sign_in(watched())
    page.goto(paths_of(experiment)["experiment"])
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in/**")
    page.go_back()
    page.wait_for_url("**/sign-in/**")
    assert "panel" not in page.inner_text("main")


# --- policy, themes, widths ------------------------------------------------------


def test_pages_ask_for_nothing_elsewhere_and_complain_of_nothing(watched: Open) -> None:
    experiment = panel()
    watch = watched()
    page = sign_in(watch)
    for path in paths_of(experiment).values():
        page.goto(path)
    set_status(experiment, ExperimentStatus.RUNNING)
    with page.expect_request("**/progress/"):
        page.goto(reverse("home"))
    assert watch.foreign == []
    assert watch.complaints == []


def test_a_policy_violation_would_be_noticed(watched: Open) -> None:
    """The check above with its guard removed: an inline script is blocked and seen."""
    watch = watched()
    page = watch.page()
    page.goto("/sign-in/")
    page.evaluate(
        """() => { const s = document.createElement('script');
          s.textContent = 'window.ran = true'; document.body.append(s); }"""
    )
    assert page.evaluate("window.ran") is None
    assert any("Content Security Policy" in said for said in watch.complaints)


def test_no_page_is_wider_than_the_screen(watched: Open) -> None:
    paths = paths_of(panel())
    page = sign_in(watched())
    found = {}
    for name, path in (*paths.items(), ("bad link", "/sign-in/link/unknown/")):
        page.goto(path)
        open_everything(page)
        for size in (WIDE, NARROW, NARROWEST):
            page.set_viewport_size(size)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                found[name, size["width"], scheme] = overflow(page)
    assert {place: pixels for place, pixels in found.items() if pixels > 0} == {}


def overflow(page: Page) -> int:
    """Return by how many pixels the page is wider than the screen."""
    return int(
        page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    )


def test_the_theme_follows_the_system_until_one_is_chosen(watched: Open) -> None:
    panel()
    page = sign_in(watched(color_scheme="dark"))

    def darkness() -> int:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert darkness() < 150
    page.get_by_role("button", name="Light").click()
    assert darkness() > 600
    page.get_by_role("button", name="Auto").click()
    assert darkness() < 150


def test_the_demonstration_banner_prints_and_cannot_be_closed(watched: Open) -> None:
    paths = paths_of(panel())
    page = sign_in(watched())
    for name in ("home", "experiment", "cell", "pair"):
        page.goto(paths[name])
        banner = page.get_by_role("complementary", name="Demonstration model")
        expect(banner).to_be_visible()
        assert banner.get_by_role("button").count() == 0
        page.emulate_media(media="print")
        expect(banner).to_be_visible()
        expect(page.get_by_role("navigation", name="Main")).to_be_hidden()
        page.emulate_media(media="screen")
