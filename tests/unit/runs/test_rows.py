"""Run rows: strict reading, and pairing without a database."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.intervals import TaskMeans
from runs.domain.render import guarded
from runs.domain.report import CellRecord, build_report
from runs.domain.rows import (
    Arm,
    BadRows,
    Pairing,
    Problem,
    RunRow,
    UnmatchedReplicates,
    notices_of,
    pair_rows,
    parse_bool,
    parse_row,
    read_csv,
    read_jsonl,
    task_means,
)


def rows_of(*raw: dict[str, Any]) -> list[RunRow]:
    return [parse_row(row, line=number) for number, row in enumerate(raw, start=1)]


def pair(*raw: dict[str, Any]) -> Pairing:
    return pair_rows(rows=rows_of(*raw))


def run(task: str, arm: str, outcome: Any = 1, **more: Any) -> dict[str, Any]:
    return {"task": task, "arm": arm, "outcome": outcome, **more}


# --- reading ---------------------------------------------------------------------------------


def test_case_I01() -> None:
    values = ["True", "False", "FALSE", "1", "0", "1.0", "0.0", "", "nan", None, "maybe", "2"]
    parsed: list[Any] = []
    for value in values:
        try:
            parsed.append(parse_bool(value))
        except ValueError:
            parsed.append("error")
    assert parsed == [
        *(True, False, False, True, False, True, False),
        *(None, None, None, "error", "error"),
    ]


def test_results_of_other_types() -> None:
    assert [parse_bool(value) for value in (True, False, 1, 0, 1.0, 0.0)] == [True, False] * 3
    assert parse_bool(float("nan")) is None
    others: list[Any] = [0.5, 2, -1, [], {}, "0.5", "1e0", "yes", "-0", "1_0", "truth"]
    for value in others:
        with pytest.raises(ValueError, match="neither true nor false"):
            parse_bool(value)


def test_a_blank_result_leaves_the_pair_out_and_is_not_wrong() -> None:
    found = pair(run("t1", "SE", ""), run("t1", "SD", 1), run("t2", "SE", 1), run("t2", "SD", 1))
    (cell,) = build_report(experiment={}, cells=found.cells)["cells"]
    assert (cell["n_pairs"], cell["n_censored"]) == (1, 1)
    assert cell["censored"] == {"se": {"no_result": 1}, "sd": {}}


def test_a_full_row() -> None:
    row = parse_row(
        {
            "task": "007",
            "arm": "se",
            "replicate": "2",
            "outcome": 0,
            "score": 0.4,
            "retrieved": "true",
            "skill_ids": ["a", "b"],
            "cell": {"benchmark": "starter"},
            "model": "m",
            "agent": "a",
            "tokens_in": 12,
            "tokens_out": "3",
            "duration_s": "1.5",
            "error_class": None,
            "source": "log.json",
        },
        line=4,
    )
    assert row == RunRow(
        line=4,
        task="007",
        arm=Arm.SE,
        replicate=2,
        outcome=False,
        score=0.4,
        retrieved=True,
        skill_ids=("a", "b"),
        cell={"benchmark": "starter"},
        model="m",
        agent="a",
        tokens_in=12,
        tokens_out=3,
        duration_s=1.5,
        source="log.json",
    )


def test_absent_columns_are_unknown() -> None:
    assert parse_row({"task": "t", "arm": "SD"}, line=1) == RunRow(line=1, task="t", arm=Arm.SD)


def test_every_problem_of_a_row_is_named() -> None:
    with pytest.raises(BadRows) as caught:
        parse_row(
            {"task": " ", "arm": "with", "outcome": 0.5, "replicate": 1.5, "tokens_in": -1}, line=7
        )
    assert [(p.line, p.column) for p in caught.value.problems] == [
        (7, "task"),
        (7, "arm"),
        (7, "replicate"),
        (7, "outcome"),
        (7, "tokens_in"),
    ]
    assert "row 7, outcome: 0.5 is neither true nor false" in str(caught.value)
    assert "a graded result goes to score" in str(caught.value)


def test_a_column_under_two_names_is_refused() -> None:
    with pytest.raises(BadRows, match="given under two names"):
        parse_row({"task": "t", "arm": "SE", "outcome": 1, "correct": 0}, line=1)


def test_jsonl_names_each_bad_line() -> None:
    lines = [
        '\ufeff{"task": "a", "arm": "SE", "outcome": 1}\n',
        "\n",
        "not json\n",
        "[1]\n",
        '{"task": "b", "arm": "SE", "task": "c"}\n',
        '{"task": "b", "arm": "SE", "outcome": "maybe"}\n',
        '{"task": "\\ud800", "arm": "SE"}\n',
        '{"task": "b", "arm": "SE", "score": Infinity}\n',
    ]
    with pytest.raises(BadRows) as caught:
        read_jsonl(lines)
    assert [(p.line, p.column) for p in caught.value.problems] == [
        (3, None),
        (4, None),
        (5, None),
        (6, "outcome"),
        (7, "task"),
        (8, "score"),
    ]
    assert [row.line for row in read_jsonl(lines[:2]).rows] == [1]


def test_only_ten_problems_are_printed() -> None:
    problems = [Problem(i, None, "bad") for i in range(1, 14)]
    assert str(BadRows(problems)).endswith("row 10: bad\n... and 3 more")


def test_unknown_columns_are_listed() -> None:
    lines = [
        '{"task": "a", "arm": "SE", "cost": 1, "trial": 0}',
        '{"task": "a", "arm": "SD", "x": 2}',
    ]
    found = read_jsonl(lines)
    assert found.ignored == ("cost", "x")
    assert found.rows[0].replicate == 0


def test_csv_keeps_text_as_it_is() -> None:
    found = read_csv(
        [
            "\ufefftask,arm,outcome,retrieved,skill_ids,cell.model,cell.k,cost\n",
            "007,SE,1.0,True,a;b,m,3,9\n",
            "NA,SD,,,,m,3,9\n",
            'null,SE,False,,"[""x;y""]",m,,9\n',
            ",,,,,,,\n",
            '"two\nlines",SD,0,,,m,3,9\n',
        ]
    )
    assert [row.task for row in found.rows] == ["007", "NA", "null", "two\nlines"]
    assert [row.outcome for row in found.rows] == [True, None, False, False]
    assert [row.skill_ids for row in found.rows] == [("a", "b"), (), ("x;y",), ()]
    assert found.rows[0].cell == {"model": "m", "k": "3"}
    assert found.rows[2].cell == {"model": "m"}
    assert found.ignored == ("cost",)


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        ([], 1, "no head line"),
        (["task,arm,task\n"], 1, "stands twice"),
        (["task,arm\n", "a,SE,1\n"], 2, "3 cells where the head has 2"),
        (["task,arm\n", '"a,SE\n'], 2, "not CSV"),
        (["task,arm,cell,cell.k\n", "a,SE,x,1\n"], 2, "cell: not JSON"),
    ],
)
def test_csv_names_the_fault(lines: list[str], line: int, reason: str) -> None:
    with pytest.raises(BadRows) as caught:
        read_csv(lines)
    (problem,) = caught.value.problems
    assert problem.line == line
    assert reason in problem.reason


def test_the_guard_of_exports_is_taken_off() -> None:
    for task in ("=1+1", "-5 tests", "plain", "'quoted"):
        found = read_csv(["task,arm\n", f"{guarded(task)},SE\n"])
        assert found.rows[0].task == task


# --- pairing ---------------------------------------------------------------------------------

I03 = (
    {"task": "t1", "arm": "SE", "seed": 1, "correct": True},
    {"task": "t1", "arm": "SE", "seed": 1, "correct": True},
    {"task": "t1", "arm": "SD", "seed": 1, "correct": False},
    {"task": "t2", "arm": "SE", "seed": 1, "correct": True},
    {"task": "t2", "arm": "SE", "seed": 1, "correct": False},
    {"task": "t2", "arm": "SD", "seed": 1, "correct": True},
    {"task": "t3", "arm": "SE", "seed": 1, "correct": True},
    {"task": "t4", "arm": "SD", "seed": 1, "correct": True},
    {"task": "t4", "arm": "SE", "seed": 1, "correct": False},
)


def test_case_I03() -> None:
    found = pair(*I03)
    assert found.conflicts == (("t2", "SE", 1),)
    assert found.unpaired == (("t3", 1),)
    assert found.repeated == 1
    (cell,) = build_report(experiment={}, cells=found.cells)["cells"]
    assert (cell["n_pairs"], cell["all_b"], cell["all_c"]) == (2, 1, 1)
    # Nothing vanishes: all four (task, seed) are there, two of them without a result.
    assert (cell["n_planned"], cell["n_censored"]) == (4, 2)
    assert cell["censored"] == {"se": {"conflict": 1}, "sd": {"missing": 1}}


def test_the_order_of_rows_does_not_matter() -> None:
    shuffler, rows = random.Random(3), rows_of(*I03)
    first = pair_rows(rows=rows)
    for _ in range(5):
        shuffler.shuffle(rows)
        assert pair_rows(rows=rows) == first


def test_rows_that_differ_in_anything_but_source_conflict() -> None:
    one = run("t", "SE", 1, replicate=0, duration_s=3.0)
    base = run("t", "SD", 1, replicate=0)
    assert pair(one, {**one, "source": "copy"}, base).repeated == 1
    for change in ({"duration_s": 4.0}, {"outcome": None}, {"retrieved": True}):
        assert pair(one, {**one, **change}, base).conflicts == (("t", "SE", 0),)


def test_replicates_pair_by_number() -> None:
    found = pair(
        *(
            run("t", arm, outcome, replicate=r)
            for r in (1, 2)
            for arm, outcome in (("SE", 1), ("SD", 0))
        ),
        run("t", "SD", 0, replicate=3),
    )
    assert [(p.replicate, p.se, p.sd) for p in found.cells[0].pairs] == [
        (1, True, False),
        (2, True, False),
        (3, None, False),
    ]
    assert found.unpaired == (("t", 3),)


def test_repeats_without_a_number_are_refused_with_their_counts() -> None:
    raw = [run("t1", "SE"), run("t1", "SE"), run("t1", "SD"), run("t2", "SE"), run("t2", "SD")]
    with pytest.raises(UnmatchedReplicates, match="t1: 2 SE and 1 SD") as caught:
        pair(*raw)
    assert caught.value.counts == (("t1", 2, 1),)
    # One run an arm needs no number; half-numbered repeats are refused too.
    assert len(pair(*raw[3:]).cells[0].pairs) == 1
    with pytest.raises(UnmatchedReplicates):
        pair(run("t", "SE", replicate=1), run("t", "SE"), run("t", "SD", replicate=1))


def test_rows_of_another_cell_do_not_pair() -> None:
    found = pair(
        run("t", "SE", model="a", cell={"k": 1}),
        run("t", "SD", model="a", cell={"k": 1}),
        run("t", "SE", model="b", cell={"k": 1}),
        run("t", "SD", model="a", cell={"k": 3}),
    )
    assert [cell.descriptor for cell in found.cells] == [
        {"model": "a", "k": 1},
        {"model": "b", "k": 1},
        {"model": "a", "k": 3},
    ]
    assert found.unpaired == (("t", 0), ("t", 0))


def test_retrieval_stays_three_valued() -> None:
    found = pair(
        *(
            run(f"t{i}", arm, 1, retrieved=got if arm == "SE" else None, skill_ids=["s"])
            for i, got in enumerate((True, False, None))
            for arm in ("SE", "SD")
        )
    )
    assert [p.retrieved for p in found.cells[0].pairs] == [True, False, None]
    assert found.cells[0].pairs[0].skills == ("s",)


def test_a_baseline_that_got_a_skill_is_contaminated() -> None:
    found = pair(run("t", "SE", 1), run("t", "SD", 0, retrieved=True))
    (only,) = found.cells[0].pairs
    assert (only.sd, only.sd_failure) == (None, "contaminated")


@pytest.mark.parametrize(
    ("error_class", "failure"),
    [
        ("rate_limited", "call"),
        ("timeout", "call"),
        ("infra_error", "host"),
        ("AgentCrashed", "no_result"),
        (None, "no_result"),
    ],
)
def test_only_a_failed_call_may_be_scored_as_wrong(error_class: str | None, failure: str) -> None:
    found = pair(run("t", "SE", None, error_class=error_class), run("t", "SD", 1))
    assert found.cells[0].pairs[0].se_failure == failure


@pytest.mark.parametrize(
    ("error_class", "se", "failure"),
    [
        ("transport", None, "call"),
        ("server_error", None, "call"),
        ("infra_error", None, "host"),
        ("sandbox", None, "host"),
        # A checked program can time out as well, and then 0 is what it came to.
        ("timeout", False, None),
        ("WrongAnswer", False, None),
        (None, False, None),
    ],
)
def test_a_zero_where_a_call_or_the_host_failed_is_no_result(
    error_class: str | None, se: bool | None, failure: str | None
) -> None:
    found = pair(run("t", "SE", 0, error_class=error_class), run("t", "SD", 1))
    only = found.cells[0].pairs[0]
    assert (only.se, only.se_failure) == (se, failure)
    passed = pair(run("t", "SE", 1, error_class=error_class), run("t", "SD", 1))
    assert passed.cells[0].pairs[0].se is True


def test_task_means_take_unequal_replicates() -> None:
    raw = [
        *(run("t1", "SE", outcome, retrieved=True) for outcome in (1, 0, 1)),
        run("t1", "SE", 1, retrieved=False),
        run("t1", "SE", None, retrieved=True),
        *(run("t1", "SD", outcome) for outcome in (0, 1)),
        run("t2", "SE", 1, retrieved=False),
        run("t2", "SD", 1),
    ]
    (cell,) = task_means(rows=rows_of(*raw))
    assert cell.means == {"t1": TaskMeans(se_right=2, se_runs=3, sd_right=1, sd_runs=2)}
    assert cell.without_retrieved_run == ("t2",)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
COLUMNS = st.sampled_from([*RunRow.__dataclass_fields__, "seed", "correct", "other"])


@given(st.lists(st.dictionaries(COLUMNS, JSON, max_size=8), max_size=4))
def test_anything_is_a_row_or_a_named_problem(raw: list[dict[str, Any]]) -> None:
    rows: tuple[RunRow, ...] = ()
    problems: tuple[Problem, ...] = ()
    try:
        rows = read_jsonl([json.dumps(row) for row in raw]).rows
    except BadRows as error:
        problems = error.problems
    assert len(rows) == len(raw) or problems
    assert all(1 <= problem.line <= len(raw) for problem in problems)


@given(st.text())
def test_any_text_is_csv_or_a_named_problem(text: str) -> None:
    found: object = None
    try:
        found = read_csv(text.splitlines(keepends=True))
    except BadRows as error:
        found = error.problems
    assert found


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["t1", "t2", "t3"]),
            st.sampled_from(["SE", "SD"]),
            st.integers(0, 2),
            st.sampled_from([True, False, None]),
        ),
        max_size=20,
    )
)
def test_every_run_seen_is_in_some_pair(drawn: list[tuple[str, str, int, bool | None]]) -> None:
    found = pair(*(run(t, arm, outcome, replicate=r) for t, arm, r, outcome in drawn))
    seen = {(t, r) for t, _, r, _ in drawn}
    assert {(p.task, p.replicate) for cell in found.cells for p in cell.pairs} == seen
    assert all(isinstance(cell, CellRecord) for cell in found.cells)
    build_report(experiment={}, cells=found.cells)


# --- notices of rows ------------------------------------------------------------------------


def test_notices_of_rows_name_the_tasks_unless_all_say_them() -> None:
    rows = [
        {"task": task, "arm": arm, "outcome": 1, "notices": notices}
        for task, notices in (("a", ["x", "y"]), ("b", ["y"]))
        for arm in ("SE", "SD")
    ]
    file = read_jsonl([json.dumps(row) for row in rows])
    assert file.ignored == ()
    pairing = pair_rows(rows=file.rows)
    # Of four rows two say x, both of task a; all say y.
    assert pairing.said == ("x: a", "y")
    assert notices_of(ignored=(), pairing=pairing) == ["runs that were made elsewhere", "x: a", "y"]


@pytest.mark.parametrize(
    "notices", [[1], {"a": 1}, ["x" * 501], [str(number) for number in range(21)], 7]
)
def test_notices_are_a_short_list_of_texts(notices: Any) -> None:
    row = {"task": "a", "arm": "SE", "notices": notices}
    with pytest.raises(BadRows, match=r"row 1, notices: .*texts"):
        read_jsonl([json.dumps(row)])


def test_rows_that_differ_in_their_notices_alone_are_the_same_run() -> None:
    row = {"task": "a", "arm": "SE", "replicate": 1, "outcome": 1}
    file = read_jsonl([json.dumps(row), json.dumps({**row, "notices": ["x"]})])
    pairing = pair_rows(rows=file.rows)
    assert (pairing.repeated, pairing.conflicts) == (1, ())
