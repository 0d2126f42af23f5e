"""Experiments with chosen results, built through the planning services and by rows.

Nothing runs: a test says what each pair came to. For experiments that really run see
``tests/experiments.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings

from runs.domain.effects import Transition
from runs.domain.plan import BenchmarkSpec, CellSpec, ExperimentSpec, ModelSpec
from runs.domain.tasks import Kind, TaskSpec
from runs.models import (
    Arm,
    Attempt,
    Cell,
    Execution,
    Experiment,
    ExperimentStatus,
    Failure,
    Grade,
    Outcome,
    Pair,
    PairArm,
)
from runs.services.benchmarks import store_benchmark, store_partition
from runs.services.planning import plan_experiment
from skills.models import Library, Skill, SkillVersion
from skills.services.libraries import freeze_library
from workbench.accounts import create_user, ensure_user
from workbench.kernel.identity import sha256_of, uid_for
from workbench.kernel.leases import LeaseState
from workbench.kernel.roles import Role
from workbench.models import Call, CallState, Job, Webhook

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
MODEL = ModelSpec(id="small-model", base_url="https://models.example/v1")
EMBEDDED_MODEL = ModelSpec(id="smollm2-135m", base_url="embedded")
SKILLS: Mapping[str, str] = {
    "two-pointer": "# Two pointers\n\nMove two indices towards each other over a sorted list.",
    "prefix-sum": "# Prefix sums\n\nKeep running totals so that any range is one subtraction.",
    "edge-case-guard": "# Guard\n\nReturn early for empty input.",
}
# The four ways a pair can come out, by the report's letters: (SE passed, SD passed).
LETTERS = {"a": (True, True), "b": (True, False), "c": (False, True), "d": (False, False)}


def make_user(name: str, role: Role | None) -> Any:
    """Return a user who may sign in, with ``role`` or without any."""
    return create_user(name=name, role=role, at=NOW)


def make_job(**values: Any) -> Job:
    """Return a job that is done but for what ``values`` say otherwise."""
    stored: Job = Job.objects.create(
        **{"kind": "runs.export", "subject": "panel", "state": LeaseState.DONE, "created_at": NOW}
        | values
    )
    return stored


def make_export(kind: str = "runs", **values: Any) -> Job:
    """Return a finished export with a file of two rows."""
    params = {"kind": kind, "format": "csv", "experiments": ["panel"], "cells": []}
    if kind == "audit-events":
        params["experiments"] = []
    result = {"file": "panel-runs.csv", "rows": 2, "bytes": 12, "sha256": "0" * 64}
    job = make_job(params=params, result=result, **values)
    path = settings.DATA_DIR / "exports" / f"{job.uid}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("task\r\nt1\r\nt2\r\n")
    return job


def make_webhook(*, url: str = "https://hooks.example/in") -> Webhook:
    """Return a webhook, whatever hosts the settings list."""
    admin = ensure_user(name="hook-keeper", role=Role.ADMIN)
    webhook: Webhook = Webhook.objects.create(url=url, created_by=admin, created_at=NOW)
    return webhook


def make_library(slug: str = "coding", skills: Mapping[str, str] = SKILLS) -> Library:
    """Return a library of skills given as slug and body; a changed body is a new version."""
    return freeze_library(slug=slug, versions=[make_version(s, b) for s, b in skills.items()])


def make_version(slug: str, body: str, **fields: Any) -> SkillVersion:
    """Return the version of the skill ``slug`` with this body, stored once."""
    skill, _ = Skill.objects.get_or_create(slug=slug)
    sha256 = sha256_of([slug, body, fields])
    stored = skill.versions.filter(sha256=sha256).first()
    if stored:
        return stored
    values = {
        "name": slug.replace("-", " "),
        "description": f"When to use {slug}.",
        "type": "procedure",
        **fields,
    }
    return SkillVersion.objects.create(
        skill=skill, number=skill.versions.count() + 1, body=body, sha256=sha256, **values
    )


def make_tasks(number: int, *, kind: Kind = Kind.CODE) -> tuple[TaskSpec, ...]:
    """Return ``number`` tasks; nothing ever checks their answers."""
    return tuple(
        TaskSpec(
            key=f"tasks/{n:03}",
            prompt=f"Write a function solve(xs) for problem {n}.",
            kind=kind,
            checker={"answers": ["right"]},
        )
        for n in range(1, number + 1)
    )


def make_experiment(
    slug: str = "panel",
    *,
    tasks: int | Sequence[TaskSpec] = 4,
    model: ModelSpec = MODEL,
    controls: Sequence[str] = ("normal",),
    library: Library | None = None,
    created_at: datetime = NOW,
    **spec: Any,
) -> Experiment:
    """Return a planned experiment with one cell for each of ``controls``."""
    library = library or make_library()
    specs = make_tasks(tasks) if isinstance(tasks, int) else tuple(tasks)
    benchmark = BenchmarkSpec(suite="tasks", size=len(specs))
    checkers = {task.key: task.checker for task in specs}
    stored = store_benchmark(slug="tasks", tasks=specs, checkers=checkers)
    partition = store_partition(benchmark=stored, size=len(specs), seed=benchmark.seed)
    return plan_experiment(
        spec=ExperimentSpec(
            slug=slug,
            models=(model,),
            benchmarks=(benchmark,),
            cells=tuple(CellSpec(library=library.slug, control=c) for c in controls),
            **spec,
        ),
        partitions={benchmark: partition},
        at=created_at,
    )


def finished_experiment(
    slug: str = "panel", *, retrieved: str = "abcd", skipped: str = "", **plan: Any
) -> Experiment:
    """Return a finished experiment whose every cell has these results.

    Args:
        retrieved: a letter (a, b, c or d) for each pair in which a skill was returned.
        skipped: the same for the pairs in which none was.
    """
    plan.setdefault("tasks", len(retrieved) + len(skipped))
    experiment = make_experiment(slug, **plan)
    for cell in experiment.cells.order_by("number"):
        pairs = list(cell.pairs.order_by("task__key"))
        for pair, letter in zip(pairs, retrieved + skipped, strict=True):
            given = ("two-pointer", "edge-case-guard") if len(retrieved) else ()
            record(pair, letter, skills=given if pairs.index(pair) < len(retrieved) else ())
    return set_status(experiment, ExperimentStatus.FINISHED)


def set_status(experiment: Experiment, status: ExperimentStatus, reason: str = "") -> Experiment:
    """Put the experiment into ``status`` as if its history had led there."""
    started = None if status == ExperimentStatus.PLANNED else NOW
    ended = status in (ExperimentStatus.FINISHED, ExperimentStatus.CANCELLED)
    Experiment.objects.filter(pk=experiment.pk).update(
        status=status,
        reason=reason,
        started_at=started,
        ended_at=NOW + timedelta(minutes=20) if ended else None,
    )
    experiment.refresh_from_db()
    return experiment


def record(
    pair: Pair,
    letter: str,
    *,
    skills: Sequence[str] = (),
    se_answer: str = "def solve(xs):\n    return sorted(xs)[0]  # with\n",
    sd_answer: str = "def solve(xs):\n    return min(xs)  # without\n",
    query: str = "smallest element",
    details: Mapping[str, Any] | None = None,
    dropped: Sequence[str] = (),
) -> Outcome:
    """Record attempts, grades, calls and the outcome of a pair that came to ``letter``.

    ``dropped`` are parameters that the endpoint refused in the SE run.
    """
    se_passed, sd_passed = LETTERS[letter]
    se = record_arm(
        pair, Arm.SE, se_passed, se_answer, skills, query=query, details=details, dropped=dropped
    )
    sd = record_arm(pair, Arm.SD, sd_passed, sd_answer, details=details)
    return Outcome.objects.create(
        uid=uid_for("outcome", str(pair.uid), se.number, sd.number),
        pair=pair,
        se_grade=se,
        sd_grade=sd,
        transition=Transition.of(se=se_passed, sd=sd_passed),
        retrieved=bool(skills),
        at=NOW,
    )


def record_arm(
    pair: Pair,
    arm: str,
    passed: bool,
    answer: str,
    skills: Sequence[str] = (),
    *,
    query: str = "smallest element",
    details: Mapping[str, Any] | None = None,
    dropped: Sequence[str] = (),
) -> Grade:
    """Record the one attempt of an arm and its grade; a reused execution keeps what it has."""
    execution = execution_of(pair, arm)
    attempt = execution.attempts.filter(failure=Failure.NONE).first()
    if attempt:
        return attempt.grades.order_by("-number")[0]
    attempt = Attempt.objects.create(
        execution=execution,
        number=execution.attempts.count() + 1,
        trace=trace(answer, skills, query=query) | {"dropped_parameters": list(dropped)},
        exposed=arm == Arm.SE,
        invoked=bool(skills),
        retrieved=bool(skills),
        returned_ids=list(skills),
        loaded_ids=list(skills),
        tokens_in=120,
        tokens_out=40,
        latency_s=0.5,
        at=NOW,
    )
    Call.objects.create(
        subject=execution.uid,
        step=0,
        try_number=1,
        endpoint="https://models.example/v1",
        model="small-model",
        request_sha256="0" * 64,
        request={},
        state=CallState.COMPLETED,
        tokens_in=120,
        tokens_out=40,
        cost=0.0002,
        latency_s=0.5,
        sent_at=NOW,
    )
    Execution.objects.filter(pk=execution.pk).update(state=LeaseState.DONE, tries=1)
    return Grade.objects.create(
        attempt=attempt,
        number=1,
        checker_sha256="c" * 64,
        verdict="pass" if passed else "fail",
        details={"answer": answer, "message": "as expected" if passed else "case 2: got 3"}
        | dict(details or {}),
        tier="A",
        at=NOW,
    )


def record_failure(pair: Pair, arm: str, *, failure: str = Failure.CALL, detail: str = "") -> None:
    """Let the arm die: one failed attempt, and no try left."""
    execution = execution_of(pair, arm)
    Attempt.objects.create(
        execution=execution,
        number=1,
        failure=failure,
        failure_detail=detail or "server_error: 503",
        trace={},
        exposed=arm == Arm.SE,
        invoked=False,
        retrieved=False,
        at=NOW,
    )
    Execution.objects.filter(pk=execution.pk).update(state=LeaseState.DEAD, tries=3)


def execution_of(pair: Pair, arm: str) -> Execution:
    """Return the execution that serves one arm of a pair."""
    found: Execution = PairArm.objects.select_related("execution").get(pair=pair, arm=arm).execution
    return found


def trace(answer: str, skills: Iterable[str] = (), *, query: str = "") -> dict[str, Any]:
    """Return a stored trace in the agent's shape, with what pages read of it."""
    returned = [
        {"id": slug, "name": slug.replace("-", " "), "score": 3.5 - rank, "rank": rank}
        for rank, slug in enumerate(skills, start=1)
    ]
    search = {
        "step": 0,
        "query": query,
        "types": None,
        "valid": True,
        "reason": None,
        "detail": None,
        "executed": True,
        "returned": returned,
    }
    return {
        "schema": "trace/1",
        "status": "answered",
        "answer": answer,
        "searches": [search] if returned else [],
        "dropped_parameters": [],
        "steps": [],
    }


def cells_of(experiment: Experiment) -> list[Cell]:
    """Return the experiment's cells in plan order."""
    return list(experiment.cells.order_by("number"))
