"""Run rows: one line for each run of an arm, read strictly and paired without a database.

A row is ``task, arm, replicate, outcome, score, retrieved, skill_ids, cell, model, agent,
tokens_in, tokens_out, duration_s, error_class, source``; only task and arm are required. It may
also bring what there is to read of the run: ``prompt``, ``answer``, ``queries``.
Nothing is guessed: a blank result is unknown, not wrong; an unreadable one is an error that
names its row; contradicting rows are listed, never averaged and never last-wins.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from runs.domain.intervals import TaskMeans
from runs.domain.render import unguarded
from runs.domain.report import CANCELLED, DEMONSTRATION, CellRecord, Failure, PairRecord


class Arm(StrEnum):
    """The arm codes; SE is the treatment, SD the baseline, whatever the design."""

    SE = "SE"
    SD = "SD"


@dataclass(frozen=True)
class RunRow:
    """One run of one arm.

    Attributes:
        line: where the row stands in its file, from 1; names it in errors.
        task: the task's key (``007`` and ``NA`` are keys like any other).
        arm: ``SE`` or ``SD``.
        replicate: number of the repetition; None = the data have no such column.
        outcome: whether the run passed; None = unknown.
        score: graded score, None = unknown; it decides nothing here.
        retrieved: whether a skill was returned to the run; None = unknown.
        cell: further description; rows of one description form a cell.
        error_class: why there is no outcome, as the source names it. With a kind of failed call
            or host an outcome of False is none.
        prompt: the task's text.
        answer: the reply of the run.
        queries: what the run searched for, in order.
    """

    line: int
    task: str
    arm: Arm
    replicate: int | None = None
    outcome: bool | None = None
    score: float | None = None
    retrieved: bool | None = None
    skill_ids: tuple[str, ...] = ()
    cell: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    agent: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    duration_s: float | None = None
    error_class: str | None = None
    source: str | None = None
    prompt: str | None = None
    answer: str | None = None
    queries: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Why a row can't be used: ``line`` (from 1), the column (None = the row) and the reason."""

    line: int
    column: str | None
    reason: str

    def __str__(self) -> str:
        where = f"row {self.line}" + (f", {self.column}" if self.column else "")
        return f"{where}: {self.reason}"


