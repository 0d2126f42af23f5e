"""Task files that people upload: checked line by line at once, graded and stored as a job."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.db import transaction
from django.db.models import Max
from django.urls import reverse
from django.utils import timezone

from runs.domain.suites import SUITE_NAMES, comparator_of
from runs.domain.taskfiles import UPLOADED, Code, Format, Problem, TaskStream
from runs.domain.tasks import TASK_VALUES, Kind, names_imported, task_of_values, task_values
from runs.models import Benchmark
from runs.sandbox.grader import Grader, NoIsolation
from runs.services.benchmarks import store_rows
from runs.services.tasks import ReferenceCheck, ReferenceState, reference_check
from skills.services.uploading import BadSlug, check_slug
from workbench.jobs import Handle, JobFailed, request_job
from workbench.kernel.files import written_before
from workbench.kernel.identity import sha256_of
from workbench.kernel.leases import LeaseLost
from workbench.kernel.versions import versioned
from workbench.models import Job
from workbench.trail import record_event

IMPORT_TASK = "runs.import_suite"
MAX_FILE_BYTES = 50_000_000
# How every zip begins.
_ZIP = b"PK\x03\x04"
MAX_TASKS = 100_000
# A file whose every line is wrong says so often enough.
MAX_PROBLEMS = 500
FAILURES_SHOWN = 100
LONGEST_FAILURE = 300
# A file whose job never came to an end is gone after this.
KEPT_FOR = timedelta(days=2)
_REPORT_EVERY_S = 1.0
_CHECKING = "Checking every reference"
_PREFIX = "suite-"
_LEFT_BEHIND = (f"{_PREFIX}*", "tmp*.upload*")


class TaskFileRefused(Exception):
    """A task file can't be used as it is.

    Attributes:
        problems: what is wrong, by line; at most ``MAX_PROBLEMS``.
        cut: whether reading stopped there.
    """

    def __init__(self, problems: Iterable[Problem], *, cut: bool = False) -> None:
        self.problems = tuple(problems)
        self.cut = cut
        super().__init__("\n".join(map(str, self.problems)))


class FileTooLarge(Exception):
    """A task file has more bytes or tasks than are taken, packed or not."""


@dataclass(frozen=True)
class CheckedSuite:
    """A task file whose every line can be used, kept aside until its job is asked for.

    Attributes:
        path: the file, as the job will read it; None where its tasks are stored already.
        stored: the benchmark that holds exactly these tasks; None unless there is one.
    """

    slug: str
    file_name: str
    path: Path | None
    stored: Benchmark | None
    scanned: _Scanned


@dataclass(frozen=True)
class Received:
    """A task file that can be used.

    Attributes:
        job: the job that stores it; None when its tasks are stored already.
        stored: the benchmark that holds exactly these tasks; None unless there is one.
        tasks: how many there are.
        notices: harmless findings, such as identical repeats.
    """

    job: Job | None
    stored: Benchmark | None
    tasks: int
    notices: tuple[Problem, ...]

    @property
    def advice(self) -> str:
        """What is not to be missed: what was uploaded isn't what new experiments run."""
        if self.stored is None:
            return ""
        slug, number = self.stored.slug, self.stored.number
        last = Benchmark.objects.filter(slug=slug).aggregate(n=Max("number"))["n"] or number
        if last == number:
            return ""
        return (
            f"New experiments still run version {last}; to run version {number} write "
            f'suite = "{versioned(slug, number)}", or choose that suite in the form.'
        )


def check_suite_slug(slug: str) -> None:
    """Refuse what can't name a suite of one's own.

    Raises:
        BadSlug: with what would do.
    """
    check_slug(slug)
    if slug in SUITE_NAMES:
        raise BadSlug(f"{slug} comes with the product and can't be replaced; choose another name")
    if names_imported(slug):
        raise BadSlug(f"{slug} is kept for the tasks of pushed runs; choose another name")


def receive_suite(
    *,
    file: IO[bytes],
    file_name: str,
    slug: str,
    format: Format | None,
    actor: Any,
    at: datetime,
) -> Received:
    """Check every line of ``file`` and ask for the job that grades and stores its tasks.

    Args:
        file_name: its name where it came from; ``.gz`` at its end says that it is packed.
        format: of the file; by its first line when None.

    Raises:
        BadSlug: ``slug`` can't name a suite.
        FileTooLarge: nothing of it is kept.
        TaskFileRefused: naming every line that can't be used.
    """
    checked = check_suite(file=file, file_name=file_name, slug=slug, format=format, at=at)
    return request_import(checked, actor=actor, at=at)


