"""Running one execution: claim, run the agent, record, grade, join into outcomes.

Each stage commits on its own and is found again after a crash, so that a
worker killed at any moment repeats at most the model call it had in flight.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from uuid import UUID

from django.conf import settings
from django.db import Error as DatabaseFault
from django.db import connection, transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from runs.domain.agent import AgentStopped, Contaminated, Trace
from runs.domain.checking import Verdict
from runs.domain.plan import arm_from_json
from runs.models import Attempt, Execution, Experiment, Failure, Pair, Task
from runs.sandbox.grader import Grader, NoIsolation
from runs.selectors import needed, running_experiments_of
from runs.services.arms import run_execution_agent
from runs.services.lifecycle import WrongStatus, finish_if_done, pause
from runs.services.outcomes import (
    grade_attempt,
    level_tiers,
    standing_grade,
    store_grade,
    store_outcome,
)
from runs.services.usage import budget_reached
from workbench.kernel.chat import EndpointBusy, EndpointFault
from workbench.kernel.leases import (
    AlreadyClaimed,
    LeaseLost,
    LeaseState,
    claim,
    confirm,
    renew,
    settle,
)
from workbench.llm.factory import BadEndpoint
from workbench.notices import NoticeKind

logger = logging.getLogger(__name__)

# Less than this and a commit may fail half-way through an experiment.
LEAST_FREE_BYTES = 100_000_000
FIRST_RETRY = timedelta(seconds=5)
RENEW_AGAIN_S = 1.0
# An endpoint that asks for more is tried again after a day.
LONGEST_WAIT_S = 86_400


class _DiskFull(Exception):
    """Too little room to go on safely."""


class _BudgetReached(Exception):
    """An experiment has used what it may; the text says which cap."""


class _EndpointDown(Exception):
    """The endpoint can't serve anything now; the text says which and why."""


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
        finish_if_done(experiment=experiment, at=timezone.now())
    return True


def _claim(uid: UUID) -> Claimed | None:
    lease = timedelta(seconds=settings.LEASE_SECONDS)
    try:
        row = Execution.objects.filter(uid=uid)
        token = claim(row, now=timezone.now(), lease=lease, only_if=needed())
    except AlreadyClaimed:
        return None
    return Claimed(row.select_related("arm_spec", "task").get(), token)


def _run(
    claimed: Claimed, experiments: list[Experiment], open_grader: Callable[[], Grader]
) -> None:
    """Take the execution through the stages that are still missing."""
    execution = claimed.execution
    attempts = list(execution.attempts.order_by("number"))
    attempt = next((one for one in attempts if one.failure == Failure.NONE), None)
    if not experiments:  # all that needed it were paused since the claim
        _give_back(claimed, experiments, "")
        return
    if execution.tries > settings.MAX_TRIES and not (attempt and standing_grade(attempt)):
        _bury(claimed, attempts)
        return
    try:
        if attempt is None:
            _check_disk()
            _check_budgets(experiments)
            attempt = _record_attempt(claimed, experiments[0], number=len(attempts) + 1)
        if attempt is None:
            return
        grader = open_grader()
        if not _has_verdict(attempt, execution.task, grader):
            _retry_or_die(claimed)
            return
        _join(claimed, grader)
    except _BudgetReached as error:
        _give_back(claimed, experiments, str(error), kind=NoticeKind.BUDGET_REACHED)
    except (NoIsolation, _DiskFull, _EndpointDown) as error:
        _give_back(claimed, experiments, str(error))


# --- the agent ----------------------------------------------------------------


def _record_attempt(claimed: Claimed, experiment: Experiment, *, number: int) -> Attempt | None:
    """Run the agent and store what came of it; return the attempt if it can be graded.

    Where the endpoint asks for a long wait nothing has failed: no attempt is stored,
    and the execution is due again after that wait.

    Raises:
        _EndpointDown: the endpoint can't serve anything now; no attempt was made of it.
    """
    execution = claimed.execution
    failure, detail, wait = Failure.NONE, "", None
    trace: Trace | None = None
    try:
        trace = run_execution_agent(
            execution,
            experiment,
            still_ours=lambda: confirm(_row(claimed), token=claimed.token),
        )
    except LeaseLost:
        raise
    except (BadEndpoint, EndpointFault) as fault:
        raise _EndpointDown(_endpoint_reason(fault, execution)) from fault
    except AgentStopped as stopped:
        if isinstance(stopped.cause, EndpointFault):
            raise _EndpointDown(_endpoint_reason(stopped.cause, execution)) from stopped
        if isinstance(stopped.cause, EndpointBusy):
            logger.info("execution %s waits: %s", execution.uid, stopped.cause)
            _return_try(claimed, wait_s=stopped.cause.wait_s)
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
        confirm(_row(claimed), token=claimed.token)
        attempt = _store_attempt(execution, number, trace, failure, detail)
    if failure == Failure.NONE:
        return attempt
    if failure == Failure.CONTAMINATED:
        _settle_dead(claimed)  # the same requests would leak the same skill again
    else:
        _retry_or_die(claimed, wait_s=wait)
    return None


