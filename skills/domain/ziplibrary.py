"""Zip archives of skills: every member judged before it is read, nothing ever unpacked.

An archive is somebody else's file. Its directory is counted before it is parsed, each member is
judged by its name and kind, and the bytes of a SKILL.md are counted while they inflate. Other
members are known by name alone: they are never inflated, and a zip within the zip is such a name.
What archives may hold, for people: docs/skills.md.
"""

from __future__ import annotations

import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePosixPath
from typing import IO

from skills.domain.skillfile import InvalidSkill, LoadedLibrary, load_members

# Bytes of the archive itself.
MAX_ZIP_BYTES = 20_000_000
MAX_MEMBERS = 10_000
# Of the archive's own list of members; its records are parsed only below this.
MAX_DIRECTORY_BYTES = 2_000_000
MAX_SKILL_BYTES = 64_000
# Of all members together, as the archive states them; and of all SKILL.md files as they inflate.
MAX_TOTAL_BYTES = 50_000_000
MAX_SKILLS_BYTES = 24_000_000
# Text packs ten times; beyond this it is made to swell. Small archives may, they can't do harm.
MAX_RATIO = 100
RATIO_FROM_BYTES = 1_000_000
MAX_NAME_CHARS = 1_000
# Parts of one path, its own name included; and different folders altogether.
MAX_DEPTH = 32
MAX_FOLDERS = 20_000
PROBLEMS_SHOWN = 200

_END = b"PK\x05\x06"
_END_BYTES = 22
_END_64 = b"PK\x06\x07"
_END_64_BYTES = 20
_LONGEST_COMMENT = 65_535
_DRIVE = re.compile(r"[A-Za-z]:")
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OTHER_METHODS = {9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "Zstandard", 95: "XZ"}
# PKWARE's Unix field holds the target of a link, or a device's number, behind 12 bytes.
_UNIX_FIELD, _UNIX_FIXED = 0x000D, 12
# What macOS adds to every archive; it is no part of what was packed.
_APPLE = "__MACOSX"
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
_PACK_AGAIN = "Pack the folder again as an ordinary zip."
_COMMAND = "A larger library can be read from its folder: python3 manage.py import_skills DIR."


@dataclass(frozen=True)
class MemberProblem:
    """Why an archive is refused: the member (empty for all of it), what is wrong, and the fix."""

    member: str
    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.member or 'the archive'}: {self.reason}. {self.fix}"


class UnsafeArchive(Exception):
    """An archive of which nothing is read; ``problems`` are all of them, up to a number.

    Attributes:
        left_out: how many more there are.
    """

    def __init__(self, problems: Iterable[MemberProblem]) -> None:
        found = list(problems)
        self.problems = tuple(found[:PROBLEMS_SHOWN])
        self.left_out = len(found) - len(self.problems)
        super().__init__("\n".join(map(str, self.problems)))


def read_zip(file: IO[bytes], *, name: str) -> LoadedLibrary:
    """Return all skills in the zip ``file``, by the same rules as a folder's.

    Args:
        file: opened for reading and able to seek.
        name: how people know the archive.

    Raises:
        UnsafeArchive: it isn't a zip, or any of its members isn't a plain file below it.
    """
    count = _counted(file)
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            if len(infos) != count:
                raise UnsafeArchive([_damaged("its list of members is not the one it counts")])
            return _read(archive, _checked(infos), name)
    # What the standard library raises for archives that are cut, forged or of other versions.
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError, OSError) as error:
        raise UnsafeArchive([_damaged(str(error) or "it ends too early")]) from error
    except (struct.error, IndexError, OverflowError) as error:
        raise UnsafeArchive([_damaged("its list of members can't be read")]) from error


# --- the archive's own list ------------------------------------------------------------------