class BadRows(ValueError):
    """Some rows can't be read; ``problems`` has all of them, the message the first ten."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        shown = "\n".join(str(problem) for problem in problems[:10])
        more = f"\n... and {len(problems) - 10} more" if len(problems) > 10 else ""
        super().__init__(shown + more)
        self.problems = tuple(problems)


class UnmatchedReplicates(ValueError):
    """Runs repeat and nothing says which SE run belongs to which SD run.

    Attributes:
        counts: (task, SE runs, SD runs) of the tasks concerned, by task.
    """

    def __init__(self, counts: Sequence[tuple[str, int, int]]) -> None:
        shown = ", ".join(f"{task}: {se} SE and {sd} SD" for task, se, sd in counts[:10])
        more = f", and {len(counts) - 10} more tasks" if len(counts) > 10 else ""
        super().__init__(
            f"runs repeat but not every one has a replicate number, so they can't be paired "
            f"({shown}{more}). Give every run a number in the column replicate."
        )
        self.counts = tuple(counts)


# Of each list in a notice at most so many are named.
NAMED = 20
MOST_NOTICES, LONGEST_NOTICE = 50, 500


# --- reading ---------------------------------------------------------------------------------

# Other names under which the same columns are common.
ALIASES: Mapping[str, str] = {
    "condition": "arm",
    "correct": "outcome",
    "called": "retrieved",
    "raw_score": "score",
    "seed": "replicate",
    "trial": "replicate",
    "epoch": "replicate",
}

_BLANK = frozenset({"", "nan", "na", "n/a", "none", "null"})
_ONE_OR_ZERO = re.compile(r"[01](\.0*)?")
_WHOLE = re.compile(r"[+-]?\d{1,18}(\.0*)?")


def parse_bool(value: Any) -> bool | None:
    """Return a result written as true/false or 1/0 in any usual form; None where it is blank.

    Blank is None, NaN, or text such as empty, ``nan``, ``NA`` and ``null``.

    Raises:
        ValueError: any other spelling, such as ``maybe`` or 2.
    """
    if isinstance(value, bool):
        return value
    if _is_blank(value):
        return None
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("true", "false"):
            return text == "true"
        if _ONE_OR_ZERO.fullmatch(text):
            return text.startswith("1")
    raise ValueError(f"{value!r} is neither true nor false (use true, false, 1, 0 or blank)")


def parse_row(raw: Mapping[str, Any], *, line: int) -> RunRow:
    """Return the run row that ``raw`` describes; columns it doesn't know are ignored.

    Raises:
        BadRows: with one problem for each unusable column.
    """
    values, problems = _canonical_columns(raw, line)
    parsed: dict[str, Any] = {}
    for column, parse in _PARSERS.items():
        try:
            parsed[column] = parse(values.get(column))
        except ValueError as error:
            problems.append(Problem(line, column, str(error)))
    if problems:
        raise BadRows(problems)
    return RunRow(line=line, **parsed)


@dataclass(frozen=True)
class RowFile:
    """The rows of a file and the columns that were ignored, by name."""

    rows: tuple[RunRow, ...]
    ignored: tuple[str, ...]


def read_jsonl(lines: Iterable[str]) -> RowFile:
    """Return the rows of a JSONL file, one object a line; blank lines are skipped.

    Raises:
        BadRows: naming every line that isn't a usable row.
    """
    return _read(_json_objects(lines))


def read_csv(lines: Iterable[str]) -> RowFile:
    """Return the rows of a CSV file with a head line; text stays text (``007``, ``NA``).

    ``skill_ids`` is a JSON list or separated by ``;``; ``cell`` is a JSON object, and a column
    ``cell.NAME`` sets one key of it. The guard that exports put before formulas is taken off.

    Raises:
        BadRows: no or a repeated column name, or naming every unusable row.
    """
    return _read(_csv_objects(lines))


# --- pairing ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairRows:
    """The runs of one (task, replicate) by arm: none, one, or several that contradict."""

    task: str
    replicate: int
    se: tuple[RunRow, ...]
    sd: tuple[RunRow, ...]

    def of(self, arm: Arm) -> tuple[RunRow, ...]:
        return self.se if arm is Arm.SE else self.sd


@dataclass(frozen=True)
class CellRows:
    """The runs of one description, by task and replicate."""

    descriptor: Mapping[str, Any]
    pairs: tuple[PairRows, ...]


@dataclass(frozen=True)
class MatchedRows:
    """All runs, matched; ``repeated`` identical ones were dropped."""

    cells: tuple[CellRows, ...]
    repeated: int


def match_rows(*, rows: Iterable[RunRow]) -> MatchedRows:
    """Return the runs by cell, task, replicate and arm; identical repeats are dropped.

    Raises:
        UnmatchedReplicates: see ``pair_rows``.
    """
    cells: list[CellRows] = []
    repeated = 0
    for descriptor, of_cell in _by_cell(rows):
        _refuse_unmatched(of_cell)
        keyed: dict[tuple[str, int], dict[Arm, list[RunRow]]] = {}
        for row in of_cell:
            runs = keyed.setdefault((row.task, row.replicate or 0), {Arm.SE: [], Arm.SD: []})
            same = [other for other in runs[row.arm] if _same_run(row, other)]
            repeated += bool(same)
            if not same:
                runs[row.arm].append(row)
        pairs = tuple(
            PairRows(task, replicate, tuple(runs[Arm.SE]), tuple(runs[Arm.SD]))
            for (task, replicate), runs in sorted(keyed.items())
        )
        cells.append(CellRows(descriptor, pairs))
    return MatchedRows(tuple(cells), repeated)


@dataclass(frozen=True)
class Pairing:
    """The cells that rows make, and what had to be left out of them.

    Attributes:
        cells: by description. Half and conflicting pairs are in them without a result, so that
            they count as left out, never as wrong.
        conflicts: (task, arm, replicate) with rows that contradict each other.
        unpaired: (task, replicate) with runs of one arm only.
        repeated: how many identical repeats were dropped.
        said: what the rows themselves say that every reader must be told.
        cancelled: all of them are of an experiment that was cancelled.
    """

    cells: tuple[CellRecord, ...]
    conflicts: tuple[tuple[str, str, int], ...]
    unpaired: tuple[tuple[str, int], ...]
    repeated: int
    said: tuple[str, ...] = ()
    cancelled: bool = False


def pair_rows(*, rows: Iterable[RunRow]) -> Pairing:
    """Return pairs of the SE and the SD run of each (cell, task, replicate).

    Rows of one key that are equal but for their place and source count once; if they differ in
    anything else they conflict. The order of rows doesn't matter.

    Raises:
        UnmatchedReplicates: a task has several runs in an arm, or some, without a replicate
            number.
    """
    return pairing_of(match_rows(rows=rows))


def pairing_of(matched: MatchedRows) -> Pairing:
    """Return the cells as the report takes them, and what is left out of them."""
    pairs = [pair for cell in matched.cells for pair in cell.pairs]
    rows = [row for pair in pairs for row in (*pair.se, *pair.sd)]
    return Pairing(
        cells=tuple(
            CellRecord(cell.descriptor, tuple(map(_pair, cell.pairs))) for cell in matched.cells
        ),
        conflicts=tuple(
            (pair.task, str(arm), pair.replicate)
            for pair in pairs
            for arm in Arm
            if len(pair.of(arm)) > 1
        ),
        unpaired=tuple((pair.task, pair.replicate) for pair in pairs if not (pair.se and pair.sd)),
        repeated=matched.repeated,
        said=tuple(_said(rows)),
        cancelled=bool(rows) and all(CANCELLED in row.notices for row in rows),
    )


def _said(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yield each notice of the rows, with the tasks where it isn't said of all of them."""
    tasks: dict[str, set[str]] = {}
    counted: Counter[str] = Counter()
    for row in rows:
        for notice in set(row.notices):
            counted[notice] += 1
            tasks.setdefault(notice, set()).add(row.task)
    listed = sorted(counted.items())
    for notice, number in listed[:MOST_NOTICES]:
        if number == len(rows) or notice == DEMONSTRATION:
            yield notice
        else:
            yield f"{notice}: {_named(sorted(tasks[notice]))}"
    if len(listed) > MOST_NOTICES:
        yield f"notices of rows that are not listed here: {len(listed) - MOST_NOTICES}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"