def _store_attempt(
    execution: Execution, number: int, trace: Trace | None, failure: str, detail: str
) -> Attempt:
    exposed = arm_from_json(execution.arm_spec.spec).exposed
    attempt: Attempt = Attempt.objects.create(
        execution=execution,
        number=number,
        failure=failure,
        failure_detail=detail,
        trace=trace.to_json() if trace else {},
        exposed=exposed,
        invoked=bool(trace and trace.invocations),
        # Without a trace nobody knows whether a skill had been returned.
        retrieved=trace.retrieved if trace else (None if exposed else False),
        returned_ids=list(trace.returned_ids) if trace else [],
        loaded_ids=list(trace.loaded_ids) if trace else [],
        gold_ids=list(execution.task.gold_skills),
        tokens_in=trace.tokens_in if trace else None,
        tokens_out=trace.tokens_out if trace else None,
        latency_s=trace.latency_s if trace else None,
        at=timezone.now(),
    )
    return attempt


def _endpoint_reason(fault: Exception, execution: Execution) -> str:
    arm, told = arm_from_json(execution.arm_spec.spec), str(fault)
    if arm.endpoint and arm.endpoint in told:
        return told
    return f"the endpoint {arm.endpoint} can't serve {arm.model}: {told}"


# --- grading and joining ----------------------------------------------------------


def _has_verdict(attempt: Attempt, task: Task, grader: Grader) -> bool:
    """Grade the attempt unless it has a standing grade; return whether it has one now."""
    if standing_grade(attempt) is not None:
        return True
    grade = store_grade(attempt, grade_attempt(attempt, task, grader))
    return grade.verdict != Verdict.INFRA_ERROR


def _join(claimed: Claimed, grader: Grader) -> None:
    """Settle the execution and store the outcome of every pair it completes."""
    served = list(Pair.objects.filter(arms__execution=claimed.execution))
    pairs = level_tiers(served, grader)
    with transaction.atomic():
        settle(_row(claimed), token=claimed.token, state=LeaseState.DONE)
        for pair in sorted(pairs, key=lambda pair: pair.pk):  # one order, so no deadlock
            store_outcome(pair)


# --- settling -------------------------------------------------------------------


def _give_back(
    claimed: Claimed,
    experiments: list[Experiment],
    reason: str,
    *,
    kind: NoticeKind = NoticeKind.EXPERIMENT_PAUSED,
) -> None:
    """Return the execution to the queue with its try unspent, and pause what needs it."""
    for experiment in experiments:
        with suppress(WrongStatus):  # somebody ended it meanwhile
            pause(experiment=experiment, reason=reason, actor=None, at=timezone.now(), kind=kind)
    _return_try(claimed)


def _return_try(claimed: Claimed, *, wait_s: float = 0.0) -> None:
    """Return the execution to the queue, due after ``wait_s``, with its try unspent."""
    settle(
        _row(claimed),
        token=claimed.token,
        state=LeaseState.PENDING,
        tries=F("tries") - 1,
        next_attempt_at=timezone.now() + timedelta(seconds=wait_s) if wait_s else None,
    )


def _retry_or_die(claimed: Claimed, *, wait_s: float | None = None) -> None:
    """Schedule the next try, or end the execution when its tries are spent."""
    if claimed.execution.tries >= settings.MAX_TRIES:
        _settle_dead(claimed)
        return
    backoff = FIRST_RETRY * 2 ** (claimed.execution.tries - 1)
    wait = max(backoff, timedelta(seconds=min(wait_s or 0, LONGEST_WAIT_S)))
    settle(
        _row(claimed),
        token=claimed.token,
        state=LeaseState.PENDING,
        next_attempt_at=timezone.now() + wait,
    )


def _bury(claimed: Claimed, attempts: list[Attempt]) -> None:
    """Record that the host could not bring the execution to its end, and end it."""
    if all(attempt.failure for attempt in attempts):
        detail = f"its worker ended without a result {settings.MAX_TRIES} times"
        number = len(attempts) + 1
        _store_attempt(claimed.execution, number, None, Failure.HOST, detail)
    _settle_dead(claimed)


def _settle_dead(claimed: Claimed) -> None:
    """End the execution without a result; its pairs are censored."""
    settle(
        _row(claimed),
        token=claimed.token,
        state=LeaseState.DEAD,
    )


def _row(claimed: Claimed) -> QuerySet[Execution]:
    return Execution.objects.filter(pk=claimed.execution.pk)


def _check_disk() -> None:
    if shutil.disk_usage(settings.DATA_DIR).free < LEAST_FREE_BYTES:
        raise _DiskFull(f"less than 100 MB of disk is free below {settings.DATA_DIR}")


def _check_budgets(experiments: list[Experiment]) -> None:
    for experiment in experiments:
        if reached := budget_reached(experiment):
            raise _BudgetReached(reached)


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
        wait = settings.RENEW_SECONDS
        lease = timedelta(seconds=settings.LEASE_SECONDS)
        try:
            while not self._done.wait(wait):
                try:
                    until = timezone.now() + lease
                    if not renew(_row(self._claimed), token=self._claimed.token, until=until):
                        return
                    wait = settings.RENEW_SECONDS
                except DatabaseFault as error:
                    # A broken connection stays broken: the next try gets a new one, soon.
                    logger.warning("could not renew %s: %s", self._claimed.execution.uid, error)
                    connection.close()
                    wait = RENEW_AGAIN_S
        finally:
            connection.close()  # this thread's own
