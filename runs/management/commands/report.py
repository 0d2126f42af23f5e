"""Print the report of an experiment, or of runs that were made elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.domain import render
from runs.domain.plan import FAILURE_POLICY_OF
from runs.domain.report import FailurePolicy, Preset, build_report
from runs.domain.rows import (
    BadRows,
    UnmatchedReplicates,
    notices_of,
    pair_rows,
    read_csv,
    read_jsonl,
)
from runs.management.running import EXIT_INPUT, faults_as_exit_codes
from runs.selectors import experiment_by_slug
from runs.services.reporting import report_of

FORMATS = {
    "table": render.table,
    "json": lambda report: json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False),
    "csv": render.csv_text,
    "markdown": render.markdown,
}
READERS = {".csv": read_csv, ".jsonl": read_jsonl, ".ndjson": read_jsonl}


class Command(BaseCommand):
    help = (
        "Print the report of EXPERIMENT: what skills did to the tasks where they were returned. "
        "With --runs FILE, of runs that were made elsewhere (docs/statistics.md, Run rows)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("slug", metavar="EXPERIMENT", nargs="?")
        parser.add_argument(
            "--runs", metavar="FILE", help="a .csv or .jsonl file, one run of one arm a row"
        )
        parser.add_argument("--format", choices=tuple(FORMATS), default="table")
        parser.add_argument(
            "--preset", choices=[p.value for p in Preset], help="with --runs: which interval"
        )
        parser.add_argument(
            "--failure-policy",
            choices=[p.value for p in FailurePolicy],
            help="with --runs: what a failed model call means (default: as the preset has it)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        slug, runs = options["slug"], options["runs"]
        if (slug is None) == (runs is None):
            raise CommandError(
                "name an experiment, or a file with --runs FILE, and not both",
                returncode=EXIT_INPUT,
            )
        preset, policy = options["preset"], options["failure_policy"]
        if slug and (preset or policy):
            raise CommandError(
                "an experiment's preset and failure policy stand in its plan; leave out --preset "
                "and --failure-policy",
                returncode=EXIT_INPUT,
            )
        if runs:
            preset = preset or Preset.DEFAULT
            report = _report_of_file(Path(runs), preset, policy or FAILURE_POLICY_OF[preset])
        else:
            with faults_as_exit_codes():
                report = report_of(experiment_by_slug(slug))
        self.stdout.write(FORMATS[options["format"]](report))


def _report_of_file(path: Path, preset: str, failure_policy: str) -> dict[str, Any]:
    """Return the report of the run rows in ``path``.

    Raises:
        CommandError: the file or a row of it can't be used; the message names row and fix.
    """
    read = READERS.get(path.suffix.lower())
    if read is None:
        raise _refused(path, f"its name must end in {', '.join(READERS)}, as its rows are written")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            file = read(lines)
        if not file.rows:
            raise _refused(path, "it holds no runs; each row is one run of one arm")
        pairing = pair_rows(rows=file.rows)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise _refused(
            path, f"it isn't UTF-8 (byte {error.start + 1}); save it as UTF-8"
        ) from error
    except (BadRows, UnmatchedReplicates) as error:
        raise _refused(path, str(error)) from error
    return build_report(
        experiment={"title": path.name},
        cells=pairing.cells,
        preset=preset,
        failure_policy=failure_policy,
        notices=notices_of(ignored=file.ignored, pairing=pairing),
        cancelled=pairing.cancelled,
    )


def _refused(path: Path, why: str) -> CommandError:
    return CommandError(
        "\n".join(f"{path}: {line}" for line in why.splitlines()), returncode=EXIT_INPUT
    )
