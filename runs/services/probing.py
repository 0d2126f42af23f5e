"""Three pairs per model before an experiment starts, and what the whole will take.

The probe's calls are made under the executions' own uids: the ledger gives
them back when the experiment runs, so they are never paid for twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runs.domain.agent import Trace
from runs.domain.plan import arm_from_json
from runs.models import Arm, Cell, Experiment, PairArm
from runs.selectors import cells_of, executions_of
from runs.services.arms import run_execution_agent
from workbench.models import Call

PROBE_PAIRS = 3


@dataclass(frozen=True)
class ModelEstimate:
    """What a model's cells will take, from its probe pairs; None is unknown, never 0.

    Attributes:
        call_rate: share of the probed SE runs that asked for a skill, 0 to 1.
        expected_n_cond: pairs in which a skill will be returned, at the probe's rate.
        calls, tokens, cost, seconds: for all of the model's executions, one after another.
    """

    model: str
    probed: int
    pairs: int
    executions: int
    call_rate: float
    expected_n_cond: float
    calls: float
    tokens: float | None
    seconds: float | None
    cost: float | None


def probe(experiment: Experiment, *, say: Callable[[str], None]) -> list[ModelEstimate]:
    """Run the first three pairs of each model here and return what the experiment will take.

    Args:
        say: told before each run, as it may take a while.

    Raises:
        EndpointFault, AgentStopped: a model can't be reached; nothing was started.
    """
    by_model: dict[str, list[Cell]] = {}
    for cell in cells_of(experiment):
        by_model.setdefault(arm_from_json(cell.treatment.spec).model, []).append(cell)
    return [_probe_model(experiment, model, cells, say) for model, cells in by_model.items()]


def _probe_model(
    experiment: Experiment, model: str, cells: Sequence[Cell], say: Callable[[str], None]
) -> ModelEstimate:
    # Only cells whose tool returns skills can have retrieved pairs.
    returning = [cell for cell in cells if cell.treatment.spec["control"] != "schema_empty"]
    probed = (returning or cells)[0]
    first = probed.positions.order_by("number").values_list("pair", flat=True)[:PROBE_PAIRS]
    arms = PairArm.objects.filter(pair__in=list(first))
    traces: dict[str, list[Trace]] = {Arm.SE: [], Arm.SD: []}
    subjects = []
    chosen = arms.select_related("execution__arm_spec", "execution__task").order_by("pk")
    for number, pair_arm in enumerate(chosen, start=1):
        say(f"probing {model}: run {number} of {len(chosen)} ({pair_arm.arm})")
        traces[pair_arm.arm].append(run_execution_agent(pair_arm.execution, experiment))
        subjects.append(pair_arm.execution.uid)
    planned = executions_of(experiment).filter(pair_arms__pair__cell__in=cells)
    executions = planned.distinct().count()
    pairs = sum(cell.pairs.count() for cell in cells)
    runs = [*traces[Arm.SE], *traces[Arm.SD]]
    scale = executions / len(runs)
    tokens = [_sum(trace.tokens_in, trace.tokens_out) for trace in runs]
    costs = list(Call.objects.filter(subject__in=subjects).values_list("cost", flat=True))
    se = traces[Arm.SE]
    return ModelEstimate(
        model=model,
        probed=len(se),
        pairs=pairs,
        executions=executions,
        call_rate=sum(bool(trace.invocations) for trace in se) / len(se),
        expected_n_cond=sum(trace.retrieved for trace in se)
        / len(se)
        * sum(cell.pairs.count() for cell in returning),
        calls=sum(trace.turns for trace in runs) * scale,
        tokens=_scaled(tokens, scale),
        seconds=_scaled([trace.latency_s for trace in runs], scale),
        cost=_scaled(costs, scale),
    )


def _scaled(amounts: Sequence[float | None], scale: float) -> float | None:
    """Return the scaled total, or None when any part of it is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) * scale if known and len(known) == len(amounts) else None


def _sum(tokens_in: int | None, tokens_out: int | None) -> int | None:
    return None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
