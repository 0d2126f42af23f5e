"""How far an experiment is, derived from its rows: nothing is counted twice or stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from runs.models import Attempt, Experiment, Failure, Outcome, Pair
from runs.selectors import States, executions_of, states_of
from runs.services.usage import Usage, usage_of


@dataclass(frozen=True)
class Progress:
    """Where an experiment's executions and pairs stand.

    Attributes:
        per_minute: executions that ended per minute since the first one, or None.
        seconds_left: at that rate, or None when it can't be told yet.
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
    per_minute = seconds_left = None
    if experiment.started_at and ended:
        until = experiment.ended_at or now
        minutes = (until - experiment.started_at).total_seconds() / 60
        if minutes > 0:
            per_minute = ended / minutes
            seconds_left = (states.total - ended) / per_minute * 60
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
        failures=_failures(experiment, states),
        usage=usage_of(experiment),
    )


def _failures(experiment: Experiment, states: States) -> dict[str, int]:
    if states.claims == states.done == states.total:
        return {}  # each was taken up once and came to its end
    attempts = Attempt.objects.filter(execution__in=executions_of(experiment))
    failed = attempts.exclude(failure=Failure.NONE).values_list("failure")
    return dict(failed.annotate(n=Count("pk")))
