"""Storing what folders or archives of skills hold as immutable versions and a frozen library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.db import transaction

from skills.domain.skillfile import LoadedLibrary, ParsedSkill, load_library
from skills.models import Library, Skill, SkillVersion
from skills.services.libraries import freeze_library
from workbench.kernel.versions import versioned


class NothingToImport(Exception):
    """There is no skill that can be used."""


@dataclass(frozen=True)
class Imported:
    """What came of an import.

    Attributes:
        created: slugs that got a new version.
        unchanged: slugs whose text was stored already.
        known: those of ``created`` that had a version before.
        same: a version of the library held exactly this before, and stays.
        newest: the number that the library's name alone means.
        loaded: everything that was read, with what was recovered and left out.
    """

    library: Library
    created: tuple[str, ...]
    unchanged: tuple[str, ...]
    known: frozenset[str]
    same: bool
    newest: int
    loaded: LoadedLibrary

    @property
    def advice(self) -> str:
        """What is not to be missed: what was imported isn't what new experiments search."""
        if self.library.number == self.newest:
            return ""
        return (
            f"Version {self.library.number} holds exactly these skills. New experiments still "
            f"search version {self.newest}; to search these write "
            f'library = "{versioned(self.library.slug, self.library.number)}".'
        )


def import_skills(*, loaded: LoadedLibrary, library_slug: str) -> Imported:
    """Store each clean skill's text as a version, once, and freeze them into a library.

    Raises:
        NothingToImport: no skill could be used.
        LibraryQuarantined: one of the skills is quarantined.
    """
    if not loaded.clean:
        raise NothingToImport(f"no usable SKILL.md was found below {', '.join(loaded.roots)}")
    with transaction.atomic():
        versions, created = _stored(loaded.clean)
        before = dict(Library.objects.filter(slug=library_slug).values_list("pk", "number"))
        library = freeze_library(slug=library_slug, versions=versions)
    slugs = [parsed.slug for parsed in loaded.clean]
    new = {version.skill.slug: version.number for version in versions}
    return Imported(
        library=library,
        created=tuple(slug for slug in slugs if slug in created),
        unchanged=tuple(slug for slug in slugs if slug not in created),
        known=frozenset(slug for slug in created if new[slug] > 1),
        same=library.pk in before,
        newest=max(library.number, *before.values()) if before else library.number,
        loaded=loaded,
    )


def read_directories(paths: Sequence[Path]) -> LoadedLibrary:
    """Return what the directories hold; see ``load_library``.

    Raises:
        NothingToImport: a directory doesn't exist or can't be read.
    """
    for path in paths:
        if not path.is_dir():
            raise NothingToImport(f"{path} is not a directory; give the folder that holds skills")
    return load_library(paths)


# Names and rows go to the database this many at a time, however many there are.
_BATCH = 400


def _stored(skills: Sequence[ParsedSkill]) -> tuple[list[SkillVersion], set[str]]:
    """Return each skill's version, stored once, and the slugs of those that are new."""
    versions: list[SkillVersion] = []
    created: set[str] = set()
    for batch in _batches(sorted(skills, key=lambda parsed: parsed.slug)):
        found = _skills({parsed.slug for parsed in batch})
        known, last = _versions(found)
        new = [
            _version(parsed, found[parsed.slug], last.get(found[parsed.slug].pk, 0) + 1)
            for parsed in batch
            if (found[parsed.slug].pk, parsed.sha256) not in known
        ]
        created |= {version.skill.slug for version in new}
        stored = {version.skill_id: version for version in SkillVersion.objects.bulk_create(new)}
        versions += [
            stored.get(skill.pk) or known[skill.pk, parsed.sha256]
            for parsed in batch
            for skill in [found[parsed.slug]]
        ]
    return versions, created


def _batches(skills: Sequence[ParsedSkill]) -> Iterator[Sequence[ParsedSkill]]:
    for start in range(0, len(skills), _BATCH):
        yield skills[start : start + _BATCH]


def _skills(slugs: set[str]) -> dict[str, Skill]:
    """Return the skills of ``slugs``, made where they are missing, locked until the end."""
    Skill.objects.bulk_create((Skill(slug=slug) for slug in sorted(slugs)), ignore_conflicts=True)
    locked = Skill.objects.select_for_update().filter(slug__in=slugs).order_by("slug")
    return {skill.slug: skill for skill in locked}


def _versions(
    skills: Mapping[str, Skill],
) -> tuple[dict[tuple[int, str], SkillVersion], dict[int, int]]:
    """Return the stored versions by skill and content, and each skill's last number."""
    by_pk = {skill.pk: skill for skill in skills.values()}
    known: dict[tuple[int, str], SkillVersion] = {}
    last: dict[int, int] = {}
    for version in SkillVersion.objects.filter(skill__in=by_pk).only("skill", "number", "sha256"):
        version.skill = by_pk[version.skill_id]
        known[version.skill_id, version.sha256] = version
        last[version.skill_id] = max(last.get(version.skill_id, 0), version.number)
    return known, last


def _version(parsed: ParsedSkill, skill: Skill, number: int) -> SkillVersion:
    return SkillVersion(
        skill=skill,
        number=number,
        name=parsed.name,
        description=parsed.description,
        type=parsed.type,
        body=parsed.body,
        sha256=parsed.sha256,
        companions=list(parsed.companions),
        problems=[f"line {p.line}: {p.message}" for p in parsed.problems],
    )
