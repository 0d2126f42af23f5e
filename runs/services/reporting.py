"""An experiment's report: one function behind page, API, command line and export."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runs.domain.checking import Verdict
from runs.domain.plan import EMBEDDED, arm_from_json
from runs.domain.report import SCHEMA, CellRecord, PairRecord, build_report
from runs.domain.report import Failure as NoResult
from runs.models import Arm, Attempt, Cell, EffectReport, Experiment, Failure, Grade, PairArm
from runs.selectors import cells_of, executions_of
from workbench.kernel.identity import sha256_of
from workbench.kernel.leases import LeaseState

# Part of what a stored report is found by: raise it when the same pairs give other figures.
REPORT_VERSION = 1
DEMONSTRATION = "demonstration model"
UNSANDBOXED = "unsandboxed"


def report_of(experiment: Experiment) -> dict[str, Any]:
    """Return the report (schema report/1, docs/report-schema.json) of what is recorded now.

    The same rows give the same report; it is stored once and read back.
    """
    cells = [cell_record(cell) for cell in cells_of(experiment)]
    arguments = {
        "experiment": {"slug": experiment.slug, "uid": str(experiment.uid)},
        "preset": experiment.spec["preset"],
        "failure_policy": experiment.spec["failure_policy"],
        "notices": notices_of(experiment),
    }
    inputs = sha256_of(
        [REPORT_VERSION, SCHEMA, arguments]
        + [[dict(cell.descriptor), [asdict(pair) for pair in cell.pairs]] for cell in cells]
    )
    stored = EffectReport.objects.filter(experiment=experiment, inputs_sha256=inputs).first()
    if stored:
        result: dict[str, Any] = stored.result
        return result
    report = build_report(cells=cells, **arguments)
    if all(cell["complete"] for cell in report["cells"]):
        EffectReport.objects.get_or_create(
            experiment=experiment,
            inputs_sha256=inputs,
            defaults={"report_sha256": report["report_sha256"], "result": report},
        )
    return report


def notices_of(experiment: Experiment) -> list[str]:
    """Return what every reader of the experiment's figures must be told."""
    notices = []
    if any(model["base_url"] == EMBEDDED for model in experiment.spec["models"]):
        notices.append(DEMONSTRATION)
    attempts = Attempt.objects.filter(execution__in=executions_of(experiment))
    if Grade.objects.filter(attempt__in=attempts, tier=UNSANDBOXED).exists():
        notices.append("answers were checked unsandboxed")
    contaminated = attempts.filter(failure=Failure.CONTAMINATED).count()
    if contaminated:
        notices.append(f"contaminated runs, left out: {contaminated}")
    dropped: dict[str, set[str]] = defaultdict(set)
    for model, names in (
        attempts.filter(failure=Failure.NONE)
        .values_list("execution__arm_spec__spec__model", "trace__dropped_parameters")
        .distinct()
    ):
        dropped[model].update(names or ())
    for model, parameters in sorted(dropped.items()):
        if parameters:
            notices.append(f"{model}: the endpoint refused {', '.join(sorted(parameters))}")
    return notices


def cell_record(cell: Cell) -> CellRecord:
    """Return the cell's descriptor and pairs as the report sees them."""
    arms = PairArm.objects.filter(pair__cell=cell).values_list(
        "pair__uid",
        "pair__task__key",
        "pair__replicate",
        "arm",
        "execution_id",
        "execution__state",
    )
    runs = _runs(cell)
    pairs: dict[Any, dict[str, Any]] = {}
    for uid, task, replicate, arm, execution, state in arms:
        pair = pairs.setdefault(uid, {"pair": str(uid), "task": task, "replicate": replicate})
        run = runs.get(execution, _Run())
        passed, failure = _result(run, state)
        if arm == Arm.SE:
            pair |= {
                "se": passed,
                "se_failure": failure,
                "retrieved": run.retrieved,
                "invoked": run.invoked,
                "skills": tuple(run.returned_ids),
            }
        else:
            pair |= {"sd": passed, "sd_failure": failure}
    return CellRecord(
        descriptor=descriptor_of(cell),
        pairs=tuple(PairRecord(path=f"/pairs/{pair['pair']}/", **pair) for pair in pairs.values()),
    )


def descriptor_of(cell: Cell) -> dict[str, Any]:
    """Return what tells this cell from the others, in plain values."""
    treatment = arm_from_json(cell.treatment.spec)
    return {
        "sha12": cell.sha256[:12],
        "design": cell.design,
        "model": treatment.model,
        "endpoint": treatment.endpoint,
        "dialect": treatment.dialect,
        "benchmark": treatment.benchmark,
        "partition": {"size": cell.partition.size, "seed": cell.partition.seed},
        "library": f"{cell.library.slug}@{cell.library.number}" if cell.library else None,
        "control": treatment.control,
        "strategy": treatment.strategy,
        "k": treatment.k,
        "types": list(treatment.types) if treatment.types else None,
        "retriever": treatment.retriever,
        "max_searches": treatment.max_searches,
        "temperature": treatment.temperature,
        "max_tokens": treatment.max_tokens,
    }


@dataclass(frozen=True)
class _Run:
    """What is recorded of one execution: its attempt that counts, or its last failure."""

    failure: str | None = None
    verdict: str | None = None
    retrieved: bool | None = None
    invoked: bool | None = None
    returned_ids: tuple[str, ...] = ()


def _runs(cell: Cell) -> Mapping[int, _Run]:
    """Return the run of each of the cell's executions; an attempt's latest grade counts."""
    executions = PairArm.objects.filter(pair__cell=cell).values("execution")
    verdicts = dict(
        Grade.objects.filter(attempt__execution__in=executions)
        .order_by("number")
        .values_list("attempt_id", "verdict")
    )
    runs = {}
    # A failed attempt is only ever followed by another one, so the last one counts.
    for pk, execution, failure, retrieved, invoked, returned in (
        Attempt.objects.filter(execution__in=executions)
        .order_by("number")
        .values_list("pk", "execution_id", "failure", "retrieved", "invoked", "returned_ids")
    ):
        runs[execution] = _Run(failure, verdicts.get(pk), retrieved, invoked, tuple(returned))
    return runs


def _result(run: _Run, state: str) -> tuple[bool | None, str | None]:
    """Return whether the arm passed, or None and why it has no result."""
    if run.failure == Failure.NONE and run.verdict not in (None, Verdict.INFRA_ERROR):
        return run.verdict == Verdict.PASS, None
    if state != LeaseState.DEAD:
        return None, NoResult.PENDING
    if run.failure in (Failure.CALL, Failure.CONTAMINATED):
        return None, run.failure
    return None, NoResult.HOST
