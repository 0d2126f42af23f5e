"""Documentation that can't rot: its commands exist, its example files are accepted."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
from django.core.management import get_commands, load_command_class

from runs.domain import plan
from runs.domain.plan import parse_experiment
from runs.services.auditing import EMBEDDED_MODEL, embedded_cell
from tests.shared import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
COMMAND = re.compile(r"manage\.py ([a-z_]+)((?: --[a-z-]+)*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    for name in {match[1] for match in COMMAND.finditer(page.read_text())}:
        assert name in get_commands() or name in ("help", "version"), f"{page.name}: {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_names_exists(page: Path) -> None:
    for match in re.finditer(r"manage\.py ([a-z_]+)([^\n`|]*)", page.read_text()):
        name, rest = match[1], match[2]
        if name not in get_commands() or name == "test":
            continue
        command = load_command_class(get_commands()[name], name)
        known = command.create_parser("manage.py", name)._option_string_actions
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest):
            assert option in known, f"{page.name}: {name} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_example_experiment_is_accepted() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    example = text.split("```toml\n")[1].split("```")[0]
    spec = parse_experiment(example, path="docs/experiments.md")
    assert [cell.control for cell in spec.cells] == ["normal", "schema_empty"]


def test_the_example_of_the_embedded_model_is_accepted_and_fits_it() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    example = text.split("```toml\n")[2].split("```")[0]
    spec = parse_experiment(example, path="docs/experiments.md")
    assert spec.models == (EMBEDDED_MODEL,)
    assert spec.cells == (embedded_cell("coding"),)


@pytest.mark.parametrize(
    ("section", "keys", "spec"),
    [
        ("Top level", plan._TOP, plan.ExperimentSpec),
        ("[budget]", plan._BUDGET, plan.Budget),
        ("[[model]]", plan._MODEL, plan.ModelSpec),
        ("[[benchmark]]", plan._BENCHMARK | plan._PARTITION, plan.BenchmarkSpec),
        ("[[cell]]", plan._CELL, plan.CellSpec),
        ("[analysis]", plan._ANALYSIS, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_key_of_an_experiment_file_has_its_row(
    section: str, keys: dict[str, Any], spec: Any
) -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    table = text.split(f"### {section}\n")[1].split("\n#")[0]
    rows = {row[1]: row for row in re.finditer(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", table, re.M)}
    assert set(keys) <= set(rows)
    assert set(rows) - set(keys) == _READ_APART.get(section, set())
    defaults = {one.name: one.default for one in fields(spec)} if spec else {}
    for name, key in keys.items():
        default, allowed = rows[name][2], rows[name][3]
        assert all(f"`{choice}`" in allowed for choice in key.choices), name
        assert allowed.startswith(_range(key)), name
        if (default_value := defaults.get(name)) not in (None, MISSING):
            assert str(default_value).lower() in default, name


# What plan.py checks by itself, not by its tables of keys.
_READ_APART = {"[[benchmark]]": {"partition"}, "[[cell]]": {"types"}}


def _range(key: Any) -> str:
    if key.low is None or key.low == key.high:
        return "" if key.low is None else str(key.low)
    return f"from {key.low}" if key.high is None else f"{key.low} to {key.high}"


def test_every_command_says_what_it_does() -> None:
    for name, app in get_commands().items():
        if app in ("workbench", "skills", "runs", "annotation"):
            assert load_command_class(app, name).help.endswith("."), name


def test_every_direct_dependency_has_its_reason() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(one for extra in extras for one in extra)]
    names = {re.match(r"[A-Za-z0-9-]+", one)[0].lower() for one in declared}  # type: ignore[index]
    listed = (ROOT / "docs" / "dependencies.md").read_text().lower()
    assert {name for name in names if not re.search(rf"\b{name}\b", listed)} == set()
