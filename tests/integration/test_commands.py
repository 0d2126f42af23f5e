"""What the commands answer to bad input: the place, the fix, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from runs.models import Experiment
from skills.models import Library, SkillVersion
from tests.experiments import make_spec, plan, run, write_tasks

PLAN = """\
schema = 1
slug = "small"
[[model]]
id = "scripted"
base_url = "scripted:mixed"
[[benchmark]]
suite = "{tasks}"
[[cell]]
library = "coding"
"""
SKILL = "---\nname: {name}\ndescription: Count windows.\n---\nUse a prefix sum.\n"
BROKEN_TASK = {
    "key": "double",
    "prompt": "Write double(x).",
    "kind": "code",
    "checker": {
        "mode": "cases",
        "entry": "double",
        "cases": [{"args": [n], "expected": 2 * n} for n in range(8)],
    },
    "reference": "def double(x):\n    return x + x + (x == 3)\n",
}

pytestmark = pytest.mark.django_db


def refusal(code: int, *command: str) -> str:
    with pytest.raises(CommandError) as caught:
        call_command(*command, stdout=StringIO(), stderr=StringIO())
    assert caught.value.returncode == code
    return str(caught.value)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    def write_file(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    return write_file


def test_an_experiment_file_that_is_missing_or_broken(write: Callable[[str, str], str]) -> None:
    assert "can't read nowhere.toml" in refusal(2, "run_experiment", "nowhere.toml")
    path = write("plan.toml", PLAN.replace("slug", "slag"))
    assert f"{path}:2: unknown key 'slag'" in refusal(2, "run_experiment", path)
    assert not Experiment.objects.exists()


def test_a_suite_that_is_missing_or_broken(write: Callable[[str, str], str]) -> None:
    path = write("plan.toml", PLAN.format(tasks="startler").replace("coding", "codling"))
    message = refusal(2, "run_experiment", path)
    assert f"{path}:7: " in message
    assert "startler" in message
    assert f"{path}:9: " in message
    assert "codling" in message
    tasks = write("tasks.jsonl", '{"key": "a"}\n')
    path = write("plan.toml", PLAN.format(tasks=tasks))
    assert f"{tasks}:1" in refusal(2, "run_experiment", path)


def test_a_task_whose_reference_fails_its_own_cases(write: Callable[[str, str], str]) -> None:
    tasks = write("tasks.jsonl", json.dumps(BROKEN_TASK) + "\n")
    message = refusal(2, "run_experiment", write("plan.toml", PLAN.format(tasks=tasks)))
    # double(3) is 6; the reference returns 7
    assert "the reference of task double fails its own check" in message
    assert "expected 6, got 7" in message
    assert not Experiment.objects.exists()


def test_an_unknown_experiment_names_those_there_are(tmp_path: Path) -> None:
    plan(make_spec(write_tasks(tmp_path / "t.jsonl")))
    assert "no experiment 'smal' (known: small)" in refusal(2, "report", "smal")
    assert "is planned; this needs it to be paused" in refusal(
        2, "experiment", "resume", "small", "--no-wait"
    )
    assert "is planned; this needs it to be running" in refusal(2, "experiment", "pause", "small")
    assert "needs an experiment's name" in refusal(2, "experiment", "status")
    out = StringIO()
    call_command("experiment", "list", stdout=out)
    assert out.getvalue().startswith("small  planned")


ROWS = """\
task,arm,outcome,retrieved,model
t1,SE,1,true,m-1
t1,SD,0,,m-1
t2,SE,0,true,m-1
t2,SD,1,,m-1
t3,SE,1,false,m-1
t3,SD,1,,m-1
t4,SE,1,true,m-1
"""


def printed(*command: str) -> str:
    out = StringIO()
    call_command(*command, stdout=out)
    return out.getvalue()


def test_a_report_of_runs_made_elsewhere(write: Callable[[str, str], str]) -> None:
    path = write("runs.csv", ROWS)
    report = json.loads(printed("report", "--runs", path, "--format", "json"))
    (cell,) = report["cells"]
    # t4 has no SD run: it is left out and named. Of two retrieved pairs one was won, one lost.
    assert (cell["n_pairs"], cell["n_cond"], cell["b"], cell["c"]) == (3, 2, 1, 1)
    assert cell["censored"] == {"se": {}, "sd": {"missing": 1}}
    assert report["notices"] == [
        "runs that were made elsewhere",
        "left out, one arm only: t4 replicate 0",
    ]
    lines = [
        json.dumps(
            {"task": t, "arm": arm, "outcome": outcome, "retrieved": arm == "SE", "trial": 1}
        )
        for t, arm, outcome in (("a", "SE", 0), ("a", "SD", 1))
    ]
    path = write("runs.jsonl", "\n".join(lines))
    assert "0 were won and 1 lost" in printed("report", "--runs", path)
    assert "preset paper, failed model calls counted as wrong" in printed(
        "report", "--runs", path, "--preset", "paper", "--format", "markdown"
    )


def test_run_rows_that_cannot_be_used_are_named_with_their_fix(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    path = write("runs.csv", ROWS.replace("t2,SE,0", "t2,SE,maybe").replace("t3,SD", "t3,BASE"))
    message = refusal(2, "report", "--runs", path)
    assert f"{path}: row 4, outcome: 'maybe' is neither true nor false (use true, false" in message
    assert f"{path}: row 7, arm: 'BASE' is no arm: SE (with skills) or SD (without)" in message
    twice = write("twice.csv", ROWS + "t1,SE,0,true,m-1\n")
    assert "Give every run a number in the column replicate" in refusal(
        2, "report", "--runs", twice
    )
    (tmp_path / "latin.csv").write_bytes(b"task,arm\n\xe9,SE\n")
    assert "save it as UTF-8" in refusal(2, "report", "--runs", str(tmp_path / "latin.csv"))
    assert "it holds no runs" in refusal(2, "report", "--runs", write("no.csv", "task,arm\n"))
    assert "must end in .csv, .jsonl" in refusal(2, "report", "--runs", write("a.txt", ""))
    assert "No such file" in refusal(2, "report", "--runs", str(tmp_path / "none.csv"))


def test_a_report_is_of_an_experiment_or_of_a_file(write: Callable[[str, str], str]) -> None:
    assert "not both" in refusal(2, "report")
    assert "not both" in refusal(2, "report", "panel", "--runs", write("runs.csv", ROWS))
    assert "stand in its plan" in refusal(2, "report", "panel", "--preset", "paper")


def test_two_benchmark_entries_of_the_same_tasks_are_refused(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    tasks = write_tasks(tmp_path / "t.jsonl")
    twice = f'[[benchmark]]\nsuite = "{tasks}"\npartition = {{ seed = 43 }}\n[[cell]]'
    path = write("plan.toml", PLAN.format(tasks=tasks).replace("[[cell]]", twice))
    message = refusal(2, "run_experiment", path)
    assert "(size all, seed 42) and" in message
    assert "come to the same tasks, which would count twice" in message
    assert not Experiment.objects.exists()


def test_skills_that_cannot_be_read_are_named_and_nothing_is_imported(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    write("lib/good/SKILL.md", SKILL.format(name="window"))
    bad = write("lib/bad/SKILL.md", "Just text, no front matter.\n")
    errors = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("import_skills", str(tmp_path / "lib"), stderr=errors)
    assert caught.value.returncode == 2
    assert f"{bad}:1" in errors.getvalue()
    assert not SkillVersion.objects.exists()
    call_command(
        "import_skills", str(tmp_path / "lib"), skip_invalid=True, stdout=StringIO(), stderr=errors
    )
    assert [v.name for v in SkillVersion.objects.all()] == ["window"]
    assert Library.objects.get().slug == "lib"


def test_skills_whose_names_clash_are_never_merged(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    for folder, name in (("a", "window"), ("b", "Window"), ("c", "heap")):
        write(f"lib/{folder}/SKILL.md", SKILL.format(name=name))
    errors = StringIO()
    call_command(
        "import_skills", str(tmp_path / "lib"), skip_invalid=True, stdout=StringIO(), stderr=errors
    )
    assert "clash" in errors.getvalue()
    assert "lib/a/SKILL.md" in errors.getvalue()
    assert [v.name for v in SkillVersion.objects.all()] == ["heap"]


def test_importing_twice_makes_nothing_new(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    write("lib/a/SKILL.md", SKILL.format(name="window"))
    for _ in range(2):
        call_command("import_skills", str(tmp_path / "lib"), stdout=StringIO())
    assert (Library.objects.count(), SkillVersion.objects.count()) == (1, 1)
    write("lib/a/SKILL.md", SKILL.format(name="window") + "More.\n")
    call_command("import_skills", str(tmp_path / "lib"), stdout=StringIO())
    assert [v.number for v in SkillVersion.objects.order_by("number")] == [1, 2]
    assert [library.number for library in Library.objects.order_by("number")] == [1, 2]


def test_an_audit_without_skills_or_with_half_an_endpoint(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    assert "not a directory" in refusal(2, "audit", "nowhere", "--tasks", "starter")
    (tmp_path / "empty").mkdir()
    message = refusal(2, "audit", str(tmp_path / "empty"), "--tasks", "starter")
    assert "no usable SKILL.md" in message
    message = refusal(2, "audit", str(tmp_path), "--tasks", "starter", "--model", "m")
    assert "both --model and --base-url" in message


@pytest.mark.xdist_group("services")
@pytest.mark.django_db(transaction=True)
def test_an_unreachable_endpoint_is_told_before_anything_starts(
    write: Callable[[str, str], str], tmp_path: Path
) -> None:
    tasks = write_tasks(tmp_path / "t.jsonl")
    closed = "http://127.0.0.1:9/v1"
    text = PLAN.format(tasks=tasks).replace("scripted:mixed", closed)
    message = refusal(3, "run_experiment", write("plan.toml", text))
    assert "Nothing was started" in message
    assert "127.0.0.1:9" in message
    assert not Experiment.objects.exists()


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_a_report_in_every_format(tmp_path: Path, form: str) -> None:
    run(plan(make_spec(write_tasks(tmp_path / "t.jsonl"))))
    out = StringIO()
    call_command("report", "small", "--format", form, stdout=out)
    assert "scripted" in out.getvalue()
    if form == "json":
        assert json.loads(out.getvalue())["schema"] == "report/1"
