"""The whole suite by one command: static checks first, then the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from django.core.management.base import BaseCommand

from workbench import bootstrap

BUDGET_S = 540
CODE = ["annotation", "runs", "skills", "workbench", "tests", "manage.py"]
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
USAGE = """\
usage: python3 manage.py test [--keep-going] [pytest arguments]

  --keep-going  run the tests even where a static check fails

As root it brings Chromium by apt when there is none; otherwise the browser
tests skip and say so, and fail where CI=true."""


@dataclass(frozen=True)
class Outcome:
    """How one stage ended."""

    name: str
    code: int
    seconds: float


class Command(BaseCommand):
    help = "Run the linters, the type checker and every test; other arguments go to pytest."
    requires_system_checks: list[str] = []

    def run_from_argv(self, argv: list[str]) -> None:
        arguments = argv[2:]
        if {"-h", "--help"} & {*arguments}:
            self.stdout.write(f"{self.help}\n\n{USAGE}")
            return
        keep_going = "--keep-going" in arguments
        for_pytest = [argument for argument in arguments if argument != "--keep-going"]
        sys.exit(self.run(for_pytest, keep_going=keep_going))

    def run(self, for_pytest: list[str], *, keep_going: bool) -> int:
        """Run every stage and return the exit code of the first that failed."""
        self._bring_browser(for_pytest)
        began = time.monotonic()
        outcomes = self._static_checks()
        if keep_going or not any(outcome.code for outcome in outcomes):
            outcomes.append(self._tests(for_pytest))
        return self._sum_up(outcomes, time.monotonic() - began)

    def _bring_browser(self, for_pytest: list[str]) -> None:
        wanted = not for_pytest or any("browser" in argument for argument in for_pytest)
        if not wanted or any(map(shutil.which, CHROMIUMS)):
            return
        if os.geteuid() == 0 and shutil.which("apt-get"):
            failure = bootstrap.apt_install("chromium")
            if failure:
                self.stdout.write(f"apt-get brought no Chromium:\n{failure}")
        else:
            self.stdout.write(
                "No Chromium here: the browser tests won't run (apt install chromium)."
            )

    def _static_checks(self) -> list[Outcome]:
        """Run the static checks side by side and print what they object to."""
        scripts = Path(sys.executable).parent
        commands = {
            "ruff check": [sys.executable, "-m", "ruff", "check"],
            "ruff format": [sys.executable, "-m", "ruff", "format", "--check"],
            "mypy": [sys.executable, "-m", "mypy", *CODE],
            "import layers": [str(scripts / "lint-imports")],
            "migrations": [sys.executable, "manage.py", "makemigrations", "--check", "--dry-run"],
        }
        began = time.monotonic()
        outcomes = []
        with tempfile.TemporaryDirectory(prefix="workbench-check-") as data:
            running = {name: _start(command, data=data) for name, command in commands.items()}
            for name, process in running.items():
                output = process.communicate()[0]
                outcomes.append(Outcome(name, process.returncode, time.monotonic() - began))
                self.stdout.write(f"{'FAIL' if process.returncode else 'ok  '} {name}")
                if process.returncode:
                    self.stdout.write(output)
        return outcomes

    def _tests(self, for_pytest: list[str]) -> Outcome:
        began = time.monotonic()
        parallel = ["-n", "2", "--dist", "loadgroup", "--durations", "20"]
        self.stdout.flush()
        process = _start([sys.executable, "-m", "pytest", *parallel, *for_pytest])
        try:
            code = process.wait()
        except KeyboardInterrupt:  # pytest got it as well and tidies up
            process.wait(20)
            code = 130
        return Outcome("tests", code, time.monotonic() - began)

    def _sum_up(self, outcomes: list[Outcome], seconds: float) -> int:
        failed = [outcome for outcome in outcomes if outcome.code]
        times = f"{seconds:.0f} s of {BUDGET_S}"
        if failed:
            names = ", ".join(outcome.name for outcome in failed)
            not_run = "" if outcomes[-1].name == "tests" else " The tests were not run."
            self.stdout.write(f"FAILED: {names}. {times}.{not_run}")
            return failed[0].code
        self.stdout.write(f"All checks and tests passed. {times}.")
        if seconds > BUDGET_S and os.environ.get("CI") == "true":
            self.stdout.write(f"FAILED: over the budget of {BUDGET_S} s.")
            return 1
        return 0


def _start(command: list[str], *, data: str | None = None) -> subprocess.Popen[str]:
    """Start one stage; a check gets a data folder of its own and is heard out, not shown."""
    environment = dict(os.environ) | ({"WORKBENCH_DATA": data} if data else {})
    # The tests choose their own settings before Django reads any.
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    return subprocess.Popen(
        command,
        cwd=bootstrap.ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if data else None,
        stderr=subprocess.STDOUT if data else None,
        text=True,
    )
