"""Experiment files that are written by form: from what was typed to TOML and back.

The file is the truth. A form is one view of it, for files that use no more than it can show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tomli_w

from runs.domain import filetext
from runs.domain.filetext import Unreadable, read_toml
from runs.domain.plan import (
    CellSpec,
    ExperimentSpec,
    ModelSpec,
    brief,
    line_of,
)

HEAD = "# Written by the workbench; docs/experiments.md explains every key.\n"
MOST_GROUPS = 20
LONGEST_COMMENTED = 1_000

TOP = ("slug", "preset", "replicates", "seed", "failure_policy")
BUDGET = ("cost", "tokens", "calls")
MODEL = (
    "endpoint",
    "id",
    "dialect",
    "price_in",
    "price_out",
    "timeout_s",
    "requests_per_minute",
)
BENCHMARK = ("suite", "size", "seed")
CELL = (
    "library",
    "control",
    "types",
    "k",
    "retriever",
    "max_searches",
    "temperature",
    "max_tokens",
)
GROUPS: Mapping[str, tuple[str, ...]] = {"model": MODEL, "benchmark": BENCHMARK, "cell": CELL}
# What a group is told of as a whole: its place is that of its first needed field.
_NEEDED = {"model": "id", "benchmark": "suite", "cell": "library"}
_SEVERAL = ("control", "types")  # boxes to tick, of which several may be
_LISTS = ("k", "max_searches", "temperature", "max_tokens")  # values with commas between
_WHOLE = ("replicates", "seed", "tokens", "calls", "size", "k", "max_searches", "max_tokens")
_WHOLE_TOO = ("requests_per_minute",)
_NUMBERS = ("cost", "price_in", "price_out", "timeout_s", "temperature")

Group = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class EndpointChoice:
    """A configured endpoint, as a form offers it."""

    name: str
    base_url: str
    api_key_env: str | None = None
    models: tuple[ModelSpec, ...] = ()


@dataclass(frozen=True)
class DraftForm:
    """What was typed, as it was typed; the values of every field are a tuple of texts."""

    top: Group
    models: tuple[Group, ...]
    benchmarks: tuple[Group, ...]
    cells: tuple[Group, ...]

    def groups(self, name: str) -> tuple[Group, ...]:
        """Return the groups of ``model``, ``benchmark`` or ``cell``."""
        return {"model": self.models, "benchmark": self.benchmarks, "cell": self.cells}[name]

    def having(self, name: str, groups: Sequence[Group]) -> DraftForm:
        """Return this form with other groups of one name."""
        parts = {"model": self.models, "benchmark": self.benchmarks, "cell": self.cells}
        parts[name] = tuple(groups)
        return DraftForm(self.top, parts["model"], parts["benchmark"], parts["cell"])


@dataclass(frozen=True)
class FieldFault:
    """What is wrong with one field; an empty ``name`` is the form as a whole."""

    name: str
    message: str


@dataclass(frozen=True)
class Written:
    """The file that a form comes to.

    Attributes:
        faults: what could not be written at all.
        fields: by line of the file, from 1, the field that it came from.
    """

    text: str
    faults: tuple[FieldFault, ...]
    fields: Mapping[int, str]


class NotInForm(ValueError):
    """The file says more than the form can show; the text says what."""


def first_of(group: Group, name: str) -> str:
    """Return the one value of a field, trimmed; empty where nothing was typed."""
    values = group.get(name, ())
    return values[0].strip() if values else ""


# --- from the browser -----------------------------------------------------------


def read_form(values: Mapping[str, Sequence[str]]) -> DraftForm:
    """Return the form that these submitted values are; unknown names are ignored."""

    def groups(name: str) -> tuple[Group, ...]:
        given = (list(values.get(f"{name}-count", ())) or ["1"])[-1]
        count = int(given) if given.isascii() and given.isdigit() and len(given) < 4 else 1
        return tuple(
            {key: tuple(values.get(f"{name}-{n}-{key}", ())) for key in keys}
            for n in range(max(1, min(count, MOST_GROUPS)))
            for keys in [GROUPS[name]]
        )

    return DraftForm(
        top={name: tuple(values.get(name, ())) for name in (*TOP, *BUDGET)},
        models=groups("model"),
        benchmarks=groups("benchmark"),
        cells=groups("cell"),
    )


def empty_group(name: str, *, small: bool = False) -> Group:
    """Return a group as a new form shows it.

    Args:
        small: for the demonstration model, which needs short answers and few searches.
    """
    if name != "cell":
        return dict.fromkeys(GROUPS[name], ())
    cell = CellSpec(library="")
    if small:
        cell = replace(cell, max_searches=1, max_tokens=384)
    return {
        "library": (),
        "control": (cell.control,),
        "types": (),
        "k": (str(cell.k),),
        "retriever": (cell.retriever,),
        "max_searches": (str(cell.max_searches),),
        "temperature": (str(cell.temperature),),
        "max_tokens": (str(cell.max_tokens),),
    }


# --- to the file -----------------------------------------------------------------


def write_form(form: DraftForm, *, endpoints: Sequence[EndpointChoice]) -> Written:
    """Return the experiment file that ``form`` comes to, as far as it can be written."""
    faults: list[FieldFault] = []
    top = _values(form.top, TOP, "", faults)
    budget = _values(form.top, BUDGET, "", faults)
    models = [
        _model(group, f"model-{n}-", endpoints, faults) for n, group in enumerate(form.models)
    ]
    benchmarks = []
    for n, group in enumerate(form.benchmarks):
        values = _values(group, BENCHMARK, f"benchmark-{n}-", faults)
        partition = {k: values.pop(k) for k in ("size", "seed") if k in values}
        whole = {"suite": "", **values}
        benchmarks.append({**whole, **({"partition": partition} if partition else {})})
    # What is needed and was left empty is written as empty: its line tells the field.
    cells = [
        {"library": "", **_values(group, CELL, f"cell-{n}-", faults)}
        for n, group in enumerate(form.cells)
    ]
    data = {"schema": 1, "slug": "", **top, "model": models, "benchmark": benchmarks, "cell": cells}
    text, places = _written({**data, **({"budget": budget} if budget else {})})
    fields = {}
    for line, (table, index, key) in places.items():
        if table in GROUPS:
            name = key or _NEEDED[table]
            name = {"base_url": "endpoint", "api_key_env": "endpoint", "partition": "size"}.get(
                name, name
            )
            fields[line] = f"{table}-{index}-{name}"
        else:
            fields[line] = key
    return Written(text, tuple(faults), fields)


def _model(
    group: Group, prefix: str, endpoints: Sequence[EndpointChoice], faults: list[FieldFault]
) -> dict[str, Any]:
    values = _values(group, MODEL, prefix, faults)
    name = values.pop("endpoint", "")
    endpoint = next((one for one in endpoints if one.name == name), None)
    if endpoint is None:
        return {"id": values.pop("id", ""), "base_url": "", **values}
    configured = next((one for one in endpoint.models if one.id == values.get("id")), None)
    known = {
        key: getattr(configured, key)
        for key in ("dialect", "price_in", "price_out", "timeout_s", "requests_per_minute")
        if configured and getattr(configured, key) is not None
    }
    key = {"api_key_env": endpoint.api_key_env} if endpoint.api_key_env else {}
    return {"id": values.pop("id", ""), "base_url": endpoint.base_url, **key, **known, **values}


def _values(
    group: Group, keys: Sequence[str], prefix: str, faults: list[FieldFault]
) -> dict[str, Any]:
    """Return the values of the fields in which something was typed."""
    found: dict[str, Any] = {}
    for key in keys:
        if key in _SEVERAL:
            ticked = [value for value in group.get(key, ()) if value]
            if ticked:
                found[key] = ticked if key == "types" or len(ticked) > 1 else ticked[0]
            elif key == "control":
                faults.append(FieldFault(f"{prefix}{key}", "tick at least one"))
            continue
        text = first_of(group, key)
        if not text:
            continue
        number = key in (*_WHOLE, *_WHOLE_TOO, *_NUMBERS)
        parts = [part.strip() for part in text.split(",")] if key in _LISTS else [text]
        try:
            read = [_number(part, whole=key not in _NUMBERS) if number else part for part in parts]
        except ValueError as error:
            faults.append(FieldFault(f"{prefix}{key}", str(error)))
            continue
        found[key] = read if len(read) > 1 else read[0]
    return found


def _number(text: str, *, whole: bool) -> int | float:
    plain = text.replace("_", "").replace(" ", "")
    if re.fullmatch(r"[+-]?\d{1,15}", plain, re.ASCII):
        return int(plain)
    if whole:
        raise ValueError(f"write a whole number, not {text!r}")
    if re.fullmatch(r"[+-]?\d{0,15}\.?\d{1,15}", plain, re.ASCII):
        return float(plain)
    raise ValueError(f"write a number such as 0.5, not {text!r}")


def toml_of(spec: ExperimentSpec, *, slug: str, suites: Sequence[str]) -> str:
    """Return an experiment file that says what ``spec`` says, under another slug.

    Args:
        suites: the name of each of its benchmarks' suites, in their order.
    """

    def given(thing: Any, defaults: Any, *, without: Sequence[str] = ()) -> dict[str, Any]:
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(thing).items()
            if key not in without and value is not None and value != getattr(defaults, key)
        }

    budget = {k: v for k, v in vars(spec.budget).items() if v is not None}
    bare = replace(spec, slug="", preset="default", seed=42, replicates=1, queue_flips=False)
    listed = ("models", "benchmarks", "cells", "budget", "analysis", "failure_policy")
    data: dict[str, Any] = {
        "schema": 1,
        "slug": slug,
        **given(replace(spec, slug=""), bare, without=listed),
        "failure_policy": spec.failure_policy,
        "model": [
            {"id": model.id, "base_url": model.base_url, **given(model, ModelSpec("", ""))}
            for model in spec.models
        ],
        "benchmark": [
            {"suite": suite}
            | (
                {"partition": ({"size": one.size} if one.size else {}) | {"seed": one.seed}}
                if one.size or one.seed != 42
                else {}
            )
            for suite, one in zip(suites, spec.benchmarks, strict=True)
        ],
        "cell": [{"library": cell.library, **given(cell, CellSpec(""))} for cell in spec.cells],
    }
    if budget:
        data["budget"] = budget
    if spec.analysis:
        data["analysis"] = dict(spec.analysis)
    return _written(data)[0]


def with_slug(text: str, slug: str) -> str:
    """Return the experiment file ``text`` under another slug; all else stays as it was typed."""
    lines = text.removesuffix("\n").split("\n")
    line = line_of(text, table="", key="slug")
    written = f'slug = "{slug}"'
    if line is None:
        return written + "\n" + text
    # A line that nobody typed isn't searched: that would take its time.
    comment = re.search(r"\s+#[^\"']*$", lines[line - 1][:LONGEST_COMMENTED])
    lines[line - 1] = written + (comment[0] if comment else "")
    return "\n".join(lines) + "\n"


def _written(data: Mapping[str, Any]) -> tuple[str, dict[int, tuple[str, int, str]]]:
    """Return the file, one key a line, and for each line its table, number and key."""
    lines = HEAD.splitlines()
    places: dict[int, tuple[str, int, str]] = {}

    def add(table: str, index: int, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            lines.append(f"{key} = {_value(value)}")
            places[len(lines)] = (table, index, key)

    def head(table: str, index: int, text: str) -> None:
        lines.extend(["", text])
        places[len(lines)] = (table, index, "")

    add("", 0, {k: v for k, v in data.items() if not _is_table(v)})
    for table in ("budget", "analysis"):
        if table in data:
            head(table, 0, f"[{table}]")
            add(table, 0, data[table])
    for table in GROUPS:
        for index, values in enumerate(data[table]):
            head(table, index, f"[[{table}]]")
            add(table, index, values)
    return "\n".join(lines) + "\n", places


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def _value(value: Any) -> str:
    """Return a value on one line: tomli_w spreads lists and tables over several."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


