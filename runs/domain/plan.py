"""The experiment file: what it may say, and how it unfolds into cells.

The file is TOML, schema 1. A list in a cell's ``control``, ``k``, ``types``,
``temperature`` or another plan key makes the product of its values.
"""

from __future__ import annotations

import itertools
import math
import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from runs.domain.filetext import (
    MOST_PROBLEMS,
    Problem,
    Unreadable,
    lines_of,
    read_toml,
)

# Both presets run the paper's protocol; "paper" also takes its reading of failed
# calls, and its intervals in the report.
FAILURE_POLICY_OF = {"paper": "incorrect", "default": "censor"}
CONTROLS = ("normal", "schema_empty")
LATER_CONTROLS = ("filler_dummy", "random_skills", "corrupted")
DESIGNS = ("se_sd",)
LATER_DESIGNS = ("aa", "target", "leave_one_out")
STRATEGIES = ("search",)
LATER_STRATEGIES = (
    "direct",
    "full_injection",
    "llm_selection",
    "progressive",
    "oracle",
    "target",
    "skillapt",
)
RETRIEVERS = ("bm25plus", "bm25okapi", "bm25l")
DIALECTS = ("native", "json_action")
SKILL_TYPES = ("utility", "procedure", "guard")
# The base_url of the small model that the product serves itself.
EMBEDDED = "embedded"
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\Z")
LONGEST_SLUG = 100
LONGEST_NAME = 200
LONGEST_TEXT = 4_000
# A file is refused beyond these; no study comes near them, and checking stays quick.
MOST_TABLES = 200
MOST_CELLS = 1_000
# Pages of their own stand at these addresses below /experiments/.
RESERVED_SLUGS = ("compare", "drafts", "new", "push")


