"""Check a suite or a task file: every line can be read and every reference passes its own check."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.domain.checking import Verdict
from runs.domain.suites import SUITE_NAMES, InvalidTaskFile, Suite
from runs.domain.taskfiles import Format, Problem
from runs.management.running import EXIT_INFRASTRUCTURE, EXIT_INPUT, faults_as_exit_codes
from runs.sandbox.grader import open_grader
from runs.services.tasks import ReferenceCheck, ReferenceState, references_check, suite_load


class Command(BaseCommand):
    """``check_tasks SOURCE``: exit 0 when all is well, 2 to correct the tasks, 3 for this host."""

    help = "Read a suite or task file and grade every task's own reference."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the source and the override of its format."""
        parser.add_argument("source", help=f"a suite ({', '.join(SUITE_NAMES)}) or a JSONL file")
        parser.add_argument(
            "--format",
            choices=[name.value for name in Format],
            help="the file's format; found by its fields when not given",
        )

    def handle(self, *args: Any, source: str, format: str | None, **options: Any) -> None:
        """Read, grade, and print what has to be corrected."""
        with faults_as_exit_codes():
            try:
                suite = suite_load(source=source, format=Format(format) if format else None)
            except InvalidTaskFile as error:
                self._print_problems(error.problems)
                raise CommandError(_count(error.problems), returncode=EXIT_INPUT) from None
            self._print_problems(suite.notices)
            started = time.monotonic()
            with open_grader(allow_unsandboxed=settings.ALLOW_UNSANDBOXED) as grader:
                checks = list(references_check(suite=suite, grader=grader))
                tier = grader.tier
        self._report(suite, checks, tier=tier, seconds=time.monotonic() - started)

    def _print_problems(self, problems: Sequence[Problem]) -> None:
        rows = [
            (str(problem.line or "-"), problem.field or "-", problem.reason, problem.fix)
            for problem in problems
        ]
        if rows:
            self.stdout.write(f"{problems[0].path}:")
            self._print_table(("line", "field", "what is wrong", "what to do"), rows)

    def _report(
        self, suite: Suite, checks: Sequence[ReferenceCheck], *, tier: str, seconds: float
    ) -> None:
        passed = [check for check in checks if check.state is ReferenceState.PASSED]
        missing = [check for check in checks if check.state is ReferenceState.NO_REFERENCE]
        failed = [check for check in checks if check.state is ReferenceState.FAILED]
        ungraded = [check for check in checks if check.state is ReferenceState.NOT_GRADED]
        rows = [
            (check.key, check.verdict or Verdict.FAIL.value, check.message or "-")
            for check in (*failed, *ungraded)
        ]
        if rows:
            self._print_table(("task", "verdict", "why"), rows)
        # Without a reference it is the gold answer that passes: it can be read, no more.
        bare = {task.key for task in suite.tasks if task.reference is None}
        summary = _summary(
            proved=sum(check.key not in bare for check in passed),
            read=sum(check.key in bare for check in passed),
            untried=len(missing),
            failed=len(failed),
            ungraded=len(ungraded),
            in_process=sum(check.in_process for check in checks),
        )
        self.stdout.write(
            f"{suite.name}: {summary} (sandbox tier {tier}, {seconds:.1f} s). "
            f"sha256 {suite.sha256[:12]}"
        )
        if failed:
            raise CommandError(
                f"{_said(len(failed), 'task fails its', 'tasks fail their')} own check: correct "
                "the reference or the check.",
                returncode=EXIT_INPUT,
            )
        if ungraded:
            raise CommandError(
                f"{_said(len(ungraded), 'task', 'tasks')} could not be graded on this machine; "
                "`manage.py doctor` says what is missing.",
                returncode=EXIT_INFRASTRUCTURE,
            )

    def _print_table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        table = [head, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(head) - 1)]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            self.stdout.write("  ".join([*cells, row[-1]]).rstrip())


def _summary(
    *, proved: int, read: int, untried: int, failed: int, ungraded: int, in_process: int
) -> str:
    """Return in one line how many tasks were shown to be right, and how far the others."""
    parts = []
    if proved:
        beside = f" ({in_process} checked beside the program)" if in_process else ""
        parts.append(_said(proved, "reference passes", "references pass") + beside)
    if failed:
        parts.append(_said(failed, "task fails", "tasks fail"))
    if ungraded:
        parts.append(f"{ungraded} not graded")
    none = "none" if proved else "no reference"
    if read:
        parts.append(
            _said(read, f"task has {none}: its answer", f"tasks have {none}: their answers")
            + " can be read, not proved"
        )
    if untried:
        parts.append(
            _said(untried, f"code task has {none}: it", f"code tasks have {none}: they")
            + " can't be tried"
        )
    return ", ".join(parts)


def _said(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _count(problems: Sequence[Problem]) -> str:
    fatal = sum(problem.fatal for problem in problems)
    return f"{_said(fatal, 'problem', 'problems')} to correct first."
