"""A full workbench: experiments, pairs and traces of invented results, planned by the services.

Nothing runs. The plans are made as for a real experiment; the rows that a run would leave behind
(attempts with traces, calls, grades, outcomes) are then inserted in bulk.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from runs.domain.effects import Transition
from runs.domain.plan import BenchmarkSpec, CellSpec, ExperimentSpec, ModelSpec
from runs.domain.tasks import Kind, TaskSpec
from runs.models import (
    Arm,
    Attempt,
    Execution,
    Experiment,
    ExperimentStatus,
    Grade,
    Outcome,
    Pair,
    PairArm,
)
from runs.services.benchmarks import store_benchmark, store_partition
from runs.services.planning import plan_experiment
from skills.models import Library, Skill, SkillVersion
from skills.services.libraries import freeze_library
from workbench.kernel.identity import sha256_of, uid_for
from workbench.kernel.leases import LeaseState
from workbench.models import Call, CallState

SEED: Final = 42
AT: Final = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
MODEL: Final = ModelSpec(id="small-model", base_url="https://models.example/v1")
BATCH: Final = 500


@dataclass(frozen=True)
class Size:
    """How much of everything.

    Attributes:
        experiments: by slug, tasks, cells and replicates of each; pairs are their product.
        unfinished: slugs of those in which every tenth pair is still pending.
    """

    experiments: dict[str, tuple[int, int, int]]
    skills: int
    unfinished: frozenset[str] = frozenset()

    @property
    def pairs(self) -> int:
        return sum(tasks * cells * again for tasks, cells, again in self.experiments.values())


# 50,000 pairs with an execution in each arm.
FULL: Final = Size(
    experiments={
        "pairs-20000": (2_000, 2, 5),
        "pairs-4000": (1_000, 4, 1),
        "running-4000": (1_000, 4, 1),
        **{f"study-{n:02}": (1_000, 1, 1) for n in range(1, 23)},
    },
    skills=200,
    unfinished=frozenset({"running-4000"}),
)


def build(size: Size) -> None:
    """Fill the database, which must be empty, with ``size``; the same rows each time."""
    half = len(size.experiments) // 2
    for number, (slug, shape) in enumerate(size.experiments.items()):
        # A plan takes the newest library, so the later half searches the edited one.
        library = _library(size.skills, edition=1 if number < half else 2)
        experiment = _plan(slug, shape, library, at=AT + timedelta(hours=number))
        pending = slug in size.unfinished
        _record(experiment, skills=size.skills, seed=SEED + number, unfinished=pending)
        status = ExperimentStatus.RUNNING if pending else ExperimentStatus.FINISHED
        Experiment.objects.filter(pk=experiment.pk).update(
            status=status,
            started_at=experiment.created_at,
            ended_at=None if pending else experiment.created_at + timedelta(minutes=40),
        )


def _library(skills: int, edition: int) -> Library:
    """Return an edition of the library ``coding``; each tenth skill has a text of its own."""
    versions = []
    for number in range(skills):
        changed = edition if number % 10 == 0 else 1
        skill, _ = Skill.objects.get_or_create(slug=_skill(number))
        body = f"# Skill {number}\n\n" + "Keep running totals; edit by edit.\n" * (40 + changed)
        version, _ = SkillVersion.objects.get_or_create(
            skill=skill,
            number=changed,
            defaults={
                "name": f"Skill {number}",
                "description": f"When to use skill {number}.",
                "type": "procedure",
                "body": body,
                "sha256": sha256_of([number, body]),
            },
        )
        versions.append(version)
    return freeze_library(slug="coding", versions=versions)


def _skill(number: int) -> str:
    return f"skill-{number:04}"


def _plan(slug: str, shape: tuple[int, int, int], library: Library, *, at: datetime) -> Experiment:
    tasks, cells, replicates = shape
    specs = [
        TaskSpec(
            key=f"tasks/{n:05}",
            prompt=f"Write a function solve(xs) for problem {n}." + " It takes a list." * 20,
            kind=Kind.CODE,
            checker={"answers": ["right"]},
        )
        for n in range(tasks)
    ]
    entry = BenchmarkSpec(suite="tasks", size=tasks)
    stored = store_benchmark(
        slug="tasks", tasks=specs, checkers={spec.key: spec.checker for spec in specs}
    )
    partition = store_partition(benchmark=stored, size=tasks, seed=entry.seed)
    return plan_experiment(
        spec=ExperimentSpec(
            slug=slug,
            models=(MODEL,),
            benchmarks=(entry,),
            # Other temperatures have other baselines: no execution serves two cells.
            cells=tuple(
                CellSpec(library=library.slug, temperature=n / 10) for n in range(1, cells + 1)
            ),
            replicates=replicates,
        ),
        partitions={entry: partition},
        at=at,
    )


@dataclass(frozen=True)
class _Invented:
    """One arm's run, not stored yet."""

    arm: str
    execution: Execution
    passed: bool
    skills: tuple[str, ...]

    @property
    def exposed(self) -> bool:
        return self.arm == Arm.SE


