"""Starting, pausing, resuming, cancelling and finishing experiments.

Every change is a compare-and-swap on the status and leaves an audit event. A pause or an end
tells a notice in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import Max

from runs.domain.plan import Budget
from runs.models import Execution, Experiment, ExperimentStatus, Origin, Pair, Position
from runs.selectors import executions_of
from runs.services.planning import is_complete
from runs.services.telling import tell_ended, tell_paused
from runs.services.usage import budget_of, usage_of
from workbench.kernel.dispatch import publish
from workbench.kernel.leases import LeaseState
from workbench.models import AuditEvent
from workbench.notices import NoticeKind
from workbench.trail import record_event

EXECUTE_TASK = "runs.execute"
EXECUTIONS_QUEUE = "executions"
# The sweep tops the queue up, so a large plan needs no message per row at once.
PUBLISH_AT_MOST = 400

OPEN = (ExperimentStatus.PLANNED, ExperimentStatus.RUNNING, ExperimentStatus.PAUSED)


class WrongStatus(Exception):
    """The experiment isn't in a status from which this can be done."""


def refuse_pushed(experiment: Experiment) -> None:
    """Refuse what only makes sense of an experiment that is run here.

    Raises:
        WrongStatus: its runs were made elsewhere and pushed.
    """
    if experiment.origin == Origin.PUSHED:
        raise WrongStatus(
            f"the runs of '{experiment.slug}' were made elsewhere and pushed, so nothing of it "
            "can be run or graded here; push new runs under another slug"
        )


def start(*, experiment: Experiment, actor: Any, at: datetime) -> None:
    """Start a planned experiment and publish its first executions.

    Raises:
        WrongStatus: it isn't planned, or not all of its plan is stored.
    """
    if experiment.status == ExperimentStatus.PLANNED and not is_complete(experiment):
        raise WrongStatus(
            f"the plan of '{experiment.slug}' is only partly stored, because planning it is under "
            "way or was interrupted; plan the same file again to complete it, then start it"
        )
    _move(
        experiment,
        allowed=(ExperimentStatus.PLANNED,),
        to=ExperimentStatus.RUNNING,
        actor=actor,
        at=at,
        started_at=at,
    )
    publish_pending(experiment)


def pause(
    *,
    experiment: Experiment,
    reason: str,
    actor: Any,
    at: datetime,
    kind: NoticeKind = NoticeKind.EXPERIMENT_PAUSED,
) -> None:
    """Pause a running experiment; executions in flight finish. Pausing a paused one is no error.

    Args:
        kind: of the notice that tells it.

    Raises:
        WrongStatus: it is neither running nor paused.
    """
    experiment.refresh_from_db()
    if experiment.status == ExperimentStatus.PAUSED:
        return
    with transaction.atomic():
        event = _move(
            experiment,
            allowed=(ExperimentStatus.RUNNING,),
            to=ExperimentStatus.PAUSED,
            actor=actor,
            at=at,
            reason=reason,
        )
        tell_paused(experiment, kind=kind, transition=event.sha256, actor=actor, at=at)


def resume(*, experiment: Experiment, actor: Any, at: datetime) -> None:
    """Resume a paused experiment where it stopped; nothing that is recorded runs again.

    Raises:
        WrongStatus: it isn't paused.
    """
    _move(
        experiment,
        allowed=(ExperimentStatus.PAUSED,),
        to=ExperimentStatus.RUNNING,
        actor=actor,
        at=at,
        reason="",
    )
    publish_pending(experiment)
    finish_if_done(experiment=experiment, at=at)


def cancel(*, experiment: Experiment, reason: str, actor: Any, at: datetime) -> None:
    """Cancel an experiment that hasn't ended; what is recorded stays.

    Raises:
        WrongStatus: it has ended.
    """
    _move(
        experiment,
        allowed=OPEN,
        to=ExperimentStatus.CANCELLED,
        actor=actor,
        at=at,
        reason=reason,
        ended_at=at,
    )


class BadBudget(ValueError):
    """Caps that can't be put in force; ``faults`` says of each why, by its name."""

    def __init__(self, faults: dict[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in faults.items()))
        self.faults = faults


def change_budget(*, experiment: Experiment, budget: Budget, actor: Any, at: datetime) -> None:
    """Put other caps in force for an experiment that hasn't ended; its plan stays as it is.

    Raises:
        WrongStatus: it has ended.
        BadBudget: a cap of cost, and a model without prices; or a cap that is reached already.
    """
    if experiment.status not in OPEN:
        raise WrongStatus(f"the experiment '{experiment.slug}' is {experiment.status}")
    unpriced = [
        m["id"] for m in experiment.spec["models"] if None in (m["price_in"], m["price_out"])
    ]
    if budget.cost is not None and unpriced:
        said = f"a cap needs the prices of every model, also {unpriced[0]}'s"
        raise BadBudget({"cost": said})
    if spent := _spent(experiment, budget):
        raise BadBudget(spent)
    before = budget_of(experiment)
    refuse_pushed(experiment)
    with transaction.atomic():
        row = Experiment.objects.filter(pk=experiment.pk, status__in=OPEN)
        if not row.update(budget=asdict(budget)):
            experiment.refresh_from_db()
            raise WrongStatus(f"the experiment '{experiment.slug}' is {experiment.status}")
        record_event(
            actor=actor,
            verb="experiment.budget_changed",
            subject=experiment.slug,
            reason=f"from {_caps(before)} to {_caps(budget)}",
            at=at,
        )
    experiment.refresh_from_db()