def notices_of(*, ignored: Sequence[str], pairing: Pairing) -> list[str]:
    """Return what every reader of runs made elsewhere must be told, and what was left out."""
    listed = (
        ("columns that were not read", ignored),
        (
            "left out, rows contradict each other",
            [f"{task} {arm} replicate {n}" for task, arm, n in pairing.conflicts],
        ),
        (
            "left out, one arm only",
            [f"{task} replicate {n}" for task, n in pairing.unpaired],
        ),
    )
    notices = ["runs that were made elsewhere", *pairing.said]
    notices += [f"{what}: {_named(names)}" for what, names in listed if names]
    if pairing.repeated:
        notices.append(f"identical rows that were counted once: {pairing.repeated}")
    return notices


def arm_result(arm: Arm, runs: Sequence[RunRow]) -> tuple[bool | None, Failure | None]:
    """Return whether the arm of a pair passed, or None and why it has no result."""
    if arm is Arm.SD and len(runs) == 1 and runs[0].retrieved:
        return None, Failure.CONTAMINATED
    return _result(runs)


@dataclass(frozen=True)
class TaskMeansCell:
    """A cell whose runs are compared by task mean: ``means`` by task key."""

    descriptor: Mapping[str, Any]
    means: Mapping[str, TaskMeans]
    without_retrieved_run: tuple[str, ...]


def task_means(*, rows: Iterable[RunRow]) -> tuple[TaskMeansCell, ...]:
    """Return each task's retrieved SE runs against all its SD runs, whatever their number.

    For replicates that can't be matched one to one; the effect is then task-weighted. Runs
    without a result are left out; tasks with no retrieved SE run or no SD run are listed.
    """
    cells = []
    for descriptor, of_cell in _by_cell(rows):
        means, without = {}, []
        for task in sorted({row.task for row in of_cell}):
            known = [row for row in of_cell if row.task == task and row.outcome is not None]
            se = [row.outcome for row in known if row.arm is Arm.SE and row.retrieved]
            sd = [row.outcome for row in known if row.arm is Arm.SD and not row.retrieved]
            if se and sd:
                means[task] = TaskMeans(
                    se_right=sum(map(bool, se)),
                    se_runs=len(se),
                    sd_right=sum(map(bool, sd)),
                    sd_runs=len(sd),
                )
            else:
                without.append(task)
        cells.append(TaskMeansCell(descriptor, means, tuple(without)))
    return tuple(cells)


# --- parts of reading ------------------------------------------------------------------------


def _is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _BLANK
    return value is None or (isinstance(value, float) and math.isnan(value))


def _key(value: Any) -> str:
    # Keys are never blanked out by their spelling: NA and null are task names.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return _writable(value.strip())
    raise ValueError("a task key is required, as text")


def _writable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it holds half a character (a lone surrogate)") from None
    return text


def _arm(value: Any) -> Arm:
    try:
        return Arm(str(value).strip().upper())
    except ValueError:
        raise ValueError(f"{value!r} is no arm: SE (with skills) or SD (without)") from None