# --- from the file ----------------------------------------------------------------


def form_of(text: str, *, endpoints: Sequence[EndpointChoice]) -> DraftForm:
    """Return the form that shows the experiment file ``text``.

    Raises:
        NotInForm: it isn't TOML, or says what no field of the form can hold.
    """
    try:
        data = read_toml(text)
    except Unreadable as error:
        raise NotInForm("it isn't valid TOML yet, or holds what no form can") from error
    top = {k: v for k, v in data.items() if k not in (*GROUPS, "budget")}
    _known(top, (*TOP, "schema"), "the top of the file")
    budget = data.get("budget", {})
    if not isinstance(budget, dict):
        raise NotInForm("its budget is no table")
    _known(budget, BUDGET, "[budget]")
    tables = {}
    for name in GROUPS:
        given = data.get(name, [{}])
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise NotInForm(f"its {name} is no list of [[{name}]] tables")
        if len(given) > MOST_GROUPS:
            raise NotInForm(f"it has more than {MOST_GROUPS} [[{name}]] tables")
        tables[name] = given or [{}]
    return DraftForm(
        top={k: _typed(k, {**top, **budget}) for k in (*TOP, *BUDGET)},
        models=tuple(_model_group(one, endpoints) for one in tables["model"]),
        benchmarks=tuple(_benchmark_group(one) for one in tables["benchmark"]),
        cells=tuple(_cell_group(one) for one in tables["cell"]),
    )


