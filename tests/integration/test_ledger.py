"""The call ledger, the gate and the factory, against a real server on loopback.

Every test of a misbehaving server ends in the same question: does the ledger
account for each request that the server saw?
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.serializers import serialize
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from runs.domain.agent import AgentSettings, ReturnedSkill, run_agent
from tests import scripted_server as scripted
from tests.scripted_server import Behaviour, ScriptedServer
from workbench.kernel.chat import (
    CallFailed,
    ChatReply,
    ChatRequest,
    EndpointBusy,
    EndpointFault,
    Finish,
    Message,
)
from workbench.llm import limits
from workbench.llm.factory import BadEndpoint, chat_model_for, probe_endpoint
from workbench.llm.ledger import LedgeredModel, maybe_billed, recording_of
from workbench.llm.limits import EndpointGateKeeper, GatePolicy
from workbench.llm.replay import ReplayModel, read_recording
from workbench.llm.retry import RetryPolicy, Timing
from workbench.llm.wire import request_sha256
from workbench.models import Call, EndpointGate

pytestmark = pytest.mark.django_db

KEY_ENV = "TEST_ENDPOINT_KEY"
CANARY = "sk-canary-0123456789"
START = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = uuid.UUID(int=1)
REQUEST = ChatRequest(
    messages=(Message("user", "Double 2."),), temperature=0.7, max_tokens=9, seed=1
)


class Clock:
    """A clock that only sleeping moves, and that keeps what was slept."""

    def __init__(self) -> None:
        self.now = START
        self.slept: list[float] = []
        self.timing = Timing(now=lambda: self.now, sleep=self.sleep, random=lambda: 0.5)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)


Serve = Callable[..., tuple[dict[str, Any], ScriptedServer]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Return a function that starts a scripted server and gives its endpoint."""
    monkeypatch.setenv(KEY_ENV, CANARY)
    servers: list[ScriptedServer] = []

    def start(*behaviours: Behaviour, **more: Any) -> tuple[dict[str, Any], ScriptedServer]:
        server = ScriptedServer(*behaviours)
        server.__enter__()
        servers.append(server)
        endpoint = {
            "label": "test",
            "base_url": server.base_url,
            "api_key_env": KEY_ENV,
            "model": "m",
            "timeouts": {"connect_s": 1.0, "read_s": 0.2},
            **more,
        }
        return endpoint, server

    yield start
    for server in servers:
        server.__exit__()


def model_at(endpoint: dict[str, Any], clock: Clock, subject: uuid.UUID = SUBJECT) -> LedgeredModel:
    model = chat_model_for(endpoint=endpoint, subject=subject, timing=clock.timing)
    assert isinstance(model, LedgeredModel)
    return model


def ledger() -> list[tuple[str, str]]:
    """Return state and failure of every row, in the order of sending."""
    return list(Call.objects.order_by("pk").values_list("state", "failure"))


# --- one request, one row ---------------------------------------------------


@pytest.mark.both_databases
def test_a_completed_call_is_stored_whole(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.reply("4"), price_in=2.0, price_out=6.0)
    reply = model_at(endpoint, clock).complete(REQUEST, step=0)
    call = Call.objects.get()
    assert (call.state, call.try_number, call.request_sha256) == (
        "completed",
        1,
        request_sha256(REQUEST),
    )
    assert call.request["messages"] == [{"role": "user", "content": "Double 2."}]
    assert call.reply is not None
    assert call.reply["content"] == reply.content == "4"
    assert (call.endpoint, call.model) == ("test", "m")
    assert (call.sent_at, call.completed_at) == (START, START)
    # 10 tokens in and 5 out: (10 * 2 + 5 * 6) / 1,000,000
    assert (call.tokens_in, call.tokens_out, call.cost) == (10, 5, 0.00005)
    assert len(server.seen) == 1


@pytest.mark.parametrize("prices", [{}, {"price_in": 1.0}, {"price_out": 1.0}])
def test_an_unknown_price_makes_an_unknown_cost(
    serve: Serve, clock: Clock, prices: dict[str, float]
) -> None:
    endpoint, _ = serve(scripted.reply("4"), **prices)
    model_at(endpoint, clock).complete(REQUEST, step=0)
    assert Call.objects.get().cost is None


def test_unknown_usage_makes_an_unknown_cost(serve: Serve, clock: Clock) -> None:
    endpoint, _ = serve(scripted.reply("4", usage=None), price_in=1.0, price_out=1.0)
    model_at(endpoint, clock).complete(REQUEST, step=0)
    call = Call.objects.get()
    assert (call.tokens_in, call.tokens_out, call.cost) == (None, None, None)


def test_a_price_of_nothing_is_a_known_cost(serve: Serve, clock: Clock) -> None:
    endpoint, _ = serve(scripted.reply("4"), price_in=0.0, price_out=0.0)
    model_at(endpoint, clock).complete(REQUEST, step=0)
    assert Call.objects.get().cost == 0.0


