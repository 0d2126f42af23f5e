"""Pushed runs: run rows of another program, stored as an experiment like any other.

Nothing is stored of rows of which one can't be used. What is stored is found by its content,
so that pushing the same rows again changes nothing, however often it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import IO, Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.urls import reverse
from django.utils.text import slugify

from runs.domain.checking import Verdict
from runs.domain.plan import (
    FAILURE_POLICY_OF,
    RESERVED_SLUGS,
    SLUG,
    ArmSpec,
    BenchmarkSpec,
    ExperimentSpec,
)
from runs.domain.plan import ModelSpec as PlannedModel
from runs.domain.report import Failure as NoResult
from runs.domain.report import FailurePolicy, Preset
from runs.domain.rows import Arm as RowArm
from runs.domain.rows import (
    BadRows,
    CellRows,
    MatchedRows,
    Pairing,
    PairRows,
    Problem,
    RowFile,
    RunRow,
    arm_result,
    match_rows,
    notices_of,
    pairing_of,
    read_csv,
    read_jsonl,
)
from runs.domain.tasks import IMPORTED_KIND, content_sha256
from runs.models import (
    Arm,
    Attempt,
    Benchmark,
    Cell,
    Design,
    Execution,
    Experiment,
    ExperimentStatus,
    Failure,
    Grade,
    Origin,
    Outcome,
    Pair,
    PairArm,
    Partition,
    Position,
    Task,
)
from runs.models import ArmSpec as StoredArmSpec
from runs.services.benchmarks import store_partition
from runs.services.outcomes import outcome_of
from workbench.kernel.identity import canonical_json, sha256_of, sha256_of_text, uid_for
from workbench.kernel.leases import LeaseState
from workbench.trail import record_event

READERS: Mapping[str, Callable[[Iterable[str]], RowFile]] = {
    "jsonl": read_jsonl,
    "ndjson": read_jsonl,
    "csv": read_csv,
}
MOST_ROWS = 200_000
# A row of a CSV file may have several lines, where a text in it has.
MOST_LINES = 1_000_000
# Of one line, before it is parsed: memory is by the values in it, not by its characters.
LONGEST_LINE = 1_000_000
MOST_VALUES = 100_000
LARGEST_BYTES = 100_000_000
LONGEST_SLUG = 100
# What a grade of a pushed run names instead of a checker and its isolation.
IMPORTED = "imported"
SOURCE = "pushed"
# Of each list in the answer at most this many are named; their number is always said.
LISTED = 1_000
# Pairs of one transaction: writers of other work wait no longer than it takes.
CHUNK = 250

_LARGEST_INT = 2**31 - 1
_TOO_MANY = f"it has more than {MOST_ROWS:,} rows; push it in parts, each under a slug of its own"
# What a row says; where it stood in its file is no part of it.
_FIELDS = tuple(field.name for field in fields(RunRow) if field.name != "line")
_LONGEST_NAME, _DIGITS = 80, 8
_LONGEST = {"task": 200, "source": 200}


class BadPush(ValueError):
    """The push can't be taken as a whole; the text says why and what to do."""


class OtherContent(Exception):
    """The slug stands for something else already."""


