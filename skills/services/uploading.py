"""Libraries that people upload as a zip."""

from __future__ import annotations

from datetime import datetime
from typing import IO, Any

from django.db import transaction

from skills.domain.skillfile import LoadedLibrary, slugify
from skills.domain.ziplibrary import read_zip
from skills.services.importing import Imported, NothingToImport, import_skills
from workbench.trail import record_event

LONGEST_SLUG = 100
RESERVED = "new"


class BadSlug(ValueError):
    """A library's name can't be used as it was written; the text says what would do."""


class SkillsLeftOut(Exception):
    """Some of what was uploaded can't be imported as it is, so nothing was.

    Attributes:
        loaded: everything that was read, with what is wrong.
    """

    def __init__(self, loaded: LoadedLibrary) -> None:
        count = len(loaded.invalid) + len(loaded.clashes)
        places = "place" if count == 1 else "places"
        super().__init__(f"nothing was imported: {count} {places} must be corrected first")
        self.loaded = loaded


def upload_library(
    *,
    file: IO[bytes],
    file_name: str,
    slug: str,
    skip_invalid: bool,
    actor: Any,
    at: datetime,
) -> Imported:
    """Store the skills of the zip ``file`` and freeze them as the newest library of ``slug``.

    Args:
        skip_invalid: import the usable skills although others are left out.

    Raises:
        BadSlug: ``slug`` is no slug.
        UnsafeArchive: nothing of the archive is read.
        SkillsLeftOut: a skill is invalid or clashes, and ``skip_invalid`` is false.
        NothingToImport: no skill could be used.
        LibraryQuarantined: one of the skills is quarantined.
    """
    loaded = read_library(file=file, file_name=file_name, slug=slug, skip_invalid=skip_invalid)
    return store_library(loaded=loaded, slug=slug, actor=actor, at=at)


def read_library(
    *, file: IO[bytes], file_name: str, slug: str, skip_invalid: bool
) -> LoadedLibrary:
    """Return the skills of the zip ``file`` that will be stored; nothing is written.

    Raises:
        BadSlug: ``slug`` is no slug.
        UnsafeArchive: nothing of the archive is read.
        SkillsLeftOut: a skill is invalid or clashes, and ``skip_invalid`` is false.
        NothingToImport: it holds no skill.
    """
    check_slug(slug)
    loaded = read_zip(file, name=file_name)
    if not loaded.skills and not loaded.invalid:
        raise NothingToImport(
            f"{file_name} holds no SKILL.md; pack the folder in which the skills' folders stand"
        )
    if (loaded.invalid or loaded.clashes) and not skip_invalid:
        raise SkillsLeftOut(loaded)
    return loaded


def store_library(*, loaded: LoadedLibrary, slug: str, actor: Any, at: datetime) -> Imported:
    """Store what was read and freeze it as the newest library of ``slug``.

    Raises:
        NothingToImport: no skill could be used.
        LibraryQuarantined: one of the skills is quarantined.
    """
    with transaction.atomic():
        imported = import_skills(loaded=loaded, library_slug=slug)
        record_event(
            actor=actor,
            verb="library.uploaded",
            subject=f"{slug}, number {imported.library.number}",
            at=at,
        )
    return imported


def check_slug(slug: str) -> None:
    """Refuse what is no slug.

    Raises:
        BadSlug: with a slug that would do, where there is one.
    """
    if slug == RESERVED:
        raise BadSlug(f"{RESERVED} is the address of the upload form; choose another")
    wanted = slugify(slug)[:LONGEST_SLUG].strip("-")
    if not slug or slug != wanted:
        example = f", such as {wanted}" if wanted else ""
        raise BadSlug(
            f"write it in small letters, digits and hyphens, at most {LONGEST_SLUG} of them"
            f"{example}"
        )
