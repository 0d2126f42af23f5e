"""Running one execution: claim, run the agent, record, grade, join into outcomes.

Each stage commits on its own and is found again after a crash, so that a
worker killed at any moment repeats at most the model call it had in flight.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from types import TracebackType
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DatabaseError, connection, transaction
from django.db.models import F
from django.utils import timezone

from runs.domain.agent import (
    AgentSettings,
    AgentStopped,
    Contaminated,
    Dialect,
    SearchTool,
    Trace,
    run_agent,
)
from runs.domain.checking import Verdict
from runs.domain.effects import Transition
from runs.domain.plan import EMBEDDED, ArmSpec, ModelSpec, arm_from_json, from_json
from runs.domain.prompts import ReturnedSkill
from runs.models import (
    Arm,
    Attempt,
    Execution,
    Experiment,
    Failure,
    Grade,
    Outcome,
    Pair,
    PairArm,
    Task,
)
from runs.sandbox.grader import Grader, GradeResult, NoIsolation
from runs.selectors import runnable_executions, running_experiments_of
from runs.services.lifecycle import finish_if_done, pause
from runs.services.usage import budget_reached
from skills.domain.retrieval import Bm25, Retriever
from skills.services.libraries import documents_of, versions_of
from workbench.kernel.chat import ChatModel, EndpointFault
from workbench.kernel.identity import generation_seed, uid_for
from workbench.kernel.leases import (
    AlreadyClaimed,
    LeaseLost,
    LeaseState,
    claim,
    confirm,
    renew,
    settle,
)
from workbench.llm.factory import BadEndpoint, chat_model_for

logger = logging.getLogger(__name__)

# Less than this and a commit may fail half-way through an experiment.
LEAST_FREE_BYTES = 100 * 1024 * 1024
FIRST_RETRY = timedelta(seconds=5)


@dataclass(frozen=True)
class Claimed:
    """An execution held under a fencing token."""

    execution: Execution
    token: int


def execute(*, uid: UUID, open_grader: Callable[[], Grader]) -> bool:
    """Run the execution ``uid`` as far as it isn't done yet; return whether it was ours to run.

    Anything that is already recorded is kept: a stored trace is only graded, a
    stored grade only joined. Returns False when somebody else holds it, it is
    settled, or no running experiment needs it.
    """
    claimed = _claim(uid)
    if claimed is None:
        return False
    experiments = list(running_experiments_of(claimed.execution))
    try:
        with _Renewing(claimed):
            _run(claimed, experiments, open_grader)
    except LeaseLost:
        logger.warning("execution %s: the lease was lost; another worker has it", uid)
    for experiment in experiments:
        _pause_at_budget(experiment)
        finish_if_done(experiment=experiment, at=timezone.now())
    return True


def _claim(uid: UUID) -> Claimed | None:
    now = timezone.now()
    lease = timedelta(seconds=settings.LEASE_SECONDS)
    try:
        token = claim(runnable_executions().filter(uid=uid), now=now, lease=lease)
    except AlreadyClaimed:
        return None
    execution = Execution.objects.select_related("arm_spec", "task").get(uid=uid)
    return Claimed(execution, token)


def _run(
    claimed: Claimed, experiments: list[Experiment], open_grader: Callable[[], Grader]
) -> None:
    """Take the execution through the stages that are still missing."""
    execution = claimed.execution
    if not experiments:  # all that needed it were paused in between
        _give_back(claimed, experiments, "")
        return
    attempt = execution.attempts.filter(failure=Failure.NONE).first()
    if execution.tries > settings.MAX_TRIES:
        _bury(claimed, f"its worker ended without a result {settings.MAX_TRIES} times")
        return
    if attempt is None and not _disk_has_room():
        _give_back(
            claimed, experiments, f"less than 100 MB of disk is free below {settings.DATA_DIR}"
        )
        return
    if attempt is None:
        attempt = _record_attempt(claimed, experiments)
    if attempt is None:
        return
    try:
        grader = open_grader()
        graded = _ensure_grade(attempt, execution.task, grader)
    except NoIsolation as error:
        _give_back(claimed, experiments, str(error))
        return
    if not graded:
        _retry_or_die(claimed)
        return
    _join(claimed, grader)


# --- the agent ----------------------------------------------------------------


def _record_attempt(claimed: Claimed, experiments: list[Experiment]) -> Attempt | None:
    """Run the agent and store what came of it; return the attempt if it can be graded."""
    execution = claimed.execution
    arm = arm_from_json(execution.arm_spec.spec)
    failure, detail, wait = Failure.NONE, "", None
    trace: Trace | None = None
    try:
        trace = run_execution_agent(execution, experiments[0])
    except (BadEndpoint, EndpointFault) as fault:
        _give_back(claimed, experiments, _endpoint_reason(fault, arm))
        return None
    except AgentStopped as stopped:
        if isinstance(stopped.cause, EndpointFault):
            _give_back(claimed, experiments, _endpoint_reason(stopped.cause, arm))
            return None
        trace = stopped.trace
        failure, detail = Failure.CALL, str(stopped.cause)
        wait = stopped.cause.retry_after_s
    except Contaminated as error:
        logger.error("execution %s is CONTAMINATED: %s", execution.uid, error)
        trace = error.trace
        failure, detail = Failure.CONTAMINATED, str(error)
    except Exception as error:  # a fault of this host or of our own code, never of the model
        logger.exception("execution %s failed on this host", execution.uid)
        failure, detail = Failure.HOST, f"{type(error).__name__}: {error}"
    with transaction.atomic():
        confirm(Execution.objects.filter(pk=execution.pk), token=claimed.token)
        attempt = _store_attempt(execution, arm, trace, failure, detail)
    if failure == Failure.NONE:
        return attempt
    if failure == Failure.CONTAMINATED:
        _settle_dead(claimed)  # the same requests would leak the same skill again
    else:
        _retry_or_die(claimed, wait_s=wait)
    return None


def run_execution_agent(execution: Execution, experiment: Experiment) -> Trace:
    """Return the trace of the execution's arm; calls in the ledger aren't made again.

    Raises:
        AgentStopped, Contaminated: see ``run_agent``.
        EndpointFault: the endpoint can't even be tried.
    """
    arm = arm_from_json(execution.arm_spec.spec)
    task = execution.task
    return run_agent(
        model=_chat_model(execution, arm, experiment),
        kind=task.kind,
        prompt=task.prompt,
        exposed=arm.exposed,
        search=search_tool(arm) if arm.exposed else None,
        settings=AgentSettings(
            dialect=Dialect(arm.dialect),
            temperature=arm.temperature,
            max_tokens=arm.max_tokens,
            # The baseline's spec names no search limit and no k: it never searches.
            max_searches=arm.max_searches or 1,
            k=arm.k or 0,
        ),
        seed=generation_seed(
            seed_stream=execution.seed_stream,
            task_sha256=task.sha256,
            replicate=execution.replicate,
        ),
    )


def _chat_model(execution: Execution, arm: ArmSpec, experiment: Experiment) -> ChatModel:
    return chat_model_for(endpoint=endpoint_of(model_of(experiment, arm)), subject=execution.uid)


def model_of(experiment: Experiment, arm: ArmSpec) -> ModelSpec:
    """Return the experiment's model entry that ``arm`` runs on."""
    return next(
        model
        for model in from_json(experiment.spec).models
        if model.id == arm.model and model.endpoint == arm.endpoint
    )


