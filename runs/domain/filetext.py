"""Experiment files as text: read once, within bounds, with the line of everything.

A file may be somebody else's. The standard library's reader takes time by the square of a key's
dots, and raises more than it says; so what no experiment file has is refused before it reads.
"""

from __future__ import annotations

import math
import re
import tomllib
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# A file is refused beyond these; no study comes near them, and reading stays quick.
MOST_CHARACTERS = 256_000
MOST_LINES = 3_000
LONGEST_LINE = 20_000
MOST_DOTS = 4
DEEPEST = 8
MOST_VALUES = 10_000
LONGEST_WORD = 200
MOST_PROBLEMS = 100

# Either a match is a whole piece of TOML, or what follows it isn't TOML and nobody reads on.
# Nothing here is tried twice: the time is that of the characters.
_PIECE = re.compile(
    r"""
    (?P<text>
        \"{3}(?:[^"\\]++|\\[\s\S]|"(?!""))*+"{0,5}
      | '{3}(?:[^']++|'(?!''))*+'{0,5}
      | "(?:[^"\\\n]++|\\.)*+"?
      | '[^'\n]*+'?
    )
  | (?P<comment>\#[^\n]*+)
  | (?P<open>[\[{])
  | (?P<close>[\]}])
  | (?P<dot>\.)
  | (?P<value>[=,])
  | (?P<line>\n)
  | (?P<word>[^\s"'\#\[\]{}.=,]++)
    """,
    re.VERBOSE,
)
_HEAD = re.compile(r"\s*\[\[?\s*([\w.-]+)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s"'.=]+))\s*[.=]""")
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the file: where, what, and the fix."""

    line: int | None
    message: str


class Unreadable(Exception):
    """The text can't be read as an experiment file; ``problems`` says where and why."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(problem.message for problem in problems))


class Lines:
    """The lines of a file's tables and keys, by a scan of its own: tomllib keeps no positions."""

    def __init__(self, text: str) -> None:
        self._found: dict[tuple[str, int, str | None], int] = {}
        current, seen = "", {"": 1}
        for number, line in enumerate(text.split("\n"), start=1):
            if match := _HEAD.match(line):
                current = match[1]
                seen[current] = seen.get(current, 0) + 1
                self._found.setdefault((current, seen[current] - 1, None), number)
            elif match := _KEY.match(line):
                key = next(part for part in match.groups() if part is not None)
                self._found.setdefault((current, seen[current] - 1, key), number)

    def of(self, table: str, index: int = 0, key: str | None = None) -> int | None:
        """Return the line of a key, or of its table where it has none of its own, or None.

        Args:
            table: empty for the top of the file.
            index: which of the ``[[table]]`` entries, from 0.
            key: None for the entry's own head.
        """
        found = self._found.get((table, index, key))
        if found is None and table:
            found = self._found.get((table, index, None))
            if found is None and key:  # written as an inline table at the top
                return self._found.get(("", 0, table))
        return found


@lru_cache(maxsize=4)
def lines_of(text: str) -> Lines:
    """Return where the tables and keys of ``text`` are."""
    return Lines(text)


def read_toml(text: str) -> Mapping[str, Any]:
    """Return what the experiment file ``text`` holds, whatever it means.

    All readers of one file get the same mapping, so nobody may change it.

    Raises:
        Unreadable: it is no TOML, or holds what no experiment file has.
    """
    data, problems = _read(text)
    if problems:
        raise Unreadable(problems)
    return data


def has_comments(text: str) -> bool:
    """Return whether a comment stands anywhere in ``text``."""
    return any(piece.lastgroup == "comment" for piece in _PIECE.finditer(text))


def unseen(text: str) -> tuple[int, str] | None:
    """Return line and code point of the first character that nobody sees or that steers others.

    Tabs and line feeds are none.
    """
    if text.isascii() and text.translate(_PLAIN).isprintable():
        return None
    for at, character in enumerate(text):
        if character.isprintable() or character in "\t\n":
            continue
        if unicodedata.category(character) in _UNSEEN:
            return text.count("\n", 0, at) + 1, f"U+{ord(character):04X}"
    return None


_PLAIN = {ord("\t"): " ", ord("\n"): " "}


@lru_cache(maxsize=4)
def _read(text: str) -> tuple[dict[str, Any], tuple[Problem, ...]]:
    fault = _excess(text)
    if fault:
        return {}, (fault,)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        found = re.search(r"at line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + (not text.endswith("\n"))
        return {}, (Problem(line or 1, f"not valid TOML: {error}"),)
    problems = []
    for problem in _wrong_values(data, lines_of(text)):
        problems.append(problem)
        if len(problems) == MOST_PROBLEMS:
            break
    return data, tuple(sorted(problems, key=lambda problem: problem.line or 0))


def _excess(text: str) -> Problem | None:
    """Return the first thing that no experiment file has so much of, or None."""
    if len(text) > MOST_CHARACTERS:
        return Problem(None, f"it has more than {MOST_CHARACTERS:,} characters; shorten it")
    if text.count("\n") > MOST_LINES:
        return Problem(MOST_LINES + 1, f"it has more than {MOST_LINES:,} lines; shorten it")
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) > LONGEST_LINE:
            message = f"this line has more than {LONGEST_LINE:,} characters; shorten it"
            return Problem(number, message)
    depth = dots = values = 0
    for piece in _PIECE.finditer(text):
        kind = piece.lastgroup
        message = ""
        if kind == "dot":
            dots += 1
            if dots > MOST_DOTS:
                message = f"no key has more than {MOST_DOTS} dots; write tables instead"
        elif kind == "word":
            if piece.end() - piece.start() > LONGEST_WORD:
                message = f"no key or number has more than {LONGEST_WORD} characters; shorten it"
        elif kind in ("open", "close", "value", "line"):
            dots = 0
            depth += (kind == "open") - (kind == "close")
            values += kind == "value"
            if depth > DEEPEST:
                message = (
                    f"it is nested too deeply to be an experiment file; at most {DEEPEST} brackets"
                )
            elif values > MOST_VALUES:
                message = f"it holds more than {MOST_VALUES:,} values; shorten its lists"
        if message:
            return Problem(text.count("\n", 0, piece.start()) + 1, message)
    return None


def _wrong_values(data: Mapping[str, Any], lines: Lines) -> Iterator[Problem]:
    """Yield the values and keys that can't be stored or shown, whatever key they stand at."""
    for name, value in data.items():
        tables = value if isinstance(value, list) else [value]
        for index, table in enumerate(tables):
            if isinstance(table, dict):
                for key, inner in table.items():
                    for message in _faults_in({key: inner}):
                        yield Problem(lines.of(name, index, key), message)
            else:
                for message in _faults_in(table):
                    yield Problem(lines.of("", 0, name), message)
        for message in _text_faults(name):
            yield Problem(lines.of("", 0, name), message)


def _faults_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _text_faults(key)
            yield from _faults_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _faults_in(inner)
    elif isinstance(value, str):
        yield from _text_faults(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield "nan and inf are no numbers here; write a number, or leave the key out"
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        yield f"a whole number has to be between -2^63 and 2^63; this one has {_digits(value)}"


def _digits(value: int) -> str:
    return f"{value.bit_length()} bits"


def _text_faults(text: str) -> Iterator[str]:
    if found := unseen(text):
        yield f"a text holds {found[1]}, which nobody sees or which changes what is seen; remove it"
