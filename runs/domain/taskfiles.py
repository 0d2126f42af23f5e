"""Read task files, one JSON object a line, without losing a line.

A file is read as a stream. Every line becomes a task or a problem that names
the file, the line, the field and the fix; nothing is dropped in silence. This
module knows the product's own format (docs/tasks.md); the benchmarks' formats
are in ``benchmarks``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from runs.domain import benchmarks, fields
from runs.domain.checkers import read_checker
from runs.domain.fields import BadField
from runs.domain.tasks import Kind, TaskSpec

# Beyond this a line is no task but a mistake (the largest EvalPlus line has some 3 MB).
MAX_LINE_BYTES = 64_000_000
MAX_KEY_CHARACTERS = 200


@dataclass(frozen=True)
class LineLimits:
    """What one line may be before it is parsed.

    Attributes:
        bytes: its length.
        values: the values in it, by the characters that begin one: memory is by them, not by
            bytes. None is no limit.
    """

    bytes: int
    values: int | None = None


# Of what came by web: whoever sent it doesn't pay for the memory.
UPLOADED = LineLimits(bytes=4_000_000, values=500_000)


class Format(StrEnum):
    """The formats of task files that can be read."""

    OWN = "own"
    EVALPLUS = "evalplus"
    HUMANEVAL = "humaneval"
    MBPP = "mbpp"
    MATH500 = "math500"


class Code(StrEnum):
    """What kind of problem a file or line has."""

    UNREADABLE = "unreadable"
    EMPTY = "empty"
    NOT_JSONL = "not_jsonl"
    NOT_JSON = "not_json"
    UNKNOWN_FORMAT = "unknown_format"
    BAD_FIELD = "bad_field"
    CONFLICTING = "conflicting"
    IDENTICAL = "identical"


@dataclass(frozen=True)
class Problem:
    """Something wrong with a task file.

    Attributes:
        path: the file's name as the user gave it.
        line: 1 and up, or 0 when the file as a whole is meant.
        field: dotted field name, or empty.
        fix: what to do, one sentence.
    """

    path: str
    line: int
    code: Code
    field: str
    reason: str
    fix: str

    @property
    def fatal(self) -> bool:
        """Return whether the file can't be used as it is; an identical repeat is harmless."""
        return self.code is not Code.IDENTICAL

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        field = f"{self.field} " if self.field else ""
        return f"{place}: {field}{self.reason}. {self.fix}"


