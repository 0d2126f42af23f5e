"""The call ledger: a row for every request, written before it is sent, completed after.

A worker may die at any moment. The row it left as ``sent`` says that one request
may have been charged for; everything that had come back is read from the ledger
and never asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from uuid import UUID

from django.db import IntegrityError, InterfaceError, OperationalError, transaction
from django.db.models import Max, QuerySet

from workbench.kernel.chat import CallFailed, ChatReply, ChatRequest, EndpointFault
from workbench.llm.replay import recorded_line
from workbench.llm.retry import (
    MAYBE_BILLED,
    Gate,
    ParameterRefused,
    RetryPolicy,
    Timing,
    Transient,
    call_with_retries,
)
from workbench.llm.wire import reply_from, reply_json, request_json, request_sha256, storable
from workbench.models import Call, CallState

PARAMETER_REFUSED: Final = "parameter_refused"
UNEXPECTED: Final = "unexpected"
UNSTORABLE: Final = "unstorable"


class Adapter(Protocol):
    """What sends one request and retries nothing."""

    def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
        """Return the reply to one request, sent without the named parameters."""
        ...


@dataclass(frozen=True)
class Price:
    """Price of a million tokens, in any one currency; None is unknown."""

    tokens_in: float | None = None
    tokens_out: float | None = None

    def of(self, reply: ChatReply) -> float | None:
        """Return what ``reply`` cost, or None where tokens or prices are unknown."""
        if self.tokens_in is None or self.tokens_out is None:
            return None
        if reply.tokens_in is None or reply.tokens_out is None:
            return None
        total = reply.tokens_in * self.tokens_in + reply.tokens_out * self.tokens_out
        return total / 1_000_000


@dataclass(frozen=True)
class LedgeredModel:
    """A ``ChatModel`` bound to one subject; whoever calls it holds that subject's lease."""

    adapter: Adapter
    subject: UUID
    endpoint: str
    model: str
    gate: Gate
    price: Price
    timing: Timing
    policy: RetryPolicy
    # Called in the transaction that inserts a row: raises when the caller's lease is lost.
    still_ours: Callable[[], None] = lambda: None
    # How often a person has had the subject's failed calls tried once more.
    retries: int = 0

    def complete(self, request: ChatRequest, *, step: int) -> ChatReply:
        """Return the reply to ``request``: the ledger's if it holds one, else a new one.

        Raises:
            CallFailed: this call failed; other calls may succeed.
            EndpointBusy: this call is to be made later.
            EndpointFault: the endpoint can't serve anything now.
            RuntimeError: called inside a transaction, which could undo the rows.
            Exception: whatever ``still_ours`` raises; nothing was sent then.
        """
        sha256 = request_sha256(request)
        tries = list(self._tries(step).defer("request").order_by("try_number"))
        for call in tries:
            if call.state == CallState.COMPLETED and call.request_sha256 == sha256:
                assert call.reply is not None
                return reply_from(call.reply)
        self._orphan(call for call in tries if call.state == CallState.SENT)
        doubtful = self._doubtful(tries)
        last = tries[-1].try_number if tries else 0

        def send(without: frozenset[str]) -> ChatReply:
            nonlocal last
            call = self._insert(request, step=step, sha256=sha256, try_number=last + 1)
            last = call.try_number
            return self._send(call, request, without=without)

        return call_with_retries(
            send,
            gate=self.gate,
            timing=self.timing,
            policy=self.policy,
            maybe_billed=doubtful,
        )

    def _tries(self, step: int) -> QuerySet[Call]:
        return Call.objects.filter(subject=self.subject, step=step)

    def _orphan(self, calls: Iterable[Call]) -> None:
        """Mark the calls whose workers are gone, if the lease is ours."""
        in_flight = [call.pk for call in calls]
        if in_flight:
            rows = Call.objects.filter(pk__in=in_flight, state=CallState.SENT)
            with transaction.atomic(durable=True):
                self.still_ours()
                rows.update(state=CallState.ORPHANED)

    def _doubtful(self, tries: Iterable[Call]) -> int:
        """Return how many earlier requests count as perhaps billed, whatever run made them.

        Workers that died count as one: a death is this host's fault, and the
        subject's tries bound how many there are.

        Raises:
            CallFailed: so many that there is to be no other.
        """
        perhaps = [call for call in tries if maybe_billed(call)]
        failed = [call for call in perhaps if call.failure]
        most = self.policy.maybe_billed_attempts
        doubtful = len(failed) + (len(failed) < len(perhaps)) - self.retries * most
        if failed and doubtful >= most:
            detail = f"perhaps billed {len(perhaps)} times, so not sent again until it is retried"
            raise CallFailed(failed[-1].failure, f"{detail}: {failed[-1].failure_detail}")
        return max(doubtful, 0)

    def _send(self, call: Call, request: ChatRequest, *, without: frozenset[str]) -> ChatReply:
        try:
            reply = self.adapter.send(request, without=without)
        except (Transient, CallFailed, EndpointFault) as error:
            self._fail(call, error.kind, error.detail)
            raise
        except ParameterRefused as refused:
            self._fail(call, PARAMETER_REFUSED, refused.detail)
            raise
        except Exception as error:
            self._fail(call, UNEXPECTED, type(error).__name__)
            raise
        try:
            self._complete(call, reply)
        except (OperationalError, InterfaceError):
            raise  # the database is gone: the row stays as a dead worker's would
        except Exception as error:
            detail = f"the reply can't be stored ({type(error).__name__})"
            self._fail(call, UNSTORABLE, detail)
            raise CallFailed(UNSTORABLE, detail) from error
        return reply

    def _insert(self, request: ChatRequest, *, step: int, sha256: str, try_number: int) -> Call:
        """Insert the row of a try, in a transaction that has ended on return.

        A number that is taken by now makes way for the next free one.
        """
        content = request_json(request)
        while True:
            sent_at = self.timing.now()
            try:
                with transaction.atomic(durable=True):
                    self.still_ours()
                    return Call.objects.create(
                        subject=self.subject,
                        step=step,
                        try_number=try_number,
                        endpoint=self.endpoint,
                        model=self.model,
                        request_sha256=sha256,
                        request=content,
                        sent_at=sent_at,
                    )
            except IntegrityError:
                # A worker that lost its lease without knowing took this number.
                taken = self._tries(step).aggregate(last=Max("try_number"))["last"] or 0
                if taken < try_number:
                    raise
                try_number = taken + 1

    def _complete(self, call: Call, reply: ChatReply) -> None:
        fields: dict[str, Any] = {
            "reply": reply_json(reply),
            "tokens_in": reply.tokens_in,
            "tokens_out": reply.tokens_out,
            "cost": self.price.of(reply),
            "latency_s": reply.latency_s,
            "completed_at": self.timing.now(),
        }
        if not self._settle(call, CallState.COMPLETED, fields):
            # Another worker took us for dead. Its own request counts; what ours cost stays known.
            Call.objects.filter(pk=call.pk).update(**fields)

    def _fail(self, call: Call, kind: str, detail: str) -> None:
        fields = {
            "failure": kind,
            "failure_detail": storable(detail),
            "completed_at": self.timing.now(),
        }
        self._settle(call, CallState.FAILED, fields)

    def _settle(self, call: Call, state: CallState, fields: Mapping[str, Any]) -> bool:
        in_flight = Call.objects.filter(pk=call.pk, state=CallState.SENT)
        return in_flight.update(state=state, **fields) == 1


def maybe_billed(call: Call) -> bool:
    """Tell whether the endpoint may have charged for a call that brought no reply."""
    return call.state in (CallState.SENT, CallState.ORPHANED) or call.failure in MAYBE_BILLED


def recording_of(subjects: Iterable[UUID]) -> Iterator[str]:
    """Yield the completed calls of ``subjects`` as lines that ``replay:`` can play back."""
    calls = Call.objects.filter(subject__in=list(subjects), state=CallState.COMPLETED)
    for call in calls.order_by("subject", "step", "try_number").iterator():
        assert call.reply is not None
        yield recorded_line(request_sha256=call.request_sha256, reply=call.reply)
