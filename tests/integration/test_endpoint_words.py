"""What people are told of an endpoint that can't serve: in words, with what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from runs.domain.pauses import advice_before, advice_on, patience
from runs.domain.plan import ModelSpec
from runs.models import ExperimentStatus
from runs.services import lifecycle
from runs.services.launching import _told
from runs.services.preparing import EndpointUnusable, check_endpoints
from tests.experiments import make_spec, plan, run_left, write_tasks
from tests.scripted_server import Behaviour, ScriptedServer, status
from workbench.jobs import JobFailed
from workbench.kernel.chat import EndpointBusy

NOW = datetime(2026, 5, 4, 4, 15, 30, tzinfo=UTC)
KEY = "WORDS_KEY"


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(KEY, "sk-0123456789")
    return write_tasks(tmp_path / "counting.jsonl")


def model_at(server: ScriptedServer) -> ModelSpec:
    return ModelSpec(id="small-model", base_url=server.base_url, api_key_env=KEY)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("behaviour", "says", "advice"),
    [
        (status(401), f"refused the key in {KEY} (401: ", "puts a valid one into"),
        (status(402), "has nothing left (402: ", "Top it up"),
        (status(404, code="model_not_found"), "doesn't serve 'small-model' (404: ", "this model"),
    ],
)
def test_a_start_and_a_pause_tell_the_same(
    behaviour: Behaviour, says: str, advice: str, tasks: Path
) -> None:
    with ScriptedServer(behaviour) as server:
        spec = make_spec(tasks, model=model_at(server))
        with pytest.raises(EndpointUnusable) as refused:
            check_endpoints(spec)
        experiment = plan(spec)
        lifecycle.start(experiment=experiment, actor=None, at=NOW)
        run_left(experiment)
    assert experiment.status == ExperimentStatus.PAUSED
    told = str(refused.value)
    assert told.startswith("Nothing was started. ")
    for text in (told, experiment.reason):
        assert says in text
        # The code is for programs, and the endpoint is named once.
        assert not any(code in text for code in ("wrong_key", "quota_spent", "unknown_model"))
        assert text.count(server.base_url.split("/")[2]) == 1
    assert advice_before(experiment.reason) in told
    assert advice in advice_on(experiment.reason)


@pytest.mark.django_db
def test_a_start_on_an_endpoint_that_asks_to_wait_says_until_when(tasks: Path) -> None:
    with (
        ScriptedServer(status(429, headers={"Retry-After": "300"})) as server,
        pytest.raises(EndpointUnusable, match=r"5 minutes' patience .*429.* Ask again after"),
    ):
        check_endpoints(make_spec(tasks, model=model_at(server)))


def test_an_estimate_says_until_when_the_endpoint_asks_to_wait() -> None:
    with pytest.raises(JobFailed) as failed, _told():
        raise EndpointBusy(300.0, "http://e answered 429: slow down.")
    # 300 s are 5 minutes.
    assert str(failed.value).startswith(
        "The endpoint asks for 5 minutes' patience (http://e answered 429: slow down). Ask again"
    )


@pytest.mark.parametrize(
    ("wait_s", "says"),
    [
        # From 04:15:30; the minute that has begun by then counts as the next whole one.
        (300, "5 minutes' patience (busy). Ask again after 04:21 UTC."),
        (20, "a minute's patience (busy). Ask again after 04:16 UTC."),
        (86_400, "24 hours' patience (busy). Ask again after 5 May, 04:16 UTC."),
    ],
)
def test_patience_in_words(wait_s: float, says: str) -> None:
    assert patience(wait_s=wait_s, detail="busy", now=NOW) == f"The endpoint asks for {says}"