def has_comments(text: str) -> bool:
    """Return whether the file holds comments, which saving it by form would drop."""
    return filetext.has_comments(text.replace(HEAD, ""))


def _model_group(table: Mapping[str, Any], endpoints: Sequence[EndpointChoice]) -> Group:
    _known(table, (*MODEL[1:], "base_url", "api_key_env"), "[[model]]")
    url = str(table.get("base_url", "")).rstrip("/")
    endpoint = next((one for one in endpoints if one.base_url.rstrip("/") == url), None)
    group = {key: _typed(key, table) for key in MODEL[1:]}
    return {"endpoint": (endpoint.name,) if endpoint else (), **group}


def _benchmark_group(table: Mapping[str, Any]) -> Group:
    _known(table, ("suite", "partition"), "[[benchmark]]")
    partition = table.get("partition", {})
    if not isinstance(partition, dict):
        raise NotInForm("a partition is no table")
    _known(partition, ("size", "seed"), "partition")
    return {key: _typed(key, {**table, **partition}) for key in BENCHMARK}


def _cell_group(table: Mapping[str, Any]) -> Group:
    _known({k: v for k, v in table.items() if k != "design"}, CELL, "[[cell]]")
    if table.get("design", "se_sd") != "se_sd":
        raise NotInForm("a cell names a design")
    # What the file leaves out is shown as what it means.
    given = {**{k: v for k, v in vars(CellSpec("")).items() if k in CELL and v}, **table}
    return {key: _typed(key, given) for key in CELL}


def _known(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key not in keys:
            raise NotInForm(f"the form has no field for {brief(key)} in {where}")


def _typed(key: str, table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what one would type for the value of ``key``."""
    value = table.get(key)
    if value is None:
        return ()
    values = value if isinstance(value, list) else [value]
    several = key in _SEVERAL or key in _LISTS
    number = key in (*_WHOLE, *_WHOLE_TOO, *_NUMBERS)
    if isinstance(value, list) and not several:
        raise NotInForm(f"'{key}' is a list")
    for one in values:
        good = (
            isinstance(one, int | float) and not isinstance(one, bool)
            if number
            else (isinstance(one, str))
        )
        if not good:
            raise NotInForm(f"'{key}' holds {brief(one)}, which no field can show")
    texts = [str(one) for one in values]
    return tuple(texts) if key in _SEVERAL else (", ".join(texts),)
