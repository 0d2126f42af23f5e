"""Notices and webhooks in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import ViewportSize, expect

from tests.browser.conftest import Watched
from tests.browser.test_browser import sign_in
from tests.factories import make_experiment
from workbench.kernel.roles import Role
from workbench.notices import NoticeKind, notify

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]

Open = Callable[..., Watched]
NARROW = ViewportSize(width=360, height=800)


def tell(event: str) -> None:
    notify(
        kind=NoticeKind.EXPERIMENT_PAUSED,
        event=event,
        subject="panel",
        text="Paused: no key. See to the reason, then resume it on its page.",
        path="/experiments/panel/",
        at=timezone.now(),
    )


def test_a_notice_is_counted_read_and_acted_on_without_javascript(watched: Open) -> None:
    make_experiment("panel")
    page = sign_in(watched(java_script_enabled=False))
    tell("one")
    page.goto(reverse("home"))
    page.get_by_role("link", name="Notices 1 unread").click()
    expect(page.get_by_text("Paused: no key.")).to_be_visible()
    page.get_by_role("button", name="Mark all as read").click()
    expect(page.get_by_role("status")).to_contain_text("All marked as read.")
    expect(page.get_by_role("link", name="Notices", exact=True)).to_be_visible()
    page.get_by_role("link", name="panel").click()
    page.wait_for_url("**/experiments/panel/")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_pages_of_notices_and_webhooks(
    watched: Open, settings: Any, scheme: str
) -> None:
    settings.WEBHOOK_HOSTS = ["http://127.0.0.1:9"]
    tell("one")
    watch = watched(viewport=NARROW, color_scheme=scheme)
    page = sign_in(watch, "ada", Role.ADMIN)
    page.goto(reverse("notices"))
    pages = {"notices": Axe().run(page).response["violations"]}
    page.goto(reverse("webhooks"))
    pages["no webhook"] = Axe().run(page).response["violations"]
    page.get_by_label("Address").fill("https://elsewhere.example/")
    page.get_by_role("button", name="Add the webhook").click()
    expect(page.get_by_role("alert")).to_contain_text("is not listed")
    pages["refused"] = Axe().run(page).response["violations"]
    page.get_by_label("Address").fill("http://127.0.0.1:9/in")
    page.get_by_role("button", name="Add the webhook").click()
    tell("two")
    page.get_by_role("button", name="Send a test").click()
    expect(page.locator(".message.error")).to_contain_text("nothing listens at")
    page.get_by_text("Its signing secret").click()
    page.get_by_text("Remove…").click()
    pages["one webhook"] = Axe().run(page).response["violations"]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    page.get_by_role("button", name="Remove the webhook").click()
    expect(page.get_by_text("No webhook yet.")).to_be_visible()
    assert {name: [one["id"] for one in found] for name, found in pages.items() if found} == {}
    assert watch.foreign == []
