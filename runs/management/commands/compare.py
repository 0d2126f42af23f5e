"""Compare two experiments over the tasks they share: is B, the edited one, better than A?"""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.domain.comparing import Factor, ProtocolDiffers
from runs.domain.comparison_render import markdown, text, to_json
from runs.management.running import EXIT_INPUT, faults_as_exit_codes
from runs.services.comparing import CannotCompare, ComparedExperiments, comparison_of

FORMATS = {
    "text": lambda found: text(found.comparison) + "\n" + _libraries(found),
    "json": lambda found: (
        json.dumps(to_json(found.comparison), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    ),
    "md": lambda found: markdown(found.comparison),
}


class Command(BaseCommand):
    help = (
        "Compare two experiments over the tasks they share. A is the old one, B the one with the "
        "edited skills; all else of their protocol must be equal."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("a", metavar="A", help="the experiment before the edit")
        parser.add_argument("b", metavar="B", help="the experiment after it")
        parser.add_argument("--cell-a", default="", metavar="SHA12", help="one cell of A")
        parser.add_argument("--cell-b", default="", metavar="SHA12", help="one cell of B")
        parser.add_argument(
            "--allow",
            action="append",
            default=[],
            choices=[factor.value for factor in Factor],
            help="a factor of the protocol that may differ too; can be given again",
        )
        parser.add_argument("--format", choices=tuple(FORMATS), default="text")

    def handle(self, *args: Any, **options: Any) -> None:
        with faults_as_exit_codes():
            try:
                found = comparison_of(
                    a=options["a"],
                    b=options["b"],
                    cell_a=options["cell_a"],
                    cell_b=options["cell_b"],
                    allowed=options["allow"],
                )
            except (CannotCompare, ProtocolDiffers) as refused:
                raise CommandError(f"{refused}.", returncode=EXIT_INPUT) from refused
        self.stdout.write(FORMATS[options["format"]](found), ending="")


def _libraries(found: ComparedExperiments) -> str:
    """Return which skills differ between the compared libraries, in lines."""
    lines = []
    for library in found.libraries:
        lines.append(f"Skills from {library.old} to {library.new} ({library.alike} are alike)")
        for change in library.changes:
            old, new = (f"version {n}" if n else "absent" for n in (change.old, change.new))
            lines.append(f"  {change.slug}: {old} to {new}")
    return "\n".join(lines) + "\n" if lines else ""
