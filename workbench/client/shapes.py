"""What the workbench answers, as frozen dataclasses.

Each is read from its JSON by name. What a newer server adds is left out; ``raw`` has everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One answer; ``raw`` is all that was answered."""

    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Self:
        """Return the answer ``raw`` read by name."""
        known = {one.name for one in fields(cls)} - {"raw"}
        read = {name: cls._read(name, raw[name]) for name in known if name in raw}
        return cls(raw=raw, **read)

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if value is not None and (name.endswith("_at") or name.endswith("_until")):
            return datetime.fromisoformat(value)
        return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class Progress(Shape):
    """How far an experiment is; None is unknown.

    ``waits`` holds the ``endpoint`` and ``until`` of what nothing is sent to now.
    """

    executions: int
    done: int
    dead: int
    running: int
    pending: int
    pairs: int
    pairs_done: int
    per_minute: float | None
    seconds_left: float | None
    failures: Mapping[str, int]
    usage: Mapping[str, Any]
    waits: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class Experiment(Shape):
    """One experiment; ``progress`` is None in lists."""

    uid: str
    slug: str
    status: str
    reason: str
    origin: str
    author: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    links: Mapping[str, str]
    progress: Progress | None = None

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        return Progress.of(value) if name == "progress" else super()._read(name, value)

    @property
    def ended(self) -> bool:
        """Whether it will never change again by itself or by a person."""
        return self.status in ("finished", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Problem(Shape):
    """One thing wrong with an experiment file, and its fix."""

    line: int | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Check(Shape):
    """What is wrong with a draft's file; its size where nothing is."""

    problems: Sequence[Problem]
    cells: int | None
    pairs: int | None

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if name == "problems":
            return tuple(Problem.of(one) for one in value)
        return super()._read(name, value)


@dataclass(frozen=True, kw_only=True)
class Draft(Shape):
    """One draft; ``toml``, ``check`` and ``estimate`` are left out in lists."""

    slug: str
    revision: int
    author: str | None
    created_at: datetime
    updated_at: datetime
    links: Mapping[str, str]
    toml: str = ""
    check: Check | None = None
    estimate: Mapping[str, Any] | None = None

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        return Check.of(value) if name == "check" else super()._read(name, value)


@dataclass(frozen=True, kw_only=True)
class Job(Shape):
    """Long work that was asked for; its state is pending, running, done or failed."""

    uid: str
    kind: str
    subject: str
    state: str
    finished: int = 0
    steps: int | None = None
    note: str = ""
    result: Any = None
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Export(Shape):
    """One export; ``file`` is its address once it is written."""

    uid: str
    kind: str
    format: str
    state: str
    problem: str
    rows: int | None
    bytes: int | None
    sha256: str | None
    file: str | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class ArmResult(Shape):
    """Whether an arm passed, or why it has no result."""

    passed: bool | None
    failure: str | None


@dataclass(frozen=True, kw_only=True)
class Pair(Shape):
    """One pair as the report counts it."""

    uid: str
    cell: str
    task: str
    replicate: int
    transition: str | None
    censored: bool
    pending: bool
    retrieved: bool | None
    skills: Sequence[str]
    se: ArmResult
    sd: ArmResult
    url: str

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        return ArmResult.of(value) if name in ("se", "sd") else super()._read(name, value)


@dataclass(frozen=True, kw_only=True)
class Person(Shape):
    """One person."""

    name: str
    email: str
    role: str | None
    state: str
    joined_at: datetime
    last_sign_in_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Invitation(Shape):
    """A one-time link, which is answered once."""

    name: str
    url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class Token(Shape):
    """One of your tokens, without its text."""

    uid: str
    name: str
    beginning: str
    scopes: Sequence[str]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