def endpoint_of(model: ModelSpec) -> dict[str, Any]:
    """Return where and how to reach ``model``, as the adapters want it.

    Raises:
        EndpointFault: it is the embedded model and nobody serves it.
    """
    base_url = model.base_url
    if base_url == EMBEDDED:
        base_url = settings.EMBEDDED_MODEL_URL
        if not base_url:
            raise EndpointFault("not_served", "the embedded model's server isn't running")
    return {
        "label": model.endpoint,
        "base_url": base_url,
        "api_key_env": model.api_key_env,
        "model": model.id,
        "dialect": model.dialect,
        "price_in": model.price_in,
        "price_out": model.price_out,
    }


def search_tool(arm: ArmSpec) -> SearchTool:
    """Return the search that the treatment's model may call, under the arm's control."""
    assert arm.library_sha256 is not None
    if arm.control == "schema_empty":
        return lambda query, types: ()
    assert arm.retriever is not None
    assert arm.k is not None
    retriever = _retriever(arm.library_sha256, arm.retriever)
    texts = _texts(arm.library_sha256)
    k, allowed = arm.k, arm.types

    def search(query: str, types: tuple[str, ...] | None) -> tuple[ReturnedSkill, ...]:
        wanted = set(types or allowed or ())
        if types and allowed:
            wanted = set(types) & set(allowed)
            if not wanted:
                return ()
        hits = retriever.search(query, k=k, types=wanted or None)
        return tuple(
            ReturnedSkill(
                id=hit.id,
                name=texts[hit.id][0],
                text=texts[hit.id][1],
                score=hit.score,
                rank=hit.rank,
            )
            for hit in hits
        )

    return search


