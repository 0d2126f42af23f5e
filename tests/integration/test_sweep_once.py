"""One sweep by hand: it tells the workers of a running serve, or says that it could not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from celery import current_app
from django.core.management import CommandError, call_command

from runs.services import lifecycle
from tests.experiments import make_spec, plan, write_tasks
from tests.factories import NOW
from workbench.kernel import dispatch
from workbench.supervise.processes import started_at

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def due(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A running experiment, and the brokers that messages are sent to."""
    settings.DATA_DIR = tmp_path
    monkeypatch.delenv("BROKER_URL", raising=False)
    experiment = plan(make_spec(write_tasks(tmp_path / "counting.jsonl")))
    brokers: list[str] = []
    real = dispatch.current_app.send_task

    def send(*args: Any, **options: Any) -> Any:
        brokers.append(str(current_app.conf.broker_url))
        return real(*args, **options)

    with monkeypatch.context() as quiet:
        quiet.setattr(dispatch, "_send", lambda *_: None)
        lifecycle.start(experiment=experiment, actor=None, at=NOW)
    monkeypatch.setattr(dispatch.current_app, "send_task", send)
    return brokers


def record(folder: Path, broker: str) -> None:
    live = {
        "pid": os.getpid(),
        "started": started_at(os.getpid()),
        "environment": {"BROKER_URL": broker},
    }
    (folder / "services.json").write_text(json.dumps(live))


def test_a_sweep_beside_a_running_serve_uses_its_broker(due: list[str], tmp_path: Path) -> None:
    before = current_app.conf.broker_url
    record(tmp_path, "memory://")
    call_command("sweep", once=True)
    assert set(due) == {"memory://"}
    assert len(due) >= 24  # every execution of the plan, and what else is due
    assert current_app.conf.broker_url == before


def test_a_sweep_that_reaches_no_workers_says_so(
    due: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    record(tmp_path, f"redis+socket://{tmp_path}/gone.sock")
    with pytest.raises(CommandError, match=r"no broker takes messages .* Start serve"):
        call_command("sweep", once=True)
    assert "could not publish" not in caplog.text
