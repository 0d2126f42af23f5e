"""The order, the exit code and the last line of `manage.py test`."""

from __future__ import annotations

import io

import pytest

from workbench.management.commands import test as command_module
from workbench.management.commands.test import Command, Outcome


class Stages:
    """Stands in for the stages, with the exit codes and seconds they shall have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, mypy: int = 0, tests: int = 0) -> None:
        self.pytest_arguments: list[str] | None = None
        self.out = io.StringIO()
        self.command = Command(stdout=self.out)

        def run_tests(for_pytest: list[str]) -> Outcome:
            self.pytest_arguments = for_pytest
            return Outcome("tests", tests, 2.0)

        checks = [Outcome("ruff check", 0, 1.0), Outcome("mypy", mypy, 1.0)]
        monkeypatch.setattr(self.command, "_bring_browser", lambda for_pytest: None)
        monkeypatch.setattr(self.command, "_static_checks", lambda: list(checks))
        monkeypatch.setattr(self.command, "_tests", run_tests)

    def run(self, *arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            self.command.run_from_argv(["manage.py", "test", *arguments])
        assert isinstance(ended.value.code, int)
        return ended.value.code

    @property
    def last_line(self) -> str:
        return self.out.getvalue().splitlines()[-1]


def test_all_well(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch)
    assert stages.run("tests/unit", "-k", "retry") == 0
    assert stages.pytest_arguments == ["tests/unit", "-k", "retry"]
    assert stages.last_line.startswith("All checks and tests passed.")


def test_a_failed_check_stops_before_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch, mypy=2)
    assert stages.run() == 2
    assert stages.pytest_arguments is None
    assert stages.last_line.startswith("FAILED: mypy.")
    assert stages.last_line.endswith("The tests were not run.")


def test_keep_going_runs_the_tests_and_keeps_the_first_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stages = Stages(monkeypatch, mypy=2, tests=5)
    assert stages.run("--keep-going", "-x") == 2
    assert stages.pytest_arguments == ["-x"]
    assert stages.last_line.startswith("FAILED: mypy, tests.")


def test_failed_tests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = Stages(monkeypatch, tests=1)
    assert stages.run() == 1


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_only_ci_fails_over_the_budget(ci: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(command_module, "BUDGET_S", -1)
    assert Stages(monkeypatch).run() == code
