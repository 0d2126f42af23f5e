"""A browser that may fetch nothing but the pages under test, and what it complains of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from workbench.management.commands.screenshots import CHROMIUM_FLAGS


@dataclass
class Watched:
    """A context's pages with what went wrong on them."""

    context: BrowserContext
    base: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def page(self) -> Page:
        return self.context.new_page()

    @property
    def foreign(self) -> list[str]:
        """The addresses that were asked for elsewhere."""
        return [url for url in self.requests if not url.startswith((self.base + "/", "data:"))]


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """Return the session's browser."""
    # Playwright's event loop runs in this thread; Django would refuse the database to it.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Browser, live_server: Any) -> Iterator[Callable[..., Watched]]:
    """Return a function that opens a watched context with the given settings."""
    opened: list[Watched] = []

    def open_context(**settings: Any) -> Watched:
        context = browser.new_context(base_url=live_server.url, **settings)
        context.set_default_timeout(10_000)
        watch = Watched(context, live_server.url)
        context.on("request", lambda request: watch.requests.append(request.url))
        context.on("console", lambda message: _note(watch, message))
        context.on("weberror", lambda error: watch.complaints.append(str(error.error)))
        opened.append(watch)
        return watch

    yield open_context
    for watch in opened:
        watch.context.close()


def _note(watch: Watched, message: Any) -> None:
    if message.type in ("error", "warning"):
        watch.complaints.append(f"{message.type}: {message.text}")