def _counted(file: IO[bytes]) -> int:
    """Return how many members the archive counts, from its last bytes alone.

    Raises:
        UnsafeArchive: it isn't a zip, or holds more than is ever parsed.
    """
    size = file.seek(0, 2)
    if size > MAX_ZIP_BYTES:
        raise UnsafeArchive([_too_much(f"it has more than {_mb(MAX_ZIP_BYTES)}")])
    start = max(0, size - _END_BYTES - _LONGEST_COMMENT - _END_64_BYTES)
    file.seek(start)
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < _END_BYTES:
        reason = "it is empty" if not size else "it isn't a zip, or its end is missing"
        raise UnsafeArchive([MemberProblem("", reason, _PACK_AGAIN)])
    if tail[max(0, at - _END_64_BYTES) : at].startswith(_END_64):
        # Its counts would stand elsewhere; nothing below the caps needs it.
        raise UnsafeArchive([_too_much("it is a ZIP64 archive, made for thousands of files")])
    disk, first_disk, here, count, directory = struct.unpack_from("<4HL", tail, at + 4)
    if disk or first_disk or here != count:
        raise UnsafeArchive([MemberProblem("", "it is split into several files", _PACK_AGAIN)])
    if count > MAX_MEMBERS:
        raise UnsafeArchive([_too_much(f"it has {count:,} members, above {MAX_MEMBERS:,}")])
    if directory > MAX_DIRECTORY_BYTES:
        reason = f"the names of its members take more than {_mb(MAX_DIRECTORY_BYTES)}"
        raise UnsafeArchive([_too_much(reason)])
    return int(count)


def _damaged(reason: str) -> MemberProblem:
    return MemberProblem("", f"it is damaged ({reason})", _PACK_AGAIN)


def _too_much(reason: str) -> MemberProblem:
    return MemberProblem("", reason, f"Pack less into one zip. {_COMMAND}")


def _mb(size: int) -> str:
    return f"{size // 1_000_000} MB"


# --- its members -----------------------------------------------------------------------------

_Member = tuple[PurePosixPath, zipfile.ZipInfo]


def _checked(infos: list[zipfile.ZipInfo]) -> list[_Member]:
    """Return the plain files, each with its path.

    Raises:
        UnsafeArchive: naming every member that can't be used and why.
    """
    problems: list[MemberProblem] = []
    files: list[_Member] = []
    seen = _Names()
    for info in infos:
        name = info.orig_filename
        faults = [*_name_faults(name), *_kind_faults(info)]
        if not faults:
            path = PurePosixPath(name)
            if path.parts[:1] == (_APPLE,):
                continue
            folder = name.endswith("/")
            faults = seen.faults_of(path, folder=folder)
            if not folder:
                files.append((path, info))
        problems += [MemberProblem(name, reason, fix) for reason, fix in faults]
    problems += _size_problems(infos)
    if problems:
        raise UnsafeArchive(problems)
    return files


_Fault = tuple[str, str]


def _name_faults(name: str) -> Iterator[_Fault]:
    """Yield what makes a name something else than a relative path."""
    rename = "Rename it and pack again."
    if not name or len(name) > MAX_NAME_CHARS:
        yield f"its name has {len(name):,} characters, not 1 to {MAX_NAME_CHARS:,}", rename
        return
    if "\0" in name:
        yield "its name holds a NUL character", rename
    if "\\" in name:
        yield "its name holds a backslash", "Pack with / between folders."
    if name.startswith("/") or _DRIVE.match(name):
        yield "its path is absolute", "Pack the folder by a relative path."
    if ".." in name.split("/"):
        yield "its path leads out of the archive by ..", "Pack from inside the folder."
    parts = len(PurePosixPath(name).parts)
    if not parts:
        yield "its name names nothing", rename
    if parts > MAX_DEPTH:
        yield f"its path has {parts} parts, above {MAX_DEPTH}", "Pack it less deep."


def _kind_faults(info: zipfile.ZipInfo) -> Iterator[_Fault]:
    """Yield what makes a member something else than a plain file or folder."""
    kind = _KINDS.get(stat.S_IFMT(info.external_attr >> 16))
    if kind or _is_unix_link(info.extra):
        yield f"it is {kind or 'a link'}", "Pack the file itself in its place."
    if info.flag_bits & _ENCRYPTED:
        yield "it is encrypted", "Pack without a password."
    if info.compress_type not in _METHODS:
        method = _OTHER_METHODS.get(info.compress_type, f"method {info.compress_type}")
        yield f"it is packed by {method}", "Pack it with deflate, the usual method, or stored."


def _is_unix_link(extra: bytes) -> bool:
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == _UNIX_FIELD and length > _UNIX_FIXED:
            return True
        extra = extra[4 + length :]
    return False


class _Folder:
    """A folder as it is spelled, met in some member's path."""

    __slots__ = ("fault", "inside", "key")

    def __init__(self, key: bytes, fault: _Fault | None = None) -> None:
        self.key = key
        self.fault = fault
        self.inside: dict[str, _Folder] = {}


