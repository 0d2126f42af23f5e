"""Exports: every run, pair or attempt that was chosen, or the audit trail, as one file.

A job writes the file, a chunk of rows at a time, so that neither a request nor the memory
limits how much there may be. Runs are written as run rows (docs/exports.md): what
``report --runs`` makes of them is the experiment's own report.
"""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet
from django.db.models.fields.json import KT
from django.urls import reverse
from django.utils import timezone

from runs.domain.plan import EMBEDDED
from runs.domain.report import (
    BEING_GRADED_AGAIN,
    CANCELLED,
    CHECKED_UNSANDBOXED,
    DEMONSTRATION,
    IN_PROCESS,
    FailurePolicy,
    PairRecord,
    refused,
    transition_of,
)
from runs.domain.report import Failure as NoResult
from runs.models import (
    Arm,
    Attempt,
    Cell,
    Experiment,
    ExperimentStatus,
    Failure,
    Grade,
    Pair,
    PairArm,
)
from runs.selectors import cells_of, standing_grades
from runs.services.reporting import (
    UNSANDBOXED,
    descriptor_of,
    is_being_pushed,
    json_texts,
    pair_records,
)
from runs.services.writing import FORMATS, Column, Row, write_file
from workbench.jobs import Handle, JobFailed, JobMissing, job_by_uid, request_job
from workbench.kernel.files import written_before
from workbench.kernel.lists import Filter, Listing
from workbench.kernel.roles import Role, role_of
from workbench.models import AuditEvent, Job
from workbench.trail import record_event

EXPORT_TASK = "runs.export"


class ExportKind(StrEnum):
    """What an export has a row of."""

    RUNS = "runs"
    PAIRS = "pairs"
    ATTEMPTS = "attempts"
    AUDIT_EVENTS = "audit-events"


KEPT_FOR = timedelta(days=7)
# The Python that runs this: another one's packages aren't seen here.
PARQUET_MISSING = (
    "Parquet needs the package pyarrow (the extra 'parquet'), which isn't installed here: run "
    f"{shlex.quote(sys.executable)} -m pip install 'pyarrow>=26', then restart serve; or choose "
    "CSV or JSONL"
)
MOST_EXPERIMENTS = 50
EXPORT_LISTING = Listing(
    sorts={"created": "created_at"},
    default_sort="-created",
    filters={
        "kind": Filter("params__kind", tuple(kind.value for kind in ExportKind)),
        "by": Filter("actor__username", meaning="Only those that this person asked for."),
    },
)
# Rows of one chunk. Traces hold every message of a run, so few attempts are read at once.
CHUNK = 500
ATTEMPTS_CHUNK = 20


class BadExport(ValueError):
    """The export can't be made as asked; ``fields`` says what to change, by name."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {reason}" for name, reason in fields.items()))
        self.fields = dict(fields)


class ExportRemoved(Exception):
    """The file was kept as long as files are, and removed; the same can be made again."""


@dataclass(frozen=True)
class Wanted:
    """What an export is to hold.

    Attributes:
        experiments: slugs; none for the audit trail.
        cells: beginnings of cells' hashes (``sha12``); none means all of the experiments'.
    """

    kind: ExportKind
    format: str
    experiments: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "format": self.format,
            "experiments": list(self.experiments),
            "cells": list(self.cells),
        }

    @property
    def named(self) -> str:
        """What it holds, in words."""
        kind = self.kind.value.replace("-", " ")
        if not self.experiments:
            return kind
        slugs = ", ".join(self.experiments[:3])
        more = len(self.experiments) - 3
        return f"{kind} of {slugs}" + (f" and {more} more" if more > 0 else "")


def wanted_of(job: Job) -> Wanted:
    """Return what an export's job was asked for."""
    params = job.params
    return Wanted(
        kind=ExportKind(params["kind"]),
        format=params["format"],
        experiments=tuple(params["experiments"]),
        cells=tuple(params["cells"]),
    )


