"""SKILL.md files: reading one, reading folders of them, writing one, and naming them.

A skill is front matter (``name``, ``description``, optional ``type`` and
``signature``) between two ``---`` lines, and a Markdown body. A file is read
whole or refused with a reason; nothing is dropped in silence. Format and caps
for people: docs/skills.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, TypeVar

import yaml

from skills.domain.frontmatter import (
    Defect,
    FrontMatter,
    Problem,
    ProblemCode,
    Value,
    read_front_matter,
)

MAX_FILE_BYTES = 1_000_000
MAX_NAME_CHARS = 100


class SkillType(StrEnum):
    """What a skill offers: the values of the search tool's ``types`` filter."""

    UTILITY = "utility"
    PROCEDURE = "procedure"
    GUARD = "guard"


@dataclass(frozen=True, kw_only=True)
class ParsedSkill:
    """One skill as its file says it.

    Attributes:
        path: where it was read; for a library, the resolved path.
        body: the Markdown after the front matter, with ``\\n`` line ends and
            without blank lines around it.
        metadata: every other front matter key; values are text, None, lists
            and mappings.
        problems: what was recovered; empty for a clean file.
        companions: files beside SKILL.md, relative, which the model is not given.
    """

    path: str
    name: str
    description: str
    type: SkillType
    body: str
    signature: str | None = None
    metadata: Mapping[str, Value] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    companions: tuple[str, ...] = ()

    @property
    def slug(self) -> str:
        """The name as an identifier; see ``slugify``."""
        return slugify(self.name)

    @property
    def sha256(self) -> str:
        """The content hash; see ``content_sha256``."""
        return content_sha256(
            name=self.name, description=self.description, type=self.type, body=self.body
        )


class InvalidSkill(Exception):
    """A file that isn't a skill: which, at what line (from 1, or None), why, and the fix."""

    def __init__(self, path: str, line: int | None, reason: str, fix: str) -> None:
        where = path if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}. {fix}")
        self.path = path
        self.line = line
        self.reason = reason
        self.fix = fix


