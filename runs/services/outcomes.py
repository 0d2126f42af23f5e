"""Grades of attempts, and the joint outcome of a pair's two arms."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from runs.domain.checking import Verdict
from runs.domain.effects import Transition
from runs.models import Arm, Attempt, Failure, Grade, Outcome, Pair, Task
from runs.sandbox.grader import Grader, GradeResult
from workbench.kernel.identity import uid_for


def grade_attempt(attempt: Attempt, task: Task, grader: Grader) -> GradeResult:
    """Return what the checker says of the attempt's answer; nothing is stored.

    Raises:
        NoIsolation: the answer is code and nothing here can isolate it.
    """
    return grader.grade(
        kind=task.kind, checker=task.checker, reply=attempt.trace.get("answer") or ""
    )


def standing_grade(attempt: Attempt) -> Grade | None:
    """Return the grade of the attempt that counts: its latest one with a verdict, or None."""
    return attempt.grades.exclude(verdict=Verdict.INFRA_ERROR).order_by("-number").first()


def outcome_of(pair: Pair, *, se: Grade, sd: Grade, at: datetime) -> Outcome:
    """Return the outcome that the two grades come to; nothing is stored."""
    return Outcome(
        uid=uid_for("outcome", str(pair.uid), se.number, sd.number),
        pair=pair,
        se_grade=se,
        sd_grade=sd,
        transition=Transition.of(se=se.verdict == Verdict.PASS, sd=sd.verdict == Verdict.PASS),
        retrieved=se.attempt.retrieved,
        at=at,
    )


def store_grade(attempt: Attempt, result: GradeResult) -> Grade:
    """Add a grade to the attempt, numbered after its latest one."""
    grade: Grade = Grade.objects.create(
        attempt=attempt,
        number=attempt.grades.count() + 1,
        checker_sha256=result.checker_sha256,
        verdict=result.verdict,
        details=result.details,
        tier=result.tier,
        at=timezone.now(),
    )
    return grade


def store_outcome(pair: Pair) -> None:
    """Store the pair's outcome once both arms are graded alike; again changes nothing.

    Alike means at one tier and, before that, asked with the same parameters.

    The pair's row is locked first: of two arms that finish together, the
    second waits and then sees the grade of the first.
    """
    with transaction.atomic():
        Pair.objects.select_for_update().only("pk").get(pk=pair.pk)
        graded = graded_arms(pair)
        if set(graded) != set(Arm):
            return
        se, sd = graded[Arm.SE].grade, graded[Arm.SD].grade
        if se.tier != sd.tier or graded[Arm.SE].dropped != graded[Arm.SD].dropped:
            return
        outcome = outcome_of(pair, se=se, sd=sd, at=timezone.now())
        Outcome.objects.bulk_create([outcome], ignore_conflicts=True)


class GradedArm(NamedTuple):
    """The standing grade of an arm, and the parameters that its endpoint refused."""

    grade: Grade
    dropped: frozenset[str]


def graded_arms(pair: Pair) -> dict[str, GradedArm]:
    """Return the standing grade of each arm that has one."""
    grades = (
        Grade.objects.filter(
            attempt__failure=Failure.NONE, attempt__execution__pair_arms__pair=pair
        )
        .exclude(verdict=Verdict.INFRA_ERROR)
        .select_related("attempt")
        .defer("attempt__trace", "details")
        .annotate(
            arm=F("attempt__execution__pair_arms__arm"),
            dropped=F("attempt__trace__dropped_parameters"),
        )
        .order_by("number")
    )
    # Of several grades of an arm the last one stays.
    return {grade.arm: GradedArm(grade, frozenset(grade.dropped or ())) for grade in grades}


def level_tiers(pairs: Sequence[Pair], grader: Grader) -> list[Pair]:
    """Grade again whatever was graded at another tier: tiers never mix within a pair.

    An execution may serve pairs of several cells, so the pairs of every one
    that is graded again are levelled too. Returns all pairs this touched.

    Raises:
        NoIsolation: see ``grade_attempt``.
    """
    touched = {pair.pk: pair for pair in pairs}
    waiting = list(pairs)
    while waiting:
        others = Grade.objects.filter(attempt__execution__pair_arms__pair__in=waiting)
        if not others.exclude(tier=grader.tier).exists():
            break
        regraded = [
            grade.attempt.execution_id
            for pair in waiting
            for grade, _ in graded_arms(pair).values()
            if grade.tier != grader.tier and regrade(grade.attempt_id, grader)
        ]
        found = Pair.objects.filter(arms__execution__in=regraded).exclude(pk__in=touched)
        waiting = list(found.distinct())
        touched |= {pair.pk: pair for pair in waiting}
    return list(touched.values())


def regrade(attempt_id: int, grader: Grader) -> bool:
    """Grade a stored answer again where that gives another result; return whether it did.

    Raises:
        NoIsolation: see ``grade_attempt``.
    """
    found = another_grade(attempt_id, grader)
    if found is None:
        return False
    store_grade(*found)
    return True


def another_grade(attempt_id: int, grader: Grader) -> tuple[Attempt, GradeResult] | None:
    """Return the attempt with what its answer is graded now, or None where that stays the same.

    A host that can't check it now takes nothing away: the standing grade stays.

    Raises:
        NoIsolation: see ``grade_attempt``.
    """
    attempt = Attempt.objects.select_related("execution__task").get(pk=attempt_id)
    result = grade_attempt(attempt, attempt.execution.task, grader)
    standing = standing_grade(attempt)
    if standing is not None:
        if result.verdict == Verdict.INFRA_ERROR:
            return None
        new = (result.checker_sha256, result.verdict, result.tier)
        if new == (standing.checker_sha256, standing.verdict, standing.tier):
            return None
    return attempt, result
