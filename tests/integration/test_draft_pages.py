"""Drafts in the browser: form, file and clone; what is wrong by field; conflict; start and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.drafts import (
    EndpointChoice,
    NotInForm,
    form_of,
    has_comments,
    toml_of,
    write_form,
)
from runs.domain.pauses import advice_on
from runs.domain.plan import CellSpec, ModelSpec, parse_experiment
from runs.models import Experiment, ExperimentDraft, ExperimentStatus
from runs.services.drafting import draft_by_slug, save_draft
from runs.services.launching import ESTIMATE_TASK, START_TASK, estimate_of
from runs.views.drafts import _too_few
from runs.views.live import budget_from
from tests.drafts import TOML, estimate, make_draft, start, store_suite, work_off
from tests.experiments import make_spec, run_left
from tests.factories import finished_experiment, make_user, set_status
from tests.htmlchecks import Page, faults_of
from workbench.kernel.roles import Role
from workbench.llm.endpoints import endpoints_file
from workbench.models import AuditEvent, Call, Job

pytestmark = pytest.mark.django_db

FORM = {
    "slug": "panel",
    "preset": "default",
    "replicates": "1",
    "seed": "7",
    "failure_policy": "",
    "calls": "",
    "tokens": "",
    "cost": "",
    "revision": "0",
    "model-count": "1",
    "model-0-endpoint": "scripted",
    "model-0-id": "scripted",
    "model-0-price_in": "1",
    "model-0-price_out": "2",
    "benchmark-count": "1",
    "benchmark-0-suite": "counting",
    "benchmark-0-size": "",
    "cell-count": "1",
    "cell-0-library": "coding",
    "cell-0-control": ["normal"],
    "cell-0-k": "3",
}


@pytest.fixture(autouse=True)
def suite(tmp_path: Path, settings: Any) -> None:
    settings.DATA_DIR = tmp_path
    store_suite(tmp_path)


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


def post(client: Client, name: str, data: Any = None, status: int = 302, **where: Any) -> Any:
    response = client.post(reverse(name, kwargs=where or None), data or {})
    assert response.status_code == status, response.content.decode()[:3000]
    return response


def text_of(response: Any) -> str:
    return " ".join(Page(response.content.decode()).text.split())


# --- the form ---------------------------------------------------------------------


def test_a_form_becomes_a_draft_whose_file_says_the_same(lead: Client) -> None:
    response = post(lead, "experiment-new-form", {**FORM, "do": "save"})
    assert response["Location"] == "/experiments/drafts/panel/"
    draft = draft_by_slug("panel")
    assert draft.author is not None
    assert draft.author.username == "lee"
    spec = parse_experiment(draft.toml, path="")
    (model,) = spec.models
    assert (model.id, model.base_url, model.price_out) == ("scripted", "scripted:mixed", 2)
    assert spec.cells == (CellSpec(library="coding"),)
    assert (spec.seed, spec.benchmarks[0].suite) == (7, "counting")
    again = lead.get(reverse("draft-form", kwargs={"slug": "panel"})).content.decode()
    assert 'value="7"' in again
    assert '<option value="counting" selected>' in again


def test_check_counts_and_saves_nothing(lead: Client) -> None:
    data = {
        **FORM,
        "cell-0-control": ["normal", "schema_empty"],
        "cell-0-temperature": "0, 0.7",
        "replicates": "2",
        "benchmark-0-size": "5",
    }
    told = text_of(post(lead, "experiment-new-form", {**data, "do": "check"}, 200))
    # 5 tasks x 2 replicates x 2 controls x 2 temperatures = 40 pairs in 4 cells
    assert "= 4 cells with 40 pairs" in told
    assert not ExperimentDraft.objects.exists()


def test_a_press_on_add_or_remove_keeps_everything_typed(lead: Client) -> None:
    data = {**FORM, "slug": "half typed!", "benchmark-0-size": "nine"}
    html = post(lead, "experiment-new-form", {**data, "do": "add-model"}, 200).content.decode()
    assert faults_of(html) == []
    assert 'value="half typed!"' in html
    assert 'value="nine"' in html
    assert 'id="model-1-endpoint"' in html
    assert 'name="model-count" value="2"' in html
    two = {
        **data,
        "model-count": "2",
        "model-0-id": "first",
        "model-1-id": "second",
        "do": "remove-model-0",
    }
    html = post(lead, "experiment-new-form", two, 200).content.decode()
    assert 'value="second"' in html
    assert 'value="first"' not in html
    assert 'id="model-1-endpoint"' not in html


def test_each_fault_is_told_at_its_field_and_the_rest_is_kept(lead: Client) -> None:
    data = {
        **FORM,
        "slug": "Not A Slug",
        "model-0-endpoint": "",
        "model-0-id": "",
        "benchmark-0-suite": "",
        "benchmark-0-size": "13.5",
        "cell-0-library": "gone",
        "cell-0-k": "99",
        "calls": "0",
        "do": "save",
    }
    html = post(lead, "experiment-new-form", data, 400).content.decode()
    assert faults_of(html) == []
    for field, fault in {
        "slug": "Name: slug must be words",
        "model-0-endpoint": "Model 1, endpoint: choose one of the endpoints",
        "model-0-id": "Model 1, model name: type it as the endpoint calls it",
        "benchmark-0-suite": "Benchmark 1, suite: choose one of the suites",
        "benchmark-0-size": "Benchmark 1, tasks: write a whole number, not",
        "cell-0-k": "must be at most 50, not 99",
        "calls": "must be at least 1, not 0",
    }.items():
        place = html.split(f'id="{field}-error"')[1].split("</div>")[0]
        assert fault in place, field
        assert f'aria-describedby="{field}-help {field}-error"' in html or (
            f'aria-describedby="{field}-error"' in html
        )
        assert f'href="#{field}"' in html
    assert 'value="Not A Slug"' in html
    assert "gone (not here)" in html
    assert not ExperimentDraft.objects.exists()


def test_what_only_the_check_finds_is_told_at_its_field_and_can_be_saved(lead: Client) -> None:
    make_draft()
    data = {**FORM, "benchmark-0-size": "13", "do": "save"}
    response = post(lead, "experiment-new-form", data, 400)
    told = text_of(response)
    assert "Name: a draft 'panel' exists; choose another slug, such as panel-2" in told
    assert "Benchmark 1, tasks: the suite counting has 12 tasks, not 13" in told
    assert "Save with these problems" in told
    post(lead, "experiment-new-form", {**data, "do": "save-anyway"})
    page = lead.get(reverse("draft", kwargs={"slug": "draft"}))
    assert "A draft with 2 problems to mend" in text_of(page)


def test_prices_and_limits_come_from_the_configuration_unless_typed(lead: Client) -> None:
    endpoints_file().write_text(
        '[[endpoint]]\nname = "gateway"\nbase_url = "https://llm.example/v1"\n'
        'api_key_env = "OUR_KEY"\n[[endpoint.model]]\nid = "small"\ndialect = "json_action"\n'
        "price_in = 0.5\nprice_out = 1.5\nrequests_per_minute = 60\n"
    )
    data = {
        **FORM,
        "model-0-endpoint": "gateway",
        "model-0-id": "small",
        "model-0-price_in": "",
        "cost": "12.50",
        "do": "save",
    }
    post(lead, "experiment-new-form", data)
    (model,) = parse_experiment(draft_by_slug("panel").toml, path="").models
    assert model == ModelSpec(
        id="small",
        base_url="https://llm.example/v1",
        api_key_env="OUR_KEY",
        dialect="json_action",
        price_in=0.5,
        price_out=2,
        requests_per_minute=60,
    )


def test_without_endpoints_the_form_says_who_can_help(lead: Client, settings: Any) -> None:
    settings.WORKBENCH_ALLOW_SCRIPTED = False
    told = text_of(lead.get(reverse("experiment-new-form")))
    assert "is configured yet, so no model can be chosen" in told
    endpoints_file().write_text("[[endpoint]]\n")
    told = text_of(lead.get(reverse("experiment-new-form")))
    assert "can’t be read, so none can be chosen" in told


def test_two_who_edit_at_once_lose_nothing(lead: Client) -> None:
    make_draft()
    save_draft(slug="panel", toml=TOML + "k = 9\n", revision=1, actor=None, at=timezone.now())
    mine = {**FORM, "cell-0-k": "5", "revision": "1", "do": "save"}
    response = post(lead, "draft-form", mine, 409, slug="panel")
    html = response.content.decode()
    assert faults_of(html) == []
    assert "Somebody saved this draft while you were editing it" in html
    assert "k = 9" in html
    assert 'name="cell-0-k" value="5"' in html
    assert 'name="revision" value="2"' in html  # saved again, it replaces theirs knowingly
    assert draft_by_slug("panel").toml.endswith("k = 9\n")
    post(lead, "draft-form", {**mine, "revision": "2"}, slug="panel")
    assert "k = 5" in draft_by_slug("panel").toml
    text = {"toml": TOML + "k = 7\n", "revision": "2"}
    html = post(lead, "draft-edit", text, 409, slug="panel").content.decode()
    assert "k = 7" in html
    assert "k = 5" in html
    post(lead, "draft-edit", {**text, "revision": "3"}, slug="panel")
    assert draft_by_slug("panel").toml == TOML + "k = 7\n"


def test_a_file_that_the_form_can_not_show_is_edited_as_text(lead: Client) -> None:
    make_draft(TOML + 'types = [["guard"], ["utility"]]\n')
    page = text_of(lead.get(reverse("draft", kwargs={"slug": "panel"})))
    assert "It can be edited as TOML only: 'types' holds ['guard']" in page
    response = lead.get(reverse("draft-form", kwargs={"slug": "panel"}))
    assert response["Location"] == "/experiments/drafts/panel/edit/"


def test_the_form_warns_of_comments_that_it_drops(lead: Client) -> None:
    make_draft("# why\n" + TOML)
    told = text_of(lead.get(reverse("draft-form", kwargs={"slug": "panel"})))
    assert "The file holds comments" in told
    assert not has_comments(TOML.replace('"panel"', '"a # b"'))
    assert has_comments(TOML.replace('"panel"', '"panel" # b'))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("seed = 7", "queue_flips = true"), "no field for 'queue_flips' in the top of the file"),
        (("seed = 7", "analysis = { inference = 'fixed_n' }"), "no field for 'analysis'"),
        (('library = "coding"', 'library = ["coding", "maths"]'), "'library' is a list"),
        (('library = "coding"', 'library = "coding"\ndesign = "aa"'), "a cell names a design"),
        (("seed = 7", 'seed = "7"'), "'seed' holds '7', which no field can show"),
        (("seed = 7", "seed = "), "isn't valid TOML yet"),
    ],
)
def test_what_the_form_can_not_show_is_named(change: tuple[str, str], reason: str) -> None:
    with pytest.raises(NotInForm, match=reason):
        form_of(TOML.replace(*change), endpoints=())


lists = st.lists(st.integers(1, 50), min_size=1, max_size=3, unique=True)


@given(
    ks=lists,
    temperatures=st.lists(
        st.floats(0, 2, allow_nan=False).map(lambda t: round(t, 3)), min_size=1, max_size=3
    ),
    types=st.sets(st.sampled_from(["utility", "guard", "procedure"])),
    controls=st.sets(st.sampled_from(["normal", "schema_empty"]), min_size=1),
    size=st.none() | st.integers(1, 1000),
    model_id=st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20),
    calls=st.none() | st.integers(1, 10**9),
)
def test_a_file_comes_through_the_form_unchanged(
    ks: list[int],
    temperatures: list[float],
    types: set[str],
    controls: set[str],
    size: int | None,
    model_id: str,
    calls: int | None,
) -> None:
    """From file to form to file again: the experiment is the same."""
    cells = tuple(
        CellSpec(
            library="coding",
            k=k,
            temperature=t,
            control=c,
            types=tuple(sorted(types)) or None,
        )
        for k in dict.fromkeys(ks)
        for t in dict.fromkeys(temperatures)
        for c in controls
    )
    spec = make_spec(Path("counting"), cells=cells, model=ModelSpec(model_id, "scripted:mixed"))
    endpoints = (EndpointChoice("scripted", "scripted:mixed"),)
    text = toml_of(spec, slug="panel", suites=["counting"])
    if size:
        text = text.replace(
            'suite = "counting"', f'suite = "counting"\npartition = {{size={size}}}'
        )
    if calls:
        text += f"\n[budget]\ncalls = {calls}\n"
    first = parse_experiment(text, path="")
    written = write_form(form_of(text, endpoints=endpoints), endpoints=endpoints)
    assert written.faults == ()
    assert parse_experiment(written.text, path="") == first


# --- file and clone ---------------------------------------------------------------


def test_a_file_is_kept_whatever_is_wrong_with_it(lead: Client) -> None:
    file = SimpleUploadedFile("x.toml", b"slug = 'broken'\nwhat = 1\n")
    response = post(lead, "experiment-new", {"file": file, "toml": ""})
    assert response["Location"] == "/experiments/drafts/broken/"
    html = lead.get("/experiments/drafts/broken/").content.decode()
    assert faults_of(html) == []
    assert '<a href="#line-2">Line 2</a>: unknown key &#x27;what&#x27;' in html
    assert 'id="line-2"' in html
    post(lead, "experiment-new", {"toml": TOML})
    assert draft_by_slug("panel").toml == TOML


def test_a_file_that_can_not_be_kept_says_why_and_keeps_what_was_typed(lead: Client) -> None:
    told = text_of(post(lead, "experiment-new", {"toml": ""}, 400))
    assert "File: choose a .toml file, or paste its text." in told
    response = post(lead, "experiment-new", {"toml": "# " + "x" * 300_000}, 400)
    assert "an experiment file may have 256,000" in text_of(response)
    assert "x" * 300_000 in response.content.decode()
    binary = SimpleUploadedFile("x.toml", b"\xff\xfe\x00")
    assert "no UTF-8 text" in text_of(post(lead, "experiment-new", {"file": binary}, 400))


def test_experiments_and_drafts_are_cloned_by_a_button(lead: Client) -> None:
    start(make_draft())
    assert "Clone" in text_of(lead.get("/experiments/panel/"))
    response = post(lead, "experiment-clone", slug="panel")
    assert response["Location"] == "/experiments/drafts/panel-2/"
    response = post(lead, "draft-clone", slug="panel-2")
    assert response["Location"] == "/experiments/drafts/panel-3/"
    response = post(lead, "experiment-new-clone", {"experiment": "panel"})
    assert response["Location"] == "/experiments/drafts/panel-4/"
    names = [draft.slug for draft in ExperimentDraft.objects.order_by("slug")]
    assert names == ["panel-2", "panel-3", "panel-4"]
    html = lead.get(reverse("experiments")).content.decode()
    assert all(f'href="/experiments/drafts/{name}/"' in html for name in names)


def test_files_can_be_downloaded(lead: Client, tmp_path: Path) -> None:
    make_draft("# why\n" + TOML)
    response = lead.get("/experiments/drafts/panel/experiment.toml")
    assert response["Content-Disposition"] == 'attachment; filename="panel.toml"'
    assert response.content.decode() == "# why\n" + TOML
    start(draft_by_slug("panel"))
    assert lead.get("/experiments/panel/experiment.toml").content.decode() == "# why\n" + TOML
    # One whose file wasn't kept: it is written from the plan.
    old = finished_experiment("old", retrieved="ab")
    text = lead.get("/experiments/old/experiment.toml").content.decode()
    assert parse_experiment(text, path="").cells[0].library == "coding"
    Experiment.objects.filter(pk=old.pk).update(origin="pushed")
    assert lead.get("/experiments/old/experiment.toml").status_code == 404
    assert lead.post("/experiments/old/clone/")["Location"] == "/experiments/old/"
    assert not ExperimentDraft.objects.exists()


def test_a_discarded_draft_is_gone(lead: Client) -> None:
    make_draft()
    post(lead, "draft-discard", slug="panel")
    assert lead.get("/experiments/drafts/panel/").status_code == 404
    assert AuditEvent.objects.filter(verb="draft.discarded", actor__username="lee").exists()


# --- estimate and start -----------------------------------------------------------


def test_the_page_follows_an_estimate_and_shows_it(lead: Client) -> None:
    make_draft(TOML + "\n[budget]\ncalls = 5\n")
    post(lead, "draft-estimate", slug="panel")
    html = lead.get("/experiments/drafts/panel/").content.decode()
    assert faults_of(html) == []
    assert "It waits for a worker" in html
    assert "hx-get=" in html
    assert "/start/" not in html  # not while it is being estimated
    work_off(Job.objects.get(kind=ESTIMATE_TASK))
    response = lead.get("/experiments/drafts/panel/")
    assert faults_of(response.content.decode()) == []
    told = text_of(response)
    assert "Exceeds your budget: about" in told
    assert "Pairs with a skill returned" in told
    assert "95% limits" in told
    assert "3 pairs of cell 1 (coding@1, search, k 3) on counting@1: a skill returned in" in told
    assert "outdated" not in told
    draft = draft_by_slug("panel")
    save_draft(slug="panel", toml=TOML, revision=draft.revision, actor=None, at=timezone.now())
    told = text_of(lead.get("/experiments/drafts/panel/"))
    assert "a suite or library that it names, was changed since this was made" in told


def test_the_page_follows_a_start_to_the_experiment(lead: Client) -> None:
    make_draft()
    post(lead, "draft-start", slug="panel")
    assert "It waits for a worker" in lead.get("/experiments/drafts/panel/").content.decode()
    work_off(Job.objects.get(kind=START_TASK))
    response = lead.get("/experiments/drafts/panel/")
    assert (response.status_code, response["Location"]) == (302, "/experiments/panel/")
    assert "Its plan: panel.toml" in text_of(lead.get("/experiments/panel/"))


def test_a_failed_start_says_why_and_can_be_asked_for_again(lead: Client, settings: Any) -> None:
    make_draft()
    post(lead, "draft-start", slug="panel")
    settings.WORKBENCH_ALLOW_SCRIPTED = False
    work_off(Job.objects.get(kind=START_TASK))
    settings.WORKBENCH_ALLOW_SCRIPTED = True
    response = lead.get("/experiments/drafts/panel/")
    assert faults_of(response.content.decode()) == []
    assert "is none of the configured endpoints" in text_of(response)
    post(lead, "draft-start", slug="panel")
    work_off(Job.objects.latest("pk"))
    assert Experiment.objects.get(slug="panel").status == ExperimentStatus.RUNNING


def test_the_web_process_runs_no_model_and_no_sandbox(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runs import tasks
    from runs.services import arms

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a page ran a model or a sandbox")

    monkeypatch.setattr(arms, "chat_model_for", never)
    monkeypatch.setattr(tasks, "process_grader", never)
    post(lead, "experiment-new-form", {**FORM, "do": "save"})
    post(lead, "draft-estimate", slug="panel")
    lead.get("/experiments/drafts/panel/")
    assert not Call.objects.exists()


def test_a_draft_with_problems_offers_no_start(lead: Client) -> None:
    make_draft(TOML.replace("scripted:mixed", "http://169.254.169.254"))
    html = lead.get("/experiments/drafts/panel/").content.decode()
    assert "/experiments/drafts/panel/start/" not in html
    told = text_of(lead.post("/experiments/drafts/panel/start/", follow=True))
    assert "Nothing was done: the draft 'panel' has 1 problem" in told


# --- a paused experiment ----------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("the endpoint e can't serve m: the environment variable K_1 is not set", "K_1"),
        ("http://e refused the key in K_1 (401: the budget of x is reached)", "a valid one"),
        ("the account at http://e has nothing left (402: pay)", "Top it up"),
        ("http://e/v1 doesn't serve 'm' (404: no)", "clone the experiment"),
        ("the calls of 5 runs in a row failed at http://e; wait", "See whether it is up"),
        ("the endpoint e can't serve m: the embedded model's server isn't running", "with it"),
        # As earlier versions stored them:
        ("the endpoint e can't serve m: wrong_key: the environment variable K_1 is not set", "K_1"),
        ("the endpoint e can't serve m: wrong_key: e refused the key: 401", "a valid one"),
        ("the endpoint e can't serve m: quota_spent: 402", "Top it up"),
        ("the endpoint e can't serve m: unknown_model: 404", "clone the experiment"),
        ("the endpoint e can't serve m: circuit_open: 5 runs failed", "See whether it is up"),
        ("the budget of 100 calls is reached (100 used)", "raise the budget"),
        ("less than 100 MB of disk is free below /data", "Make room"),
        ("paused by lee", "when it may go on"),
        ("something new", "See to the reason"),
    ],
)
def test_a_paused_experiment_says_what_to_do(lead: Client, reason: str, advice: str) -> None:
    experiment = finished_experiment("panel", retrieved="ab")
    set_status(experiment, ExperimentStatus.PAUSED, reason=reason)
    html = lead.get("/experiments/panel/").content.decode()
    assert faults_of(html) == []
    assert advice in " ".join(Page(html).text.split())
    assert advice in advice_on(reason)


def test_a_reached_budget_can_be_raised_and_the_run_goes_on(lead: Client) -> None:
    start(make_draft(TOML + "\n[budget]\ncalls = 9\n"))
    experiment = Experiment.objects.get(slug="panel")
    run_left(experiment)
    assert experiment.status == ExperimentStatus.PAUSED
    assert experiment.reason.startswith("the budget of 9 calls is reached")
    spec, toml = experiment.spec, experiment.toml
    for typed, said in (
        ("0", "Calls: write at least 1"),
        ("none", "Calls: write a number, not 'none'"),
        ("9", "Calls: 9 are used already; write more than 9, or leave it empty."),
    ):
        wrong = {"calls": typed, "tokens": "x", "cost": ""} if typed == "none" else {"calls": typed}
        refused = post(lead, "experiment-budget", wrong, 400, slug="panel")
        page = refused.content.decode()
        assert f'name="calls" value="{typed}"' in page
        assert not faults_of(page)
        assert said in text_of(refused)
        assert 'href="#budget-calls"' in page
        assert ("Tokens: write a number" in page) == (typed == "none")
    post(lead, "experiment-budget", {"calls": "1,000", "tokens": "", "cost": ""}, slug="panel")
    told = text_of(lead.get("/experiments/panel/"))
    assert "The budget is now 1,000 calls (9 used). Resume it to go on." in told
    assert "raise the budget below" not in told
    post(lead, "experiment-resume", slug="panel")
    run_left(experiment)
    assert experiment.status == ExperimentStatus.FINISHED
    assert (experiment.spec, experiment.toml) == (spec, toml)
    event = AuditEvent.objects.get(verb="experiment.budget_changed")
    assert event.reason == "from 9 calls to 1,000 calls"
    late = lead.post(
        "/experiments/panel/budget/", {"calls": "1", "tokens": "", "cost": ""}, follow=True
    )
    assert "is finished" in text_of(late)


@pytest.mark.parametrize(
    ("field", "text"), [("calls", "many"), ("tokens", "-1"), ("cost", "1.2.3"), ("cost", "nan")]
)
def test_a_cap_is_a_number(field: str, text: str) -> None:
    empty = {"calls": "", "tokens": "", "cost": ""}
    assert budget_from({**empty, "cost": " 1.50 "}).cost == 1.5
    with pytest.raises(ValueError, match=field):
        budget_from({**empty, field: text})


# --- JSON -------------------------------------------------------------------------


def send(client: Client, method: str, path: str, body: Any = None) -> Any:
    response: Any = client.generic(
        method,
        f"/api/v1/{path}",
        "" if body is None else json.dumps(body),
        content_type="application/json",
    )
    response.data = json.loads(response.content) if response.content else None
    return response


def test_a_program_writes_checks_estimates_and_starts_a_draft(lead: Client) -> None:
    made = send(lead, "POST", "drafts/", {"toml": TOML})
    assert (made.status_code, made.data["slug"], made.data["revision"]) == (201, "panel", 1)
    assert made.data["check"] == {"problems": [], "cells": 1, "pairs": 12}
    assert made.data["estimate"] is None
    assert [one["slug"] for one in send(lead, "GET", "drafts/").data["results"]] == ["panel"]
    wrong = TOML.replace("coding", "none")
    saved = send(lead, "PUT", "drafts/panel/", {"toml": wrong, "revision": 1})
    assert saved.data["check"]["problems"][0]["line"] == 15
    assert send(lead, "GET", "drafts/panel/validate/").data["pairs"] is None
    assert send(lead, "POST", "drafts/panel/start/").status_code == 409
    late = send(lead, "PUT", "drafts/panel/", {"toml": TOML, "revision": 1})
    assert (late.status_code, late.data["error"]) == (409, "conflict")
    send(lead, "PUT", "drafts/panel/", {"toml": TOML, "revision": 2})
    asked = send(lead, "POST", "drafts/panel/estimate/")
    assert (asked.status_code, asked.data["kind"]) == (202, ESTIMATE_TASK)
    assert asked.data["url"] == f"/api/v1/jobs/{asked.data['uid']}/"
    work_off(Job.objects.get(uid=asked.data["uid"]))
    found = send(lead, "GET", "drafts/panel/").data["estimate"]
    assert (found["pairs"], found["executions"], found["outdated"]) == (12, 24, False)
    asked = send(lead, "POST", "drafts/panel/start/")
    work_off(Job.objects.get(uid=asked.data["uid"]))
    assert send(lead, "GET", f"jobs/{asked.data['uid']}/").data["result"]["experiment"] == "panel"
    paused = send(lead, "POST", "experiments/panel/pause/", {"reason": "lunch"})
    assert (paused.data["status"], paused.data["reason"]) == ("paused", "lunch")
    used_up = send(lead, "PUT", "experiments/panel/budget/", {"calls": 5})
    assert (used_up.status_code, list(used_up.data["fields"])) == (400, ["calls"])
    capped = send(lead, "PUT", "experiments/panel/budget/", {"calls": 500})
    assert capped.status_code == 200
    assert send(lead, "POST", "experiments/panel/resume/").data["status"] == "running"
    assert send(lead, "POST", "experiments/panel/start/").status_code == 409
    clone = send(lead, "POST", "experiments/panel/clone/")
    assert (clone.status_code, clone.data["slug"]) == (201, "panel-2")
    assert lead.get("/api/v1/experiments/panel/toml/").content.decode() == TOML
    assert send(lead, "POST", "experiments/panel/cancel/", {}).status_code == 400
    gone = send(lead, "POST", "experiments/panel/cancel/", {"reason": "enough"})
    assert gone.data["status"] == "cancelled"
    assert send(lead, "DELETE", "drafts/panel-2/").status_code == 204
    assert send(lead, "GET", "drafts/panel-2/").status_code == 404


def test_a_draft_may_be_sent_as_json(lead: Client) -> None:
    values = {
        "schema": 1,
        "slug": "panel",
        "model": [{"id": "scripted", "base_url": "scripted:mixed"}],
        "benchmark": [{"suite": "counting", "partition": {"size": 5}}],
        "cell": [{"library": "coding", "k": [3, 5]}],
    }
    made = send(lead, "POST", "drafts/", {"experiment": values})
    assert made.data["check"] == {"problems": [], "cells": 2, "pairs": 10}
    for body, field in (
        ({}, ""),
        ({"toml": TOML, "experiment": values}, ""),
        ({"experiment": {"slug": None}}, "experiment"),
        ({"toml": "x" * 300_000}, "toml"),
        ({"toml": TOML, "author": 1}, "author"),
    ):
        answer = send(lead, "POST", "drafts/", body)
        assert answer.status_code == 400, body
        assert field in answer.data["fields"], body


def test_rescoring_is_a_job(lead: Client) -> None:
    from runs.services.launching import rescore_experiment
    from tests.experiments import grader
    from workbench.jobs import perform

    start(make_draft())
    run_left(Experiment.objects.get(slug="panel"))
    asked = send(lead, "POST", "experiments/panel/rescore/")
    assert asked.status_code == 202
    assert send(lead, "POST", "experiments/panel/rescore/").data["uid"] == asked.data["uid"]
    calls = Call.objects.count()
    job = Job.objects.get(uid=asked.data["uid"])
    perform(job.uid, lambda handle: rescore_experiment(handle, open_grader=grader))
    job.refresh_from_db()
    assert (job.problem, (job.result or {})["graded"], Call.objects.count()) == ("", 0, calls)
    assert AuditEvent.objects.filter(verb="experiment.rescored", actor__username="lee").exists()


def test_endpoints_are_told_without_their_keys(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "sk-secret")
    endpoints_file().write_text(
        '[[endpoint]]\nname = "gateway"\nbase_url = "https://llm.example/v1"\n'
        'api_key_env = "OUR_KEY"\nmodels = ["small"]\n'
    )
    answer = send(lead, "GET", "endpoints/")
    gateway = answer.data["endpoints"][0]
    assert (gateway["name"], gateway["api_key_env"]) == ("gateway", "OUR_KEY")
    assert gateway["models"][0]["id"] == "small"
    assert "sk-secret" not in answer.content.decode()
    for page in (reverse("experiment-new-form"), reverse("experiment-new")):
        assert "sk-secret" not in lead.get(page).content.decode()
    endpoints_file().write_text("[[endpoint]]\n")
    assert "needs the key 'name'" in send(lead, "GET", "endpoints/").data["problem"]


def test_an_estimate_survives_in_the_json_of_its_job() -> None:
    job = estimate(make_draft())
    assert json.loads(json.dumps(job.result)) == job.result


def test_an_estimate_warns_of_cells_that_will_not_be_enough(lead: Client) -> None:
    # 12 tasks, and the scripted model is returned a skill in half of its runs or fewer.
    draft = make_draft()
    estimate(draft)
    told = text_of(lead.get("/experiments/drafts/panel/"))
    found = estimate_of(draft)
    assert found is not None
    assert ("Under 10 a cell is called not enough evidence" in told) == (found.expected_n_cond < 10)


@pytest.mark.parametrize(
    ("expected", "cells", "said"),
    [
        (9.96, 1, "About 10 pairs will have a skill returned."),
        (4.2, 1, "About 4 pairs will have a skill returned."),
        (1, 3, "About 1 pair of each cell will have a skill returned."),
        (10, 1, ""),
    ],
)
def test_the_warning_counts_by_cell(expected: float, cells: int, said: str) -> None:
    assert _too_few(expected, cells=cells).startswith(said)
    assert bool(_too_few(expected, cells=cells)) == bool(said)


def test_the_file_s_problems_stand_above_the_box_that_mends_them(lead: Client) -> None:
    make_draft(TOML.replace('"coding"', '"none"'))
    page = lead.get("/experiments/drafts/panel/edit/").content.decode()
    assert not faults_of(page)
    assert page.index("there is no library") < page.index("<textarea")
    save_draft(slug="panel", toml=TOML, revision=1, actor=None, at=timezone.now())
    fine = lead.get("/experiments/drafts/panel/edit/").content.decode()
    assert "What has to be mended" not in fine