def slugify(name: str) -> str:
    """Return ``name`` as a slug: NFKC, case folded, every run of other characters one hyphen.

    Letters, digits and their marks of any script stay, so that
    "Two-Pointer  Pair_Sum" gives "two-pointer-pair-sum" and "前缀 和" gives
    "前缀-和". Empty when the name holds no letter or digit.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    kept = (char if unicodedata.category(char)[0] in "LNM" else " " for char in folded)
    return "-".join("".join(kept).split())


def content_sha256(*, name: str, description: str, type: str, body: str) -> str:
    """Return the hex sha256 of a skill's canonical JSON: sorted keys, no spaces, UTF-8.

    Only what a model can see or filter by takes part, so moving a file or
    changing its licence line makes no new version.
    """
    content = {"body": body, "description": description, "name": name, "type": str(type)}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


# --- Reading one file ------------------------------------------------------------------------

_MARKER = re.compile(r"---[ \t]*")
_FIELDS = ("name", "description", "type", "signature")


def parse_skill(data: bytes, *, path: str) -> ParsedSkill:
    """Return the skill in ``data``; ``path`` is only for messages.

    Raises:
        InvalidSkill: ``data`` isn't a skill.
    """
    try:
        return _parse(_decode(data), path)
    except Defect as defect:
        raise InvalidSkill(path, defect.line, defect.reason, defect.fix) from None


def _parse(text: str, path: str) -> ParsedSkill:
    front, body, problems = _split(text)
    name = " ".join(_required(front, "name").split())
    _check_name(name, front.lines["name"])
    return ParsedSkill(
        path=path,
        name=name,
        description=_required(front, "description"),
        type=_type(front),
        signature=_optional(front, "signature"),
        body=body,
        metadata={key: value for key, value in front.values.items() if key not in _FIELDS},
        problems=(*front.problems, *problems),
    )


def _decode(data: bytes) -> str:
    """Return ``data`` as text with ``\\n`` line ends and no byte order mark."""
    if len(data) > MAX_FILE_BYTES:
        raise Defect(
            line=None,
            reason=f"the file is larger than {MAX_FILE_BYTES // 1_000} KB",
            fix="Move long material into files beside SKILL.md.",
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf_16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        raise Defect(
            line=None if utf_16 else data.count(b"\n", 0, error.start) + 1,
            reason="the file is UTF-16, not UTF-8" if utf_16 else "the file isn't UTF-8",
            fix="Save it as UTF-8.",
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        raise Defect(
            line=text.count("\n", 0, text.index("\0")) + 1,
            reason="the file holds a NUL character",
            fix="Delete it, or save the file as UTF-8 if it is UTF-16.",
        )
    return text


def _split(text: str) -> tuple[FrontMatter, str, list[Problem]]:
    """Return front matter, body and problems of ``text``.

    Only the first marker line and the next one delimit: later ``---`` lines
    are horizontal rules or samples in the body.
    """
    # Not splitlines(): it also breaks at characters that are ordinary text here.
    lines = text.split("\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if not _MARKER.fullmatch(lines[first]):
        raise Defect(
            line=first + 1,
            reason="the file has no front matter",
            fix="Start it with a --- line, then name: and description:, then a --- line.",
        )
    close = next((n for n in range(first + 1, len(lines)) if _MARKER.fullmatch(lines[n])), None)
    if close is None:
        raise Defect(
            line=first + 1,
            reason="the front matter is never closed",
            fix="Add a --- line after its last key.",
        )
    front = read_front_matter("\n".join(lines[first + 1 : close]), first_line=first + 2)
    body = _without_blank_edges(lines[close + 1 :])

    problems = []
    if first > 0:
        problems.append(
            Problem(ProblemCode.BLANK_LINES_FIRST, 1, "blank lines before the front matter")
        )
    if not body:
        problems.append(Problem(ProblemCode.EMPTY_BODY, close + 1, "the skill has no body"))
    return front, body, problems


def _without_blank_edges(lines: list[str]) -> str:
    """Return ``lines`` joined; an indented first line keeps its indent (it may be code)."""
    first = next((number for number, line in enumerate(lines) if line.strip()), len(lines))
    return "\n".join(lines[first:]).rstrip()


def _optional(front: FrontMatter, key: str) -> str | None:
    value = front.values.get(key)
    if value is not None and not isinstance(value, str):
        raise Defect(
            line=front.lines[key],
            reason=f"{key} is a {'list' if isinstance(value, list) else 'mapping'}, not text",
            fix=f"Put the value of {key} in double quotes.",
        )
    return (value or "").strip() or None


def _required(front: FrontMatter, key: str) -> str:
    value = _optional(front, key)
    if value is None:
        raise Defect(
            line=front.lines.get(key, front.first_line),
            reason=f"{key} is missing or empty",
            fix=f"Add a line '{key}: ...' to the front matter"
            " (in double quotes if the text starts with #).",
        )
    return value


def _check_name(name: str, line: int) -> None:
    slug = slugify(name)
    if not slug:
        raise Defect(
            line=line,
            reason="the name holds no letter or digit",
            fix="Name the skill with words, as in 'prefix-sum'.",
        )
    if max(len(name), len(slug)) > MAX_NAME_CHARS:
        raise Defect(
            line=line,
            reason=f"the name is longer than {MAX_NAME_CHARS} characters",
            fix="Shorten it and put the rest into the description.",
        )


def _type(front: FrontMatter) -> SkillType:
    written = _optional(front, "type")
    if written is None:
        return SkillType.PROCEDURE
    try:
        return SkillType(written)
    except ValueError:
        raise Defect(
            line=front.lines["type"],
            reason=f"type is {written[:40]!r}",
            fix=f"Use one of {', '.join(SkillType)}, or leave the line out for procedure.",
        ) from None


# --- Writing one file ------------------------------------------------------------------------


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # what parse_skill refuses must not be written

    def represent_text(self, text: str) -> yaml.ScalarNode:
        # Outside double quotes PyYAML writes some line breaks that it then reads as spaces.
        style = None if text.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_PlainDumper.add_representer(str, _PlainDumper.represent_text)


def render_skill(
    *,
    name: str,
    description: str,
    type: str,
    body: str,
    signature: str | None = None,
    metadata: Mapping[str, Value] | None = None,
) -> str:
    """Return the text of a SKILL.md that ``parse_skill`` reads back as the same skill."""
    front: dict[str, Value] = {"name": name, "description": description, "type": str(type)}
    if signature is not None:
        front["signature"] = signature
    front.update(metadata or {})
    block = yaml.dump(front, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=2**31)
    return f"---\n{block}---\n{body}\n"


# --- Reading folders -------------------------------------------------------------------------


@dataclass(frozen=True)
class Clash:
    """Different files whose names give one slug: no one may choose between them but the user."""

    slug: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class LoadedLibrary:
    """Everything found below some folders.

    Attributes:
        skills: every readable skill by slug, then path, clashing ones included.
        invalid: what couldn't be read, by path.
        clashes: groups of ``skills`` that share a slug.
        roots: the folders, as they were named.
    """

    skills: tuple[ParsedSkill, ...]
    invalid: tuple[InvalidSkill, ...]
    clashes: tuple[Clash, ...]
    roots: tuple[str, ...] = ()

    @property
    def clean(self) -> tuple[ParsedSkill, ...]:
        """The skills that take part in no clash."""
        clashing = {clash.slug for clash in self.clashes}
        return tuple(skill for skill in self.skills if skill.slug not in clashing)


def load_library(roots: Iterable[str | os.PathLike[str]]) -> LoadedLibrary:
    """Return all skills below the folders ``roots``, following links.

    A file is one skill however many links or roots lead to it. The order of
    ``roots`` doesn't change the result.
    """
    roots = tuple(roots)
    invalid: list[InvalidSkill] = []
    files = list(_files_below({_resolved(root) for root in roots}, invalid))
    return _gathered(
        files,
        skill_files={file: _resolved(file) for file in files if is_skill_file(file)},
        read=lambda path: _read(Path(path)),
        invalid=invalid,
        roots=tuple(sorted({_shown(Path(root)) for root in roots})),
    )


def load_members(
    members: Iterable[PurePosixPath], *, read: Callable[[PurePosixPath], bytes], root: str
) -> LoadedLibrary:
    """Return all skills among the files ``members``, by the same rules as folders.

    Args:
        members: relative paths of every file, those beside a SKILL.md included.
        read: returns the bytes of a SKILL.md; it may raise InvalidSkill.
        root: what holds them, as people know it.
    """
    files = list(members)
    skill_files = {file: file for file in files if is_skill_file(file)}
    return _gathered(files, skill_files=skill_files, read=read, invalid=[], roots=(root,))


_AnyPath = TypeVar("_AnyPath", bound=PurePath)


def _gathered(
    files: Sequence[_AnyPath],
    *,
    skill_files: Mapping[_AnyPath, _AnyPath],
    read: Callable[[_AnyPath], bytes],
    invalid: list[InvalidSkill],
    roots: tuple[str, ...],
) -> LoadedLibrary:
    """Return the library of ``skill_files``, which are paths among ``files`` by what they lead to.

    ``invalid`` holds what couldn't be reached; what can't be read joins it.
    """
    companions = _companions(files, skill_files)
    skills = []
    for path in set(skill_files.values()):
        try:
            skill = parse_skill(read(path), path=_shown(path))
        except InvalidSkill as error:
            invalid.append(error)
        else:
            skills.append(replace(skill, companions=tuple(sorted(companions[path]))))
    skills.sort(key=lambda skill: (skill.slug, skill.path))
    return LoadedLibrary(
        skills=tuple(skills),
        invalid=tuple(sorted(invalid, key=lambda error: error.path)),
        clashes=tuple(_clashes(skills)),
        roots=roots,
    )


def _files_below(roots: set[Path], invalid: list[InvalidSkill]) -> Iterator[Path]:
    """Yield every file below ``roots``; what can't be reached goes to ``invalid``.

    Each folder is entered once, by its resolved path, so loops of links end.
    """
    entered = set()
    pending = sorted(roots, reverse=True)  # the last is popped first: outer before inner
    while pending:
        path = pending.pop()
        try:
            if path.is_dir():
                if (resolved := _resolved(path)) not in entered:
                    entered.add(resolved)
                    pending.extend(sorted(path.iterdir(), reverse=True))
            elif not path.exists():
                reason = "the link leads nowhere" if path.is_symlink() else "it doesn't exist"
                invalid.append(InvalidSkill(_shown(path), None, reason, "Correct the path."))
            elif path in roots and not is_skill_file(path):
                reason = "it is neither a folder nor a SKILL.md"
                invalid.append(InvalidSkill(_shown(path), None, reason, "Name a folder of skills."))
            else:
                yield path
        except OSError as error:
            invalid.append(_unreadable(path, error))


def _companions(
    files: Iterable[_AnyPath], skill_files: Mapping[_AnyPath, _AnyPath]
) -> dict[_AnyPath, set[str]]:
    """Return the names of the other files of each skill, relative to the nearest SKILL.md."""
    owners: dict[PurePath, _AnyPath] = {file.parent: path for file, path in skill_files.items()}
    companions: dict[_AnyPath, set[str]] = defaultdict(set)
    for file in files:
        folder = next((parent for parent in file.parents if parent in owners), None)
        if folder is not None and file not in skill_files:
            companions[owners[folder]].add(_shown(file.relative_to(folder)))
    return companions


def _clashes(skills: Iterable[ParsedSkill]) -> Iterator[Clash]:
    paths = defaultdict(list)
    for skill in skills:
        paths[skill.slug].append(skill.path)
    for slug, group in paths.items():
        if len(group) > 1:
            yield Clash(slug, tuple(group))


def is_skill_file(path: PurePath) -> bool:
    """Return whether a file of this name holds a skill."""
    return path.name.casefold() == "skill.md"


def _read(path: Path) -> bytes:
    """Return the bytes of ``path``, one more than allowed at most.

    Raises:
        InvalidSkill: it isn't a regular file (a pipe would block for ever) or can't be read.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidSkill(_shown(path), None, "it isn't a regular file", "Remove it.")
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InvalidSkill:
    reason = f"it can't be read ({error.strerror})"
    return InvalidSkill(_shown(path), None, reason, "Check its permissions.")


def _resolved(path: str | os.PathLike[str]) -> Path:
    # Unlike Path.resolve, realpath raises nothing on a loop of links.
    return Path(os.path.realpath(path))


def _shown(path: PurePath) -> str:
    """Return ``path`` as text that any database and page can hold, whatever its bytes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