def request_export(
    *,
    kind: str,
    format: str,
    experiments: Sequence[str] = (),
    cells: Sequence[str] = (),
    actor: Any,
    at: datetime,
) -> Job:
    """Ask for an export and return its job.

    Raises:
        BadExport: naming each choice that can't be met.
    """
    faults: dict[str, str] = {}
    known = [one.value for one in ExportKind if one in kinds_for(actor)]
    if kind not in known:
        faults["kind"] = f"it takes {', '.join(known)}"
    if format not in FORMATS:
        faults["format"] = f"it takes {', '.join(FORMATS)}"
    elif kind == ExportKind.ATTEMPTS and format != "jsonl":
        faults["format"] = "traces have no form as a table; choose jsonl"
    elif format == "parquet" and not parquet_is_there():
        faults["format"] = PARQUET_MISSING
    of_runs = kind != ExportKind.AUDIT_EVENTS
    if of_runs:
        faults |= _faults_of_choice(experiments, cells)
    elif experiments or cells:
        faults["experiments"] = "the audit trail is one; leave experiments and cells out"
    if faults:
        raise BadExport(faults)
    wanted = Wanted(
        kind=ExportKind(kind),
        format=format,
        experiments=tuple(dict.fromkeys(experiments)),
        cells=tuple(dict.fromkeys(cells)),
    )
    subject = wanted.named[:200]
    record_event(actor=actor, verb="export.requested", subject=subject, reason=wanted.format, at=at)
    return request_job(
        kind=EXPORT_TASK, subject=subject, params=wanted.to_json(), actor=actor, at=at
    )


def kinds_for(actor: Any) -> tuple[ExportKind, ...]:
    """Return what this person may export: the audit trail is for admins (and the command line)."""
    admin = actor is None or role_of(actor) is Role.ADMIN
    return tuple(kind for kind in ExportKind if admin or kind is not ExportKind.AUDIT_EVENTS)


def parquet_is_there() -> bool:
    """Return whether Parquet files can be written here."""
    return find_spec("pyarrow") is not None


def exports_for(actor: Any) -> QuerySet[Job]:
    """Return the jobs of the exports that this person may see."""
    kinds = [kind.value for kind in kinds_for(actor)]
    return Job.objects.filter(kind=EXPORT_TASK, params__kind__in=kinds).select_related("actor")


def export_by_uid(uid: UUID, *, actor: Any) -> Job:
    """Return an export's job.

    Raises:
        JobMissing: there is none, or it is not this person's to see.
    """
    job = job_by_uid(uid, kind=EXPORT_TASK)
    if job.params["kind"] not in kinds_for(actor):
        raise JobMissing(f"there is no job {uid}")
    return job


def file_of(job: Job) -> Path:
    """Return the file of a finished export.

    Raises:
        JobMissing: it isn't finished, or failed.
        ExportRemoved: the file is no longer kept.
    """
    if not job.result or "file" not in job.result:
        raise JobMissing(f"the export {job.uid} has no file")
    path = _folder() / f"{job.uid}.{job.params['format']}"
    if not path.exists():
        raise ExportRemoved(
            f"the file was removed {KEPT_FOR.days} days after it was made; make the export again"
        )
    return path


def is_kept(job: Job) -> bool:
    """Return whether the job has a file that can be had."""
    try:
        file_of(job)
    except (JobMissing, ExportRemoved):
        return False
    return True


def remove_old_exports(*, now: datetime) -> int:
    """Remove the files that are no longer kept; return how many."""
    removed = 0
    for path in written_before(_folder(), "*", moment=now - KEPT_FOR):
        path.unlink(missing_ok=True)
        removed += 1
    return removed