def test_a_completed_call_is_never_made_again(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.reply("first"), scripted.reply("second"))
    first = model_at(endpoint, clock).complete(REQUEST, step=0)
    assert model_at(endpoint, clock).complete(REQUEST, step=0) == first
    assert len(server.seen) == 1
    # Another step, another subject and another request are other calls.
    other = replace(REQUEST, seed=2)
    assert model_at(endpoint, clock).complete(REQUEST, step=1).content == "second"
    assert model_at(endpoint, clock, uuid.UUID(int=2)).complete(REQUEST, step=0) != first
    assert model_at(endpoint, clock).complete(other, step=0) != first
    assert len(server.seen) == Call.objects.count() == 4


def test_the_row_is_there_before_the_request_is_sent(serve: Serve, clock: Clock) -> None:
    states: list[str] = []

    class Watching:
        def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> Any:
            states.extend(Call.objects.values_list("state", flat=True))
            raise KeyboardInterrupt

    endpoint, _ = serve()
    with pytest.raises(KeyboardInterrupt):
        replace(model_at(endpoint, clock), adapter=Watching()).complete(REQUEST, step=0)
    # The worker ended while the request was out: the row still says so.
    assert states == ["sent"]
    assert ledger() == [("sent", "")]


@pytest.mark.django_db(transaction=True)
def test_calls_inside_a_transaction_are_refused(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.reply("4"))
    with pytest.raises(RuntimeError, match="durable"), transaction.atomic():
        model_at(endpoint, clock).complete(REQUEST, step=0)
    assert server.seen == []
    assert model_at(endpoint, clock).complete(REQUEST, step=0).content == "4"


def statements(act: Callable[[], object]) -> list[str]:
    """Return verb and table of the statements that ``act`` makes, without transactions."""
    with CaptureQueriesContext(connection) as captured:
        act()
    words = [query["sql"].split('"') for query in captured.captured_queries]
    return [f"{word[0].split()[0]} {word[1]}" for word in words if "workbench_" in str(word)]


def test_a_call_takes_five_statements_and_a_stored_one_takes_one(
    serve: Serve, clock: Clock
) -> None:
    endpoint, server = serve(scripted.reply("4"))
    keeper(clock).admit()  # the endpoint's row is made once
    look = "SELECT workbench_call"
    send = [
        "SELECT workbench_endpointgate",
        "INSERT workbench_call",
        "UPDATE workbench_call",
    ]
    heard = "SELECT workbench_endpointgate"
    model = model_at(endpoint, clock)
    assert statements(lambda: model.complete(REQUEST, step=0)) == [look, *send, heard]
    assert statements(lambda: model.complete(REQUEST, step=0)) == [look]
    # A retry adds what sends it, no more.
    server.script(scripted.status(500), scripted.reply("4"))
    assert statements(lambda: model.complete(REQUEST, step=1)) == [look, *send, *send, heard]


# --- misbehaving servers ----------------------------------------------------


def test_a_storm_of_429_waits_as_told_and_accounts_for_every_request(
    serve: Serve, clock: Clock
) -> None:
    endpoint, server = serve(
        scripted.status(429, headers={"Retry-After": "2"}),
        scripted.status(429, headers={"retry-after-ms": "1500"}),
        scripted.status(429, headers={"Retry-After": "Thu, 01 Jan 2026 00:00:34 GMT"}),
        scripted.reply("4"),
    )
    assert model_at(endpoint, clock).complete(REQUEST, step=0).content == "4"
    # Each wait and half a second of spread. The third ends 34 s after the start:
    # 34 - (2.5 + 2) = 29.5.
    assert clock.slept == [2.5, 2.0, 30.0]
    assert len(server.seen) == 4
    assert ledger() == [("failed", "rate_limited")] * 3 + [("completed", "")]
    assert list(Call.objects.values_list("try_number", flat=True)) == [1, 2, 3, 4]


def test_an_endless_storm_ends_after_four_requests(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.status(429))
    with pytest.raises(CallFailed) as failed:
        model_at(endpoint, clock).complete(REQUEST, step=0)
    assert failed.value.kind == "rate_limited"
    assert len(server.seen) == Call.objects.count() == 4


def test_an_hours_pause_puts_off_this_call_and_the_next_before_it_is_sent(
    serve: Serve, clock: Clock
) -> None:
    endpoint, server = serve(scripted.status(429, headers={"Retry-After": "3600"}))
    for subject in (1, 2):
        with pytest.raises(EndpointBusy) as busy:
            model_at(endpoint, clock, uuid.UUID(int=subject)).complete(REQUEST, step=0)
        assert busy.value.wait_s == 3600.0
    assert clock.slept == []
    # Only the first was sent, and the ledger has it.
    assert (len(server.seen), ledger()) == (1, [("failed", "rate_limited")])
    assert Call.objects.get().subject == uuid.UUID(int=1)
    server.script(scripted.reply("4"))
    clock.now += timedelta(seconds=3600)
    assert model_at(endpoint, clock, uuid.UUID(int=2)).complete(REQUEST, step=0).content == "4"


