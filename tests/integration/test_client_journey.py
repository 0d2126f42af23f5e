"""A team's first study by the Python client, against ``serve`` in production behind nginx.

The journey of tests/browser/test_team.py once more, by programs: PostgreSQL and Valkey stand where
a deployment has them, and every request passes the proxy of docs/hosting.md. Without nginx the
client talks to ``serve`` itself, and only what the proxy does is skipped.
"""

from __future__ import annotations

import csv
import json
import re
import secrets
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pandas as pd
import psycopg
import pytest
import redis

from tests import services
from tests.scripted_server import ScriptedServer
from tests.serving import NO_NGINX, Person, Served, behind_nginx, nginx_path
from tests.study import (
    EDITED_TEXT,
    FIRST_TEXT,
    PASSES_WITH,
    PASSES_WITHOUT,
    TASKS,
    answer_by_rule,
    endpoint_file,
    skills_zip,
    task_file,
)
from workbench.client import (
    ApiError,
    Conflict,
    Experiment,
    Forbidden,
    Job,
    NotSignedIn,
    Unreachable,
    Workbench,
)
from workbench.kernel.hosts import listening_port

pytestmark = pytest.mark.xdist_group("services")

PASSWORD = "a long walk at dusk"
KEY = "sk-paid-1234567890"
PATIENCE_S = 240.0
EVERY_S = 0.1
# What a report and the same runs pushed must agree in.
FIGURES = [
    *("n_planned", "n_pairs", "n_cond", "n_skip", "a", "b", "c", "d", "coverage"),
    *("se_accuracy", "sd_accuracy", "rae", "oae", "rae_ci.low", "rae_ci.high", "mcnemar_p", "p"),
]


@dataclass(frozen=True)
class Site:
    """The served workbench.

    Attributes:
        url: where people and programs reach it.
        trust: what trusts the proxy's certificate; None without a proxy.
        plain: the proxy's port without TLS; None without a proxy.
        first_link: the one of its first admin.
    """

    url: str
    trust: ssl.SSLContext | None
    plain: int | None
    first_link: str
    endpoint: ScriptedServer

    def person(self) -> Person:
        """Return a browser that nobody is signed in with."""
        port = urlsplit(self.url).port
        assert port
        return Person(port, f"localhost:{port}", context=self.trust)

    def come_in(self, link: str, form: str = "") -> Person:
        """Return a browser in which the form of a one-time link was sent."""
        assert link.startswith(f"{self.url}/")
        person = self.person()
        answer = person.post(link.removeprefix(self.url), form, Origin=self.url)
        assert answer.status == 302, answer.text
        return person

    def accept(self, link: str) -> Person:
        """Return the browser of somebody who was invited and chose a password."""
        return self.come_in(link, f"password={PASSWORD}&again={PASSWORD}")

    def token(self, person: Person, name: str, *scopes: str) -> str:
        """Return a token that a person made on the page of their account."""
        form = f"name={name}&days=30&" + "&".join(f"scopes={scope}" for scope in scopes)
        answer = person.post("/account/tokens/", form, page="/account/", Origin=self.url)
        found = re.search(rf'title="token {name}">(wb_[\w-]+)<', answer.text)
        assert found, answer.text
        return found[1]

    def client(self, token: str, **options: Any) -> Workbench:
        """Return a client that trusts the proxy's certificate."""
        transport = httpx2.HTTPTransport(verify=self.trust) if self.trust else None
        return Workbench(self.url, token, **{"transport": transport, **options})


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, session_folder: Path, postgres_url: str
) -> Iterator[Site]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE journey")
    broker = services.valkey_url(session_folder)
    with redis.Redis(unix_socket_path=broker.removeprefix("redis+socket://")) as valkey:
        valkey.flushall()
    folder = tmp_path_factory.mktemp("journey")
    web, tls, plain = (
        listening_port(host="127.0.0.1", port=None, first=first)
        for first in (18_750, 18_860, 18_970)
    )
    given = {
        "DATABASE_URL": postgres_url.rpartition("/")[0] + "/journey",
        "BROKER_URL": broker,
        "PAID_KEY": KEY,
    }
    nginx = nginx_path()
    with ExitStack() as stack:
        trust = None
        url = f"http://localhost:{web}"
        if nginx:
            url = f"https://localhost:{tls}"
            given |= {"WORKBENCH_ENV": "production", "SECRET_KEY": secrets.token_urlsafe(64)}
            given |= {"WORKBENCH_PUBLIC_URL": url}
            front = behind_nginx(nginx, folder, tls=tls, plain=plain, web=web)
            trust = stack.enter_context(front)
        endpoint = stack.enter_context(ScriptedServer(answer_by_rule, models=("thinker",)))
        data = folder / "data"
        data.mkdir()
        (data / "endpoints.toml").write_text(endpoint_file(endpoint.base_url))
        served = Served(data, "--port", str(web), "--public-url", url, "--no-model", **given)
        stack.callback(served.end)
        link = re.search(r"Sign in: (\S+)", served.up())
        assert link, served.text()
        yield Site(url, trust, plain if nginx else None, link[1], endpoint)


