"""Figures that must not stay behind the rows: who commits last, and what is graded again."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.models import Max
from django.utils import timezone

from runs.domain.checking import Verdict
from runs.domain.effects import Transition
from runs.domain.report import BEING_GRADED_AGAIN
from runs.models import Arm, Attempt, Execution, ExperimentStatus, Grade, Outcome, Pair
from runs.sandbox.grader import GradeResult
from runs.services import rescoring, standing
from runs.services.reporting import inputs_of, report_of
from runs.services.rescoring import rescore
from runs.services.skill_totals import Returned, SkillTotals, count_skills
from runs.services.standing import refresh_oldest, standing_skill_totals
from tests.factories import (
    NOW,
    execution_of,
    finished_experiment,
    make_experiment,
    record,
    record_arm,
    record_failure,
    set_status,
    trace,
)
from workbench.kernel.identity import uid_for
from workbench.kernel.leases import LeaseState
from workbench.models import AuditEvent

pytestmark = pytest.mark.django_db
SKILL = "two-pointer"


def totals(found: SkillTotals) -> Returned:
    whole = Returned()
    for returned in found.versions(SKILL).values():
        whole.add(returned)
    return whole


def shown() -> Returned:
    return totals(SkillTotals.from_json(standing_skill_totals().result))


def sweep() -> None:
    while refresh_oldest(now=timezone.now() + timedelta(days=1)):
        pass


# --- who commits last ---------------------------------------------------------------


def store_lost(pair: Pair, first: int) -> None:
    """Store a lost pair under keys from ``first`` on: those that its transaction had taken."""
    grades = {}
    for number, (arm, passed) in enumerate(((Arm.SE, False), (Arm.SD, True))):
        is_se = arm == Arm.SE
        attempt = Attempt.objects.create(
            pk=first + number,
            execution=execution_of(pair, arm),
            number=1,
            trace=trace("x", (SKILL,) if is_se else ()),
            exposed=is_se,
            invoked=is_se,
            retrieved=is_se,
            returned_ids=[SKILL] if is_se else [],
            at=NOW,
        )
        Execution.objects.filter(pk=attempt.execution_id).update(state=LeaseState.DONE)
        grades[arm] = Grade.objects.create(
            pk=first + number,
            attempt=attempt,
            number=1,
            checker_sha256="c" * 64,
            verdict="pass" if passed else "fail",
            details={},
            tier="A",
            at=NOW,
        )
    Outcome.objects.create(
        pk=first,
        uid=uid_for("outcome", str(pair.uid)),
        pair=pair,
        se_grade=grades[Arm.SE],
        sd_grade=grades[Arm.SD],
        transition=Transition.HARMFUL,
        retrieved=True,
        at=NOW,
    )


@pytest.mark.both_databases
def test_rows_with_lower_keys_that_come_later_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "COUNTED_AT_ONCE", 2)
    make_experiment("panel", tasks=4)
    pairs = list(Pair.objects.order_by("task__key"))
    record(pairs[0], "b", skills=(SKILL,))
    last = max(
        model.objects.aggregate(last=Max("pk"))["last"] for model in (Attempt, Grade, Outcome)
    )
    store_lost(pairs[1], last + 50)
    assert (shown().won, shown().lost) == (1, 1)
    # Its keys were taken before those of the other; it commits only now.
    store_lost(pairs[2], last + 1)
    assert standing_skill_totals().as_of is not None, "the count of before isn't passed off as new"
    sweep()
    assert (shown().won, shown().lost) == (1, 2)
    assert standing_skill_totals().as_of is None


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_a_slower_transaction_is_counted_when_it_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("on SQLite those who write take turns")
    monkeypatch.setattr(standing, "COUNTED_AT_ONCE", 2)
    make_experiment("panel", tasks=4)
    pairs = list(Pair.objects.order_by("task__key"))
    record(pairs[0], "b", skills=(SKILL,))
    stored, may_end = threading.Event(), threading.Event()

    def slowly() -> None:
        try:
            with transaction.atomic():
                record(pairs[1], "c", skills=(SKILL,))
                stored.set()
                may_end.wait(30)
        finally:
            connections.close_all()

    slower = threading.Thread(target=slowly)
    slower.start()
    assert stored.wait(30)
    record(pairs[2], "b", skills=(SKILL,))  # began later, commits first
    assert (shown().won, shown().lost) == (2, 0)
    may_end.set()
    slower.join()
    assert standing_skill_totals().as_of is not None
    sweep()
    assert (shown().won, shown().lost) == (2, 1)


# --- the same rule as the report ------------------------------------------------------


@pytest.mark.both_databases
@pytest.mark.parametrize("policy", ["censor", "incorrect"])
def test_skill_totals_count_as_the_report_does(policy: str) -> None:
    """Of six pairs that were given the skill two are won and one's SD call died after an SE pass.

    Left out, that one is neither; counted as wrong it is won too: 3. Of another one the SE call
    died where SD passed, but nothing was returned to it. One is still pending.
    """
    experiment = make_experiment("panel", tasks=6, failure_policy=policy)
    pairs = list(Pair.objects.order_by("task__key"))
    for pair in pairs[:2]:
        record(pair, "b", skills=(SKILL,))
    record(pairs[2], "d", skills=(SKILL,))
    record_arm(pairs[3], Arm.SE, True, "x", (SKILL,))
    record_failure(pairs[3], Arm.SD)
    record_failure(pairs[4], Arm.SE)
    record_arm(pairs[4], Arm.SD, True, "x")
    record_arm(pairs[5], Arm.SE, True, "x", (SKILL,))
    (cell,) = report_of(experiment)["cells"]
    found = totals(count_skills())
    assert (found.won, found.lost) == (2 if policy == "censor" else 3, 0)
    assert found.pairs == 5
    # The report's retrieved pairs, of which one more is pending, and one left out if censored.
    assert cell["n_cond"] == (3 if policy == "censor" else 4)
    assert (cell["b"], cell["c"]) == (found.won, found.lost)


@pytest.mark.both_databases
def test_a_dead_run_that_is_tried_again_changes_the_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "COUNTED_AT_ONCE", 2)
    make_experiment("panel", tasks=2, failure_policy="incorrect")
    pair = Pair.objects.order_by("task__key")[0]
    record_arm(pair, Arm.SE, True, "x", (SKILL,))
    record_failure(pair, Arm.SD)
    assert shown().won == 1
    Execution.objects.filter(state=LeaseState.DEAD).update(state=LeaseState.PENDING)
    assert standing_skill_totals().as_of is not None
    sweep()
    assert shown().won == 0


# --- graded again ---------------------------------------------------------------------


def stricter(monkeypatch: pytest.MonkeyPatch, *, kill_after: int | None = None) -> None:
    """Let every SE answer fail from now on, and the host die after so many answers."""
    seen: list[int] = []

    def grade(pk: int, grader: Any) -> tuple[Attempt, GradeResult] | None:
        if len(seen) == kill_after:
            raise RuntimeError("killed")
        seen.append(pk)
        attempt = Attempt.objects.get(pk=pk)
        verdict = "fail" if attempt.exposed else attempt.grades.latest("number").verdict
        if attempt.grades.latest("number").checker_sha256 == "e" * 64:
            return None
        return attempt, GradeResult(Verdict(verdict), {}, "A", "e" * 64)

    monkeypatch.setattr(rescoring, "another_grade", grade)


def test_rescoring_that_is_killed_says_so_and_leaves_whole_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six won pairs; the fifth answer kills it: two pairs are lost to both by now, four won."""
    experiment = finished_experiment("panel", retrieved="bbbbbb")
    before = inputs_of(experiment).sha256
    assert report_of(experiment)["cells"][0]["b"] == 6
    stricter(monkeypatch, kill_after=5)
    with pytest.raises(RuntimeError, match="killed"):
        rescore(experiment=experiment, grader=None, at=NOW)  # type: ignore[arg-type]
    experiment.refresh_from_db()
    assert inputs_of(experiment).sha256 != before
    report = report_of(experiment)
    (cell,) = report["cells"]
    assert (cell["b"], cell["d"]) == (4, 2)
    assert report["notices"] == [BEING_GRADED_AGAIN]
    assert totals(count_skills()).won == 4
    latest = {
        pair.pk: pair.outcomes.latest("pk").transition for pair in Pair.objects.order_by("pk")
    }
    assert sorted(latest.values()).count(Transition.HELPFUL) == 4
    assert experiment.reports.count() == 1, "what passes isn't kept: only the one before"

    stricter(monkeypatch)
    assert rescore(experiment=experiment, grader=None, at=NOW) == 8  # type: ignore[arg-type]
    report = report_of(experiment)
    assert (report["cells"][0]["b"], report["cells"][0]["d"], report["notices"]) == (0, 6, [])
    assert AuditEvent.objects.filter(verb="experiment.rescored").count() == 1


