"""Pushes as jobs: the rows are kept in a file until their job has stored them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings

from runs.domain.report import Preset
from runs.domain.rows import BadRows, UnmatchedReplicates
from runs.models import Experiment, ExperimentDraft, Origin
from runs.services.pushing import (
    LARGEST_BYTES,
    READERS,
    BadPush,
    OtherContent,
    Push,
    fault_of,
    lines_of,
    read_push,
    store_push,
    stored_push,
    taken,
)
from workbench.jobs import Handle, JobFailed, request_job
from workbench.kernel.files import written_before
from workbench.kernel.leases import LeaseState
from workbench.models import Job

PUSH_TASK = "runs.push_rows"
# A file whose job has ended is of no more use; a retry after a crash still finds it.
KEPT_FOR = timedelta(hours=1)
# Problems that a person is shown; programs get them all, up to LISTED.
SHOWN = 20
LISTED = 10_000


class BadPushRequest(ValueError):
    """What comes beside the rows is wrong; ``fields`` says what, by name."""

    def __init__(self, fields: Mapping[str, str]) -> None:
        super().__init__("; ".join(fields.values()))
        self.fields = dict(fields)


class PushTooLarge(BadPush):
    """The rows are more bytes than are taken."""


def keep_rows(*, chunks: Iterable[bytes], format: str) -> str:
    """Keep the rows in a file of the data folder and return its name.

    Args:
        chunks: the bytes of the rows, taken one after another and never held together.
        format: a key of ``READERS``.

    Raises:
        BadPushRequest: a format that there isn't.
        PushTooLarge: more than ``LARGEST_BYTES`` bytes; none are kept.
    """
    if format not in READERS:
        raise BadPushRequest({"format": f"it takes {', '.join(READERS)}"})
    name = f"{uuid.uuid4()}.{format}"
    folder = _folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    size = 0
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for chunk in chunks:
                size += len(chunk)
                if size > LARGEST_BYTES:
                    raise PushTooLarge(
                        f"the rows are more than {LARGEST_BYTES:,} bytes; push them in parts, "
                        "each under a slug of its own"
                    )
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise
    return name


def request_push(
    *,
    kept: str,
    slug: str,
    actor: Any,
    at: datetime,
    preset: str = Preset.DEFAULT,
    failure_policy: str = "",
) -> Job:
    """Return the job that stores the rows; those of a refused push are no longer kept.

    Args:
        kept: what ``keep_rows`` returned.

    Raises:
        BadPushRequest: a slug, preset or policy that there isn't.
        OtherContent: the slug stands for something else.
        BadPush, BadRows, UnmatchedReplicates: the slug stands for pushed rows, and these can't
            be compared with them.
    """
    params = {
        "file": kept,
        "format": kept.rpartition(".")[2],
        "slug": slug,
        "preset": preset,
        "failure_policy": failure_policy,
    }
    try:
        if faults := fault_of(slug=slug, preset=preset, failure_policy=failure_policy):
            raise BadPushRequest(faults)
        stored = Experiment.objects.filter(slug=slug).first()
        if stored and stored.origin != Origin.PUSHED:
            raise OtherContent(taken(slug, pushed=False))
        if ExperimentDraft.objects.filter(slug=slug).exists():
            raise OtherContent(
                f"'{slug}' is the slug of a draft; push these rows under another slug"
            )
        if stored:
            stored_push(_read(params))
        return request_job(kind=PUSH_TASK, subject=slug, params=params, actor=actor, at=at)
    except BaseException:
        (_folder() / kept).unlink(missing_ok=True)
        raise


def perform_push(handle: Handle) -> Mapping[str, Any]:
    """Store the rows of the job and return what whoever pushed them is told.

    Raises:
        JobFailed: the rows can't be used, or the slug stands for something else.
    """
    handle.report(finished=0, note="reading the rows")
    try:
        push = _read(handle.job.params)
        store_push(
            push,
            actor=handle.job.actor,
            at=handle.job.created_at,
            say=lambda finished, steps, note: handle.report(
                finished=finished, steps=steps, note=note
            ),
        )
    except FileNotFoundError:
        raise JobFailed(
            "The rows are no longer here: they are kept until their job ends. Push them again."
        ) from None
    except (BadRows, UnmatchedReplicates) as error:
        raise _failed(error) from error
    except (BadPush, OtherContent) as error:
        raise JobFailed(f"Nothing was stored: {error}.") from error
    return push.answer()


def problems_of(error: BadRows) -> list[dict[str, Any]]:
    """Return the rows' problems as plain JSON values, ``LISTED`` at most."""
    return [
        {"row": problem.line, "column": problem.column, "reason": problem.reason}
        for problem in error.problems[:LISTED]
    ]


def remove_old_rows(*, now: datetime) -> None:
    """Remove the kept rows whose job has ended."""
    for path in written_before(_folder(), "*", moment=now - KEPT_FOR):
        live = Job.objects.filter(
            kind=PUSH_TASK,
            params__file=path.name,
            state__in=(LeaseState.PENDING, LeaseState.RUNNING),
        )
        if not live.exists():
            path.unlink(missing_ok=True)


def _folder() -> Path:
    return Path(settings.DATA_DIR) / "pushes"


def _read(params: Mapping[str, Any]) -> Push:
    try:
        with (_folder() / params["file"]).open(encoding="utf-8", newline="") as file:
            return read_push(
                lines_of(file),
                format=params["format"],
                slug=params["slug"],
                preset=params["preset"],
                failure_policy=params["failure_policy"],
            )
    except UnicodeDecodeError as error:
        raise BadPush(f"it isn't UTF-8 (byte {error.start + 1}); save it as UTF-8") from error


def _failed(error: BadRows | UnmatchedReplicates) -> JobFailed:
    """Return what a person is told of unusable rows, and a program."""
    if isinstance(error, UnmatchedReplicates):
        return JobFailed(f"Nothing was stored. {error}")
    rows = len({problem.line for problem in error.problems})
    what = "1 row" if rows == 1 else f"{rows:,} rows"
    lines = [f"Nothing was stored: {what} can't be used. Mend them and push the file again."]
    lines += [str(problem) for problem in error.problems[:SHOWN]]
    if (more := len(error.problems) - SHOWN) > 0:
        lines.append(f"... and {more:,} more")
    return JobFailed("\n".join(lines), result={"problems": problems_of(error)})
