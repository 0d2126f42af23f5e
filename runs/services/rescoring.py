"""Grading stored answers again: new grades and outcomes, no call to a model."""

from __future__ import annotations

from datetime import datetime

from runs.models import Attempt, Experiment, Failure, Pair
from runs.sandbox.grader import Grader
from runs.selectors import executions_of
from runs.services.outcomes import grade_attempt, latest_grade, store_grade, store_outcome
from workbench.trail import record_event


def rescore(*, experiment: Experiment, grader: Grader, at: datetime) -> int:
    """Grade every answer again whose result differs now; return how many got a new grade.

    An answer that is checked as before to the same verdict keeps its grade, so
    rescoring twice adds nothing.

    Raises:
        NoIsolation: the answers are code and nothing here can isolate them.
    """
    attempts = Attempt.objects.filter(
        execution__in=executions_of(experiment), failure=Failure.NONE
    ).select_related("execution__task")
    graded = 0
    for attempt in attempts.order_by("pk"):
        result = grade_attempt(attempt, attempt.execution.task, grader)
        latest = latest_grade(attempt)
        new = (result.checker_sha256, result.verdict, result.tier)
        if latest is None or new != (latest.checker_sha256, latest.verdict, latest.tier):
            store_grade(attempt, result, after=latest)
            graded += 1
    for pair in Pair.objects.filter(cell__experiment=experiment).order_by("pk"):
        store_outcome(pair)
    record_event(
        actor=None,
        verb="experiment.rescored",
        subject=experiment.slug,
        reason=f"{graded} answers graded again",
        at=at,
    )
    return graded
