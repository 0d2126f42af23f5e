"""Use cases about task files: load them, check their references, write a first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from runs.domain.checking import Verdict
from runs.domain.suites import SUITE_NAMES, Suite, load_suite, load_task_file
from runs.domain.taskfiles import Format
from runs.domain.tasks import CodeMode, Kind, TaskSpec, reference_reply
from runs.domain.template import TEMPLATE
from runs.sandbox.grader import Grader, HostFailed, ReferenceFailed


class UnknownSource(LookupError):
    """A source is neither a suite's name nor an existing file."""

    def __init__(self, source: str) -> None:
        super().__init__(
            f"{source!r} is neither a suite ({', '.join(SUITE_NAMES)}) nor a file. "
            "Check the path, or write a new file with `manage.py new_tasks FILE`."
        )
        self.source = source


class TemplateExists(FileExistsError):
    """The file to be written is there already; it is left as it is."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} exists and is left as it is. Choose another name.")
        self.path = path


def suite_load(*, source: str, format: Format | None = None) -> Suite:
    """Return a suite by name, or the tasks of the file ``source``.

    A suite's name wins over a file of the same name; ``./name`` means the file.

    Raises:
        UnknownSource: neither a suite nor a file.
        InvalidTaskFile: the file has problems, all of which the exception holds.
    """
    if source in SUITE_NAMES and format is None:
        return load_suite(source)
    path = Path(source)
    if not path.exists():
        raise UnknownSource(source)
    return load_task_file(path, name=path.name.split(".")[0], format=format)


def template_write(*, path: Path) -> None:
    """Write a commented example of every kind of task to the new file ``path``.

    Raises:
        TemplateExists: ``path`` exists.
        OSError: its folder is missing or can't be written to.
    """
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(TEMPLATE)
    except FileExistsError:
        raise TemplateExists(path) from None


class ReferenceState(StrEnum):
    """What came of grading a task's own reference."""

    PASSED = "passed"
    FAILED = "failed"
    NO_REFERENCE = "no_reference"
    NOT_GRADED = "not_graded"


@dataclass(frozen=True)
class ReferenceCheck:
    """One task's reference, graded.

    Attributes:
        verdict: the grader's, or None without a grading.
        message: why it isn't passed, one line; empty otherwise.
        in_process: the check ran beside the program, because it can't be split into cases.
        checker: what answers are checked against from now on: the task's own checker, with
            its expected values recorded where the reference had to give them.
    """

    key: str
    state: ReferenceState
    verdict: str | None = None
    message: str = ""
    in_process: bool = False
    checker: Mapping[str, Any] = field(default_factory=dict)


def references_check(*, suite: Suite, grader: Grader) -> Iterator[ReferenceCheck]:
    """Yield, task by task, whether the task's checker passes the task's own reference.

    Asserts and bare inputs are turned into cases first, as they are before an
    experiment: so a task that can't be recorded is found here too.

    Raises:
        NoIsolation: a task is code and nothing here can isolate it.
    """
    for task in suite.tasks:
        yield reference_check(task=task, comparator=suite.comparator, grader=grader)


def reference_check(*, task: TaskSpec, comparator: str, grader: Grader) -> ReferenceCheck:
    """Return whether the task's checker passes the task's own reference; see above.

    Args:
        comparator: how values are compared where the task doesn't say.
    """
    checker = task.checker
    if task.kind is Kind.CODE:
        checker = {"comparator": comparator, **checker}
    reply = reference_reply(task)
    if reply is None:
        return ReferenceCheck(task.key, ReferenceState.NO_REFERENCE, checker=checker)
    if task.kind is Kind.CODE and checker["mode"] != CodeMode.CASES:
        return _recorded(task, checker, grader)
    result = grader.grade(kind=task.kind.value, checker=checker, reply=reply)
    state = _STATES.get(result.verdict, ReferenceState.FAILED)
    message = "" if state is ReferenceState.PASSED else _reason(result.details)
    return ReferenceCheck(task.key, state, result.verdict.value, message, checker=checker)


def _recorded(task: TaskSpec, checker: Mapping[str, Any], grader: Grader) -> ReferenceCheck:
    """Return the check of a task by asserts or inputs; recording it grades the reference."""
    try:
        payload = grader.record_cases(checker=checker, reference=task.reference or "")
    except ReferenceFailed as error:
        return ReferenceCheck(task.key, ReferenceState.FAILED, message=_one_line(str(error)))
    except HostFailed as error:
        return ReferenceCheck(
            task.key,
            ReferenceState.NOT_GRADED,
            verdict=Verdict.INFRA_ERROR.value,
            message=_one_line(str(error)),
        )
    return ReferenceCheck(
        task.key,
        ReferenceState.PASSED,
        verdict=Verdict.PASS.value,
        in_process=payload.get("checker_isolation") == "in_process",
        checker=payload,
    )


def _reason(details: Mapping[str, Any]) -> str:
    """Return in one line why a grade is no pass, with the first case that failed."""
    reason = str(details.get("message") or f"answered {details.get('answer')!r}")
    case = details.get("case")
    if case:
        got = f", got {case['got']}" if "got" in case else ""
        reason = f"{case['input']}: {reason} (expected {case['expected']}{got})"
    return _one_line(reason)


_STATES = {
    Verdict.PASS: ReferenceState.PASSED,
    Verdict.INFRA_ERROR: ReferenceState.NOT_GRADED,
}


def _one_line(text: str) -> str:
    return " ".join(text.split())
