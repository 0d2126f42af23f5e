"""Hand in runs that another program made; no server is needed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from runs.domain.report import FailurePolicy, Preset
from runs.domain.rows import BadRows, UnmatchedReplicates
from runs.management.running import EXIT_INPUT
from runs.services.pushing import READERS, BadPush, OtherContent, Push, read_push, store_push


class Command(BaseCommand):
    help = (
        "Store the run rows of FILE (.jsonl or .csv, one run of one arm a row) as a finished "
        "experiment: its figures are those of report --runs FILE (docs/exports.md)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", metavar="FILE", type=Path)
        parser.add_argument(
            "--experiment", metavar="SLUG", required=True, help="what the experiment is called"
        )
        parser.add_argument("--preset", choices=[p.value for p in Preset], default=Preset.DEFAULT)
        parser.add_argument(
            "--failure-policy",
            choices=[p.value for p in FailurePolicy],
            default="",
            help="what a failed model call means (default: as the preset has it)",
        )
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        format = path.suffix.lower().removeprefix(".")
        if format not in READERS:
            endings = ", ".join(f".{name}" for name in READERS)
            raise _refused(path, f"its name must end in {endings}, as its rows are written")
        try:
            with path.open(encoding="utf-8", newline="") as lines:
                push = read_push(
                    lines,
                    format=format,
                    slug=options["experiment"],
                    preset=options["preset"],
                    failure_policy=options["failure_policy"],
                )
            store_push(push, actor=None, at=timezone.now(), say=self._say)
        except OSError as error:
            raise _refused(path, error.strerror or str(error)) from error
        except UnicodeDecodeError as error:
            where = f"byte {error.start + 1}"
            raise _refused(path, f"it isn't UTF-8 ({where}); save it as UTF-8") from error
        except BadRows as error:
            raise _refused(path, "\n".join(map(str, error.problems))) from error
        except (UnmatchedReplicates, BadPush, OtherContent) as error:
            raise _refused(path, str(error)) from error
        answer = push.answer()
        self.stdout.write(
            json.dumps(answer, indent=2, ensure_ascii=False) if options["json"] else _told(push)
        )

    def _say(self, finished: int, steps: int, note: str) -> None:
        if sys.stderr.isatty():
            self.stderr.write(f"\r{note}: {finished} of {steps} pairs", ending="")
            if finished == steps:
                self.stderr.write("")


def _told(push: Push) -> str:
    answer = push.answer()
    lines = [
        f"{answer['experiment']}: {answer['rows']} rows, {answer['pairs']} pairs, "
        f"{answer['cells']} {'cell' if answer['cells'] == 1 else 'cells'} stored",
    ]
    if answer["repeated"]:
        lines.append(f"identical rows that were counted once: {answer['repeated']}")
    for name, what in (("conflicts", "rows contradict each other"), ("unpaired", "one arm only")):
        if answer[f"n_{name}"]:
            named = ", ".join(" ".join(map(str, one.values())) for one in answer[name][:20])
            lines.append(f"left out, {what} ({answer[f'n_{name}']}): {named}")
    if answer["ignored_columns"]:
        lines.append(f"columns that were not read: {', '.join(answer['ignored_columns'])}")
    lines.append(f"Its report: python3 manage.py report {answer['experiment']}")
    return "\n".join(lines)


def _refused(path: Path, why: str) -> CommandError:
    return CommandError(
        "\n".join(f"{path}: {line}" for line in why.splitlines()), returncode=EXIT_INPUT
    )