@dataclass(frozen=True)
class TaskFile:
    """All tasks and all problems of one file; conflicting tasks are in ``problems`` only."""

    format: Format | None
    tasks: tuple[TaskSpec, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class _Line:
    """A task and where it was found."""

    number: int
    task: TaskSpec


# What a first line must hold to be taken for a format, most telling first.
_SIGNS: tuple[tuple[Format, tuple[str, ...]], ...] = (
    (Format.OWN, ("key", "kind")),
    (Format.EVALPLUS, ("task_id", "entry_point", "canonical_solution", "base_input")),
    (Format.HUMANEVAL, ("task_id", "entry_point", "canonical_solution", "test")),
    (Format.MBPP, ("task_id", "code", "test_list")),
    (Format.MATH500, ("problem", "answer")),
)
_OWN_FIELDS = ("key", "kind", "prompt", "checker", "gold_skills", "reference", "tags")


def detect_format(row: Mapping[str, Any]) -> Format | None:
    """Return the format that ``row``'s fields speak for, or None.

    One telling field is enough for the own format, so that a forgotten "kind"
    is reported as missing and not as an unknown format.
    """
    for name, signs in _SIGNS:
        if all(sign in row for sign in signs):
            return name
    return Format.OWN if "key" in row or "checker" in row else None


def read_tasks(lines: Iterable[bytes], *, path: str, format: Format | None = None) -> TaskFile:
    """Return every task and every problem of a file given as raw lines; see ``TaskStream``.

    A key that comes twice with two contents is left out altogether.
    """
    tasks: dict[str, TaskSpec] = {}
    problems: list[Problem] = []
    stream = TaskStream(lines, path=path, format=format)
    for found in stream:
        if isinstance(found, Problem):
            problems.append(found)
        else:
            tasks[found.key] = found
    kept = tuple(task for key, task in tasks.items() if key not in stream.conflicting)
    return TaskFile(format=stream.format, tasks=kept, problems=tuple(problems))


class TaskStream:
    """The tasks and problems of a file given as raw lines, one at a time, in the file's order.

    Blank lines and lines that start with ``#`` are skipped; a byte order mark
    and CRLF line ends are accepted. Without ``format`` the first object decides.
    A key that comes twice with one content counts once and is noted; with two
    contents it is a problem. Of a task only key and content hash are kept.

    Attributes:
        format: what the file is in, once that is known.
        conflicting: keys that came with two contents so far.
    """

    def __init__(
        self,
        lines: Iterable[bytes],
        *,
        path: str,
        format: Format | None = None,
        limits: LineLimits | None = None,
    ) -> None:
        limits = limits or LineLimits(MAX_LINE_BYTES)
        self._reader = _Reader(path=path, format=format, limits=limits)
        self._lines = lines
        self.conflicting: set[str] = set()

    @property
    def format(self) -> Format | None:
        return self._reader.format

    def __iter__(self) -> Iterator[TaskSpec | Problem]:
        first: dict[str, tuple[int, str]] = {}
        problems = False
        for found in self._reader.read(self._lines):
            if isinstance(found, Problem):
                problems = True
                yield found
                continue
            task = found.task
            if task.key not in first:
                first[task.key] = (found.number, task.sha256)
                yield task
                continue
            line, sha256 = first[task.key]
            same = sha256 == task.sha256
            if not same:
                self.conflicting.add(task.key)
            yield _repeated(self._reader.path, found.number, task.key, line, same=same)
        if not first and not problems:
            yield _empty(self._reader.path)


class _Reader:
    """Turns lines into tasks and problems; keeps the format once it is known."""

    def __init__(self, *, path: str, format: Format | None, limits: LineLimits) -> None:
        self.path = path
        self.format = format
        self._limits = limits

    def read(self, lines: Iterable[bytes]) -> Iterator[_Line | Problem]:
        started = False
        for number, raw in enumerate(lines, start=1):
            if len(raw) > self._limits.bytes:
                yield self._problem(number, Code.NOT_JSON, _too_long(self._limits.bytes))
                return
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            stripped = raw.strip()
            if not stripped or stripped.startswith(b"#"):
                continue
            if not started and (stripped.startswith(b"[") or stripped == b"{"):
                # One report instead of one for each line of a pretty-printed document.
                yield self._problem(number, Code.NOT_JSONL, _ONE_LINE)
                return
            started = True
            try:
                yield _Line(number=number, task=self._task(stripped))
            except _NotJson as error:
                yield self._problem(number, Code.NOT_JSON, error)
            except _NoFormat as error:
                yield self._problem(number, Code.UNKNOWN_FORMAT, error)
                return
            except BadField as error:
                yield self._problem(number, Code.BAD_FIELD, error)

    def _task(self, line: bytes) -> TaskSpec:
        if self._limits.values is not None and _values_in(line) > self._limits.values:
            reason = f"may hold more than {self._limits.values:,} values"
            raise _NotJson("", reason, "Split the task, or give it fewer cases.")
        row = _object(line)
        if self.format is None:
            self.format = detect_format(row)
        if self.format is None:
            raise _no_format(row)
        task = _READERS[self.format](row)
        _check_key(task.key)
        return task

    def _problem(self, line: int, code: Code, error: BadField) -> Problem:
        return Problem(
            path=self.path,
            line=line,
            code=code,
            field=error.field,
            reason=error.reason,
            fix=error.fix,
        )


class _NotJson(BadField):
    """The line is no JSON object."""


class _NoFormat(BadField):
    """The fields of the first object fit no format."""


def _too_long(most: int) -> BadField:
    reason = f"is longer than {most // 1_000_000} MB"
    return BadField("", reason, "Split the task; reading stops here.")


def _values_in(line: bytes) -> int:
    """Return at least how many values the JSON of ``line`` holds, without parsing it."""
    return line.count(b",") + line.count(b"[") + line.count(b"{")


_ONE_LINE = BadField(
    "",
    "one JSON document over several lines, or a list of tasks",
    "Write one task a line, without the enclosing [ ] and without line breaks inside a task.",
)


def _no_format(row: Mapping[str, Any]) -> _NoFormat:
    known = "; ".join(f"{name}: {', '.join(signs)}" for name, signs in _SIGNS)
    got = ", ".join(sorted(row)[:8]) or "none"
    return _NoFormat(
        "",
        f"the fields of the first task ({got}) fit no format",
        f"A format is known by its fields ({known}); or name the format.",
    )


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode(), object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 (byte {error.start + 1} of the line)"
        raise _NotJson("", reason, "Save the file as UTF-8.") from None
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg} at column {error.colno}"
        raise _NotJson("", reason, "Write one complete JSON object on the line.") from None
    except (RecursionError, ValueError) as error:
        # ValueError: an integer beyond Python's digit limit.
        raise _NotJson("", f"can't be read: {error}", "Make the value smaller.") from None
    if not isinstance(row, dict):
        reason = f"is {fields.json_type(row)}, not a JSON object"
        raise _NotJson("", reason, 'Write {"key": ..., ...}.')
    return row


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in pairs:
        if name in row:
            raise BadField(name, "stands twice in one object", "Keep one of them.")
        row[name] = value
    return row


