"""Libraries of skills: the list, one version with what it changed and who used it, and uploads."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from runs.models import Cell
from runs.views.listing import ListControls, list_controls, page_or_404
from runs.views.versions import VersionLink, version_links
from skills.domain.skillfile import LoadedLibrary, SkillType
from skills.domain.ziplibrary import MAX_MEMBERS, MAX_SKILL_BYTES, MAX_ZIP_BYTES, UnsafeArchive
from skills.models import Library, LibraryEntry, Status
from skills.selectors import (
    ENTRY_LISTING,
    LIBRARY_LISTING,
    Change,
    difference,
    entries_of,
    library_records,
    library_version,
    newest_libraries,
)
from skills.services.importing import Imported, NothingToImport
from skills.services.libraries import LibraryQuarantined
from skills.services.uploading import BadSlug, SkillsLeftOut, check_slug, upload_library
from workbench.kernel.forms import Fault, posted
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only
from workbench.kernel.uploads import takes_upload
from workbench.kernel.versions import versioned

# Of each kind of change, of experiments, and of the lists of an upload's result.
SHOWN = 100
LIST_SHOWN = 500
DESCRIPTION_SHOWN = 200
# So many changes are open at once; more are a click away.
FEW = 12


@dataclass(frozen=True)
class LibraryRow:
    """The newest version of one library."""

    slug: str
    number: int
    skills: int
    url: str


@dataclass(frozen=True)
class LibrariesPage:
    """Every library."""

    rows: tuple[LibraryRow, ...]
    controls: ListControls


@dataclass(frozen=True)
class EntryRow:
    """One skill as the library holds it."""

    slug: str
    name: str
    description: str
    type: str
    status: str
    version: int
    url: str


@dataclass(frozen=True)
class Changes:
    """What this version changed against the one before it; lists are cut, counts are whole."""

    before: int
    before_url: str
    added: tuple[Change, ...]
    removed: tuple[Change, ...]
    changed: tuple[Change, ...]
    n_added: int
    n_removed: int
    n_changed: int
    shown: int
    few: bool


@dataclass(frozen=True)
class UsedBy:
    """One experiment that searched this library, and which versions of it."""

    experiment: str
    versions: tuple[int, ...]
    url: str


@dataclass(frozen=True)
class LibraryPage:
    """One version of a library."""

    slug: str
    number: int
    newest: bool
    newest_url: str
    sha256: str
    skills: int
    versions: tuple[VersionLink, ...]
    changes: Changes | None
    used_by: tuple[UsedBy, ...]
    rows: tuple[EntryRow, ...]
    controls: ListControls
    upload_url: str


@dataclass(frozen=True)
class MemberFault:
    """What is wrong with one place of the archive; ``line`` is empty where none is meant."""

    place: str
    line: str
    reason: str
    fix: str


@dataclass(frozen=True)
class ClashView:
    """Files whose names give one slug."""

    slug: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class LibraryNewPage:
    """The upload form, with what was wrong with the last try."""

    library: str
    skip_invalid: bool
    known: tuple[str, ...]
    faults: tuple[Fault, ...]
    members: tuple[MemberFault, ...]
    members_left_out: int
    clashes: tuple[ClashView, ...]
    readable: int
    largest_mb: int
    largest_skill_kb: int
    most_members: str


@dataclass(frozen=True)
class LibraryUploadedPage:
    """What came of an upload."""

    slug: str
    number: int
    name: str
    same: bool
    newest: int
    older: bool
    url: str
    skills: int
    added: tuple[str, ...]
    n_added: int
    changed: tuple[str, ...]
    n_changed: int
    n_unchanged: int
    n_left_out: int
    recovered: tuple[MemberFault, ...]
    invalid: tuple[MemberFault, ...]
    clashes: tuple[ClashView, ...]


@require_safe
@unblinded_only
def libraries(request: HttpRequest) -> HttpResponse:
    """Show every library by its newest version."""
    page = page_or_404(newest_libraries(), LIBRARY_LISTING, request)
    rows = tuple(
        LibraryRow(found.slug, found.number, found.skills, _url(found.slug))
        for found in library_records(page.rows)
    )
    controls = list_controls(page, url=reverse("libraries"), columns={"slug": "Library"})
    return render_page(request, "runs/libraries.html", LibrariesPage(rows, controls))


@require_safe
@unblinded_only
def library(request: HttpRequest, slug: str, number: int | None = None) -> HttpResponse:
    """Show one version of a library, the newest without ``number``."""
    found = library_version(slug, number)
    newest = library_version(slug)
    if found is None or newest is None:
        raise Http404
    page = page_or_404(entries_of(found), ENTRY_LISTING, request)
    [record] = library_records([found])
    is_newest = found.pk == newest.pk
    return render_page(
        request,
        "runs/library.html",
        LibraryPage(
            slug=slug,
            number=found.number,
            newest=is_newest,
            newest_url=_url(slug),
            sha256=found.sha256,
            skills=record.skills,
            versions=version_links(found, newest.number, _url),
            changes=_changes(found),
            used_by=_used_by(slug),
            rows=tuple(_entry_row(entry) for entry in page.rows),
            controls=list_controls(
                page,
                url=_url(slug, None if number is None else found.number),
                columns={"slug": "Skill"},
                choices={
                    "type": ("Type", tuple(SkillType)),
                    "status": ("Status", tuple(Status.values)),
                },
            ),
            upload_url=f"{reverse('library-new')}?library={slug}",
        ),
    )


@takes_upload(MAX_ZIP_BYTES)
@require_http_methods(["GET", "HEAD", "POST"])
@unblinded_only
def new(request: HttpRequest) -> HttpResponse:
    """Show the upload form; store what was uploaded and show what came of it."""
    if request.method != "POST":
        return _form(request, library=request.GET.get("library", ""))
    given = posted(request, "library", "skip_invalid", files=("file",))
    slug, skip = given["library"].strip(), bool(given["skip_invalid"])
    file = request.FILES.get("file")
    faults = []
    try:
        check_slug(slug)
    except BadSlug as error:
        faults.append(Fault("library", f"Library: {error}."))
    if file is None:
        faults.append(Fault("file", "File: choose a .zip."))
    if faults or file is None:
        return _form(request, slug, skip, faults=faults)
    try:
        imported = upload_library(
            file=file,
            file_name=str(file.name),
            slug=slug,
            skip_invalid=skip,
            actor=request.user,
            at=timezone.now(),
        )
    except UnsafeArchive as refused:
        faults = [
            Fault(
                "file",
                "File: nothing of this zip was read; why is listed above the form.",
            )
        ]
        members = tuple(MemberFault(p.member, "", p.reason, p.fix) for p in refused.problems)
        return _form(request, slug, skip, faults, members=members, left_out=refused.left_out)
    except SkillsLeftOut as refused:
        faults = [Fault("file", f"File: {refused}; they are listed above the form.")]
        return _form(request, slug, skip, faults, loaded=refused.loaded)
    except (NothingToImport, LibraryQuarantined) as refused:
        return _form(request, slug, skip, [Fault("file", f"File: {refused}.")])
    return render_page(request, "runs/library_uploaded.html", _uploaded(imported))


def _form(
    request: HttpRequest,
    library: str = "",
    skip_invalid: bool = False,
    faults: list[Fault] | None = None,
    *,
    members: tuple[MemberFault, ...] = (),
    left_out: int = 0,
    loaded: LoadedLibrary | None = None,
) -> HttpResponse:
    invalid = _invalid(loaded) if loaded else ()
    page = LibraryNewPage(
        library=library,
        skip_invalid=skip_invalid,
        known=tuple(
            Library.objects.order_by("slug").values_list("slug", flat=True).distinct()[:LIST_SHOWN]
        ),
        faults=tuple(faults or ()),
        members=members or invalid[:LIST_SHOWN],
        members_left_out=left_out + max(0, len(invalid) - LIST_SHOWN),
        clashes=_clashes(loaded) if loaded else (),
        readable=len(loaded.clean) if loaded else 0,
        largest_mb=MAX_ZIP_BYTES // 1_000_000,
        largest_skill_kb=MAX_SKILL_BYTES // 1_000,
        most_members=f"{MAX_MEMBERS:,}",
    )
    return render_page(request, "runs/library_new.html", page, status=400 if faults else 200)


def _uploaded(imported: Imported) -> LibraryUploadedPage:
    loaded = imported.loaded
    changed = tuple(slug for slug in imported.created if slug in imported.known)
    added = tuple(slug for slug in imported.created if slug not in imported.known)
    recovered = tuple(
        MemberFault(skill.path, str(problem.line), problem.message, "")
        for skill in loaded.clean
        for problem in skill.problems
    )
    return LibraryUploadedPage(
        slug=imported.library.slug,
        number=imported.library.number,
        name=versioned(imported.library.slug, imported.library.number),
        same=imported.same,
        newest=imported.newest,
        older=imported.library.number != imported.newest,
        url=_url(imported.library.slug, imported.library.number),
        skills=len(loaded.clean),
        added=added[:LIST_SHOWN],
        n_added=len(added),
        changed=changed[:LIST_SHOWN],
        n_changed=len(changed),
        n_unchanged=len(imported.unchanged),
        n_left_out=len(loaded.skills) - len(loaded.clean) + len(loaded.invalid),
        recovered=recovered[:LIST_SHOWN],
        invalid=_invalid(loaded)[:LIST_SHOWN],
        clashes=_clashes(loaded),
    )


def _invalid(loaded: LoadedLibrary) -> tuple[MemberFault, ...]:
    return tuple(
        MemberFault(error.path, str(error.line or ""), error.reason, error.fix)
        for error in loaded.invalid
    )


def _clashes(loaded: LoadedLibrary) -> tuple[ClashView, ...]:
    return tuple(ClashView(clash.slug, clash.paths[:10]) for clash in loaded.clashes[:SHOWN])


def _url(slug: str, number: int | None = None) -> str:
    if number is None:
        return reverse("library", kwargs={"slug": slug})
    return reverse("library-version", kwargs={"slug": slug, "number": number})


def _changes(after: Library) -> Changes | None:
    before = (
        Library.objects.filter(slug=after.slug, number__lt=after.number).order_by("-number").first()
    )
    if before is None:
        return None
    found = difference(before, after, most=SHOWN)
    return Changes(
        before=before.number,
        before_url=_url(before.slug, before.number),
        added=found.added,
        removed=found.removed,
        changed=found.changed,
        n_added=found.n_added,
        n_removed=found.n_removed,
        n_changed=found.n_changed,
        shown=SHOWN,
        few=found.n_added + found.n_removed + found.n_changed <= FEW,
    )


def _used_by(slug: str) -> tuple[UsedBy, ...]:
    found: dict[str, set[int]] = {}
    rows = (
        Cell.objects.filter(library__slug=slug)
        .order_by("-experiment__created_at", "experiment__slug", "library__number")
        .values_list("experiment__slug", "library__number", "experiment__created_at")
        .distinct()
    )
    for experiment, number, _ in rows[:SHOWN]:
        found.setdefault(experiment, set()).add(number)
    return tuple(
        UsedBy(name, tuple(sorted(numbers)), reverse("experiment", kwargs={"slug": name}))
        for name, numbers in found.items()
    )


def _entry_row(entry: LibraryEntry) -> EntryRow:
    version = entry.skill_version
    return EntryRow(
        slug=version.skill.slug,
        name=version.name,
        description=version.description[:DESCRIPTION_SHOWN],
        type=version.type,
        status=version.skill.status,
        version=version.number,
        url=reverse("skill", kwargs={"slug": version.skill.slug}),
    )
