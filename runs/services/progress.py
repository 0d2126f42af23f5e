"""How far an experiment is, derived from its rows: nothing is counted twice or stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Min, Q

from runs.domain.plan import from_json
from runs.models import (
    Attempt,
    Experiment,
    ExperimentStatus,
    Failure,
    Origin,
    Outcome,
    Pair,
    PairArm,
)
from runs.selectors import States, executions_of, states_of
from runs.services.usage import Usage, usage_of
from workbench.kernel.leases import LeaseState
from workbench.llm.limits import held_until
from workbench.models import AuditEvent

# What the rate is counted over: the recent stretch of work, as it is what goes on.
RATE_OVER = timedelta(minutes=10)
RATE_ATTEMPTS = 500
# Fewer runs, or a shorter stretch, say too little about how long the others will take.
RATE_RUNS = 3
RATE_LEAST = timedelta(seconds=10)
# Shorter waits pass while somebody reads of them.
WAIT_LEAST = timedelta(seconds=5)


@dataclass(frozen=True)
class Wait:
    """Nothing is sent before ``until``: ``endpoint`` asked for that, or failed runs rest so long.

    Attributes:
        endpoint: its label; empty where all that is left failed and waits for its next try.
    """

    endpoint: str
    until: datetime


@dataclass(frozen=True)
class Progress:
    """Where an experiment's executions and pairs stand.

    Attributes:
        per_minute: executions that ended per minute of the recent work, None where it isn't
            running, waits, or has done too little to tell.
        seconds_left: at that rate, or None when it can't be told.
        waits: what a running experiment waits for.
        failures: recorded failed attempts by whose failure it was.
    """

    total: int
    done: int
    dead: int
    running: int
    pending: int
    pairs_total: int
    pairs_done: int
    per_minute: float | None
    seconds_left: float | None
    waits: tuple[Wait, ...]
    failures: dict[str, int]
    usage: Usage

    @property
    def ended(self) -> int:
        """Executions that won't run again by themselves."""
        return self.done + self.dead


def progress_of(experiment: Experiment, *, now: datetime, states: States | None = None) -> Progress:
    """Return how far ``experiment`` is at ``now``.

    Args:
        states: what ``states_of`` said just now, where it was asked already.
    """
    states = states or states_of(experiment)
    ended = states.done + states.dead
    runs_here = experiment.origin == Origin.PLANNED
    going = runs_here and experiment.status == ExperimentStatus.RUNNING
    waits = _waits(experiment, states, now) if going else ()
    per_minute = _rate(experiment, now) if going and not waits else None
    seconds_left = (states.total - ended) / per_minute * 60 if per_minute else None
    return Progress(
        total=states.total,
        done=states.done,
        dead=states.dead,
        running=states.running,
        pending=states.pending,
        pairs_total=Pair.objects.filter(cell__experiment=experiment).count(),
        pairs_done=Outcome.objects.filter(pair__cell__experiment=experiment)
        .values("pair")
        .distinct()
        .count(),
        per_minute=per_minute,
        seconds_left=seconds_left,
        waits=waits,
        failures=_failures(experiment, states),
        usage=usage_of(experiment),
    )


def _rate(experiment: Experiment, now: datetime) -> float | None:
    """Return the executions that ended per minute of work since it last began, or None.

    Only the newest attempts of all are looked at, found by their key: a bounded number, whatever
    was recorded before.
    """
    since = now - RATE_OVER
    moves = ("experiment.running", "experiment.retried")
    began = AuditEvent.objects.filter(subject=experiment.slug, verb__in=moves).order_by("-pk")
    if (started := began.values_list("at", flat=True).first()) is not None:
        since = max(since, started)
    newest = list(Attempt.objects.order_by("-pk").values_list("execution", "at")[:RATE_ATTEMPTS])
    if len(newest) == RATE_ATTEMPTS:
        since = max(since, newest[-1][1])
    recent = [execution for execution, at in newest if at >= since]
    # Whose they are is compared here: the database would go over all pairs of the experiment.
    served = PairArm.objects.filter(
        execution__in=recent, execution__state__in=(LeaseState.DONE, LeaseState.DEAD)
    ).values_list("execution", "pair__cell__experiment")
    ended = len({execution for execution, of in served if of == experiment.pk})
    if ended < RATE_RUNS or now - since < RATE_LEAST:
        return None
    return ended / ((now - since).total_seconds() / 60)


def _waits(experiment: Experiment, states: States, now: datetime) -> tuple[Wait, ...]:
    """Return what keeps a running experiment from sending anything now."""
    if not (states.pending or states.running):
        return ()
    labels = {model.endpoint for model in from_json(experiment.spec).models}
    held = {
        label: until
        for label, until in held_until(labels, now=now).items()
        if not states.running or until - now >= WAIT_LEAST
    }
    if held or states.running:
        return tuple(Wait(label, until) for label, until in sorted(held.items()))
    pending = executions_of(experiment).filter(state=LeaseState.PENDING)
    found = pending.aggregate(
        first=Min("next_attempt_at"), due=Count("pk", filter=Q(next_attempt_at=None))
    )
    if found["due"] or found["first"] is None or found["first"] <= now:
        return ()
    return (Wait("", found["first"]),)


def _failures(experiment: Experiment, states: States) -> dict[str, int]:
    if states.claims == states.done == states.total:
        return {}  # each was taken up once and came to its end
    attempts = Attempt.objects.filter(execution__in=executions_of(experiment))
    failed = attempts.exclude(failure=Failure.NONE).values_list("failure")
    return dict(failed.annotate(n=Count("pk")))
