"""Import a directory of skills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from skills.domain.skillfile import LoadedLibrary, slugify
from skills.services.importing import NothingToImport, import_skills, read_directories
from skills.services.libraries import LibraryQuarantined


class Command(BaseCommand):
    help = "Read every SKILL.md below DIR into immutable versions and freeze them as a library."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
        parser.add_argument(
            "--library", help="slug of the library (default: the first folder's name)"
        )
        parser.add_argument(
            "--skip-invalid",
            action="store_true",
            help="import the usable skills although others are left out",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        directories = options["directories"]
        slug = slugify(options["library"] or directories[0].resolve().name)
        try:
            loaded = read_directories(directories)
            left_out = left_out_lines(loaded)
            for line in left_out:
                self.stderr.write(line)
            if left_out and not options["skip_invalid"]:
                raise CommandError(
                    f"nothing was imported: {len(left_out)} places above must be corrected, "
                    "or pass --skip-invalid to import the rest",
                    returncode=2,
                )
            imported = import_skills(loaded=loaded, library_slug=slug)
        except (NothingToImport, LibraryQuarantined) as error:
            raise CommandError(str(error), returncode=2) from error
        for skill in loaded.clean:
            for problem in skill.problems:
                self.stderr.write(f"recovered: {skill.path}:{problem.line}: {problem.message}")
        self.stdout.write(
            f"library {imported.library.slug} version {imported.library.number}: "
            f"{len(loaded.clean)} skills ({len(imported.created)} new texts, "
            f"{len(imported.unchanged)} unchanged, {len(left_out)} left out)"
        )
        if imported.advice:
            self.stdout.write(imported.advice)


def left_out_lines(loaded: LoadedLibrary) -> list[str]:
    """Return one line for each file or name that can't be imported as it is."""
    lines = [f"invalid: {error}" for error in loaded.invalid]
    for clash in loaded.clashes:
        paths = ", ".join(clash.paths)
        lines.append(f"clash: {paths} are all named '{clash.slug}'. Rename all but one.")
    return lines
