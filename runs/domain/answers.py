"""The answer in a model's reply: a program, the content of a box, a choice or a number.

Sources: the paper's extraction order for code (first Python block, first
other block, raw reply); CommonMark 0.31, sections 4.5 and 5.2, for what a
fenced block is. Reasoning that a model shows before ``</think>`` is never part
of the answer.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from markdown_it import MarkdownIt

from runs.domain.checking import normalise_text
from runs.domain.rationals import ascii_maths, parse_rational

# 8,192 tokens are some 32,000 characters; eight times that is no answer but a flood.
MAX_REPLY_CHARS = 262_144

THINK_END = "</think>"
PYTHON_LABELS = frozenset({"python", "python3", "py", "py3"})
# How many closing think tags, counted from the end, may turn out to be text inside the program.
_MAX_LITERAL_TAGS = 8


class BoxState(StrEnum):
    """What became of the last ``\\boxed`` of a reply."""

    COMPLETE = "complete"
    UNTERMINATED = "unterminated"
    ABSENT = "absent"


@dataclass(frozen=True)
class Box:
    """The last box of a reply; ``content`` is None unless it is complete."""

    state: BoxState
    content: str | None = None


@dataclass(frozen=True)
class _Block:
    """A fenced block: its label, its content, and where its lines lie in the text."""

    label: str
    code: str
    first_line: int
    end_line: int
    closed: bool


# Fences inside an HTML block are no fences to CommonMark, but models write
# <answer> on the line before one; so HTML blocks are not recognised.
_MARKDOWN = MarkdownIt("commonmark").disable(["html_block", "reference"])
_MARKDOWN.core.ruler.enableOnly(["normalize", "block"])

_FENCE_LINE = re.compile(r" {0,3}(`{3,}[^`]*|~{3,}.*)$")
_LABEL = re.compile(r"[\s{.]*([A-Za-z0-9_+#-]+)")
_TOP_LEVEL_CODE = re.compile(
    r"^(?:(?:async +)?def \w+ *\(|class \w+ *[(:]|import \w|from [\w.]+ import |@\w)", re.MULTILINE
)


def extract_code(reply: str) -> str:
    """Return the program in ``reply``, without blank lines around it; "" if there is none.

    The first non-blank block labelled python, py, python3 or py3; else the
    first other non-blank fenced block; else the raw text without lone fence
    lines. An unclosed fence runs to the end. Everything up to the last
    ``</think>`` is dropped first, unless that tag is text inside the program
    (in a string or a comment of the block that is the answer).
    """
    text = reply.replace("\r\n", "\n").replace("\r", "\n")
    ends = [match.end() for match in re.finditer(re.escape(THINK_END), text)]
    starts = [0, *ends][-_MAX_LITERAL_TAGS - 1 :]
    for start in starts:
        rest = text[start:]
        blocks = _blocks(rest)
        chosen = _choose(blocks, rest)
        tags = [end - start for end in ends if end > start]
        if all(_is_literal(rest, chosen, tag) for tag in tags):
            return _program(rest, chosen)
    return ""  # unreachable: after the last tag there is none left to be literal


def strip_reasoning(reply: str) -> str:
    """Return ``reply`` after its last ``</think>``, stripped of white space."""
    return reply.rpartition(THINK_END)[2].strip()


def last_box(text: str) -> Box:
    r"""Return the last ``\boxed{...}`` of ``text``, its braces counted.

    ``\boxed 7`` holds one character, as in TeX. A box that never closes is
    UNTERMINATED: the reply was cut, so an earlier box is not its answer.
    """
    matches = list(re.finditer(r"\\f?boxed(?![A-Za-z])\s*", text))
    if not matches:
        return Box(BoxState.ABSENT)
    start = matches[-1].end()
    if start >= len(text):
        return Box(BoxState.UNTERMINATED)
    if text[start] != "{":
        return Box(BoxState.COMPLETE, text[start])
    depth, at = 0, start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return Box(BoxState.COMPLETE, text[start + 1 : at].strip())
        at += 1
    return Box(BoxState.UNTERMINATED)


def extract_text(reply: str) -> str | None:
    """Return the short answer in ``reply``: a box, else what follows "answer:", else all of it.

    None stands for no answer: an unterminated box or an empty reply.
    """
    text = strip_reasoning(reply)
    box = last_box(text)
    if box.state is BoxState.UNTERMINATED:
        return None
    if box.content is not None:
        return _unwrap_text(box.content) or None
    marked = _after_marker(text)
    return (marked if marked is not None else text) or None


def extract_choice(reply: str, options: Mapping[str, str]) -> str | None:
    """Return the key of ``options`` that ``reply`` chooses; None if none or not one alone.

    Tried in this order: the last box, what follows the last "answer is" or
    "answer:", the last line if it is a bare option, the whole reply, and at last
    a key that is the only one standing in parentheses or bold type.
    """
    text = strip_reasoning(reply)
    box = last_box(text)
    if box.state is BoxState.UNTERMINATED:
        return None
    if box.content is not None:
        return _read_choice(_unwrap_text(box.content), options)
    marked = _after_marker(text)
    if marked is not None:
        return _read_choice(marked, options)
    return _last_line(text, options) or _read_choice(text, options) or _only_mark(text, options)


def extract_number(reply: str) -> Fraction | None:
    """Return the number ``reply`` answers with, exactly as written; None if there is none.

    The value of the last box; else the one after the last "answer is" or
    "answer:"; else the last one of the reply. Units don't count; a number that is
    an exponent, a radicand or a denominator, or is multiplied by a root or by pi, is
    none by itself.
    """
    text = strip_reasoning(reply)
    box = last_box(text)
    if box.state is BoxState.UNTERMINATED:
        return None
    if box.content is not None:
        return _whole_number_text(box.content)
    marked = _after_marker(text)
    if marked is not None:
        sentence = re.split(r"[.;](?:\s|$)", marked, maxsplit=1)[0]
        marked = sentence if re.search(r"\d", sentence) else marked
        value = _whole_number_text(marked)
        if value is not None or re.search(r"\d", marked):
            return value if value is not None else next(iter(_standing_numbers(marked)), None)
    numbers = _standing_numbers(text)
    return numbers[-1] if numbers else None


# -- code ------------------------------------------------------------------------------------


def _blocks(text: str) -> list[_Block]:
    lines = text.split("\n")
    found = []
    for token in _MARKDOWN.parse(text):
        if token.type != "fence" or token.map is None:
            continue
        first, end = token.map
        label = _LABEL.match(token.info)
        last = lines[end - 1].strip(" >") if end - 1 < len(lines) else ""
        closed = end - 1 > first and set(last) == {token.markup[0]}
        found.append(
            _Block(
                label=label.group(1).lower() if label else "",
                code=token.content,
                first_line=first,
                end_line=end,
                closed=closed and len(last) >= len(token.markup),
            )
        )
    return found


def _choose(blocks: list[_Block], text: str) -> _Block | None:
    full = [block for block in blocks if block.code.strip()]
    for block in full:
        if block.label in PYTHON_LABELS:
            return block
    if full and _is_stray_closer(full[0], text):
        return None
    return full[0] if full else None


def _is_stray_closer(block: _Block, text: str) -> bool:
    """Whether an unlabelled fence that never closes ends bare code instead of opening a block."""
    if block.closed or block.label or _TOP_LEVEL_CODE.search(block.code):
        return False
    return _TOP_LEVEL_CODE.search(_lines_before(block, text)) is not None


def _lines_before(block: _Block, text: str) -> str:
    return "\n".join(text.split("\n")[: block.first_line])


def _program(text: str, chosen: _Block | None) -> str:
    if chosen is not None:
        return _trim(chosen.code)
    stray = next((block for block in _blocks(text) if block.code.strip()), None)
    if stray is not None:
        text = _lines_before(stray, text)
    return _trim("\n".join(line for line in text.split("\n") if not _FENCE_LINE.match(line)))


def _trim(code: str) -> str:
    lines = code.split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines).rstrip()


def _is_literal(text: str, chosen: _Block | None, tag_end: int) -> bool:
    """Whether the think tag that ends at ``tag_end`` is text inside the chosen program."""
    tag_start = tag_end - len(THINK_END)
    if chosen is None:
        # Unfenced: prose has apostrophes, so only a tag that is a whole literal counts.
        around = text[tag_start - 1 : tag_start], text[tag_end : tag_end + 1]
        return around[0] == around[1] and around[0] in ("'", '"')
    line = text.count("\n", 0, tag_start)
    if not chosen.first_line < line < chosen.end_line:
        return False
    before = text.split("\n")[chosen.first_line + 1 : line]
    current = text[text.rfind("\n", 0, tag_start) + 1 : tag_start]
    return _ends_in_string_or_comment("\n".join([*before, current]))


def _ends_in_string_or_comment(code: str) -> bool:
    """Whether Python source ``code`` stops inside a string literal or a comment."""
    quote, at = "", 0
    while at < len(code):
        if not quote:
            if code[at] == "#":
                newline = code.find("\n", at)
                if newline < 0:
                    return True
                at = newline
            elif code[at] in "'\"":
                quote = code[at] * 3 if code.startswith(code[at] * 3, at) else code[at]
                at += len(quote) - 1
        elif code[at] == "\\":
            at += 1
        elif code.startswith(quote, at):
            at += len(quote) - 1
            quote = ""
        elif code[at] == "\n" and len(quote) == 1:
            quote = ""
        at += 1
    return bool(quote)


# -- short answers ---------------------------------------------------------------------------

_MARKER = re.compile(
    r"(?:\b(?:final|correct|best|right)\s+)?\b(?:answer|option|choice)\b[*_]*\s*"
    r"(?:is|would\s+be|:|=)[*_]*\s*:?\s*(?=([^\n]+))",
    re.IGNORECASE,
)
_WRAPPERS = " \t\n*_`\"'$“”‘’"


def _after_marker(text: str) -> str | None:
    """Return the rest of the line after the last "answer is" or "answer:", or None."""
    matches = list(_MARKER.finditer(text))
    return matches[-1].group(1).strip() if matches else None


def _unwrap_text(content: str) -> str:
    r"""Return ``content`` without a ``\text{...}`` or its like around all of it."""
    match = re.fullmatch(r"\s*\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}\s*", content)
    return (match.group(1) if match else content).strip()


def _fold(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().strip(_WRAPPERS).split())


# What is said of an option right after it when it is ruled out: "D - this can't be".
_RULED_OUT = re.compile(
    r"[\s.,:;–—*)-]*(?:(?:this|that|it|which|option|is|was|are|be|can|could|would|does|clearly|"
    r"definitely|also)\b\s*)*"
    r"(?:not|no|never|cannot|\w+n['’]t|wrong|incorrect|false|impossible|ruled|eliminated|"
    r"excluded|refuted)\b"
)


def _last_line(text: str, options: Mapping[str, str]) -> str | None:
    """Return the option the last line consists of; a list of the options chooses none of them."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return None
    found, worded = _bare_option(lines[-1], options)
    if worded and {key for line in lines if (key := _bare_option(line, options)[0])} != {found}:
        return None
    return found