@dataclass(frozen=True)
class Push:
    """Run rows that can be stored: read, checked and matched.

    Attributes:
        slug: of the experiment that they become.
        ignored: columns that were not read.
        n_rows: how many there were, repeats included.
        uid_parts: what the experiment is found by: the same rows, the same parts.
    """

    slug: str
    preset: str
    failure_policy: str
    ignored: tuple[str, ...]
    n_rows: int
    matched: MatchedRows
    uid_parts: tuple[str, ...]

    @cached_property
    def pairing(self) -> Pairing:
        return pairing_of(self.matched)

    @property
    def n_pairs(self) -> int:
        return sum(len(cell.pairs) for cell in self.matched.cells)

    @property
    def uid(self) -> Any:
        return uid_for(*self.uid_parts)

    @property
    def summary(self) -> str:
        """What became of the rows, in a sentence."""
        pairing = self.pairing
        told = [f"{_count(self.n_rows, 'row')} became {_count(self.n_pairs, 'pair')}"]
        left_out = (
            (pairing.repeated, "identical row", "counted once"),
            (len(pairing.conflicts), "arm", "left out: rows contradict each other"),
            (len(pairing.unpaired), "pair", "left out: one arm only"),
        )
        told += [f"{_count(n, noun)} {why}" for n, noun, why in left_out if n]
        return "; ".join(told) + "."

    def answer(self) -> dict[str, Any]:
        """Return what whoever pushed them is told, in plain JSON values."""
        pairing = self.pairing
        return {
            "experiment": self.slug,
            "path": reverse("experiment", kwargs={"slug": self.slug}),
            "summary": self.summary,
            "uid": str(self.uid),
            "rows": self.n_rows,
            "cells": len(self.matched.cells),
            "pairs": self.n_pairs,
            "repeated": pairing.repeated,
            "n_conflicts": len(pairing.conflicts),
            "conflicts": [
                {"task": task, "arm": arm, "replicate": replicate}
                for task, arm, replicate in pairing.conflicts[:LISTED]
            ],
            "n_unpaired": len(pairing.unpaired),
            "unpaired": [
                {"task": task, "replicate": replicate}
                for task, replicate in pairing.unpaired[:LISTED]
            ],
            "ignored_columns": list(self.ignored),
        }


def read_push(
    lines: Iterable[str],
    *,
    format: str,
    slug: str,
    preset: str = Preset.DEFAULT,
    failure_policy: str = "",
) -> Push:
    """Return the rows of ``lines`` as what can be stored.

    Args:
        format: a key of ``READERS``.
        failure_policy: what a failed model call means; empty: as the preset has it.

    Raises:
        BadPush: no rows, too many, or a slug, preset or policy that there isn't.
        BadRows: naming every row that can't be used; none of them is stored.
        UnmatchedReplicates: runs repeat without a replicate number.
    """
    fault = fault_of(slug=slug, preset=preset, failure_policy=failure_policy)
    if fault:
        raise BadPush(next(iter(fault.values())))
    file = READERS[format](_at_most(lines, MOST_LINES if format == "csv" else MOST_ROWS))
    if not file.rows:
        raise BadPush("it holds no runs; each row is one run of one arm")
    if len(file.rows) > MOST_ROWS:
        raise BadPush(_TOO_MANY)
    texts = [canonical_json(_plain(row)) for row in file.rows]
    problems = [
        problem
        for row, text in zip(file.rows, texts, strict=True)
        for problem in _unstorable(row, text)
    ]
    problems += _two_prompts(file.rows)
    if problems:
        raise BadRows(sorted(problems, key=lambda problem: problem.line))
    policy = failure_policy or FAILURE_POLICY_OF[preset]
    digests = sorted(map(sha256_of_text, texts))
    return Push(
        slug=slug,
        preset=preset,
        failure_policy=policy,
        ignored=file.ignored,
        n_rows=len(file.rows),
        matched=match_rows(rows=file.rows),
        uid_parts=("pushed", slug, preset, policy, sha256_of(digests)),
    )


def fault_of(*, slug: str, preset: str, failure_policy: str) -> dict[str, str]:
    """Return what is wrong with the names that come beside the rows, by name."""
    faults = {}
    if not SLUG.match(slug) or len(slug) > LONGEST_SLUG:
        faults["experiment"] = (
            f"a slug is words of a-z and 0-9 joined by hyphens, of at most {LONGEST_SLUG} "
            "characters"
        )
    elif slug in RESERVED_SLUGS:
        faults["experiment"] = f"'{slug}' is an address of the workbench; choose another slug"
    if preset not in [choice.value for choice in Preset]:
        faults["preset"] = f"it takes {', '.join(choice.value for choice in Preset)}"
    if failure_policy and failure_policy not in [choice.value for choice in FailurePolicy]:
        faults["failure_policy"] = f"it takes {', '.join(choice.value for choice in FailurePolicy)}"
    return faults


