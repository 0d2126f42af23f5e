"""Grading stored answers again: new grades and outcomes, no call to a model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from runs.models import Attempt, Experiment, Failure, Pair
from runs.sandbox.grader import Grader
from runs.selectors import executions_of
from runs.services.lifecycle import refuse_pushed
from runs.services.outcomes import regrade, store_outcome
from workbench.trail import record_event


def rescore(
    *,
    experiment: Experiment,
    grader: Grader,
    at: datetime,
    actor: Any = None,
    say: Callable[[int, int], None] = lambda done, of: None,
) -> int:
    """Grade every answer again whose result differs now; return how many got a new grade.

    An answer that is checked as before to the same verdict keeps its grade, and so
    does one that this host can't check now: rescoring twice adds nothing.

    Args:
        actor: the user who asked for it, or None for the command line.
        say: told before each answer how many are done, of how many.

    Raises:
        WrongStatus: its runs were made elsewhere.
        NoIsolation: the answers are code and nothing here can isolate them.
    """
    refuse_pushed(experiment)
    attempts = Attempt.objects.filter(execution__in=executions_of(experiment), failure=Failure.NONE)
    answers = list(attempts.order_by("pk").values_list("pk", flat=True))
    graded = 0
    for done, pk in enumerate(answers):
        say(done, len(answers))
        graded += regrade(pk, grader)
    for pair in Pair.objects.filter(cell__experiment=experiment).order_by("pk"):
        store_outcome(pair)
    record_event(
        actor=actor,
        verb="experiment.rescored",
        subject=experiment.slug,
        reason=f"{graded} answers graded again",
        at=at,
    )
    return graded
