"""new_tasks and check_tasks: what they print and how they end, with a scripted grader."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import pytest
from django.core.management import CommandError, call_command

from runs.domain.checking import Verdict
from runs.domain.suites import load_suite
from runs.domain.template import TEMPLATE
from runs.management.commands import check_tasks
from runs.management.running import faults_as_exit_codes
from runs.sandbox.grader import Grader, GradeResult, HostFailed, ReferenceFailed
from runs.services.preparing import NotReady, import_suite
from runs.services.tasks import UnknownSource, suite_load

ROW: dict[str, Any] = {"key": "a", "kind": "maths", "prompt": "1+1?", "checker": {"gold": "2"}}


class ScriptedGrader:
    """Gives every reply one verdict and refuses to record references that say so."""

    tier = "A"

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.graded: list[str] = []

    def __enter__(self) -> ScriptedGrader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def grade(self, *, kind: str, checker: Mapping[str, Any], reply: str) -> GradeResult:
        self.graded.append(reply)
        details = {} if self.verdict is Verdict.PASS else {"message": "case 0:\n  got 3"}
        return GradeResult(verdict=self.verdict, details=details, tier="A", checker_sha256="0" * 64)

    def record_cases(self, *, checker: Mapping[str, Any], reference: str) -> Mapping[str, Any]:
        if "raise" in reference:
            raise ReferenceFailed("the reference raised ValueError")
        if "host" in reference:
            raise HostFailed("every slot is busy")
        return {**checker, "checker_isolation": "in_process"}


def _check(
    monkeypatch: pytest.MonkeyPatch, source: str, verdict: Verdict = Verdict.PASS, **options: Any
) -> tuple[int, str]:
    """Return the exit code and everything printed."""
    monkeypatch.setattr(check_tasks, "open_grader", lambda **_: ScriptedGrader(verdict))
    out = io.StringIO()
    try:
        call_command("check_tasks", source, stdout=out, **options)
    except CommandError as error:
        return error.returncode, f"{out.getvalue()}{error}"
    return 0, out.getvalue()


def _scripted(verdict: Verdict) -> Grader:
    return cast(Grader, ScriptedGrader(verdict))


def _file(tmp_path: Path, *rows: dict[str, Any] | str) -> str:
    path = tmp_path / "mine.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_new_tasks_writes_the_template_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    out = io.StringIO()
    call_command("new_tasks", str(path), stdout=out)
    assert path.read_text() == TEMPLATE
    assert f"check_tasks {path}" in out.getvalue()
    path.write_text("mine")
    with pytest.raises(CommandError, match="left as it is") as refused:
        call_command("new_tasks", str(path))
    assert (refused.value.returncode, path.read_text()) == (2, "mine")


def test_new_tasks_in_a_missing_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="No such file") as refused:
        call_command("new_tasks", str(tmp_path / "absent" / "mine.jsonl"))
    assert refused.value.returncode == 2


def test_good_file_ends_with_0_and_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, text = _check(monkeypatch, _file(tmp_path, ROW))
    assert code == 0
    assert text.startswith(
        "mine: 1 task has no reference: its answer can be read, not proved (sandbox tier A"
    )
    assert len(text.splitlines()) == 1


def test_problems_of_the_file_are_a_table_and_end_with_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = {**ROW, "key": "b", "checker": {"gold": 2}}
    code, text = _check(monkeypatch, _file(tmp_path, ROW, "{", bad))
    assert code == 2
    assert "2     -             is not JSON" in text
    assert "3     checker.gold  must be text, not a number" in text
    assert text.endswith("2 problems to correct first.")


@pytest.mark.parametrize("name", ["absent.jsonl", "humanevil"])
def test_source_that_is_nothing_ends_with_2(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, text = _check(monkeypatch, name)
    assert code == 2
    assert "neither a suite (starter, starter-math, humaneval) nor a file" in text


def test_empty_file_ends_with_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, text = _check(monkeypatch, _file(tmp_path))
    assert code == 2
    assert "holds no task" in text


def test_failing_reference_is_named_with_its_reason_and_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, text = _check(monkeypatch, _file(tmp_path, ROW), Verdict.FAIL)
    assert code == 2
    assert "a     fail     case 0: got 3" in text
    assert "mine: 1 task fails (sandbox" in text
    assert text.endswith("1 task fails its own check: correct the reference or the check.")


def test_host_fault_is_no_fault_of_the_task_and_ends_with_3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, text = _check(monkeypatch, _file(tmp_path, ROW), Verdict.INFRA_ERROR)
    assert code == 3
    assert "could not be graded on this machine" in text


def test_reference_that_cannot_be_recorded_and_a_missing_one_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checker = {"mode": "asserts", "entry": "f", "test": "assert f() == 1"}
    raising = {
        "key": "raises", "kind": "code", "prompt": "p", "checker": checker,
        "reference": "def f():\n    raise ValueError\n",
    }  # fmt: skip
    fine = {**raising, "key": "fine", "reference": "def f():\n    return 1\n"}
    bare = {name: raising[name] for name in ("kind", "prompt", "checker")} | {"key": "bare"}
    code, text = _check(monkeypatch, _file(tmp_path, raising, fine, bare))
    assert code == 2
    assert "raises  fail     the reference raised ValueError" in text
    # Three tasks: one passes, one fails, one has no reference; the passing one ran in process.
    assert (
        "mine: 1 reference passes (1 checked beside the program), 1 task fails, "
        "1 code task has none: it can't be tried (sandbox"
    ) in text


def test_only_references_are_counted_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    proved = [{**ROW, "key": f"proved{n}", "reference": "It is 2."} for n in range(3)]
    read = [{**ROW, "key": f"read{n}"} for n in range(4)]
    code, text = _check(monkeypatch, _file(tmp_path, *proved, *read))
    assert code == 0
    assert (
        "mine: 3 references pass, 4 tasks have none: their answers can be read, not proved (sandbox"
    ) in text


def test_host_fault_while_recording_is_no_fault_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checker = {"mode": "asserts", "entry": "f", "test": "assert f() == 1"}
    row = {
        "key": "a", "kind": "code", "prompt": "p", "checker": checker,
        "reference": "def f():\n    return 'host'\n",
    }  # fmt: skip
    code, text = _check(monkeypatch, _file(tmp_path, row))
    assert code == 3
    assert "a     infra_error  every slot is busy" in text
    assert "could not be graded on this machine" in text


@pytest.mark.django_db
def test_an_experiment_is_told_of_a_host_fault_and_of_a_failing_reference_apart(
    tmp_path: Path,
) -> None:
    suite = suite_load(source=_file(tmp_path, ROW))
    for verdict, fault, exit_code in (
        (Verdict.INFRA_ERROR, HostFailed, 3),
        (Verdict.FAIL, NotReady, 2),
    ):
        with pytest.raises(CommandError, match="task a") as said, faults_as_exit_codes():
            import_suite(suite=suite, open_grader=partial(_scripted, verdict))
        assert said.value.returncode == exit_code
        assert isinstance(said.value.__cause__, fault)


def test_format_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, text = _check(monkeypatch, _file(tmp_path, ROW), format="math500")
    assert code == 2
    assert "problem" in text


def test_suite_wins_over_a_file_of_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("starter").write_text(json.dumps(ROW) + "\n")
    assert suite_load(source="starter") == load_suite("starter")
    assert [task.key for task in suite_load(source="./starter").tasks] == ["a"]
    with pytest.raises(UnknownSource):
        suite_load(source="other")