def stored_push(push: Push) -> Experiment | None:
    """Return the experiment that these very rows have become, or None.

    Raises:
        OtherContent: the slug stands for another experiment or other rows.
    """
    stored = Experiment.objects.filter(slug=push.slug).first()
    if stored is None:
        return None
    if stored.uid != push.uid:
        raise OtherContent(taken(push.slug, pushed=stored.origin == Origin.PUSHED))
    return stored


def taken(slug: str, *, pushed: bool) -> str:
    """Return why nothing can be pushed under ``slug``, and the fix."""
    what = "with other rows or another preset" if pushed else "that is run here"
    return (
        f"there is an experiment '{slug}' already, {what}; what is recorded never changes, so "
        "push these rows under another slug"
    )


def store_push(
    push: Push,
    *,
    actor: Any,
    at: datetime,
    say: Callable[[int, int, str], None] = lambda finished, steps, note: None,
) -> Experiment:
    """Store the rows as a finished experiment and return it; stored ones are left as they are.

    Args:
        actor: who pushed them; None is the command line.
        say: told inside of each transaction how many pairs are stored; what it raises undoes
            that transaction.

    Raises:
        OtherContent: the slug stands for another experiment or other rows.
    """
    try:
        with transaction.atomic():
            experiment = stored_push(push) or _new_experiment(push, actor=actor, at=at)
    except IntegrityError:  # somebody took the slug meanwhile: with these rows, or with others
        found = stored_push(push)
        if found is None:
            raise
        experiment = found
    if experiment.status == ExperimentStatus.FINISHED:
        return experiment
    finished = 0
    for number, (cell_rows, benchmark) in enumerate(_by_benchmark(push), start=1):
        cell, tasks = _store_cell(experiment, number, cell_rows, benchmark)
        places = iter(enumerate(cell_rows.pairs, start=1))
        while chunk := list(islice(places, CHUNK)):
            with transaction.atomic():
                # Whoever else pushes the same rows waits here and then finds them stored.
                Experiment.objects.select_for_update().only("pk").get(pk=experiment.pk)
                _store_pairs(experiment, cell, tasks, chunk, at=at)
                finished += len(chunk)
                say(finished, push.n_pairs, f"storing cell {number} of {len(push.matched.cells)}")
    with transaction.atomic():
        ended = Experiment.objects.filter(pk=experiment.pk, status=ExperimentStatus.PLANNED)
        if ended.update(status=ExperimentStatus.FINISHED, ended_at=at):
            record_event(
                actor=actor,
                verb="experiment.pushed",
                subject=push.slug,
                reason=f"{push.n_rows} rows, {push.n_pairs} pairs",
                at=at,
            )
    experiment.refresh_from_db()
    return experiment


# --- what the database can't hold -------------------------------------------------


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def lines_of(file: IO[str]) -> Iterator[str]:
    """Yield the lines of ``file``, of an endless one only as much as shows that it is too long."""
    while line := file.readline(LONGEST_LINE + 1):
        yield line


def _at_most(lines: Iterable[str], most: int) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if number > most:
            raise BadPush(_TOO_MANY)
        if len(line) > LONGEST_LINE:
            raise BadPush(f"line {number} has more than {LONGEST_LINE:,} characters; shorten it")
        if len(line) > MOST_VALUES and sum(map(line.count, ",[{")) > MOST_VALUES:
            raise BadPush(f"line {number} may hold more than {MOST_VALUES:,} values; shorten it")
        yield line


def _unstorable(row: RunRow, text: str) -> Iterator[Problem]:
    """Yield what no column holds of the row, whose canonical JSON is ``text``."""
    for name, longest in _LONGEST.items():
        if len(getattr(row, name) or "") > longest:
            yield Problem(row.line, name, f"it has more than {longest} characters; shorten it")
    for name in ("replicate", "tokens_in", "tokens_out"):
        number = getattr(row, name)
        if number is not None and not 0 <= number <= _LARGEST_INT:
            yield Problem(row.line, name, f"it is not between 0 and {_LARGEST_INT}")
    for name in _FIELDS if r"\u0000" in text else ():
        if _holds_nul(getattr(row, name)):
            yield Problem(row.line, name, "it holds a NUL character; remove it")
    if row.outcome is None and row.error_class == NoResult.PENDING:
        yield Problem(
            row.line, "error_class", "this run isn't finished; push it when it is, or leave it out"
        )


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, Mapping):
        return any(_holds_nul(part) for item in value.items() for part in item)
    return isinstance(value, list | tuple) and any(map(_holds_nul, value))