def perform_export(handle: Handle) -> Mapping[str, Any]:
    """Write the export's file and return its name, number of rows, bytes and sha256.

    Done again after a crash it writes the file anew; a file is there whole or not at all.

    Raises:
        JobFailed: what was asked for is no longer there.
    """
    wanted = wanted_of(handle.job)
    source = _source(wanted)
    if wanted.format == "parquet" and not parquet_is_there():
        raise JobFailed(PARQUET_MISSING)
    steps = source.count()

    def counted() -> Iterator[list[Row]]:
        finished = 0
        for units, rows in source.chunks():
            finished += units
            yield rows
            handle.report(finished=finished, steps=steps, note=f"writing {wanted.named}")

    handle.report(finished=0, steps=steps, note=f"writing {wanted.named}")
    name = f"{handle.job.uid}.{wanted.format}"
    written = write_file(
        _folder() / name, columns=source.columns, chunks=counted(), format=wanted.format
    )
    kept_until = timezone.now() + KEPT_FOR
    return {
        "file": f"{_plain_name(wanted)}.{wanted.format}",
        "summary": f"{written.rows:,} {'row' if written.rows == 1 else 'rows'}, "
        f"{written.bytes:,} bytes; kept until {kept_until:%-d %b %Y}.",
        "rows": written.rows,
        "bytes": written.bytes,
        "sha256": written.sha256,
        "kept_until": kept_until.isoformat(),
        "path": reverse("export-file", kwargs={"uid": handle.job.uid}),
    }


def _folder() -> Path:
    return Path(settings.DATA_DIR) / "exports"


def _plain_name(wanted: Wanted) -> str:
    """Return a file name of letters, digits and hyphens alone."""
    of = wanted.experiments[0] if len(wanted.experiments) == 1 else "experiments"
    name = f"{of}-{wanted.kind}" if wanted.experiments else str(wanted.kind)
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in name)


