"""An experiment's state as pages show it: progress, why it stopped, and what can be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse

from runs.domain.pauses import advice_on, is_budget
from runs.domain.plan import Budget
from runs.models import Experiment, ExperimentStatus, Failure, Origin
from runs.selectors import States
from runs.services.lifecycle import BadBudget
from runs.services.progress import Progress, Wait, progress_of
from runs.services.reporting import is_being_pushed
from runs.services.usage import Usage, budget_of, budget_reached, reached
from workbench.kernel.forms import Fault
from workbench.kernel.pages import utc_seconds

FAILURES = {
    Failure.CALL.value: "a model call failed",
    Failure.HOST.value: "the host or the sandbox failed",
    Failure.CONTAMINATED.value: "a run without skills got one",
    Failure.NO_RESULT.value: "the row gives no result",
    Failure.CONFLICT.value: "rows contradict each other",
    Failure.UNEQUAL_PARAMETERS.value: "the arms were not asked alike",
}
_NEXT = {
    ExperimentStatus.PLANNED: "It waits to be started.",
    ExperimentStatus.RUNNING: "It goes on by itself; this page may be closed.",
    ExperimentStatus.FINISHED: "",
    ExperimentStatus.CANCELLED: "What was recorded before stays readable.",
}


STORING = "storing"
_STORING_NEXT = (
    "Its runs are still being stored; figures are shown once all of them are. If that never "
    "ends, push the same rows again: it goes on where it stopped."
)


@dataclass(frozen=True)
class FailureCount:
    """Failed attempts of one cause."""

    cause: str
    count: int


@dataclass(frozen=True)
class ProgressView:
    """How far an experiment is; ``live`` while it changes by itself, ``waits`` while it can't.

    ``pushed``: its runs were made elsewhere, so nothing was called or spent here.
    """

    slug: str
    status: str
    reason: str
    what_next: str
    live: bool
    waits: bool
    pushed: bool
    ended: int
    total: int
    percent: int
    pairs_done: int
    pairs_total: int
    running: int
    pending: int
    dead: int
    rate: str
    left: str
    failures: tuple[FailureCount, ...]
    calls: int
    tokens: str
    cost: str
    url: str
    poll_url: str


@dataclass(frozen=True)
class Actions:
    """What the reader may do with the experiment now."""

    start: bool
    pause: bool
    resume: bool
    cancel: bool
    retry: bool
    dead: int


@dataclass(frozen=True)
class BudgetView:
    """The caps in force, as text; empty is no cap. ``open`` where they are why it is paused.

    ``faults``: what is wrong with what was typed, which is then shown again.
    """

    calls: str
    tokens: str
    cost: str
    open: bool
    faults: tuple[Fault, ...] = ()


def budget_view(experiment: Experiment, *, raised: bool = False) -> BudgetView | None:
    """Return the caps of an experiment whose caps may be changed, else None.

    Args:
        raised: whether the cap for which it is paused has been raised since.
    """
    paused = experiment.status == ExperimentStatus.PAUSED
    if not paused or experiment.origin != Origin.PLANNED:
        return None
    caps = {
        name: "" if cap is None else f"{cap:g}" if name == "cost" else str(cap)
        for name, cap in vars(budget_of(experiment)).items()
    }
    return BudgetView(
        calls=caps["calls"],
        tokens=caps["tokens"],
        cost=caps["cost"],
        open=is_budget(experiment.reason) and not raised,
    )


def budget_from(given: Mapping[str, str]) -> Budget:
    """Return the caps that were typed; an empty field is no cap.

    Raises:
        BadBudget: of each that is no number that may be a cap, why.
    """
    faults: dict[str, str] = {}
    caps: dict[str, float | None] = {}
    for name in ("calls", "tokens", "cost"):
        try:
            caps[name] = _cap(name, given[name])
        except ValueError as error:
            faults[name] = str(error)
    if faults:
        raise BadBudget(faults)
    calls, tokens = caps["calls"], caps["tokens"]
    return Budget(
        cost=caps["cost"],
        tokens=None if tokens is None else int(tokens),
        calls=None if calls is None else int(calls),
    )


def _cap(name: str, text: str) -> float | None:
    plain = text.strip().replace(",", "").replace(" ", "").replace("_", "")
    if not plain:
        return None
    digits = plain.replace(".", "", 1) if name == "cost" else plain
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 15):
        raise ValueError(f"write a number, not {text.strip()!r}")
    if name != "cost" and int(plain) < 1:
        raise ValueError("write at least 1, or leave it empty for no cap")
    return float(plain)


def progress_view(
    experiment: Experiment, *, now: datetime, states: States | None = None
) -> ProgressView:
    """Return where ``experiment`` stands at ``now`` (``states``: see ``progress_of``)."""
    found = progress_of(experiment, now=now, states=states)
    status = ExperimentStatus(experiment.status)
    where = {"slug": experiment.slug}
    live = status is ExperimentStatus.RUNNING
    pushed = experiment.origin == Origin.PUSHED
    storing = is_being_pushed(experiment)
    return ProgressView(
        slug=experiment.slug,
        status=STORING if storing else status.value,
        reason=experiment.reason,
        what_next=_STORING_NEXT if storing else _what_next(experiment, status, found, now),
        live=live,
        waits=bool(found.waits),
        pushed=pushed,
        ended=found.ended,
        total=found.total,
        # Rounded down: 100 is shown when all have ended and not before.
        percent=100 * found.ended // found.total if found.total else 0,
        pairs_done=found.pairs_done,
        pairs_total=found.pairs_total,
        running=found.running,
        pending=found.pending,
        dead=found.dead,
        rate=_rate(found),
        left=_left(found) if live else "",
        failures=tuple(
            FailureCount(FAILURES.get(cause, cause), count)
            for cause, count in sorted(found.failures.items())
        ),
        calls=found.usage.calls,
        tokens="" if found.usage.tokens is None else f"{found.usage.tokens:,}",
        cost="" if found.usage.cost is None else f"{found.usage.cost:.3g}",
        url=reverse("experiment", kwargs=where),
        poll_url=reverse("experiment-progress", kwargs=where),
    )


def _what_next(
    experiment: Experiment, status: ExperimentStatus, found: Progress, now: datetime
) -> str:
    if status is ExperimentStatus.PAUSED:
        if said := _raised(experiment, found.usage):
            return said
        return advice_on(experiment.reason)
    if found.waits:
        return f"{_waited_for(found.waits, now)} {_NEXT[status]}"
    return _NEXT[status]


def is_raised(experiment: Experiment) -> bool:
    """Return whether the budget for which the experiment is paused isn't reached any more."""
    changed = bool(experiment.budget) and is_budget(experiment.reason)
    return changed and budget_reached(experiment) is None