def _bare_option(text: str, options: Mapping[str, str]) -> tuple[str | None, bool]:
    """Return the option that is all of ``text`` (or None), and whether its wording is in it."""
    said = _said(text)
    for key, wording in options.items():
        if wording and said == normalise_text(wording):
            return key, True
    for key, rest in _keys_in_front(said, options):
        if not rest:
            return key, False
        if options[key] and normalise_text(rest.lstrip(" .:,-–—")) == normalise_text(options[key]):
            return key, True
    return None, False


def _read_choice(text: str, options: Mapping[str, str]) -> str | None:
    """Return the option that ``text`` names by its key or its wording; None if it names two."""
    found, _ = _bare_option(text, options)
    if found is not None:
        return found
    for key, rest in _keys_in_front(_said(text), options):
        goes_on = re.match(r"\s*(?:[.,:;–—(-]|because\b|since\b|as\b)", rest)
        if goes_on and not _RULED_OUT.match(rest) and not _names_another(text, key, options):
            return key
    return None


def _only_mark(text: str, options: Mapping[str, str]) -> str | None:
    """Return the only key in parentheses or bold type, unless it is ruled out there."""
    keys = set()
    for mark in re.finditer(r"\(([^()\s]{1,20})\)|\*\*\(?([^*()]{1,20}?)[).:]?\*\*", text):
        named = {key for key in options if _fold(key) == _fold(mark[1] or mark[2])}
        if named and _RULED_OUT.match(text[mark.end() : mark.end() + 100].casefold()):
            return None
        keys |= named
    return keys.pop() if len(keys) == 1 else None


