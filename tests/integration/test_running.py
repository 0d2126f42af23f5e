"""An experiment from its plan to its report, and what each kind of failure does to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from runs.domain.agent import Contaminated, run_agent
from runs.domain.checking import Verdict
from runs.domain.plan import Budget, CellSpec
from runs.models import (
    Arm,
    Attempt,
    Execution,
    Experiment,
    ExperimentStatus,
    Failure,
    Grade,
    Outcome,
    Pair,
    PairArm,
    Position,
)
from runs.sandbox.grader import Grader, GradeResult
from runs.selectors import executions_of
from runs.services import arms, executing, lifecycle
from runs.services.executing import execute
from runs.services.planning import SlugTaken
from runs.services.preparing import NotReady
from runs.services.progress import progress_of
from runs.services.reporting import report_of
from runs.services.rescoring import rescore
from runs.services.sweeping import sweep
from skills.models import Skill, Status
from skills.services.libraries import LibraryMissing, LibraryQuarantined
from tests.experiments import SCRIPTED, grader, make_spec, plan, run, run_left, write_tasks
from workbench.kernel.chat import CallFailed, ChatReply, ChatRequest, EndpointFault
from workbench.kernel.leases import LeaseState
from workbench.models import AuditEvent, Call, Notice

pytestmark = pytest.mark.django_db


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "counting.jsonl")


class _Failing:
    """A model whose every call fails in one way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def complete(self, request: ChatRequest, *, step: int) -> ChatReply:
        raise self.error


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(arms, "chat_model_for", lambda **_: _Failing(error))


