"""Write a commented example file for tasks of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.services.tasks import TemplateExists, template_write


class Command(BaseCommand):
    """``new_tasks PATH``: exit 0 when written, 2 when it can't be."""

    help = "Write a commented example of every kind of task to a new JSONL file."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the file to write."""
        parser.add_argument("path", type=Path, help="the file to write; it must not exist")

    def handle(self, *args: Any, path: Path, **options: Any) -> None:
        """Write the file and say what to do with it."""
        try:
            template_write(path=path)
        except TemplateExists as error:
            raise CommandError(str(error), returncode=2) from None
        except OSError as error:
            raise CommandError(f"{path} can't be written: {error.strerror}", returncode=2) from None
        self.stdout.write(f"Wrote {path}. Edit it, then: python3 manage.py check_tasks {path}")