class InvalidExperiment(Exception):
    """The experiment file can't be used; ``problems`` names every place and fix."""

    def __init__(self, path: str, problems: Sequence[Problem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        super().__init__(
            "\n".join(
                f"{path}:{p.line}: {p.message}" if p.line else f"{path}: {p.message}"
                for p in problems
            )
        )


@dataclass(frozen=True)
class ModelSpec:
    """One model at one endpoint.

    Attributes:
        price_in, price_out: per million tokens; None is unknown.
        timeout_s: seconds to wait for a reply to arrive; None is the adapter's own patience.
        requests_per_minute: most requests of all workers together; None is no limit.
    """

    id: str
    base_url: str
    api_key_env: str | None = None
    dialect: str = "native"
    price_in: float | None = None
    price_out: float | None = None
    timeout_s: float | None = None
    requests_per_minute: int | None = None

    @property
    def endpoint(self) -> str:
        """The endpoint's label: scheme, host and path of its URL, nothing secret."""
        parts = urlsplit(self.base_url)
        if not parts.hostname:  # embedded, or a recording
            return self.base_url.partition("?")[0]
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{parts.hostname}{port}{parts.path}".rstrip("/")


def url_fault(base_url: str) -> str | None:
    """Return what keeps ``base_url`` from being stored and shown, or None.

    A URL stands in rows, reports and pages, so it must hold no secret.
    """
    try:
        parts = urlsplit(base_url)
        _ = parts.port
    except ValueError:  # its text quotes the URL
        return "base_url is no URL; check its host and port"
    if parts.scheme in ("http", "https"):
        if not parts.hostname:
            return "base_url names no host"
        if "@" in parts.netloc or parts.query or parts.fragment or ";" in parts.path:
            return (
                "base_url may hold host, port and path only; a key belongs in an environment "
                "variable, whose name goes into api_key_env"
            )
    return None


@dataclass(frozen=True)
class BenchmarkSpec:
    """A suite (a name or a file) and the partition to run; no size means all of it."""

    suite: str
    size: int | None = None
    seed: int = 42


@dataclass(frozen=True)
class CellSpec:
    """One unfolded cell entry, before models and benchmarks are applied to it."""

    library: str
    design: str = "se_sd"
    control: str = "normal"
    strategy: str = "search"
    types: tuple[str, ...] | None = None
    k: int = 3
    retriever: str = "bm25plus"
    max_searches: int = 3
    temperature: float = 0.7
    max_tokens: int = 8192


@dataclass(frozen=True)
class Budget:
    """Caps at which a running experiment pauses; None is no cap."""

    cost: float | None = None
    tokens: int | None = None
    calls: int | None = None


@dataclass(frozen=True)
class ExperimentSpec:
    """A whole experiment file, checked and unfolded."""

    slug: str
    models: tuple[ModelSpec, ...]
    benchmarks: tuple[BenchmarkSpec, ...]
    cells: tuple[CellSpec, ...]
    preset: str = "default"
    seed: int = 42
    replicates: int = 1
    failure_policy: str = "censor"
    budget: Budget = Budget()
    queue_flips: bool = False
    analysis: Mapping[str, Any] = field(default_factory=dict)

    @property
    def embedded(self) -> bool:
        """Whether one of the models is the one that the product serves itself."""
        return any(model.base_url == EMBEDDED for model in self.models)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that is stored and hashed."""
        return asdict(self)


def from_json(stored: Mapping[str, Any]) -> ExperimentSpec:
    """Return the spec that ``ExperimentSpec.to_json`` stored."""
    return ExperimentSpec(
        **{
            **stored,
            "models": tuple(ModelSpec(**m) for m in stored["models"]),
            "benchmarks": tuple(BenchmarkSpec(**b) for b in stored["benchmarks"]),
            "cells": tuple(
                CellSpec(**{**c, "types": tuple(c["types"]) if c["types"] else None})
                for c in stored["cells"]
            ),
            "budget": Budget(**stored["budget"]),
        }
    )


@dataclass(frozen=True)
class ArmSpec:
    """Everything that decides what one arm does; equal specs may share an execution.

    The baseline of a cell has no library, so that one SD execution serves
    every cell that differs only in what SE is offered.

    Attributes:
        imported: of an arm that ran elsewhere its code (``arm``) and what its run rows say of
            it (``cell``). What rows don't say is then None: nothing is guessed.
    """

    model: str | None
    endpoint: str | None
    dialect: str | None
    benchmark: str
    benchmark_sha256: str
    partition_sha256: str
    prompt_sha256: str | None
    temperature: float | None
    max_tokens: int | None
    strategy: str | None
    library_sha256: str | None = None
    control: str | None = None
    k: int | None = None
    types: tuple[str, ...] | None = None
    retriever: str | None = None
    tokeniser: str | None = None
    max_searches: int = 0
    schema: int = 1
    imported: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def exposed(self) -> bool:
        """Whether the model is offered skills at all."""
        return self.library_sha256 is not None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form whose canonical text is hashed."""
        stored = {**asdict(self), "types": list(self.types) if self.types else None}
        if self.imported is None:  # arms that run here keep the identity they always had
            del stored["imported"]
        return stored


def arm_from_json(stored: Mapping[str, Any]) -> ArmSpec:
    """Return the arm spec that ``ArmSpec.to_json`` stored."""
    return ArmSpec(**{**stored, "types": tuple(stored["types"]) if stored["types"] else None})


# --- reading the file --------------------------------------------------------


@dataclass(frozen=True)
class _Key:
    """What one key may hold."""

    kinds: tuple[type, ...]
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    product: bool = False


_NUMBER = (int, float)
_TOP = {
    "schema": _Key((int,), low=1, high=1),
    "slug": _Key((str,)),
    "preset": _Key((str,), choices=tuple(FAILURE_POLICY_OF)),
    "seed": _Key((int,), low=0, high=2**31 - 1),
    "replicates": _Key((int,), low=1, high=100),
    "failure_policy": _Key((str,), choices=("censor", "incorrect")),
    "queue_flips": _Key((bool,)),
    "agent": _Key((str,), choices=("chat",)),
}
_BUDGET = {
    "cost": _Key(_NUMBER, low=0),
    "tokens": _Key((int,), low=1),
    "calls": _Key((int,), low=1),
}
_MODEL = {
    "id": _Key((str,)),
    "base_url": _Key((str,)),
    "api_key_env": _Key((str,)),
    "dialect": _Key((str,), choices=DIALECTS),
    "price_in": _Key(_NUMBER, low=0),
    "price_out": _Key(_NUMBER, low=0),
    "timeout_s": _Key(_NUMBER, low=1, high=3600),
    "requests_per_minute": _Key((int,), low=1),
}
_BENCHMARK = {"suite": _Key((str,))}
_PARTITION = {
    "size": _Key((int,), low=1, high=1_000_000),
    "seed": _Key((int,), low=0, high=2**31 - 1),
}
_CELL = {
    "design": _Key((str,), choices=DESIGNS, later=LATER_DESIGNS, product=True),
    "library": _Key((str,), product=True),
    "control": _Key((str,), choices=CONTROLS, later=LATER_CONTROLS, product=True),
    "strategy": _Key((str,), choices=STRATEGIES, later=LATER_STRATEGIES, product=True),
    "k": _Key((int,), low=1, high=50, product=True),
    "retriever": _Key((str,), choices=RETRIEVERS, product=True),
    "max_searches": _Key((int,), low=1, high=20, product=True),
    "temperature": _Key(_NUMBER, low=0, high=2, product=True),
    "max_tokens": _Key((int,), low=1, high=1_000_000, product=True),
}
_ANALYSIS = {
    "inference": _Key((str,), choices=("fixed_n",), later=("sequential",)),
}
_LATER_KEYS = {
    "skills": "the designs target and leave_one_out",
    "family": "cell verdicts",
    "threshold": "cell verdicts",
    "delta": "cell verdicts",
}


def parse_experiment(
    text: str, *, path: str, configured: Sequence[ModelSpec] = ()
) -> ExperimentSpec:
    """Return the experiment that the TOML ``text`` describes.

    Args:
        configured: models whose dialect, prices and limits hold where the file names none.

    Raises:
        InvalidExperiment: naming each wrong place of ``path`` by line, and its fix.
    """
    try:
        data = read_toml(text)
    except Unreadable as error:
        raise InvalidExperiment(path, error.problems) from error
    reader = _Reader(text, configured)
    spec = reader.experiment(data)
    if reader.problems:
        raise InvalidExperiment(path, sorted(reader.problems, key=lambda p: p.line or 0))
    assert spec is not None
    return spec


def slug_fault(slug: object) -> str | None:
    """Return what keeps ``slug`` from naming an experiment, or None."""
    if not isinstance(slug, str) or not SLUG.match(slug):
        return "slug must be words of a-z and 0-9 joined by hyphens"
    if len(slug) > LONGEST_SLUG:
        return f"slug may have {LONGEST_SLUG} characters, not {len(slug)}"
    if slug in RESERVED_SLUGS:
        return f"slug may not be '{slug}', which is the address of another page; choose another"
    return None


def line_of(text: str, *, table: str, index: int = 0, key: str | None = None) -> int | None:
    """Return the line of a key in an experiment file, from 1, or None where it isn't.

    Args:
        table: ``model``, ``benchmark`` and so on; empty for the top of the file.
        index: which of the ``[[table]]`` entries, from 0.
        key: None for the entry's own head.
    """
    return lines_of(text).of(table, index, key)


def named_in(text: str, *, table: str, key: str) -> list[tuple[str, int | None]]:
    """Return every name that ``key`` gives in the ``[[table]]`` entries, with its line.

    Args:
        text: an experiment file that ``parse_experiment`` accepts.
    """
    lines = lines_of(text)
    return [
        (name, lines.of(table, index, key))
        for index, entry in enumerate(read_toml(text)[table])
        for name in (entry[key] if isinstance(entry[key], list) else [entry[key]])
    ]


class _Reader:
    """Collects every problem of a file instead of stopping at the first."""

    def __init__(self, text: str, configured: Sequence[ModelSpec]) -> None:
        self._lines = lines_of(text)
        self._configured = {(m.id, m.base_url.rstrip("/")): m for m in configured}
        self._cells_so_far = 0
        self.problems: list[Problem] = []

    def experiment(self, data: Mapping[str, Any]) -> ExperimentSpec | None:
        tables = ("budget", "model", "benchmark", "cell", "analysis")
        top = self._table({k: v for k, v in data.items() if k not in tables}, _TOP, "", also=tables)
        if "schema" not in data:
            self._problem(None, "the key 'schema' is missing; write schema = 1")
        slug = top.get("slug", "")
        # One that is no text is told already.
        if ("slug" in top or "slug" not in data) and (fault := slug_fault(slug)):
            self._problem(self._line("", 0, "slug"), fault)
        preset = top.get("preset", "default")
        budget = self._table(self._mapping(data, "budget"), _BUDGET, "budget")
        analysis = self._table(self._mapping(data, "analysis"), _ANALYSIS, "analysis")
        given = [self._as_configured(table) for table in self._tables(data, "model")]
        models = [self._model(t, i) for i, t in enumerate(given)]
        benchmarks = [self._benchmark(t, i) for i, t in enumerate(self._tables(data, "benchmark"))]
        cells = [
            cell
            for i, table in enumerate(self._tables(data, "cell"))
            for cell in self._cells(table, i)
        ]
        # Those that lack what they are known by are told already.
        self._no_repeats(
            "model", [(m.id, m.endpoint) if m.id and m.base_url else None for m in models]
        )
        self._no_repeats("benchmark", [one if one.suite else None for one in benchmarks])
        if "cost" in budget and any(
            not {"price_in", "price_out"} <= table.keys() for table in given
        ):
            self._problem(
                self._line("budget", 0, "cost"),
                "a cost budget needs price_in and price_out of every model",
            )
        if self.problems:
            return None
        return ExperimentSpec(
            slug=slug,
            models=tuple(models),
            benchmarks=tuple(benchmarks),
            cells=tuple(dict.fromkeys(cells)),
            preset=preset,
            seed=top.get("seed", 42),
            replicates=top.get("replicates", 1),
            failure_policy=top.get("failure_policy", FAILURE_POLICY_OF[preset]),
            budget=Budget(**budget),
            queue_flips=top.get("queue_flips", False),
            analysis=analysis,
        )

    def _as_configured(self, table: dict[str, Any]) -> dict[str, Any]:
        """Return a model entry with what is configured and it doesn't name itself."""
        identity = (str(table.get("id")), str(table.get("base_url")).rstrip("/"))
        known = {
            key: getattr(self._configured.get(identity), key, None)
            for key in ("dialect", "price_in", "price_out", "timeout_s", "requests_per_minute")
        }
        return {**{key: value for key, value in known.items() if value is not None}, **table}

    def _no_repeats(self, name: str, identities: Sequence[object]) -> None:
        for index, identity in enumerate(identities):
            if identity is not None and identity in identities[:index]:
                self._problem(
                    self._line(name, index), f"this [[{name}]] repeats an earlier one; remove it"
                )

    def _model(self, table: dict[str, Any], index: int) -> ModelSpec:
        values = self._table(table, _MODEL, "model", index)
        for required in ("id", "base_url"):
            if required not in table:
                self._problem(self._line("model", index), f"[[model]] needs the key '{required}'")
        if fault := url_fault(values.get("base_url", "")):
            self._problem(self._line("model", index, "base_url"), fault)
            del values["base_url"]
        return ModelSpec(**{"id": "", "base_url": "", **values})

    def _benchmark(self, table: dict[str, Any], index: int) -> BenchmarkSpec:
        values = self._table(
            {k: v for k, v in table.items() if k != "partition"},
            _BENCHMARK,
            "benchmark",
            index,
            also=("partition",),
        )
        if "suite" not in table:
            self._problem(
                self._line("benchmark", index),
                "[[benchmark]] needs the key 'suite': a suite's name or a task file",
            )
        partition = table.get("partition", {})
        if not isinstance(partition, dict):
            self._problem(
                self._line("benchmark", index, "partition"),
                "partition must be a table like { size = 80, seed = 42 }",
            )
            partition = {}
        return BenchmarkSpec(
            suite=str(values.get("suite", "")),
            **self._table(partition, _PARTITION, "benchmark", index, shown="partition"),
        )

    def _cells(self, table: dict[str, Any], index: int) -> list[CellSpec]:
        types = self._types(table, index)
        values = self._table(
            {k: v for k, v in table.items() if k != "types"}, _CELL, "cell", index, also=("types",)
        )
        if "library" not in table:
            self._problem(
                self._line("cell", index), "[[cell]] needs the key 'library': a library's slug"
            )
        if self.problems:
            return []
        choices = {k: v if isinstance(v, list) else [v] for k, v in values.items()}
        cells = math.prod(map(len, [types, *choices.values()]))
        if cells > MOST_CELLS:
            self._problem(
                self._line("cell", index),
                f"the lists of this [[cell]] make {cells:,} cells; at most {MOST_CELLS:,} may be",
            )
            return []
        self._cells_so_far += cells
        if self._cells_so_far > MOST_CELLS:
            self._problem(
                self._line("cell", index),
                f"with this [[cell]] the file makes {self._cells_so_far:,} cells; at most "
                f"{MOST_CELLS:,} may be",
            )
            return []
        return [
            CellSpec(types=t, **dict(zip(choices, combination, strict=True)))
            for combination in itertools.product(*choices.values())
            for t in types
        ]

    def _types(self, table: dict[str, Any], index: int) -> list[tuple[str, ...] | None]:
        """A list of types is one filter; a list of lists is a product of filters."""
        given = table.get("types")
        if given is None:
            return [None]
        filters = (
            given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
        )
        good = all(
            isinstance(one, list) and one and all(t in SKILL_TYPES for t in one) for one in filters
        )
        if not good:
            self._problem(
                self._line("cell", index, "types"),
                f"types must be a list of {', '.join(SKILL_TYPES)}, or a list of such lists",
            )
            return [None]
        return [tuple(sorted(set(one))) for one in filters]

    # one table against its keys

    def _table(
        self,
        table: Mapping[str, Any],
        keys: Mapping[str, _Key],
        name: str,
        index: int = 0,
        *,
        also: tuple[str, ...] = (),
        shown: str = "",
    ) -> dict[str, Any]:
        """Return the values that may be; what is wrong with the others is told."""
        values = {}
        for key, value in table.items():
            line = self._line(name, index, shown or key)
            if key not in keys:
                where = f"[{shown or name}]" if shown or name else "the top of the file"
                if key in _LATER_KEYS:
                    self._problem(
                        line, f"'{key}' belongs to {_LATER_KEYS[key]}, not built yet; remove it"
                    )
                else:
                    known = ", ".join((*keys, *also))
                    self._problem(
                        line, f"unknown key {brief(key)} in {where}; it may hold: {known}"
                    )
                continue
            rule = keys[key]
            several = value if rule.product and isinstance(value, list) and value else [value]
            faults = [fault for one in several if (fault := _fault(key, one, rule))]
            for fault in faults[:MOST_PROBLEMS]:
                self._problem(line, fault)
            if not faults:  # else the default stands in, so that nothing later trips over it
                values[key] = value
        return values

    def _mapping(self, data: Mapping[str, Any], name: str) -> dict[str, Any]:
        value = data.get(name, {})
        if isinstance(value, dict):
            return value
        self._problem(self._line("", 0, name), f"'{name}' must be a table")
        return {}

    def _tables(self, data: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
        value = data.get(name, [])
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value) or not value:
            self._problem(
                self._line(name, 0), f"at least one [[{name}]] table is needed (two brackets)"
            )
            return []
        if len(value) > MOST_TABLES:
            self._problem(None, f"{len(value)} [[{name}]] tables are more than {MOST_TABLES}")
            return []
        return value

    def _problem(self, line: int | None, message: str) -> None:
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(line, message))

    def _line(self, table: str, index: int, key: str | None = None) -> int | None:
        return self._lines.of(table, index, key)


def brief(value: Any) -> str:
    """Return a value as a message shows it; nobody reads the whole of a long one."""
    return _BRIEF.repr(value)


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 80


def _fault(key: str, value: Any, rule: _Key) -> str | None:
    """Return what is wrong with one value, or None."""
    if isinstance(value, bool) != (bool in rule.kinds) or not isinstance(value, rule.kinds):
        wanted = " or ".join(
            {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}[
                kind.__name__
            ]
            for kind in rule.kinds
        )
        return f"'{key}' must be {wanted}, not {brief(value)}"
    if value in rule.later:
        return f"'{value}' is a known {key} that is not built yet; use {', '.join(rule.choices)}"
    if rule.choices and value not in rule.choices:
        return f"'{key}' must be one of {', '.join(rule.choices)}, not {brief(value)}"
    if isinstance(value, str) and not value.strip():
        return f"'{key}' is blank"
    if isinstance(value, str):
        longest = LONGEST_NAME if key in ("id", "base_url") else LONGEST_TEXT
        if "\0" in value or len(value) > longest:
            return f"'{key}' may hold {longest:,} characters and no NUL"
    if isinstance(value, int | float):
        if rule.low is not None and value < rule.low:
            return f"'{key}' must be at least {rule.low:g}, not {value!r}"
        if rule.high is not None and value > rule.high:
            return f"'{key}' must be at most {rule.high:g}, not {value!r}"
    return None
