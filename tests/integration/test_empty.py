"""Where nothing is listed yet, every page says what to do next, and the reader may do it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from tests.factories import cells_of, finished_experiment, make_user
from tests.htmlchecks import faults_of
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db

# Every page that lists things; the home of each role lists what there is to do.
LISTS = (
    "home", "experiments", "skills", "libraries", "suites", "exports", "compare", "people",
    "account", "notices", "webhooks",
)  # fmt: skip
# Some lists are never empty: whoever looks at people is one of them.
NEVER_EMPTY = {"people"}
ROLES = (Role.ADMIN, Role.LEAD, Role.ANNOTATOR, None)
OPEN_TO_ALL = {"home", "account"}
OPEN_TO_ADMINS = {"webhooks"}


class Empties(HTMLParser):
    """What stands in the parts of a page that say that nothing is there, links apart."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.links: list[str] = []
        self.commands = 0
        self._open: list[str] = []
        self._inside: int | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        classes = (attributes.get("class") or "").split()
        if self._inside is None and {"empty", "empty-line"} & set(classes):
            self._inside = len(self._open)
            self.parts.append("")
        if self._inside is not None:
            if tag == "a":
                self.links.append(attributes["href"] or "")
            self.commands += "command" in classes
        if tag not in ("input", "br", "img", "meta", "link", "option"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if self._inside is not None and len(self._open) <= self._inside:
            self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.parts[-1] += data


def may_open(name: str, role: Role | None) -> bool:
    if name in OPEN_TO_ALL:
        return True
    return role is Role.ADMIN or (role is Role.LEAD and name not in OPEN_TO_ADMINS)


@pytest.mark.parametrize("role", ROLES, ids=str)
@pytest.mark.parametrize("name", LISTS)
def test_an_empty_list_names_a_next_action_that_its_reader_may_take(
    client: Client, settings: Any, name: str, role: Role | None
) -> None:
    settings.WEBHOOK_HOSTS = ["hooks.example"]
    client.force_login(make_user("reader", role))
    response = client.get(reverse(name))
    if not may_open(name, role):
        assert response.status_code == 403
        return
    assert response.status_code == 200
    html = response.content.decode()
    assert faults_of(html) == []
    if name in NEVER_EMPTY:
        return
    found = Empties(html)
    if name in OPEN_TO_ALL and role not in (Role.ADMIN, Role.LEAD):
        # Nothing is listed to them; the page's own links are what there is to do.
        main = html.partition("<main")[2].partition("</main>")[0]
        links = re.findall(r'<a [^>]*href="([^"]+)"', main)
        assert links or name == "account"
    else:
        links = found.links
        assert found.parts, "an empty list says so in .empty or .empty-line"
        assert links or found.commands, f"{name} names no next action"
    for link in links:
        path, _, anchor = link.partition("#")
        if path:
            assert client.get(path).status_code == 200, (name, link)
        else:
            assert f'id="{anchor}"' in html, (name, link)


def test_lists_of_nothing_under_a_filter_lead_back_to_the_whole(client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    experiment = finished_experiment("panel", retrieved="a")
    cell = cells_of(experiment)[0]
    of_cell = reverse("cell", kwargs={"slug": "panel", "sha12": cell.sha256[:12]})
    for url, query in (
        (reverse("experiments"), "status=paused"),
        (of_cell, "transition=harmful"),
        (reverse("notices"), "kind=budget_reached"),
        (reverse("notices"), "unread=true"),
        (reverse("people"), "role=annotator"),
        (reverse("skills"), "status=quarantined"),
    ):
        response = client.get(f"{url}?{query}")
        assert response.status_code == 200, url
        found = Empties(response.content.decode())
        assert "under this filter" in " ".join(found.parts), (url, found.parts)
        [back] = found.links
        assert back.partition("#")[0] == url
        assert client.get(back).status_code == 200