def _two_prompts(rows: Sequence[RunRow]) -> Iterator[Problem]:
    """Yield the rows whose task had another prompt before."""
    first: dict[tuple[str, str], RunRow] = {}
    for row in rows:
        if row.prompt is None:
            continue
        before = first.setdefault((_benchmark_name(row.cell), row.task), row)
        if before.prompt != row.prompt:
            yield Problem(
                row.line,
                "prompt",
                f"row {before.line} gives the task {row.task} another prompt; one task has one",
            )


def _plain(row: RunRow) -> dict[str, Any]:
    """Return what the row says in JSON values."""
    return {
        **{name: getattr(row, name) for name in _FIELDS},
        "skill_ids": list(row.skill_ids),
        "queries": list(row.queries),
        "notices": list(row.notices),
        "cell": dict(row.cell),
    }


# --- rows of the database ---------------------------------------------------------


def _new_experiment(push: Push, *, actor: Any, at: datetime) -> Experiment:
    cells = push.matched.cells
    models = dict.fromkeys(str(cell.descriptor.get("model") or "") for cell in cells)
    benchmarks = dict.fromkeys(_benchmark_name(cell.descriptor) for cell in cells)
    spec = ExperimentSpec(
        slug=push.slug,
        models=tuple(PlannedModel(id=model, base_url="") for model in models if model),
        benchmarks=tuple(BenchmarkSpec(suite=suite) for suite in benchmarks),
        cells=(),
        preset=push.preset,
        failure_policy=push.failure_policy,
        analysis={
            "pushed": {
                **push.answer(),
                "notices": notices_of(ignored=push.ignored, pairing=push.pairing),
            }
        },
    )
    experiment: Experiment = Experiment.objects.create(
        uid=push.uid,
        slug=push.slug,
        spec=spec.to_json(),
        origin=Origin.PUSHED,
        author=actor,
        created_at=at,
    )
    return experiment


def _benchmark_name(cell: Mapping[str, Any]) -> str:
    """Return the slug under which the tasks of a cell are kept, never one of a suite.

    Each name has one of its own, so that C++ and C# aren't taken for one benchmark: what a slug
    can't say of the name is in a hash, behind two hyphens, which no slug of a name has.
    """
    name = cell.get("benchmark")
    if name is None:
        return IMPORTED
    named = slugify(name) if isinstance(name, str) else ""
    if named and named == name and len(named) <= _LONGEST_NAME:
        return f"{IMPORTED}-{named}"
    digest = sha256_of(name)[:_DIGITS]
    return "-".join(part for part in (IMPORTED, named[:_LONGEST_NAME], f"-{digest}") if part)


def _by_benchmark(push: Push) -> Iterator[tuple[CellRows, Benchmark]]:
    """Yield each cell with its tasks as a stored benchmark."""
    prompts: dict[tuple[str, str], str] = {}
    for cell in push.matched.cells:
        name = _benchmark_name(cell.descriptor)
        for pair in cell.pairs:
            for row in (*pair.se, *pair.sd):
                if row.prompt is not None:
                    prompts[name, pair.task] = row.prompt
    for cell in push.matched.cells:
        name = _benchmark_name(cell.descriptor)
        keys = sorted({pair.task for pair in cell.pairs})
        yield cell, _store_tasks(name, {key: prompts.get((name, key), "") for key in keys})