def check_suite(
    *, file: IO[bytes], file_name: str, slug: str, format: Format | None, at: datetime
) -> CheckedSuite:
    """Check every line of ``file`` and keep it aside; nothing else is written.

    Raises:
        BadSlug: ``slug`` can't name a suite.
        FileTooLarge: nothing of it is kept.
        TaskFileRefused: naming every line that can't be used.
    """
    check_suite_slug(slug)
    _remove_left_behind(now=at)
    path = settings.UPLOADS_DIR / f"{_PREFIX}{uuid.uuid4()}.jsonl"
    try:
        with os.fdopen(
            os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii"
        ) as kept:
            scanned = _scan(_lines(file, file_name), kept, file_name, format)
        stored = Benchmark.objects.filter(slug=slug, sha256=scanned.sha256).first()
        if stored:
            path.unlink()
            return CheckedSuite(slug, file_name, None, stored, scanned)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return CheckedSuite(slug, file_name, path, None, scanned)


def request_import(checked: CheckedSuite, *, actor: Any, at: datetime) -> Received:
    """Ask for the job that grades and stores the tasks of a checked file."""
    scanned = checked.scanned
    if checked.path is None:
        return Received(None, checked.stored, scanned.tasks, scanned.notices)
    job = request_job(
        kind=IMPORT_TASK,
        subject=checked.slug,
        params={
            "file": checked.path.name,
            "name": checked.file_name[:200],
            "format": scanned.format.value,
            "tasks": scanned.tasks,
            "sha256": scanned.sha256,
        },
        actor=actor,
        at=at,
    )
    return Received(job, None, scanned.tasks, scanned.notices)


def import_received(handle: Handle, *, open_grader: Callable[[], Grader]) -> Mapping[str, Any]:
    """Grade every reference of a received file and store its tasks as a benchmark.

    The file is gone after it, whatever came of it; only a worker that died, or lost the job to
    another one, leaves it for the next.

    Raises:
        JobFailed: the file is gone, references fail, or this machine can't grade them.
    """
    path = settings.UPLOADS_DIR / Path(handle.job.params["file"]).name
    try:
        answer = _imported(handle, path, open_grader)
    except LeaseLost:
        raise
    except Exception:
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)
    return answer


def _imported(handle: Handle, path: Path, open_grader: Callable[[], Grader]) -> Mapping[str, Any]:
    job = handle.job
    stored = Benchmark.objects.filter(slug=job.subject, sha256=job.params["sha256"]).first()
    if stored is None:
        if not path.exists():
            raise JobFailed(
                "This worker doesn't find the uploaded file. Upload it again; if that doesn't "
                "help, web and worker don't share one data folder (WORKBENCH_DATA)."
            )
        # Not in memory: recorded cases may be many times the file.
        with tempfile.TemporaryFile(dir=settings.UPLOADS_DIR, prefix=_PREFIX) as recorded:
            in_process = _grade(handle, path, recorded, open_grader)
            stored = _store(job, path, recorded, at=timezone.now())
    else:
        in_process = 0
    return {
        "suite": stored.slug,
        "number": stored.number,
        "tasks": job.params["tasks"],
        "checked_in_process": in_process,
        "path": reverse("suite-version", kwargs={"slug": stored.slug, "number": stored.number}),
    }


# --- receiving ------------------------------------------------------------------


@dataclass(frozen=True)
class _Scanned:
    format: Format
    tasks: int
    sha256: str
    notices: tuple[Problem, ...]


def _zip_problem(file_name: str) -> Problem:
    return Problem(
        path=file_name,
        line=0,
        code=Code.UNREADABLE,
        field="",
        reason="is a zip; tasks are JSONL",
        fix="Upload one JSON object a line. Skills are uploaded as a zip, under Skills.",
    )


def _lines(file: IO[bytes], file_name: str) -> Iterator[bytes]:
    """Yield the lines of ``file``, unpacked and counted.

    Raises:
        FileTooLarge: there is more than is taken.
        TaskFileRefused: it can't be unpacked.
    """
    source = gzip.GzipFile(fileobj=file) if file_name.endswith(".gz") else file
    left = MAX_FILE_BYTES
    try:
        # Never a longer line than may still come, and one byte more than a line may have: the
        # reader then stops there, whatever the rest of the line packs.
        while line := source.readline(min(left, UPLOADED.bytes) + 1):
            if left == MAX_FILE_BYTES and line.startswith(_ZIP):
                raise TaskFileRefused([_zip_problem(file_name)])
            left -= len(line)
            if left < 0:
                raise FileTooLarge(
                    f"it has more than {MAX_FILE_BYTES // 1_000_000} MB; split it into several "
                    "suites"
                )
            yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        why = str(error) or "it ends too early"
        raise TaskFileRefused(
            [
                Problem(
                    path=file_name,
                    line=0,
                    code=Code.UNREADABLE,
                    field="",
                    reason=f"can't be unpacked: {why}",
                    fix="Check that it is a whole gzip file, or upload it unpacked.",
                )
            ]
        ) from error


