"""Reading experiment files: what none has is refused, and no text takes long or raises."""

from __future__ import annotations

import contextlib
import time
import tomllib
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from runs.domain import filetext
from runs.domain.drafts import NotInForm, form_of, with_slug
from runs.domain.filetext import (
    DEEPEST,
    LONGEST_LINE,
    MOST_DOTS,
    MOST_LINES,
    MOST_VALUES,
    Problem,
    Unreadable,
    has_comments,
    read_toml,
    unseen,
)
from runs.domain.plan import InvalidExperiment, line_of, parse_experiment

GOOD = """\
schema = 1
slug = "first-look"
seed = 7
replicates = 2
preset = "paper"
failure_policy = "censor"
queue_flips = true
agent = "chat"
[budget]
cost = 1.5
calls = 100
tokens = 5
[analysis]
inference = "fixed_n"
[[model]]
id = "small"
base_url = "http://localhost:8080/v1"
api_key_env = "KEY"
dialect = "native"
price_in = 0.5
price_out = 0.5
timeout_s = 5
requests_per_minute = 4
[[benchmark]]
suite = "starter"
partition = { size = 24, seed = 43 }
[[cell]]
library = "coding"
control = ["normal", "schema_empty"]
types = ["utility"]
design = "se_sd"
strategy = "search"
k = [1, 3]
retriever = "bm25plus"
max_searches = 2
temperature = 0.7
max_tokens = 100
"""
KEYS = [line.partition(" = ")[0] for line in GOOD.splitlines() if " = " in line]


def fault(text: str) -> tuple[int | None, str]:
    with pytest.raises(Unreadable) as caught:
        read_toml(text)
    (problem,) = caught.value.problems
    return problem.line, problem.message


def key(dots: int) -> str:
    return ".".join("a" * (dots + 1))


@pytest.mark.parametrize(
    ("most", "more", "line", "words"),
    [
        (f"a = 1\n{key(MOST_DOTS)} = 1".replace("a.", "b.", 1), f"a = 1\n{key(5)} = 1", 2, "dots"),
        (f"[{key(MOST_DOTS)}]", f"[{key(5)}]", 1, "dots"),
        (f"x = {{ {key(MOST_DOTS)} = 1 }}", f"x = {{ {key(5)} = 1 }}", 1, "dots"),
        ('"a"."b" = 1', "\n" + '."a"' * 5 + " = 1", 2, "dots"),
        (f"a = {'[' * DEEPEST}{']' * DEEPEST}", f"a = {'[' * 9}{']' * 9}", 1, "too deeply"),
        ("\n" * MOST_LINES, "\n" * (MOST_LINES + 1), MOST_LINES + 1, "3,000 lines"),
        (
            f"a = '{'x' * (LONGEST_LINE - 6)}'",
            f"\na = '{'x' * (LONGEST_LINE - 5)}'",
            2,
            "20,000 characters",
        ),
        # One value is written by "=", the others by a comma each.
        (
            f"a = [{'1,' * 9_000}\n{'1,' * (MOST_VALUES - 9_001)}]",
            f"a = [{'1,' * 9_000}\n{'1,' * (MOST_VALUES - 9_000)}]",
            2,
            "10,000 values",
        ),
        (f"a = {2**63 - 1}", f"b = 1\na = {2**63}", 2, "this one has 64 bits"),
        (f"a = {-(2**63)}", f"a = {-(2**63) - 1}", 1, "between -2^63 and 2^63"),
        ("a = 0xff", f"a = 0x{'f' * 5_000}", 1, "200 characters"),
        ("a = 1", f"a = {'1' * 5_000}", 1, "200 characters"),
        ("[[b]]\na = 1e300", "[[b]]\n[[b]]\nb = [1.0, 1e999]", 3, "nan and inf"),
        ("a = 'nan'", "[b]\na = nan", 2, "nan and inf"),
        ("[b]\nc = { a = -1.0 }", "[b]\nc = { a = -inf }", 2, "nan and inf"),
        ('a = "\\t\\u00fc"', 'a = 1\nb = "x\\u202Ey"', 2, "U+202E"),
        ('"a b" = 1', '"a\u200b" = 1', 1, "U+200B"),
        ("a = 'x'", "a = 'x", 1, "not valid TOML"),
    ],
)
def test_each_bound_is_told_with_its_line(most: str, more: str, line: int, words: str) -> None:
    assert read_toml(most) == tomllib.loads(most)
    assert fault(more)[0] == line
    assert words in fault(more)[1]


def test_what_stands_in_texts_and_comments_is_no_key_and_no_bracket() -> None:
    inside = "a.b.c.d.e.f.g.h.i.j.k [[[[[[[[[[ {{{{{{{{{{ # ,,,"
    text = (
        f"# {inside} \"\"\" '''\n"
        f"a = '{inside}'\nb = \"{inside} \\\"\"\nc = '''\n{inside}'\n''{inside}'''\n"
        f'd = """{inside}\\""" ""{inside}"""""\ne = [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5]\n'
    )
    assert read_toml(text) == tomllib.loads(text)
    assert has_comments(text)
    assert not has_comments(text.partition("\n")[2])


def test_the_characters_that_nobody_sees_are_named() -> None:
    assert unseen("a\tb\nc = 'ü \u00a0 \u4e2d ✓'\n") is None
    for character in "\x00\x1b\x7f\x85\u00ad\u061c\u200b\u200d\u202e\u2066\u2028\ufeff\U000e0041":
        assert unseen(f"a\nü{character}b") == (2, f"U+{ord(character):04X}")


