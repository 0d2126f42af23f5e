"""What an experiment file or a command names and isn't there."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from runs.domain.plan import InvalidExperiment
from runs.services.naming import check_names

PLAN = """\
[[benchmark]]
suite = "{tasks}"
[[cell]]
library = ["coding", "mine"]
"""
SKILL = "---\nname: window\ndescription: Count windows.\n---\nUse a prefix sum.\n"

pytestmark = pytest.mark.django_db


def test_missing_suites_and_libraries_are_told_together_by_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        check_names(text=PLAN.format(tasks="startler"), path="plan.toml")
    suite, library = str(caught.value).splitlines()
    assert suite.startswith("plan.toml:2: 'startler' is neither a suite")
    assert library.startswith("plan.toml:4: there is no library 'mine'; import one with")


@pytest.mark.parametrize("tasks", ["starter", "a file"])
def test_names_that_are_there_are_not_told(tmp_path: Path, tasks: str) -> None:
    (tmp_path / "SKILL.md").write_text(SKILL)
    call_command("import_skills", str(tmp_path), "--library", "mine", stdout=StringIO())
    if tasks == "a file":
        tasks = str(tmp_path / "SKILL.md")
    check_names(text=PLAN.format(tasks=tasks), path="plan.toml")


def test_folders_without_a_usable_skill_are_named(tmp_path: Path) -> None:
    folders = [tmp_path / "b", tmp_path / "a"]
    for folder in folders:
        folder.mkdir()
    with pytest.raises(CommandError) as caught:
        call_command("import_skills", *map(str, folders))
    assert str(caught.value) == f"no usable SKILL.md was found below {folders[1]}, {folders[0]}"
