"""The benchmarks command: ratios, rows as text and JSON, missing peers, sides that fail."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from workbench.bootstrap import LOCKS, CannotPrepare
from workbench.management.benchmarks import ours, peers, sides
from workbench.management.benchmarks.catalogue import COMPARISONS, Comparison
from workbench.management.benchmarks.rows import (
    MICROSECONDS,
    MILLISECONDS,
    Row,
    Spread,
    Status,
    Unit,
    number,
    ratios,
)
from workbench.management.benchmarks.sides import (
    SideFailed,
    against_published,
    compare,
    measure,
    open_side,
)
from workbench.management.commands import benchmarks

PER_SECOND = Unit("programs/s", rate=True)
BY_NAME = {comparison.name: comparison for comparison in COMPARISONS}


def comparison(**changes: Any) -> Comparison:
    """Return a comparison of nothing in particular."""
    fields: dict[str, Any] = {
        "name": "adding",
        "job": "add two numbers",
        "peer": "an abacus",
        "our_job": "add",
        "peer_job": "add",
        "unit": MILLISECONDS,
        "goal": 2,
        "limits": "The abacus is wood.",
        "data": lambda folder: {},
        "agree": lambda a, b: a == b,
        "rounds": 3,
        "needs_peers": False,
    }
    return Comparison(**{**fields, **changes})


def row(**changes: Any) -> Row:
    """Return an unmeasured row."""
    fields: dict[str, Any] = {
        "name": "adding",
        "job": "add two numbers",
        "peer": "an abacus",
        "unit": MILLISECONDS,
        "goal": 2,
        "limits": "The abacus is wood.",
    }
    return Row(**{**fields, **changes})


def scripted(calls: list[str], label: str, *seconds: float, result: Any = 4) -> sides.Turns:
    """Return a side whose rounds take the given seconds, round 0 first."""

    def turn(number: int) -> tuple[float, Any]:
        calls.append(f"{label}{number}")
        return seconds[number], result

    return turn


# --- arithmetic -----------------------------------------------------------------


def test_ratio_is_the_peers_time_over_ours_round_by_round() -> None:
    # 0.6 / 0.2 = 3 and 0.8 / 0.1 = 8: more than 1 is ours being faster.
    assert ratios(ours=[0.2, 0.1], theirs=[0.6, 0.8]) == pytest.approx([3, 8])


def test_ratio_of_unequal_numbers_of_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        ratios(ours=[0.2], theirs=[0.6, 0.8])


@pytest.mark.parametrize(
    ("unit", "seconds", "figure"),
    [
        (MICROSECONDS, 0.000_004, 4.0),
        (MILLISECONDS, 0.0125, 12.5),
        # 20 ms a program are 1 / 0.02 = 50 programs a second.
        (PER_SECOND, 0.02, 50.0),
    ],
)
def test_figure_of_seconds(unit: Unit, seconds: float, figure: float) -> None:
    assert unit.figure(seconds) == pytest.approx(figure)


def test_spread_is_median_least_and_greatest() -> None:
    # Of 1, 2, 4, 9 the middle two are 2 and 4: median 3.
    assert Spread.of([4, 1, 9, 2]) == Spread(median=3, low=1, high=9)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0246, "0.0246"), (0.364, "0.364"), (3.183, "3.18"), (25.94, "25.9"), (1432.4, "1,432")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


# --- status ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"ratio": Spread(2.0, 1.0, 3.0)}, Status.MET),
        # The median decides, not the best round.
        ({"ratio": Spread(1.99, 1.0, 9.0)}, Status.MISSED),
        ({"ratio": Spread(0.1, 0.1, 0.1), "goal": None}, Status.INFORMATION),
        ({"reason": "peer not installed", "missing_peer": True}, Status.NO_PEER),
        ({"reason": "ours failed"}, Status.FAILED),
    ],
)
def test_status(changes: dict[str, Any], status: Status) -> None:
    assert row(**changes).status is status


# --- text and JSON ----------------------------------------------------------------


def test_text_of_a_missed_goal_says_so() -> None:
    measured = row(
        peer="an abacus 1.0",
        version="0.1.0",
        ours=Spread(10, 9, 11),
        theirs=Spread(15, 14, 16),
        ratio=Spread(1.5, 1.3, 1.8),
    )
    assert measured.text().splitlines() == [
        "adding: add two numbers",
        "  peer     15 (14 to 16) ms  an abacus 1.0",
        "  ours     10 (9 to 11) ms  0.1.0",
        "  ratio    1.5x (1.3 to 1.8), goal >= 2x: MISSED",
        "  limits   The abacus is wood.",
    ]


def test_text_of_a_row_without_its_peer_keeps_our_figure() -> None:
    lines = row(ours=Spread(10, 9, 11), reason="peer not installed: X", missing_peer=True).text()
    assert "  peer     not measured  an abacus\n" in lines
    assert "  ours     10 (9 to 11) ms" in lines
    assert "  ratio    peer not installed: X (goal >= 2x)\n" in lines


def test_json_of_a_measured_row() -> None:
    measured = row(
        version="0.1.0",
        ours=Spread(10, 9, 11),
        theirs=Spread(30, 28, 33),
        ratio=Spread(3, 2.5, 3.5),
    )
    assert measured.to_json() == {
        "name": "adding",
        "job": "add two numbers",
        "peer": "an abacus",
        "version": "0.1.0",
        "unit": "ms",
        "peer_figure": {"median": 30, "low": 28, "high": 33},
        "ours": {"median": 10, "low": 9, "high": 11},
        "ratio": {"median": 3, "low": 2.5, "high": 3.5},
        "goal": 2,
        "status": "met",
        "remark": "",
        "reason": "",
        "limits": "The abacus is wood.",
    }


def test_json_of_what_was_not_measured_is_null() -> None:
    found = row(reason="ours failed: no", goal=None).to_json()
    assert [found[key] for key in ("peer_figure", "ours", "ratio", "goal")] == [None] * 4
    assert (found["status"], found["reason"]) == ("failed", "ours failed: no")


# --- measuring --------------------------------------------------------------------


def test_sides_take_turns_and_the_warm_up_is_not_counted() -> None:
    calls: list[str] = []
    measured = measure(
        comparison(),
        row(),
        [
            scripted(calls, "a", 99.0, 0.001, 0.002, 0.004),
            scripted(calls, "b", 99.0, 0.003, 0.002, 0.008),
        ],
    )
    assert calls == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert measured.ours == Spread(2.0, 1.0, 4.0)
    assert measured.theirs == Spread(3.0, 2.0, 8.0)
    # 3 / 1, 2 / 2 and 8 / 4: median 2, which is not the ratio of the medians (3 / 2).
    assert measured.ratio == Spread(2.0, 1.0, 3.0)
    assert measured.status is Status.MET


def test_results_that_differ_give_no_ratio() -> None:
    calls: list[str] = []
    turns = [
        scripted(calls, "a", *[0.001] * 4, result=4),
        scripted(calls, "b", *[0.002] * 4, result=5),
    ]
    measured = measure(comparison(), row(), turns)
    assert measured.status is Status.FAILED
    assert measured.reason == "no ratio, the results differ: ours 4, the peer's 5"
    assert measured.ours is not None
    assert measured.theirs is not None


def test_ours_is_measured_without_the_peer() -> None:
    measured = measure(comparison(), row(), [scripted([], "a", 1.0, 0.001, 0.001, 0.001)])
    assert measured.ours == Spread(1.0, 1.0, 1.0)
    assert measured.status is Status.NO_PEER
    assert measured.reason == ("peer not installed: python3 manage.py benchmarks --install-peers")


def test_a_published_figure_stands_beside_rounds_of_ours_alone() -> None:
    published = comparison(published=0.006, remark=lambda result: f"it came to {result}")
    turns = scripted([], "a", 9.0, 0.001, 0.002, 0.003)
    measured = against_published(published, row(), lambda n: (turns(n)[0], None), 0.006)
    # 6 ms over 1, 2 and 3 ms.
    assert measured.ratio == Spread(3.0, 2.0, 6.0)
    assert measured.theirs == Spread(6.0, 6.0, 6.0)
    assert measured.status is Status.MET
    assert "it came to None" in measured.text()
    undone = comparison(published=0.006, agree=lambda ours, theirs: False)
    refused = against_published(undone, row(), scripted([], "a", 9.0, 0.1, 0.1, 0.1), 0.006)
    assert refused.status is Status.FAILED
    assert "ours did not do the job" in refused.reason


def test_a_side_that_fails_in_a_round_fails_the_row() -> None:
    def broken(number: int) -> tuple[float, Any]:
        raise SideFailed("an abacus failed: a bead fell off")

    measured = measure(comparison(), row(), [scripted([], "a", *[0.001] * 4), broken])
    assert measured.status is Status.FAILED
    assert measured.reason == "an abacus failed: a bead fell off"


# --- processes --------------------------------------------------------------------

WORKER = """
import sys
from workbench.management.benchmarks.worker import Job, Turn, serve
def add(data):
    print("a peer that prints")
    if data.get("broken"): raise ValueError("no beads")
    return Job("1.0", lambda number: Turn(0.25, data["a"] + number))