@pytest.fixture(scope="module")
def admin(site: Site) -> Iterator[Workbench]:
    person = site.come_in(site.first_link)
    with site.client(site.token(person, "bootstrap", "read", "write", "people")) as made:
        yield made


def invited_lead(site: Site, admin: Workbench, name: str) -> Person:
    """Return the browser of a lead who came in by an invitation."""
    (invitation,) = admin.people.invite("lead", [name])
    return site.accept(invitation.url)


def done(wb: Workbench, job: Job | str) -> Job:
    return wb.wait(job, timeout_s=PATIENCE_S, every_s=EVERY_S)


def followed(wb: Workbench, slug: str) -> Experiment:
    """Follow an experiment to its end, and return that."""
    *_, last = wb.follow(slug, timeout_s=PATIENCE_S, every_s=EVERY_S)
    assert (last.status, last.reason) == ("finished", "")
    return last


def asked_of(endpoint: ScriptedServer) -> int:
    """Return how many calls about tasks arrived, each with the endpoint's key."""
    about_tasks = [one for one in endpoint.seen if "Question" in json.dumps(one.body)]
    assert {one.headers["authorization"] for one in about_tasks} == {f"Bearer {KEY}"}
    return len(about_tasks)


def file_of_study(lead: Workbench) -> dict[str, Any]:
    """Return the experiment file, with the endpoint as the workbench names it."""
    (endpoint,) = lead.endpoints()
    (model,) = endpoint["models"]
    priced = {name: model[name] for name in ("id", "price_in", "price_out")}
    return {
        "schema": 1,
        "slug": "totals",
        "model": [
            {**priced, "base_url": endpoint["base_url"], "api_key_env": endpoint["api_key_env"]}
        ],
        "benchmark": [{"suite": "ranges"}],
        "cell": [{"library": "team"}],
    }


def own_runs() -> pd.DataFrame:
    """Return the runs of the study as another harness would have made them."""
    return pd.DataFrame(
        {
            "task": f"range/{n}",
            "arm": arm,
            "outcome": int(n in passes),
            "retrieved": True if arm == "SE" else None,
            "skill_ids": ["running-total"] if arm == "SE" else None,
            "model": "thinker",
        }
        for n in range(TASKS)
        for arm, passes in (("SE", PASSES_WITH[FIRST_TEXT]), ("SD", PASSES_WITHOUT))
    )


# --- the journey ------------------------------------------------------------------------


