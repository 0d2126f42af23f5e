"""The two arms of a pair: what is sent, what is executed, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain import prompts
from runs.domain.agent import (
    AgentSettings,
    AgentStopped,
    Contaminated,
    Dialect,
    ReturnedSkill,
    SearchTool,
    Status,
    Trace,
    contamination,
    plain_request,
    run_agent,
)
from runs.domain.tasks import Kind
from skills.domain.search_tool import SEARCH_SKILLS_TOOL
from workbench.kernel.chat import (
    CallFailed,
    ChatReply,
    ChatRequest,
    EndpointBusy,
    EndpointFault,
    Finish,
    Message,
    ToolCall,
)
from workbench.llm.openai import read_reply
from workbench.llm.wire import request_json

SETTINGS = AgentSettings(temperature=0.7, max_tokens=8192)
JSON_ACTION = replace(SETTINGS, dialect=Dialect.JSON_ACTION)
CODE = "```python\ndef f():\n    return 1\n```"
HITS = {
    "sorted lookup": ["binary-search", "two-pointers", "heap"],
    "counting": ["counting-hash"],
}


class Script:
    """A model that gives prepared replies in turn and keeps the requests it got."""

    def __init__(self, *replies: ChatReply | Exception) -> None:
        self._replies = list(replies)
        self.requests: list[ChatRequest] = []

    def complete(self, request: ChatRequest, *, step: int) -> ChatReply:
        assert step == len(self.requests)
        self.requests.append(request)
        reply = self._replies[step]
        if isinstance(reply, Exception):
            raise reply
        return reply


class Library:
    """A search tool over a fixed table that keeps the queries it was asked."""

    def __init__(self, hits: dict[str, list[str]] | None = None) -> None:
        self._hits = HITS if hits is None else hits
        self.queries: list[tuple[str, tuple[str, ...] | None]] = []

    def __call__(self, query: str, types: tuple[str, ...] | None) -> Sequence[ReturnedSkill]:
        self.queries.append((query, types))
        return [
            ReturnedSkill(id=slug, name=slug, text=f"# {slug}\nDo it.", score=1 / rank, rank=rank)
            for rank, slug in enumerate(self._hits.get(query, []), start=1)
        ]


def say(text: str | None, finish: Finish = Finish.STOP, **more: Any) -> ChatReply:
    return ChatReply(content=text, finish=finish, **more)


def call(arguments: Any, id: str = "c1", name: str = "search_skills", **more: Any) -> ChatReply:
    calls = (ToolCall(id=id, name=name, arguments=arguments),)
    return ChatReply(**{"content": None, "finish": Finish.TOOL_CALLS, "tool_calls": calls, **more})


def decide(query: str | None) -> ChatReply:
    action = "answer" if query is None else "search_skills"
    return say(json.dumps({"action": action, "query": query or ""}))


def run(
    model: Script,
    *,
    search: SearchTool | None = None,
    exposed: bool = True,
    settings: AgentSettings = SETTINGS,
    kind: str = "code",
    prompt: str = "Write f.",
) -> Trace:
    return run_agent(
        model=model,
        kind=kind,
        prompt=prompt,
        exposed=exposed,
        search=Library() if search is None and exposed else search,
        settings=settings,
        seed=7,
    )


def counters(trace: Trace, model: Script) -> dict[str, Any]:
    return {
        "invocations": trace.invocations,
        "executed": [search.query for search in trace.searches if search.executed],
        "skills_returned": len(trace.returned_ids),
        "in_cond": trace.retrieved,
        "answered_ids": [
            message.tool_call_id
            for message in model.requests[-1].messages
            if message.role == "tool"
        ],
    }


def raw(arguments: Any, id: str) -> dict[str, Any]:
    """One chat completion body that calls the tool with ``arguments`` as they are."""
    function = {"name": "search_skills", "arguments": arguments}
    calls = [{"id": id, "type": "function", "function": function}]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


FINAL = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": CODE}, "finish_reason": "stop"}
    ],
    "usage": {"total_tokens": 50},
}


# --- published cases --------------------------------------------------------


def test_case_G01() -> None:
    bodies = [raw("", "c1"), raw('{"query": "sorted lo', "c2"), raw("{}", "c3"), FINAL]
    model = Script(*map(read_reply, bodies))
    library = Library({"": ["binary-search"], **HITS})
    trace = run(model, search=library)
    assert counters(trace, model) == {
        "invocations": 3,
        "executed": [],
        "skills_returned": 0,
        "in_cond": False,
        "answered_ids": ["c1", "c2", "c3"],
    }
    assert library.queries == []
    assert (trace.answer, trace.status) == (CODE, Status.ANSWERED)


def test_case_G02() -> None:
    bodies = [
        raw({"query": "counting"}, "c1"),
        raw('"counting"', "c2"),
        raw('{"query": ["counting"]}', "c3"),
        FINAL,
    ]
    model = Script(*map(read_reply, bodies))
    trace = run(model)
    assert counters(trace, model) == {
        "invocations": 3,
        "executed": ["counting"],
        "skills_returned": 1,
        "in_cond": True,
        "answered_ids": ["c1", "c2", "c3"],
    }


@pytest.mark.parametrize("exposed", [True, False])
@pytest.mark.parametrize(
    ("message", "reason", "status"),
    [
        ({"content": None, "reasoning_content": CODE}, "length", Status.TRUNCATED),
        ({"content": None}, "content_filter", Status.FILTERED),
    ],
)
def test_case_G05(exposed: bool, message: dict[str, Any], reason: str, status: Status) -> None:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    trace = run(Script(read_reply({"choices": [choice], "usage": None})), exposed=exposed)
    assert (trace.answer, trace.status) == ("", status)
    assert (trace.tokens_in, trace.tokens_out) == (None, None)


# --- prompts ----------------------------------------------------------------


def test_code_prompts_are_the_papers() -> None:
    assert prompts.system_prompt(kind="code", exposed=True) == (
        "You are a helpful assistant. You have a `search_skills` tool that searches a skill "
        "library. Use it if you think it could help solve the task. Implement the requested "
        "function with the exact signature. Reply inside a ```python block — only the function, "
        "no test code."
    )
    assert prompts.system_prompt(kind="code", exposed=False) == (
        "You are a helpful assistant. Implement the requested function with the exact "
        "signature. Reply inside a ```python block — only the function, no test code."
    )


@pytest.mark.parametrize("kind", list(Kind))
def test_arms_differ_by_the_tool_sentences_alone(kind: str) -> None:
    sd = prompts.system_prompt(kind=kind, exposed=False)
    se = prompts.system_prompt(kind=kind, exposed=True)
    assert se.replace(prompts._TOOL_SENTENCES + " ", "") == sd
    assert "search" not in sd
    assert "skill" not in sd


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="poem"):
        run(Script(), kind="poem", exposed=False)


def test_prompts_hash_tells_arms_and_dialects_apart() -> None:
    native = prompts.prompts_sha256(exposed=True, dialect="native")
    assert native != prompts.prompts_sha256(exposed=True, dialect="json_action")
    assert native != prompts.prompts_sha256(exposed=False, dialect="native")
    # SD sends the same texts whatever the dialect, so its executions can be shared.
    assert prompts.prompts_sha256(exposed=False, dialect="native") == prompts.prompts_sha256(
        exposed=False, dialect="json_action"
    )


# --- native dialect ---------------------------------------------------------


def test_unexposed_arm_sends_one_plain_request() -> None:
    model = Script(say(CODE, tokens_in=10, tokens_out=5, latency_s=0.5))
    trace = run(model, exposed=False)
    (request,) = model.requests
    assert request == plain_request(kind="code", prompt="Write f.", settings=SETTINGS, seed=7)
    assert (request.tools, request.response_format) == ((), None)
    assert (request.temperature, request.max_tokens, request.seed) == (0.7, 8192, 7)
    assert (trace.turns, trace.invocations, trace.retrieved) == (1, 0, False)
    assert (trace.tokens_in, trace.tokens_out, trace.latency_s) == (10, 5, 0.5)


def test_skills_are_returned_in_full_between_fixed_marks() -> None:
    model = Script(call('{"query": "sorted lookup", "types": ["utility"]}'), say(CODE))
    library = Library()
    trace = run(model, search=library)
    first, second = model.requests
    assert first.tools == second.tools == (SEARCH_SKILLS_TOOL,)
    assert library.queries == [("sorted lookup", ("utility",))]
    assistant, result = second.messages[2:]
    assert (assistant.role, assistant.tool_calls[0].id) == ("assistant", "c1")
    assert result == Message(
        role="tool",
        tool_call_id="c1",
        content=(
            "[skill 1: binary-search]\n# binary-search\nDo it.\n[end of skill 1]\n\n"
            "[skill 2: two-pointers]\n# two-pointers\nDo it.\n[end of skill 2]\n\n"
            "[skill 3: heap]\n# heap\nDo it.\n[end of skill 3]"
        ),
    )
    assert trace.returned_ids == trace.loaded_ids == ("binary-search", "two-pointers", "heap")
    assert [ref.rank for ref in trace.searches[0].returned] == [1, 2, 3]
    assert (trace.turns, trace.retrieved) == (2, True)


def test_search_without_hits_is_invoked_but_not_retrieved() -> None:
    model = Script(call('{"query": "nothing"}'), say(CODE))
    trace = run(model)
    assert (trace.invocations, trace.retrieved, trace.searches[0].executed) == (1, False, True)
    assert model.requests[1].messages[-1].content == prompts.NO_SKILL_FOUND


def test_only_the_first_of_several_calls_is_run_and_replayed() -> None:
    calls = tuple(
        ToolCall(id=id, name="search_skills", arguments=json.dumps({"query": query}))
        for id, query in [("a", "counting"), ("a", "sorted lookup"), ("b", "heap")]
    )
    model = Script(say(None, Finish.TOOL_CALLS, tool_calls=calls), say(CODE))
    library = Library()
    trace = run(model, search=library)
    assert [query for query, _ in library.queries] == ["counting"]
    assistant, result = model.requests[1].messages[2:]
    assert [call.id for call in assistant.tool_calls] == ["a"]
    assert result.tool_call_id == "a"
    assert (trace.dropped_calls, trace.invocations) == (2, 1)


def test_fourth_search_gets_no_calls_left() -> None:
    ask = ['{"query": "counting"}', '{"query": "none"}', '{"query": "sorted lookup"}', "{}"]
    model = Script(*(call(a, id=f"c{n}") for n, a in enumerate(ask, start=1)), say(CODE))
    library = Library()
    trace = run(model, search=library)
    assert len(library.queries) == 3
    # Three searches with the tool, the final turn and the one after the refusal without.
    assert [bool(request.tools) for request in model.requests] == [True] * 3 + [False] * 2
    assert model.requests[4].messages[-1].content == prompts.NO_CALLS_LEFT
    assert [search.reason for search in trace.searches] == [None, None, None, "no_calls_left"]
    assert (trace.turns, trace.answer) == (5, CODE)


def test_a_model_that_never_stops_calling_ends_without_an_answer() -> None:
    model = Script(*(call('{"query": "counting"}', id=f"c{n}") for n in range(9)))
    trace = run(model)
    assert (trace.turns, trace.status, trace.answer) == (5, Status.EMPTY, "")
    assert trace.dropped_calls == 1


def test_text_beside_a_call_past_the_limit_is_the_answer() -> None:
    more = [call('{"query": "counting"}', id=f"c{n}") for n in range(4)]
    model = Script(*more, call("{}", content=CODE))
    assert run(model).answer == CODE


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (None, "not_object"),
        (["counting"], "not_object"),
        ('{"query": "counting", "types": ["spell"]}', "unknown_type"),
        ('{"query": "  "}', "blank_query"),
        ("[" * 100_000, "not_json"),
        ('{"query": "\\ud800"}', "broken_query"),
    ],
)
def test_invalid_arguments_return_no_skill(arguments: Any, reason: str) -> None:
    model = Script(call(arguments), say(CODE))
    library = Library()
    trace = run(model, search=library)
    (search,) = trace.searches
    assert (search.valid, search.executed, search.reason) == (False, False, reason)
    assert (library.queries, trace.invocations) == ([], 1)
    assistant, result = model.requests[1].messages[2:]
    # Servers decode replayed arguments: they get a JSON object whatever was sent.
    assert isinstance(json.loads(assistant.tool_calls[0].arguments), dict)
    assert str(result.content).startswith("Invalid arguments: ")
    json.dumps(trace.to_json(), allow_nan=False).encode()


def test_arguments_as_an_object_are_replayed_as_text() -> None:
    model = Script(call({"query": "counting"}), say(CODE))
    assert run(model).retrieved
    replayed = model.requests[1].messages[2].tool_calls[0].arguments
    assert json.loads(replayed) == {"query": "counting"}


def test_unknown_function_is_answered_but_is_no_invocation() -> None:
    model = Script(call('{"query": "counting"}', name="python"), say(CODE))
    library = Library()
    trace = run(model, search=library)
    assert (trace.invocations, library.queries) == (0, [])
    assert trace.searches[0].reason == "unknown_tool"
    assert model.requests[1].messages[-1].content == prompts.UNKNOWN_TOOL


def test_missing_ids_and_names_are_filled_in_for_the_replay() -> None:
    nameless = ToolCall(id="", name="", arguments=None)
    model = Script(
        call('{"query": "counting"}', id=""), say(None, tool_calls=(nameless,)), say(CODE)
    )
    run(model)
    messages = model.requests[2].messages
    assert [m.tool_call_id for m in messages if m.role == "tool"] == ["call_0", "call_1"]
    assert messages[4].tool_calls[0].name == "unknown"


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
def test_a_call_counts_whatever_the_finish_reason(finish: Finish) -> None:
    model = Script(call('{"query": "counting"}', finish=finish), say(CODE))
    assert run(model).retrieved


def test_finish_tool_calls_without_a_call_is_an_answer() -> None:
    assert run(Script(say(CODE, Finish.TOOL_CALLS))).answer == CODE


@pytest.mark.parametrize(
    ("reply", "answer", "status"),
    [
        (say(CODE), CODE, Status.ANSWERED),
        (say("half a", Finish.LENGTH), "half a", Status.TRUNCATED),
        (say("half a", Finish.CONTENT_FILTER), "half a", Status.FILTERED),
        (say(None, Finish.CONTEXT_OVERFLOW), "", Status.CONTEXT_OVERFLOW),
        (say("half a", Finish.CONTEXT_OVERFLOW), "", Status.CONTEXT_OVERFLOW),
        (say(None), "", Status.EMPTY),
        (say(" \n"), "", Status.EMPTY),
        (say(None, reasoning=CODE), "", Status.EMPTY),
    ],
)
def test_how_an_arm_ends(reply: ChatReply, answer: str, status: Status) -> None:
    for exposed in (True, False):
        trace = run(Script(reply), exposed=exposed)
        assert (trace.answer, trace.status) == (answer, status)


def test_context_overflow_after_a_search_keeps_what_was_returned() -> None:
    trace = run(Script(call('{"query": "counting"}'), say(None, Finish.CONTEXT_OVERFLOW)))
    assert (trace.status, trace.retrieved) == (Status.CONTEXT_OVERFLOW, True)


def test_unknown_usage_of_one_step_makes_the_sum_unknown() -> None:
    first = call('{"query": "counting"}', tokens_in=100, tokens_out=20, latency_s=1.0)
    both = run(Script(first, say(CODE, tokens_in=300, tokens_out=40, latency_s=2.0)))
    # 100 + 300, 20 + 40, 1 + 2
    assert (both.tokens_in, both.tokens_out, both.latency_s) == (400, 60, 3.0)
    one = run(Script(first, say(CODE, tokens_in=300)))
    assert (one.tokens_in, one.tokens_out, one.latency_s) == (400, None, None)


def test_dropped_parameters_of_all_steps_are_reported() -> None:
    first = call('{"query": "counting"}', dropped_parameters=("seed",))
    trace = run(Script(first, say(CODE, dropped_parameters=("seed", "temperature"))))
    assert trace.dropped_parameters == ("seed", "temperature")


# --- failures ---------------------------------------------------------------


@pytest.mark.parametrize(
    "failure",
    [
        CallFailed("timeout", "silence"),
        EndpointBusy(3600.0, "slow down"),
        EndpointFault("wrong_key", "refused"),
    ],
)
@pytest.mark.parametrize("settings", [SETTINGS, JSON_ACTION])
def test_partial_trace_travels_on_the_exception(
    failure: CallFailed | EndpointBusy | EndpointFault, settings: AgentSettings
) -> None:
    native = settings.dialect is Dialect.NATIVE
    first = call('{"query": "counting"}') if native else decide("counting")
    with pytest.raises(AgentStopped) as stopped:
        run(Script(first, failure), settings=settings)
    assert stopped.value.cause is failure
    trace = stopped.value.trace
    assert (trace.returned_ids, trace.turns, trace.status) == (("counting-hash",), 1, None)
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


def test_a_fault_of_the_search_tool_is_not_swallowed() -> None:
    def broken(query: str, types: tuple[str, ...] | None) -> Sequence[ReturnedSkill]:
        raise LookupError(query)

    with pytest.raises(LookupError):
        run(Script(call('{"query": "counting"}')), search=broken)


def test_exposed_arm_needs_a_search_tool() -> None:
    with pytest.raises(ValueError, match="search tool"):
        run_agent(
            model=Script(),
            kind="code",
            prompt="p",
            exposed=True,
            search=None,
            settings=SETTINGS,
            seed=1,
        )


# --- contamination ----------------------------------------------------------


def test_unexposed_arm_never_searches() -> None:
    library = Library()
    trace = run(Script(call('{"query": "counting"}')), exposed=False, search=library)
    assert (library.queries, trace.searches, trace.dropped_calls) == ([], (), 1)
    assert (trace.status, trace.retrieved) == (Status.EMPTY, False)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda request: replace(request, tools=(SEARCH_SKILLS_TOOL,)),
        lambda request: replace(
            request,
            messages=(
                Message("system", prompts.system_prompt(kind="code", exposed=True)),
                *request.messages[1:],
            ),
        ),
        lambda request: replace(
            request, messages=(*request.messages, Message("tool", "[skill 1: heap]"))
        ),
        lambda request: replace(
            request, messages=(request.messages[0], Message("user", "Write f.\n\n[skill 1: heap]"))
        ),
    ],
)
def test_what_must_not_reach_an_unexposed_arm_stops_it(
    spoil: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = plain_request(kind="code", prompt="Write f.", settings=SETTINGS, seed=7)
    assert contamination(clean, prompt="Write f.") is None
    monkeypatch.setattr("runs.domain.agent.plain_request", lambda **_: spoil(clean))
    model = Script(say(CODE))
    with pytest.raises(Contaminated):
        run(model, exposed=False)
    assert model.requests == []


def test_without_the_guard_the_spoilt_request_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = plain_request(kind="code", prompt="Write f.", settings=SETTINGS, seed=7)
    spoilt = replace(clean, tools=(SEARCH_SKILLS_TOOL,))
    monkeypatch.setattr("runs.domain.agent.plain_request", lambda **_: spoilt)
    monkeypatch.setattr("runs.domain.agent.contamination", lambda *_, **__: None)
    model = Script(say(CODE))
    run(model, exposed=False)
    assert model.requests == [spoilt]


@pytest.mark.parametrize("settings", [SETTINGS, JSON_ACTION])
def test_a_skill_where_the_control_returns_none_stops_the_arm(settings: AgentSettings) -> None:
    native = settings.dialect is Dialect.NATIVE
    first = call('{"query": "counting"}') if native else decide("counting")
    with pytest.raises(Contaminated) as stopped:
        run(Script(first, say(CODE)), settings=replace(settings, k=0))
    assert stopped.value.trace.returned_ids == ("counting-hash",)
    # The same arm is fine when the control keeps its word.
    replies = [first, say(CODE)] if native else [first, decide(None), say(CODE)]
    kept = run(Script(*replies), settings=replace(settings, k=0), search=Library({}))
    assert (kept.invocations, kept.retrieved, kept.answer) == (1, False, CODE)


def test_a_task_that_names_the_tool_is_no_contamination() -> None:
    prompt = "Write search_skills(query)."
    assert run(Script(say(CODE)), exposed=False, prompt=prompt).answer == CODE


# --- json_action dialect ----------------------------------------------------


def test_declined_search_sends_the_answer_request_of_sd_byte_for_byte() -> None:
    sd, se = Script(say(CODE)), Script(decide(None), say(CODE))
    run(sd, exposed=False, settings=JSON_ACTION)
    trace = run(se, settings=JSON_ACTION)
    decision, answer = se.requests
    assert answer == sd.requests[0]
    assert json.dumps(request_json(answer)) == json.dumps(request_json(sd.requests[0]))
    assert decision.response_format == prompts.DECISION_FORMAT
    assert (decision.max_tokens, decision.tools) == (256, ())
    assert (trace.invocations, trace.turns, trace.answer) == (0, 2, CODE)
    assert [step.decision for step in trace.steps] == [True, False]


@pytest.mark.parametrize(
    "decisions",
    [
        [decide("nothing"), decide(None)],
        [decide(" "), decide("nothing"), decide(" ")],
        [say('{"action": "search_skills"}'), decide(None)],
        [say("I would rather not.")],
        [say(None, Finish.CONTENT_FILTER)],
        [say(None, Finish.CONTEXT_OVERFLOW)],
        [say('{"action": "search_skills", "query": "coun', Finish.LENGTH)],
        [say('{"action": "search_skills", "query": NaN}')],
        [say('{"action": "dance", "query": "counting"}')],
        [say('["search_skills", "counting"]')],
    ],
)
def test_whenever_nothing_is_returned_the_answer_request_is_that_of_sd(
    decisions: list[ChatReply],
) -> None:
    sd, se = Script(say(CODE)), Script(*decisions, say(CODE))
    run(sd, exposed=False, settings=JSON_ACTION)
    trace = run(se, settings=JSON_ACTION)
    assert se.requests[-1] == sd.requests[0]
    assert (trace.retrieved, trace.answer) == (False, CODE)


def test_returned_skills_stand_after_the_task_in_an_unconstrained_turn() -> None:
    model = Script(decide("counting"), decide("sorted lookup"), decide("counting"), say(CODE))
    trace = run(model, settings=JSON_ACTION)
    # Three searches are the limit: no fourth decision is asked for.
    assert [bool(request.response_format) for request in model.requests] == [True] * 3 + [False]
    sd = plain_request(kind="code", prompt="Write f.", settings=JSON_ACTION, seed=7)
    answer = model.requests[-1]
    assert replace(answer, messages=()) == replace(sd, messages=())
    assert answer.messages[0] == sd.messages[0]
    text = str(answer.messages[1].content)
    assert text.startswith("Write f.\n\n")
    # A skill that came back twice is shown once.
    assert [text.count(f"# {slug}\n") for slug in ("counting-hash", "binary-search")] == [1, 1]
    assert trace.returned_ids == ("counting-hash", "binary-search", "two-pointers", "heap")
    # The second decision saw what the first search returned.
    assert "# counting-hash" in str(model.requests[1].messages[-1].content)


def test_a_decision_in_a_fence_is_read() -> None:
    fenced = say('Sure:\n```json\n{"action": "search_skills", "query": "counting"}\n```')
    trace = run(Script(fenced, decide(None), say(CODE)), settings=JSON_ACTION)
    assert (trace.retrieved, trace.malformed_decisions) == (True, 0)


def test_a_malformed_decision_is_counted_and_is_no_invocation() -> None:
    trace = run(Script(say("Hm."), say(CODE)), settings=JSON_ACTION)
    assert (trace.malformed_decisions, trace.invocations) == (1, 0)


def test_task_text_with_braces_stays_as_it_is() -> None:
    model = Script(decide("counting"), decide(None), say(CODE))
    run(model, settings=JSON_ACTION, prompt="Use {skills} and {0}.")
    assert str(model.requests[-1].messages[1].content).startswith("Use {skills} and {0}.\n\n")


# --- trace ------------------------------------------------------------------

TEXTS = st.one_of(st.none(), st.text(max_size=8))
ARGUMENTS = st.one_of(
    st.none(),
    st.sampled_from(['{"query": "counting"}', '{"query": "sorted lookup"}', "", "{}", "[1]"]),
    st.dictionaries(st.sampled_from(["query", "types"]), st.text(max_size=5)),
    st.lists(st.integers(), max_size=2),
)
CALLS = st.builds(
    ToolCall,
    id=st.text(max_size=2),
    name=st.sampled_from(["search_skills", "x"]),
    arguments=ARGUMENTS,
)
REPLIES = st.builds(
    ChatReply,
    content=st.one_of(TEXTS, st.just('{"action": "search_skills", "query": "counting"}')),
    finish=st.sampled_from(Finish),
    tool_calls=st.lists(CALLS, max_size=2).map(tuple),
    tokens_in=st.one_of(st.none(), st.integers(0, 9)),
    tokens_out=st.one_of(st.none(), st.integers(0, 9)),
    dropped_parameters=st.lists(st.sampled_from(["seed", "temperature"]), max_size=2).map(tuple),
)


@given(
    replies=st.lists(REPLIES, min_size=5, max_size=5),
    exposed=st.booleans(),
    settings=st.sampled_from([SETTINGS, JSON_ACTION]),
)
def test_any_replies_end_in_a_whole_trace(
    replies: list[ChatReply], exposed: bool, settings: AgentSettings
) -> None:
    model = Script(*replies)
    trace = run(model, exposed=exposed, settings=settings)
    assert Trace.from_json(json.loads(json.dumps(trace.to_json()))) == trace
    assert [trace.messages_of(n) for n in range(trace.turns)] == [
        request.messages for request in model.requests
    ]
    for request in model.requests:
        answered = [m.tool_call_id for m in request.messages if m.role == "tool"]
        asked = [call.id for m in request.messages for call in m.tool_calls]
        assert answered == asked
    # Every call that was made is either answered or counted as dropped.
    native = settings.dialect is Dialect.NATIVE or not exposed
    made = sum(len(step.reply.tool_calls) for step in trace.steps)
    assert made == trace.dropped_calls + (len(trace.searches) if native else 0)
    assert trace.turns <= 5
    assert trace.retrieved == any(search.returned for search in trace.searches)