def _store_tasks(slug: str, prompts: Mapping[str, str]) -> Benchmark:
    """Return the benchmark with exactly these tasks, stored once per content."""
    hashes = {
        key: content_sha256({"kind": IMPORTED_KIND, "key": key, "prompt": prompt})
        for key, prompt in prompts.items()
    }
    digest = sha256_of(sorted(hashes.values()))
    with transaction.atomic():
        stored: Benchmark | None = Benchmark.objects.filter(slug=slug, sha256=digest).first()
        if stored:
            return stored
        last = Benchmark.objects.filter(slug=slug).aggregate(n=Max("number"))["n"] or 0
        benchmark: Benchmark = Benchmark.objects.create(slug=slug, number=last + 1, sha256=digest)
        Task.objects.bulk_create(
            (
                Task(
                    benchmark=benchmark,
                    key=key,
                    prompt=prompt,
                    kind=IMPORTED_KIND,
                    checker={},
                    sha256=hashes[key],
                )
                for key, prompt in prompts.items()
            ),
            batch_size=1_000,
        )
    return benchmark


def _store_cell(
    experiment: Experiment, number: int, rows: CellRows, benchmark: Benchmark
) -> tuple[Cell, dict[str, Task]]:
    partition = store_partition(benchmark=benchmark, size=None, seed=0)
    said = str(rows.descriptor.get("design", ""))
    design = said if said in Design.values else Design.SE_SD
    arms = {arm: _arm_spec(arm, rows.descriptor, benchmark, partition) for arm in Arm}
    with transaction.atomic():
        stored = {
            arm: StoredArmSpec.objects.get_or_create(
                sha256=sha256_of(spec.to_json()), defaults={"spec": spec.to_json()}
            )[0]
            for arm, spec in arms.items()
        }
        cell, _ = Cell.objects.get_or_create(
            experiment=experiment,
            sha256=sha256_of([design, arms[Arm.SE].to_json(), arms[Arm.SD].to_json()]),
            defaults={
                "number": number,
                "design": design,
                "partition": partition,
                "treatment": stored[Arm.SE],
                "baseline": stored[Arm.SD],
            },
        )
    tasks = Task.objects.filter(benchmark=benchmark).only("pk", "key", "sha256")
    return cell, {task.key: task for task in tasks}


def _arm_spec(
    arm: Arm, descriptor: Mapping[str, Any], benchmark: Benchmark, partition: Partition
) -> ArmSpec:
    model = descriptor.get("model")
    return ArmSpec(
        model=model if isinstance(model, str) else None,
        endpoint=None,
        dialect=None,
        benchmark=benchmark.slug,
        benchmark_sha256=benchmark.sha256,
        partition_sha256=partition.sha256,
        prompt_sha256=None,
        temperature=None,
        max_tokens=None,
        strategy=None,
        imported={"arm": arm.value, "cell": dict(descriptor)},
    )


def _store_pairs(
    experiment: Experiment,
    cell: Cell,
    tasks: Mapping[str, Task],
    chunk: Sequence[tuple[int, PairRows]],
    *,
    at: datetime,
) -> None:
    """Store the pairs of ``chunk``, given by place, with all that belongs to them."""
    made = [
        Pair(
            uid=uid_for(str(experiment.uid), cell.sha256, tasks[rows.task].sha256, rows.replicate),
            cell=cell,
            task=tasks[rows.task],
            replicate=rows.replicate,
        )
        for _, rows in chunk
    ]
    there = set(
        Pair.objects.filter(uid__in=[pair.uid for pair in made]).values_list("uid", flat=True)
    )
    new = [(place, pair) for place, pair in zip(chunk, made, strict=True) if pair.uid not in there]
    pairs = [pair for _, pair in new]
    Pair.objects.bulk_create(pairs)
    Position.objects.bulk_create(
        Position(cell=cell, number=number, pair=pair) for (number, _), pair in new
    )
    runs = [
        _ArmRun(pair=pair, arm=arm, rows=rows.of(RowArm(arm.value)))
        for (_, rows), pair in new
        for arm in Arm
        if rows.of(RowArm(arm.value))
    ]
    executions = Execution.objects.bulk_create(run.execution(experiment, cell) for run in runs)
    PairArm.objects.bulk_create(
        PairArm(pair=run.pair, arm=run.arm, execution=execution)
        for run, execution in zip(runs, executions, strict=True)
    )
    attempts = Attempt.objects.bulk_create(
        attempt
        for run, execution in zip(runs, executions, strict=True)
        for attempt in run.attempts(execution, at=at)
    )
    counting = [attempt for attempt in attempts if attempt.failure == Failure.NONE]
    results = {execution.pk: run.result[0] for run, execution in zip(runs, executions, strict=True)}
    grades = Grade.objects.bulk_create(
        Grade(
            attempt=attempt,
            number=1,
            checker_sha256=IMPORTED,
            verdict=Verdict.PASS if results[attempt.execution_id] else Verdict.FAIL,
            details={"score": attempt.trace["row"].get("score")},
            tier=IMPORTED,
            at=at,
        )
        for attempt in counting
    )
    graded = {grade.attempt.execution_id: grade for grade in grades}
    by_pair: dict[int, dict[Arm, Grade]] = {}
    for run, execution in zip(runs, executions, strict=True):
        if execution.pk in graded:
            by_pair.setdefault(run.pair.pk, {})[run.arm] = graded[execution.pk]
    Outcome.objects.bulk_create(
        outcome_of(pair, se=by_pair[pair.pk][Arm.SE], sd=by_pair[pair.pk][Arm.SD], at=at)
        for pair in pairs
        if len(by_pair.get(pair.pk, ())) == len(Arm)
    )