def test_a_team_prepares_runs_compares_and_takes_away_a_study(
    site: Site, admin: Workbench, tmp_path: Path
) -> None:
    (lee,) = admin.people.invite("lead", ["lee"])
    ann, bo = admin.people.invite("annotator", ["ann", "bo"])
    assert len({lee.url, ann.url, bo.url}) == 3
    lees = site.accept(lee.url)
    # The link let lee in once.
    assert site.person().get(lee.url.removeprefix(site.url)).status == 410
    lead = site.client(site.token(lees, "notebook", "read", "write"))
    far = site.client(site.token(lees, "other-machine", "read"))

    # Skills and tasks.
    (tmp_path / "team.zip").write_bytes(skills_zip(FIRST_TEXT))
    made = lead.libraries.upload(tmp_path / "team.zip", "team")
    assert (made["library"]["number"], made["added"]) == (1, ["running-total", "sort-first"])
    (tmp_path / "ranges.jsonl").write_bytes(task_file())
    received = lead.suites.upload(tmp_path / "ranges.jsonl", "ranges")
    done(lead, received["job"].rstrip("/").split("/")[-1])
    assert lead.suites.get("ranges")["tasks"] == TASKS

    # A draft: checked, reckoned, started.
    assert lead.create_draft(file_of_study(lead)).slug == "totals"
    check = lead.validate("totals")
    assert (check.problems, check.cells, check.pairs) == ((), 1, TASKS)
    done(lead, lead.estimate("totals"))
    estimate = lead.draft("totals").estimate
    assert estimate is not None
    # Three probe pairs: 2 calls in each SE run, 1 in each SD run, 10 tokens in and 5 out a call.
    # 8 pairs: 8 * 3 calls = 24, 24 * 15 = 360 tokens, 24 * (10 * 2 + 5 * 8) / 10^6 = 0.00144.
    assert (estimate["calls"], estimate["tokens"]) == (24, 360)
    assert estimate["cost"] == pytest.approx(0.00144)
    assert (estimate["expected_n_cond"], estimate["outdated"]) == (8, False)
    started = done(lead, lead.start("totals")).result
    assert started["experiment"] == "totals"

    # Another machine follows; both see the same end.
    last = followed(far, "totals")
    assert last == lead.experiment("totals")
    assert last.author == "lee"
    assert last.progress is not None
    assert (last.progress.done, last.progress.pairs_done) == (2 * TASKS, TASKS)
    # 24 calls in all: those of the estimate were not made again.
    assert asked_of(site.endpoint) == 24

    # By task, SE passes 0, 3, 6 and SD passes 0, 2, 4, 6; a skill was returned for every task.
    # Both passed 0, 6; won 3; lost 2, 4; both failed 1, 5, 7. RAE = OAE = 100 (1 - 2) / 8 = -12.5.
    # Exact McNemar of 1 and 2: 2 * P(X <= 1) = 2 * (1 + 3) / 8 = 1.
    report = far.report_frame("totals").iloc[0]
    assert list(report[["n_planned", "n_pairs", "n_cond", "n_skip"]]) == [8, 8, 8, 0]
    assert list(report[["a", "b", "c", "d"]]) == [2, 1, 2, 3]
    assert list(report[["rae", "oae", "mcnemar_p"]]) == [-12.5, -12.5, 1]
    assert list(report[["se_accuracy", "sd_accuracy"]]) == [3 / 8, 4 / 8]
    assert report["cell.model"] == "thinker"
    pairs = far.pairs_frame("totals")
    assert sorted(pairs["task"]) == [f"range/{n}" for n in range(TASKS)]
    lost = far.pairs_frame("totals", transition="harmful")
    assert sorted(lost["task"]) == ["range/2", "range/4"]
    assert len(far.pairs_frame("totals", retrieved="false")) == 0

    # The same study with an edited skill: a clone, which takes the newest library.
    (tmp_path / "team.zip").write_bytes(skills_zip(EDITED_TEXT))
    edited = lead.libraries.upload(tmp_path / "team.zip", "team")
    assert (edited["library"]["number"], edited["changed"]) == (2, ["running-total"])
    assert lead.clone("totals").slug == "totals-2"
    assert done(lead, lead.start("totals-2")).result["experiment"] == "totals-2"
    followed(lead, "totals-2")
    # Each experiment makes its own runs without skills.
    assert asked_of(site.endpoint) == 2 * 24
    # SE passes 0 to 6: won 1, 3, 5 and lost none: 100 * 3 / 8.
    assert far.report_frame("totals-2").loc[0, "rae"] == 37.5

    # Of SE against SE 1, 2, 4, 5 were won, 0, 3, 6 passed in both, 7 in neither.
    # Exact McNemar of 4 and 0: 2 / 2^4 = 0.125. RAE rose by 37.5 + 12.5.
    (cell,) = far.compare("totals", "totals-2")["cells"]
    assert (cell["a"]["library"], cell["b"]["library"]) == ("team@1", "team@2")
    assert sorted(one["task"] for one in cell["won"]) == [f"range/{n}" for n in (1, 2, 4, 5)]
    assert (cell["n_shared"], cell["n_lost"]) == (8, 0)
    assert (cell["n_both_pass"], cell["n_both_fail"], cell["p"]) == (3, 1, 0.125)
    assert cell["rae"]["both"]["difference"] == 50
    assert cell["sd_runs"] == {"shared": 0, "separate": 8, "differing": 0}
    assert {one["change"]: one["pairs"] for one in cell["returned_sets"]} == {"changed": 8}

    # Runs that another harness made of the same come to the same figures.
    done(lead, lead.push_runs(own_runs(), experiment="own"))
    pushed = far.report_frame("own").iloc[0]
    assert dict(pushed[FIGURES]) == dict(report[FIGURES])
    assert far.experiment("own").origin == "pushed"

    # Files.
    both = ["totals", "totals-2"]
    file = lead.export("runs", "csv", tmp_path / "runs.csv", experiments=both, timeout_s=PATIENCE_S)
    with file.open(newline="") as lines:
        arms = Counter((row["experiment"], row["arm"]) for row in csv.DictReader(lines))
    assert arms == {(slug, arm): TASKS for slug in both for arm in ("SE", "SD")}
    file = lead.export(
        "pairs", "jsonl", tmp_path / "pairs.jsonl", experiments=both, timeout_s=PATIENCE_S
    )
    found = [json.loads(line) for line in file.read_text().splitlines()]
    # Of totals-2: 0, 2, 4, 6 passed in both, 1, 3, 5 won, 7 failed in both.
    assert Counter((row["experiment"], row["transition"]) for row in found) == {
        ("totals", "both_pass"): 2,
        ("totals", "helpful"): 1,
        ("totals", "harmful"): 2,
        ("totals", "both_fail"): 3,
        ("totals-2", "both_pass"): 4,
        ("totals-2", "helpful"): 3,
        ("totals-2", "both_fail"): 1,
    }

    # The lead is told that both ended, with addresses that lead there.
    finished = [one for one in far.notices() if one["kind"] == "experiment_finished"]
    assert [one["subject"] for one in finished if one["subject"] in both] == both[::-1]
    for one in finished:
        assert lees.get(one["url"].removeprefix(site.url)).status == 200
    assert [one.slug for one in far.experiments(author="lee")] == ["own", *both[::-1]]


