"""The YAML block at the head of a SKILL.md, read strictly.

Every scalar is the text its author wrote: ``no`` is "no" and ``1_0:30`` is
"1_0:30", never a boolean or a number; only an empty value, ``~`` and ``null``
mean "nothing". Anchors, aliases, tags, duplicate keys and deep nesting are
refused while scanning, before anything is built from them.

The commonest defect of public skills, an unquoted value that YAML can't read
(``description: Use for overlaps: sort``), is recovered as the text it plainly
is, and reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NoReturn, TypeAlias

import yaml

MAX_BYTES = 64_000
MAX_DEPTH = 20

# What is left of YAML: no numbers, booleans or dates, so always fit for JSON.
Value: TypeAlias = "str | list[Value] | dict[str, Value] | None"


class ProblemCode(StrEnum):
    """What was recovered, or is likely to surprise the author."""

    UNQUOTED_TEXT = "unquoted_text"
    COMMENT_IN_VALUE = "comment_in_value"
    BLANK_LINES_FIRST = "blank_lines_first"
    EMPTY_BODY = "empty_body"


@dataclass(frozen=True)
class Problem:
    """Something a reader coped with; ``line`` counts from 1 in the file."""

    code: ProblemCode
    line: int
    message: str


class Defect(Exception):
    """Text that can't be read: where (file line from 1), why, and what to do about it."""

    def __init__(self, *, line: int | None, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.line = line
        self.reason = reason
        self.fix = fix


@dataclass(frozen=True)
class FrontMatter:
    """The keys of a front matter, in file order, and the file line of each.

    ``first_line`` is the file line of the first key, whether there is one or not.
    """

    first_line: int
    values: Mapping[str, Value]
    lines: Mapping[str, int]
    problems: tuple[Problem, ...]


def read_front_matter(text: str, *, first_line: int) -> FrontMatter:
    """Return the front matter in ``text``, whose first line is line ``first_line`` of its file.

    Raises:
        Defect: the text is too large, isn't YAML even after recovery, isn't a
            mapping, or uses something that is refused.
    """
    if len(text.encode()) > MAX_BYTES:
        raise Defect(
            line=first_line,
            reason=f"the front matter is larger than {MAX_BYTES // 1_000} KB",
            fix="Move the text below the closing --- line.",
        )
    _refuse_unprintable(text, first_line)

    problems: list[Problem] = []
    try:
        root = _compose(text, first_line)
    except yaml.MarkedYAMLError:
        text, problems = _quote_broken_entries(text, first_line)
        try:
            root = _compose(text, first_line)
        except yaml.MarkedYAMLError as error:
            raise _syntax_defect(error, first_line) from None

    if root is None:
        return FrontMatter(first_line=first_line, values={}, lines={}, problems=())
    if not isinstance(root, yaml.MappingNode):
        raise Defect(
            line=first_line,
            reason="the front matter isn't a list of 'key: value' lines",
            fix="Write one key a line, as in 'name: my-skill'.",
        )
    values = _mapping(root, first_line)
    lines = {key.value: _line(key, first_line) for key, _ in root.value}
    problems.extend(_values_cut_by_a_comment(root, text, first_line))
    return FrontMatter(first_line=first_line, values=values, lines=lines, problems=tuple(problems))


# --- YAML, and what of it is refused ---------------------------------------------------------


class _StrictLoader(yaml.BaseLoader):
    """Scans plain YAML only.

    The refusals sit in the scanner because later is too late: 3,000 nested
    brackets cost seconds before the first node exists, and aliases turn 258
    bytes into megabytes.
    """

    def __init__(self, text: str, first_line: int) -> None:
        super().__init__(text)
        self._first_line = first_line

    def _refuse(self, reason: str, fix: str) -> NoReturn:
        raise Defect(line=self._first_line + self.line, reason=reason, fix=fix)

    def _refuse_reference(self) -> NoReturn:
        self._refuse(
            "a value starts with & or *, which YAML reads as an anchor or alias",
            "Put the value in double quotes.",
        )

    def fetch_anchor(self) -> None:
        self._refuse_reference()

    def fetch_alias(self) -> None:
        self._refuse_reference()

    def fetch_tag(self) -> None:
        self._refuse(
            "a value starts with !, which YAML reads as a tag",
            "Put the value in double quotes, or remove the tag.",
        )

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803
        self._refuse_depth(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        self._refuse_depth(len(self.indents))
        return bool(super().add_indent(column))

    def _refuse_depth(self, depth: int) -> None:
        if depth >= MAX_DEPTH:
            self._refuse(
                f"the front matter is nested more than {MAX_DEPTH} deep",
                "Put the value in double quotes, or move it below the closing --- line.",
            )


def _compose(text: str, first_line: int) -> yaml.Node | None:
    loader = _StrictLoader(text, first_line)
    try:
        node: yaml.Node | None = loader.get_single_node()
    except (ValueError, OverflowError):  # PyYAML lets them pass: "\UFFFFFFFF", "%YAML 1.9{5000}"
        raise Defect(
            line=first_line + loader.line,
            reason="a \\U escape or a %YAML line holds a number out of range",
            fix="Write the character itself instead of an escape, and no %YAML line.",
        ) from None
    return node


def _syntax_defect(error: yaml.MarkedYAMLError, first_line: int) -> Defect:
    mark = error.problem_mark
    return Defect(
        line=first_line + mark.line if mark else None,
        reason=f"the front matter isn't valid YAML: {error.problem or error.context}",
        fix='Put the value in double quotes (and write a " inside it as \\").',
    )


def _refuse_unprintable(text: str, first_line: int) -> None:
    if found := yaml.reader.Reader.NON_PRINTABLE.search(text):
        raise Defect(
            line=first_line + text.count("\n", 0, found.start()),
            reason=f"the front matter holds the control character U+{ord(found.group()):04X}",
            fix="Delete it.",
        )


# --- From nodes to values --------------------------------------------------------------------

_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})
# PostgreSQL stores no NUL, and no UTF-8 file can hold half a surrogate pair;
# both can still be written as escapes inside double quotes.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def _value(node: yaml.Node, first_line: int) -> Value:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, first_line)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, first_line) for item in node.value]
    if _is_nothing(node):
        return None
    return _text(node, first_line)