def test_a_run_joins_both_arms_of_every_pair(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    assert experiment.status == ExperimentStatus.FINISHED
    assert Pair.objects.count() == 12
    assert Outcome.objects.count() == 12
    assert Attempt.objects.count() == Execution.objects.count() == 24
    for outcome in Outcome.objects.all():
        passed = {
            (True, True): "both_pass",
            (True, False): "helpful",
            (False, True): "harmful",
            (False, False): "both_fail",
        }
        verdicts = (outcome.se_grade.verdict == "pass", outcome.sd_grade.verdict == "pass")
        assert outcome.transition == passed[verdicts]
    cell = report_of(experiment)["cells"][0]
    stored = Counter(Outcome.objects.filter(retrieved=True).values_list("transition", flat=True))
    assert (cell["b"], cell["c"]) == (stored["helpful"], stored["harmful"])
    assert cell["n_cond"] == sum(stored.values()) > 0
    assert cell["n_pairs"] == 12


def test_arms_differ_in_nothing_but_the_skills(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    for pair in Pair.objects.all():
        first = {}
        for arm in PairArm.objects.filter(pair=pair).select_related("execution"):
            call = Call.objects.get(subject=arm.execution.uid, step=0, try_number=1)
            first[arm.arm] = call.request
        se, sd = first[Arm.SE], first[Arm.SD]
        assert se["tools"]
        assert not sd["tools"]
        for same in ("seed", "temperature", "max_tokens"):
            assert se[same] == sd[same]
        assert se["messages"][1] == sd["messages"][1]  # the task prompt


def test_planning_again_changes_nothing_and_another_plan_is_refused(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    before = Execution.objects.count()
    assert plan(make_spec(tasks)) == experiment
    assert Execution.objects.count() == before
    with pytest.raises(SlugTaken, match="another slug"):
        plan(make_spec(tasks, replicates=2))


def test_cells_that_differ_in_the_treatment_share_their_baseline(tasks: Path) -> None:
    cells = (CellSpec(library="coding"), CellSpec(library="coding", control="schema_empty"))
    experiment = plan(make_spec(tasks, cells=cells))
    assert Pair.objects.count() == 24
    # 12 SE runs of each cell, and 12 SD runs that serve both
    assert executions_of(experiment).count() == 36
    run(experiment)
    normal, empty = report_of(experiment)["cells"]
    assert normal["sd_accuracy"] == empty["sd_accuracy"]
    assert empty["cell"]["control"] == "schema_empty"
    assert (empty["n_cond"], empty["rae"]) == (0, None)
    assert empty["undefined"]["rae"] == "no_skill_returned"


def test_a_finished_execution_is_never_run_again(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    calls, report = Call.objects.count(), report_of(experiment)
    run_left(experiment)
    assert Call.objects.count() == calls
    assert report_of(experiment) == report


def test_what_a_crash_left_is_taken_up_where_it_stopped(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """Crash after each stage of the first execution; the calls are made once."""
    settings.MAX_TRIES = 4
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    uid = executions_of(experiment).order_by("pk").values_list("uid", flat=True)[0]

    class Crash(BaseException):
        """Not an Exception: nothing may catch a killed process."""

    def crash(*args: Any, **kwargs: Any) -> None:
        raise Crash

    for name in ("_store_attempt", "store_grade", "_join"):
        with monkeypatch.context() as patched:
            patched.setattr(executing, name, crash)
            with pytest.raises(Crash):
                execute(uid=uid, open_grader=grader)
        Execution.objects.update(lease_until=timezone.now() - timedelta(seconds=1))
    calls = Call.objects.filter(subject=uid).count()
    execute(uid=uid, open_grader=grader)
    execution = Execution.objects.get(uid=uid)
    assert execution.state == LeaseState.DONE
    assert execution.attempts.count() == 1
    assert Call.objects.filter(subject=uid).count() == calls
    assert Call.objects.filter(subject=uid).values("step").distinct().count() == calls


def test_a_failed_call_is_retried_and_then_censored_or_counted(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    fail_with(monkeypatch, CallFailed("server_error", "HTTP 500"))
    for _ in range(3):
        Execution.objects.update(next_attempt_at=None)
        run_left(experiment)
    assert set(Execution.objects.values_list("state", flat=True)) == {LeaseState.DEAD}
    assert Attempt.objects.filter(failure=Failure.CALL).count() == 3 * 24
    assert experiment.status == ExperimentStatus.FINISHED
    cell = report_of(experiment)["cells"][0]
    assert (cell["n_pairs"], cell["n_censored"]) == (0, 12)
    assert cell["rae"] is None
    assert not Outcome.objects.exists()
    # under the paper's policy the same rows are fails in both arms
    experiment.spec["failure_policy"] = "incorrect"
    cell = report_of(experiment)["cells"][0]
    assert (cell["n_pairs"], cell["all_d"]) == (12, 12)


def test_retrying_gives_dead_executions_new_tries_and_pairs_new_positions(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    with monkeypatch.context() as patched:
        fail_with(patched, CallFailed("timeout", "120 s"))
        for _ in range(3):
            Execution.objects.update(next_attempt_at=None)
            run_left(experiment)
    assert lifecycle.retry_failed(experiment=experiment, actor=None, at=timezone.now()) == 24
    assert Position.objects.count() == 24  # 12 planned, 12 appended
    run_left(experiment)
    assert experiment.status == ExperimentStatus.FINISHED
    assert Outcome.objects.count() == 12
    assert lifecycle.retry_failed(experiment=experiment, actor=None, at=timezone.now()) == 0


def test_an_endpoint_fault_pauses_and_spends_no_try(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    with monkeypatch.context() as patched:
        fail_with(patched, EndpointFault("wrong_key", "HTTP 401"))
        run_left(experiment)
    assert experiment.status == ExperimentStatus.PAUSED
    assert experiment.reason.endswith("can't serve scripted: HTTP 401")
    assert not Attempt.objects.exists()
    assert set(Execution.objects.values_list("state", "tries")) == {(LeaseState.PENDING, 0)}
    cell = report_of(experiment)["cells"][0]
    assert (cell["complete"], cell["rae"]) == (False, None)
    lifecycle.resume(experiment=experiment, actor=None, at=timezone.now())
    run_left(experiment)
    assert experiment.status == ExperimentStatus.FINISHED


def test_a_paused_experiment_runs_nothing(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    lifecycle.pause(experiment=experiment, reason="lunch", actor=None, at=timezone.now())
    run_left(experiment)
    assert not Call.objects.exists()
    with pytest.raises(lifecycle.WrongStatus):
        lifecycle.start(experiment=experiment, actor=None, at=timezone.now())


def test_contamination_is_invalid_and_loud(
    tasks: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leak(**arguments: Any) -> Any:
        trace = run_agent(**arguments)
        if not arguments["exposed"]:
            raise Contaminated("the text of prefix-sum reached an arm without skills", trace)
        return trace

    monkeypatch.setattr(arms, "run_agent", leak)
    experiment = plan(make_spec(tasks))
    run(experiment)
    assert "CONTAMINATED" in caplog.text
    report = report_of(experiment)
    assert report["cells"][0]["n_censored"] == 12
    assert "contaminated runs, left out: 12" in report["notices"]
    assert not Outcome.objects.exists()


def test_a_host_fault_is_never_a_task_failure(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    with monkeypatch.context() as patched:
        patched.setattr(arms, "run_agent", lambda **_: 1 / 0)
        run_left(experiment)
    assert set(Attempt.objects.values_list("failure", flat=True)) == {Failure.HOST}
    Execution.objects.update(next_attempt_at=None)
    run_left(experiment)
    assert report_of(experiment)["cells"][0]["n_censored"] == 0


def test_a_budget_pauses_at_its_cap(tasks: Path) -> None:
    experiment = plan(make_spec(tasks, budget=Budget(calls=5)))
    run(experiment)
    assert experiment.status == ExperimentStatus.PAUSED
    assert "budget of 5 calls" in experiment.reason
    assert Call.objects.count() < 10
    told = Notice.objects.get()
    assert told.kind == "budget_reached"
    assert experiment.reason in told.text


def test_an_execution_whose_worker_keeps_dying_is_given_up(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    poisoned = executions_of(experiment).order_by("pk")[0]
    Execution.objects.filter(pk=poisoned.pk).update(tries=3)
    run_left(experiment)
    poisoned.refresh_from_db()
    assert poisoned.state == LeaseState.DEAD
    assert "ended without a result" in poisoned.attempts.get().failure_detail
    assert report_of(experiment)["cells"][0]["n_censored"] == 1


def test_the_sweep_finishes_what_nobody_finished(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    experiment.status = ExperimentStatus.RUNNING
    experiment.save()
    sweep(now=timezone.now())
    experiment.refresh_from_db()
    assert experiment.status == ExperimentStatus.FINISHED


def test_rescoring_calls_no_model_and_adds_only_what_changed(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    calls, grades = Call.objects.count(), Grade.objects.count()
    assert rescore(experiment=experiment, grader=grader(), at=timezone.now()) == 0
    assert Grade.objects.count() == grades
    judge = grader().grade

    def stricter(**arguments: Any) -> GradeResult:
        return replace(judge(**arguments), checker_sha256="f" * 64)

    monkeypatch.setattr(grader(), "grade", stricter)
    assert rescore(experiment=experiment, grader=grader(), at=timezone.now()) == grades
    assert Call.objects.count() == calls
    assert Grade.objects.count() == 2 * grades
    assert Outcome.objects.count() == 24  # the latest of each pair counts
    assert report_of(experiment)["cells"][0]["n_pairs"] == 12


def test_a_host_that_cannot_grade_now_takes_no_verdict_away(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    before, judge = report_of(experiment), grader().grade

    def no_slot(**arguments: Any) -> GradeResult:
        return replace(judge(**arguments), verdict=Verdict.INFRA_ERROR)

    with monkeypatch.context() as patched:
        patched.setattr(grader(), "grade", no_slot)
        assert rescore(experiment=experiment, grader=grader(), at=timezone.now()) == 0
    assert report_of(experiment) == before


def test_a_graded_answer_is_joined_however_often_its_worker_died(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    last = Outcome.objects.order_by("pk").last()
    assert last is not None
    # As if the worker had died three times between the grade and the outcome.
    Outcome.objects.filter(pk=last.pk)._raw_delete("default")
    execution = last.se_grade.attempt.execution
    Execution.objects.filter(pk=execution.pk).update(
        state=LeaseState.RUNNING, tries=3, lease_until=timezone.now() - timedelta(seconds=1)
    )
    Experiment.objects.update(status=ExperimentStatus.RUNNING)
    run_left(experiment)
    execution.refresh_from_db()
    assert execution.state == LeaseState.DONE
    assert Outcome.objects.filter(pair=last.pair).count() == 1


def test_levelling_a_shared_baseline_levels_every_pair_it_serves(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = (CellSpec(library="coding"), CellSpec(library="coding", k=1))
    experiment = plan(make_spec(tasks, cells=cells))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    arms_of = PairArm.objects.filter(pair__cell__number=1).values_list("execution__uid", flat=True)
    with monkeypatch.context() as patched:
        patched.setattr(Grader, "tier", property(lambda self: "B"))
        for uid in arms_of:  # the first cell, its baseline included, at one tier
            execute(uid=uid, open_grader=grader)
    assert Outcome.objects.count() == 12
    run_left(experiment)  # the second cell at another
    for pair in Pair.objects.all():
        outcome = pair.outcomes.order_by("-pk").first()
        assert outcome is not None
        assert outcome.se_grade.tier == outcome.sd_grade.tier == grader().tier


def test_arms_that_were_sent_different_parameters_are_no_pair(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**arguments: Any) -> Any:
        trace = run_agent(**arguments)
        if not arguments["exposed"]:
            return trace
        # As if the endpoint had refused the temperature beside tools.
        first = trace.steps[0]
        reply = replace(first.reply, dropped_parameters=("temperature",))
        return replace(trace, steps=(replace(first, reply=reply), *trace.steps[1:]))

    monkeypatch.setattr(arms, "run_agent", refused)
    experiment = plan(make_spec(tasks))
    run(experiment)
    assert not Outcome.objects.exists()
    cell = report_of(experiment)["cells"][0]
    assert (cell["n_pairs"], cell["n_censored"]) == (0, 12)


def test_tiers_never_mix_within_a_pair(tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host changes half-way: what was graded at the other tier is graded again."""
    experiment = plan(make_spec(tasks))
    lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
    treated = PairArm.objects.filter(arm=Arm.SE).values_list("execution__uid", flat=True)
    with monkeypatch.context() as patched:
        patched.setattr(Grader, "tier", property(lambda self: "B"))
        for uid in treated:
            execute(uid=uid, open_grader=grader)
    assert set(Grade.objects.values_list("tier", flat=True)) == {"B"}
    calls = Call.objects.count()
    run_left(experiment)
    assert Outcome.objects.count() == 12
    for outcome in Outcome.objects.all():
        assert outcome.se_grade.tier == outcome.sd_grade.tier == grader().tier
    # 12 SE answers were graded twice, 12 SD answers once; the SE model was not called again
    assert Grade.objects.count() == 36
    assert Call.objects.count() == calls + 12


def test_progress_counts_rows(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    progress = progress_of(experiment, now=timezone.now())
    assert (progress.total, progress.done, progress.pairs_total) == (24, 0, 12)
    assert (progress.per_minute, progress.usage.tokens) == (None, None)
    run(experiment)
    progress = progress_of(experiment, now=timezone.now())
    assert (progress.done, progress.pairs_done) == (24, 12)
    # It isn't running any more.
    assert (progress.per_minute, progress.seconds_left) == (None, None)
    assert progress.usage.calls == Call.objects.count()


def test_missing_things_are_named_before_anything_runs(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(NotReady, match="NO_SUCH_KEY"):
        plan(make_spec(tasks, model=replace(SCRIPTED, api_key_env="NO_SUCH_KEY")))
    with pytest.raises(LibraryMissing, match="import_skills"):
        plan(make_spec(tasks, cells=(CellSpec(library="nowhere"),)))


def test_a_quarantined_skill_keeps_a_library_from_being_run(tasks: Path) -> None:
    plan(make_spec(tasks))
    Skill.objects.filter(slug="prefix-sum").update(status=Status.QUARANTINED)
    with pytest.raises(LibraryQuarantined, match="prefix-sum"):
        plan(make_spec(tasks, slug="other"))


def test_every_move_leaves_an_audit_event(tasks: Path) -> None:
    experiment = plan(make_spec(tasks))
    run(experiment)
    verbs = list(AuditEvent.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs == ["experiment.planned", "experiment.running", "experiment.finished"]