# --- writes, tokens, and the proxy ---------------------------------------------------------


class LosesAnswers(httpx2.BaseTransport):
    """Carries requests, and loses the first answer to each write after the server gave it."""

    def __init__(self, site: Site) -> None:
        self._inner = httpx2.HTTPTransport(verify=site.trust or True)
        self._before: set[str] = set()
        self.lost = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = self._inner.handle_request(request)
        key = request.headers.get("Idempotency-Key")
        if key is None or key in self._before:
            return response
        self._before.add(key)
        self.lost += 1
        response.read()
        response.close()
        raise httpx2.ReadError("the answer was lost", request=request)

    def close(self) -> None:
        self._inner.close()


def test_a_write_whose_answer_was_lost_is_done_once(site: Site, admin: Workbench) -> None:
    token = site.token(invited_lead(site, admin, "una"), "unlucky", "read", "write", "people")
    line = LosesAnswers(site)
    with site.client(token, transport=line, sleep=lambda seconds: None) as unlucky:
        # A second draft would find its slug taken, and be called draft.
        assert unlucky.create_draft({"schema": 1, "slug": "once"}).slug == "once"
        assert unlucky.clone_draft("once").slug == "once-2"
        assert {one.slug for one in unlucky.drafts() if one.author == "una"} == {"once", "once-2"}
        job = done(unlucky, unlucky.push_runs(own_runs(), experiment="pushed-once"))
        assert job.result["experiment"] == "pushed-once"
        # Links are never answered twice; the person is invited all the same, and once.
        with pytest.raises(Conflict):
            unlucky.people.invite("annotator", ["vic"])
    assert line.lost == 4
    found = admin.audit_events(actor="una", sort="written")
    kinds = ("draft.", "experiment.", "user.invited")
    assert [(one["verb"], one["subject"]) for one in found if one["verb"].startswith(kinds)] == [
        ("draft.created", "once"),
        ("draft.cloned", "once-2"),
        ("experiment.pushed", "pushed-once"),
        ("user.invited", "vic"),
    ]
    assert admin.people.get("vic").state == "invited"
    # Asked for twice, it is done twice.
    assert [admin.clone_draft("once").slug for _ in range(2)] == ["once-3", "once-4"]