def test_rescoring_that_changes_nothing_gives_no_notice_even_when_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = finished_experiment("panel", retrieved="bb")

    def same(pk: int, grader: Any) -> None:
        if pk == Attempt.objects.latest("pk").pk:
            raise RuntimeError("killed")

    monkeypatch.setattr(rescoring, "another_grade", same)
    with pytest.raises(RuntimeError, match="killed"):
        rescore(experiment=experiment, grader=None, at=NOW)  # type: ignore[arg-type]
    experiment.refresh_from_db()
    assert report_of(experiment)["notices"] == []


# --- what a report is found by ----------------------------------------------------------


@pytest.mark.both_databases
def test_an_attempt_that_is_not_graded_yet_is_part_of_what_a_report_is_found_by() -> None:
    experiment = make_experiment("panel", tasks=3)
    set_status(experiment, ExperimentStatus.RUNNING)
    execution = execution_of(Pair.objects.order_by("task__key")[0], Arm.SE)
    Execution.objects.filter(pk=execution.pk).update(state=LeaseState.RUNNING, fencing_token=1)
    before, report = inputs_of(experiment).sha256, report_of(experiment)
    attempt = Attempt.objects.create(
        execution=execution,
        number=1,
        trace={"status": "answered", "dropped_parameters": ["seed"]},
        exposed=True,
        invoked=True,
        retrieved=True,
        returned_ids=[SKILL],
        at=NOW,
    )
    ungraded = inputs_of(experiment).sha256
    assert report_of(experiment) != report, "its notices name what the endpoint refused"
    assert ungraded != before
    attempt.grades.create(
        number=1, checker_sha256="c" * 64, verdict="pass", details={}, tier="A", at=NOW
    )
    assert inputs_of(experiment).sha256 not in (before, ungraded)
