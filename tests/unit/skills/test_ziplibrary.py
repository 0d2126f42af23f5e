"""Zips of skills: what is read, and the archives of which nothing is."""

from __future__ import annotations

import contextlib
import io
import stat
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skills.domain import ziplibrary
from skills.domain.skillfile import LoadedLibrary, load_library
from skills.domain.ziplibrary import (
    MAX_DEPTH,
    MAX_MEMBERS,
    MAX_SKILL_BYTES,
    MAX_TOTAL_BYTES,
    PROBLEMS_SHOWN,
    UnsafeArchive,
    read_zip,
)

SKILL = b"---\nname: two sum\ndescription: d\n---\nBody\n"
ROOT = Path(__file__).resolve().parents[3]


def skill(name: str, body: str = "Body") -> bytes:
    return f"---\nname: {name}\ndescription: d\n---\n{body}\n".encode()


def packed(members: Mapping[str, bytes], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return an ordinary zip."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def special(name: str, mode: int, *, extra: bytes = b"", data: bytes = b"x") -> bytes:
    """Return a zip of one good skill and one member of another kind."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("good/SKILL.md", SKILL)
        info = zipfile.ZipInfo(name)
        info.create_system = 3
        info.external_attr = mode << 16
        info.extra = extra
        archive.writestr(info, data)
    return file.getvalue()


def read(data: bytes) -> LoadedLibrary:
    return read_zip(io.BytesIO(data), name="pool.zip")


def refusal(data: bytes) -> list[tuple[str, str]]:
    """Return member and reason of every problem; each names a fix."""
    with pytest.raises(UnsafeArchive) as caught:
        read(data)
    assert all(problem.fix for problem in caught.value.problems)
    return [(problem.member, problem.reason) for problem in caught.value.problems]


# --- what is read ----------------------------------------------------------------------------


def test_a_zip_reads_as_its_folder_does(tmp_path: Path) -> None:
    members = {
        "README.md": b"x",
        "a/SKILL.md": skill("outer"),
        "a/reference.md": b"x",
        "a/scripts/run.py": b"x",
        "a/nested/skill.md": skill("inner"),
        "a/nested/data.csv": b"x",
        "b/SKILL.md": skill("Outer", "Other"),
        "c/SKILL.md": b"no front matter",
    }
    for name, data in members.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    folder = load_library([tmp_path])
    zipped = read(packed(members))

    def plain(library: LoadedLibrary) -> object:
        def below(path: str) -> str:
            return path.removeprefix(f"{tmp_path}/")

        return (
            [(s.slug, below(s.path), s.sha256, s.companions) for s in library.skills],
            [(below(e.path), e.line, e.reason) for e in library.invalid],
            [(c.slug, tuple(map(below, c.paths))) for c in library.clashes],
        )

    assert plain(zipped) == plain(folder)
    assert zipped.skills[0].companions == ("data.csv",)
    assert [clash.slug for clash in zipped.clashes] == ["outer"]
    assert zipped.roots == ("pool.zip",)


def test_a_skill_at_the_top_and_folders_of_their_own_are_read() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.mkdir("scripts")
        archive.writestr("SKILL.md", SKILL)
        archive.writestr("scripts/run.py", "x")
        archive.writestr("__MACOSX/._SKILL.md", "what macOS adds")
    (found,) = read(file.getvalue()).skills
    assert (found.slug, found.companions) == ("two-sum", ("scripts/run.py",))


def test_a_zip_within_the_zip_is_a_name_and_nothing_more() -> None:
    inner = packed({"../evil/SKILL.md": SKILL})
    (found,) = read(packed({"a/SKILL.md": SKILL, "a/inner.zip": inner})).skills
    assert found.companions == ("inner.zip",)


def test_a_companion_is_never_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    really = zipfile.ZipFile.open

    def watched(self: zipfile.ZipFile, name: zipfile.ZipInfo) -> object:
        opened.append(name.filename)
        return really(self, name)

    data = packed({"a/SKILL.md": SKILL, "a/data.bin": b"x" * 1000})
    monkeypatch.setattr(zipfile.ZipFile, "open", watched)
    read(data)
    assert opened == ["a/SKILL.md"]


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../SKILL.md", "its path leads out of the archive by .."),
        ("a/../../SKILL.md", "its path leads out of the archive by .."),
        ("a/b/..", "its path leads out of the archive by .."),
        ("/etc/SKILL.md", "its path is absolute"),
        ("//host/SKILL.md", "its path is absolute"),
        ("C:/SKILL.md", "its path is absolute"),
        ("c:SKILL.md", "its path is absolute"),
        ("a\\SKILL.md", "its name holds a backslash"),
        ("..\\SKILL.md", "its name holds a backslash"),
        ("./", "its name names nothing"),
        ("a" * 1_001, "its name has 1,001 characters, not 1 to 1,000"),
    ],
)
def test_a_name_that_is_no_path_below_the_archive_is_refused(name: str, reason: str) -> None:
    assert refusal(packed({"good/SKILL.md": SKILL, name: b"x"})) == [(name, reason)]


def test_a_name_with_a_nul_is_refused() -> None:
    # zipfile itself writes none, and reads "a" for this one.
    data = packed({"aXb/SKILL.md": SKILL}).replace(b"aXb/", b"a\0b/")
    assert refusal(data) == [("a\0b/SKILL.md", "its name holds a NUL character")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a/SKILL.md", "A/SKILL.md"),
        ("a/SKILL.md", "a/Skill.md"),
        ("a/caf\u00e9.md", "a/cafe\u0301.md"),  # NFC and NFD
        ("stra\u00dfe/x", "STRASSE/x"),  # case folding makes two letters of one
        ("\ufb01le", "file"),  # a ligature
        ("a/x", "A/y"),  # the folders clash
    ],
)
def test_names_that_differ_by_case_or_form_alone_are_refused(first: str, second: str) -> None:
    [(member, reason)] = refusal(packed({first: SKILL, second: SKILL}))
    assert member == second
    assert "by case or form alone" in reason


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a/SKILL.md", SKILL)
        archive.writestr("a/SKILL.md", skill("other"))
        archive.writestr("a/./SKILL.md", skill("third"))
        archive.writestr("a", "a file")
    assert refusal(file.getvalue()) == [
        ("a/SKILL.md", "it is there twice"),
        ("a/./SKILL.md", "it is there twice"),
        ("a", "a is a file and a folder"),
    ]


# zipfile packs neither halves of characters nor, as a first character, NUL.
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12
) | st.lists(st.sampled_from(["..", ".", "/", "a", "A", "C:", "\\"]), min_size=1).map("".join)


@given(st.dictionaries(NAMES, st.just(SKILL), max_size=4))
@settings(max_examples=150, deadline=None)
def test_any_names_are_read_or_refused_and_stay_below_the_archive(
    members: dict[str, bytes],
) -> None:
    try:
        loaded = read(packed(members))
    except UnsafeArchive:
        return
    for name in members:
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        assert "\\" not in name
    assert all(".." not in found.path.split("/") for found in loaded.skills)


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=200, deadline=None)
def test_any_damage_ends_in_a_reading_or_a_refusal(tail: bytes, place: int, byte: int) -> None:
    whole = bytearray(packed({"a/SKILL.md": SKILL, "a/b.txt": b"x" * 50}))
    whole[place % len(whole)] = byte
    for data in (bytes(whole), tail, b"PK\x05\x06" + tail, bytes(whole) + tail):
        with contextlib.suppress(UnsafeArchive):
            read(data)


# --- kinds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (stat.S_IFLNK | 0o777, "it is a symbolic link"),
        (stat.S_IFBLK, "it is a device"),
        (stat.S_IFCHR, "it is a device"),
        (stat.S_IFIFO, "it is a pipe"),
        (stat.S_IFSOCK, "it is a socket"),
    ],
)
def test_members_that_are_no_files_are_refused(mode: int, reason: str) -> None:
    assert refusal(special("x/SKILL.md", mode, data=b"/etc/passwd")) == [("x/SKILL.md", reason)]


def test_a_hard_link_is_refused_and_plain_unix_times_are_not() -> None:
    times = struct.pack("<2LHH", 0, 0, 0, 0)
    plain = struct.pack("<2H", 0x000D, len(times)) + times
    linked = struct.pack("<2H", 0x000D, len(times) + 4) + times + b"/etc"
    assert read(special("x/SKILL.md", stat.S_IFREG | 0o644, extra=plain, data=skill("x"))).skills
    data = special("x/SKILL.md", stat.S_IFREG | 0o644, extra=linked)
    assert refusal(data) == [("x/SKILL.md", "it is a link")]


def with_byte(data: bytes, offset: int, value: int) -> bytes:
    """Return ``data`` with one byte of its first directory record and file header set."""
    changed = bytearray(data)
    changed[changed.rindex(b"PK\x01\x02") + offset] = value
    changed[offset - 2] = value  # the same field stands two bytes earlier in the header
    return bytes(changed)


def test_encrypted_members_are_refused() -> None:
    data = with_byte(packed({"a/SKILL.md": SKILL}), 8, 1)
    assert refusal(data) == [("a/SKILL.md", "it is encrypted")]


def test_other_compressions_are_refused_unread() -> None:
    # bzip2 and LZMA inflate without a bound on what comes out at once.
    data = packed({"a/SKILL.md": SKILL}, method=zipfile.ZIP_LZMA)
    assert refusal(data) == [("a/SKILL.md", "it is packed by LZMA")]
    data = with_byte(packed({"a/SKILL.md": SKILL}), 10, 97)
    assert refusal(data) == [("a/SKILL.md", "it is packed by method 97")]


# --- damage ----------------------------------------------------------------------------------


def test_truncated_broken_and_foreign_files_are_refused() -> None:
    whole = packed({"a/SKILL.md": SKILL}, method=zipfile.ZIP_STORED)
    assert refusal(b"") == [("", "it is empty")]
    assert refusal(b"\x1f\x8b a tarball") == [("", "it isn't a zip, or its end is missing")]
    assert refusal(whole[:-30]) == [("", "it isn't a zip, or its end is missing")]
    [(member, reason)] = refusal(whole[60:])
    assert (member, reason[:15]) == ("a/SKILL.md", "it is damaged (")
    [(member, reason)] = refusal(whole.replace(b"Body", b"Bodx"))
    assert (member, reason[:23]) == ("a/SKILL.md", "it is damaged (Bad CRC-")


def test_a_member_that_inflates_beyond_what_it_states_is_refused() -> None:
    data = bytearray(packed({"a/SKILL.md": SKILL + b"x" * 1000}))
    at = data.index(b"PK\x01\x02") + 24  # the stated size in the directory
    data[at : at + 4] = struct.pack("<L", 10)
    [(member, reason)] = refusal(bytes(data))
    assert member == "a/SKILL.md"
    assert "Bad CRC-32" in reason


def test_a_split_and_a_zip64_archive_are_refused() -> None:
    whole = bytearray(packed({"a/SKILL.md": SKILL}))
    end = whole.index(b"PK\x05\x06")
    split = bytes(whole[: end + 4]) + b"\x01" + bytes(whole[end + 5 :])
    assert refusal(split) == [("", "it is split into several files")]
    locator = b"PK\x06\x07" + bytes(16)
    wide = bytes(whole[:end]) + locator + bytes(whole[end:])
    assert "ZIP64" in refusal(wide)[0][1]


def test_a_count_that_is_not_the_lists_is_refused() -> None:
    whole = bytearray(packed({"a/SKILL.md": SKILL, "b/SKILL.md": skill("b")}))
    end = whole.index(b"PK\x05\x06")
    whole[end + 8 : end + 12] = struct.pack("<2H", 1, 1)
    assert "not the one it counts" in refusal(bytes(whole))[0][1]


# --- sizes -----------------------------------------------------------------------------------


def test_a_skill_of_exactly_the_largest_size_is_read_and_one_more_byte_is_invalid() -> None:
    fits = SKILL + b"x" * (MAX_SKILL_BYTES - len(SKILL))
    assert [s.slug for s in read(packed({"a/SKILL.md": fits})).skills] == ["two-sum"]
    [error] = read(packed({"a/SKILL.md": fits + b"x"})).invalid
    assert (error.path, error.reason) == ("a/SKILL.md", "the file is larger than 64 KB")


def test_a_path_of_as_many_parts_as_may_be_is_read_and_one_more_is_not() -> None:
    deep = "a/" * (MAX_DEPTH - 1)
    assert len(read(packed({f"{deep}SKILL.md": SKILL})).skills) == 1
    ((member, reason),) = refusal(packed({f"{deep}b/SKILL.md": SKILL}))
    assert (member, reason) == (f"{deep}b/SKILL.md", "its path has 33 parts, above 32")


def test_more_folders_than_are_kept_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ziplibrary, "MAX_FOLDERS", 3)
    members = {"a/b/SKILL.md": skill("x"), "a/b/y.txt": b"", "a/c/SKILL.md": skill("z")}
    assert len(read(packed(members)).skills) == 2
    members["d/SKILL.md"] = skill("d")
    assert refusal(packed(members)) == [("", "it has more than 3 folders")]


def test_every_member_below_a_folder_of_two_spellings_is_told() -> None:
    found = refusal(packed({"A/x": b"", "a/y": b"", "a/z/w": b"", "B\uff0fc": b"", "b/c": b""}))
    assert [member for member, _ in found] == ["a/y", "a/z/w", "b/c"]
    assert all("by case or form alone" in reason for _, reason in found)


def test_many_problems_are_cut_and_counted() -> None:
    with pytest.raises(UnsafeArchive) as caught:
        read(packed({f"../{n}": b"x" for n in range(PROBLEMS_SHOWN + 3)}))
    assert (len(caught.value.problems), caught.value.left_out) == (PROBLEMS_SHOWN, 3)


def test_an_archive_that_swells_is_refused_whatever_its_members_are_called() -> None:
    # 2 MB of zeros pack about a thousand times.
    assert "swells to more than 100 times" in refusal(packed({"a.bin": bytes(2 * 2**20)}))[0][1]
    assert "50 MB" in refusal(packed({"a.bin": bytes(MAX_TOTAL_BYTES + 1)}))[0][1]


def test_skills_that_inflate_beyond_their_sum_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ziplibrary, "MAX_SKILLS_BYTES", 3 * len(skill("a")))
    members = {f"{name}/SKILL.md": skill(name) for name in "abcd"}
    assert "SKILL.md files have more than" in refusal(packed(members))[0][1]
    del members["d/SKILL.md"]
    assert len(read(packed(members)).skills) == 3


# 10 GB of zeros in a SKILL.md, stated truly or as ten bytes; 100,000 names; one long list of
# names behind a small count; folders in folders, each with its own name, above and below the depth
# that is taken; letters that fold to eighteen. Built from parts, so that building them takes no
# time or space.
ATTACKS = """
import struct, zlib

def zeros(size):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block, out = bytes(1 << 24), []
    part = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)
    return part + again * (size // len(block) - 1) + packer.flush()

def entry(name, packed, size):
    head = struct.pack("<5H3L2H", 20, 0, 8, 0, 0, 0, len(packed), size, len(name), 0)
    local = b"PK\\x03\\x04" + head + name + packed
    return local, head

def archive(entries, *, count=None):
    body, directory = bytearray(), bytearray()
    for name, packed, size in entries:
        local, head = entry(name, packed, size)
        directory += b"PK\\x01\\x02" + struct.pack("<H", 20) + head
        directory += struct.pack("<3H2L", 0, 0, 0, 0o100644 << 16, len(body)) + name
        body += local
    number = min(len(entries), 65535) if count is None else count
    end = struct.pack("<4H2LH", 0, 0, number, number, len(directory), len(body), 0)
    return bytes(body + directory + b"PK\\x05\\x06" + end)

bomb = zeros(10 << 30)
many = [(b"%06d/SKILL.md" % n, b"", 0) for n in range(100_000)]
archives = {{
    "bomb": archive([(b"a/SKILL.md", bomb, 0xFFFFFFF0)]),
    "liar": archive([(b"a/SKILL.md", bomb, 60_000)]),
    "many": archive(many),
    "more": archive(many, count=3),
    "most": archive([(b"%d" % n, b"", 0) for n in range(38_000)], count=5),
    "deep": archive([(b"%05d/" % n + b"a/" * 490 + b"f", b"", 0) for n in range(1_950)]),
    "wide": archive([(b"%05d/" % n + b"a/" * 30 + b"f", b"", 0) for n in range(9_900)]),
    "folded": archive(
        [(b"%03d/" % n + ("\ufdfa" * 30 + "/").encode() * 30 + b"f", b"", 0) for n in range(650)]
    ),
}}
for name, data in archives.items():
    open(name, "wb").write(data)
"""

READ = """
import sys, time
sys.path.insert(0, {root!r})
from skills.domain.ziplibrary import UnsafeArchive, read_zip

def peak():
    # Not getrusage: its peak is that of the process that started this one.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

before = peak()
began = time.perf_counter()
try:
    with open(sys.argv[1], "rb") as file:
        read_zip(file, name="x.zip")
except UnsafeArchive as refused:
    taken = time.perf_counter() - began
    print(int(taken * 1000), (peak() - before) // 1024)
"""


def test_bombs_are_refused_in_little_time_and_memory(tmp_path: Path) -> None:
    def run(code: str, *arguments: str) -> str:
        command = [sys.executable, "-c", code.format(root=str(ROOT)), *arguments]
        return subprocess.check_output(command, text=True, cwd=tmp_path)

    run(ATTACKS)
    names = {"bomb", "liar", "many", "more", "most", "deep", "wide", "folded"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        milliseconds, megabytes = map(int, run(READ, name).split())
        assert milliseconds < 2_000, name
        assert megabytes < 50, name
    assert {path.name for path in tmp_path.iterdir()} == names, "nothing is written"


def test_the_largest_archive_is_read_in_time() -> None:
    members = {f"{n:05}/SKILL.md": skill(f"skill {n}") for n in range(MAX_MEMBERS)}
    data = packed(members)
    began = time.perf_counter()
    assert len(read(data).skills) == MAX_MEMBERS
    assert time.perf_counter() - began < 20
    members["one/more.txt"] = b"x"
    assert "10,001 members" in refusal(packed(members))[0][1]