FULL = 256_000
HARD = {
    "one key of dots": ".".join(["a"] * (FULL // 2)) + " = 1",
    "keys of dots": "\n".join(f"a{n}.{key(MOST_DOTS - 1)} = 1" for n in range(2_900)),
    "heads of dots": "\n".join(f"[a{n}.{key(MOST_DOTS)}]" for n in range(2_990)),
    "same heads": f"[[{key(MOST_DOTS)}]]\n" * 2_990,
    "inline tables": "x = [\n" + f"{{ {key(MOST_DOTS)} = 1 }},\n" * 2_900 + "]",
    "inline in inline": "x = [\n"
    + f"{{{key(MOST_DOTS)}={{{key(MOST_DOTS)}={{b=1}}}}}},\n" * 2_900
    + "]",
    "values": "x = [\n" + ("1," * 4_900 + "\n") * 2 + "]",
    "dates": "x = [\n" + "1979-05-27T07:32:00-08:00,\n" * 2_900 + "]",
    "brackets": "[" * FULL,
    "quotes": 'x = """\n' + ('""a' * 28 + "\n") * 2_990 + '"""',
    "escapes": 'x = """\n' + ("\\n" * 42 + "\n") * 2_990 + '"""',
    "open texts": ('# "\\"\\"\\"\\"' * 1_500 + "\n") * 13,
    "escaped ends": '"""' + ('\\"""' * 4_900 + "\n") * 13,
    "wrong values": 'schema = 1\n[[cell]]\nlibrary = "a"\n'
    + "k = ["
    + '"a",' * 4_900
    + "]\n"
    + "[[model]]\nid = 5\nfoo = 1\n" * 190,
    "many names": "[[model]]\nid = 'm'\nbase_url = 'http://h/v1'\n[[benchmark]]\nsuite = 's'\n"
    + "".join(f"[[cell]]\nlibrary = 'l{n}'\nk = [1, 2, 3, 4, 5]\n" for n in range(200)),
    "spaces": "slug = 'a'" + " " * 19_900,
    "number signs": "slug = 'a'" + " #" * 9_900 + "'",
}


@pytest.mark.parametrize("name", HARD)
def test_no_file_takes_long(name: str) -> None:
    text = HARD[name][:FULL]
    filetext._read.cache_clear()
    filetext.lines_of.cache_clear()
    began = time.process_time()
    read_all_ways(text)
    assert time.process_time() - began < 0.3


def problems_of(text: str) -> tuple[Problem, ...]:
    try:
        parse_experiment(text, path="")
    except InvalidExperiment as error:
        return error.problems
    return ()


def read_all_ways(text: str) -> None:
    """Read a file by everything that reads one; only what each promises may be raised."""
    problems = problems_of(text)
    lines = text.count("\n") + 1
    assert all(p.line is None or 1 <= p.line <= lines for p in problems)
    assert all(len(p.message) < 1_000 for p in problems)
    with contextlib.suppress(NotInForm):
        form_of(text, endpoints=())
    has_comments(text)
    with_slug(text, "other")
    line_of(text, table="cell", index=1, key="k")


@given(text=st.text(alphabet="ab1.=,[]{}\"'#\\\n -_é\x00\u202e:T", max_size=200))
def test_any_text_gives_a_spec_or_problems(text: str) -> None:
    read_all_ways(text)


SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(),
    st.sampled_from([0, 1, 2, 2**63, -(2**63), 10**199]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["a", "http://[", "http://h:99999/", "http://h/v1", "", "[" * 3_000, "new"]),
    st.dates(),
    st.times(),
    st.datetimes(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    changes=st.dictionaries(st.sampled_from([*KEYS, "skills", "other"]), VALUES, max_size=3),
    tables=st.dictionaries(
        st.sampled_from(["budget", "model", "benchmark", "cell", "analysis"]), VALUES, max_size=1
    ),
    twice=st.booleans(),
)
def test_values_of_any_type_give_a_spec_or_problems(
    changes: dict[str, Any], tables: dict[str, Any], twice: bool
) -> None:
    data = tomllib.loads(GOOD)
    for name, value in changes.items():
        for table in (data, data["budget"], *data["model"], *data["benchmark"], *data["cell"]):
            if name in table:
                table[name] = value
    if twice:
        for name in ("model", "benchmark", "cell"):
            data[name] = data[name] * 2
    data |= tables
    try:
        text = tomli_w.dumps(data)
    except (ValueError, UnicodeEncodeError):
        return
    read_all_ways(text)


@given(data=st.dictionaries(st.text(max_size=9), VALUES, max_size=5))
def test_what_is_read_is_what_the_standard_library_reads(data: dict[str, Any]) -> None:
    text = tomli_w.dumps(data)
    assert not has_comments(text)
    try:
        found = read_toml(text)
    except Unreadable:
        return
    assert found == tomllib.loads(text)


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("value", ["5", "'x'", "true", "[]", "[[]]", "{}", "1979-05-27", "-1.5"])
def test_a_value_of_another_type_is_told_at_its_key_or_taken(name: str, value: str) -> None:
    lines = GOOD.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(f"{name} = "))
    lines[at] = f"{name} = {value}"
    text = "\n".join(lines) + "\n"
    read_all_ways(text)
    assert {problem.line for problem in problems_of(text)} <= {at + 1}