def _said(text: str) -> str:
    return re.sub(r"^(?:option|choice)\s+(?=\S)", "", normalise_text(text))


def _keys_in_front(said: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each key that ``said`` begins with, and what follows it."""
    for key in options:
        match = re.match(rf"[(\[{{]?{_standing(key)}[)\]}}]?[*_]*", said)
        if match is not None:
            yield key, said[match.end() :]


def _standing(key: str) -> str:
    """Return a pattern for ``key`` as a word of its own: choice_1 must not answer for choice_10."""
    return rf"(?<![\w'’-]){re.escape(_fold(key))}(?![\w'’-])"


def _names_another(text: str, key: str, options: Mapping[str, str]) -> bool:
    """Whether ``text`` also names an option other than ``key``; letters count as capitals only."""
    for other in options:
        if other == key:
            continue
        single = len(other) == 1
        pattern = rf"(?<![\w'’-]){re.escape(other)}(?![\w'’-])" if single else _standing(other)
        if re.search(pattern, text if single else _fold(text)):
            return True
    return False


# -- numbers ---------------------------------------------------------------------------------

_NUMBER = re.compile(
    r"(?<![\w.])(?=[-+−–]?\s?\$?\.?\d)(?P<sign>[-+−–]?)\s?\$?"
    r"(?P<whole>\d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?!\d)|\d+)?(?P<part>\.\d+)?"
    r"(?:[eE](?P<e>[-+]?\d{1,3})(?![\w.])|\s*(?:×|\\times|\\cdot|\*|x)\s*10\s*"
    r"(?:\^|\*\*)\s*(?:\{(?P<tb>[-+−]?\d{1,3})\}|(?P<t>[-+−]?\d{1,3})))?"
    r"(?:\s?/\s?(?P<over>\d+)(?![\d/.]))?"
)
_FRAC = re.compile(r"([-+−]?)\s*\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}")
# Longer text is no number with a unit.
_MAX_NUMBER_CHARS = 2_000
# In front of or behind a number: it is only a part of the value that is written there.
_PART_BEFORE = re.compile(
    r"(?:\^|_|√|\\sqrt(?:\[[^\]]*\])?|[\w)}]\*\*|\\[dt]?frac|\}|/|\\pm|±)\s*[{(]?\s*$|\d[,:]$|\\sqrt\[$"
)
_PART_AFTER = re.compile(
    r"\s*(?:\^|\*\*[\w({]|√|π|\\(?:sqrt|pi|frac|dfrac|tfrac|pm)(?![A-Za-z])|±)|[,:]\d"
)
_RELATION = re.compile(r"=|≈|≃|≅|∼|\\(?:approx|simeq|cong|sim|thickapprox)(?![A-Za-z])")
_ALTERNATIVES = re.compile(r"\b(?:or|and)\b|;|,(?!\d{3})|\\(?:quad|qquad|lor|land)(?![A-Za-z])")
_POWER = r"(?:\s*\^\s*(?:\{\s*[-−]?\d\s*\}|[-−]?\d|\\circ|\{\s*\\circ\s*\}))?"
_WORDS = re.compile(
    rf"\\(?:text|textrm|textbf|mathrm|mathit|mathsf|rm|mbox|operatorname|unit|si)\s*"
    rf"\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}{_POWER}|\\(?:mu|Omega|AA|ell)(?![A-Za-z])"
)
# Letters that stand for a number or an unknown rather than for a unit.
_NO_UNIT = frozenset({*"eEiknxyzXYZπ", "pi", "or", "and", "to", "of"})
_UNIT_WORD = rf"[^\W\d_]+{_POWER}"
_UNIT_TAIL = re.compile(
    rf"(?<=[\d}})\s.¤°'\"%])\s*/?\s*(?:(?:{_UNIT_WORD}|¤)(?:\s*(?:/|·|\\cdot|\*|\s)\s*"
    rf"(?:{_UNIT_WORD}|¤))*)\.?\s*$"
)
_SIGNS = re.compile(
    r"\\?[%$#]|[€£¥°]|\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\(?:degree|circ)(?![A-Za-z])"
)
_THOUSANDS = re.compile(
    r"(?<![\d.,\w])(\d{1,3})((?:(?:\\[,;:! ]|[ \u00a0\u2009\u202f~]|\{,\})\d{3})+)(?![\d,])"
)
_MIXED = re.compile(
    r"([-+−]?)\s*(\d+)\s*(?:\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))|"
    r"\s(\d+)\s?/\s?(\d+))\s*"
)


def _whole_number_text(content: str) -> Fraction | None:
    """Return the one value that all of ``content`` states: a number, perhaps with a unit.

    ``x = 3``, ``3 \\text{ m/s}^2``, ``1\\frac{1}{2}``, ``2^{10}`` and ``1 000`` do;
    ``2\\sqrt{3}``, ``25 \\pm 1`` and ``3 \\text{ or } 4`` don't.
    """
    if len(content) > _MAX_NUMBER_CHARS:
        return None
    text = ascii_maths(_unwrap_text(content)).strip(_WRAPPERS)
    *before, text = _RELATION.split(text)
    if any(_ALTERNATIVES.search(_WORDS.sub(r" \1 ", part)) for part in before):
        return None
    bare = _without_units(text)
    if bare is None:
        return None
    value = _value(bare)
    if value is not None:
        return value
    # One number among words: "about 25 apples", "25 (rounded)".
    spoken = re.sub(r"\([^()\d]*\)", " ", bare)
    numbers = _standing_numbers(spoken)
    rest = _NUMBER.sub(" ", _FRAC.sub(r"\1\2/\3", spoken))
    plain = re.fullmatch(r"(?:[^\W\d_]{2,}(?![^\W\d_])|[\s.,*'\"’-])*", rest)
    return numbers[0] if plain and len(numbers) == 1 and _are_units(rest) else None


def _without_units(text: str) -> str | None:
    """Return ``text`` without signs and units; None if words in it name another number."""
    for words in _WORDS.findall(text):
        if _standing_numbers(words) or _fold(words) in ("or", "and", "to"):
            return None
    bare = _SIGNS.sub("", _WORDS.sub("¤", text))
    bare = re.sub(r"\\[dt]?frac\s*\{\s*¤\s*\}\s*\{\s*¤\s*\}", "¤", bare)
    bare = re.sub(r"\\[,;:! ](?=\s*(?:¤|$|/|\\cdot|[A-Za-z]))|\\(?:quad|qquad)(?=\s*¤)", " ", bare)
    bare = " ".join(bare.split())
    tail = _UNIT_TAIL.search(bare)
    if tail is not None and _are_units(tail[0]):
        bare = bare[: tail.start()]
    return bare.replace("¤", " ").strip(_WRAPPERS + ".~")


def _are_units(text: str) -> bool:
    words = re.findall(r"[^\W\d_]+", text)
    return _NO_UNIT.isdisjoint(words) and _NO_UNIT.isdisjoint(
        word.casefold() for word in words if len(word) > 1
    )


def _value(text: str) -> Fraction | None:
    mixed = _MIXED.fullmatch(text)
    if mixed is not None:
        sign, whole, *parts = mixed.groups()
        above, below = (int(part) for part in parts if part)
        if not 0 < above < below:
            return None
        value = int(whole) + Fraction(above, below)
        return -value if sign in ("-", "−") else value
    plain = _THOUSANDS.sub(lambda found: found[1] + re.sub(r"\D", "", found[2]), text)
    plain = re.sub(r"(?<=\d)\s*x\s*(?=\d)", "*", plain)
    plain = re.sub(r"(?<=\d)[eE]([-+−]?\d{1,3})(?![\w.])", r"*10^{\1}", plain)
    plain = re.sub(r"(?:\^|\*\*)\s*([-−]?\d{2,3})(?![\d.])", r"^{\1}", plain)
    return parse_rational(plain)


def _standing_numbers(text: str) -> list[Fraction]:
    """Return the numbers of ``text`` that are a value by themselves, in order."""
    plain = _FRAC.sub(lambda found: f"{found[1]}{found[2]}/{found[3]}", ascii_maths(text))
    found = []
    for match in _NUMBER.finditer(plain):
        if not (match["whole"] or match["part"]):
            continue
        start = match.end() - len(match[0].lstrip())
        before = plain[max(0, start - 24) : start]
        if _PART_BEFORE.search(before) or _PART_AFTER.match(plain, match.end()):
            continue
        value = _as_fraction(match)
        if value is not None:
            found.append(value)
    return found


def _as_fraction(match: re.Match[str]) -> Fraction | None:
    whole = re.sub(r"\D", "", match["whole"] or "0")
    if len(whole) > 400 or len(match["part"] or "") > 400:
        return None
    value = Fraction(f"{whole}{match['part'] or ''}")
    exponent = match["e"] or match["tb"] or match["t"]
    if exponent:
        value *= Fraction(10) ** int(exponent.replace("−", "-"))
    if match["over"]:
        if len(match["over"]) > 400 or not int(match["over"]):
            return None
        value /= int(match["over"])
    return -value if match["sign"] in ("-", "−", "–") else value
