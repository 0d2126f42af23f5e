"""What all worker processes know together of one endpoint, in one row.

Pauses that it asked for, its rate limit, its circuit breaker and the parameters
its models refuse. Several processes change the row at once, so every change is
a compare-and-swap on ``version``: read, decide, write where nobody wrote since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from workbench.kernel.chat import EndpointBusy, EndpointFault
from workbench.llm.retry import LONGEST_HOLD_S, RetryPolicy, Timing
from workbench.models import EndpointGate

# Losing this many races in a row means something else is wrong.
_MOST_RACES: Final = 1000


@dataclass(frozen=True)
class GatePolicy:
    """When an endpoint is left alone.

    Attributes:
        failures_to_open: how many different subjects' calls must fail, with no success
            in between, before the circuit opens. One subject that always fails says
            something about itself, not about the endpoint.
        open_s: seconds until one subject may probe whether the endpoint is back.
        probe_s: seconds that each of its requests keeps the others out.
        requests_per_minute: rate limit shared by all workers, None for none.
    """

    failures_to_open: int = 5
    open_s: float = 60.0
    probe_s: float = 120.0
    requests_per_minute: float | None = None


def held_until(labels: Collection[str], *, now: datetime) -> dict[str, datetime]:
    """Return until when nothing is sent to those endpoints that asked to wait, by label."""
    held = EndpointGate.objects.filter(label__in=labels, not_before__gt=now)
    return {gate.label: gate.not_before for gate in held if gate.not_before}


class EndpointGateKeeper:
    """The gate of one endpoint, as the calls of one model and subject pass it (``retry.Gate``)."""

    def __init__(
        self,
        *,
        label: str,
        model: str,
        subject: str,
        timing: Timing,
        policy: GatePolicy,
        retry_policy: RetryPolicy,
    ) -> None:
        self._label = label
        self._model = model
        self._subject = subject
        self._timing = timing
        self._policy = policy
        self._retry = retry_policy

    def admit(self) -> frozenset[str]:
        """Wait until a request may be sent; return the parameters it must go without.

        Raises:
            EndpointBusy: the endpoint asked for a longer wait than one call has patience for.
            EndpointFault: ``circuit_open``.
        """
        waited = 0.0
        while True:
            row = self._row()
            now = self._timing.now()
            if row.not_before is not None and row.not_before > now:
                wait = (row.not_before - now).total_seconds()
                if wait > self._retry.longest_wait_s or waited + wait > self._retry.patience_s:
                    raise EndpointBusy(wait, f"{self._label} asked for a pause")
                waited += wait
                # All workers wake at the same moment: spread them over a second.
                self._timing.sleep(wait + self._timing.random())
                continue
            updates = {**self._circuit_updates(row, now), **self._bucket_updates(row, now)}
            if updates.get("tokens", 0.0) < 0.0:
                rate = self._rate
                assert rate is not None
                self._timing.sleep(-updates["tokens"] / rate)
                continue
            if not updates or _swap(row, updates):
                return frozenset(row.refused_parameters.get(self._model, ()))

    def refused(self) -> frozenset[str]:
        """Return the parameters that the model is known to refuse."""
        return frozenset(self._row().refused_parameters.get(self._model, ()))

    def hold(self, seconds: float) -> None:
        """Let no worker send anything for ``seconds``; a longer pause stays."""

        def longer(row: EndpointGate) -> dict[str, Any]:
            until = self._timing.now() + timedelta(seconds=min(seconds, LONGEST_HOLD_S))
            return {} if row.not_before and row.not_before >= until else {"not_before": until}

        self._change(longer)

    def refuse(self, name: str) -> None:
        """Remember that the model refuses parameter ``name``."""

        def added(row: EndpointGate) -> dict[str, Any]:
            known = row.refused_parameters.get(self._model, [])
            if name in known:
                return {}
            refused = {**row.refused_parameters, self._model: sorted([*known, name])}
            return {"refused_parameters": refused}

        self._change(added)

    def answered(self) -> None:
        """Close the circuit and forget the failures: the endpoint is alive."""
        self._change(
            lambda row: (
                {"failed": [], "open_until": None, "probe": ""}
                if row.failed or row.open_until
                else {}
            )
        )

    def failed(self) -> None:
        """Count this subject among those in a row whose calls failed.

        Enough of them open the circuit; half open, the probe's failure opens it again.
        Other calls that were under way by then change nothing about how long it is open.
        """
        enough = self._policy.failures_to_open

        def counted(row: EndpointGate) -> dict[str, Any]:
            others = [subject for subject in row.failed if subject != self._subject]
            failed = [*others, self._subject][-enough:]
            updates: dict[str, Any] = {"failed": failed}
            probed = row.open_until is not None and row.probe == self._subject
            if probed or (row.open_until is None and len(failed) >= enough):
                updates["open_until"] = self._timing.now() + timedelta(seconds=self._policy.open_s)
                updates["probe"] = ""
            return updates

        self._change(counted)

    def _circuit_updates(self, row: EndpointGate, now: datetime) -> dict[str, Any]:
        """Return what lets this request through the circuit; half open, it shuts it behind it.

        The probe is a whole call with its retries, so that its failure can be told from
        that of one request, and counts: else a subject that always fails would probe for ever.
        """
        if row.open_until is None:
            return {}
        if row.open_until > now and row.probe != self._subject:
            raise EndpointFault(
                "circuit_open",
                f"the calls of {len(row.failed)} runs in a row failed at {self._label}; "
                f"the next request may go at {row.open_until:%H:%M:%S} UTC",
            )
        return {
            "open_until": now + timedelta(seconds=self._policy.probe_s),
            "probe": self._subject,
        }

    def _bucket_updates(self, row: EndpointGate, now: datetime) -> dict[str, Any]:
        """Return the token bucket after one request; below zero it must wait first."""
        rate = self._rate
        if rate is None:
            return {}
        # Bursts are a second's worth: endpoints count in short windows too.
        size = max(1.0, rate)
        tokens = size
        if row.tokens is not None and row.refilled_at is not None:
            elapsed = max(0.0, (now - row.refilled_at).total_seconds())
            tokens = min(size, row.tokens + elapsed * rate)
        return {"tokens": tokens - 1.0, "refilled_at": now}

    @property
    def _rate(self) -> float | None:
        """Return the requests a second that all workers may send together."""
        per_minute = self._policy.requests_per_minute
        return None if per_minute is None else per_minute / 60

    def _row(self) -> EndpointGate:
        return EndpointGate.objects.get_or_create(label=self._label)[0]

    def _change(self, updates_for: Callable[[EndpointGate], dict[str, Any]]) -> None:
        for _ in range(_MOST_RACES):
            row = self._row()
            updates = updates_for(row)
            if not updates or _swap(row, updates):
                return
        raise RuntimeError(f"the gate of {self._label} changed {_MOST_RACES} times in a row")


def _swap(row: EndpointGate, updates: dict[str, Any]) -> bool:
    """Write ``updates`` unless the row changed since it was read; return whether it was written."""
    unchanged = EndpointGate.objects.filter(pk=row.pk, version=row.version)
    return unchanged.update(version=row.version + 1, **updates) == 1
