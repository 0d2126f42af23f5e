"""Three pairs per model and benchmark before an experiment starts, and what the whole will take.

The probe's calls are made under the uids that planning will give: the ledger gives them back
when the experiment runs, so they are never paid for twice. Nothing is planned for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runs.domain.agent import Trace
from runs.domain.forecasts import Probed, expected_pairs
from runs.domain.plan import ModelSpec
from runs.models import Arm, ArmSpec, Execution
from runs.services.arms import run_execution_agent
from runs.services.planning import Layout, PlannedCell
from workbench.kernel.identity import sha256_of
from workbench.models import Call

PROBE_PAIRS = 3


@dataclass(frozen=True)
class CellProbe:
    """The cell of one benchmark that was probed, for all of the model's cells there.

    Attributes:
        cell: its place in the plan, from 1.
        name: what tells it from the model's other cells there.
        probed: how many of its pairs were run.
        asked: in how many of them the SE run asked for a skill.
        returned: in how many of them a skill was returned.
        n_skill_pairs: planned pairs, of all cells whose tool returns skills, it speaks for.
    """

    benchmark: str
    cell: int
    name: str
    probed: int
    asked: int
    returned: int
    n_skill_pairs: int

    @property
    def group(self) -> Probed:
        return Probed(self.returned, self.probed, self.n_skill_pairs)


@dataclass(frozen=True)
class ModelEstimate:
    """What a model's cells will take, from its probe pairs; None is unknown, never 0.

    Attributes:
        call_rate: share of the probed SE runs that asked for a skill, 0 to 1.
        expected_n_cond: pairs in which a skill will be returned, at the probe's rate.
        n_cond_low, n_cond_high: its exact 95% limits (see ``forecasts.expected_pairs``).
        calls, tokens, cost, seconds: for all of the model's executions, one after another.
        probes: one for each benchmark.
    """

    model: str
    endpoint: str
    probed: int
    pairs: int
    executions: int
    call_rate: float
    expected_n_cond: float
    n_cond_low: float
    n_cond_high: float
    calls: float
    tokens: float | None
    seconds: float | None
    cost: float | None
    probes: tuple[CellProbe, ...]


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
    """Run three pairs of each model on each benchmark; return what the experiment will take.

    Args:
        say: told before each run, as it may take a while.
        still_ours: called before each request; raises where somebody else does this by now.

    Raises:
        EndpointFault, AgentStopped, BadEndpoint: a model can't be reached; nothing was planned.
    """
    chosen = {model: _probes(layout, model) for model in layout.spec.models}
    total = sum(len(probe.runs) for probes in chosen.values() for probe in probes)
    experiment = layout.experiment()
    begun = 0
    found = []
    for model, probes in chosen.items():
        for probe in probes:
            for number, (arm, execution) in enumerate(probe.runs, start=1):
                begun += 1
                of = f"run {number} of {len(probe.runs)} ({arm.value})"
                say(ProbeRun(begun, total, f"probing {model.id} on {probe.benchmark}: {of}"))
                trace = run_execution_agent(execution, experiment, still_ours=still_ours)
                probe.traces.append((arm, trace))
        found.append(_estimate(layout, model, probes))
    return found


def probe_runs(layout: Layout) -> int:
    """Return how many runs ``probe`` makes."""
    return sum(len(probe.runs) for model in layout.spec.models for probe in _probes(layout, model))


@dataclass(frozen=True)
class _Probe:
    """The probe of a model's cells of one benchmark: both runs of some pairs of one of them."""

    benchmark: str
    cells: Sequence[PlannedCell]
    cell: PlannedCell
    runs: Sequence[tuple[Arm, Execution]]
    traces: list[tuple[Arm, Trace]]

    def of(self, arm: Arm) -> list[Trace]:
        return [trace for one, trace in self.traces if one == arm]

    def amounts(
        self, layout: Layout, read: Callable[[Trace], float | None]
    ) -> list[tuple[float | None, int]]:
        """Return for each arm the mean amount of a run, and how many runs of it there will be."""
        return [(_mean([read(t) for t in self.of(arm)]), self.planned(layout, arm)) for arm in Arm]

    def costs(self, layout: Layout) -> list[tuple[float | None, int]]:
        """Return the like of ``amounts`` for what the runs cost."""
        found: list[tuple[float | None, int]] = []
        for arm in Arm:
            subjects = [execution.uid for one, execution in self.runs if one == arm]
            calls = Call.objects.filter(subject__in=subjects)
            costs = list(calls.values_list("cost", flat=True))
            known = [cost for cost in costs if cost is not None]
            whole = known and len(known) == len(costs)
            a_run = sum(known) / len(subjects) if whole else None
            found.append((a_run, self.planned(layout, arm)))
        return found

    def planned(self, layout: Layout, arm: Arm) -> int:
        """Return how many runs of this arm the cells will take; shared ones are made once."""
        runs = {sha256_of(cell.arm(arm).to_json()): layout.pairs_in(cell) for cell in self.cells}
        return sum(runs.values())

    def said(self, layout: Layout) -> CellProbe:
        se = self.of(Arm.SE)
        return CellProbe(
            benchmark=self.benchmark,
            cell=self.cell.number,
            name=_name(self.cell),
            probed=len(se),
            asked=sum(bool(trace.invocations) for trace in se),
            returned=sum(bool(trace.retrieved) for trace in se),
            n_skill_pairs=sum(layout.pairs_in(cell) for cell in _returning(self.cells)),
        )


