"""Reading a directory of skills into immutable versions and a frozen library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from django.db import transaction
from django.db.models import Max

from skills.domain.skillfile import LoadedLibrary, ParsedSkill, load_library
from skills.models import Library, Skill, SkillVersion
from skills.services.libraries import freeze_library


class NothingToImport(Exception):
    """The directories hold no skill that can be used."""


@dataclass(frozen=True)
class Imported:
    """What came of an import.

    Attributes:
        created: slugs that got a new version.
        unchanged: slugs whose text was stored already.
        loaded: everything the directories held, with what was recovered and left out.
    """

    library: Library
    created: tuple[str, ...]
    unchanged: tuple[str, ...]
    loaded: LoadedLibrary


def import_skills(*, loaded: LoadedLibrary, library_slug: str) -> Imported:
    """Store each clean skill's text as a version, once, and freeze them into a library.

    Raises:
        NothingToImport: no skill could be used.
        LibraryQuarantined: one of the skills is quarantined.
    """
    if not loaded.clean:
        raise NothingToImport(f"no usable SKILL.md was found below {', '.join(loaded.roots)}")
    created: list[str] = []
    unchanged: list[str] = []
    versions: list[SkillVersion] = []
    with transaction.atomic():
        for parsed in loaded.clean:
            version, new = _store(parsed)
            versions.append(version)
            (created if new else unchanged).append(parsed.slug)
        library = freeze_library(slug=library_slug, versions=versions)
    return Imported(library, tuple(created), tuple(unchanged), loaded)


def read_directories(paths: Sequence[Path]) -> LoadedLibrary:
    """Return what the directories hold; see ``load_library``.

    Raises:
        NothingToImport: a directory doesn't exist or can't be read.
    """
    for path in paths:
        if not path.is_dir():
            raise NothingToImport(f"{path} is not a directory; give the folder that holds skills")
    return load_library(paths)


def _store(parsed: ParsedSkill) -> tuple[SkillVersion, bool]:
    skill, _ = Skill.objects.get_or_create(slug=parsed.slug)
    stored = SkillVersion.objects.filter(skill=skill, sha256=parsed.sha256).first()
    if stored:
        return stored, False
    last = SkillVersion.objects.filter(skill=skill).aggregate(n=Max("number"))["n"] or 0
    version = SkillVersion.objects.create(
        skill=skill,
        number=last + 1,
        name=parsed.name,
        description=parsed.description,
        type=parsed.type,
        body=parsed.body,
        sha256=parsed.sha256,
        companions=list(parsed.companions),
        problems=[f"line {p.line}: {p.message}" for p in parsed.problems],
    )
    return version, True
