"""The one owner of retries: what is tried again, when, and how often.

Nothing else retries: the HTTP library and the SDK have theirs switched off, and
the work queue starts an execution again only after a call has failed for good.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Literal, Protocol

from workbench.kernel.chat import CallFailed, ChatReply, EndpointBusy, EndpointFault

GIVE_UP: Final = "give_up"

# After one of these the endpoint may have done the work and charged for it.
MAYBE_BILLED: Final = frozenset({"timeout", "incomplete", "unstorable"})

# A wait beyond a day is junk or a suspension; either way somebody should look.
LONGEST_HOLD_S: Final = 86_400.0

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class Timing:
    """The outside world of the waiting code; ``random`` gives 0 <= x < 1."""

    now: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))
    sleep: Callable[[float], None] = time.sleep
    # The system's generator: forked workers must not share a sequence.
    random: Callable[[], float] = random.SystemRandom().random


@dataclass(frozen=True)
class RetryPolicy:
    """How patient one call is; times in seconds.

    Attributes:
        attempts: most requests that may fail, 1 + 3 as in the paper.
        maybe_billed_attempts: most of them that the endpoint may have charged for.
        longest_wait_s: longest wait an endpoint may ask for; beyond it the call is put off.
        patience_s: longest sum of such waits in one call.
    """

    attempts: int = 4
    maybe_billed_attempts: int = 2
    backoff_s: float = 1.0
    longest_backoff_s: float = 30.0
    longest_wait_s: float = 120.0
    patience_s: float = 600.0


class Transient(Exception):
    """One request failed in a way that may pass: ``kind`` as in ``CallFailed``."""

    def __init__(self, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.headers = headers or {}


class ParameterRefused(Exception):
    """The endpoint can't take the parameter ``name``; without it the request may pass."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


class Gate(Protocol):
    """What all workers know together of one endpoint (``limits.EndpointGateKeeper``)."""

    def admit(self) -> frozenset[str]:
        """Wait until a request may be sent; return the parameters it must go without.

        Raises:
            EndpointBusy: that would take longer than one call has patience for.
            EndpointFault: ``circuit_open``.
        """
        ...

    def hold(self, seconds: float) -> None:
        """Let no worker send anything for ``seconds``."""
        ...

    def refuse(self, name: str) -> None:
        """Remember that the model refuses parameter ``name``."""
        ...

    def answered(self) -> None:
        """Note that the endpoint is alive."""
        ...

    def failed(self) -> None:
        """Note that the endpoint didn't serve a whole call, retries included."""
        ...


def asked_wait_s(headers: Mapping[str, str], *, now: datetime) -> float | None:
    """Return the seconds an answer asks to wait, or None where it asks nothing usable.

    ``retry-after-ms`` goes before ``Retry-After``, which may be seconds or an HTTP
    date (RFC 9110, 10.2.3). Zero, the past and junk ask nothing.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    wait = _number(lower.get("retry-after-ms"))
    if wait is not None:
        wait /= 1000
    else:
        value = lower.get("retry-after")
        wait = _number(value)
        if wait is None and value:
            wait = _until(value, now=now)
    return wait if wait is not None and wait > 0 else None


def retry_delay(
    headers: Mapping[str, str], *, now: datetime, longest_wait_s: float = 120.0
) -> float | Literal["give_up"] | None:
    """Return the seconds to wait, ``GIVE_UP`` beyond ``longest_wait_s``, None for own backoff."""
    wait = asked_wait_s(headers, now=now)
    return GIVE_UP if wait is not None and wait > longest_wait_s else wait


def backoff_s(failures: int, *, policy: RetryPolicy, random: Callable[[], float]) -> float:
    """Return a wait after ``failures`` (1 and up) failed requests: exponential, full jitter."""
    ceiling = min(policy.longest_backoff_s, policy.backoff_s * 2.0 ** (failures - 1))
    return random() * ceiling


def call_with_retries(
    send: Callable[[frozenset[str]], ChatReply],
    *,
    gate: Gate,
    timing: Timing,
    policy: RetryPolicy,
    maybe_billed: int = 0,
) -> ChatReply:
    """Return the reply of the first request that succeeds.

    Args:
        send: makes one request without the given parameters.
        maybe_billed: earlier requests of this call that may have been charged for.

    Raises:
        CallFailed: the attempts are spent.
        EndpointBusy: the endpoint asks to wait longer than one call does.
        EndpointFault: raised by ``send`` or ``gate``, passed on.
    """
    failures = 0
    while True:
        without = gate.admit()
        try:
            reply = send(without)
        except ParameterRefused as refused:
            gate.answered()
            if refused.name in without:
                raise CallFailed("bad_request", refused.detail) from None
            gate.refuse(refused.name)
            continue
        except Transient as error:
            failures += 1
            maybe_billed += error.kind in MAYBE_BILLED
            spent = failures >= policy.attempts or maybe_billed >= policy.maybe_billed_attempts
            _after(error, failures, spent=spent, gate=gate, timing=timing, policy=policy)
        except (CallFailed, EndpointFault):
            gate.answered()
            raise
        else:
            gate.answered()
            return reply


def _after(
    error: Transient,
    failures: int,
    *,
    spent: bool,
    gate: Gate,
    timing: Timing,
    policy: RetryPolicy,
) -> None:
    """Wait before the next attempt, or end the call."""
    limited = error.kind == "rate_limited"
    if limited:
        gate.answered()
    wait = asked_wait_s(error.headers, now=timing.now())
    if wait is not None:
        # The next admission waits for it, in this worker and in all others.
        gate.hold(wait)
        if wait > policy.longest_wait_s and limited:
            raise EndpointBusy(min(wait, LONGEST_HOLD_S), error.detail)
        # A fault that asks for a long wait is still a fault: its call ends and spends a
        # try, or a run that always gets it would never end.
        spent = spent or wait > policy.longest_wait_s
    if spent:
        if not limited:
            gate.failed()
        raise CallFailed(error.kind, error.detail, retry_after_s=wait)
    if wait is None:
        pause = backoff_s(failures, policy=policy, random=timing.random)
        if limited:
            gate.hold(pause)
        else:
            timing.sleep(pause)


def _number(value: str | None) -> float | None:
    if value is None or not _NUMBER.fullmatch(value):
        return None
    return float(value)


def _until(value: str, *, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        seconds = (moment - now).total_seconds()
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) else None