sys.argv = ["", "add"]
serve({"add": add})
"""


def test_a_process_prepares_and_takes_turns(tmp_path: Path) -> None:
    with open_side("an abacus", [sys.executable, "-c", WORKER], tmp_path) as side:
        side.prepare({"a": 3})
        assert side.version == "1.0"
        assert [side.turn(1), side.turn(2)] == [(0.25, 4), (0.25, 5)]


def test_a_process_that_cannot_prepare_says_why(tmp_path: Path) -> None:
    with (
        open_side("an abacus", [sys.executable, "-c", WORKER], tmp_path) as side,
        pytest.raises(SideFailed, match="an abacus failed: ValueError: no beads"),
    ):
        side.prepare({"broken": True})


def test_a_process_that_dies_names_its_last_words(tmp_path: Path) -> None:
    dying = [sys.executable, "-c", "import sys; sys.exit('out of wood')"]
    with (
        open_side("an abacus", dying, tmp_path) as side,
        pytest.raises(SideFailed, match="an abacus ended without an answer: out of wood"),
    ):
        side.prepare({})


def test_a_peer_that_is_not_installed_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_VENV", str(tmp_path / "venv"))
    found = compare(BY_NAME["mcnemar"], data_folder=tmp_path)
    assert found.status is Status.NO_PEER
    assert found.ours is not None
    assert found.theirs is None
    assert found.reason.endswith(sides.INSTALL)
    # Nothing stays behind.
    assert list(tmp_path.iterdir()) == []


# --- the command ------------------------------------------------------------------


@pytest.fixture
def measured_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, Spread | None]], None]:
    """Return a function that makes the command find the given ratios; None is a missing peer."""

    def find(by_name: dict[str, Spread | None]) -> None:
        def compare(comparison: Comparison, *, data_folder: Path) -> Row:
            ratio = by_name[comparison.name]
            return row(
                name=comparison.name,
                goal=comparison.goal,
                ours=Spread(1, 1, 1),
                ratio=ratio,
                missing_peer=ratio is None,
            )

        monkeypatch.setattr(benchmarks, "compare", compare)

    return find


def test_command_prints_sums_up_and_writes_json(
    tmp_path: Path, measured_rows: Callable[[dict[str, Spread | None]], None]
) -> None:
    # The goals are 10 (mcnemar), 0.3 (grading) and 5 (orchestration).
    measured_rows(
        {"mcnemar": Spread(12, 11, 13), "grading": None, "orchestration": Spread(1, 1, 1)}
    )
    out, path = io.StringIO(), tmp_path / "rows.json"
    call_command("benchmarks", "mcnemar", "grading", "orchestration", json=path, stdout=out)
    assert out.getvalue().endswith(
        "1 of 2 measured goals met; missed: orchestration; without their peer: grading.\n"
    )
    written = json.loads(path.read_text())
    assert written["schema"] == "benchmarks/1"
    assert {"seed", "machine", "version"} <= written.keys()
    assert {"processor", "cores", "python", "load"} <= written["machine"].keys()
    assert [(r["name"], r["status"]) for r in written["rows"]] == [
        ("mcnemar", "met"),
        ("grading", "no_peer"),
        ("orchestration", "missed"),
    ]


def test_a_missed_goal_fails_with_check_only(
    measured_rows: Callable[[dict[str, Spread | None]], None],
) -> None:
    measured_rows({"orchestration": Spread(1, 1, 1)})
    call_command("benchmarks", "orchestration", stdout=io.StringIO())
    with pytest.raises(SystemExit) as ended:
        call_command("benchmarks", "orchestration", check=True, stdout=io.StringIO())
    assert ended.value.code == 1


def test_a_missing_peer_is_no_missed_goal(
    measured_rows: Callable[[dict[str, Spread | None]], None],
) -> None:
    measured_rows({"mcnemar": None})
    call_command("benchmarks", "mcnemar", check=True, stdout=io.StringIO())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(CommandError, match="no row is called adding; there are: mcnemar, "):
        call_command("benchmarks", "adding")


def test_peers_that_cannot_be_installed_end_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise CannotPrepare("no room")

    monkeypatch.setattr(benchmarks, "install_peers", refuse)
    with pytest.raises(CommandError, match="no room"):
        call_command("benchmarks", "mcnemar", install_peers=True)


# --- the catalogue ----------------------------------------------------------------


def test_every_comparison_names_jobs_that_exist_and_its_limits() -> None:
    for each in COMPARISONS:
        assert each.our_job in ours.JOBS
        assert (each.peer_job in peers.JOBS) == (each.published is None)
        assert each.limits.endswith(".")
    assert len(BY_NAME) == len(COMPARISONS)


def test_both_sides_get_forty_plain_programs(tmp_path: Path) -> None:
    programs = BY_NAME["grading"].data(tmp_path)["programs"]
    assert len(programs) == 40
    for program in programs:
        assert len(program["inputs"]) == len(program["expected"]) > 0
    assert "$" not in json.dumps([program["inputs"] for program in programs])


def test_tables_are_the_same_each_time_and_within_their_bounds(tmp_path: Path) -> None:
    tables = BY_NAME["mcnemar"].data(tmp_path)["tables"]
    assert tables == BY_NAME["mcnemar"].data(tmp_path)["tables"]
    assert len(tables) == 16
    assert all(5 <= b + c <= 100 for b, c in tables)


def test_intervals_agree_to_a_tenth_of_the_width() -> None:
    agree = BY_NAME["rae-378"].agree
    # The width is 0.1, a tenth of it 0.01.
    assert agree([-0.009, 0.1], [0.0, 0.1])
    assert not agree([-0.011, 0.1], [0.0, 0.1])


def test_orchestration_compares_equal_work_only() -> None:
    agree = BY_NAME["orchestration"].agree
    # 20 pairs of three calls: search and answer, and the other arm's answer.
    right = {"accuracy": 1.0, "calls": 60}
    assert agree(right, {**right})
    assert not agree({**right, "calls": 100}, {**right, "calls": 100})
    assert not agree({**right, "accuracy": 0.5}, right)


def test_the_lock_of_the_peers_has_hashes_and_no_address() -> None:
    text = (LOCKS / "peers.txt").read_text()
    for name in ("statsmodels==0.15", "evalplus==0.3.1", "inspect-ai==0.3.285"):
        assert f"\n{name}" in f"\n{text}"
    assert "://" not in text
    assert text.count("==") <= text.count("--hash=sha256:")


def test_peers_are_no_dependencies() -> None:
    base = (LOCKS / "base.txt").read_text()
    assert not [name for name in ("statsmodels", "evalplus", "inspect-ai") if f"\n{name}==" in base]