def test_server_errors_are_tried_again(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(
        scripted.status(500), scripted.status(503), scripted.status(529), scripted.reply("4")
    )
    assert model_at(endpoint, clock).complete(REQUEST, step=0).content == "4"
    assert ledger() == [("failed", "server_error")] * 3 + [("completed", "")]
    assert len(server.seen) == 4
    assert clock.slept == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("behaviour", "kind"), [(scripted.hang(), "timeout"), (scripted.cut(), "incomplete")]
)
def test_a_doubtful_request_is_repeated_once_and_recorded_as_perhaps_billed(
    behaviour: Behaviour, kind: str, serve: Serve, clock: Clock
) -> None:
    endpoint, server = serve(behaviour)
    with pytest.raises(CallFailed) as failed:
        model_at(endpoint, clock).complete(REQUEST, step=0)
    assert failed.value.kind == kind
    assert ledger() == [("failed", kind)] * 2
    assert all(map(maybe_billed, Call.objects.all()))
    assert not Call.objects.exclude(reply=None).exists()
    server.script(behaviour, scripted.reply("4"))
    assert model_at(endpoint, clock).complete(REQUEST, step=1).content == "4"
    assert len(server.seen) == Call.objects.count() == 4


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (scripted.hang(), "timeout"),
        (scripted.cut(), "incomplete"),
        (scripted.reply("worked for, but its end isn't marked", finish=None), "incomplete"),
    ],
)
def test_a_later_run_of_the_call_does_not_repeat_what_was_repeated(
    behaviour: Behaviour, kind: str, serve: Serve, clock: Clock
) -> None:
    endpoint, server = serve(behaviour)
    for _ in range(3):
        with pytest.raises(CallFailed) as failed:
            model_at(endpoint, clock).complete(REQUEST, step=0)
        assert failed.value.kind == kind
    assert (len(server.seen), ledger()) == (2, [("failed", kind)] * 2)
    assert "perhaps billed 2 times" in failed.value.detail
    # Only a person may have it asked once more, and then it is the same again.
    retried = replace(model_at(endpoint, clock), retries=1)
    for _ in range(2):
        with pytest.raises(CallFailed):
            retried.complete(REQUEST, step=0)
    assert len(server.seen) == 4
    server.script(scripted.reply("4"))
    assert replace(retried, retries=2).complete(REQUEST, step=0).content == "4"


def test_a_doubtful_request_of_an_earlier_run_leaves_one(serve: Serve, clock: Clock) -> None:
    failing = [scripted.status(500)] * 3
    endpoint, server = serve(scripted.hang(), *failing, scripted.hang())
    for kind in ("server_error", "timeout", "timeout"):
        with pytest.raises(CallFailed) as failed:
            model_at(endpoint, clock).complete(REQUEST, step=0)
        assert failed.value.kind == kind
    # 4 requests of the first run, of which one was doubtful, and the one that was left.
    assert len(server.seen) == Call.objects.count() == 5
    assert [failure for _, failure in ledger()].count("timeout") == 2


def test_deaths_of_workers_count_as_one_doubtful_request(serve: Serve, clock: Clock) -> None:
    """They are this host's fault, and the tries of what they work on bound them."""
    endpoint, server = serve(scripted.reply("4"))
    for number in (1, 2, 3):
        leave_behind(endpoint, clock, number=number)
    assert model_at(endpoint, clock).complete(REQUEST, step=0).content == "4"
    assert len(server.seen) == 1


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("tokens", [2**31, 10**20])
def test_a_reply_that_can_not_be_stored_has_failed_and_is_repeated_once(
    tokens: int, serve: Serve, clock: Clock
) -> None:
    class Generous:
        """An adapter that lets every count through."""

        sent = 0

        def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
            self.sent += 1
            return ChatReply(content="4", finish=Finish.STOP, tokens_in=tokens, tokens_out=1)

    if connection.vendor == "sqlite" and tokens < 2**63:
        pytest.skip("SQLite's integers have 64 bits")
    adapter = Generous()
    endpoint, _ = serve()
    for _ in range(3):
        with pytest.raises(CallFailed) as failed:
            replace(model_at(endpoint, clock), adapter=adapter).complete(REQUEST, step=0)
        assert failed.value.kind == "unstorable"
    assert (adapter.sent, ledger()) == (2, [("failed", "unstorable")] * 2)
    assert all(map(maybe_billed, Call.objects.all()))