@lru_cache(maxsize=32)
def _retriever(library_sha256: str, variant: str) -> Retriever:
    return Bm25(documents_of(library_sha256), variant=variant)


@lru_cache(maxsize=32)
def _texts(library_sha256: str) -> dict[str, tuple[str, str]]:
    """Return name and full Markdown body by slug: what a hit adds to the context."""
    return {v.skill.slug: (v.name, v.body) for v in versions_of(library_sha256)}


def _store_attempt(
    execution: Execution, arm: ArmSpec, trace: Trace | None, failure: str, detail: str
) -> Attempt:
    return Attempt.objects.create(
        execution=execution,
        number=execution.attempts.count() + 1,
        failure=failure,
        failure_detail=detail,
        trace=trace.to_json() if trace else {},
        exposed=arm.exposed,
        invoked=bool(trace and trace.invocations),
        # Without a trace nobody knows whether a skill had been returned.
        retrieved=trace.retrieved if trace else (None if arm.exposed else False),
        returned_ids=list(trace.returned_ids) if trace else [],
        loaded_ids=list(trace.loaded_ids) if trace else [],
        gold_ids=list(execution.task.gold_skills),
        tokens_in=trace.tokens_in if trace else None,
        tokens_out=trace.tokens_out if trace else None,
        latency_s=trace.latency_s if trace else None,
        at=timezone.now(),
    )


def _endpoint_reason(fault: Exception, arm: ArmSpec) -> str:
    return f"the endpoint {arm.endpoint} can't serve {arm.model}: {fault}"


# --- grading --------------------------------------------------------------------


def _ensure_grade(attempt: Attempt, task: Task, grader: Grader) -> bool:
    """Grade the attempt unless its latest grade stands; return whether it has a verdict."""
    latest = latest_grade(attempt)
    if latest and latest.verdict != Verdict.INFRA_ERROR:
        return True
    return store_grade(attempt, grade_attempt(attempt, task, grader)).verdict != (
        Verdict.INFRA_ERROR
    )


def grade_attempt(attempt: Attempt, task: Task, grader: Grader) -> GradeResult:
    """Return what the checker says of the attempt's answer; nothing is stored.

    Raises:
        NoIsolation: the answer is code and nothing here can isolate it.
    """
    return grader.grade(
        kind=task.kind, checker=task.checker, reply=attempt.trace.get("answer") or ""
    )


def store_grade(attempt: Attempt, result: GradeResult) -> Grade:
    """Add a grade to the attempt."""
    return Grade.objects.create(
        attempt=attempt,
        number=attempt.grades.count() + 1,
        checker_sha256=result.checker_sha256,
        verdict=result.verdict,
        details=result.details,
        tier=result.tier,
        at=timezone.now(),
    )


def latest_grade(attempt: Attempt) -> Grade | None:
    """Return the attempt's latest grade, the one that counts, or None."""
    return attempt.grades.order_by("-number").first()


# --- outcomes -------------------------------------------------------------------


def _join(claimed: Claimed, grader: Grader) -> None:
    """Settle the execution and store the outcome of every pair it completes."""
    execution = claimed.execution
    pairs = list(Pair.objects.filter(arms__execution=execution).order_by("pk"))
    for pair in pairs:
        _level_tiers(pair, grader)
    with transaction.atomic():
        settle(
            Execution.objects.filter(pk=execution.pk), token=claimed.token, state=LeaseState.DONE
        )
        for pair in pairs:
            store_outcome(pair)


