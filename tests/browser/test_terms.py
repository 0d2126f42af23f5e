"""Terms open their meaning where they stand: without JavaScript, by keyboard, at any width."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import reverse
from playwright.sync_api import Page, ViewportSize, expect

from runs.models import ExperimentStatus
from tests.browser.conftest import Watched
from tests.browser.test_browser import panel, sign_in
from tests.factories import make_experiment, set_status
from workbench.glossary import MEANINGS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]

Open = Callable[..., Watched]
WIDE, NARROW = (ViewportSize(width=w, height=800) for w in (1280, 360))


def first_term(page: Page, key: str) -> tuple[str, str]:
    """Return the selectors of the first button of a term and of what it opens."""
    id = page.locator(f"button.term[popovertarget$='-{key}']").first.get_attribute("popovertarget")
    return f"button[popovertarget='{id}']", f"#{id}"


@pytest.mark.parametrize("viewport", [WIDE, NARROW])
def test_a_term_opens_its_meaning_without_javascript(watched: Open, viewport: ViewportSize) -> None:
    panel()
    watch = watched(viewport=viewport, java_script_enabled=False)
    page = sign_in(watch)
    here = page.url
    button, gloss = first_term(page, "rae")
    expect(page.locator(gloss)).to_be_hidden()
    page.locator(button).click()
    shown = page.locator(gloss)
    expect(shown).to_be_visible()
    expect(shown).to_contain_text(MEANINGS["rae"].meaning)
    expect(shown).to_be_in_viewport(ratio=1)
    assert page.url == here
    page.keyboard.press("Escape")
    expect(shown).to_be_hidden()
    # By keyboard: the button is where Escape led back to, and the link comes next.
    page.keyboard.press("Enter")
    expect(shown).to_be_visible()
    page.keyboard.press("Tab")
    expect(shown.get_by_role("link", name="In the glossary")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/glossary/#rae$"))
    assert watch.complaints == []


def test_an_opened_term_stands_by_its_word_and_widens_nothing(watched: Open) -> None:
    panel()
    for viewport in (WIDE, NARROW):
        page = sign_in(watched(viewport=viewport), f"lee{viewport['width']}")
        for selector in [
            f"button[popovertarget='{one.get_attribute('popovertarget')}']"
            for one in page.locator("button.term").all()
        ]:
            button = page.locator(selector)
            if not button.is_visible():
                continue
            button.click()
            box, word = page.locator(".gloss:popover-open").bounding_box(), button.bounding_box()
            assert box
            assert word
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= viewport["width"]
            # Right below its word or right above it.
            gap = min(
                abs(box["y"] - word["y"] - word["height"]),
                abs(word["y"] - box["y"] - box["height"]),
            )
            assert gap <= 12, selector
            wider = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wider <= 0, selector
            page.keyboard.press("Escape")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_where_a_term_is_open(watched: Open, scheme: str) -> None:
    panel()
    page = sign_in(watched(color_scheme=scheme))
    for index in range(page.locator("button.term").count()):
        button = page.locator("button.term").nth(index)
        if not button.is_visible():
            continue
        button.click()
        found = Axe().run(page).response["violations"]
        assert [one["id"] for one in found] == [], index
        page.keyboard.press("Escape")


def test_terms_of_a_fragment_have_ids_of_their_own(watched: Open) -> None:
    set_status(make_experiment(), ExperimentStatus.PAUSED, reason="no key")
    page = sign_in(watched())
    page.goto(reverse("home"))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))


def test_what_is_closed_is_not_printed(watched: Open) -> None:
    panel()
    page = sign_in(watched())
    page.emulate_media(media="print")
    for gloss in page.locator(".gloss").all():
        expect(gloss).to_be_hidden()
    button, _ = first_term(page, "aggregate_lift")
    expect(page.locator(button)).to_be_visible()
