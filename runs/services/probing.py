"""Three pairs per model before an experiment starts, and what the whole will take.

The probe's calls are made under the uids that planning will give: the ledger gives them back
when the experiment runs, so they are never paid for twice. Nothing is planned for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runs.domain.agent import Trace
from runs.domain.plan import ModelSpec
from runs.models import Arm, ArmSpec, Execution
from runs.services.arms import run_execution_agent
from runs.services.planning import Layout, PlannedCell
from workbench.kernel.identity import sha256_of
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
    endpoint: str
    probed: int
    pairs: int
    executions: int
    call_rate: float
    expected_n_cond: float
    calls: float
    tokens: float | None
    seconds: float | None
    cost: float | None


@dataclass(frozen=True)
class ProbeRun:
    """The run that a probe is about to make: ``number`` of ``of``, over all models."""

    number: int
    of: int
    text: str


def probe(
    layout: Layout,
    *,
    say: Callable[[ProbeRun], None],
    still_ours: Callable[[], None] = lambda: None,
) -> list[ModelEstimate]:
    """Run the first three pairs of each model here and return what the experiment will take.

    Args:
        say: told before each run, as it may take a while.
        still_ours: called before each request; raises where somebody else does this by now.

    Raises:
        EndpointFault, AgentStopped, BadEndpoint: a model can't be reached; nothing was planned.
    """
    chosen = {model: _probe_runs(layout, model) for model in layout.spec.models}
    total = sum(len(runs) for runs in chosen.values())
    experiment = layout.experiment()
    begun = 0
    found = []
    for model, runs in chosen.items():
        traces: list[tuple[Arm, Trace]] = []
        for number, (arm, execution) in enumerate(runs, start=1):
            begun += 1
            text = f"probing {model.id}: run {number} of {len(runs)} ({arm.value})"
            say(ProbeRun(begun, total, text))
            trace = run_execution_agent(execution, experiment, still_ours=still_ours)
            traces.append((arm, trace))
        found.append(_estimate(layout, model, [one for _, one in runs], traces))
    return found


def _probe_runs(layout: Layout, model: ModelSpec) -> list[tuple[Arm, Execution]]:
    """Return both runs of the model's first pairs, unsaved."""
    cells = _cells_of(layout, model)
    probed = (_returning(cells) or cells)[0]
    runs = []
    for arm in (Arm.SE, Arm.SD):
        spec = probed.arm(arm).to_json()
        stored = ArmSpec(sha256=sha256_of(spec), spec=spec)
        runs += [
            (arm, layout.execution(stored, task, replicate))
            for task, replicate in layout.ordered(probed)[:PROBE_PAIRS]
        ]
    return runs


def _estimate(
    layout: Layout,
    model: ModelSpec,
    executions: Sequence[Execution],
    traces: Sequence[tuple[Arm, Trace]],
) -> ModelEstimate:
    cells = _cells_of(layout, model)
    pairs = sum(layout.pairs_in(cell) for cell in cells)
    scale = layout.executions_of(cells) / len(traces)
    runs = [trace for _, trace in traces]
    tokens = [_sum(trace.tokens_in, trace.tokens_out) for trace in runs]
    subjects = [execution.uid for execution in executions]
    costs = list(Call.objects.filter(subject__in=subjects).values_list("cost", flat=True))
    se = [trace for arm, trace in traces if arm == Arm.SE]
    return ModelEstimate(
        model=model.id,
        endpoint=model.endpoint,
        probed=len(se),
        pairs=pairs,
        executions=layout.executions_of(cells),
        call_rate=sum(bool(trace.invocations) for trace in se) / len(se),
        expected_n_cond=sum(trace.retrieved for trace in se)
        / len(se)
        * sum(layout.pairs_in(cell) for cell in _returning(cells)),
        calls=sum(trace.turns for trace in runs) * scale,
        tokens=_scaled(tokens, scale),
        seconds=_scaled([trace.latency_s for trace in runs], scale),
        cost=_scaled(costs, scale),
    )


def _cells_of(layout: Layout, model: ModelSpec) -> list[PlannedCell]:
    return [cell for cell in layout.cells if cell.model == model]


def _returning(cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Return the cells whose tool returns skills: only they can have retrieved pairs."""
    return [cell for cell in cells if cell.spec.control != "schema_empty"]


def _scaled(amounts: Sequence[float | None], scale: float) -> float | None:
    """Return the scaled total, or None when any part of it is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) * scale if known and len(known) == len(amounts) else None


def _sum(tokens_in: int | None, tokens_out: int | None) -> int | None:
    return None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