def store_outcome(pair: Pair) -> Outcome | None:
    """Store the pair's outcome if both arms are graded and it isn't stored yet.

    The pair's row is locked first: of two arms that finish together, the
    second waits and then sees the grade of the first.
    """
    with transaction.atomic():
        Pair.objects.select_for_update().get(pk=pair.pk)
        grades = {}
        attempts = {}
        for pair_arm in PairArm.objects.filter(pair=pair).select_related("execution"):
            attempt = pair_arm.execution.attempts.filter(failure=Failure.NONE).first()
            grade = latest_grade(attempt) if attempt else None
            if attempt is None or grade is None or grade.verdict == Verdict.INFRA_ERROR:
                return None
            grades[pair_arm.arm] = grade
            attempts[pair_arm.arm] = attempt
        se_grade, sd_grade = grades[Arm.SE], grades[Arm.SD]
        if se_grade.tier != sd_grade.tier:
            return None
        outcome, _ = Outcome.objects.get_or_create(
            pair=pair,
            se_grade=se_grade,
            sd_grade=sd_grade,
            defaults={
                "uid": uid_for("outcome", str(pair.uid), se_grade.number, sd_grade.number),
                "transition": Transition.of(
                    se=se_grade.verdict == Verdict.PASS, sd=sd_grade.verdict == Verdict.PASS
                ),
                "retrieved": attempts[Arm.SE].retrieved,
                "at": timezone.now(),
            },
        )
    return outcome


def _level_tiers(pair: Pair, grader: Grader) -> None:
    """Grade again whatever was graded at another tier: tiers never mix within a pair."""
    for pair_arm in PairArm.objects.filter(pair=pair).select_related("execution__task"):
        attempt = pair_arm.execution.attempts.filter(failure=Failure.NONE).first()
        grade = latest_grade(attempt) if attempt else None
        if not attempt or not grade or grade.verdict == Verdict.INFRA_ERROR:
            continue
        if grade.tier != grader.tier:
            store_grade(attempt, grade_attempt(attempt, pair_arm.execution.task, grader))


# --- settling -------------------------------------------------------------------


def _give_back(claimed: Claimed, experiments: list[Experiment], reason: str) -> None:
    """Return the execution to the queue with its try unspent, and pause what needs it."""
    for experiment in experiments:
        pause(experiment=experiment, reason=reason, actor=None, at=timezone.now())
    settle(
        Execution.objects.filter(pk=claimed.execution.pk),
        token=claimed.token,
        state=LeaseState.PENDING,
        tries=F("tries") - 1,
    )


def _retry_or_die(claimed: Claimed, *, wait_s: float | None = None) -> None:
    """Schedule the next try, or end the execution when its tries are spent."""
    if claimed.execution.tries >= settings.MAX_TRIES:
        _settle_dead(claimed)
        return
    backoff = FIRST_RETRY * 2 ** (claimed.execution.tries - 1)
    wait = max(backoff, timedelta(seconds=wait_s or 0))
    settle(
        Execution.objects.filter(pk=claimed.execution.pk),
        token=claimed.token,
        state=LeaseState.PENDING,
        next_attempt_at=timezone.now() + wait,
    )


def _bury(claimed: Claimed, detail: str) -> None:
    """Record that the host could not run the execution, and end it."""
    execution = claimed.execution
    if not execution.attempts.filter(failure=Failure.NONE).exists():
        arm = arm_from_json(execution.arm_spec.spec)
        _store_attempt(execution, arm, None, Failure.HOST, detail)
    _settle_dead(claimed)


def _settle_dead(claimed: Claimed) -> None:
    """End the execution without a result; its pairs are censored."""
    settle(
        Execution.objects.filter(pk=claimed.execution.pk),
        token=claimed.token,
        state=LeaseState.DEAD,
    )


def _disk_has_room() -> bool:
    return shutil.disk_usage(settings.DATA_DIR).free >= LEAST_FREE_BYTES


def _pause_at_budget(experiment: Experiment) -> None:
    """Pause the experiment once what it has used reaches a cap of its budget."""
    reached = budget_reached(experiment)
    if reached:
        pause(experiment=experiment, reason=reached, actor=None, at=timezone.now())


class _Renewing(AbstractContextManager["_Renewing"]):
    """Renews the lease from a thread of its own while the body runs."""

    def __init__(self, claimed: Claimed) -> None:
        self._claimed = claimed
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self) -> _Renewing:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join()

    def _renew(self) -> None:
        queryset = Execution.objects.filter(pk=self._claimed.execution.pk)
        lease = timedelta(seconds=settings.LEASE_SECONDS)
        try:
            while not self._done.wait(settings.RENEW_SECONDS):
                try:
                    held = renew(queryset, token=self._claimed.token, until=timezone.now() + lease)
                except DatabaseError as error:  # the next renewal may succeed
                    logger.warning("could not renew %s: %s", self._claimed.execution.uid, error)
                    continue
                if not held:
                    return
        finally:
            connection.close()  # this thread's own