def _spent(experiment: Experiment, budget: Budget) -> dict[str, str]:
    """Return what to write instead of caps at which the experiment would pause at once."""
    used = usage_of(experiment)
    amounts = {"calls": used.calls, "tokens": used.tokens or 0, "cost": used.least_cost}
    return {
        name: f"{amounts[name]:,g} are used already; write more than {amounts[name]:,g}, or leave "
        "it empty"
        if name != "cost"
        else f"{amounts[name]:,g} is used already; write more than that, or leave it empty"
        for name, cap in asdict(budget).items()
        if cap is not None and amounts[name] and cap <= amounts[name]
    }


def _caps(budget: Budget) -> str:
    """Return the caps in words."""
    caps = [f"{cap:,g} {name}" for name, cap in asdict(budget).items() if cap is not None]
    return " and ".join(caps) or "no cap"


def retry_failed(*, experiment: Experiment, actor: Any, at: datetime) -> int:
    """Give the dead executions new tries and their pairs new positions; return how many.

    Both arms are treated alike: only executions without a result run again.

    Raises:
        WrongStatus: the experiment is cancelled or was never started.
    """
    with transaction.atomic():
        # Of two who press the button at once the second finds nothing dead.
        Experiment.objects.select_for_update().get(pk=experiment.pk)
        dead = executions_of(experiment).filter(state=LeaseState.DEAD)
        uids = list(dead.values_list("uid", flat=True))
        if not uids:
            return 0
        _move(
            experiment,
            allowed=(
                ExperimentStatus.RUNNING,
                ExperimentStatus.PAUSED,
                ExperimentStatus.FINISHED,
            ),
            to=ExperimentStatus.RUNNING,
            actor=actor,
            at=at,
            reason="",
            ended_at=None,
            verb="retried",
        )
        _append_positions(experiment, uids)
        Execution.objects.filter(uid__in=uids, state=LeaseState.DEAD).update(
            state=LeaseState.PENDING, tries=0, next_attempt_at=None
        )
    publish(EXECUTE_TASK, uids[:PUBLISH_AT_MOST], queue=EXECUTIONS_QUEUE)
    return len(uids)


def finish_if_done(*, experiment: Experiment, at: datetime) -> bool:
    """Finish a running experiment none of whose executions is left; return whether it did."""
    left = executions_of(experiment).filter(state__in=(LeaseState.PENDING, LeaseState.RUNNING))
    if left.exists():
        return False
    with transaction.atomic():
        # Under the experiment's lock, which a retry takes too: it can't slip in between.
        Experiment.objects.select_for_update().get(pk=experiment.pk)
        if left.exists():
            return False
        try:
            event = _move(
                experiment,
                allowed=(ExperimentStatus.RUNNING,),
                to=ExperimentStatus.FINISHED,
                actor=None,
                at=at,
                ended_at=at,
            )
        except WrongStatus:
            return False
        tell_ended(experiment, transition=event.sha256, at=at)
    return True


def publish_pending(experiment: Experiment) -> None:
    """Publish the next pending executions in plan order, so that pairs complete early.

    Those that wait for their moment are the sweep's, which publishes them when it comes.
    """
    pending = (
        Position.objects.filter(
            cell__experiment=experiment,
            pair__arms__execution__state=LeaseState.PENDING,
            pair__arms__execution__next_attempt_at=None,
        )
        .order_by("number", "cell__number", "pair__arms__arm")
        .values_list("pair__arms__execution__uid", flat=True)[: 2 * PUBLISH_AT_MOST]
    )
    uids = list(dict.fromkeys(pending))[:PUBLISH_AT_MOST]
    publish(EXECUTE_TASK, uids, queue=EXECUTIONS_QUEUE)


def _append_positions(experiment: Experiment, uids: Sequence[UUID]) -> None:
    """Give the pairs of these executions new positions at the end of their cells' order."""
    pairs = Pair.objects.filter(cell__experiment=experiment, arms__execution__uid__in=uids)
    last = dict(
        Position.objects.filter(cell__experiment=experiment)
        .values_list("cell")
        .annotate(last=Max("number"))
    )
    positions = []
    for pair in pairs.distinct().order_by("pk"):
        last[pair.cell_id] += 1
        positions.append(Position(cell_id=pair.cell_id, number=last[pair.cell_id], pair=pair))
    Position.objects.bulk_create(positions)


def _move(
    experiment: Experiment,
    *,
    allowed: tuple[ExperimentStatus, ...],
    to: ExperimentStatus,
    actor: Any,
    at: datetime,
    verb: str = "",
    **fields: Any,
) -> AuditEvent:
    refuse_pushed(experiment)
    with transaction.atomic():
        changed = Experiment.objects.filter(pk=experiment.pk, status__in=allowed).update(
            status=to, **fields
        )
        experiment.refresh_from_db()
        if not changed:
            raise WrongStatus(
                f"the experiment '{experiment.slug}' is {experiment.status}; this needs it to be "
                + " or ".join(allowed)
            )
        return record_event(
            actor=actor,
            verb=f"experiment.{verb or to}",
            subject=experiment.slug,
            reason=fields.get("reason", ""),
            at=at,
        )
