"""Long batteries that are too slow for the test suite."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from workbench.management.killing import run_with_kills


class Command(BaseCommand):
    help = "kill: kill workers at many random moments and compare with an undisturbed run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("battery", choices=("kill",))
        parser.add_argument("--points", type=int, default=200, help="kills (default 200)")
        parser.add_argument("--pairs", type=int, default=40)
        parser.add_argument("--seed", type=int, default=42)

    def handle(self, *args: Any, **options: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="workbench-stress-") as name:
            folder = Path(name)
            common = {"pairs": options["pairs"], "seed": options["seed"]}
            undisturbed = run_with_kills(folder=folder / "undisturbed", points=0, **common)
            killed = run_with_kills(folder=folder / "killed", points=options["points"], **common)
        faults = killed.faults(undisturbed)
        self.stdout.write(
            f"{killed.kills} kills over {killed.executions} runs: {killed.attempts} attempts, "
            f"{killed.completed_calls} completed calls, {killed.repeated_calls} repeated, "
            f"{killed.unfinished_calls} cut off"
        )
        if faults:
            raise CommandError("; ".join(faults))
        self.stdout.write("The report is the undisturbed run's, byte for byte.")