def _check_key(key: str) -> None:
    if len(key) > MAX_KEY_CHARACTERS:
        fix = f"Use at most {MAX_KEY_CHARACTERS} characters."
        raise BadField("key", f"has {len(key)} characters", fix)
    if key != key.strip() or not key.isprintable():
        fix = "Remove blanks at its ends and control characters."
        raise BadField("key", f"{key!r} can't be told apart when printed", fix)


def _read_own(row: Mapping[str, Any]) -> TaskSpec:
    fields.only(row, _OWN_FIELDS)
    key = fields.text(row, "key")
    kind = Kind(fields.chosen(row, "kind", among=tuple(Kind)))
    prompt = fields.text(row, "prompt")
    reference = fields.text(row, "reference") if row.get("reference") is not None else None
    return TaskSpec(
        key=key,
        prompt=prompt,
        kind=kind,
        checker=read_checker(fields.mapping(row, "checker"), kind=kind, reference=reference),
        gold_skills=fields.texts(row, "gold_skills"),
        reference=reference,
        tags=fields.texts(row, "tags"),
    )


_READERS: Mapping[Format, Callable[[Mapping[str, Any]], TaskSpec]] = {
    Format.OWN: _read_own,
    Format.EVALPLUS: benchmarks.read_evalplus,
    Format.HUMANEVAL: benchmarks.read_humaneval,
    Format.MBPP: benchmarks.read_mbpp,
    Format.MATH500: benchmarks.read_math500,
}


def _repeated(path: str, line: int, key: str, first: int, *, same: bool) -> Problem:
    return Problem(
        path=path,
        line=line,
        code=Code.IDENTICAL if same else Code.CONFLICTING,
        field="key",
        reason=f"{key!r} stands in line {first} too, "
        + ("with the same content: counted once" if same else "with other content: both left out"),
        fix="Remove one of the lines." if same else "Give one of them another key, or remove it.",
    )


def _empty(path: str) -> Problem:
    return Problem(
        path=path,
        line=0,
        code=Code.EMPTY,
        field="",
        reason="holds no task",
        fix="Write one JSON object a line; `manage.py new_tasks FILE` writes an example of each.",
    )
