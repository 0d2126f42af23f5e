"""Grading stored answers again: new grades and outcomes, no call to a model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db import transaction

from runs.models import Experiment, Failure, Pair, PairArm
from runs.sandbox.grader import Grader
from runs.services.lifecycle import refuse_pushed
from runs.services.outcomes import another_grade, store_grade, store_outcome
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

    It goes pair by pair: one that was interrupted leaves every pair as it was or as it will be,
    and a report says so until it is done again to its end.

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
    units = _units(experiment)
    answers = sum(len(unit.attempts) for unit in units)
    done = graded = 0
    for unit in units:
        found = []
        for pk in unit.attempts:
            say(done, answers)
            done += 1
            if another := another_grade(pk, grader):
                found.append(another)
        with transaction.atomic():
            # Grades of both arms and what follows from them are there together, or not at all;
            # from the first one on a report says that others wait.
            if found:
                Experiment.objects.filter(pk=experiment.pk, regrading_since=None).update(
                    regrading_since=at
                )
            for attempt, result in found:
                store_grade(attempt, result)
            for pair in Pair.objects.filter(pk__in=unit.pairs).order_by("pk"):
                store_outcome(pair)
        graded += len(found)
    with transaction.atomic():
        Experiment.objects.filter(pk=experiment.pk).update(regrading_since=None)
        record_event(
            actor=actor,
            verb="experiment.rescored",
            subject=experiment.slug,
            reason=f"{graded} answers graded again",
            at=at,
        )
    experiment.refresh_from_db(fields=["regrading_since"])
    return graded


@dataclass(frozen=True)
class _Unit:
    """The pairs of one replicate of a task, whose arms may share runs, and their answers."""

    pairs: set[int] = field(default_factory=set)
    attempts: dict[int, None] = field(default_factory=dict)


def _units(experiment: Experiment) -> list[_Unit]:
    """Return every answer of the experiment, once, with the pairs that it counts in."""
    units: dict[tuple[int, int], _Unit] = defaultdict(_Unit)
    arms = PairArm.objects.filter(pair__cell__experiment=experiment).order_by("pair", "arm")
    for task, replicate, pair, attempt in arms.filter(
        execution__attempts__failure=Failure.NONE
    ).values_list("pair__task", "pair__replicate", "pair", "execution__attempts"):
        unit = units[task, replicate]
        unit.pairs.add(pair)
        unit.attempts[attempt] = None
    return list(units.values())