def _outcome(value: Any) -> bool | None:
    try:
        return parse_bool(value)
    except ValueError as error:
        raise ValueError(f"{error}; a graded result goes to score") from None


def _whole(value: Any) -> int | None:
    if _is_blank(value):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        return int(value.strip().split(".")[0])
    raise ValueError(f"{value!r} is not a whole number")


def _count(value: Any) -> int | None:
    number = _whole(value)
    if number is not None and number < 0:
        raise ValueError(f"{value!r} is below 0")
    return number


def _number(value: Any) -> float | None:
    if _is_blank(value):
        return None
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.inf
        if math.isfinite(number):
            return number
    raise ValueError(f"{value!r} is not a finite number")


def _text(value: Any) -> str | None:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return _writable(str(value))


def _skills(value: Any) -> tuple[str, ...]:
    if _is_blank(value):
        return ()
    if isinstance(value, str):
        if not value.lstrip().startswith("["):
            return tuple(part.strip() for part in value.split(";") if part.strip())
        value = _decoded(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(_writable(item) for item in value)
    raise ValueError("a list of skill ids is expected")


def _queries(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return (_writable(value),) if value else ()
    try:
        return _skills(value)
    except ValueError:
        raise ValueError("a list of search texts is expected") from None


def _notices(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) and value and not value.lstrip().startswith("["):
        value = [value]
    try:
        found = _skills(value)
    except ValueError:
        raise ValueError("a list of texts is expected") from None
    if len(found) > NAMED or any(len(text) > LONGEST_NOTICE for text in found):
        raise ValueError(f"at most {NAMED} texts of at most {LONGEST_NOTICE} characters")
    return found


def _cell(value: Any) -> dict[str, Any]:
    if value is None or value == "":
        return {}
    if isinstance(value, str):
        value = _decoded(value)
    if not isinstance(value, dict):
        raise ValueError("an object is expected")
    if not isinstance(value.get("design", ""), str):
        raise ValueError("its design is a text, such as se_sd")
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError):
        raise ValueError("it holds something that can't be written as JSON, such as NaN") from None
    return value


def _decoded(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [name for name, times in Counter(name for name, _ in pairs).items() if times > 1]
    if repeated:
        raise ValueError(f"{repeated[0]!r} stands twice in one object")
    return dict(pairs)


_PARSERS = {
    "task": _key,
    "arm": _arm,
    "replicate": _whole,
    "outcome": _outcome,
    "score": _number,
    "retrieved": parse_bool,
    "skill_ids": _skills,
    "cell": _cell,
    "model": _text,
    "agent": _text,
    "tokens_in": _count,
    "tokens_out": _count,
    "duration_s": _number,
    "error_class": _text,
    "source": _text,
    "prompt": _text,
    "answer": _text,
    "queries": _queries,
    "notices": _notices,
}


def _canonical_columns(raw: Mapping[str, Any], line: int) -> tuple[dict[str, Any], list[Problem]]:
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in raw.items():
        column = ALIASES.get(name, name)
        if column in values:
            problems.append(Problem(line, name, f"{column} is given under two names"))
        values[column] = value
    return values, problems


def _read(objects: Iterator[tuple[int, Mapping[str, Any] | str]]) -> RowFile:
    rows: list[RunRow] = []
    problems: list[Problem] = []
    ignored: set[str] = set()
    for line, found in objects:
        if isinstance(found, str):
            problems.append(Problem(line, None, found))
            continue
        ignored.update(name for name in found if ALIASES.get(name, name) not in _PARSERS)
        try:
            rows.append(parse_row(found, line=line))
        except BadRows as error:
            problems += error.problems
    if problems:
        raise BadRows(problems)
    return RowFile(tuple(rows), tuple(sorted(ignored)))


def _json_objects(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    for number, text in enumerate(lines, start=1):
        text = text.removeprefix("\ufeff") if number == 1 else text
        if not text.strip():
            continue
        try:
            found = _decoded(text)
        except ValueError as error:
            yield number, str(error)
            continue
        yield number, found if isinstance(found, dict) else "a JSON object is expected"


def _csv_objects(lines: Iterable[str]) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    reader = csv.reader(_without_mark(lines), strict=True)
    try:
        head = [name.strip() for name in next(reader, [])]
        repeated = [name for name, times in Counter(head).items() if times > 1]
        if not head or repeated:
            why = (
                f"the column {repeated[0]!r} stands twice" if repeated else "there is no head line"
            )
            yield 1, why
            return
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(head):
                yield reader.line_num, f"{len(cells)} cells where the head has {len(head)}"
                continue
            texts = map(unguarded, cells)
            yield reader.line_num, _with_cell_columns(dict(zip(head, texts, strict=True)))
    except csv.Error as error:
        yield reader.line_num, f"not CSV: {error}"


def _without_mark(lines: Iterable[str]) -> Iterator[str]:
    for number, text in enumerate(lines):
        yield text.removeprefix("\ufeff") if number == 0 else text


def _with_cell_columns(found: dict[str, Any]) -> Mapping[str, Any] | str:
    parts = {name: found.pop(name) for name in list(found) if name.startswith("cell.")}
    if not parts:
        return found
    try:
        cell = _cell(found.get("cell"))
    except ValueError as error:
        return f"cell: {error}"
    named = {name.removeprefix("cell."): value for name, value in parts.items() if value != ""}
    return found | {"cell": cell | named}


# --- parts of pairing ------------------------------------------------------------------------

# Error classes that mean a single model call failed; what else has no result is never scored.
_CALL_FAILURES = frozenset(
    {"call", "transport", "timeout", "rate_limited", "server_error", "incomplete", "bad_request"}
)
_HOST_FAILURES = frozenset({"host", "infra_error", "sandbox"})
# These can also be said of a program that was checked, whose outcome 0 then is a result.
_OF_PROGRAMS_TOO = frozenset({"timeout", "incomplete"})
# What the workbench itself writes into the runs that it exports.
_AS_REPORTED = frozenset({Failure.PENDING, Failure.UNEQUAL_PARAMETERS, Failure.CONFLICT})
_NEVER_A_RESULT = (_CALL_FAILURES | _HOST_FAILURES) - _OF_PROGRAMS_TOO


def _by_cell(rows: Iterable[RunRow]) -> list[tuple[dict[str, Any], list[RunRow]]]:
    found: dict[str, tuple[dict[str, Any], list[RunRow]]] = {}
    for row in rows:
        named = {"model": row.model, "agent": row.agent}
        descriptor = {name: value for name, value in named.items() if value is not None}
        descriptor |= row.cell
        key = json.dumps(descriptor, sort_keys=True, ensure_ascii=False)
        found.setdefault(key, (descriptor, []))[1].append(row)
    return [found[key] for key in sorted(found)]


def _refuse_unmatched(rows: Sequence[RunRow]) -> None:
    numbered: dict[str, set[bool]] = {}
    runs: Counter[tuple[str, Arm]] = Counter()
    for row in rows:
        numbered.setdefault(row.task, set()).add(row.replicate is not None)
        runs[row.task, row.arm] += 1
    unmatched = [
        (task, runs[task, Arm.SE], runs[task, Arm.SD])
        for task, states in sorted(numbered.items())
        if False in states and max(runs[task, Arm.SE], runs[task, Arm.SD]) > 1
    ]
    if unmatched:
        raise UnmatchedReplicates(unmatched)


def _same_run(one: RunRow, other: RunRow) -> bool:
    return _content(one) == _content(other)


def _content(row: RunRow) -> tuple[object, ...]:
    return (
        row.outcome,
        row.score,
        row.retrieved,
        row.skill_ids,
        row.tokens_in,
        row.tokens_out,
        row.duration_s,
        row.error_class,
        row.answer,
        row.queries,
    )


def _pair(found: PairRows) -> PairRecord:
    se, se_failure = arm_result(Arm.SE, found.se)
    sd, sd_failure = arm_result(Arm.SD, found.sd)
    only = found.se[0] if len(found.se) == 1 else None
    return PairRecord(
        pair=f"{found.task}#{found.replicate}",
        task=found.task,
        replicate=found.replicate,
        retrieved=only.retrieved if only else None,
        se=se,
        sd=sd,
        skills=only.skill_ids if only else (),
        se_failure=se_failure,
        sd_failure=sd_failure,
    )


def _result(runs: Sequence[RunRow]) -> tuple[bool | None, Failure | None]:
    if not runs:
        return None, Failure.MISSING
    if len(runs) > 1:
        return None, Failure.CONFLICT
    row = runs[0]
    if row.outcome is None and row.error_class in _AS_REPORTED:
        return None, Failure(row.error_class)
    # Many harnesses write 0 where a call or the host failed: that is no answer that was wrong.
    if row.outcome is not None and (row.outcome or row.error_class not in _NEVER_A_RESULT):
        return row.outcome, None
    if row.error_class in _CALL_FAILURES:
        return None, Failure.CALL
    return None, Failure.HOST if row.error_class in _HOST_FAILURES else Failure.NO_RESULT
