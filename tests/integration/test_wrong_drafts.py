"""Drafts of any content: told what is wrong with them, by line, wherever they are shown."""

from __future__ import annotations

import contextlib
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from runs.domain import filetext
from runs.domain.plan import InvalidExperiment, parse_experiment
from runs.models import ExperimentDraft
from runs.services.drafting import UnreadableFile, clone_draft, file_text
from runs.services.naming import check_names
from tests.drafts import TOML, make_draft, store_suite
from tests.factories import make_user
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db

API = "/api/v1/drafts/"
WRONG = {
    "a URL that is a number": (TOML.replace('"scripted:mixed"', "5"), 7, "base_url"),
    "a URL that is none": (TOML.replace("scripted:mixed", "http://["), 7, "base_url"),
    "a nested slug": (TOML.replace('"panel"', "[" * 3_000), 2, "nested too deeply"),
    "a slug that is a list": (TOML.replace('"panel"', "[]"), 2, "slug"),
    "a number of 5,000 digits": (TOML.replace("seed = 7", f"seed = {'9' * 5_000}"), 3, "200"),
    "a number of 5,000 hex digits": (TOML.replace("= 7", f"= 0x{'f' * 5_000}"), 3, "200"),
    "a number of 70 bits": (TOML.replace("seed = 7", f"seed = {2**69}"), 3, "70 bits"),
    "a price of nan": (TOML.replace("price_in = 1", "price_in = nan"), 8, "nan and inf"),
    "an endless timeout": (TOML.replace("price_in = 1", "timeout_s = inf"), 8, "nan and inf"),
    "a temperature beyond floats": (TOML + "temperature = 1e999\n", 16, "nan and inf"),
    "a budget of nan": (TOML + "[budget]\ncost = nan\n", 17, "nan and inf"),
    "dots": (TOML + ".".join("a" * 9_000) + " = 1\n", 16, "dots"),
    "a steering escape": (TOML.replace('"scripted"', '"a\\u202eb"'), 6, "U+202E"),
}


@pytest.fixture(autouse=True)
def suite(tmp_path: Path, settings: Any) -> None:
    settings.DATA_DIR = tmp_path
    store_suite(tmp_path)


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    client.raise_request_exception = True
    return client


def look_everywhere(client: Client, toml: str) -> list[dict[str, Any]]:
    """Hand a file in by every way and look at it; return its problems by API."""
    given = {"toml": toml}
    response = client.post(API, given, content_type="application/json")
    if response.status_code == 400:  # what isn't kept is told as a fault of the request
        with pytest.raises(UnreadableFile):
            file_text(toml)
        return []
    assert response.status_code == 201, response.content
    draft = response.json()
    slug = draft["slug"]
    saved = client.put(f"{API}{slug}/", {**given, "revision": 1}, content_type="application/json")
    assert saved.status_code == 200, saved.content
    slug = saved.json()["slug"]
    for name in ("draft", "draft-edit"):
        assert client.get(reverse(name, kwargs={"slug": slug})).status_code == 200
    assert client.get(reverse("draft-form", kwargs={"slug": slug})).status_code in (200, 302)
    check = client.get(f"{API}{slug}/validate/")
    assert check.status_code == 200, check.content
    clone = client.post(f"{API}{slug}/clone/", {}, content_type="application/json")
    assert clone.status_code == 201, clone.content
    assert client.get(reverse("draft", kwargs={"slug": clone.json()["slug"]})).status_code == 200
    with contextlib.suppress(InvalidExperiment):  # as the command does
        parse_experiment(toml, path="a.toml")
        check_names(text=toml, path="a.toml")
    found: list[dict[str, Any]] = check.json()["problems"]
    return found


@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_draft_is_shown_with_its_line(lead: Client, name: str) -> None:
    toml, line, words = WRONG[name]
    found = look_everywhere(lead, toml)
    assert any(one["line"] == line and words in one["message"] for one in found), found


VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.sampled_from(["http://[", "a" * 300, 2**64, "new"]),
    st.dates(),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)
KEYS = [line.partition(" = ")[0] for line in TOML.splitlines() if " = " in line]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=3))
def test_no_value_of_any_key_breaks_a_page(lead: Client, changes: dict[str, Any]) -> None:
    data = tomllib.loads(TOML)
    for key, value in changes.items():
        for table in (data, *data["model"], *data["benchmark"], *data["cell"]):
            if key in table and value is None:
                del table[key]
            elif key in table:
                table[key] = value
    try:
        toml = tomli_w.dumps(data)
    except ValueError:
        return
    ExperimentDraft.objects.all().delete()
    look_everywhere(lead, toml)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(alphabet="ab1.=,[]{}\"'#\\\n -é", max_size=80))
def test_no_text_breaks_a_page(lead: Client, text: str) -> None:
    assume(text.strip())
    ExperimentDraft.objects.all().delete()
    look_everywhere(lead, text)


def test_a_request_reads_a_file_once(lead: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = make_draft()
    read: list[str] = []
    loads = tomllib.loads

    def counted(text: str) -> dict[str, Any]:
        read.append(text)
        return loads(text)

    monkeypatch.setattr(filetext.tomllib, "loads", counted)
    changed = TOML.replace("seed = 7", "seed = 8")
    lead.post(
        reverse("draft-edit", kwargs={"slug": draft.slug}),
        {"toml": changed, "revision": "1"},
        follow=True,
    )
    assert read == [changed]


@pytest.mark.parametrize("character", ["\x1b", "\x7f", "\u200b", "\u202e", "\ufeff", "\u2028"])
def test_characters_that_nobody_sees_are_refused_by_line_and_point(
    lead: Client, character: str
) -> None:
    toml = TOML.replace("seed = 7", f"seed = 7 # {character}")
    said = f"line 3 holds U+{ord(character):04X}"
    with pytest.raises(UnreadableFile, match=f"line 3 holds U\\+{ord(character):04X}"):
        file_text(toml)
    with pytest.raises(UnreadableFile, match="line 3 holds"):
        file_text(toml.encode())
    response = lead.post(reverse("experiment-new"), {"toml": toml})
    assert response.status_code == 400
    assert said in response.content.decode()
    response = lead.post(API, {"toml": toml}, content_type="application/json")
    assert (response.status_code, said in response.content.decode()) == (400, True)
    assert file_text(TOML.replace("seed = 7", "seed =\t7 # ü")) == TOML.replace(
        "seed = 7", "seed =\t7 # ü"
    )


def test_a_clone_of_a_broken_draft_is_a_draft() -> None:
    draft = make_draft('slug = """\nx"""\n' + "[" * 40_000)
    clone = clone_draft(slug=draft.slug, actor=None, at=timezone.now())
    assert clone.slug != draft.slug
