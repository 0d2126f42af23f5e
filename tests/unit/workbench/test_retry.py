"""When a request is tried again, how long after, and when a call gives up."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.kernel.chat import CallFailed, ChatReply, EndpointBusy, EndpointFault, Finish
from workbench.llm.retry import (
    GIVE_UP,
    ParameterRefused,
    RetryPolicy,
    Timing,
    Transient,
    asked_wait_s,
    backoff_s,
    call_with_retries,
    retry_delay,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FINE = ChatReply(content="fine", finish=Finish.STOP)


class World:
    """A clock that only sleeping moves, a gate that keeps a diary, and a random of 0.5."""

    def __init__(self) -> None:
        self.now = NOW
        self.slept: list[float] = []
        self.diary: list[str] = []
        self.held: list[float] = []
        self.without: frozenset[str] = frozenset()
        self.timing = Timing(now=lambda: self.now, sleep=self.sleep, random=lambda: 0.5)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)

    def admit(self) -> frozenset[str]:
        return self.without

    def hold(self, seconds: float) -> None:
        self.held.append(seconds)

    def refuse(self, name: str) -> None:
        self.without |= {name}

    def answered(self) -> None:
        self.diary.append("answered")

    def failed(self) -> None:
        self.diary.append("failed")

    def call(
        self, *outcomes: Exception | ChatReply, maybe_billed: int = 0
    ) -> tuple[ChatReply, list[frozenset[str]]]:
        sent: list[frozenset[str]] = []
        left = list(outcomes)

        def send(without: frozenset[str]) -> ChatReply:
            sent.append(without)
            outcome = left.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        self.sent = sent
        reply = call_with_retries(
            send,
            gate=self,
            timing=self.timing,
            policy=RetryPolicy(),
            maybe_billed=maybe_billed,
        )
        return reply, sent


def limited(headers: Mapping[str, str] | None = None) -> Transient:
    return Transient("rate_limited", "slow down", headers)


def broken(kind: str = "server_error") -> Transient:
    return Transient(kind, "it broke")


# --- Retry-After ------------------------------------------------------------


def test_case_G06() -> None:
    headers: list[dict[str, str]] = [
        {"Retry-After": "2"},
        {"retry-after-ms": "1500", "retry-after": "9"},
        {"Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT"},
        {"Retry-After": "Wed, 31 Dec 2025 23:59:00 GMT"},
        {"Retry-After": "soon"},
        {"Retry-After": "-5"},
        {"Retry-After": "inf"},
        {"Retry-After": "3600"},
        {},
    ]
    assert [retry_delay(h, now=NOW) for h in headers] == [
        2.0,
        1.5,
        30.0,
        None,
        None,
        None,
        None,
        GIVE_UP,
        None,
    ]


@pytest.mark.parametrize(
    ("headers", "delay"),
    [
        ({"RETRY-AFTER": " 2 "}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, None),
        ({"retry-after-ms": "junk", "retry-after": "9"}, 9.0),
        ({"retry-after-ms": "-1", "retry-after": "9"}, 9.0),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1_0"}, None),
        ({"retry-after": "1e2"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "2, 2"}, None),
        ({"retry-after": "120"}, 120.0),
        ({"retry-after": "120.1"}, GIVE_UP),
        ({"retry-after": "9" * 400}, GIVE_UP),
        ({"retry-after-ms": "120001"}, GIVE_UP),
        # RFC 9110 still asks recipients to read the two obsolete forms of a date.
        ({"retry-after": "Thursday, 01-Jan-26 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Thu Jan  1 00:00:30 2026"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 02:00:30 +0200"}, 30.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, GIVE_UP),
        ({"retry-after": "Thu, 32 Jan 2026 00:00:30 GMT"}, None),
    ],
)
def test_other_forms_of_retry_after(headers: dict[str, str], delay: float | str | None) -> None:
    assert retry_delay(headers, now=NOW) == delay


@given(value=st.text(max_size=40))
def test_no_header_crashes_or_asks_for_nothing(value: str) -> None:
    wait = asked_wait_s({"Retry-After": value}, now=NOW)
    assert wait is None or wait > 0


# --- backoff ----------------------------------------------------------------


@given(failures=st.integers(1, 2000), fraction=st.floats(0, 1, exclude_max=True))
def test_backoff_is_full_jitter_below_a_ceiling(failures: int, fraction: float) -> None:
    policy = RetryPolicy(backoff_s=1.0, longest_backoff_s=30.0)
    wait = backoff_s(min(failures, 900), policy=policy, random=lambda: fraction)
    # 1, 2, 4, 8, 16, then 30 from the sixth failure on.
    ceiling = 2.0 ** (failures - 1) if failures <= 5 else 30.0
    assert wait == fraction * ceiling


# --- one call ---------------------------------------------------------------


def test_transient_failures_are_tried_again() -> None:
    world = World()
    reply, sent = world.call(broken(), broken("transport"), broken(), FINE)
    assert (reply, len(sent)) == (FINE, 4)
    # Half of 1, 2 and 4 seconds.
    assert world.slept == [0.5, 1.0, 2.0]
    assert world.diary == ["answered"]


def test_four_requests_are_the_most() -> None:
    world = World()
    with pytest.raises(CallFailed) as failed:
        world.call(*[broken()] * 4, FINE)
    assert (failed.value.kind, len(world.sent)) == ("server_error", 4)
    # Four requests, but one call that failed.
    assert world.diary == ["failed"]


@pytest.mark.parametrize("kind", ["timeout", "incomplete"])
def test_a_request_that_may_have_been_billed_is_repeated_once(kind: str) -> None:
    world = World()
    with pytest.raises(CallFailed) as failed:
        world.call(broken(kind), broken(kind), FINE)
    assert (failed.value.kind, len(world.sent)) == (kind, 2)
    assert World().call(broken(kind), FINE)[0] == FINE


def test_after_an_orphan_no_further_doubtful_request_is_made() -> None:
    world = World()
    with pytest.raises(CallFailed):
        world.call(broken("timeout"), FINE, maybe_billed=1)
    assert len(world.sent) == 1
    assert World().call(broken(), FINE, maybe_billed=1)[0] == FINE


def test_asked_waits_hold_the_gate_for_everybody() -> None:
    world = World()
    world.call(limited({"retry-after": "2"}), limited(), FINE)
    # The endpoint's 2 s, then half of the second backoff of 2 s.
    assert world.held == [2.0, 1.0]
    # The admission waits, not the call.
    assert world.slept == []
    # An endpoint that limits is alive.
    assert world.diary == ["answered"] * 3


@pytest.mark.parametrize(
    ("asked", "wait"),
    [
        ("3600", 3600.0),
        # Infinite seconds would be no moment: a day is the longest.
        ("9" * 400, 86_400.0),
    ],
)
def test_a_limit_beyond_the_cap_puts_the_call_off(asked: str, wait: float) -> None:
    world = World()
    with pytest.raises(EndpointBusy) as busy:
        world.call(limited({"retry-after": asked}), FINE)
    assert busy.value.wait_s == wait
    assert (len(world.sent), world.held, world.slept) == (1, [float(asked)], [])
    assert world.diary == ["answered"]


def test_a_fault_that_asks_for_a_long_wait_ends_its_call() -> None:
    """Else a run whose own request always breaks the server would be put off for ever."""
    world = World()
    with pytest.raises(CallFailed) as failed:
        world.call(Transient("server_error", "later", {"retry-after": "3600"}), FINE)
    assert failed.value.retry_after_s == 3600.0
    assert (len(world.sent), world.held) == (1, [3600.0])
    assert world.diary == ["failed"]


def test_a_wait_that_fits_is_no_reason_to_put_the_call_off() -> None:
    world = World()
    assert world.call(limited({"retry-after": "120"}), FINE)[0] == FINE


def test_even_the_last_request_puts_the_call_off_where_it_is_asked_to() -> None:
    world = World()
    with pytest.raises(EndpointBusy):
        world.call(*[broken()] * 3, limited({"retry-after": "121"}))
    assert len(world.sent) == 4


def test_the_last_failure_still_tells_when_to_come_back() -> None:
    world = World()
    with pytest.raises(CallFailed) as failed:
        world.call(*[limited({"retry-after": "7"})] * 4)
    assert failed.value.retry_after_s == 7.0
    # It limits, so it is alive.
    assert world.diary == ["answered"] * 4


def test_a_refused_parameter_is_left_out_and_costs_no_attempt() -> None:
    world = World()
    refusals = [ParameterRefused(name, "no") for name in ("seed", "temperature")]
    _, sent = world.call(*refusals, broken(), broken(), broken(), FINE)
    assert sent == [frozenset(), {"seed"}] + [{"seed", "temperature"}] * 4


def test_a_parameter_refused_though_left_out_fails() -> None:
    world = World()
    with pytest.raises(CallFailed) as failed:
        world.call(ParameterRefused("seed", "no"), ParameterRefused("seed", "no"), FINE)
    assert (failed.value.kind, len(world.sent)) == ("bad_request", 2)


@pytest.mark.parametrize(
    "final", [CallFailed("bad_request", "no"), EndpointFault("wrong_key", "no")]
)
def test_what_can_not_pass_is_not_tried_again(final: Exception) -> None:
    world = World()
    with pytest.raises(type(final)):
        world.call(final, FINE)
    assert (len(world.sent), world.diary) == (1, ["answered"])


@given(
    kinds=st.lists(
        st.sampled_from(["rate_limited", "server_error", "transport", "timeout", "incomplete"]),
        max_size=8,
    )
)
def test_no_call_sends_more_than_its_attempts(kinds: list[str]) -> None:
    world = World()
    with contextlib.suppress(CallFailed):
        world.call(*map(broken, kinds), FINE)
    doubtful = [k for k in kinds[: len(world.sent)] if k in ("timeout", "incomplete")]
    assert len(world.sent) <= 4
    assert len(doubtful) <= 2
