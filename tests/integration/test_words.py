"""One glossary drives screen, addresses and documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.template import Context, Template
from django.test import Client, RequestFactory
from django.urls import reverse

from runs.models import ExperimentStatus
from tests.architecture.test_urls import patterns
from tests.factories import make_user
from tests.htmlchecks import Page, faults_of
from workbench.glossary import MEANINGS, SECTIONS
from workbench.kernel.roles import Role
from workbench.notices import SAID, NoticeKind

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted(ROOT.joinpath("templates").rglob("*.html"))

# Segments of addresses that are no word of the domain: actions, parts of pages, and the house's.
PLAIN = {
    "api", "v1", "docs", "schema", "health", "ready", "theme", "glossary", "sign-in", "sign-out",
    "link", "reset-link", "account", "email", "mail", "password", "password-resets", "reset",
    "invite", "deactivate", "reactivate", "revoke", "new", "edit", "clone", "compare", "start",
    "pause", "resume", "cancel", "retry", "discard", "validate", "estimate", "upload", "remove",
    "test", "read", "progress", "report", "text", "file", "download", "form", "toml", "rescore",
}  # fmt: skip


def singular(word: str) -> str:
    key = word.replace("-", "_")
    if key.endswith("ies"):
        return key[:-3] + "y"
    return key[:-1] if key.endswith("s") and not key.endswith("ss") else key


# Words whose entry stands under another key.
ENTRY_OF = {
    "people": "role",
    "versions": "skill_version",
    "entries": "skill_version",
    "subscriptions": "digest",
}


def known(word: str) -> bool:
    key = singular(word)
    return bool({key, word.replace("-", "_"), ENTRY_OF.get(word, key)} & set(MEANINGS))


def test_every_term_of_a_template_has_an_entry() -> None:
    unknown = {
        (path.name, key)
        for path in TEMPLATES
        for key in re.findall(r"{%\s*(?:term|meaning)\s+\"([^\"]+)\"", path.read_text())
        if key not in MEANINGS
    }
    assert unknown == set()


def test_every_noun_of_an_address_has_an_entry() -> None:
    segments = {
        segment
        for route, _ in patterns()
        for segment in re.sub(r"<[^>]*>|\(\?P.*?\)|[\^$\\]", "", route).split("/")
        if re.fullmatch(r"[a-z][a-z0-9_-]*", segment)
    }
    assert "experiments" in segments
    unknown = sorted(one for one in segments - PLAIN if not known(one))
    assert not unknown, f"a noun needs a line in the glossary, a verb one in PLAIN: {unknown}"


@pytest.mark.django_db
def test_every_word_of_the_navigation_has_an_entry(client: Client) -> None:
    client.force_login(make_user("ada", Role.ADMIN))
    html = client.get(reverse("glossary")).content.decode()
    nav = html.partition('aria-label="Main"')[2].partition("</nav>")[0]
    labels = re.findall(r">([A-Z][a-z ]+)</a>", nav)
    assert "Experiments" in labels
    assert [
        one for one in labels if one not in ("Home", "Glossary") and not known(one.lower())
    ] == []


def test_keys_are_said_once_and_every_one_is_an_anchor_of_the_page() -> None:
    keys = [entry.key for section in SECTIONS for entry in section.entries]
    assert len(keys) == len(set(keys))


@pytest.mark.django_db
def test_the_glossary_page_has_an_address_for_every_word(client: Client) -> None:
    client.force_login(make_user("ann", Role.ANNOTATOR))
    html = client.get(reverse("glossary")).content.decode()
    page = Page(html)
    assert set(MEANINGS) <= set(page.ids)
    assert faults_of(html) == []


def render(text: str, **headers: str) -> str:
    request = RequestFactory().get("/somewhere/", headers=headers)
    return Template("{% load workbench %}" + text).render(Context({"request": request}))


def test_a_term_that_stands_twice_has_two_ids() -> None:
    page = Page(render('<p>{% term "rae" "it" %} and {% term "rae" %} and {% term "pair" %}</p>'))
    assert len(page.ids) == len(set(page.ids)) == 3
    assert [one["popovertarget"] for one in page.all("button")] == page.ids
    assert page.faults == []


def test_a_term_of_a_fragment_has_an_id_that_its_page_has_not() -> None:
    text = '{% term "rae" %}'
    assert set(Page(render(text)).ids).isdisjoint(Page(render(text, **{"HX-Request": "true"})).ids)
    # And where nothing is known of the request.
    bare = Template("{% load workbench %}" + text)
    assert bare.render(Context({})) != bare.render(Context({}))


def test_an_unknown_term_fails_instead_of_showing_nothing() -> None:
    with pytest.raises(KeyError):
        render('{% term "no-such-word" %}')


def test_terms_stand_in_no_other_control() -> None:
    """A button in a label, link, button or summary is invalid, and can't be reached well."""
    for path in TEMPLATES:
        for tag in ("label", "a", "button", "summary", "option", "title"):
            inside = re.findall(rf"<{tag}[ >][^<]*(?:<(?!/{tag}>)[^<]*)*", path.read_text())
            assert not [one for one in inside if "{% term" in one], (path.name, tag)


LETTERS = re.compile(r"\b(?:helpful|harmful|both[ -]pass\b|both[ -]fail\b)", re.IGNORECASE)


def test_pages_and_documents_say_won_and_lost() -> None:
    """The codes stay in JSON, in classes and comparisons; what people read says won and lost."""
    for path in TEMPLATES:
        read = re.sub(r"{%.*?%}|{{.*?}}|<[^>]*>", "", path.read_text(), flags=re.DOTALL)
        assert not LETTERS.search(read), path.name
    for path in [*ROOT.joinpath("docs").glob("*.md"), ROOT / "README.md"]:
        for line in path.read_text().splitlines():
            plain = re.sub(r"`[^`]*`", "", line)
            if LETTERS.search(plain):
                assert "codes: " in plain or "Harmful flip" in plain, (path.name, line)


def test_the_states_that_pages_show_are_explained() -> None:
    said = MEANINGS["experiment_status"].meaning
    assert [status.value for status in ExperimentStatus if status.value not in said] == []
    notices = ROOT.joinpath("docs/notices.md").read_text()
    assert [kind.value for kind in NoticeKind if f"`{kind.value}`" not in notices] == []
    assert set(SAID) == set(NoticeKind)
