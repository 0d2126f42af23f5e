"""An audit as its user runs it: real processes, a scripted model, the report and each skill."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.experiments import write_tasks
from tests.shared import ROOT

pytestmark = pytest.mark.xdist_group("services")

SKILL = "---\nname: {name}\ndescription: {description}\n---\n{body}\n"


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    folder = tmp_path / "my-skills"
    for name, description, body in (
        ("window", "Count the windows of a prefix sum.", "Add up, then subtract."),
        ("heap", "Keep smallest items handy.", "Push, pop."),
    ):
        (folder / name).mkdir(parents=True)
        text = SKILL.format(name=name, description=description, body=body)
        (folder / name / "SKILL.md").write_text(text)
    (folder / "window" / "helper.py").write_text("print('not given')\n")
    return folder


def audit(tmp_path: Path, skills: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "WORKBENCH_DATA": str(tmp_path / "data"),
        "WORKBENCH_ALLOW_SCRIPTED": "1",
    }
    command = [sys.executable, "manage.py", "audit", str(skills), "--model", "scripted"]
    command += ["--tasks", str(tmp_path / "counting.jsonl"), *more]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def calls(tmp_path: Path) -> int:
    with sqlite3.connect(tmp_path / "data" / "workbench.sqlite3") as database:
        return int(database.execute("SELECT count(*) FROM workbench_call").fetchone()[0])


def test_an_audit_ends_in_the_report_and_each_skill(tmp_path: Path, skills: Path) -> None:
    write_tasks(tmp_path / "counting.jsonl")
    done = audit(tmp_path, skills, "--base-url", "scripted:mixed?search=1")
    assert done.returncode == 0, done.stderr
    assert "On the 12 tasks where a skill was returned" in done.stdout
    lines = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line.strip()}
    # The tasks speak of windows and prefix sums: window came back 12 times, alone, heap never.
    assert lines["window"][1:4] == ["12", "12", "0"]
    assert lines["window"][-1] == "helper.py"
    assert lines["heap"][1:4] == ["0", "0", "0"]
    assert "/experiments/audit-my-skills-" in done.stdout

    before = calls(tmp_path)
    again = audit(tmp_path, skills, "--base-url", "scripted:mixed?search=1")
    assert again.returncode == 0
    assert calls(tmp_path) == before


def test_without_fitting_tasks_there_is_no_verdict(tmp_path: Path, skills: Path) -> None:
    write_tasks(tmp_path / "counting.jsonl")
    done = audit(tmp_path, skills, "--base-url", "scripted:mixed?search=0", "--n", "4")
    assert done.returncode == 0, done.stderr
    assert "No verdict: no skill was returned" in done.stdout
