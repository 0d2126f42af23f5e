"""Freezing skill versions into libraries, and reading them back for search."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from django.db import transaction
from django.db.models import Max

from skills.domain.retrieval import Document
from skills.models import Library, LibraryEntry, SkillVersion, Status
from workbench.kernel.identity import sha256_of
from workbench.kernel.versions import split_version


class LibraryMissing(Exception):
    """No library of this slug was imported."""


class VersionMissing(LibraryMissing):
    """The library is there, and this version of it isn't."""


class LibraryQuarantined(Exception):
    """A library that is to be frozen or run holds a quarantined skill."""


def freeze_library(*, slug: str, versions: Iterable[SkillVersion]) -> Library:
    """Return the library of ``slug`` with exactly these versions, stored once per content.

    Raises:
        LibraryQuarantined: one of the skills is quarantined.
    """
    versions = list(versions)
    _refuse_quarantined(slug, versions)
    digest = sha256_of(sorted(version.sha256 for version in versions))
    with transaction.atomic():
        stored = Library.objects.filter(slug=slug, sha256=digest).first()
        if stored:
            return stored
        last = Library.objects.filter(slug=slug).aggregate(n=Max("number"))["n"] or 0
        library = Library.objects.create(slug=slug, number=last + 1, sha256=digest)
        LibraryEntry.objects.bulk_create(
            (LibraryEntry(library=library, skill_version=version) for version in versions),
            batch_size=400,
        )
    return library


def library_named(name: str) -> Library:
    """Return the library that a file means: the newest of a slug, or the version ``slug@number``.

    Raises:
        LibraryMissing: there is none.
        LibraryQuarantined: one of its skills is quarantined.
    """
    slug, number = split_version(name)
    versions = Library.objects.filter(slug=slug).order_by("-number")
    library = versions.first() if number is None else versions.filter(number=number).first()
    if library is None:
        newest = versions.first()
        if newest is not None:
            raise VersionMissing(
                f"the library '{slug}' has no version {number}; its newest is {newest.number}"
            )
        known = sorted(set(Library.objects.values_list("slug", flat=True)))
        raise LibraryMissing(
            f"there is no library '{slug}'; import one with: python3 manage.py import_skills DIR "
            f"--library {slug} (known: {', '.join(known) or 'none yet'})"
        )
    _refuse_quarantined(slug, versions_of(library.sha256))
    return library


def versions_of(library_sha256: str) -> list[SkillVersion]:
    """Return the versions in the library of this content, by slug."""
    library = Library.objects.filter(sha256=library_sha256).order_by("id").first()
    if library is None:
        raise LibraryMissing(f"no library has the content {library_sha256[:12]}")
    entries = LibraryEntry.objects.filter(library=library).select_related("skill_version__skill")
    return sorted((e.skill_version for e in entries), key=lambda version: version.skill.slug)


@lru_cache(maxsize=32)
def documents_of(library_sha256: str) -> tuple[Document, ...]:
    """Return the searchable documents of a library; libraries are immutable, so it is cached."""
    return tuple(
        Document(
            id=version.skill.slug,
            name=version.name,
            text=f"{version.description}\n{version.body}",
            type=version.type,
        )
        for version in versions_of(library_sha256)
    )


def _refuse_quarantined(slug: str, versions: list[SkillVersion]) -> None:
    held = sorted(v.skill.slug for v in versions if v.skill.status == Status.QUARANTINED)
    if held:
        raise LibraryQuarantined(
            f"the library '{slug}' holds quarantined skills: {', '.join(held)}; release them or "
            "import a library without them"
        )
