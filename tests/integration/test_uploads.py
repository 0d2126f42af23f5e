"""Uploading libraries: what is stored, what is refused and why, and what pages show of it."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from skills.domain.ziplibrary import MAX_ZIP_BYTES
from skills.models import Library, LibraryEntry, Skill, SkillVersion, Status
from skills.selectors import difference
from tests.factories import make_experiment, make_library, make_user
from tests.htmlchecks import Page, faults_of
from workbench.kernel.roles import Role
from workbench.models import AuditEvent
from workbench.tokens import Scope, create_token

pytestmark = pytest.mark.django_db

PAGE = "/libraries/new/"
API = "/api/v1/libraries/"
# Markup, steering characters, terminal codes and template code, as names and as text.
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<svg/onload=alert(1)>",
    "[x](javascript:alert(1)) ![y](http://evil.example/z.png)",
    "\u202egnp.exe",
    "zero\u200bwidth\ufeff",
    "\x1b[31mred\x1b[0m",
    "{{ 7*7 }}{% load x %}",
    "=cmd|' /C calc'!A0",
)


def skill(name: str, body: str = "Body", description: str = "d") -> bytes:
    return f"---\nname: {name}\ndescription: {description}\n---\n{body}\n".encode()


def packed(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def attached(members: Mapping[str, bytes] | bytes, name: str = "pool.zip") -> SimpleUploadedFile:
    data = members if isinstance(members, bytes) else packed(members)
    return SimpleUploadedFile(name, data, content_type="application/zip")


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


@pytest.fixture
def api() -> Client:
    user = make_user("ada", Role.LEAD)
    _, text = create_token(user=user, name="t", scopes=[Scope.READ, Scope.WRITE], at=timezone.now())
    return Client(headers={"Authorization": f"Bearer {text}"})


def upload(client: Client, members: Mapping[str, bytes] | bytes, **form: str) -> tuple[int, Page]:
    """Return status and page; the page keeps to the rules of every page."""
    response = client.post(PAGE, {"library": "mine", "file": attached(members), **form})
    html = response.content.decode()
    assert faults_of(html) == []
    return response.status_code, Page(html)


# --- what is stored ---------------------------------------------------------------


def test_a_zip_becomes_a_library_and_the_page_says_what_came_of_it(lead: Client) -> None:
    status, page = upload(lead, {"a/SKILL.md": skill("one"), "b/SKILL.md": skill("two")})
    assert status == 200
    assert "mine@1" in page.text
    assert re.search(r"New skills\s*2", page.text)
    status, page = upload(lead, {"a/SKILL.md": skill("one", "Changed"), "c/SKILL.md": skill("x")})
    assert "mine@2" in page.text
    assert re.search(r"New skills\s*1\s*New versions of skills\s*1\s*Unchanged\s*0", page.text)
    library = Library.objects.get(slug="mine", number=2)
    held = LibraryEntry.objects.filter(library=library).values_list(
        "skill_version__skill__slug", "skill_version__number"
    )
    assert sorted(held) == [("one", 2), ("x", 1)]
    event = AuditEvent.objects.order_by("-pk")[0]
    assert (event.verb, event.subject, event.actor.username) == (  # type: ignore[union-attr]
        "library.uploaded",
        "mine, number 2",
        "lee",
    )


def test_the_same_zip_again_stores_nothing_and_says_so(lead: Client) -> None:
    members = {"a/SKILL.md": skill("one")}
    upload(lead, members)
    status, page = upload(lead, members)
    assert status == 200
    assert "held exactly these skills before" in page.text
    assert (Library.objects.count(), SkillVersion.objects.count()) == (1, 1)


def test_what_was_corrected_is_told_and_companions_are_kept_by_name(lead: Client) -> None:
    text = b"---\nname: one\ndescription: Use for overlaps: sort\n---\nBody\n"
    _, page = upload(lead, {"a/SKILL.md": text, "a/run.py": b"x"})
    assert "Read with a correction" in page.text
    assert SkillVersion.objects.get().companions == ["run.py"]


# --- what is refused --------------------------------------------------------------


def test_an_unsafe_zip_is_refused_with_every_member_and_the_form_keeps_what_was_typed(
    lead: Client,
) -> None:
    status, page = upload(
        lead, {"a/SKILL.md": skill("one"), "../b/SKILL.md": b"x", "/c": b"x"}, skip_invalid="1"
    )
    assert status == 400
    assert "its path leads out of the archive" in page.text
    assert "its path is absolute" in page.text
    [name] = [field for field in page.all("input") if field.get("name") == "library"]
    assert name["value"] == "mine"
    [skip] = [field for field in page.all("input") if field.get("name") == "skip_invalid"]
    assert "checked" in skip
    assert not Skill.objects.exists()


def test_an_invalid_skill_stops_the_import_unless_the_rest_is_wanted(lead: Client) -> None:
    members = {
        "a/SKILL.md": skill("one"),
        "b/SKILL.md": b"---\nname: two\ntype: magic\ndescription: d\n---\n",
        "c/SKILL.md": skill("twin"),
        "d/SKILL.md": skill("Twin", "other"),
    }
    status, page = upload(lead, members)
    assert status == 400
    assert "nothing was imported: 2 places must be corrected first" in page.text
    assert "b/SKILL.md" in page.text
    assert "c/SKILL.md" in page.text
    assert not Library.objects.exists()
    status, page = upload(lead, members, skip_invalid="1")
    assert status == 200
    assert re.search(r"Left out\s*3", page.text)
    assert [s.slug for s in Skill.objects.all()] == ["one"]


def test_a_quarantined_skill_is_not_frozen(lead: Client) -> None:
    upload(lead, {"a/SKILL.md": skill("one")})
    Skill.objects.update(status=Status.QUARANTINED)
    status, page = upload(lead, {"a/SKILL.md": skill("one"), "b/SKILL.md": skill("two")})
    assert status == 400
    assert "holds quarantined skills: one" in page.text
    assert not Skill.objects.filter(slug="two").exists(), "nothing of it is stored"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"library": "My Library"}, "such as my-library"),
        ({"library": ""}, "write it in small letters"),
        ({"library": "new"}, "new is the address of the upload form"),
        ({"library": "x" * 101}, "at most 100"),
        ({"file": None}, "choose a .zip"),
        ({"file": attached({"README.md": b"x"})}, "holds no SKILL.md"),
        ({"file": attached(b"no zip")}, "it isn't a zip"),
    ],
)
def test_a_form_that_cannot_be_used_says_why_beside_its_field(
    lead: Client, form: dict[str, Any], said: str
) -> None:
    given = {"library": "mine", "file": attached({"a/SKILL.md": skill("one")}), **form}
    response = lead.post(PAGE, {name: value for name, value in given.items() if value is not None})
    html = response.content.decode()
    assert response.status_code == 400
    assert faults_of(html) == []
    assert said in Page(html).text
    assert 'role="alert"' in html
    assert not Library.objects.exists()


def test_a_field_that_the_form_does_not_have_is_refused(lead: Client) -> None:
    form = {"library": "mine", "file": attached({"a/SKILL.md": skill("one")}), "status": "active"}
    assert lead.post(PAGE, form).status_code == 400
    assert not Skill.objects.exists()


def test_annotators_may_neither_see_the_form_nor_upload(client: Client) -> None:
    client.force_login(make_user("ann", Role.ANNOTATOR))
    form = {"library": "mine", "file": attached({"a/SKILL.md": skill("one")})}
    assert client.get(PAGE).status_code == 403
    assert client.post(PAGE, form).status_code == 403
    assert client.post(API, form).status_code in (401, 403)
    assert not Skill.objects.exists()


# --- sizes ------------------------------------------------------------------------


def test_a_form_that_is_too_large_is_refused_before_its_file_is_kept(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kept(*_: object, **__: object) -> None:
        raise AssertionError("a file was stored")

    monkeypatch.setattr("django.core.files.uploadhandler.TemporaryFileUploadHandler.new_file", kept)
    response = lead.post(PAGE, {"library": "mine", "file": attached(bytes(MAX_ZIP_BYTES + 70_000))})
    assert response.status_code == 413
    html = response.content.decode()
    assert faults_of(html) == []
    assert "this page takes 20.1" in Page(html).text.replace("\xa0", " ")
    # One that no page takes, for a page that takes no file.
    response = lead.post(reverse("theme"), {"theme": "x" * 2_600_000})
    assert response.status_code == 413


def test_a_form_of_just_the_largest_size_is_read(lead: Client) -> None:
    status, page = upload(lead, bytes(MAX_ZIP_BYTES))
    assert status == 400
    assert "it isn't a zip" in page.text
    assert list(Path(settings.UPLOADS_DIR).iterdir()) == [], "nothing is left"


def test_an_endpoint_refuses_what_is_too_large_in_the_one_shape(api: Client) -> None:
    response = api.post(
        f"{API}?library=mine", bytes(MAX_ZIP_BYTES + 70_000), content_type="application/zip"
    )
    assert response.status_code == 413
    assert response.json()["error"] == "too_large"
    response = api.post(
        f"{API}?library=mine", bytes(MAX_ZIP_BYTES + 1), content_type="application/zip"
    )
    assert response.status_code == 413


# --- the API ----------------------------------------------------------------------


def test_a_form_and_a_bare_zip_do_the_same(api: Client) -> None:
    members = {"a/SKILL.md": skill("one"), "b/SKILL.md": b"none"}
    response = api.post(API, {"library": "mine", "file": attached(members)})
    assert response.status_code == 400
    [said] = response.json()["fields"]["file"]
    assert said.startswith("b/SKILL.md:1: the file has no front matter")
    response = api.post(
        f"{API}?library=mine&skip_invalid=true", packed(members), content_type="application/zip"
    )
    assert response.status_code == 201, response.content
    body = response.json()
    assert body["added"] == ["one"]
    assert body["left_out"] == [said]
    assert (body["library"]["slug"], body["library"]["number"]) == ("mine", 1)
    entries = api.get(body["library"]["entries_url"]).json()["results"]
    assert [(entry["slug"], entry["version"]) for entry in entries] == [("one", 1)]
    again = api.post(API, {"library": "mine", "file": attached(members), "skip_invalid": "true"})
    assert again.json()["same"] is True


def test_the_api_names_every_member_of_an_unsafe_zip(api: Client) -> None:
    response = api.post(API, {"library": "mine", "file": attached({"../a": b"x", "/b": b"x"})})
    assert response.status_code == 400
    assert [line[:6] for line in response.json()["fields"]["file"]] == ["../a: ", "/b: it"]
    assert not Library.objects.exists()


def test_the_api_refuses_names_bodies_and_scopes(api: Client) -> None:
    members = {"a/SKILL.md": skill("one")}
    response = api.post(API, {"library": "No Slug", "file": attached(members)})
    assert response.json()["fields"] == {
        "library": [
            "write it in small letters, digits and hyphens, at most 100 of them, such as no-slug"
        ]
    }
    assert api.post(API, {"library": "mine"}).json()["fields"].keys() == {"file"}
    assert api.post(f"{API}?library=mine", b"", content_type="application/zip").status_code == 400
    reader = make_user("ria", Role.LEAD)
    _, text = create_token(user=reader, name="t", scopes=[Scope.READ], at=timezone.now())
    reading = Client(headers={"Authorization": f"Bearer {text}"})
    assert reading.get(API).status_code == 200
    form = {"library": "mine", "file": attached(members)}
    assert reading.post(API, form).status_code == 403
    Skill.objects.create(slug="one", status=Status.QUARANTINED)
    response = api.post(API, {"library": "mine", "file": attached(members)})
    assert (response.status_code, response.json()["error"]) == (409, "conflict")


def test_an_upload_with_a_key_is_done_once(api: Client) -> None:
    headers = {"Idempotency-Key": "k1"}
    members = {"a/SKILL.md": skill("one")}
    form = {"library": "mine", "file": attached(members)}
    first = api.post(API, form, headers=headers)
    second = api.post(API, {"library": "mine", "file": attached(members)}, headers=headers)
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json()
    assert AuditEvent.objects.filter(verb="library.uploaded").count() == 1


def test_skills_and_libraries_are_read_as_json(api: Client) -> None:
    make_library("coding")
    found = api.get("/api/v1/skills/?library=coding&status=candidate").json()["results"]
    assert [one["slug"] for one in found] == ["edge-case-guard", "prefix-sum", "two-pointer"]
    assert found[0]["libraries"] == ["coding"]
    assert api.get("/api/v1/skills/two-pointer/").json()["versions"] == 1
    [version] = api.get("/api/v1/skills/two-pointer/versions/").json()["results"]
    assert version["body"].startswith("# Two pointers")
    assert api.get("/api/v1/libraries/coding/").json()["skills"] == 3
    assert api.get("/api/v1/skills/?library=none").json()["results"] == []
    for query in ("status=gone", "versions__body=x", "sort=body", "library__slug=x"):
        response = api.get(f"/api/v1/skills/?{query}")
        assert response.status_code == 400, query
        assert response.json()["error"] == "invalid"
    for path in ("skills/none/", "skills/none/versions/", "libraries/none/"):
        assert api.get(f"/api/v1/{path}").status_code == 404


# --- pages of libraries -----------------------------------------------------------


def test_a_version_shows_what_it_changed_and_who_used_it(lead: Client) -> None:
    before = make_library("coding", {"a": "1", "b": "1", "c": "1"})
    make_experiment("panel", library=before)
    after = make_library("coding", {"b": "2", "c": "1", "d": "1"})
    found = difference(before, after, most=10)
    assert [(c.slug, c.before, c.after) for c in found.changed] == [("b", 1, 2)]
    assert [c.slug for c in found.added] == ["d"]
    assert [c.slug for c in found.removed] == ["a"]
    text = Page(lead.get("/libraries/coding/").content.decode()).text
    assert re.search(r"Added\s*1\s*Removed\s*1\s*Another text\s*1", text)
    assert re.search(r"panel\s*version 1", text)
    older = Page(lead.get("/libraries/coding/versions/1/").content.decode()).text
    assert "What it changed" not in older
    assert "the newest version" in older
    assert lead.get("/libraries/coding/versions/3/").status_code == 404
    assert lead.get("/libraries/none/").status_code == 404


def test_lists_refuse_what_they_do_not_have(lead: Client) -> None:
    make_library("coding")
    for path in ("/skills/", "/libraries/", "/libraries/coding/", "/suites/"):
        assert lead.get(f"{path}?sort=body").status_code == 404, path
        assert lead.get(f"{path}?skill_version__body__startswith=x").status_code == 404, path
        assert lead.get(f"{path}?cursor=x").status_code == 404, path


def test_empty_lists_name_the_next_step(lead: Client) -> None:
    for path in ("/skills/", "/libraries/"):
        assert 'href="/libraries/new/"' in lead.get(path).content.decode(), path
    assert 'href="/suites/new/"' in lead.get("/suites/").content.decode()


def test_skills_are_paged_filtered_and_sorted_with_few_queries(lead: Client) -> None:
    make_library("few", {"a": "1"})
    versions = SkillVersion.objects
    Skill.objects.bulk_create(Skill(slug=f"skill-{n:04}") for n in range(1_000))
    some = Skill.objects.filter(slug__startswith="skill-")
    versions.bulk_create(
        SkillVersion(skill=s, number=1, name=s.slug, type="guard", body="b", sha256=s.slug)
        for s in some
    )
    library = Library.objects.create(slug="many", number=1, sha256="0" * 64)
    LibraryEntry.objects.bulk_create(
        LibraryEntry(library=library, skill_version=v) for v in versions.filter(type="guard")
    )
    lead.get("/skills/")  # what the first request of a session does
    with CaptureQueriesContext(connection) as few:
        lead.get("/skills/?library=few")
    with CaptureQueriesContext(connection) as many:
        response = lead.get("/skills/?library=many&sort=-slug")
    assert len(many) == len(few) < 20
    page = Page(response.content.decode())
    assert "skill-0999" in page.text
    assert "skill-0949" not in page.text
    [url] = [
        a["href"]
        for a in page.all("a")
        if a["href"].startswith("/skills/?") and "cursor" in a["href"]
    ]
    second = Page(lead.get(url).content.decode())
    assert "skill-0949" in second.text
    assert "skill-0950" not in second.text
    with CaptureQueriesContext(connection) as entries:
        shown = Page(lead.get("/libraries/many/").content.decode())
    assert len(entries) < 20
    assert "skill-0049" in shown.text
    assert "skill-0050" not in shown.text


# --- what strangers wrote (S9) ----------------------------------------------------


def test_hostile_names_texts_and_paths_are_inert(lead: Client) -> None:
    members = {"ok/SKILL.md": skill("ok")}
    for n, text in enumerate(HOSTILE):
        plain = text.replace("\x1b", "")
        members[f"{n}/SKILL.md"] = skill(f'"{n} {plain}"'.replace('"><', "'><"), text, "d")
        members[f"{n}/{plain.replace('/', '')}.txt"] = b"x"
    members["bad" + HOSTILE[0].replace("/", "") + "/SKILL.md"] = b"---\nname: <b>x</b>\n---\n"
    members["esc\x1b[31m/SKILL.md"] = b"none"
    pages = []
    response = lead.post(PAGE, {"library": "mine", "file": attached(members)})
    assert response.status_code == 400
    pages.append(response.content.decode())
    response = lead.post(PAGE, {"library": "mine", "file": attached(members), "skip_invalid": "1"})
    pages.append(response.content.decode())
    assert response.status_code == 200, Page(pages[-1]).text
    response = lead.post(
        PAGE, {"library": HOSTILE[1], "file": attached(packed({"../" + HOSTILE[2]: b"x"}))}
    )
    pages.append(response.content.decode())
    response = lead.post(
        PAGE, {"library": "mine", "file": attached(packed({"../" + HOSTILE[2]: b"x"}))}
    )
    pages.append(response.content.decode())
    for name in HOSTILE:
        form = {"library": "mine", "file": attached({"README.md": b"x"}, name=f"{name}.zip")}
        pages.append(lead.post(PAGE, form).content.decode())
    pages += [lead.get(path).content.decode() for path in ("/libraries/mine/", "/skills/")]
    pages += [
        lead.get(reverse("skill", kwargs={"slug": found.slug})).content.decode()
        for found in Skill.objects.all()
    ]
    for html in pages:
        assert faults_of(html) == []
        assert_inert(html)


def assert_inert(html: str) -> None:
    page = Page(html)
    assert len(page.all("script")) == 1, "the page's own"
    assert not page.all("svg")
    assert all(image["src"].startswith("/static/") for image in page.all("img"))
    assert not [tag for tag, a in page.elements for name in a if name.startswith("on")]
    assert not [a for _, a in page.elements if "javascript:" in a.get("href", "").lower()]
    assert not re.search("[\x1b\u202e\u200b\ufeff]", html)
    assert "49" not in re.findall(r"\{\{ 7\*7 \}\}|49(?=\{%)", html)


def test_an_older_text_again_says_that_new_experiments_search_the_newer_one(lead: Client) -> None:
    first = {"a/SKILL.md": skill("one")}
    upload(lead, first)
    upload(lead, {"a/SKILL.md": skill("one", "Changed")})
    _, page = upload(lead, first)
    assert "Version 1 holds exactly these skills" in page.text
    assert "New experiments still search version 2" in page.text
    assert 'library = "mine@1"' in page.text
    # The newest one again needs no advice.
    _, page = upload(lead, {"a/SKILL.md": skill("one", "Changed")})
    assert "still search" not in page.text
