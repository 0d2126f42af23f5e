"""Skills and libraries as JSON, and uploading a library as a zip."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from django.http import Http404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from skills.domain.skillfile import LoadedLibrary, SkillType
from skills.domain.ziplibrary import MAX_ZIP_BYTES, UnsafeArchive
from skills.models import Library, Skill, SkillVersion, Status, Validity
from skills.selectors import (
    ENTRY_LISTING,
    LIBRARY_LISTING,
    SKILL_LISTING,
    VERSION_LISTING,
    LibraryRecord,
    SkillRecord,
    entries_of,
    library_records,
    library_version,
    newest_libraries,
    skill_record,
    skill_records,
)
from skills.services.importing import Imported, NothingToImport
from skills.services.libraries import LibraryQuarantined
from skills.services.uploading import (
    BadSlug,
    SkillsLeftOut,
    check_slug,
    read_library,
    store_library,
)
from workbench.kernel.api import Conflict, NoParameters, TooLarge, checked_query
from workbench.kernel.uploads import FORM_BYTES
from workbench.rest import Endpoint, StreamParser, checked_body, listed, media_type_of
from workbench.schema import listing_schema

_COPY_BYTES = 64 * 1024
_IN_MEMORY_BYTES = 1_000_000


class _Records(serializers.ListSerializer[Any]):
    """Rows with what a page of them needs, read together."""

    def to_representation(self, data: Any) -> Any:
        rows = list(data)
        if rows and isinstance(rows[0], Skill):
            return super().to_representation(skill_records(rows))
        return super().to_representation(library_records(rows))


class SkillOutput(serializers.Serializer[Any]):
    """One skill by its newest version, with the libraries that hold any of its versions."""

    slug = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    type = serializers.CharField(help_text=f"{', '.join(SkillType)}; empty without a version")
    status = serializers.ChoiceField(choices=Status.choices)
    validity = serializers.ChoiceField(choices=Validity.choices)
    versions = serializers.IntegerField(help_text="how many there are; the last is the newest")
    libraries = serializers.ListField(child=serializers.CharField())
    versions_url = serializers.SerializerMethodField()

    class Meta:
        list_serializer_class = _Records

    def get_versions_url(self, record: SkillRecord) -> str:
        return reverse("api-skill-versions", kwargs={"slug": record.slug})


class SkillVersionOutput(serializers.Serializer[Any]):
    """One immutable text of a skill."""

    number = serializers.IntegerField()
    sha256 = serializers.CharField()
    name = serializers.CharField()
    description = serializers.CharField()
    type = serializers.ChoiceField(choices=[kind.value for kind in SkillType])
    body = serializers.CharField()
    companions = serializers.ListField(
        child=serializers.CharField(), help_text="files beside it, which no model is given"
    )
    problems = serializers.ListField(
        child=serializers.CharField(), help_text="what was recovered when it was read"
    )


class LibraryOutput(serializers.Serializer[Any]):
    """One version of a library."""

    slug = serializers.CharField()
    number = serializers.IntegerField()
    sha256 = serializers.CharField()
    skills = serializers.IntegerField(help_text="how many it holds")
    entries_url = serializers.SerializerMethodField()
    versions_url = serializers.SerializerMethodField()

    class Meta:
        list_serializer_class = _Records

    def get_entries_url(self, record: LibraryRecord) -> str:
        where = {"slug": record.slug, "number": record.number}
        return reverse("api-library-entries", kwargs=where)

    def get_versions_url(self, record: LibraryRecord) -> str:
        return reverse("api-library-versions", kwargs={"slug": record.slug})


class EntryOutput(serializers.Serializer[Any]):
    """One skill as a library holds it."""

    slug = serializers.CharField(source="skill_version.skill.slug")
    version = serializers.IntegerField(source="skill_version.number")
    sha256 = serializers.CharField(source="skill_version.sha256")
    name = serializers.CharField(source="skill_version.name")
    description = serializers.CharField(source="skill_version.description")
    type = serializers.CharField(source="skill_version.type")
    status = serializers.ChoiceField(
        choices=Status.choices, source="skill_version.skill.status", help_text="where it stands now"
    )


class LibraryQuery(serializers.Serializer[Any]):
    """What a bare zip says beside itself, in its address."""

    library = serializers.CharField(max_length=100, help_text="slug; of a new one or of one there")
    skip_invalid = serializers.BooleanField(
        default=False, help_text="import the usable skills although others are left out"
    )


class LibraryInput(LibraryQuery):
    """A zip of skills and the library that they become."""

    file = serializers.FileField()


class UploadedOutput(serializers.Serializer[Any]):
    """What came of an upload."""

    library = LibraryOutput()
    same = serializers.BooleanField(help_text="whether this version was there before")
    advice = serializers.CharField(
        allow_blank=True,
        help_text="says so where the library's name alone means a newer version than this one",
    )
    added = serializers.ListField(child=serializers.CharField(), help_text="new skills")
    changed = serializers.ListField(
        child=serializers.CharField(), help_text="skills that got a new version"
    )
    unchanged = serializers.IntegerField(help_text="how many were stored before")
    left_out = serializers.ListField(
        child=serializers.CharField(), help_text="files that could not be used, and why"
    )


class ZipParser(StreamParser):
    """A zip as the whole body."""

    media_type = "application/zip"


class Skills(Endpoint):
    """List the skills by slug."""

    @listing_schema(SKILL_LISTING, SkillOutput)
    def get(self, request: Request) -> Response:
        return listed(request, Skill.objects.all(), listing=SKILL_LISTING, output=SkillOutput)


class OneSkill(Endpoint):
    """Show one skill."""

    @extend_schema(responses=SkillOutput)
    def get(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        record = skill_record(slug)
        if record is None:
            raise Http404
        return Response(SkillOutput(record).data)


class SkillVersions(Endpoint):
    """List a skill's versions with their texts, the newest first."""

    @listing_schema(VERSION_LISTING, SkillVersionOutput)
    def get(self, request: Request, slug: str) -> Response:
        found = SkillVersion.objects.filter(skill__slug=slug)
        if not Skill.objects.filter(slug=slug).exists():
            raise Http404
        return listed(request, found, listing=VERSION_LISTING, output=SkillVersionOutput)


