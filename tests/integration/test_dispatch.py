"""Publishing: after the commit, and without a broker nothing is lost but the hint."""

from __future__ import annotations

from typing import Any

import pytest
from celery import current_app
from django.db import transaction

from workbench.kernel.dispatch import publish


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def send_task(name: str, *, kwargs: dict[str, Any], **_: Any) -> None:
        names.append(f"{name}({kwargs['uid']})")

    monkeypatch.setattr(current_app, "send_task", send_task)
    return names


@pytest.mark.django_db(transaction=True)
def test_messages_leave_after_the_commit(sent: list[str]) -> None:
    with transaction.atomic():
        publish("work", ["a", "b"], queue="default")
        assert sent == []
    assert sent == ["work(a)", "work(b)"]


@pytest.mark.django_db(transaction=True)
def test_a_rollback_sends_nothing(sent: list[str]) -> None:
    class Undo(Exception):
        pass

    def doomed() -> None:
        with transaction.atomic():
            publish("work", ["a"], queue="default")
            raise Undo

    with pytest.raises(Undo):
        doomed()
    assert sent == []


@pytest.mark.django_db(transaction=True)
def test_without_a_broker_the_first_failure_is_enough(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[str] = []

    def send_task(name: str, **_: Any) -> None:
        tried.append(name)
        raise ConnectionError("no broker")

    monkeypatch.setattr(current_app, "send_task", send_task)
    publish("work", ["a", "b", "c"], queue="default")
    assert tried == ["work"]
    assert "the sweep will" in caplog.text
