"""Reads over skills and libraries that pages share."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, OuterRef, QuerySet

from skills.domain.skillfile import SkillType
from skills.models import Library, LibraryEntry, Skill, SkillVersion, Status, Validity
from workbench.kernel.lists import Filter, Listing


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


@dataclass(frozen=True)
class VersionText:
    """What one version of a skill gives to search and model."""

    number: int
    name: str
    description: str
    type: str
    body: str

    def as_text(self) -> str:
        """Return it as one text: what is searched and shown, then the body."""
        head = f"name: {self.name}\ntype: {self.type}\ndescription: {self.description}"
        return f"{head}\n\n{self.body}"


def changed_versions(
    slugs: Collection[str], *, libraries: Collection[int]
) -> dict[tuple[int, str], VersionText]:
    """Return what each of ``libraries`` holds of each of ``slugs``, by library and slug."""
    entries = LibraryEntry.objects.filter(
        library__in=libraries, skill_version__skill__slug__in=slugs
    ).select_related("skill_version__skill")
    return {
        (entry.library_id, entry.skill_version.skill.slug): VersionText(
            entry.skill_version.number,
            entry.skill_version.name,
            entry.skill_version.description,
            entry.skill_version.type,
            entry.skill_version.body,
        )
        for entry in entries
    }


def texts_in(library: Library, slugs: Collection[str]) -> dict[str, SkillText]:
    """Return the texts of those of ``slugs`` that ``library`` holds, by slug."""
    entries = LibraryEntry.objects.filter(
        library=library, skill_version__skill__slug__in=slugs
    ).select_related("skill_version__skill")
    versions = [entry.skill_version for entry in entries]
    return {v.skill.slug: SkillText(v.skill.slug, v.name, v.body) for v in versions}


def _held_by(library_slug: str) -> QuerySet[LibraryEntry, Any]:
    """Return the skills that a version of this library holds, as a subquery."""
    return LibraryEntry.objects.filter(library__slug=library_slug).values("skill_version__skill")


SKILL_LISTING = Listing(
    sorts={"slug": "slug", "status": "status", "validity": "validity"},
    default_sort="slug",
    filters={
        "status": Filter("status", tuple(Status.values), meaning="where a skill stands"),
        "validity": Filter("validity", tuple(Validity.values), meaning="whether it holds"),
        "library": Filter("pk__in", parse=_held_by, meaning="slug of a library that holds it"),
    },
)


def skill_records(skills: Sequence[Skill]) -> list[SkillRecord]:
    """Return the records of ``skills``, in their order, in two queries."""
    versions: dict[int, list[SkillVersion]] = defaultdict(list)
    found = SkillVersion.objects.filter(skill__in=skills)
    for version in found.defer("body").order_by("skill", "number"):
        versions[version.skill_id].append(version)
    libraries: dict[int, set[str]] = defaultdict(set)
    for skill, slug in (
        LibraryEntry.objects.filter(skill_version__skill__in=skills)
        .values_list("skill_version__skill", "library__slug")
        .distinct()
    ):
        libraries[skill].add(slug)
    return [_record(skill, versions[skill.pk], libraries[skill.pk]) for skill in skills]


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


# --- libraries ------------------------------------------------------------------

LIBRARY_LISTING = Listing(sorts={"slug": "slug"}, default_sort="slug")
VERSION_LISTING = Listing(sorts={"number": "number"}, default_sort="-number")
ENTRY_LISTING = Listing(
    sorts={"slug": "skill_version__skill__slug"},
    default_sort="slug",
    filters={
        "type": Filter("skill_version__type", tuple(SkillType), meaning="what a skill offers"),
        "status": Filter(
            "skill_version__skill__status", tuple(Status.values), meaning="where it stands now"
        ),
    },
)


@dataclass(frozen=True)
class LibraryRecord:
    """One version of a library, with how many skills it holds."""

    slug: str
    number: int
    sha256: str
    skills: int


@dataclass(frozen=True)
class Change:
    """A skill that two versions of a library hold differently; None where one doesn't hold it."""

    slug: str
    before: int | None
    after: int | None


@dataclass(frozen=True)
class Difference:
    """What a library's version changed; each list is cut, each count is whole."""

    added: tuple[Change, ...]
    removed: tuple[Change, ...]
    changed: tuple[Change, ...]
    n_added: int
    n_removed: int
    n_changed: int


def newest_libraries() -> QuerySet[Library, Any]:
    """Return the newest version of every library."""
    newer = Library.objects.filter(slug=OuterRef("slug"), number__gt=OuterRef("number"))
    return Library.objects.filter(~Exists(newer))


def library_version(slug: str, number: int | None = None) -> Library | None:
    """Return one version of a library, the newest without ``number``, or None."""
    found = Library.objects.filter(slug=slug).order_by("-number")
    return (found if number is None else found.filter(number=number)).first()


def library_records(libraries: Sequence[Library]) -> list[LibraryRecord]:
    """Return the records of ``libraries``, in their order, in one query."""
    counts = Counter(
        dict(
            LibraryEntry.objects.filter(library__in=libraries)
            .values_list("library")
            .annotate(n=Count("pk"))
        )
    )
    return [
        LibraryRecord(library.slug, library.number, library.sha256, counts[library.pk])
        for library in libraries
    ]


def entries_of(library: Library) -> QuerySet[LibraryEntry, Any]:
    """Return what the library holds, with each skill and the version's text left out."""
    return (
        LibraryEntry.objects.filter(library=library)
        .select_related("skill_version__skill")
        .defer("skill_version__body")
    )


def difference(before: Library, after: Library, *, most: int) -> Difference:
    """Return what ``after`` holds otherwise than ``before``, at most ``most`` of each kind.

    Both are versions of one library; it takes two queries, whatever they hold.
    """
    was, now = _alone(before, beside=after), _alone(after, beside=before)
    added = [Change(slug, None, now[slug]) for slug in sorted(now.keys() - was.keys())]
    removed = [Change(slug, was[slug], None) for slug in sorted(was.keys() - now.keys())]
    changed = [Change(slug, was[slug], now[slug]) for slug in sorted(was.keys() & now.keys())]
    return Difference(
        added=tuple(added[:most]),
        removed=tuple(removed[:most]),
        changed=tuple(changed[:most]),
        n_added=len(added),
        n_removed=len(removed),
        n_changed=len(changed),
    )


def _alone(library: Library, *, beside: Library) -> dict[str, int]:
    """Return the version numbers, by skill, that ``library`` holds and ``beside`` doesn't."""
    held = LibraryEntry.objects.filter(library=beside).values("skill_version")
    found = LibraryEntry.objects.filter(library=library).exclude(skill_version__in=held)
    return dict(found.values_list("skill_version__skill__slug", "skill_version__number"))