class Libraries(Endpoint):
    """Libraries: all of them by their newest version, and a new version by upload."""

    parser_classes = (MultiPartParser, ZipParser)
    takes_query = True
    hash_body = False
    largest_body = MAX_ZIP_BYTES + FORM_BYTES

    @listing_schema(LIBRARY_LISTING, LibraryOutput)
    def get(self, request: Request) -> Response:
        """List the libraries by slug, each by its newest version."""
        found = newest_libraries()
        return listed(request, found, listing=LIBRARY_LISTING, output=LibraryOutput)

    _loaded: LoadedLibrary
    _library: str

    def prepare(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Read and judge the zip."""
        if media_type_of(request) == ZipParser.media_type:
            given = checked_query(request.query_params, LibraryQuery)
            _check_slug(given["library"])
            with tempfile.SpooledTemporaryFile(
                _IN_MEMORY_BYTES, dir=str(settings.UPLOADS_DIR)
            ) as file:
                _copy(request.stream, file)
                self._loaded = _read(file, "the zip", given)
        else:
            checked_query(request.query_params, NoParameters)
            given = checked_body(request, LibraryInput)
            _check_slug(given["library"])
            self._loaded = _read(given["file"], str(given["file"].name), given)
        self._library = given["library"]

    @extend_schema(
        request={"multipart/form-data": LibraryInput, "application/zip": bytes},
        parameters=[
            OpenApiParameter("library", str, description="Of a bare zip: the library's slug."),
            OpenApiParameter("skip_invalid", bool, description="Of a bare zip: as in the form."),
        ],
        responses={201: UploadedOutput},
    )
    def post(self, request: Request) -> Response:
        """Upload skills as a zip; they become the newest version of a library.

        Either a form, or the zip alone as `application/zip` with `library` in the address. Every
        SKILL.md in it counts, by the rules of docs/skills.md. Where one can't be used nothing is
        imported, unless `skip_invalid` says so; an archive that isn't safe is refused whole, and
        `fields.file` names each of its members and why.
        """
        try:
            imported = store_library(
                loaded=self._loaded, slug=self._library, actor=request.user, at=timezone.now()
            )
        except NothingToImport as refused:
            raise ValidationError({"file": [str(refused)]}) from refused
        except LibraryQuarantined as refused:
            raise Conflict(str(refused)) from refused
        return Response(UploadedOutput(_plain(imported)).data, status=status.HTTP_201_CREATED)


class OneLibrary(Endpoint):
    """Show the newest version of a library."""

    @extend_schema(responses=LibraryOutput)
    def get(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        [record] = library_records([_library_or_404(slug)])
        return Response(LibraryOutput(record).data)


class LibraryVersions(Endpoint):
    """List a library's versions, the newest first."""

    @listing_schema(VERSION_LISTING, LibraryOutput)
    def get(self, request: Request, slug: str) -> Response:
        _library_or_404(slug)
        found = Library.objects.filter(slug=slug)
        return listed(request, found, listing=VERSION_LISTING, output=LibraryOutput)


class LibraryEntries(Endpoint):
    """List what one version of a library holds, by skill."""

    @listing_schema(ENTRY_LISTING, EntryOutput)
    def get(self, request: Request, slug: str, number: int) -> Response:
        found = entries_of(_library_or_404(slug, number))
        return listed(request, found, listing=ENTRY_LISTING, output=EntryOutput)


def _library_or_404(slug: str, number: int | None = None) -> Library:
    found = library_version(slug, number)
    if found is None:
        raise Http404
    return found


def _check_slug(slug: str) -> None:
    try:
        check_slug(slug)
    except BadSlug as error:
        raise ValidationError({"library": [str(error)]}) from error


def _copy(stream: IO[bytes] | None, file: IO[bytes]) -> None:
    left = MAX_ZIP_BYTES
    while stream and (block := stream.read(_COPY_BYTES)):
        left -= len(block)
        if left < 0:
            raise TooLarge(f"The zip may have {MAX_ZIP_BYTES:,} bytes.")
        file.write(block)


def _read(file: IO[bytes], file_name: str, given: Mapping[str, Any]) -> LoadedLibrary:
    try:
        return read_library(
            file=file,
            file_name=file_name,
            slug=given["library"],
            skip_invalid=given["skip_invalid"],
        )
    except UnsafeArchive as refused:
        said = [str(problem) for problem in refused.problems]
        said += [f"and {refused.left_out} more"] if refused.left_out else []
        raise ValidationError({"file": said}) from refused
    except SkillsLeftOut as refused:
        raise ValidationError({"file": _left_out(refused.loaded)}) from refused
    except NothingToImport as refused:
        raise ValidationError({"file": [str(refused)]}) from refused


def _plain(imported: Imported) -> dict[str, Any]:
    return {
        "library": library_records([imported.library])[0],
        "same": imported.same,
        "advice": imported.advice,
        "added": [slug for slug in imported.created if slug not in imported.known],
        "changed": [slug for slug in imported.created if slug in imported.known],
        "unchanged": len(imported.unchanged),
        "left_out": _left_out(imported.loaded),
    }


def _left_out(loaded: LoadedLibrary) -> list[str]:
    said = [str(error) for error in loaded.invalid]
    return said + [
        f"{', '.join(clash.paths)}: all are named '{clash.slug}'. Rename all but one."
        for clash in loaded.clashes
    ]