def _is_nothing(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.style is None and node.value in _NOTHING


def _text(node: yaml.Node, first_line: int) -> str:
    text = str(node.value)
    if found := _UNSTORABLE.search(text):
        raise Defect(
            line=_line(node, first_line),
            reason=f"a value holds U+{ord(found.group()):04X}, which is no character",
            fix="Write the character itself instead of an escape.",
        )
    return text


def _mapping(node: yaml.MappingNode, first_line: int) -> dict[str, Value]:
    values: dict[str, Value] = {}
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = _line(key_node, first_line)
        if not isinstance(key_node, yaml.ScalarNode) or _is_nothing(key_node):
            raise Defect(line=line, reason="a key isn't text", fix="Put the line in double quotes.")
        key = _text(key_node, first_line)
        if key in seen:
            raise Defect(
                line=line,
                reason=f"the key {key!r} appears twice (first on line {seen[key]})",
                fix="Keep one of the two.",
            )
        seen[key] = line
        values[key] = _value(value_node, first_line)
    return values


def _line(node: yaml.Node, first_line: int) -> int:
    return first_line + int(node.start_mark.line)


def _values_cut_by_a_comment(
    root: yaml.MappingNode, text: str, first_line: int
) -> Iterator[Problem]:
    """Yield a problem for each unquoted value followed by a comment (``Fix bug #12``)."""
    for key, value in root.value:
        if not isinstance(value, yaml.ScalarNode) or value.style is not None:
            continue
        rest_of_line = text[value.end_mark.index :].partition("\n")[0]
        if rest_of_line.lstrip().startswith("#"):
            yield Problem(
                ProblemCode.COMMENT_IN_VALUE,
                _line(key, first_line),
                f"{key.value}: the text from ' #' on is a comment in YAML and was left out;"
                " quote the value if it belongs to it",
            )


# --- Recovery --------------------------------------------------------------------------------

_KEY_LINE = re.compile(r"([A-Za-z_][\w.-]*)[ \t]*:[ \t]+(\S.*)")
# A value that starts with one of these was meant as something other than plain
# text; so was a list or mapping that is never closed.
_NOT_PLAIN = re.compile(r"""["'|>#]|\[[^]]*$|\{[^}]*$""")


def _quote_broken_entries(text: str, first_line: int) -> tuple[str, list[Problem]]:
    """Return ``text`` with every entry that isn't YAML by itself quoted, and what was quoted.

    Line numbers stay as they were.

    Raises:
        Defect: an entry is broken and isn't plain text, so that its meaning is a guess.
    """
    repaired: list[str] = []
    problems: list[Problem] = []
    for entry in _entries(text):
        line = first_line + len(repaired)
        error = _syntax_error("\n".join(entry), line)
        if error is None:
            repaired.extend(entry)
            continue
        key_line = _KEY_LINE.fullmatch(entry[0])
        if key_line is None or any(_KEY_LINE.fullmatch(more.strip()) for more in entry[1:]):
            raise _syntax_defect(error, line)  # wrapped text, or a key indented by mistake?
        key = key_line[1]
        value = " ".join(" ".join([key_line[2], *entry[1:]]).split())
        if _NOT_PLAIN.match(value):
            raise _syntax_defect(error, line)
        quoted = value.replace("'", "''")
        repaired.extend([f"{key}: '{quoted}'", *[""] * (len(entry) - 1)])
        problems.append(
            Problem(
                ProblemCode.UNQUOTED_TEXT,
                line,
                f"{key}: the value isn't valid YAML without quotes; it was read as plain text",
            )
        )
    return "\n".join(repaired), problems


def _entries(text: str) -> Iterator[list[str]]:
    """Yield the lines of ``text`` in groups: an unindented line and those that continue it."""
    group: list[str] = []
    for line in text.split("\n"):
        if group and line.strip() and not line[0].isspace():
            yield group
            group = []
        group.append(line)
    yield group


def _syntax_error(entry: str, line: int) -> yaml.MarkedYAMLError | None:
    try:
        _compose(entry, line)
    except yaml.MarkedYAMLError as error:
        return error
    return None
