"""What a task is: its prompt, how its answer is checked, and its identity by content.

Readers of task files are in ``taskfiles``, the suites that come with the
product in ``suites``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any


class Kind(StrEnum):
    """How an answer is judged; it decides the shape of ``TaskSpec.checker``."""

    CODE = "code"
    MATHS = "maths"
    EXACT = "exact"
    CHOICE = "choice"
    NUMBER = "number"


class CodeMode(StrEnum):
    """How a code task says what a right program does.

    ``inputs`` and ``asserts`` become ``cases`` once the reference solution has
    been run in the sandbox; ``asserts`` that can't be split stay as they are.
    """

    CASES = "cases"
    ASSERTS = "asserts"
    INPUTS = "inputs"


# The kind of a stored task that came with pushed runs: its answers were judged elsewhere, and
# there is nothing here to check them against. No task file may name it.
IMPORTED_KIND = "imported"


def names_imported(slug: str) -> bool:
    """Return whether tasks that came with pushed runs are kept under such a slug."""
    return slug == IMPORTED_KIND or slug.startswith(f"{IMPORTED_KIND}-")


@dataclass(frozen=True)
class TaskSpec:
    """One task as its author wrote it.

    Attributes:
        key: the author's name for it, unique in its file, such as ``mbpp/12``.
        prompt: what the model is shown, the same in both arms.
        checker: how the answer is judged; plain JSON, its fields depend on ``kind``.
        gold_skills: slugs of the skills that truly apply; none is a statement too.
        reference: a reply known to be right (for code: the program), or None.
        tags: free words, such as ``very_easy``.
    """

    key: str
    prompt: str
    kind: Kind
    checker: Mapping[str, Any] = field(hash=False)
    gold_skills: tuple[str, ...] = ()
    reference: str | None = None
    tags: tuple[str, ...] = ()

    @cached_property
    def sha256(self) -> str:
        """Return the hex sha256 of all seven fields: any edit makes another task.

        Expected values recorded later from the reference are not part of it:
        hash the task as it was read, so that recording changes no identity.
        """
        return content_sha256(
            {
                "key": self.key,
                "prompt": self.prompt,
                "kind": self.kind.value,
                "checker": self.checker,
                "gold_skills": self.gold_skills,
                "reference": self.reference,
                "tags": self.tags,
            }
        )


_CANONICAL = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)


def content_sha256(value: Any) -> str:
    """Return the hex sha256 of the canonical JSON of ``value`` (sorted keys, no spaces, UTF-8).

    Raises:
        ValueError: ``value`` holds NaN or an infinity.
        TypeError: ``value`` holds something JSON has no form for.
    """
    text = _CANONICAL.encode(value)
    # Task text may hold lone surrogates (JSON "\ud800"): they must hash, not crash.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def tasks_sha256(tasks: Iterable[TaskSpec]) -> str:
    """Return the hex sha256 of a set of tasks, whatever their order."""
    return content_sha256(sorted(task.sha256 for task in tasks))


# What ``task_values`` holds, in its order.
TASK_VALUES = (
    "key", "prompt", "kind", "checker", "gold_skills", "reference", "tags", "sha256",
)  # fmt: skip


def task_values(task: TaskSpec) -> list[Any]:
    """Return the task as plain JSON values from which ``task_of_values`` makes it again."""
    return [
        task.key,
        task.prompt,
        task.kind.value,
        task.checker,
        list(task.gold_skills),
        task.reference,
        list(task.tags),
        task.sha256,
    ]


def task_of_values(values: Sequence[Any]) -> TaskSpec:
    """Return the task of ``task_values``, whose hash is taken as it stands there."""
    key, prompt, kind, checker, gold_skills, reference, tags, sha256 = values
    task = TaskSpec(
        key=key,
        prompt=prompt,
        kind=Kind(kind),
        checker=checker,
        gold_skills=tuple(gold_skills),
        reference=reference,
        tags=tuple(tags),
    )
    # Hashing takes as long as all else of reading a task does.
    vars(task)["sha256"] = sha256
    return task


def reference_reply(task: TaskSpec) -> str | None:
    """Return a reply that a right checker must pass, or None when the task gives none.

    A code reference is fenced as a model would fence it. Where an answer needs
    no solution, the gold answer itself is the reply: it shows at least that the
    checker accepts its own answer.
    """
    if task.kind is Kind.CODE:
        return None if task.reference is None else _fenced(task.reference)
    if task.reference is not None:
        return task.reference
    return _boxed(_gold_answer(task))


def _gold_answer(task: TaskSpec) -> str:
    checker = task.checker
    if task.kind is Kind.MATHS:
        return str(checker["gold"])
    if task.kind is Kind.EXACT:
        return str(checker["answers"][0])
    if task.kind is Kind.CHOICE or "answer" in checker:
        return str(checker["answer"])
    return repr((checker["low"] + checker["high"]) / 2)


def _boxed(answer: str) -> str:
    return f"\\boxed{{{answer}}}"


def _fenced(program: str) -> str:
    longest = max((len(run) for run in program.split() if set(run) == {"`"}), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}python\n{program.rstrip()}\n{fence}\n"
