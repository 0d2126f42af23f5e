"""``screenshots``: save a picture of every page, light and dark, wide and narrow."""

from __future__ import annotations

import contextlib
import shutil
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.urls import reverse
from django.utils import timezone

from runs.models import Cell, Experiment, Outcome, Pair
from runs.selectors import drafts_for_list, newest_benchmarks
from skills.models import Skill
from skills.selectors import newest_libraries
from workbench.accounts import create_sign_in_link, ensure_user, people
from workbench.kernel.roles import Role
from workbench.models import Job

USER = "screenshots"
SCHEMES = ("light", "dark")
WIDTHS = (1280, 360)
HEIGHT = 900
# Nothing but the pages themselves may be fetched.
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Command(BaseCommand):
    help = "Save a picture of every page in DIR. The pages must be served already."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("directory", metavar="DIR", type=Path)
        parser.add_argument(
            "--base-url",
            default="http://127.0.0.1:8000",
            help="where the pages are served (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            from playwright.sync_api import sync_playwright
        except ImportError as error:
            raise CommandError("pictures need the package playwright (extra 'test')") from error
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        if chromium is None:
            raise CommandError("pictures need Chromium: apt install chromium")
        user = ensure_user(name=USER, role=Role.ADMIN)
        paths = pages()
        # Made now: Playwright's event loop keeps this thread from the database.
        views = [
            (scheme, width, create_sign_in_link(user=user, now=timezone.now()))
            for scheme in SCHEMES
            for width in WIDTHS
        ]
        directory, base = options["directory"], options["base_url"].rstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        with sync_playwright() as playwright, _browser(playwright, chromium) as browser:
            for scheme, width, token in views:
                context = browser.new_context(
                    color_scheme=scheme, viewport={"width": width, "height": HEIGHT}
                )
                page = context.new_page()
                page.goto(base + reverse("sign-in"))
                _save(page, directory / f"sign-in-{scheme}-{width}.png")
                page.goto(base + reverse("sign-in-link", kwargs={"token": token}))
                _save(page, directory / f"sign-in-link-{scheme}-{width}.png")
                page.get_by_role("button", name="Sign me in").click()
                for name, path in paths.items():
                    page.goto(base + path)
                    _save(page, directory / f"{name}-{scheme}-{width}.png")
                context.close()
        self.stdout.write(f"{len(list(directory.glob('*.png')))} pictures in {directory}")


def pages() -> dict[str, str]:
    """Return the path of one page of each kind that there is something to show on."""
    paths = {
        "home": reverse("home"),
        "experiments": reverse("experiments"),
        "exports": reverse("exports"),
        "push": reverse("push"),
        "skills": reverse("skills"),
        "compare": reverse("compare"),
        "libraries": reverse("libraries"),
        "library-new": reverse("library-new"),
        "suites": reverse("suites"),
        "suite-new": reverse("suite-new"),
        "glossary": reverse("glossary"),
        "notices": reverse("notices"),
        "webhooks": reverse("webhooks"),
        "people": reverse("people"),
        "person": reverse("person", kwargs={"name": _somebody()}),
        "account": reverse("account"),
        "api-docs": reverse("api-docs"),
        "not-found": "/nothing-here/",
    }
    paths["experiment-new"] = reverse("experiment-new")
    paths["experiment-new-form"] = reverse("experiment-new-form")
    draft = drafts_for_list().first()
    if draft:
        where = {"slug": draft.slug}
        paths["draft"] = reverse("draft", kwargs=where)
        paths["draft-form"] = reverse("draft-form", kwargs=where)
        paths["draft-edit"] = reverse("draft-edit", kwargs=where)
    newest = list(Experiment.objects.order_by("-created_at", "-pk")[:2])
    experiment = newest[0] if newest else None
    if len(newest) > 1:
        paths["compared"] = f"{reverse('compare')}?a={newest[1].slug}&b={newest[0].slug}"
    if experiment:
        paths["experiment"] = reverse("experiment", kwargs={"slug": experiment.slug})
        cell = Cell.objects.filter(experiment=experiment).order_by("number").first()
        if cell:
            paths["cell"] = reverse(
                "cell", kwargs={"slug": experiment.slug, "sha12": cell.sha256[:12]}
            )
            pair = _telling_pair(cell)
            paths["pair"] = reverse("pair", kwargs={"uid": pair.uid})
    if job := Job.objects.order_by("-created_at", "-pk").first():
        paths["job"] = reverse("job", kwargs={"uid": job.uid})
    skill = Skill.objects.order_by("slug").first()
    if skill:
        paths["skill"] = reverse("skill", kwargs={"slug": skill.slug})
    for name, found in (("library", newest_libraries()), ("suite", newest_benchmarks())):
        if first := found.order_by("slug").first():
            paths[name] = reverse(name, kwargs={"slug": first.slug})
    return paths


def _somebody() -> str:
    """Return the name of an annotator, or of whoever there is."""
    found = people().exclude(username=USER)
    somebody = found.filter(role=Role.ANNOTATOR).first() or found.first()
    return somebody.get_username() if somebody else USER


def _telling_pair(cell: Cell) -> Pair:
    """Return a lost pair, or any."""
    lost = Outcome.objects.filter(pair__cell=cell, transition="harmful", retrieved=True).first()
    found: Pair = lost.pair if lost else Pair.objects.filter(cell=cell).order_by("pk")[0]
    return found


def _save(page: Any, path: Path) -> None:
    page.screenshot(path=str(path), full_page=True)


@contextlib.contextmanager
def _browser(playwright: Any, path: str) -> Iterator[Any]:
    browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_FLAGS))
    try:
        yield browser
    finally:
        browser.close()