def _probes(layout: Layout, model: ModelSpec) -> list[_Probe]:
    """Return the probes of a model, one for each set of tasks; their runs are unsaved."""
    by_tasks: dict[str, list[PlannedCell]] = {}
    for cell in layout.cells:
        if cell.model == model:
            by_tasks.setdefault(cell.partition.sha256, []).append(cell)
    probes = []
    for cells in by_tasks.values():
        # Of several cells the one that reads most: a cheaper one would promise too little.
        probed = max(_returning(cells) or cells, key=_weight)
        runs = []
        for arm in (Arm.SE, Arm.SD):
            spec = probed.arm(arm).to_json()
            stored = ArmSpec(sha256=sha256_of(spec), spec=spec)
            runs += [
                (arm, layout.execution(stored, task, replicate))
                for task, replicate in layout.ordered(probed)[:PROBE_PAIRS]
            ]
        benchmark = probed.partition.benchmark
        name = f"{benchmark.slug}@{benchmark.number}"
        probes.append(_Probe(name, cells, probed, runs, []))
    return probes


def _weight(cell: PlannedCell) -> tuple[int, ...]:
    """Return what orders cells by how much their SE runs can take."""
    spec = cell.spec
    return (spec.k * spec.max_searches, spec.k, spec.max_tokens, cell.number)


def _name(cell: PlannedCell) -> str:
    spec = cell.spec
    control = "" if spec.control == "normal" else f", control {spec.control}"
    return f"{cell.library.slug}@{cell.library.number}, {spec.strategy}, k {spec.k}{control}"


def _estimate(layout: Layout, model: ModelSpec, probes: Sequence[_Probe]) -> ModelEstimate:
    cells = [cell for probe in probes for cell in probe.cells]
    said = tuple(probe.said(layout) for probe in probes)
    expected = expected_pairs([probe.group for probe in said])
    probed = sum(probe.probed for probe in said)

    def total(read: Callable[[Trace], float | None]) -> float | None:
        return _total([part for probe in probes for part in probe.amounts(layout, read)])

    return ModelEstimate(
        model=model.id,
        endpoint=model.endpoint,
        probed=probed,
        pairs=sum(layout.pairs_in(cell) for cell in cells),
        executions=layout.executions_of(cells),
        call_rate=sum(probe.asked for probe in said) / probed,
        expected_n_cond=expected.value,
        n_cond_low=expected.low,
        n_cond_high=expected.high,
        calls=total(lambda trace: trace.turns) or 0,
        tokens=total(lambda trace: _sum(trace.tokens_in, trace.tokens_out)),
        seconds=total(lambda trace: trace.latency_s),
        cost=_total([part for probe in probes for part in probe.costs(layout)]),
        probes=said,
    )


def _returning(cells: Sequence[PlannedCell]) -> list[PlannedCell]:
    """Return the cells whose tool returns skills: only they can have retrieved pairs."""
    return [cell for cell in cells if cell.spec.control != "schema_empty"]


def _mean(amounts: Sequence[float | None]) -> float | None:
    """Return the mean, or None when any of them is unknown."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) / len(known) if known and len(known) == len(amounts) else None


def _total(parts: Sequence[tuple[float | None, int]]) -> float | None:
    """Return the sum of amounts a run times runs, or None when an amount is unknown."""
    known = [mean * runs for mean, runs in parts if mean is not None]
    return sum(known) if len(known) == len(parts) else None


def _sum(tokens_in: int | None, tokens_out: int | None) -> int | None:
    return None if tokens_in is None or tokens_out is None else tokens_in + tokens_out
