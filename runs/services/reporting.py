"""An experiment's report: one function behind page, API, command line and export."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from django.db.models import Count, Max, TextField
from django.db.models.fields.json import KT, KeyTextTransform
from django.db.models.functions import Cast

from runs.domain.checking import Verdict
from runs.domain.plan import arm_from_json, from_json
from runs.domain.report import (
    BEING_GRADED_AGAIN,
    CHECKED_UNSANDBOXED,
    DEMONSTRATION,
    IN_PROCESS,
    SCHEMA,
    CellRecord,
    PairRecord,
    build_report,
    refused,
)
from runs.domain.report import Failure as NoResult
from runs.domain.tasks import Kind
from runs.models import (
    Arm,
    Attempt,
    Cell,
    EffectReport,
    Experiment,
    ExperimentStatus,
    Failure,
    Grade,
    Origin,
    PairArm,
    Task,
)
from runs.selectors import States, cells_of, executions_of, standing_grades, states_of
from workbench.kernel.identity import sha256_of
from workbench.kernel.leases import LeaseState

# Part of what a stored report is found by: raise it when the same rows give other figures.
REPORT_VERSION = 2
BEING_PUSHED = "its runs are still being stored; there is no report before all of them are"
UNSANDBOXED = "unsandboxed"
TASKS_NAMED = 50


@dataclass(frozen=True)
class Inputs:
    """What a report is made of.

    Attributes:
        sha256: changes with every row of it.
        states: where its executions stand.
    """

    sha256: str
    states: States


def report_of(experiment: Experiment, inputs: Inputs | None = None) -> dict[str, Any]:
    """Return the report (schema report/1, docs/report-schema.json) of what is recorded now.

    The same rows give the same report; a complete one is stored once and read back.

    Args:
        inputs: what ``inputs_of`` said just now, where it was asked already.
    """
    inputs = inputs or inputs_of(experiment)
    stored = stored_report(experiment, inputs)
    if stored is not None:
        return stored
    if is_being_pushed(experiment):  # whatever of it is stored would look like all of it
        return build_report(
            experiment={"slug": experiment.slug, "uid": str(experiment.uid)},
            cells=(),
            preset=experiment.spec["preset"],
            failure_policy=experiment.spec["failure_policy"],
            notices=[BEING_PUSHED],
        )
    evidence = evidence_of(list(cells_of(experiment)))
    report = build_report(
        experiment={"slug": experiment.slug, "uid": str(experiment.uid)},
        cells=evidence.records(),
        preset=experiment.spec["preset"],
        failure_policy=experiment.spec["failure_policy"],
        notices=_notices(experiment, evidence),
        cancelled=experiment.status == ExperimentStatus.CANCELLED,
    )
    passing = experiment.regrading_since is not None
    if not passing and all(cell["complete"] for cell in report["cells"]):
        EffectReport.objects.get_or_create(
            experiment=experiment,
            inputs_sha256=inputs.sha256,
            defaults={"report_sha256": report["report_sha256"], "result": report},
        )
    return report


def stored_report(experiment: Experiment, inputs: Inputs) -> dict[str, Any] | None:
    """Return the complete report that was stored of these inputs, or None."""
    stored = EffectReport.objects.filter(experiment=experiment, inputs_sha256=inputs.sha256)
    result: dict[str, Any] | None = stored.values_list("result", flat=True).first()
    return result


def is_being_pushed(experiment: Experiment) -> bool:
    """Return whether pushed runs are still being stored, or were given up half stored."""
    return experiment.origin == Origin.PUSHED and experiment.status != ExperimentStatus.FINISHED


def cell_record(cell: Cell) -> CellRecord:
    """Return the cell's descriptor and pairs as the report sees them."""
    (record,) = evidence_of([cell]).records()
    return record


