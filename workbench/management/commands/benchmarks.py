"""Comparisons with other tools, measured side by side in one run on this machine."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from workbench.bootstrap import CannotPrepare, version
from workbench.management.benchmarks.catalogue import COMPARISONS, SEED
from workbench.management.benchmarks.pages import (
    LIMIT_MS,
    ROUNDS,
    PagesFailed,
    PageTime,
    measure,
)
from workbench.management.benchmarks.rows import Row, Status
from workbench.management.benchmarks.sides import compare, install_peers

SCHEMA = "benchmarks/1"
PAGES = "pages"


class Command(BaseCommand):
    help = "Compare speed with other tools, side by side in one run; goals are ratios."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        names = ", ".join(comparison.name for comparison in COMPARISONS)
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help=f"of {names}; default all. {PAGES}: the server time of every page over 100,000 "
            "executions, in a database of its own (some minutes)",
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
        parser.add_argument(
            "--install-peers",
            action="store_true",
            help="first bring the other tools into var/peers (about 480 MB; never dependencies)",
        )
        parser.add_argument(
            "--check", action="store_true", help="exit with 1 when a goal is missed or a row failed"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        known = {comparison.name: comparison for comparison in COMPARISONS}
        unknown = [name for name in options["names"] if name not in (*known, PAGES)]
        if unknown:
            raise CommandError(
                f"no row is called {unknown[0]}; there are: {', '.join((*known, PAGES))}"
            )
        if options["install_peers"]:
            try:
                install_peers()
            except CannotPrepare as problem:
                raise CommandError(str(problem)) from problem
        machine = machine_facts()
        self.stdout.write(
            f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, load "
            f"{machine['load']:.1f}. Medians with least and greatest of rounds in which both sides "
            "take turns; a ratio says how many times as fast ours is.\n"
        )
        rows = []
        for name in [name for name in options["names"] or known if name != PAGES]:
            row = compare(known[name], data_folder=settings.DATA_DIR)
            self.stdout.write(row.text() + "\n")
            self.stdout.flush()
            rows.append(row)
        if rows:
            self.stdout.write(summary(rows))
        pages = self._pages() if PAGES in options["names"] else []
        if options["json"]:
            data = to_json(rows, machine) | ({"pages": [asdict(page) for page in pages]})
            text = json.dumps(data, indent=2, allow_nan=False)
            options["json"].write_text(text + "\n", encoding="utf-8")
        missed = any(row.status in (Status.MISSED, Status.FAILED) for row in rows)
        if options["check"] and (missed or not all(page.met for page in pages)):
            sys.exit(1)

    def _pages(self) -> list[PageTime]:
        """Print and return the server time of every page over a full database."""
        pages = []
        try:
            for found in measure(environment=os.environ):
                self.stdout.write(found if isinstance(found, str) else found.text())
                self.stdout.flush()
                if isinstance(found, PageTime):
                    pages.append(found)
        except PagesFailed as failed:
            raise CommandError(f"the pages could not be measured: {failed}") from failed
        met = sum(page.met for page in pages)
        self.stdout.write(
            f"{met} of {len(pages)} pages answer in less than {LIMIT_MS:.0f} ms of server time "
            f"(medians of {ROUNDS} rounds)."
        )
        return pages


def summary(rows: Sequence[Row]) -> str:
    """Return one line: how many goals are met, and by name every row that has no good end."""
    with_goal = [row for row in rows if row.status in (Status.MET, Status.MISSED)]
    met = [row for row in with_goal if row.status is Status.MET]
    parts = [f"{len(met)} of {len(with_goal)} measured goals met"]
    for status, word in (
        (Status.MISSED, "missed"),
        (Status.FAILED, "failed"),
        (Status.NO_PEER, "without their peer"),
    ):
        names = [row.name for row in rows if row.status is status]
        if names:
            parts.append(f"{word}: {', '.join(names)}")
    return "; ".join(parts) + "."


def to_json(rows: Sequence[Row], machine: dict[str, Any]) -> dict[str, Any]:
    """Return the whole run as plain JSON."""
    return {
        "schema": SCHEMA,
        "version": version(),
        "seed": SEED,
        "machine": machine,
        "rows": [row.to_json() for row in rows],
    }


def machine_facts() -> dict[str, Any]:
    """Return what kind of machine this is and how busy it was before the first row."""
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