def test_a_token_opens_what_its_person_may_until_it_is_revoked(
    site: Site, admin: Workbench
) -> None:
    kim = invited_lead(site, admin, "kim")
    lead = site.client(site.token(kim, "whole", "read", "write"))
    reader = site.client(site.token(kim, "reader", "read"))
    assert reader.people.get("kim").role == "lead"
    with pytest.raises(Forbidden):
        reader.create_draft({"schema": 1, "slug": "not-mine"})
    with pytest.raises(Forbidden):
        lead.people.invite("annotator", ["nobody"])
    with pytest.raises(Forbidden):
        list(lead.audit_events())
    with pytest.raises(NotSignedIn):
        site.client("wb_of-a-stranger").status()

    # Raters may have no tokens; one of theirs from before opens nothing.
    assert admin.people.change("kim", role="annotator").role == "annotator"
    for wb in (lead, reader):
        with pytest.raises(Forbidden):
            list(wb.experiments())
    assert kim.get("/api/v1/experiments/").status == 403
    refused = kim.post("/account/tokens/", "name=x&days=30&scopes=read", page="/account/")
    assert refused.status == 403
    assert admin.people.change("kim", role="lead").role == "lead"
    assert lead.people.get("kim").role == "lead"

    (row,) = [one for one in reader.tokens.list() if one.name == "reader"]
    lead.tokens.revoke(row.uid)
    with pytest.raises(NotSignedIn):
        reader.status()
    admin.people.change("kim", active=False)
    with pytest.raises(NotSignedIn):
        lead.status()


def test_the_proxy_gives_tokens_tls_and_lets_nothing_past_it(site: Site, admin: Workbench) -> None:
    if site.plain is None:
        pytest.skip(NO_NGINX)
    token = site.token(invited_lead(site, admin, "pat"), "plain", "read")
    # Whoever doesn't trust the certificate sends nothing.
    with pytest.raises(Unreachable):
        Workbench(site.url, token, retries=0).status()
    # Plain HTTP leads to TLS, and the client doesn't carry a token along.
    with pytest.raises(ApiError) as moved:
        Workbench(f"http://localhost:{site.plain}", token).status()
    assert moved.value.status == 301
    # A form of another origin invites nobody.
    (invitation,) = admin.people.invite("annotator", ["quinn"])
    path = invitation.url.removeprefix(site.url)
    form = f"password={PASSWORD}&again={PASSWORD}"
    assert site.person().post(path, form, Origin="https://evil.example").status == 403
    joined = site.accept(invitation.url)
    assert joined.get("/").headers["Strict-Transport-Security"].startswith("max-age=31536000")