def _faults_of_choice(experiments: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    if not experiments:
        return {"experiments": "choose at least one experiment"}
    if len(experiments) > MOST_EXPERIMENTS:
        return {"experiments": f"choose at most {MOST_EXPERIMENTS}"}
    found = {one.slug: one for one in Experiment.objects.filter(slug__in=experiments)}
    if missing := [slug for slug in experiments if slug not in found]:
        return {"experiments": f"there is no experiment {', '.join(missing)}"}
    if waiting := [slug for slug, one in found.items() if is_being_pushed(one)]:
        return {"experiments": f"the runs of {', '.join(waiting)} are still being stored"}
    there = Cell.objects.filter(experiment__slug__in=experiments).values_list("sha256", flat=True)
    beginnings = {sha256[:12] for sha256 in there}
    if missing := [cell for cell in cells if cell not in beginnings]:
        return {"cells": f"no chosen experiment has the cell {', '.join(missing)}"}
    return {}


# --- where rows come from ---------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Rows in chunks; each says how many units of ``count`` it is."""

    columns: tuple[Column, ...]
    count: Callable[[], int]
    chunks: Callable[[], Iterator[tuple[int, list[Row]]]]


RUN_COLUMNS = (
    Column("task", "text"),
    Column("arm", "text"),
    Column("replicate", "int"),
    Column("outcome", "int"),
    Column("score", "float"),
    Column("retrieved", "bool"),
    Column("skill_ids", "json"),
    Column("cell", "json"),
    Column("model", "text"),
    Column("agent", "text"),
    Column("tokens_in", "int"),
    Column("tokens_out", "int"),
    Column("duration_s", "float"),
    Column("error_class", "text"),
    Column("source", "text"),
    Column("notices", "json"),
    Column("experiment", "text"),
    Column("pair", "text"),
    Column("execution", "text"),
    Column("verdict", "text"),
    Column("tier", "text"),
    Column("attempts", "int"),
)
PAIR_COLUMNS = (
    Column("pair", "text"),
    Column("experiment", "text"),
    Column("cell", "text"),
    Column("task", "text"),
    Column("replicate", "int"),
    Column("transition", "text"),
    Column("retrieved", "bool"),
    Column("se", "bool"),
    Column("sd", "bool"),
    Column("left_out", "text"),
    Column("se_failure", "text"),
    Column("sd_failure", "text"),
    Column("skills", "json"),
)
ATTEMPT_COLUMNS = tuple(
    Column(name, "json")
    for name in (
        *("execution", "experiment", "pairs", "task", "replicate", "number", "failure"),
        *("failure_detail", "exposed", "invoked", "retrieved", "returned_ids", "loaded_ids"),
        *("gold_ids", "tokens_in", "tokens_out", "latency_s", "source", "at", "grades", "trace"),
    )
)
AUDIT_COLUMNS = tuple(
    Column(name, "text")
    for name in ("at", "actor", "verb", "subject", "reason", "previous_sha256", "sha256")
)


def _source(wanted: Wanted) -> _Source:
    """Return where the rows come from.

    Raises:
        JobFailed: an experiment or cell is not there.
    """
    if wanted.kind is ExportKind.AUDIT_EVENTS:
        return _Source(AUDIT_COLUMNS, AuditEvent.objects.count, _audit_chunks)
    if faults := _faults_of_choice(wanted.experiments, wanted.cells):
        raise JobFailed(". ".join(text.capitalize() for text in faults.values()))
    cells = [
        cell
        for slug in wanted.experiments
        for cell in cells_of(Experiment.objects.get(slug=slug)).select_related(
            "experiment", "partition__benchmark", "library", "treatment", "baseline"
        )
        if not wanted.cells or cell.sha256[:12] in wanted.cells
    ]
    pairs = Pair.objects.filter(cell__in=cells)
    if wanted.kind is ExportKind.ATTEMPTS:
        attempts = _attempts_of(cells)
        return _Source(ATTEMPT_COLUMNS, attempts.count, lambda: _attempt_chunks(attempts))
    several = len(wanted.experiments) > 1
    if wanted.kind is ExportKind.RUNS:
        return _Source(RUN_COLUMNS, pairs.count, lambda: _run_chunks(cells, several=several))
    return _Source(PAIR_COLUMNS, pairs.count, lambda: _pair_chunks(cells))


def _chunks_of(queryset: QuerySet[Any], size: int) -> Iterator[list[Any]]:
    """Yield the rows by primary key, ``size`` at a time: no cursor is held between them."""
    last = 0
    while chunk := list(queryset.filter(pk__gt=last).order_by("pk")[:size]):
        yield chunk
        last = chunk[-1].pk


# --- runs -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recorded:
    """What an execution has to show: its attempt that counts, or its last one."""

    attempts: int = 0
    retrieved: bool | None = None
    returned: tuple[str, ...] = ()
    tokens_in: int | None = None
    tokens_out: int | None = None
    latency_s: float | None = None
    source: str = ""
    score: float | None = None
    error_class: str | None = None
    notices: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    verdict: str | None = None
    tier: str | None = None


def _run_chunks(cells: Sequence[Cell], *, several: bool) -> Iterator[tuple[int, list[Row]]]:
    for cell in cells:
        about = descriptor_of(cell)
        if several:  # else equal cells of two experiments would be read as one
            about |= {"experiment": cell.experiment.slug}
        for pairs in _chunks_of(Pair.objects.filter(cell=cell), CHUNK):
            yield len(pairs), list(_run_rows(cell, about, pairs))


def _run_rows(cell: Cell, about: Mapping[str, Any], pairs: Sequence[Pair]) -> Iterator[Row]:
    keys = [pair.pk for pair in pairs]
    records = {record.pair: record for record in pair_records(cell, keys)}
    arms: dict[int, list[tuple[str, int, UUID]]] = defaultdict(list)
    for of_pair, arm, execution, uid in (
        PairArm.objects.filter(pair__in=keys)
        .order_by("-arm")
        .values_list("pair", "arm", "execution", "execution__uid")
    ):
        arms[of_pair].append((arm, execution, uid))
    recorded = _recorded([execution for found in arms.values() for _, execution, _ in found])
    for pair in pairs:
        for arm, execution, uid in sorted(arms[pair.pk], reverse=True):
            yield _run_row(
                cell, about, records[str(pair.uid)], arm, uid, recorded.get(execution, _Recorded())
            )


def _run_row(
    cell: Cell,
    about: Mapping[str, Any],
    record: PairRecord,
    arm: str,
    execution: UUID,
    run: _Recorded,
) -> Row:
    is_se = arm == Arm.SE
    passed, failure = (record.se, record.se_failure) if is_se else (record.sd, record.sd_failure)
    retrieved = record.retrieved if is_se else run.retrieved
    if failure == NoResult.CONTAMINATED:
        retrieved = True  # that is what it means
    # A pushed run keeps the word of its source where that says the same.
    own = failure in (None, NoResult.CALL, NoResult.HOST, NoResult.NO_RESULT)
    model, agent = about.get("model"), about.get("agent")
    return {
        "task": record.task,
        "arm": arm,
        "replicate": record.replicate,
        "outcome": None if passed is None else int(passed),
        "score": run.score,
        "retrieved": retrieved,
        "skill_ids": list(record.skills if is_se else run.returned),
        "cell": dict(about),
        "model": model if isinstance(model, str) else None,
        "agent": agent if isinstance(agent, str) else None,
        "tokens_in": run.tokens_in,
        "tokens_out": run.tokens_out,
        "duration_s": run.latency_s,
        "error_class": (run.error_class if own else None) or failure,
        "source": run.source or cell.experiment.slug,
        "notices": _notices(cell, record, run),
        "experiment": cell.experiment.slug,
        "pair": record.pair,
        "execution": str(execution),
        "verdict": run.verdict,
        "tier": run.tier,
        "attempts": run.attempts,
    }


def _notices(cell: Cell, record: PairRecord, run: _Recorded) -> list[str]:
    """Return what a report made of this row must go on telling its readers."""
    experiment, model = cell.experiment, cell.treatment.spec.get("model") or ""
    said = {
        DEMONSTRATION: cell.treatment.spec.get("endpoint") == EMBEDDED,
        CHECKED_UNSANDBOXED: run.tier == UNSANDBOXED,
        IN_PROCESS: record.in_process,
        refused(model, run.dropped): bool(run.dropped),
        CANCELLED: experiment.status == ExperimentStatus.CANCELLED,
        BEING_GRADED_AGAIN: experiment.regrading_since is not None,
    }
    return list(dict.fromkeys([*run.notices, *(notice for notice, holds in said.items() if holds)]))


def _recorded(executions: Sequence[int]) -> dict[int, _Recorded]:
    """Return what each execution has to show, in two queries that read no whole trace."""
    attempts = Attempt.objects.filter(execution__in=executions)
    grades = standing_grades(attempts)
    found: dict[int, _Recorded] = {}
    # A failed attempt is only ever followed by another one, so the last one counts.
    for pk, execution, number, failure, retrieved, returned, *numbers in attempts.order_by(
        "number"
    ).values_list(
        *("pk", "execution", "number", "failure", "retrieved", "returned_ids"),
        *("tokens_in", "tokens_out", "latency_s", "source"),
        *("trace__row__score", "trace__row__error_class", "trace__row__notices"),
        KT("trace__dropped_parameters"),
    ):
        tokens_in, tokens_out, latency_s, source, score, error_class, notices, dropped = numbers
        contradicting = failure == Failure.CONFLICT
        verdict, tier = grades.get(pk, (None, None))
        found[execution] = _Recorded(
            attempts=number,
            retrieved=None if contradicting else retrieved,
            returned=() if contradicting else tuple(map(str, returned)),
            tokens_in=None if contradicting else tokens_in,
            tokens_out=None if contradicting else tokens_out,
            latency_s=None if contradicting else latency_s,
            source=source,
            score=None if contradicting else score,
            error_class=error_class,
            notices=tuple(notices or ()),
            dropped=() if failure else json_texts(dropped),
            verdict=verdict,
            tier=tier,
        )
    return found


# --- pairs ------------------------------------------------------------------------


def _pair_chunks(cells: Sequence[Cell]) -> Iterator[tuple[int, list[Row]]]:
    for cell in cells:
        policy = FailurePolicy(cell.experiment.spec["failure_policy"])
        for pairs in _chunks_of(Pair.objects.filter(cell=cell).only("pk"), CHUNK):
            records = pair_records(cell, [pair.pk for pair in pairs])
            yield len(pairs), [_pair_row(cell, record, policy) for record in records]


def _pair_row(cell: Cell, record: PairRecord, policy: FailurePolicy) -> Row:
    transition = transition_of(record, policy)
    failures = dict.fromkeys(str(f) for f in (record.se_failure, record.sd_failure) if f)
    return {
        "pair": record.pair,
        "experiment": cell.experiment.slug,
        "cell": cell.sha256[:12],
        "task": record.task,
        "replicate": record.replicate,
        "transition": transition and transition.value,
        "retrieved": record.retrieved,
        "se": record.se,
        "sd": record.sd,
        "left_out": None if transition else " ".join(failures),
        "se_failure": record.se_failure,
        "sd_failure": record.sd_failure,
        "skills": list(record.skills),
    }


# --- attempts ---------------------------------------------------------------------


def _attempts_of(cells: Sequence[Cell]) -> QuerySet[Attempt]:
    serving = PairArm.objects.filter(pair__cell__in=cells).values("execution")
    return Attempt.objects.filter(execution__in=serving).select_related("execution__task")


def _attempt_chunks(attempts: QuerySet[Attempt]) -> Iterator[tuple[int, list[Row]]]:
    for chunk in _chunks_of(attempts, ATTEMPTS_CHUNK):
        pairs: dict[int, list[tuple[str, str]]] = defaultdict(list)
        executions = {attempt.execution_id for attempt in chunk}
        for execution, pair, slug in (
            PairArm.objects.filter(execution__in=executions)
            .order_by("pair__pk")
            .values_list("execution", "pair__uid", "pair__cell__experiment__slug")
        ):
            pairs[execution].append((str(pair), slug))
        grades: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for grade in Grade.objects.filter(attempt__in=[a.pk for a in chunk]).order_by("number"):
            grades[grade.attempt_id].append(
                {
                    "number": grade.number,
                    "verdict": grade.verdict,
                    "tier": grade.tier,
                    "checker_sha256": grade.checker_sha256,
                    "details": grade.details,
                    "at": grade.at.isoformat(),
                }
            )
        yield (
            len(chunk),
            [_attempt_row(one, pairs[one.execution_id], grades[one.pk]) for one in chunk],
        )


def _attempt_row(
    attempt: Attempt, pairs: Sequence[tuple[str, str]], grades: list[dict[str, Any]]
) -> Row:
    execution = attempt.execution
    stated = ("number", "failure", "failure_detail", "exposed", "invoked", "retrieved")
    listed = ("returned_ids", "loaded_ids", "gold_ids", "tokens_in", "tokens_out", "latency_s")
    return {
        "execution": str(execution.uid),
        "experiment": pairs[0][1],
        "pairs": [pair for pair, _ in pairs],
        "task": execution.task.key,
        "replicate": execution.replicate,
        **{name: getattr(attempt, name) for name in (*stated, *listed, "source")},
        "at": attempt.at.isoformat(),
        "grades": grades,
        "trace": attempt.trace,
    }


# --- the audit trail --------------------------------------------------------------


def _audit_chunks() -> Iterator[tuple[int, list[Row]]]:
    for chunk in _chunks_of(AuditEvent.objects.select_related("actor"), CHUNK):
        yield (
            len(chunk),
            [
                {
                    "at": event.at.isoformat(),
                    "actor": event.actor.get_username() if event.actor else None,
                    "verb": event.verb,
                    "subject": event.subject,
                    "reason": event.reason,
                    "previous_sha256": event.previous_sha256,
                    "sha256": event.sha256,
                }
                for event in chunk
            ],
        )