def _raised(experiment: Experiment, used: Usage) -> str:
    """Return what to do where the budget for which it is paused isn't reached any more."""
    budget = budget_of(experiment)
    if not experiment.budget or not is_budget(experiment.reason) or reached(budget, used):
        return ""
    amounts = {"calls": used.calls, "tokens": used.tokens or 0, "cost": used.least_cost}
    caps = [
        f"{cap:,g} {name} ({amounts[name]:,g} used)"
        for name, cap in vars(budget).items()
        if cap is not None
    ]
    return (
        f"The budget is now {' and '.join(caps)}. Resume it to go on."
        if caps
        else "The budget has no cap now. Resume it to go on."
    )


def actions_of(experiment: Experiment, progress: ProgressView) -> Actions:
    """Return what the status allows; the service decides again when it is asked."""
    status = experiment.status
    if experiment.origin == Origin.PUSHED:  # nothing of it can be run here
        return Actions(
            start=False, pause=False, resume=False, cancel=False, retry=False, dead=progress.dead
        )
    ended = status in (ExperimentStatus.FINISHED, ExperimentStatus.CANCELLED)
    retriable = status not in (ExperimentStatus.CANCELLED, ExperimentStatus.PLANNED)
    return Actions(
        start=status == ExperimentStatus.PLANNED,
        pause=status == ExperimentStatus.RUNNING,
        resume=status == ExperimentStatus.PAUSED,
        cancel=not ended,
        retry=retriable and progress.dead > 0,
        dead=progress.dead,
    )


def duration(seconds: float) -> str:
    """Return a duration in words, two units at most."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return "less than a minute"
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days {hours % 24} h"


def _waited_for(waits: Sequence[Wait], now: datetime) -> str:
    """Return what a running experiment waits for, as sentences."""
    return " ".join(
        f"{wait.endpoint} asked to wait until {_until(wait.until, now)}; nothing is sent to it "
        "before."
        if wait.endpoint
        else f"What is left failed and is tried again from {_until(wait.until, now)} on."
        for wait in waits
    )


def _until(moment: datetime, now: datetime) -> str:
    return f"{moment:%H:%M:%S} UTC" if moment.date() == now.date() else utc_seconds(moment)


def _rate(found: Progress) -> str:
    if found.per_minute is None:
        return ""
    return f"{found.per_minute:.0f}" if found.per_minute >= 1 else "less than 1"


def _left(found: Progress) -> str:
    return "" if found.seconds_left is None else duration(found.seconds_left)


def spoken(value: Any) -> str:
    """Return a stored code as words."""
    return str(value).replace("_", " ")