def _record(experiment: Experiment, *, skills: int, seed: int, unfinished: bool) -> None:
    """Insert what a run of the experiment would have left behind."""
    chance = random.Random(seed)
    arms: dict[int, dict[str, Execution]] = {}
    for arm in (
        PairArm.objects.filter(pair__cell__experiment=experiment)
        .select_related("execution")
        .order_by("pair", "arm")
    ):
        arms.setdefault(arm.pair_id, {})[arm.arm] = arm.execution
    pairs = list(Pair.objects.filter(cell__experiment=experiment).order_by("pk"))
    done = [pair for n, pair in enumerate(pairs) if not (unfinished and n % 10 == 0)]
    for batch in _batches(done, BATCH):
        _record_batch(batch, arms, skills, chance)


def _record_batch(
    pairs: Sequence[Pair],
    arms: dict[int, dict[str, Execution]],
    skills: int,
    chance: random.Random,
) -> None:
    invented: list[_Invented] = []
    for pair in pairs:
        given = tuple(_skill(n) for n in chance.sample(range(skills), 3))
        retrieved = given if chance.random() < 0.8 else ()
        base = chance.random() < 0.5
        flipped = chance.random() < 0.15
        for code in (Arm.SE, Arm.SD):
            passed = base != flipped if code == Arm.SE else base
            found = retrieved if code == Arm.SE else ()
            invented.append(_Invented(code, arms[pair.pk][code], passed, found))
    attempts = Attempt.objects.bulk_create(_attempt(run) for run in invented)
    Call.objects.bulk_create(call for run in invented for call in _calls(run))
    grades = Grade.objects.bulk_create(
        Grade(
            attempt=attempt,
            number=1,
            checker_sha256="c" * 64,
            verdict="pass" if run.passed else "fail",
            details={"answer": "def solve(xs):\n    return min(xs)\n", "message": "case 2"},
            tier="A",
            at=AT,
        )
        for attempt, run in zip(attempts, invented, strict=True)
    )
    Outcome.objects.bulk_create(
        Outcome(
            uid=uid_for("outcome", str(pair.uid), 1, 1),
            pair=pair,
            se_grade=grades[2 * n],
            sd_grade=grades[2 * n + 1],
            transition=Transition.of(se=invented[2 * n].passed, sd=invented[2 * n + 1].passed),
            retrieved=bool(invented[2 * n].skills),
            at=AT,
        )
        for n, pair in enumerate(pairs)
    )
    Execution.objects.filter(pk__in=[run.execution.pk for run in invented]).update(
        state=LeaseState.DONE, tries=1, fencing_token=1
    )


def _attempt(run: _Invented) -> Attempt:
    return Attempt(
        execution=run.execution,
        number=1,
        trace=trace_of(run.skills, exposed=run.exposed),
        exposed=run.exposed,
        invoked=bool(run.skills),
        retrieved=bool(run.skills),
        returned_ids=list(run.skills),
        loaded_ids=list(run.skills),
        tokens_in=900,
        tokens_out=140,
        latency_s=1.5,
        at=AT,
    )


def _calls(run: _Invented) -> Iterator[Call]:
    for step in range(2 if run.skills else 1):
        yield Call(
            subject=run.execution.uid,
            step=step,
            try_number=1,
            endpoint="https://models.example/v1",
            model="small-model",
            request_sha256="0" * 64,
            request={"messages": []},
            state=CallState.COMPLETED,
            tokens_in=450,
            tokens_out=70,
            cost=0.0002,
            latency_s=0.75,
            sent_at=AT,
        )


def trace_of(skills: Sequence[str], *, exposed: bool) -> dict[str, Any]:
    """Return a stored trace in the agent's shape, of about 3 KB."""
    returned = [
        {"id": slug, "name": slug.replace("-", " "), "score": 3.5 - rank, "rank": rank}
        for rank, slug in enumerate(skills, start=1)
    ]
    search = {
        "step": 0,
        "query": "smallest element of a list",
        "types": None,
        "valid": True,
        "reason": None,
        "detail": None,
        "executed": True,
        "returned": returned,
    }
    message = {"role": "user", "content": "Keep running totals so that any range is one. " * 55}
    return {
        "schema": "trace/1",
        "exposed": exposed,
        "status": "answered",
        "answer": "```python\ndef solve(xs):\n    return min(xs)\n```",
        "turns": 2,
        "invocations": len(skills) and 1,
        "retrieved": bool(skills),
        "returned_ids": list(skills),
        "loaded_ids": list(skills),
        "dropped_calls": 0,
        "dropped_parameters": [],
        "malformed_decisions": 0,
        "tokens_in": 900,
        "tokens_out": 140,
        "latency_s": 1.5,
        "searches": [search] if skills else [],
        "steps": [{"kept": 0, "messages": [message]}],
    }


def _batches(rows: Sequence[Pair], size: int) -> Iterator[Sequence[Pair]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
