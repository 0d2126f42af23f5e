"""SKILL.md: what is read, what is recovered, what is refused, and how folders are loaded."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from skills.domain.frontmatter import MAX_BYTES, MAX_DEPTH, ProblemCode
from skills.domain.skillfile import (
    MAX_FILE_BYTES,
    MAX_NAME_CHARS,
    InvalidSkill,
    ParsedSkill,
    SkillType,
    content_sha256,
    load_library,
    parse_skill,
    render_skill,
    slugify,
)
from workbench.kernel.identity import sha256_of


def parse(front: str, body: str = "Body") -> ParsedSkill:
    return parse_skill(f"---\n{front}\n---\n{body}\n".encode(), path="x/SKILL.md")


def refusal(front: str, body: str = "Body") -> InvalidSkill:
    with pytest.raises(InvalidSkill) as caught:
        parse(front, body)
    assert caught.value.path == "x/SKILL.md"
    assert caught.value.reason
    assert caught.value.fix
    return caught.value


def codes(skill: ParsedSkill) -> list[tuple[ProblemCode, int]]:
    return [(problem.code, problem.line) for problem in skill.problems]


# --- The format ------------------------------------------------------------------------------


def test_every_field_is_read() -> None:
    skill = parse(
        "name: two  sum\n"
        "description: |\n"
        "  First line.\n"
        "  Second line.\n"
        "type: guard\n"
        "signature: f(x) -> int\n"
        "license: MIT\n"
        "tags: [a, b]"
    )
    assert skill == ParsedSkill(
        path="x/SKILL.md",
        name="two sum",
        description="First line.\nSecond line.",
        type=SkillType.GUARD,
        signature="f(x) -> int",
        body="Body",
        metadata={"license": "MIT", "tags": ["a", "b"]},
    )
    assert skill.slug == "two-sum"


def test_type_defaults_to_procedure_and_signature_to_none() -> None:
    skill = parse("name: a\ndescription: b\ntype:\nsignature: ~")
    assert skill.type is SkillType.PROCEDURE
    assert skill.signature is None


@pytest.mark.parametrize("written", ["no", "1_0:30", "2024-01-01", "1.50", "0x1F", "true"])
def test_scalars_stay_the_text_that_was_written(written: str) -> None:
    # YAML 1.1 would read False, 630, a date, 1.5, 31 and True.
    skill = parse(f"name: {written}\ndescription: {written}\nversion: {written}")
    assert (skill.name, skill.description) == (written, written)
    assert skill.metadata == {"version": written}


def test_case_F01() -> None:
    data = (
        b"---\nname: interval-merge\n"
        b"description: Use for overlaps: sort, then merge\n---\nBody text\n"
    )
    skill = parse_skill(data, path="x")
    assert skill.name == "interval-merge"
    assert skill.description == "Use for overlaps: sort, then merge"
    assert skill.body == "Body text"
    assert codes(skill) == [(ProblemCode.UNQUOTED_TEXT, 3)]


def test_case_F03() -> None:
    data = (
        b"---\nname: dp-table\ndescription: a --- b\n--- \t\nIntro\n\n---\n\n"
        b"```yaml\n---\nk: v\n---\n```\nLast line\n"
    )
    skill = parse_skill(data, path="x")
    assert skill.description == "a --- b"
    assert skill.body == "Intro\n\n---\n\n```yaml\n---\nk: v\n---\n```\nLast line"
    assert skill.problems == ()


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r").encode(),
    ],
    ids=["bom", "crlf", "bom+crlf", "cr"],
)
def test_byte_order_mark_and_line_ends_make_no_difference(encode: Any) -> None:
    text = "---\nname: a\ndescription: é\n---\n\nOne\n\nTwo\n"
    plain = parse_skill(text.encode(), path="x")
    assert plain.body == "One\n\nTwo"
    assert parse_skill(encode(text), path="x") == plain


def test_an_indented_first_body_line_keeps_its_indent() -> None:
    assert parse("name: a\ndescription: b", "\n\n    code\n\nend\n\n").body == "    code\n\nend"


def test_only_line_feeds_end_lines() -> None:
    # str.splitlines would see a marker line here and cut the body.
    body = "one\u2028---\u2028two\x0c---\x0cthree"
    assert parse("name: a\ndescription: b", body).body == body


# --- Recovered and reported ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Use for: this", "Use for: this"),
        ("ends with a colon:", "ends with a colon:"),
        ('it\'s a "mix": \\n stays', 'it\'s a "mix": \\n stays'),
        ("`code` first", "`code` first"),
        ("@someone", "@someone"),
        ("% of cases", "% of cases"),
        ("[beta] does it", "[beta] does it"),
        ("{{name}} does it", "{{name}} does it"),
        ("- a dash", "- a dash"),
        ("Use: a\n  second line\n\n  third", "Use: a second line third"),
        ("Use for:\n  - one\n  - two", "Use for: - one - two"),
    ],
)
def test_text_that_needs_quotes_is_recovered(written: str, read: str) -> None:
    skill = parse(f"name: a\ndescription: {written}\nlicense: MIT")
    assert skill.description == read
    assert skill.metadata == {"license": "MIT"}
    assert codes(skill) == [(ProblemCode.UNQUOTED_TEXT, 3)]
    assert "description" in skill.problems[0].message


def test_recovery_reaches_every_broken_key_and_no_sound_one() -> None:
    skill = parse("name: a\ndescription: b: c\nargument-hint: [x] [y]\ntags: [x, y]\nq: 'd: e'")
    assert skill.metadata == {"argument-hint": "[x] [y]", "tags": ["x", "y"], "q": "d: e"}
    assert codes(skill) == [(ProblemCode.UNQUOTED_TEXT, 3), (ProblemCode.UNQUOTED_TEXT, 4)]


@pytest.mark.parametrize(
    ("front", "line"),
    [
        ('name: a\ndescription: "Use "this" now"', 3),  # where does the text end?
        ("name: a\ndescription: 'It's here'", 3),
        ('name: "a\ndescription: b', 2),
        ("name: a\n  type: guard\ndescription: b", 3),  # a text or a key?
        ("name: a\ndescription: b\nmetadata:\n  k: v: w", 5),
        ("name: a\ndescription: b\ntags: [a,\n  b\nlicense: MIT", 5),
        ("name: a\ndescription: one\nunindented second line", 4),
        ("name: a\ndescription:b", 3),
        ("name: a\n...\ndescription: b", 3),
        ("%YAML 1.2\nname: a\ndescription: b", 2),
    ],
)
def test_what_would_be_a_guess_is_refused_with_its_line(front: str, line: int) -> None:
    error = refusal(front)
    assert error.line == line
    assert "YAML" in error.reason


def test_a_value_cut_short_by_a_comment_is_reported() -> None:
    skill = parse("name: a\ndescription: Fix bug #12 now\ntype: guard")
    assert skill.description == "Fix bug"
    assert codes(skill) == [(ProblemCode.COMMENT_IN_VALUE, 3)]
    quoted = parse('name: a\ndescription: "Fix bug #12 now" # note')
    assert quoted.description == "Fix bug #12 now"
    assert quoted.problems == ()


def test_blank_lines_before_the_front_matter_are_reported() -> None:
    skill = parse_skill(b"\n \n---\nname: a\ndescription: b: c\n---\nBody", path="x")
    # The third line is the marker, so description stands on line 5.
    assert codes(skill) == [
        (ProblemCode.UNQUOTED_TEXT, 5),
        (ProblemCode.BLANK_LINES_FIRST, 1),
    ]


def test_an_empty_body_is_reported() -> None:
    assert codes(parse("name: a\ndescription: b", "  \n")) == [(ProblemCode.EMPTY_BODY, 4)]


# --- Refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"", 1, "no front matter"),
        (b"# Title\n---\nname: a\n---\n", 1, "no front matter"),
        (b"---\nname: a\ndescription: b\n", 1, "never closed"),
        (b"---\n---\nBody", 2, "name is missing"),
        (b"---\nname: a\n---\nBody", 2, "description is missing"),
        (b"---\ndescription: b\n---\nBody", 2, "name is missing"),
        (b"---\nname: a\ndescription:\n---\nBody", 3, "description is missing or empty"),
        (b"---\nname: null\ndescription: b\n---\n", 2, "name is missing or empty"),
        (b"---\nname: '  '\ndescription: b\n---\n", 2, "name is missing or empty"),
        (b"---\nname: a\ndescription: # all comment\n---\n", 3, "description is missing"),
        (b"---\nname: a\ndescription: [x]\n---\n", 3, "description is a list"),
        (b"---\nname: {a: b}\ndescription: x\n---\n", 2, "name is a mapping"),
        (b"---\nname: a\ndescription: b\ntype: Guard\n---\n", 4, "type is 'Guard'"),
        (b"---\n- a\n- b\n---\n", 2, "isn't a list of"),
        (b"---\njust text\n---\n", 2, "isn't a list of"),
        (b"---\nname: '!!!'\ndescription: b\n---\n", 2, "no letter or digit"),
        (b"---\nname: a\ndescription: caf\xe9\n---\n", 3, "isn't UTF-8"),
        ("---\nname: a\n---\n".encode("utf-16"), None, "UTF-16"),
        ("---\nname: a\n---\n".encode("utf-16-le"), 1, "NUL"),
        (b"---\nname: a\ndescription: b\n---\nx\n\0", 6, "NUL"),
        (b"---\nname: a\ndescription: b\x07\n---\n", 3, "U+0007"),
        (b'---\nname: a\ndescription: "\\ud83d\\ude00"\n---\n', 3, "U+D83D"),
        (b'---\nname: a\ndescription: "\\0"\n---\n', 3, "U+0000"),
        (b'---\nname: a\ndescription: "\\UFFFFFFFF"\n---\n', 3, "out of range"),
        (b"---\nname: a\nname: b\ndescription: c\n---\n", 3, "'name' appears twice"),
        (b"---\nname: a\ndescription: c\nm:\n  k: 1\n  k: 2\n---\n", 6, "'k' appears twice"),
        (b"---\nname: a\n? [x, y]\n: z\n---\n", 3, "key isn't text"),
        (b"---\nname: a\n~: z\n---\n", 3, "key isn't text"),
    ],
)
def test_refusals_say_where_and_why(data: bytes, line: int | None, reason: str) -> None:
    with pytest.raises(InvalidSkill) as caught:
        parse_skill(data, path="lib/a/SKILL.md")
    assert caught.value.line == line
    assert reason in caught.value.reason
    where = "lib/a/SKILL.md" if line is None else f"lib/a/SKILL.md:{line}"
    assert str(caught.value).startswith(f"{where}: ")


@pytest.mark.parametrize(
    "value",
    ["!!python/object/apply:os.system [id]", "!!str a", "!custom a", "&a b", "*a", "[&a b]"],
)
def test_tags_anchors_and_aliases_are_refused_not_recovered(value: str) -> None:
    error = refusal(f"name: a\ndescription: {value}")
    assert error.line == 3
    assert "quotes" in error.fix
    # The same text in quotes is only text.
    assert parse(f"name: a\ndescription: '{value}'").description == value


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x]\n" + "\n".join(
        f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}]"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    assert refusal(bomb).line == 2
    # Without the guard: a quarter of a kilobyte becomes half a megabyte.
    assert len(bomb) < 300
    assert len(json.dumps(yaml.safe_load(bomb))) > 500_000


@pytest.mark.parametrize(
    "value",
    ["[" * 3000, "{a: " * 3000, "- " * 3000, "? " * 3000, "[\n" * 3000],
    ids=["brackets", "braces", "dashes", "questions", "bracket lines"],
)
def test_deep_nesting_is_refused_at_once(value: str) -> None:
    started = time.perf_counter()
    for front in (value, f"name: {value}"):
        with pytest.raises(InvalidSkill):
            parse(front)
    assert time.perf_counter() - started < 0.5


def test_without_the_guard_deep_nesting_overflows_the_stack() -> None:
    with pytest.raises(RecursionError):
        yaml.compose("- " * 3000, Loader=yaml.BaseLoader)


def test_nesting_is_allowed_up_to_the_cap() -> None:
    def nested(depth: int) -> str:
        return f"name: a\ndescription: b\nm: {'[' * depth}{']' * depth}"

    assert parse(nested(MAX_DEPTH)).metadata["m"]
    assert "nested" in refusal(nested(MAX_DEPTH + 1)).reason


def test_front_matter_and_file_have_a_size_cap() -> None:
    frame = "name: a\ndescription: "
    fits = "x" * (MAX_BYTES - len(frame))
    assert len(parse(frame + fits).description) == len(fits)
    assert "64 KB" in refusal(frame + fits + "x").reason

    start = b"---\nname: a\ndescription: b\n---\n"
    room = MAX_FILE_BYTES - len(start)
    assert len(parse_skill(start + b"y" * room, path="x").body) == room
    with pytest.raises(InvalidSkill, match="1000 KB"):
        parse_skill(start + b"y" * (room + 1), path="x")


def test_long_names_are_refused() -> None:
    assert parse(f"name: {'a' * MAX_NAME_CHARS}\ndescription: b").name == "a" * MAX_NAME_CHARS
    assert "longer" in refusal(f"name: {'a' * (MAX_NAME_CHARS + 1)}\ndescription: b").reason
    # One character whose compatibility form has 18.
    assert "longer" in refusal("name: " + "\ufdfa" * 10 + "\ndescription: b").reason


# --- Names and hashes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("prefix-sum", "prefix-sum"),
        ("  Two-Pointer  Pair_Sum! ", "two-pointer-pair-sum"),
        ("C++ / C#", "c-c"),
        ("Straße", "strasse"),
        ("Ｗｉｄｅ", "wide"),
        ("前缀 和", "前缀-和"),
        ("हिन्दी", "हिन्दी"),
        ("../../etc", "etc"),
        ("???", ""),
    ],
)
def test_slugs(name: str, slug: str) -> None:
    assert slugify(name) == slug


@given(st.text())
def test_a_slug_is_its_own_slug_and_safe_in_a_path(name: str) -> None:
    slug = slugify(name)
    assert slugify(slug) == slug
    assert not set(slug) & set("/\\.?#%& \n\t\0")
    assert not slug.startswith("-")
    assert not slug.endswith("-")


def test_the_content_hash_covers_what_the_model_can_see() -> None:
    skill = parse("name: a\ndescription: b")
    assert skill.sha256 == sha256_of(
        {"name": "a", "description": "b", "type": "procedure", "body": "Body"}
    )
    same = parse("name: a\ndescription: b\nlicense: MIT\nsignature: f()")
    assert same.sha256 == skill.sha256
    others = [
        parse("name: A\ndescription: b"),
        parse("name: a\ndescription: c"),
        parse("name: a\ndescription: b\ntype: guard"),
        parse("name: a\ndescription: b", "Other"),
    ]
    assert len({other.sha256 for other in others} | {skill.sha256}) == 5


def test_the_hash_function_takes_plain_text_too() -> None:
    skill = parse("name: é\ndescription: b\ntype: guard")
    plain = content_sha256(name="é", description="b", type="guard", body="Body")
    assert skill.sha256 == plain


# --- Properties ------------------------------------------------------------------------------

# Surrogates are no characters, NUL is refused.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
NAMES = (
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40)
    .map(lambda text: " ".join(text.split()))
    .filter(lambda text: slugify(text) and len(slugify(text)) <= MAX_NAME_CHARS)
)
VALUES = st.recursive(
    TEXT | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def as_body(text: str) -> str:
    lines = text.replace("\r", "").split("\n")
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines).rstrip()


@given(
    name=NAMES,
    description=TEXT.map(str.strip).filter(bool),
    type=st.sampled_from(SkillType),
    signature=st.none() | TEXT.map(str.strip).filter(bool),
    body=TEXT.map(as_body),
    metadata=st.dictionaries(
        TEXT.filter(lambda key: key not in {"name", "description", "type", "signature"}),
        VALUES,
        max_size=3,
    ),
)
def test_a_rendered_skill_reads_back_the_same(**fields: Any) -> None:
    skill = parse_skill(render_skill(**fields).encode(), path="x")
    assert {name: getattr(skill, name) for name in fields} == fields
    assert {code for code, _ in codes(skill)} <= {ProblemCode.EMPTY_BODY}


# Every indicator that YAML knows, in any order.
YAML_PIECES = st.lists(
    st.sampled_from(
        ["name: a", "description: b", "\n", "\n  ", ": ", "- ", "? ", "&a ", "*a", "!t "]
    )
    | st.sampled_from(list("|>[]{},'\"#\\%@`~\t\u2028éx"))
    | st.sampled_from(["---", "..."]),
    max_size=30,
).map("".join)


@given(YAML_PIECES)
@settings(max_examples=300)
def test_any_front_matter_is_read_or_refused(front: str) -> None:
    try:
        skill = parse(front)
    except InvalidSkill:
        return
    assert skill.name
    assert skill.description


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(InvalidSkill):
        parse_skill(data, path="x")
    with pytest.raises(InvalidSkill):
        parse_skill(b"---\n" + data, path="x")


# --- Folders ---------------------------------------------------------------------------------


def write_skill(folder: Path, name: str, body: str = "Body") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "SKILL.md"
    file.write_text(f"---\nname: {name}\ndescription: d\n---\n{body}\n")
    return file


def test_case_F05(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    write_skill(lib / "a", "window", "A")
    write_skill(lib / "b", "window", "B")
    write_skill(lib / "c", "Window", "C")
    write_skill(lib / "d", "heap", "D")
    (tmp_path / "lib2").symlink_to(lib)

    library = load_library([lib, tmp_path / "lib2"])

    assert len(library.skills) == 4
    assert [skill.name for skill in library.clean] == ["heap"]
    assert len(library.clashes) == 1
    assert library.clashes[0].slug == "window"
    assert library.clashes[0].paths == tuple(str(lib / name / "SKILL.md") for name in "abc")
    assert library.invalid == ()
    assert load_library([tmp_path / "lib2", lib]).skills == library.skills


def test_links_may_loop_and_lead_to_files(tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    file = write_skill(lib / "a", "one")
    (lib / "a" / "up").symlink_to(lib)
    (lib / "self").symlink_to(lib / "self")
    (lib / "b").mkdir()
    (lib / "b" / "SKILL.md").symlink_to(file)

    library = load_library([lib])

    assert [skill.path for skill in library.skills] == [str(file)]
    assert library.clashes == ()
    assert [(error.path, error.reason) for error in library.invalid] == [
        (str(lib / "self"), "the link leads nowhere")
    ]


def test_invalid_files_stand_beside_valid_ones(tmp_path: Path) -> None:
    write_skill(tmp_path / "good", "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "SKILL.md").write_text("no front matter")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "SKILL.md").symlink_to("nowhere")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "SKILL.md")

    library = load_library([tmp_path])

    assert [skill.name for skill in library.skills] == ["good"]
    assert [(Path(e.path).parent.name, e.reason) for e in library.invalid] == [
        ("bad", "the file has no front matter"),
        ("gone", "the link leads nowhere"),
        ("pipe", "it isn't a regular file"),
    ]


def test_roots_that_hold_no_library_are_reported(tmp_path: Path) -> None:
    stray = tmp_path / "pool.zip"
    stray.write_bytes(b"PK")
    library = load_library([tmp_path / "typo", stray])
    assert [(error.path, error.reason) for error in library.invalid] == [
        (str(stray), "it is neither a folder nor a SKILL.md"),
        (str(tmp_path / "typo"), "it doesn't exist"),
    ]


def test_a_root_may_be_a_skill_file(tmp_path: Path) -> None:
    file = write_skill(tmp_path / "a", "one")
    assert [skill.path for skill in load_library([file]).skills] == [str(file)]


def test_a_file_name_in_another_case_is_not_overlooked(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", "one").rename(tmp_path / "a" / "skill.md")
    assert [skill.name for skill in load_library([tmp_path]).skills] == ["one"]


def test_companions_are_listed_with_the_nearest_skill(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", "outer")
    write_skill(tmp_path / "a" / "nested", "inner")
    for name in ("a/reference.md", "a/scripts/run.py", "a/nested/data.csv", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")

    library = load_library([tmp_path])

    assert {skill.name: skill.companions for skill in library.skills} == {
        "outer": ("reference.md", "scripts/run.py"),
        "inner": ("data.csv",),
    }


def test_a_file_name_that_is_no_text_is_shown_escaped(tmp_path: Path) -> None:
    write_skill(tmp_path / "a", "one")
    (tmp_path / "a" / os.fsdecode(b"caf\xe9")).write_text("x")
    (skill,) = load_library([tmp_path]).skills
    assert skill.companions == ("caf\\xe9",)


def test_a_folder_that_cannot_be_entered_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "a", "one")
    (tmp_path / "locked").mkdir()
    really = Path.iterdir

    def iterdir(self: Path) -> Any:
        if self.name == "locked":
            raise PermissionError(13, "Permission denied")
        return really(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    library = load_library([tmp_path])
    assert [skill.name for skill in library.skills] == ["one"]
    assert [error.reason for error in library.invalid] == ["it can't be read (Permission denied)"]


def test_a_huge_file_is_refused_without_being_read(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / "SKILL.md").open("wb") as file:
        file.truncate(50 * 1024**3)  # sparse
    (error,) = load_library([tmp_path]).invalid
    assert "larger" in error.reason
