"""Models without a network: recordings and scripts give the same replies every time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.kernel.chat import (
    CallFailed,
    ChatReply,
    ChatRequest,
    Finish,
    Message,
    ToolCall,
)
from workbench.llm.replay import (
    RecordingModel,
    ReplayModel,
    ScriptedAnswer,
    ScriptedModel,
    answers_to,
    read_recording,
)
from workbench.llm.wire import reply_from, reply_json, request_json, request_sha256, storable

TOOL: Mapping[str, Any] = {"type": "function", "function": {"name": "search_skills"}}
REQUEST = ChatRequest(
    messages=(Message("system", "Be brief."), Message("user", "Double 2.")),
    temperature=0.7,
    max_tokens=9,
    seed=1,
)
REPLY = ChatReply(
    content=None,
    finish=Finish.TOOL_CALLS,
    tool_calls=(ToolCall(id="c", name="search_skills", arguments={"query": "x"}),),
    tokens_in=3,
    latency_s=0.5,
    dropped_parameters=("seed",),
)


def many(request: ChatRequest = REQUEST, number: int = 400) -> list[ChatRequest]:
    return [replace(request, seed=seed) for seed in range(number)]


# --- wire -------------------------------------------------------------------


def test_a_reply_survives_json() -> None:
    assert reply_from(json.loads(json.dumps(reply_json(REPLY)))) == REPLY


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, seed=2),
        replace(REQUEST, temperature=0.0),
        replace(REQUEST, max_tokens=10),
        replace(REQUEST, tools=(TOOL,)),
        replace(REQUEST, response_format={"type": "json_object"}),
        replace(REQUEST, messages=REQUEST.messages[1:]),
        replace(REQUEST, messages=(*REQUEST.messages, Message("tool", "x", tool_call_id="c"))),
    ],
)
def test_whatever_decides_the_reply_decides_the_key(other: ChatRequest) -> None:
    assert request_sha256(other) != request_sha256(REQUEST)
    assert request_sha256(replace(other)) == request_sha256(other)


@given(text=st.text(alphabet=st.characters(exclude_categories=()), max_size=20))
def test_any_text_becomes_storable_and_stays_so(text: str) -> None:
    kept = storable(text)
    kept.encode()
    assert "\0" not in kept
    assert storable(kept) == kept
    if text.isprintable() and text.isascii():
        assert kept == text
    request_sha256(replace(REQUEST, messages=(Message("user", text),)))


def test_pairs_of_surrogates_become_the_character_they_mean() -> None:
    assert storable({"a\ud83d\ude00": ["\ud83d", ("b\0",)]}) == {"a😀": ["\ufffd", ["b\ufffd"]]}


# --- recordings -------------------------------------------------------------


class Fixed:
    def __init__(self, *replies: ChatReply | Exception) -> None:
        self._replies = list(replies)

    def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
        reply = self._replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def test_what_was_recorded_is_replayed_in_order(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    second = replace(REPLY, content="second")
    recorder = RecordingModel(Fixed(REPLY, second), path)
    assert [recorder.send(REQUEST), recorder.send(REQUEST)] == [REPLY, second]
    model = ReplayModel(read_recording(path))
    replayed = [model.complete(REQUEST, step=step) for step in range(3)]
    # The last one is repeated.
    assert replayed == [REPLY, second, second]
    # Another subject starts from the beginning.
    assert ReplayModel(read_recording(path)).send(REQUEST) == REPLY


def test_failures_are_passed_on_and_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    recorder = RecordingModel(Fixed(CallFailed("timeout", "x"), REPLY), path)
    with pytest.raises(CallFailed):
        recorder.send(REQUEST)
    assert not path.exists()
    recorder.send(REQUEST)
    assert len(path.read_text().splitlines()) == 1


def test_a_request_that_was_never_recorded_fails_with_its_key() -> None:
    with pytest.raises(CallFailed, match=request_sha256(REQUEST)):
        ReplayModel({}).send(REQUEST)


@pytest.mark.parametrize("line", ["junk", "{}", "[]", '{"request_sha256": "a", "reply": {}}'])
def test_a_broken_recording_names_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "calls.jsonl"
    RecordingModel(Fixed(REPLY), path).send(REQUEST)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"calls\.jsonl:2"):
        read_recording(path)


# --- scripts ----------------------------------------------------------------


def test_the_same_request_gets_the_same_reply() -> None:
    requests = many(replace(REQUEST, tools=(TOOL,)), 50)
    first = [ScriptedModel().send(request) for request in requests]
    assert first == [ScriptedModel().complete(request, step=0) for request in requests]
    assert len({reply.content for reply in first}) == 3


def test_shares_are_kept() -> None:
    model = ScriptedModel(search=0.25, right=0.75)
    searching = [model.send(r) for r in many(replace(REQUEST, tools=(TOOL,)))]
    # 400 coins: 0.25 +- 4 standard deviations of sqrt(0.25 * 0.75 / 400) = 0.022
    assert abs(sum(bool(reply.tool_calls) for reply in searching) / 400 - 0.25) < 0.09
    right = [model.send(r).content == "\\boxed{right}" for r in many()]
    assert abs(sum(right) / 400 - 0.75) < 0.09


@pytest.mark.parametrize(("share", "calls"), [(0.0, 0), (1.0, 400)])
def test_the_ends_of_a_share_are_certain(share: float, calls: int) -> None:
    model = ScriptedModel(search=share)
    replies = [model.send(r) for r in many(replace(REQUEST, tools=(TOOL,)))]
    assert sum(bool(reply.tool_calls) for reply in replies) == calls


def test_decisions_are_json_and_answers_are_not() -> None:
    model = ScriptedModel(search=0.5)
    formatted = replace(REQUEST, response_format={"type": "json_schema"})
    decisions = [json.loads(model.send(r).content or "") for r in many(formatted)]
    assert {decision["action"] for decision in decisions} == {"search_skills", "answer"}
    assert {d["query"] for d in decisions if d["action"] == "search_skills"} == {"Double 2."}
    # No tool and no format: it can only answer.
    assert all(not model.send(r).tool_calls for r in many())


def test_a_skill_in_the_context_changes_the_share_of_right_answers() -> None:
    model = ScriptedModel(right=1.0, right_with_skills=0.0)
    shown = replace(REQUEST, messages=(*REQUEST.messages, Message("tool", "[skill 1: x]\nDo.")))
    assert model.send(REQUEST).content == "\\boxed{right}"
    assert model.send(shown).content == "\\boxed{wrong}"


def test_known_tasks_get_their_answers(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    tasks: list[dict[str, Any]] = [
        {
            "kind": "code",
            "prompt": "Double 2.",
            "checker": {"entry": "f"},
            "reference": "def f():\n    return 4",
        },
        {"kind": "maths", "prompt": "What is 2 + 2?", "checker": {"gold": "4"}},
    ]
    path.write_text("\n".join(map(json.dumps, tasks)))
    assert answers_to(path) == (
        ScriptedAnswer(
            when="Double 2.",
            right="```python\ndef f():\n    return 4\n```",
            wrong="```python\ndef f(*_, **__):\n    return None\n```",
        ),
        ScriptedAnswer(when="What is 2 + 2?", right="\\boxed{4}", wrong="\\boxed{wrong}"),
    )
    reply = ScriptedModel(right=1.0, answers=answers_to(path)).send(REQUEST)
    assert reply.content == "```python\ndef f():\n    return 4\n```"


def test_request_json_is_plain_and_leaves_nothing_out() -> None:
    call = ToolCall(id="c", name="n", arguments="{}")
    request = replace(
        REQUEST,
        messages=(Message("assistant", None, (call,)), Message("tool", "x", tool_call_id="c")),
    )
    assert request_json(request) == {
        "messages": [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c", "name": "n", "arguments": "{}"}],
            },
            {"role": "tool", "content": "x", "tool_call_id": "c"},
        ],
        "temperature": 0.7,
        "max_tokens": 9,
        "seed": 1,
        "tools": [],
        "response_format": None,
    }