@dataclass(frozen=True)
class _ArmRun:
    """One arm of a pair and its rows: one, or several that contradict."""

    pair: Pair
    arm: Arm
    rows: tuple[RunRow, ...]

    @cached_property
    def result(self) -> tuple[bool | None, str | None]:
        return arm_result(RowArm(self.arm.value), self.rows)

    def execution(self, experiment: Experiment, cell: Cell) -> Execution:
        spec = cell.treatment if self.arm == Arm.SE else cell.baseline
        scope = str(experiment.uid)
        return Execution(
            uid=uid_for(spec.sha256, self.pair.task.sha256, self.pair.replicate, IMPORTED, scope),
            arm_spec=spec,
            task=self.pair.task,
            replicate=self.pair.replicate,
            seed_stream=IMPORTED,
            reuse_scope=scope,
            state=LeaseState.DONE if self.result[1] is None else LeaseState.DEAD,
            tries=len(self.rows),
        )

    def attempts(self, execution: Execution, *, at: datetime) -> Iterator[Attempt]:
        failure = Failure.NONE if self.result[1] is None else Failure(str(self.result[1]))
        for number, row in enumerate(self.rows, start=1):
            yield Attempt(
                execution=execution,
                number=number,
                failure=failure,
                failure_detail=_failure_detail(failure, row, len(self.rows)),
                trace=_trace(row),
                exposed=self.arm == Arm.SE,
                invoked=None,
                retrieved=row.retrieved,
                returned_ids=list(row.skill_ids),
                tokens_in=row.tokens_in,
                tokens_out=row.tokens_out,
                latency_s=row.duration_s,
                source=row.source or SOURCE,
                at=at,
            )


def _failure_detail(failure: Failure, row: RunRow, rows: int) -> str:
    if failure == Failure.NONE:
        return ""
    if failure == Failure.CONFLICT:
        return f"one of {rows} rows that contradict each other; none of them counts"
    if failure == Failure.CONTAMINATED:
        return "its row says that a skill was returned to this run without skills"
    return row.error_class or "its row gives no outcome and no error_class"


def _trace(row: RunRow) -> dict[str, Any]:
    """Return what there is to read of the run, in the shape of a trace."""
    said = _plain(row)
    texts = {name: said.pop(name) for name in ("prompt", "answer", "queries")}
    trace: dict[str, Any] = {
        "schema": "imported/1",
        "row": {name: value for name, value in said.items() if value not in (None, [], {})},
        # Which of them returned which skill isn't known, so none says what it returned.
        "searches": [{"query": query} for query in texts["queries"]],
    }
    return trace if texts["answer"] is None else trace | {"answer": texts["answer"]}
