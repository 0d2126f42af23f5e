"""Task files: every line becomes a task or a problem that names file, line, field and fix."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain import taskfiles
from runs.domain.suites import read_task_file
from runs.domain.taskfiles import MAX_KEY_CHARACTERS, Code, Format, Problem, TaskFile, read_tasks
from runs.domain.tasks import Kind, TaskSpec, reference_reply
from runs.domain.template import TEMPLATE
from runs.domain.values import decode

CODE_ROW: dict[str, Any] = {
    "key": "twice",
    "kind": "code",
    "prompt": "def twice(n): ...",
    "checker": {"mode": "cases", "entry": "twice", "cases": [{"args": [2], "expected": 4}]},
    "reference": "def twice(n):\n    return 2 * n\n",
}
MATHS_ROW: dict[str, Any] = {
    "key": "sum", "kind": "maths", "prompt": "1 + 1?", "checker": {"gold": "2"}
}  # fmt: skip
EVALPLUS_ROW: dict[str, Any] = {
    "task_id": "HumanEval/900",
    "prompt": 'import math\n\n\ndef up(x: float) -> int:\n    """Round x up."""\n',
    "entry_point": "up",
    "canonical_solution": "    return math.ceil(x)\n",
    "base_input": [[1.5], [2.0]],
    "plus_input": [[-0.5]],
    "atol": 0,
    "contract": "\n    assert isinstance(x, float)\n",
}
MBPP_ROW: dict[str, Any] = {
    "task_id": 901,
    "text": "Write a function to add three.",
    "code": "def add_three(n: int) -> int:\r\n    return n + 3",
    "test_list": ["assert add_three(1) == 4", "assert add_three(-3) == 0"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
MATH_ROW: dict[str, Any] = {
    "problem": "What is $2+2$?",
    "solution": "It is $\\boxed{4}$.",
    "answer": "4",
    "subject": "Counting & Probability",
    "level": 2,
    "unique_id": "test/prealgebra/1.json",
}


def _read(*rows: dict[str, Any] | str, format: Format | None = None) -> TaskFile:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    return read_tasks((f"{line}\n".encode() for line in lines), path="t.jsonl", format=format)


def _one(row: dict[str, Any], format: Format | None = None) -> TaskSpec:
    found = _read(row, format=format)
    assert found.problems == ()
    return found.tasks[0]


def _problem(*rows: dict[str, Any] | str, format: Format | None = None) -> Problem:
    found = _read(*rows, format=format)
    assert len(found.problems) == 1, found.problems
    return found.problems[0]


def _without(row: dict[str, Any], name: str) -> dict[str, Any]:
    return {field: value for field, value in row.items() if field != name}


def _with_checker(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**row, "checker": {**row["checker"], **changes}}


# --- the own format ---------------------------------------------------------------------------


def test_defaults_are_filled_in() -> None:
    task = _one(CODE_ROW)
    assert task.kind is Kind.CODE
    assert task.checker == {
        "mode": "cases",
        "entry": "twice",
        "prelude": "",
        "timeout_s": 10,
        "cases": [{"args": [2], "expected": 4}],
        "comparator": "exact",
    }
    assert (task.gold_skills, task.tags) == ((), ())


def test_template_holds_every_kind_and_reads_back_without_a_problem() -> None:
    found = read_tasks(TEMPLATE.encode().splitlines(keepends=True), path="new.jsonl")
    assert found.problems == ()
    assert found.format is Format.OWN
    assert {task.kind for task in found.tasks} == set(Kind)
    modes = {task.checker["mode"] for task in found.tasks if task.kind is Kind.CODE}
    assert modes == {"cases", "asserts", "inputs"}


@pytest.mark.parametrize(
    ("kind", "checker"),
    [
        ("maths", {"gold": "\\frac{1}{2}"}),
        ("exact", {"answers": ["Paris", "paris"]}),
        ("choice", {"answer": "B", "options": {"A": "one", "B": "two"}}),
        ("number", {"answer": 3.2, "abs_tol": 0.01}),
        ("number", {"answer": -3, "rel_tol": 0}),
        ("number", {"low": -1, "high": 2.5}),
    ],
)
def test_text_kinds_keep_their_checker_as_it_is(kind: str, checker: dict[str, Any]) -> None:
    task = _one({"key": "k", "kind": kind, "prompt": "p", "checker": checker})
    assert task.checker == checker


BAD_ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    # case, row, field, part of the message
    ("missing key", _without(MATHS_ROW, "key"), "key", "is missing"),
    ("missing kind", _without(MATHS_ROW, "kind"), "kind", "is missing"),
    ("missing prompt", _without(MATHS_ROW, "prompt"), "prompt", "is missing"),
    ("missing checker", _without(MATHS_ROW, "checker"), "checker", "is missing"),
    ("unknown kind", {**MATHS_ROW, "kind": "math"}, "kind", 'Did you mean "maths"'),
    ("misspelt", {**MATHS_ROW, "gold_skill": ["x"]}, "gold_skill", 'mean "gold_skills"'),
    ("number as key", {**MATHS_ROW, "key": 7}, "key", "must be text, not a number"),
    ("blank key", {**MATHS_ROW, "key": "  "}, "key", "is blank"),
    ("spaces round key", {**MATHS_ROW, "key": " a"}, "key", "Remove blanks"),
    ("long key", {**MATHS_ROW, "key": "x" * (MAX_KEY_CHARACTERS + 1)}, "key", "201 characters"),
    ("blank prompt", {**MATHS_ROW, "prompt": "\n"}, "prompt", "is blank"),
    ("list as prompt", {**MATHS_ROW, "prompt": ["x"]}, "prompt", "must be text, not a list"),
    ("NUL", {**MATHS_ROW, "prompt": "a\0b"}, "prompt", "NUL"),
    ("surrogate", {**MATHS_ROW, "prompt": "a\ud800"}, "prompt", "surrogate"),
    ("text as tags", {**MATHS_ROW, "tags": "easy"}, "tags", "must be a list of texts"),
    ("number as tag", {**MATHS_ROW, "tags": [1]}, "tags[0]", "must be text"),
    ("tag twice", {**MATHS_ROW, "tags": ["a", "a"]}, "tags[1]", "comes twice"),
    ("list as checker", {**MATHS_ROW, "checker": []}, "checker", "must be an object"),
    ("gold as number", {**MATHS_ROW, "checker": {"gold": 2}}, "checker.gold", "double quotes"),
    ("stray field", _with_checker(MATHS_ROW, tol=1), "checker.tol", "is no field"),
    ("no mode", {**CODE_ROW, "checker": {"entry": "f"}}, "checker.mode", "is missing"),
    ("unknown mode", _with_checker(CODE_ROW, mode="case"), "checker.mode", 'mean "cases"'),
    ("no cases", _with_checker(CODE_ROW, cases=[]), "checker.cases", "is empty"),
    ("bare args", _with_checker(CODE_ROW, cases=[{"args": 2, "expected": 4}]),
     "checker.cases[0].args", "around a single argument"),
    ("no expected", _with_checker(CODE_ROW, cases=[{"args": [2]}]),
     "checker.cases[0].expected", "is missing"),
    ("bare case", _with_checker(CODE_ROW, cases=[4]), "checker.cases[0]", "must be an object"),
    ("bad tag", _with_checker(CODE_ROW, cases=[{"args": [{"$tupel": []}], "expected": 4}]),
     "checker.cases[0].args[0]", "is no value"),
    ("not finite", _with_checker(CODE_ROW, cases=[{"args": [float("inf")], "expected": 4}]),
     "checker.cases[0].args[0]", "is no value"),
    ("comparator", _with_checker(CODE_ROW, comparator="=="), "checker.comparator", "is unknown"),
    ("timeout", _with_checker(CODE_ROW, timeout_s=0), "checker.timeout_s", "Choose 0.1 to 60"),
    ("bool timeout", _with_checker(CODE_ROW, timeout_s=True), "checker.timeout_s", "number"),
    ("entry", _with_checker(CODE_ROW, entry="twice()"), "checker.entry", "no Python name"),
    ("broken reference", {**CODE_ROW, "reference": "def twice(n:\n"}, "reference", "line 1"),
    ("other reference", {**CODE_ROW, "reference": "def f(): 0"}, "reference", "define 'twice'"),
    ("broken prelude", _with_checker(CODE_ROW, prelude="import"), "checker.prelude", "Python"),
    ("inputs need a reference", _without({**CODE_ROW, "checker": {
        "mode": "inputs", "entry": "twice", "inputs": [[1]]}}, "reference"),
     "reference", "expected values are what it returns"),
    ("inputs", {**CODE_ROW, "checker": {"mode": "inputs", "entry": "twice", "inputs": [1]}},
     "checker.inputs[0]", "list of arguments"),
    ("broken test", {**CODE_ROW, "checker": {"mode": "asserts", "entry": "twice", "test": "a="}},
     "checker.test", "no valid Python"),
    ("cases with test", _with_checker(CODE_ROW, test="assert 1"), "checker.test", "no field"),
    ("no answers", {**MATHS_ROW, "kind": "exact", "checker": {"answers": []}},
     "checker.answers", "is empty"),
    ("one option", {**MATHS_ROW, "kind": "choice", "checker": {
        "answer": "A", "options": {"A": "x"}}}, "checker.options", "at least two"),
    ("no such option", {**MATHS_ROW, "kind": "choice", "checker": {
        "answer": "b", "options": {"A": "x", "B": "y"}}}, "checker.answer", "none of the options"),
    ("no tolerance", {**MATHS_ROW, "kind": "number", "checker": {"answer": 1}},
     "checker", '{"answer", "abs_tol"}'),
    ("two tolerances", {**MATHS_ROW, "kind": "number", "checker": {
        "answer": 1, "abs_tol": 1, "rel_tol": 1}}, "checker", '{"low", "high"}'),
    ("negative tolerance", {**MATHS_ROW, "kind": "number", "checker": {
        "answer": 1, "abs_tol": -1}}, "checker.abs_tol", "Choose 0 or more"),
    ("text answer", {**MATHS_ROW, "kind": "number", "checker": {"answer": "1", "abs_tol": 0}},
     "checker.answer", "without quotes"),
    ("swapped", {**MATHS_ROW, "kind": "number", "checker": {"low": 2, "high": 1}},
     "checker.low", "Swap them"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "field", "message"), [case[1:] for case in BAD_ROWS],
                         ids=[case[0] for case in BAD_ROWS])  # fmt: skip
def test_bad_field_is_named_with_line_and_fix(
    row: dict[str, Any], field: str, message: str
) -> None:
    found = _read({**MATHS_ROW, "key": "good"}, row)
    assert [task.key for task in found.tasks] == ["good"]
    assert len(found.problems) == 1
    problem = found.problems[0]
    assert (problem.path, problem.line, problem.code) == ("t.jsonl", 2, Code.BAD_FIELD)
    assert problem.field == field
    assert message in str(problem)
    assert str(problem).startswith("t.jsonl:2: ")
    assert problem.fatal


# --- lines and files --------------------------------------------------------------------------


def test_broken_line_is_reported_and_the_others_are_kept() -> None:
    other = {**MATHS_ROW, "key": "other"}
    found = _read(MATHS_ROW, '{"key": "cut', other)
    assert [task.key for task in found.tasks] == ["sum", "other"]
    assert [(p.line, p.code) for p in found.problems] == [(2, Code.NOT_JSON)]
    assert "column 9" in found.problems[0].reason


@pytest.mark.parametrize("line", ["[1, 2]", '"text"', "3", "null"])
def test_line_that_is_no_object_is_reported(line: str) -> None:
    problem = _problem(MATHS_ROW, line)
    assert (problem.line, problem.code) == (2, Code.NOT_JSON)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "\ufeff"])
def test_file_without_a_task_is_one_problem(text: str) -> None:
    found = read_tasks(text.encode().splitlines(keepends=True), path="t.jsonl")
    assert found.tasks == ()
    assert [(p.line, p.code) for p in found.problems] == [(0, Code.EMPTY)]


@pytest.mark.parametrize("text", ['[{"key": 1},\n{"key": 2}]\n', '{\n  "key": "a"\n}\n'])
def test_pretty_printed_document_is_one_problem_and_not_one_a_line(text: str) -> None:
    found = read_tasks(text.encode().splitlines(keepends=True), path="t.jsonl")
    assert [(p.line, p.code) for p in found.problems] == [(1, Code.NOT_JSONL)]
    assert "one task a line" in found.problems[0].fix


def test_byte_order_mark_crlf_comments_and_blank_lines_change_nothing() -> None:
    plain = _one(MATHS_ROW)
    data = b"\xef\xbb\xbf# mine\r\n\r\n" + json.dumps(MATHS_ROW).encode() + b"\r\n"
    found = read_tasks(data.splitlines(keepends=True), path="t.jsonl")
    assert found.problems == ()
    assert found.tasks == (plain,)


def test_other_encoding_is_reported_with_its_place() -> None:
    line = json.dumps({**MATHS_ROW, "prompt": "é"}, ensure_ascii=False).encode("latin-1")
    found = read_tasks([line], path="t.jsonl")
    assert found.problems[0].code is Code.NOT_JSON
    assert "UTF-8" in found.problems[0].reason


def test_field_that_stands_twice_in_one_object_is_refused() -> None:
    problem = _problem('{"key": "a", "kind": "maths", "prompt": "p", "prompt": "q"}')
    assert (problem.field, problem.code) == ("prompt", Code.BAD_FIELD)


def test_deep_nesting_and_huge_integers_are_reported() -> None:
    deep = '{"key": ' + "[" * 100_000 + "]" * 100_000 + "}"
    huge = '{"key": ' + "9" * 5_000 + "}"
    found = _read(MATHS_ROW, deep, huge)
    assert [(p.line, p.code) for p in found.problems] == [(2, Code.NOT_JSON), (3, Code.NOT_JSON)]


def test_identical_repeat_counts_once_and_is_noted() -> None:
    found = _read(MATHS_ROW, MATHS_ROW)
    assert [task.key for task in found.tasks] == ["sum"]
    assert [(p.line, p.code, p.fatal) for p in found.problems] == [(2, Code.IDENTICAL, False)]
    assert "line 1" in found.problems[0].reason


def test_conflicting_repeat_leaves_both_out_and_is_fatal() -> None:
    found = _read(MATHS_ROW, {**MATHS_ROW, "prompt": "2 + 0?"}, {**MATHS_ROW, "key": "kept"})
    assert [task.key for task in found.tasks] == ["kept"]
    assert [(p.line, p.code, p.fatal) for p in found.problems] == [(2, Code.CONFLICTING, True)]


def test_conflict_stays_out_when_the_first_content_comes_back() -> None:
    found = _read(MATHS_ROW, {**MATHS_ROW, "prompt": "2 + 0?"}, MATHS_ROW)
    assert found.tasks == ()
    assert [p.code for p in found.problems] == [Code.CONFLICTING, Code.IDENTICAL]


@given(st.permutations(range(4)), st.lists(st.sampled_from(range(4)), max_size=6))
def test_nothing_is_lost(order: list[int], repeats: list[int]) -> None:
    """Every line is a task or a problem: lines = tasks + problems, where no key conflicts."""
    rows = [{**MATHS_ROW, "key": f"k{n}"} for n in [*order, *repeats]]
    found = _read(*rows, '{"broken')
    assert len(found.tasks) + len(found.problems) == len(rows) + 1


def test_missing_file_folder_and_damaged_gzip_are_problems(tmp_path: Path) -> None:
    damaged = tmp_path / "cut.jsonl.gz"
    damaged.write_bytes(gzip.compress(json.dumps(MATHS_ROW).encode() * 99)[:-20])
    for path in (tmp_path / "absent.jsonl", tmp_path, damaged):
        found = read_task_file(path)
        assert [p.code for p in found.problems] == [Code.UNREADABLE]
        assert str(path) in str(found.problems[0])


def test_gzip_reads_like_the_plain_file(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(MATHS_ROW).encode()))
    assert read_task_file(path).tasks == _read(MATHS_ROW).tasks


def test_line_beyond_the_limit_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    long = json.dumps({**MATHS_ROW, "prompt": "x" * 200})
    assert _read(long, MATHS_ROW).problems[0].code is Code.CONFLICTING
    monkeypatch.setattr(taskfiles, "MAX_LINE_BYTES", 200)
    found = _read(MATHS_ROW, long, MATHS_ROW)
    assert [(p.line, p.code) for p in found.problems] == [(2, Code.NOT_JSON)]
    assert len(found.tasks) == 1


def test_lines_are_read_as_a_stream() -> None:
    taken = []

    def lines() -> Iterable[bytes]:
        for number in range(1000):
            taken.append(number)
            yield b"[" if number == 0 else b""

    read_tasks(lines(), path="t.jsonl")
    assert taken == [0]


# --- formats ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "format"),
    [
        (CODE_ROW, Format.OWN),
        (EVALPLUS_ROW, Format.EVALPLUS),
        (MBPP_ROW, Format.MBPP),
        (MATH_ROW, Format.MATH500),
    ],
)
def test_format_is_known_by_its_fields_and_can_be_named(
    row: dict[str, Any], format: Format
) -> None:
    found = _read(row)
    assert (found.format, found.problems) == (format, ())
    assert _read(row, format=format).tasks == found.tasks


def test_named_format_beats_the_fields_and_unknown_fields_name_all_formats() -> None:
    problem = _problem(MBPP_ROW, format=Format.MATH500)
    assert problem.field == "unique_id"
    unknown = _problem({"question": "?", "gold": 1}, {"question": "??"})
    assert (unknown.line, unknown.code) == (1, Code.UNKNOWN_FORMAT)
    assert "gold, question" in unknown.reason
    assert "math500: problem, answer" in unknown.fix


def test_evalplus_row_becomes_inputs_with_its_reference() -> None:
    task = _one(EVALPLUS_ROW)
    assert task.prompt == EVALPLUS_ROW["prompt"]
    assert task.reference == EVALPLUS_ROW["prompt"] + EVALPLUS_ROW["canonical_solution"]
    assert task.checker == {
        "mode": "inputs",
        "entry": "up",
        "prelude": "import math\n\n\n",
        "timeout_s": 10,
        "inputs": [[1.5], [2.0], [-0.5]],  # base first, then plus
        "atol": 0,
        "comparator": "python_eq",
    }


def _mbpp_plus(number: int, args: list[Any], entry: str = "f") -> dict[str, Any]:
    return {
        "task_id": f"Mbpp/{number}",
        "prompt": '"""\nWrite a function.\n"""\n',
        "entry_point": entry,
        "canonical_solution": f"\ndef {entry}(a, b=None):\n    return a\n",
        "base_input": [args],
        "plus_input": [],
        "atol": 0,
        "contract": "",
    }


# Which arguments are tuples, sets or complex numbers: evalplus/data/mbpp.py of EvalPlus 0.3.1.
@pytest.mark.parametrize(
    ("number", "args", "expected"),
    [
        (2, [[1, 2], [3]], [(1, 2), (3,)]),
        (63, [[[1, 2], [3, 4]]], [[(1, 2), (3, 4)]]),
        (75, [[[1, 2]], 5], [[(1, 2)], 5]),
        (106, [[1], [2]], [[1], (2,)]),
        (115, [[[1, 2], []]], [[{1, 2}, {}]]),
        (124, ["1.5", "2+3j"], [1.5, 2 + 3j]),
        (250, [[1, 2], 3], [(1, 2), 3]),
        (252, ["1j"], [1j]),
        (259, [[[1, 2]], [[3, 4]]], [((1, 2),), ((3, 4),)]),
        (278, [[1, [2, 3]]], [(1, (2, 3))]),
        (307, [[1], 2, 3], [(1,), 2, 3]),
        (580, [[1, [2, [3]]]], [(1, (2, (3,)))]),
        (722, [{"a": [1.5, 2]}, 3], [{"a": (1.5, 2)}, 3]),
        (3, [[1, [2]]], [[1, [2]]]),
    ],
)
def test_mbpp_plus_inputs_get_the_types_that_json_lost(
    number: int, args: list[Any], expected: list[Any]
) -> None:
    task = _one(_mbpp_plus(number, args))
    assert [decode(value) for value in task.checker["inputs"][0]] == expected


def test_mbpp_plus_says_the_signature_where_its_prompt_does_not() -> None:
    task = _one(_mbpp_plus(3, [1]))
    assert task.prompt.endswith("Signature: def f(a, b=None):")
    told = {**_mbpp_plus(3, [1]), "prompt": '"""\nWrite it.\nassert f(1) == 1\n"""\n'}
    assert _one(told).prompt == told["prompt"]


def test_mbpp_plus_tasks_with_an_oracle_of_their_own_say_so() -> None:
    assert _one(_mbpp_plus(2, [[1], [1]], "similar_elements")).checker["oracle"] == "as_sets"
    assert _one(_mbpp_plus(434, ["a"], "text_match_three")).checker["oracle"] == "not_none"
    assert "oracle" not in _one(_mbpp_plus(3, [1])).checker
    assert _one(_mbpp_plus(295, [1], "sum_div")).tags == ("loose_oracle",)


def test_older_release_with_bare_numbers_reads_the_same() -> None:
    assert _one({**_mbpp_plus(2, [[1], [2]]), "task_id": 2}).key == "Mbpp/2"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"base_input": []}, "base_input"),
        ({"base_input": {"a": 1}}, "base_input"),
        ({"plus_input": [1]}, "plus_input[0]"),
        ({"plus_input": None}, "plus_input"),
        ({"atol": "0"}, "atol"),
        ({"canonical_solution": "    return math.ceil(x\n"}, "reference"),
        ({"entry_point": "down"}, "reference"),
    ],
)
def test_bad_evalplus_field_is_named(change: dict[str, Any], field: str) -> None:
    assert _problem({**EVALPLUS_ROW, **change}, format=Format.EVALPLUS).field == field


def test_mbpp_plus_input_that_does_not_fit_is_named() -> None:
    problem = _problem(_mbpp_plus(252, [[1]]))
    assert problem.field == "base_input[0]"


def test_mbpp_row_becomes_asserts_with_signature_and_example() -> None:
    task = _one(MBPP_ROW)
    assert task.key == "mbpp/901"
    assert task.prompt == (
        "Write a function to add three.\n\nSignature: def add_three(n: int) -> int:\n"
        "Example: assert add_three(1) == 4"
    )
    assert task.reference == "def add_three(n: int) -> int:\n    return n + 3\n"
    assert task.checker["mode"] == "asserts"
    assert task.checker["entry"] == "add_three"
    assert task.checker["test"] == "assert add_three(1) == 4\nassert add_three(-3) == 0\n"


def test_mbpp_may_repeat_a_test_as_the_published_file_does() -> None:
    tests = MBPP_ROW["test_list"][:1] * 2
    assert _one({**MBPP_ROW, "test_list": tests}).checker["test"] == "\n".join(tests) + "\n"


def test_mbpp_entry_is_the_function_that_both_tests_and_code_know() -> None:
    row = {
        **MBPP_ROW,
        "code": "def helper(x):\n    return x\ndef pick(a):\n    return helper(a)\n",
        "test_list": ["assert set(pick([1])) == set([1])"],
        "test_setup_code": "import math",
    }
    task = _one(row)
    assert task.checker["entry"] == "pick"
    # The setup runs with the tests, after the program: some setups use its classes.
    assert task.checker["test"].startswith("import math\nassert")
    lost = _problem({**row, "test_list": ["assert other(1) == 1"]})
    assert lost.field == "test_list"


def test_mbpp_plus_of_the_hub_keeps_its_long_test() -> None:
    row = {
        "task_id": 2,
        "prompt": "Write a function to add three.",
        "code": MBPP_ROW["code"],
        "test_imports": ["import math"],
        "test_list": MBPP_ROW["test_list"],
        "test": "for n in range(9):\n    assert add_three(n) == n + 3\n",
    }
    assert _one(row).checker["test"] == "import math\n" + row["test"] + "\n"


def test_math500_row_keeps_subject_and_level_as_tags() -> None:
    task = _one(MATH_ROW)
    assert (task.key, task.kind) == ("test/prealgebra/1.json", Kind.MATHS)
    assert task.checker == {"gold": "4"}
    assert task.tags == ("counting_and_probability", "level_2")
    assert task.reference == MATH_ROW["solution"]
    bare = _one({name: MATH_ROW[name] for name in ("problem", "answer", "unique_id")})
    assert (bare.tags, bare.reference) == ((), None)
    assert _problem(_without(MATH_ROW, "unique_id")).field == "unique_id"
    assert _problem({**MATH_ROW, "answer": 4}).field == "answer"


# --- identity and references ------------------------------------------------------------------


def test_any_edit_makes_another_task_and_field_order_does_not() -> None:
    task = _one({**CODE_ROW, "gold_skills": ["a"], "tags": ["t"]})
    turned = _one(dict(reversed({**CODE_ROW, "gold_skills": ["a"], "tags": ["t"]}.items())))
    assert turned.sha256 == task.sha256
    edits: list[dict[str, Any]] = [
        {"key": "other"},
        {"prompt": "p"},
        {"kind": Kind.MATHS},
        {"checker": {**task.checker, "timeout_s": 5}},
        {"gold_skills": ()},
        {"reference": None},
        {"tags": ("t", "u")},
    ]
    # 7 fields, 7 edits, 8 different hashes with the original.
    assert len({task.sha256, *(replace(task, **edit).sha256 for edit in edits)}) == 8


def test_sha256_is_pinned() -> None:
    # sha256 of the canonical JSON of the seven fields, worked out with sha256sum.
    pinned = "9ae8451ee0b0c3e456e4dc1583e089a7c5d91d30f2d7d1da40b8f294567d5cfb"
    assert _one(MATHS_ROW).sha256 == pinned


def test_reference_reply_is_fenced_code_or_a_boxed_answer() -> None:
    assert reference_reply(_one(CODE_ROW)) == ("```python\ndef twice(n):\n    return 2 * n\n```\n")
    assert reference_reply(_one(_without(CODE_ROW, "reference"))) is None
    assert reference_reply(_one(MATHS_ROW)) == "\\boxed{2}"
    number = {**MATHS_ROW, "kind": "number", "checker": {"low": 1, "high": 2}}
    assert reference_reply(_one(number)) == "\\boxed{1.5}"
    fenced = {**CODE_ROW, "reference": 'def twice(n):\n    """\n    ```\n    """\n'}
    assert (reference_reply(_one(fenced)) or "").startswith("````python\n")