def _scan(lines: Iterable[bytes], kept: IO[str], file_name: str, format: Format | None) -> _Scanned:
    """Write each task to ``kept`` and return what there is; in memory are only their hashes."""
    problems: list[Problem] = []
    notices: list[Problem] = []
    hashes: list[str] = []
    stream = TaskStream(lines, path=file_name, format=format, limits=UPLOADED)
    for found in stream:
        if not isinstance(found, Problem):
            hashes.append(found.sha256)
            if len(hashes) > MAX_TASKS:
                raise FileTooLarge(f"it has more than {MAX_TASKS:,} tasks; split it")
            if not problems:
                kept.write(json.dumps(task_values(found)) + "\n")
        elif found.fatal:
            problems.append(found)
            if len(problems) == MAX_PROBLEMS:
                raise TaskFileRefused(problems, cut=True)
        elif len(notices) < MAX_PROBLEMS:
            notices.append(found)
    if problems or stream.format is None:
        raise TaskFileRefused(problems)
    return _Scanned(stream.format, len(hashes), sha256_of(sorted(hashes)), tuple(notices))


def _remove_left_behind(*, now: datetime) -> None:
    # The second are files of forms whose process died while it read them.
    for path in written_before(settings.UPLOADS_DIR, *_LEFT_BEHIND, moment=now - KEPT_FOR):
        path.unlink(missing_ok=True)


# --- grading and storing --------------------------------------------------------


def _grade(
    handle: Handle, path: Path, recorded: IO[bytes], open_grader: Callable[[], Grader]
) -> int:
    """Write the checker of each code task to ``recorded``, in the file's order.

    Returns how many are checked beside the program.

    Raises:
        JobFailed: a reference fails, or can't be graded here.
    """
    params = handle.job.params
    comparator = comparator_of(Format(params["format"]))
    failed: list[ReferenceCheck] = []
    n_failed = in_process = 0
    reported = 0.0
    grader = open_grader()
    for finished, task in enumerate(map(task_of_values, _kept(path))):
        if (clock := time.monotonic()) - reported > _REPORT_EVERY_S:
            reported = clock
            handle.report(finished=finished, steps=params["tasks"], note=_CHECKING)
        try:
            check = reference_check(task=task, comparator=comparator, grader=grader)
        except NoIsolation as error:
            raise JobFailed(
                f"Nothing was stored: programs can't be graded on this machine. {error}"
            ) from error
        if check.state is ReferenceState.NOT_GRADED:
            raise JobFailed(
                "Nothing was stored: this machine could not grade the reference of task "
                f"{check.key}: {check.message}. `manage.py doctor` says what is missing; "
                "then upload the file again."
            )
        in_process += check.in_process
        if check.state is ReferenceState.FAILED:
            n_failed += 1
            failed += [check] if len(failed) < FAILURES_SHOWN else []
        elif task.kind is Kind.CODE and not failed:
            recorded.write(json.dumps(check.checker).encode() + b"\n")
    if failed:
        raise JobFailed(_failures(failed, n_failed, params["tasks"]))
    handle.report(finished=params["tasks"], steps=params["tasks"], note="Storing the tasks")
    return in_process


def _kept(path: Path) -> Iterator[list[Any]]:
    with path.open(encoding="ascii") as lines:
        yield from map(json.loads, lines)


def _failures(failed: list[ReferenceCheck], count: int, tasks: int) -> str:
    said = "reference fails its" if count == 1 else "references fail their"
    lines = [
        f"Nothing was stored: of {tasks} task{'s' * (tasks != 1)} {count} {said} own check. "
        "An answer could not be judged by them. Correct the reference or the check of each, and "
        "upload the file again."
    ]
    lines += [f"{check.key}: {check.message[:LONGEST_FAILURE]}" for check in failed]
    if count > len(failed):
        lines.append(f"And {count - len(failed)} more.")
    return "\n".join(lines)


def _store(job: Job, path: Path, recorded: IO[bytes], *, at: datetime) -> Benchmark:
    recorded.seek(0)
    rows = (
        {
            **dict(zip(TASK_VALUES, values, strict=True)),
            **({"checker": json.loads(recorded.readline())} if values[2] == Kind.CODE else {}),
        }
        for values in _kept(path)
    )
    with transaction.atomic():
        stored = store_rows(slug=job.subject, sha256=job.params["sha256"], rows=rows)
        record_event(
            actor=job.actor,
            verb="suite.uploaded",
            subject=f"{stored.slug}, number {stored.number}",
            at=at,
        )
    return stored
