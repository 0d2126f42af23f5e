"""The sweep: whatever a lost message or a dead worker left lying is picked up again."""

from __future__ import annotations

from datetime import datetime

from runs.models import Execution, Experiment, ExperimentStatus
from runs.selectors import runnable_executions
from runs.services.lifecycle import (
    EXECUTE_TASK,
    EXECUTIONS_QUEUE,
    PUBLISH_AT_MOST,
    finish_if_done,
    publish_pending,
)
from workbench.kernel.dispatch import publish, waiting_messages
from workbench.kernel.leases import LeaseState, expire_dead

# Below this many waiting messages the queue is topped up from the rows. It is short,
# so that an abandoned execution never waits behind a long queue.
TOP_UP_BELOW = 200


def sweep(*, now: datetime) -> None:
    """Publish abandoned, due and not yet published executions; finish what is finished."""
    expire_dead(Execution.objects.all(), now=now)
    running = Experiment.objects.filter(status=ExperimentStatus.RUNNING).order_by("pk")
    unfinished = [one for one in running if not finish_if_done(experiment=one, at=now)]
    if waiting_messages(EXECUTIONS_QUEUE) >= TOP_UP_BELOW:
        return  # whoever works through them comes to the rest; more would only pile up
    lost = runnable_executions().filter(state=LeaseState.RUNNING, lease_until__lt=now)
    due = runnable_executions().filter(state=LeaseState.PENDING, next_attempt_at__lte=now)
    abandoned = [
        *lost.order_by("lease_until").values_list("uid", flat=True)[:PUBLISH_AT_MOST],
        *due.order_by("next_attempt_at").values_list("uid", flat=True)[:PUBLISH_AT_MOST],
    ]
    publish(EXECUTE_TASK, abandoned, queue=EXECUTIONS_QUEUE)
    for experiment in unfinished:
        publish_pending(experiment)
