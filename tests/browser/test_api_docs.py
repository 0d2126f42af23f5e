"""The API's description in a real browser: under the strict policy, and with requests that work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import reverse
from playwright.sync_api import ViewportSize, expect

from tests.browser.conftest import Watched
from tests.browser.test_browser import sign_in
from tests.factories import finished_experiment
from workbench.models import NoticeReader

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]

Open = Callable[..., Watched]
# What Swagger UI does wrong by itself. Its select boxes and examples are mended, and its second
# <main> is told as a group, which axe minds less than two of them.
SWAGGERS_OWN = {"aria-allowed-role", "color-contrast", "heading-order", "nested-interactive"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_description_is_read_and_tried_under_the_strict_policy(
    watched: Open, scheme: str
) -> None:
    finished_experiment("panel")
    watch = watched(color_scheme=scheme, viewport=ViewportSize(width=1280, height=900))
    page = sign_in(watch)
    page.goto(reverse("api-docs"))
    page.locator("#operations-tag-experiments").click()
    page.locator("#operations-experiments-experiments_get .opblock-summary-control").click()
    page.get_by_role("button", name="Try it out").click()
    page.get_by_role("button", name="Execute").click()
    answer = page.locator("#operations-experiments-experiments_get .live-responses-table")
    expect(answer).to_contain_text('"slug": "panel"')
    found = {one["id"] for one in Axe().run(page).response["violations"]}
    assert found <= SWAGGERS_OWN
    assert (watch.complaints, watch.foreign) == ([], [])


def test_a_write_that_is_tried_carries_the_pages_form_token(watched: Open) -> None:
    watch = watched()
    page = sign_in(watch)
    page.goto(reverse("api-docs"))
    page.locator("#operations-tag-subscriptions").click()
    block = page.locator("#operations-subscriptions-subscriptions_put")
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Try it out").click()
    block.locator("textarea").fill('{"by_mail": false}')
    block.get_by_role("button", name="Execute").click()
    expect(block.locator(".live-responses-table")).to_contain_text('"by_mail": false')
    assert NoticeReader.objects.get().by_mail is False
    assert watch.complaints == []


def test_without_javascript_the_files_are_still_there(watched: Open) -> None:
    page = sign_in(watched(java_script_enabled=False))
    page.goto(reverse("api-docs"))
    expect(page.get_by_text("without it, read the files above")).to_be_visible()
    expect(page.get_by_role("link", name="YAML")).to_have_attribute(
        "href", reverse("api-schema") + "?format=yaml"
    )