def descriptor_of(cell: Cell) -> dict[str, Any]:
    """Return what tells this cell from the others, in plain values."""
    treatment = arm_from_json(cell.treatment.spec)
    if treatment.imported is not None:
        return {**treatment.imported["cell"], "sha12": cell.sha256[:12]}
    return {
        "sha12": cell.sha256[:12],
        "design": cell.design,
        "model": treatment.model,
        "endpoint": treatment.endpoint,
        "dialect": treatment.dialect,
        "benchmark": f"{treatment.benchmark}@{cell.partition.benchmark.number}",
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


def inputs_of(experiment: Experiment) -> Inputs:
    """Return what changes with every row that the report is made of, in three queries.

    Attempts and grades are only ever added, so that their numbers tell. An attempt follows a
    claim, which raises its execution's fencing token; only while that isn't done or dead can
    attempts be added, so only there they are counted.
    """
    states = states_of(experiment)
    executions = executions_of(experiment)
    grades = Grade.objects.filter(attempt__execution__in=executions).aggregate(
        number=Count("pk"), last=Max("pk")
    )
    unended = 0
    if states.pending or states.running:
        open_ones = executions.filter(state__in=(LeaseState.PENDING, LeaseState.RUNNING))
        unended = Attempt.objects.filter(execution__in=open_ones).count()
    # The same rows are reported otherwise when nothing more is run, while they are stored, and
    # while others are still to come.
    otherwise = [
        experiment.status == ExperimentStatus.CANCELLED,
        is_being_pushed(experiment),
        experiment.regrading_since is not None,
    ]
    rows = [asdict(states), grades, unended]
    digest = sha256_of([REPORT_VERSION, SCHEMA, experiment.spec, otherwise, rows])
    return Inputs(digest, states)


# --- what is recorded -------------------------------------------------------------


class Run(NamedTuple):
    """What is recorded of one execution: its attempt that counts, or its last failure."""

    failure: str | None = None
    verdict: str | None = None
    tier: str | None = None
    retrieved: bool | None = None
    invoked: bool | None = None
    returned_ids: tuple[str, ...] = ()
    model: str = ""
    status: str | None = None
    dropped: frozenset[str] = frozenset()
    malformed: int = 0
    invalid: int = 0


class ArmOfPair(NamedTuple):
    """One arm of a pair, and where its execution stands."""

    cell: int
    pair: str
    task: int
    key: str
    task_sha256: str
    replicate: int
    arm: str
    execution: int
    state: str


@dataclass(frozen=True)
class Evidence:
    """All that a report of ``cells`` is made of; ``in_process`` has task keys by task."""

    cells: Sequence[Cell]
    arms: Sequence[ArmOfPair]
    runs: Mapping[int, Run]
    in_process: Mapping[int, str]

    def records(self) -> list[CellRecord]:
        """Return the cells as the report sees them, in the order of ``cells``."""
        pairs: dict[int, dict[str, dict[str, ArmOfPair]]] = defaultdict(dict)
        for arm in self.arms:
            pairs[arm.cell].setdefault(arm.pair, {})[arm.arm] = arm
        return [
            CellRecord(
                descriptor=descriptor_of(cell),
                pairs=tuple(
                    self._pair(arms.get(Arm.SE), arms.get(Arm.SD))
                    for arms in pairs[cell.pk].values()
                ),
            )
            for cell in self.cells
        ]

    def _pair(self, se_arm: ArmOfPair | None, sd_arm: ArmOfPair | None) -> PairRecord:
        se_run, se, se_failure = self._arm(se_arm)
        sd_run, sd, sd_failure = self._arm(sd_arm)
        known = se_arm or sd_arm
        assert known is not None  # a pair is found by its arms
        unequal: frozenset[str] = frozenset()
        if se is not None and sd is not None:
            unequal = se_run.dropped ^ sd_run.dropped
            if se_run.tier != sd_run.tier:  # one of them is being graded again
                se = sd = None
                se_failure = sd_failure = NoResult.PENDING
        if unequal:
            se = sd = None
            se_failure = sd_failure = NoResult.UNEQUAL_PARAMETERS
        return PairRecord(
            pair=known.pair,
            task=known.key,
            replicate=known.replicate,
            retrieved=se_run.retrieved,
            se=se,
            sd=sd,
            skills=se_run.returned_ids,
            invoked=se_run.invoked,
            se_failure=se_failure,
            sd_failure=sd_failure,
            path=f"/pairs/{known.pair}/",
            se_status=se_run.status,
            sd_status=sd_run.status,
            malformed_decisions=se_run.malformed,
            invalid_calls=se_run.invalid,
            unequal=tuple(sorted(unequal)),
            in_process=known.task in self.in_process,
        )

    def _arm(self, arm: ArmOfPair | None) -> tuple[Run, bool | None, str | None]:
        """Return the arm's run, whether it passed, or why it has no result."""
        if arm is None:  # of pushed runs one arm may be missing
            return Run(), None, NoResult.MISSING
        run = self.runs.get(arm.execution, Run())
        if run.failure == Failure.CONFLICT:  # neither of the runs speaks for the arm
            run = Run(failure=run.failure)
        return run, *_result(run, arm.state)


def pair_records(cell: Cell, pairs: Any) -> tuple[PairRecord, ...]:
    """Return some of the cell's pairs (a queryset, or primary keys) as the report sees them."""
    (record,) = evidence_of([cell], PairArm.objects.filter(pair__in=pairs)).records()
    return record.pairs


def evidence_of(cells: Sequence[Cell], arms: Any = None, *, notes: bool = True) -> Evidence:
    """Return what is recorded of ``cells``, in four queries however many there are.

    Args:
        arms: only these of their pairs' arms.
        notes: whether to read how answers ended and what of them could not be used.
    """
    if arms is None:
        arms = PairArm.objects.filter(pair__cell__in=cells)
    rows = arms.values_list(
        "pair__cell",
        "pair__uid",
        "pair__task",
        "pair__task__key",
        "pair__task__sha256",
        "pair__replicate",
        "arm",
        "execution",
        "execution__state",
    )
    found = [ArmOfPair(cell, str(uid), *rest) for cell, uid, *rest in rows]
    return Evidence(
        cells=cells,
        arms=found,
        runs=_runs(Attempt.objects.filter(execution__in=arms.values("execution")), notes=notes),
        in_process=_in_process(cells, {arm.task for arm in found}),
    )


def _runs(attempts: Any, *, notes: bool) -> dict[int, Run]:
    """Return the run of each execution of ``attempts``; an attempt's standing grade counts."""
    grades = standing_grades(attempts)
    runs = {}
    # A failed attempt is only ever followed by another one, so the last one counts. Of the
    # trace, which holds every message, only what is named here leaves the database.
    for (
        pk,
        execution,
        failure,
        retrieved,
        invoked,
        returned,
        model,
        dropped,
        *noted,
    ) in attempts.order_by("number").values_list(
        "pk",
        "execution",
        "failure",
        "retrieved",
        "invoked",
        Cast("returned_ids", TextField()),
        KeyTextTransform("model", "execution__arm_spec__spec"),
        KT("trace__dropped_parameters"),
        *(KT(f"trace__{name}") for name in _NOTED if notes),
    ):
        status, malformed, searches = noted or (None, None, None)
        verdict, tier = grades.get(pk, (None, None))
        runs[execution] = Run(
            failure=failure,
            verdict=verdict,
            tier=tier,
            retrieved=retrieved,
            invoked=invoked,
            returned_ids=json_texts(returned),
            model=model or "",
            status=None if status in (None, _NULL) else status,
            dropped=frozenset(json_texts(dropped)),
            malformed=int(malformed or 0),
            invalid=_invalid(searches),
        )
    return runs


_NOTED = ("status", "malformed_decisions", "searches")
_NULL = "null"
_SAYS_INVALID = re.compile(r'"valid": ?false')


@lru_cache(maxsize=4096)
def json_texts(json_list: str | None) -> tuple[str, ...]:
    """Return the texts of a list that came as JSON text; the same few come again and again."""
    return tuple(map(str, json.loads(json_list or _NULL) or ()))


def _invalid(searches: str | None) -> int:
    """Return how many of the searches, JSON text, weren't valid; only a suspect is read."""
    if not searches or not _SAYS_INVALID.search(searches):
        return 0
    return sum(not search.get("valid", True) for search in json.loads(searches))


def _in_process(cells: Iterable[Cell], tasks: set[int]) -> dict[int, str]:
    """Return the keys of the tasks whose answers are checked in the program's own process."""
    found = Task.objects.filter(
        benchmark__in={cell.partition.benchmark_id for cell in cells},
        kind=Kind.CODE,
        checker__mode="asserts",
    ).values_list("pk", "key", "checker__checker_isolation")
    return {
        pk: key for pk, key, isolation in found if pk in tasks and isolation in (None, "in_process")
    }


# Failures that say themselves why there is no result; after any other the host is at fault.
_STATED = frozenset(Failure.values) - {Failure.NONE, Failure.HOST}


def _result(run: Run, state: str) -> tuple[bool | None, str | None]:
    """Return whether the arm passed, or None and why it has no result."""
    if run.failure == Failure.NONE and run.verdict is not None:
        return run.verdict == Verdict.PASS, None
    if state != LeaseState.DEAD:
        return None, NoResult.PENDING
    if run.failure in _STATED:
        return None, run.failure
    return None, NoResult.HOST


# --- what every reader must be told -----------------------------------------------


def _notices(experiment: Experiment, evidence: Evidence) -> list[str]:
    if experiment.origin == Origin.PUSHED:
        return list(experiment.spec["analysis"]["pushed"]["notices"])
    notices = []
    if experiment.regrading_since is not None:
        notices.append(BEING_GRADED_AGAIN)
    runs = evidence.runs.values()
    if from_json(experiment.spec).embedded:
        notices.append(DEMONSTRATION)
    if any(run.tier == UNSANDBOXED for run in runs):
        notices.append(CHECKED_UNSANDBOXED)
    if evidence.in_process:
        keys = sorted(evidence.in_process.values())
        more = f" and {len(keys) - TASKS_NAMED} more" if len(keys) > TASKS_NAMED else ""
        notices.append(f"{IN_PROCESS}: {', '.join(keys[:TASKS_NAMED])}{more}")
    contaminated = sum(run.failure == Failure.CONTAMINATED for run in runs)
    if contaminated:
        notices.append(f"contaminated runs, left out: {contaminated}")
    dropped: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        if run.failure == Failure.NONE:
            dropped[run.model] |= run.dropped
    notices += [refused(model, names) for model, names in sorted(dropped.items()) if names]
    return notices