class _Names:
    """The paths so far; two that one file system would take for one are told.

    Each folder is judged once and kept by its name alone, whatever lies in it: the time and
    memory that names take are those of their letters.
    """

    def __init__(self) -> None:
        self._top = _Folder(b"")
        self._folders = 0
        # By folded path the path that had it first, as parts and how many of them.
        self._known: dict[bytes, tuple[tuple[str, ...], int, bool]] = {}

    def faults_of(self, path: PurePosixPath, *, folder: bool) -> list[_Fault]:
        """Return what speaks against ``path`` beside those before it, and keep it.

        Raises:
            UnsafeArchive: there are more folders than are kept.
        """
        at = self._top
        for depth, part in enumerate(path.parts[:-1], start=1):
            at = at.inside.get(part) or self._entered(at, path.parts, depth)
        fault = self._fault(_key(at.key, path.name), path.parts, len(path.parts), folder=folder)
        return [found for found in (at.fault, fault) if found][:1]

    def _entered(self, above: _Folder, parts: tuple[str, ...], depth: int) -> _Folder:
        self._folders += 1
        if self._folders > MAX_FOLDERS:
            raise UnsafeArchive([_too_much(f"it has more than {MAX_FOLDERS:,} folders")])
        name = parts[depth - 1]
        key = _key(above.key, name)
        fault = above.fault or self._fault(key, parts, depth, folder=True)
        above.inside[name] = entered = _Folder(key, fault)
        return entered

    def _fault(
        self, key: bytes, parts: tuple[str, ...], depth: int, *, folder: bool
    ) -> _Fault | None:
        if key not in self._known:
            self._known[key] = (parts, depth, folder)
            return None
        parts_before, depth_before, was_folder = self._known[key]
        shown, before = "/".join(parts[:depth]), "/".join(parts_before[:depth_before])
        if before != shown:
            fix = "Rename one of them: some systems take these names for one."
            return f"{shown} differs from {before} by case or form alone", fix
        if was_folder != folder:
            return f"{shown} is a file and a folder", "Rename one of them."
        return None if folder else ("it is there twice", "Remove one of them.")


def _key(above: bytes, name: str) -> bytes:
    """Return what a path has in common with those that some system would take for it.

    Not the folded path itself: one letter may fold to eighteen, in every folder below it.
    """
    for part in _folded(name).split("/"):  # some letters fold to one with a slash in it
        above = blake2b(part.encode("utf-8", "surrogatepass"), key=above, digest_size=16).digest()
    return above


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", name).casefold())


def _size_problems(infos: list[zipfile.ZipInfo]) -> Iterator[MemberProblem]:
    total = sum(info.file_size for info in infos)
    packed = sum(info.compress_size for info in infos)
    if total > MAX_TOTAL_BYTES:
        yield _too_much(f"its members have {_mb(total)} together, above {_mb(MAX_TOTAL_BYTES)}")
    elif total > RATIO_FROM_BYTES and total > MAX_RATIO * packed:
        reason = f"it swells to more than {MAX_RATIO} times its size"
        yield MemberProblem("", reason, "Leave out the files that hold one thing over and over.")


# --- its skills ------------------------------------------------------------------------------


def _read(archive: zipfile.ZipFile, files: list[_Member], name: str) -> LoadedLibrary:
    by_path = dict(files)
    broken: list[MemberProblem] = []
    total = 0

    def read(path: PurePosixPath) -> bytes:
        nonlocal total
        try:
            with archive.open(by_path[path]) as member:
                data = member.read(MAX_SKILL_BYTES + 1)
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
            broken.append(
                MemberProblem(str(path), f"it is damaged ({error or 'cut off'})", _PACK_AGAIN)
            )
            return b""
        if len(data) > MAX_SKILL_BYTES:
            reason = f"the file is larger than {MAX_SKILL_BYTES // 1_000} KB"
            fix = "Move long material into files beside SKILL.md."
            raise InvalidSkill(str(path), None, reason, fix)
        total += len(data)
        if total > MAX_SKILLS_BYTES:
            reason = f"its SKILL.md files have more than {_mb(MAX_SKILLS_BYTES)} together"
            raise UnsafeArchive([_too_much(reason)])
        return data

    loaded = load_members(by_path, read=read, root=name)
    if broken:
        raise UnsafeArchive(broken)
    return loaded
