"""What can be read as JSON: experiments, cells, pairs, tries, and the audit trail."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import jsonschema
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from runs.models import Experiment, ExperimentStatus, Pair
from runs.services.handing_in import perform_push
from runs.services.reporting import report_of
from tests.factories import (
    NOW,
    cells_of,
    execution_of,
    finished_experiment,
    make_experiment,
    make_user,
    record,
    record_arm,
    record_failure,
    set_status,
)
from tests.shared import ROOT
from workbench.jobs import perform
from workbench.kernel.roles import Role
from workbench.trail import record_event

pytestmark = pytest.mark.django_db

BASE = "/api/v1/"


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


def get(client: Client, path: str, status: int = 200) -> Any:
    response = client.get(path if path.startswith("/") else BASE + path)
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    return response.json()


def every(client: Client, path: str) -> list[Any]:
    """Return the rows of all pages."""
    found, url = [], path
    while url:
        page = get(client, url)
        found += page["results"]
        url = page["next"]
    return found


def mixed_experiment(policy: str = "censor") -> Experiment:
    """Return an experiment whose six pairs came out in all ways there are.

    By task: lost (skill returned), won (returned), both pass (none returned),
    left out (a call failed in SE), left out (unequal parameters), pending.
    """
    experiment = make_experiment("mixed", tasks=6, failure_policy=policy)
    pairs = list(cells_of(experiment)[0].pairs.order_by("task__key"))
    record(pairs[0], "c", skills=("two-pointer",))
    record(pairs[1], "b", skills=("two-pointer", "prefix-sum"))
    record(pairs[2], "a")
    record_failure(pairs[3], "SE")
    record_arm(pairs[3], "SD", True, "answer")
    record(pairs[4], "d", dropped=("temperature",))
    return set_status(experiment, ExperimentStatus.RUNNING)


def test_an_experiment_says_how_far_it_is_and_where_more_is(lead: Client) -> None:
    mixed_experiment()
    found = get(lead, "experiments/mixed/")
    assert found["status"] == "running"
    assert (found["preset"], found["failure_policy"], found["replicates"]) == (
        "default",
        "censor",
        1,
    )
    progress = found["progress"]
    # 12 executions: four pairs ran both arms, one pair SD alone; its SE is dead, one pair waits.
    assert (progress["executions"], progress["done"], progress["dead"]) == (12, 9, 1)
    assert (progress["pairs"], progress["pairs_done"], progress["pending"]) == (6, 4, 2)
    assert progress["failures"] == {"call": 1}
    assert progress["usage"]["calls"] == 9
    for name in ("self", "report", "cells", "pairs"):
        assert lead.get(found["links"][name]).status_code == 200
    assert lead.get(found["links"]["page"]).status_code == 200


def test_a_paused_experiment_says_why(lead: Client) -> None:
    experiment = make_experiment("panel")
    set_status(experiment, ExperimentStatus.PAUSED, "the budget is reached")
    assert get(lead, "experiments/panel/")["reason"] == "the budget is reached"


def test_pushed_runs_are_an_experiment_like_any_other(lead: Client) -> None:
    rows = [
        {"task": "t1", "arm": "SE", "outcome": 0, "retrieved": True, "skill_ids": ["sorting"]},
        {"task": "t1", "arm": "SD", "outcome": 1},
    ]
    body = {"experiment": "mine", "rows": rows}
    asked = lead.post(BASE + "run-rows/", json.dumps(body), content_type="application/json")
    assert asked.status_code == 202
    perform(UUID(asked.json()["uid"]), perform_push)
    found = get(lead, "experiments/mine/")
    assert (found["origin"], found["status"]) == ("pushed", "finished")
    (cell,) = every(lead, "experiments/mine/cells/")
    assert get(lead, cell["links"]["self"])["figures"]["n_pairs"] == 1
    (row,) = every(lead, "experiments/mine/pairs/?transition=harmful")
    pair = get(lead, row["url"])
    assert [skill["slug"] for skill in pair["returned"]] == ["sorting"]
    for arm in pair["arms"]:
        assert len(every(lead, arm["attempts"])) == 1
    assert [one["slug"] for one in every(lead, "experiments/?origin=pushed")] == ["mine"]


def test_a_cell_shows_its_arms_and_the_reports_figures(lead: Client) -> None:
    experiment = finished_experiment("panel", retrieved="abcd", skipped="ad")
    (listed,) = every(lead, "experiments/panel/cells/")
    cell = get(lead, listed["links"]["self"])
    assert listed.items() <= cell.items()
    assert cell["figures"] == report_of(experiment)["cells"][0]
    assert cell["cell"] == cell["figures"]["cell"]
    assert cell["treatment"]["library_sha256"]
    assert cell["baseline"]["library_sha256"] is None
    assert get(lead, "experiments/panel/cells/" + "0" * 12 + "/", 404)["error"] == "not_found"
    assert get(lead, f"experiments/panel/cells/{listed['sha12'][:4]}/", 404)


PAIRS = [
    ("", [0, 1, 2, 3, 4, 5]),
    ("transition=harmful", [0]),
    ("transition=helpful", [1]),
    ("transition=both_pass", [2]),
    ("transition=both_fail", []),  # the fifth pair's arms weren't run alike
    ("censored=true", [3, 4]),
    ("censored=false", [0, 1, 2, 5]),
    ("retrieved=true", [0, 1]),
    ("retrieved=false", [2, 3, 4]),
    ("retrieved=unknown", [5]),
    ("skill=two-pointer", [0, 1]),
    ("skill=prefix-sum", [1]),
    ("skill=absent", []),
    ("skill=two-pointer&transition=helpful", [1]),
]


@pytest.mark.parametrize(("query", "places"), PAIRS)
@pytest.mark.parametrize("limit", ["", "limit=1"])
def test_pairs_are_filtered_as_the_report_counts_them(
    lead: Client, query: str, places: list[int], limit: str
) -> None:
    experiment = mixed_experiment()
    wanted = [f"tasks/{place + 1:03}" for place in places]
    sha12 = cells_of(experiment)[0].sha256[:12]
    asked = "&".join(part for part in (query, limit) if part)
    for path in ("experiments/mixed/pairs/", f"experiments/mixed/cells/{sha12}/pairs/"):
        found = every(lead, f"{path}?{asked}")
        # The plan's order is a seeded one.
        assert sorted(pair["task"] for pair in found) == wanted


def test_a_failed_call_counts_as_wrong_where_the_policy_says_so(lead: Client) -> None:
    experiment = mixed_experiment("incorrect")
    pair = list(cells_of(experiment)[0].pairs.order_by("task__key"))[3]
    (found,) = every(lead, "experiments/mixed/pairs/?transition=harmful&retrieved=false")
    assert found["uid"] == str(pair.uid)
    assert (found["censored"], found["se"]) == (False, {"passed": None, "failure": "call"})


def test_a_page_of_pairs_takes_as_many_queries_however_many_there_are(lead: Client) -> None:
    finished_experiment("small", retrieved="ab")
    finished_experiment("large", retrieved="abcd" * 5)
    counts = []
    get(lead, "experiments/small/pairs/")  # writes the session once
    for slug in ("small", "large"):
        with CaptureQueriesContext(connection) as captured:
            get(lead, f"experiments/{slug}/pairs/")
        counts.append(len(captured))
    assert counts[0] == counts[1] <= 12


def test_pairs_of_two_cells_come_with_theirs(lead: Client) -> None:
    experiment = make_experiment("panel", tasks=2, controls=("normal", "schema_empty"))
    shas = [cell.sha256[:12] for cell in cells_of(experiment)]
    found = every(lead, "experiments/panel/pairs/?limit=3")
    assert [pair["cell"] for pair in found] == [shas[0]] * 2 + [shas[1]] * 2
    assert all(pair["pending"] for pair in found)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("transition=lost", "transition"),
        ("retrieved=yes", "retrieved"),
        ("censored=1", "censored"),
        ("ordering=run__arm", "ordering"),
        ("sort=run__arm", "sort"),
        ("task__checker__contains=x", "task__checker__contains"),
    ],
)
def test_pairs_are_asked_for_by_what_is_offered_alone(lead: Client, query: str, field: str) -> None:
    mixed_experiment()
    assert list(get(lead, f"experiments/mixed/pairs/?{query}", 400)["fields"]) == [field]


def test_a_pair_shows_both_arms_grades_and_returned_skills(lead: Client) -> None:
    experiment = finished_experiment("panel", retrieved="c")
    pair = Pair.objects.get(cell__experiment=experiment)
    found = get(lead, f"pairs/{pair.uid}/")
    assert (found["experiment"], found["transition"]) == ("panel", "harmful")
    assert found["task"]["prompt"] == "Write a function solve(xs) for problem 1."
    assert [(arm["arm"], arm["attempt"]["grades"][0]["verdict"]) for arm in found["arms"]] == [
        ("SD", "pass"),
        ("SE", "fail"),
    ]
    assert [(skill["slug"], skill["rank"]) for skill in found["returned"]] == [
        ("two-pointer", 1),
        ("edge-case-guard", 2),
    ]
    assert found["returned"][0]["text"].startswith("# Two pointers")
    tries = every(lead, found["arms"][1]["attempts"])
    assert [(one["number"], one["trace"]["status"]) for one in tries] == [(1, "answered")]
    assert "trace" not in found["arms"][1]["attempt"]


def test_a_pair_that_has_not_run_has_nothing_yet(lead: Client) -> None:
    pair = Pair.objects.filter(cell__experiment=make_experiment("panel"))[0]
    found = get(lead, f"pairs/{pair.uid}/")
    assert (found["pending"], found["transition"], found["returned"]) == (True, None, [])
    assert [(arm["attempt"], arm["answer"]) for arm in found["arms"]] == [(None, None)] * 2
    assert get(lead, found["arms"][0]["attempts"])["results"] == []
    assert get(lead, f"pairs/{uuid4()}/", 404)["error"] == "not_found"
    assert get(lead, f"executions/{uuid4()}/attempts/", 404)["error"] == "not_found"


def test_failed_tries_are_all_there(lead: Client) -> None:
    experiment = mixed_experiment()
    pair = list(cells_of(experiment)[0].pairs.order_by("task__key"))[3]
    uid = execution_of(pair, "SE").uid
    (found,) = every(lead, f"executions/{uid}/attempts/")
    assert (found["failure"], found["failure_detail"]) == ("call", "server_error: 503")
    assert (found["trace"], found["grades"]) == ({}, [])


def test_the_trail_is_read_by_admins_alone(client: Client) -> None:
    root = make_user("root", Role.ADMIN)
    record_event(actor=root, verb="thing.done", subject="panel", at=NOW, reason="asked to")
    record_event(actor=None, verb="thing.done", subject="other", at=NOW)
    client.force_login(root)
    found = every(client, "audit-events/?verb=thing.done&limit=1")
    assert [(one["actor"], one["subject"]) for one in found] == [(None, "other"), ("root", "panel")]
    assert found[0]["previous_sha256"] == found[1]["sha256"]
    assert len(every(client, "audit-events/?actor=root&verb=thing.done")) == 1
    assert every(client, "audit-events/?until=2026-03-02T09:30:00Z&verb=thing.done") == []
    assert get(client, "audit-events/?since=lately", 400)["fields"] == {
        "since": ["it takes a time such as 2026-03-02T09:30:00Z"]
    }
    client.force_login(make_user("lee", Role.LEAD))
    assert client.get(BASE + "audit-events/").status_code == 403


def test_the_report_keeps_to_its_schema_while_runs_go_on(lead: Client) -> None:
    mixed_experiment()
    schema = json.loads((ROOT / "docs/report-schema.json").read_text())
    jsonschema.validate(get(lead, "experiments/mixed/report/"), schema)


def test_no_answer_names_a_key_or_where_it_is_kept(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_KEY", "sk-canary-value")
    experiment = finished_experiment("panel", retrieved="c")
    spec = experiment.spec
    spec["models"][0]["api_key_env"] = "CANARY_KEY"
    Experiment.objects.filter(pk=experiment.pk).update(spec=spec, toml='api_key_env = "CANARY_KEY"')
    pair = Pair.objects.get(cell__experiment=experiment)
    sha12 = pair.cell.sha256[:12]
    for path in (
        "experiments/",
        "experiments/panel/",
        "experiments/panel/report/",
        "experiments/panel/cells/",
        f"experiments/panel/cells/{sha12}/",
        "experiments/panel/pairs/",
        f"pairs/{pair.uid}/",
        f"executions/{execution_of(pair, 'SE').uid}/attempts/",
    ):
        assert "canary" not in json.dumps(get(lead, path)).lower(), path
