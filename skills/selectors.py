"""Reads over skills and libraries that pages share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from skills.models import Library, LibraryEntry, Skill, SkillVersion


@dataclass(frozen=True)
class SkillText:
    """The text of a skill as a library holds it."""

    slug: str
    name: str
    body: str


@dataclass(frozen=True)
class SkillRecord:
    """A skill with its current version and the libraries that hold any of its versions."""

    slug: str
    status: str
    validity: str
    name: str
    description: str
    type: str
    versions: int
    libraries: tuple[str, ...]


@dataclass(frozen=True)
class VersionRecord:
    """One version of a skill, with the libraries that hold it."""

    number: int
    name: str
    description: str
    type: str
    body: str
    sha256: str
    companions: tuple[str, ...]
    problems: tuple[str, ...]
    libraries: tuple[str, ...]


def texts_in(library: Library, slugs: Collection[str]) -> dict[str, SkillText]:
    """Return the texts of those of ``slugs`` that ``library`` holds, by slug."""
    entries = LibraryEntry.objects.filter(
        library=library, skill_version__skill__slug__in=slugs
    ).select_related("skill_version__skill")
    versions = [entry.skill_version for entry in entries]
    return {v.skill.slug: SkillText(v.skill.slug, v.name, v.body) for v in versions}


def skill_records() -> list[SkillRecord]:
    """Return every skill by slug, in three queries however many there are."""
    versions: dict[int, list[SkillVersion]] = defaultdict(list)
    for version in SkillVersion.objects.defer("body").order_by("skill", "number"):
        versions[version.skill_id].append(version)
    libraries: dict[int, set[str]] = defaultdict(set)
    for skill, slug in LibraryEntry.objects.values_list(
        "skill_version__skill", "library__slug"
    ).distinct():
        libraries[skill].add(slug)
    return [
        _record(skill, versions[skill.pk], libraries[skill.pk])
        for skill in Skill.objects.order_by("slug")
    ]


def skill_record(slug: str) -> SkillRecord | None:
    """Return one skill, or None when there is none of this slug."""
    skill = Skill.objects.filter(slug=slug).first()
    if skill is None:
        return None
    libraries = LibraryEntry.objects.filter(skill_version__skill=skill).values_list(
        "library__slug", flat=True
    )
    versions = SkillVersion.objects.filter(skill=skill).defer("body").order_by("number")
    return _record(skill, list(versions), set(libraries))


def version_records(slug: str) -> list[VersionRecord]:
    """Return a skill's versions, newest first, in two queries."""
    found = list(SkillVersion.objects.filter(skill__slug=slug).order_by("-number"))
    held: dict[int, list[str]] = defaultdict(list)
    for entry in (
        LibraryEntry.objects.filter(skill_version__in=found)
        .select_related("library")
        .order_by("library__slug", "library__number")
    ):
        held[entry.skill_version_id].append(f"{entry.library.slug}, number {entry.library.number}")
    return [
        VersionRecord(
            number=version.number,
            name=version.name,
            description=version.description,
            type=version.type,
            body=version.body,
            sha256=version.sha256,
            companions=tuple(map(str, version.companions)),
            problems=tuple(map(str, version.problems)),
            libraries=tuple(held[version.pk]),
        )
        for version in found
    ]


def version_numbers(libraries: Collection[int]) -> dict[tuple[int, str], int]:
    """Return the version number that each of ``libraries`` holds of each skill, by slug."""
    return {
        (library, slug): number
        for library, slug, number in LibraryEntry.objects.filter(library__in=libraries).values_list(
            "library", "skill_version__skill__slug", "skill_version__number"
        )
    }


def version_body(slug: str, number: int) -> str | None:
    """Return the whole text of one version, or None when there is none."""
    return (
        SkillVersion.objects.filter(skill__slug=slug, number=number)
        .values_list("body", flat=True)
        .first()
    )


def _record(skill: Skill, versions: list[SkillVersion], libraries: set[str]) -> SkillRecord:
    newest = versions[-1] if versions else None
    return SkillRecord(
        slug=skill.slug,
        status=skill.status,
        validity=skill.validity,
        name=newest.name if newest else skill.slug,
        description=newest.description if newest else "",
        type=newest.type if newest else "",
        versions=len(versions),
        libraries=tuple(sorted(libraries)),
    )