@pytest.mark.both_databases
def test_numbers_that_no_row_holds_cost_no_second_request(serve: Serve, clock: Clock) -> None:
    huge = scripted.completion({"content": "4"}, usage={"prompt_tokens": 3_000_000_000})
    call = '{"id": "a", "function": {"name": "f", "arguments": {"q": "x", "n": 1e999}}}'
    text = '{"choices": [{"message": {"tool_calls": [%s]}, "finish_reason": "tool_calls"}]}'
    endpoint, server = serve(scripted.always(huge), scripted.body(text % call))
    model = model_at(endpoint, clock)
    assert model.complete(REQUEST, step=0).tokens_in is None
    first = model.complete(REQUEST, step=1)
    assert first.tool_calls[0].arguments == {"q": "x", "n": None}
    assert model.complete(REQUEST, step=1) == first
    # The next turn repeats the call to the endpoint.
    again = replace(REQUEST, messages=(Message("assistant", None, tool_calls=first.tool_calls),))
    model.complete(again, step=2)
    assert ledger() == [("completed", "")] * 3
    assert len(server.seen) == 3


def test_a_key_that_dies_is_an_endpoint_fault_and_is_stored_nowhere(
    serve: Serve, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint, server = serve(scripted.dies_after(2, scripted.reply("4")))
    model = model_at(endpoint, clock)
    with caplog.at_level(logging.DEBUG):
        for step in (0, 1):
            model.complete(REQUEST, step=step)
        with pytest.raises(EndpointFault, match=KEY_ENV) as fault:
            model.complete(REQUEST, step=2)
    assert fault.value.kind == "wrong_key"
    assert len(server.seen) == 3
    assert ledger() == [("completed", "")] * 2 + [("failed", "wrong_key")]
    # The server repeated the whole key in its refusal.
    assert server.seen[2].headers["authorization"] == f"Bearer {CANARY}"
    rows = serialize("json", [*Call.objects.all(), *EndpointGate.objects.all()])
    for text in (rows, str(fault.value), repr(fault.value), caplog.text, repr(model)):
        assert CANARY not in text


def test_a_spent_quota_is_not_tried_again(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.status(429, code="insufficient_quota"))
    with pytest.raises(EndpointFault) as fault:
        model_at(endpoint, clock).complete(REQUEST, step=0)
    assert fault.value.kind == "quota_spent"
    assert (len(server.seen), ledger()) == (1, [("failed", "quota_spent")])


def test_a_full_context_is_a_stored_result(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.context_overflow())
    for _ in range(2):
        reply = model_at(endpoint, clock).complete(REQUEST, step=0)
        assert reply.finish is Finish.CONTEXT_OVERFLOW
    assert (len(server.seen), ledger()) == (1, [("completed", "")])


def test_a_refused_parameter_is_left_out_in_all_later_calls(serve: Serve, clock: Clock) -> None:
    refuse = scripted.refuses("seed", scripted.refuses("max_tokens", scripted.reply("4")))
    endpoint, server = serve(refuse)
    reply = model_at(endpoint, clock).complete(REQUEST, step=0)
    assert reply.dropped_parameters == ("max_tokens", "seed")
    assert ledger() == [("failed", "parameter_refused")] * 2 + [("completed", "")]
    assert server.seen[2].body["max_completion_tokens"] == 9
    # The other arm learns it from the gate, not from the endpoint.
    other = model_at(endpoint, clock, uuid.UUID(int=2)).complete(REQUEST, step=0)
    assert other.dropped_parameters == ("max_tokens", "seed")
    assert len(server.seen) == Call.objects.count() == 4
    assert clock.slept == []
    # Another model of the endpoint is asked for itself.
    third = model_at({**endpoint, "model": "n"}, clock, uuid.UUID(int=3))
    assert third.complete(REQUEST, step=0).dropped_parameters == ("max_tokens", "seed")
    assert len(server.seen) == 7


def test_a_whole_arm_over_a_real_socket(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(
        scripted.tool_call('{"query": "double"}', id="a"),
        scripted.status(500),
        scripted.tool_call({"query": "twice"}, id="b"),
        scripted.reply("4"),
    )
    skill = ReturnedSkill(id="double", name="double", text="Add it.", score=1.0, rank=1)
    trace = run_agent(
        model=model_at(endpoint, clock),
        kind="exact",
        prompt="Double 2.",
        exposed=True,
        search=lambda query, types: [skill],
        settings=AgentSettings(temperature=0.7, max_tokens=9),
        seed=1,
    )
    assert (trace.answer, trace.turns, trace.returned_ids) == ("4", 3, ("double",))
    assert len(server.seen) == Call.objects.count() == 4
    messages = server.seen[3].body["messages"]
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    assert messages[4]["tool_calls"][0]["function"]["arguments"] == '{"query": "twice"}'


# --- dead workers -----------------------------------------------------------


def leave_behind(endpoint: dict[str, Any], clock: Clock, step: int = 0, number: int = 1) -> Call:
    """Insert the row of a worker that died with its request out."""
    model, sha256 = model_at(endpoint, clock), request_sha256(REQUEST)
    return model._insert(REQUEST, step=step, sha256=sha256, try_number=number)


@pytest.mark.both_databases
def test_the_call_of_a_dead_worker_is_orphaned_and_made_again(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.reply("4"))
    leave_behind(endpoint, clock)
    elsewhere = leave_behind(endpoint, clock, step=1)
    assert model_at(endpoint, clock).complete(REQUEST, step=0).content == "4"
    assert ledger() == [("orphaned", ""), ("sent", ""), ("completed", "")]
    assert len(server.seen) == 1
    assert maybe_billed(Call.objects.get(step=0, try_number=1))
    elsewhere.refresh_from_db()
    assert elsewhere.state == "sent"


def test_after_an_orphan_a_timeout_is_not_repeated(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.hang())
    leave_behind(endpoint, clock)
    with pytest.raises(CallFailed):
        model_at(endpoint, clock).complete(REQUEST, step=0)
    assert (len(server.seen), ledger()) == (1, [("orphaned", ""), ("failed", "timeout")])


class Lost(Exception):
    """The lease is somebody else's."""


def lose() -> None:
    raise Lost


@pytest.mark.both_databases
def test_who_lost_the_lease_sends_nothing_and_calls_nobody_dead(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.reply("4"))
    others = leave_behind(endpoint, clock)
    late = replace(model_at(endpoint, clock), still_ours=lose)
    for step in (0, 1):
        with pytest.raises(Lost):
            late.complete(REQUEST, step=step)
    others.refresh_from_db()
    assert (others.state, server.seen, Call.objects.count()) == ("sent", [], 1)
    # Without the question it takes the other's request for a dead worker's and sends its own.
    assert replace(late, still_ours=lambda: None).complete(REQUEST, step=0).content == "4"
    assert (len(server.seen), ledger()) == (1, [("orphaned", ""), ("completed", "")])


def test_a_lease_that_is_lost_between_two_requests_ends_the_call(
    serve: Serve, clock: Clock
) -> None:
    endpoint, server = serve(scripted.status(500))
    asked: list[int] = []

    def lose_after_one() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise Lost

    with pytest.raises(Lost):
        replace(model_at(endpoint, clock), still_ours=lose_after_one).complete(REQUEST, step=0)
    assert (len(server.seen), ledger()) == (1, [("failed", "server_error")])


def test_a_worker_taken_for_dead_keeps_what_its_request_cost(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.reply("4"), price_in=1.0, price_out=1.0)
    model = model_at(endpoint, clock)

    class Slow:
        def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> Any:
            # Meanwhile another worker takes over.
            model_at(endpoint, clock).complete(REQUEST, step=0)
            return model.adapter.send(request, without=without)

    late = replace(model, adapter=Slow()).complete(REQUEST, step=0)
    assert late.content == "4"
    assert [state for state, _ in ledger()] == ["orphaned", "completed"]
    assert [call.cost for call in Call.objects.order_by("pk")] == [0.000015, 0.000015]
    assert len(server.seen) == 2


@pytest.mark.both_databases
def test_a_try_number_that_was_taken_meanwhile_is_left_to_its_owner(
    serve: Serve, clock: Clock
) -> None:
    endpoint, _ = serve()
    model = model_at(endpoint, clock)
    overtaken: list[int] = []

    def now_and_be_overtaken() -> datetime:
        if not overtaken:
            overtaken.append(0)
            overtaken[0] = leave_behind(endpoint, clock).try_number
        return clock.now

    slow = replace(model, timing=replace(clock.timing, now=now_and_be_overtaken))
    call = slow._insert(REQUEST, step=0, sha256=request_sha256(REQUEST), try_number=1)
    assert (overtaken, call.try_number) == ([1], 2)


@pytest.mark.both_databases
def test_text_that_a_database_can_not_hold_is_stored_with_a_replacement(
    serve: Serve, clock: Clock
) -> None:
    call = {"id": "c\0", "function": {"name": "f", "arguments": {"q\0": "\ud800"}}}
    endpoint, _ = serve(
        scripted.always(scripted.completion({"content": "4\0\udc00", "tool_calls": [call]}))
    )
    odd = replace(REQUEST, messages=(Message("user", "Double \0 \ud83d 😀."),))
    reply = model_at(endpoint, clock).complete(odd, step=0)
    assert reply.content == "4\ufffd\ufffd"
    stored = Call.objects.get()
    assert stored.request["messages"][0]["content"] == "Double \ufffd \ufffd 😀."
    assert model_at(endpoint, clock).complete(odd, step=0) == reply


# --- the gate ---------------------------------------------------------------


def keeper(clock: Clock, subject: str = "one", **policy: Any) -> EndpointGateKeeper:
    return EndpointGateKeeper(
        label="test",
        model="m",
        subject=subject,
        timing=clock.timing,
        policy=GatePolicy(**policy),
        retry_policy=RetryPolicy(),
    )


@pytest.mark.both_databases
def test_the_circuit_opens_over_subjects_and_lets_one_probe_through(
    serve: Serve, clock: Clock
) -> None:
    endpoint, server = serve(scripted.status(500))
    for number in range(1, 6):
        with pytest.raises(CallFailed):
            model_at(endpoint, clock, uuid.UUID(int=number)).complete(REQUEST, step=0)
    # Five calls of four requests each failed: the sixth isn't sent.
    with pytest.raises(EndpointFault, match="5 runs in a row") as fault:
        model_at(endpoint, clock, uuid.UUID(int=6)).complete(REQUEST, step=0)
    assert (fault.value.kind, len(server.seen)) == ("circuit_open", 20)

    clock.now += timedelta(seconds=61)
    server.script(scripted.reply("4"))
    late = model_at(endpoint, clock, uuid.UUID(int=7))
    assert late.complete(REQUEST, step=0).content == "4"
    gate = EndpointGate.objects.get()
    assert (gate.failed, gate.open_until, gate.probe) == ([], None, "")
    assert len(server.seen) == Call.objects.count() == 21


def test_one_subject_that_always_fails_opens_nothing(serve: Serve, clock: Clock) -> None:
    endpoint, server = serve(scripted.status(500))
    for _ in range(3):
        with pytest.raises(CallFailed):
            model_at(endpoint, clock).complete(REQUEST, step=0)
    assert len(server.seen) == 12
    assert EndpointGate.objects.get().failed == [str(SUBJECT)]
    server.script(scripted.reply("4"))
    assert model_at(endpoint, clock, uuid.UUID(int=2)).complete(REQUEST, step=0).content == "4"
    assert EndpointGate.objects.get().failed == []


def open_circuit(clock: Clock) -> None:
    for number in range(5):
        keeper(clock, f"early {number}").failed()


@pytest.mark.both_databases
def test_half_open_one_subject_probes_with_its_retries(clock: Clock) -> None:
    open_circuit(clock)
    for subject in ("early 0", "late"):
        with pytest.raises(EndpointFault):
            keeper(clock, subject).admit()
    clock.now += timedelta(seconds=60)
    keeper(clock, "probe").admit()
    # It may go on, from any process; each of its requests keeps the others out for 120 s.
    clock.now += timedelta(seconds=100)
    keeper(clock, "probe").admit()
    clock.now += timedelta(seconds=100)
    with pytest.raises(EndpointFault):
        keeper(clock, "late").admit()
    keeper(clock, "probe").failed()
    # It failed: 60 s for everybody, the probe included.
    for subject in ("probe", "late"):
        with pytest.raises(EndpointFault):
            keeper(clock, subject).admit()
    clock.now += timedelta(seconds=60)
    keeper(clock, "late").admit()
    keeper(clock, "late").answered()
    keeper(clock, "probe").admit()
    assert EndpointGate.objects.get().open_until is None


@pytest.mark.both_databases
def test_a_probe_whose_worker_died_makes_way_for_another(clock: Clock) -> None:
    open_circuit(clock)
    clock.now += timedelta(seconds=60)
    keeper(clock, "dead").admit()
    clock.now += timedelta(seconds=120)
    keeper(clock, "next").admit()
    # The first was slow rather than dead: its failure doesn't end the other's probe.
    keeper(clock, "dead").failed()
    with pytest.raises(EndpointFault):
        keeper(clock, "dead").admit()
    gate = EndpointGate.objects.get()
    assert (gate.probe, gate.open_until) == ("next", clock.now + timedelta(seconds=120))
    keeper(clock, "next").admit()


@pytest.mark.both_databases
def test_of_two_workers_that_would_probe_at_once_one_does(clock: Clock) -> None:
    open_circuit(clock)
    clock.now += timedelta(seconds=60)
    slow = keeper(clock, "slow")
    overtaken_once(slow, lambda: keeper(clock, "fast").admit())
    with pytest.raises(EndpointFault):
        slow.admit()
    assert EndpointGate.objects.get().probe == "fast"


def test_what_was_under_way_when_the_circuit_opened_keeps_it_open_no_longer(clock: Clock) -> None:
    open_circuit(clock)
    clock.now += timedelta(seconds=30)
    keeper(clock, "straggler").failed()
    gate = EndpointGate.objects.get()
    assert gate.open_until == START + timedelta(seconds=60)
    # The row holds no more subjects than open the circuit.
    assert gate.failed == ["early 1", "early 2", "early 3", "early 4", "straggler"]


def test_failures_that_are_not_in_a_row_open_nothing(clock: Clock) -> None:
    for number in range(6):
        gate = keeper(clock, f"run {number}", failures_to_open=2)
        gate.failed()
        gate.answered()
    gate.admit()


@pytest.mark.both_databases
def test_rate_limit_is_shared_and_allows_a_seconds_burst(clock: Clock) -> None:
    gates = [keeper(clock, requests_per_minute=120) for _ in range(2)]
    for number in range(6):
        gates[number % 2].admit()
    # 2 a second: two at once, then half a second for each of the other four.
    assert clock.slept == [0.5] * 4
    assert clock.now == START + timedelta(seconds=2)


def test_waits_are_bounded_by_the_patience_of_one_call(clock: Clock) -> None:
    gate = keeper(clock)
    clock_sleep = clock.sleep

    def sleep_and_be_held_again(seconds: float) -> None:
        clock_sleep(seconds)
        keeper(clock).hold(100)

    impatient = EndpointGateKeeper(
        label="test",
        model="m",
        subject="one",
        timing=replace(clock.timing, sleep=sleep_and_be_held_again),
        policy=GatePolicy(),
        retry_policy=RetryPolicy(),
    )
    gate.hold(100)
    with pytest.raises(EndpointBusy) as busy:
        impatient.admit()
    # Six waits of 100 s are 600 s; a seventh is too much.
    assert (busy.value.wait_s, len(clock.slept)) == (100.0, 6)


def test_a_longer_pause_stays(clock: Clock) -> None:
    keeper(clock).hold(50)
    keeper(clock).hold(10)
    assert EndpointGate.objects.get().not_before == START + timedelta(seconds=50)
    keeper(clock).hold(1e12)
    assert EndpointGate.objects.get().not_before == START + timedelta(days=1)


def overtaken_once(gate: EndpointGateKeeper, *others: Callable[[], object]) -> None:
    """Let each of ``others`` act once, between a read of ``gate`` and its write."""
    read = gate._row
    left = list(others)

    def read_then_be_overtaken() -> EndpointGate:
        row = read()
        if left:
            left.pop(0)()
        return row

    gate._row = read_then_be_overtaken  # type: ignore[method-assign]


@pytest.mark.both_databases
def test_no_failure_is_lost_when_workers_count_at_once(clock: Clock) -> None:
    gate = keeper(clock, "a")
    overtaken_once(gate, *[keeper(clock, other).failed for other in "bcd"])
    gate.failed()
    # One more read for each that was overtaken, so it comes last.
    assert EndpointGate.objects.get().failed == ["b", "c", "d", "a"]


def test_without_compare_and_swap_one_is_lost(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def just_write(row: EndpointGate, updates: dict[str, Any]) -> bool:
        return bool(EndpointGate.objects.filter(pk=row.pk).update(**updates))

    monkeypatch.setattr(limits, "_swap", just_write)
    gate = keeper(clock, "a")
    overtaken_once(gate, keeper(clock, "b").failed)
    gate.failed()
    # The one that overtook was written over.
    assert EndpointGate.objects.get().failed == ["a"]


# --- factory and probe ------------------------------------------------------


def test_a_recording_of_the_ledger_replays_without_a_server(
    serve: Serve, clock: Clock, tmp_path: Path
) -> None:
    endpoint, _ = serve(scripted.reply("4"))
    first = model_at(endpoint, clock).complete(REQUEST, step=0)
    path = tmp_path / "recording.jsonl"
    path.write_text("".join(recording_of([SUBJECT])))
    assert ReplayModel(read_recording(path)).send(REQUEST) == first
    replayed = {"label": "replay", "base_url": f"replay:{path}", "model": "m"}
    assert model_at(replayed, clock, uuid.UUID(int=2)).complete(REQUEST, step=0) == first
    with pytest.raises(CallFailed, match="no reply to request"):
        model_at(replayed, clock).complete(replace(REQUEST, seed=9), step=5)


def test_scripted_models_need_permission(settings: Any, clock: Clock, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"kind": "maths", "prompt": "Double 2.", "checker": {"gold": "4"}}))
    endpoint = {
        "label": "scripted",
        "base_url": f"scripted:mixed?right=1&latency_ms=0&tasks={tasks}",
        "model": "m",
    }
    assert model_at(endpoint, clock).complete(REQUEST, step=0).content == "\\boxed{4}"
    settings.WORKBENCH_ALLOW_SCRIPTED = False
    with pytest.raises(BadEndpoint, match="for tests"):
        model_at(endpoint, clock)
    assert probe_endpoint(endpoint=endpoint).kind == "bad_endpoint"


def test_scripted_models_know_the_shipped_suites(clock: Clock, settings: Any) -> None:
    suite = settings.BASE_DIR / "runs" / "suites" / "starter" / "tasks.jsonl"
    task = json.loads(suite.read_text().splitlines()[0])
    endpoint = {"label": "s", "base_url": "scripted:mixed?right=1", "model": "m"}
    request = replace(REQUEST, messages=(Message("user", task["prompt"]),))
    reply = model_at(endpoint, clock).complete(request, step=0)
    assert task["reference"] in str(reply.content)


@pytest.mark.parametrize(
    "base_url",
    [
        "ftp://host/v1",
        "replay:/nowhere/at/all.jsonl",
        "scripted:unheard-of",
        "scripted:mixed?volume=11",
        "scripted:mixed?right=often",
        "http://user:secret@host/v1",
        "",
    ],
)
def test_endpoints_that_can_not_be_used(base_url: str, clock: Clock) -> None:
    endpoint = {"label": "test", "base_url": base_url, "model": "m"}
    with pytest.raises(BadEndpoint) as refused:
        model_at(endpoint, clock)
    assert "secret" not in str(refused.value)
    probe = probe_endpoint(endpoint=endpoint)
    assert (probe.ok, probe.kind) == (False, "bad_endpoint")


def test_a_missing_key_fails_before_anything_is_sent(
    serve: Serve, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, server = serve()
    monkeypatch.delenv(KEY_ENV)
    with pytest.raises(EndpointFault, match=KEY_ENV):
        model_at(endpoint, clock)
    probe = probe_endpoint(endpoint=endpoint)
    assert (probe.ok, probe.kind) == (False, "wrong_key")
    assert KEY_ENV in probe.message
    assert (server.seen, Call.objects.count()) == ([], 0)


def test_the_embedded_model_may_be_silent_for_longer(clock: Clock, settings: Any) -> None:
    settings.EMBEDDED_MODEL_URL = "http://127.0.0.1:1/v1"
    endpoint = {"label": "e", "base_url": settings.EMBEDDED_MODEL_URL, "model": "m"}
    assert model_at(endpoint, clock).adapter.timeouts.read_s == 600.0  # type: ignore[attr-defined]
    other = {**endpoint, "base_url": "http://127.0.0.1:2/v1"}
    assert model_at(other, clock).adapter.timeouts.read_s == 120.0  # type: ignore[attr-defined]
    other["timeouts"] = {"read_s": 7.0}
    assert model_at(other, clock).adapter.timeouts.read_s == 7.0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("behaviour", "kind", "says"),
    [
        (scripted.status(401), "wrong_key", KEY_ENV),
        (scripted.status(402), "quota_spent", "402"),
        (scripted.status(404, code="model_not_found"), "unknown_model", "(it serves: m)"),
        (scripted.status(500), "server_error", "500"),
        (scripted.hang(), "timeout", "127.0.0.1:"),
        (scripted.status(404, message="no tool use here"), "bad_request", "json_action"),
        (scripted.context_overflow(), "context_overflow", "max_tokens = 64"),
    ],
)
def test_a_probe_says_what_is_wrong(
    behaviour: Behaviour, kind: str, says: str, serve: Serve
) -> None:
    endpoint, server = serve(behaviour)
    probe = probe_endpoint(endpoint=endpoint, max_tokens=64)
    assert (probe.ok, probe.kind) == (False, kind)
    assert says in probe.message
    assert CANARY not in probe.message
    assert (len(server.seen), Call.objects.count()) == (1, 0)


def test_a_probe_names_the_host_that_can_not_be_reached(serve: Serve) -> None:
    endpoint, server = serve()
    address = server.base_url.split("/")[2]
    server.__exit__()
    probe = probe_endpoint(endpoint=endpoint)
    assert (probe.ok, probe.kind) == (False, "transport")
    assert address in probe.message


@pytest.mark.parametrize(
    ("dialect", "present", "absent"),
    [("native", "tools", "response_format"), ("json_action", "response_format", "tools")],
)
def test_a_probe_tries_what_the_dialect_needs(
    dialect: str, present: str, absent: str, serve: Serve
) -> None:
    endpoint, server = serve(scripted.refuses("seed", scripted.reply("OK")), dialect=dialect)
    probe = probe_endpoint(endpoint=endpoint)
    assert (probe.ok, probe.dropped_parameters) == (True, ("seed",))
    assert probe.message == "test serves m, without seed"
    assert present in server.seen[1].body
    assert absent not in server.seen[1].body
    # What it learnt is kept: the run does not ask again.
    assert EndpointGate.objects.get().refused_parameters == {"m": ["seed"]}


def test_a_probe_closes_the_circuit_of_an_endpoint_that_is_back(serve: Serve, clock: Clock) -> None:
    endpoint, _ = serve(scripted.reply("OK"))
    for number in range(5):
        keeper(clock, f"run {number}").failed()
    with pytest.raises(EndpointFault):
        keeper(clock).admit()
    assert probe_endpoint(endpoint=endpoint).ok
    keeper(clock).admit()
