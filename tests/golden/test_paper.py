"""The paper's printed figures: every RAE, p value and interval that has its counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runs.domain.effects import CellCounts, Counts, rae, signs_disagree
from runs.domain.estimates import Estimate
from runs.domain.intervals import mcnemar_exact, multinomial_percentile
from runs.domain.report import CellRecord, PairRecord, build_report, paper_example
from tests.shared import SHARED, needs_shared

ROWS: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("paper_rows.json").read_text(encoding="utf-8")
)["rows"]
TESTED = [row for row in ROWS if "p" in row]


def name(row: dict[str, Any]) -> str:
    return f"T{row['table']}-{row['model']}-{row['case']}"


def test_the_data_are_all_there() -> None:
    assert len(ROWS) == 49
    assert len(TESTED) == 16


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_rae(row: dict[str, Any]) -> None:
    b, c, n = row["b"], row["c"], row["n_cond"]
    found = rae(counts=CellCounts(Counts(b=b, c=c, d=n - b - c), Counts(d=1))).value
    if row["rae"] is None:
        assert found is None
        return
    assert found is not None
    assert f"{found:.1f}" == f"{row['rae']:.1f}"


@pytest.mark.parametrize("row", TESTED, ids=name)
def test_p_and_interval(row: dict[str, Any]) -> None:
    b, c, n = row["b"], row["c"], row["n_cond"]
    assert f"{mcnemar_exact(b=b, c=c):.3g}" == f"{row['p']:.3g}"
    found = multinomial_percentile(b=b, c=c, n=n).in_points()
    assert [f"{end:.1f}" for end in (found.low, found.high)] == [
        f"{row[end]:.1f}" for end in ("low", "high")
    ]


@pytest.mark.parametrize("row", TESTED, ids=name)
def test_the_report_with_preset_paper_prints_the_row(row: dict[str, Any]) -> None:
    b, c, n = row["b"], row["c"], row["n_cond"]
    results = [(True, False)] * b + [(False, True)] * c + [(False, False)] * (n - b - c)
    pairs = tuple(
        PairRecord(pair=f"p{i}", task=f"t{i}", replicate=0, retrieved=True, se=se, sd=sd)
        for i, (se, sd) in enumerate(results)
    )
    report = build_report(experiment={}, cells=[CellRecord({}, pairs)], preset="paper")
    (cell,) = report["cells"]
    printed = [cell["rae"], cell["rae_ci"]["low"], cell["rae_ci"]["high"]]
    assert [f"{figure:.1f}" for figure in printed] == [
        f"{row[figure]:.1f}" for figure in ("rae", "low", "high")
    ]
    assert f"{cell['mcnemar_p']:.3g}" == f"{row['p']:.3g}"


def test_worked_example_prints_its_table_row() -> None:
    report = build_report(experiment={}, cells=[paper_example()])
    (cell,) = report["cells"]
    # Table 17, DeepSeek-V3.2, normal: b 8, c 45, n_cond 233, OAE -15.8, coverage 97.1,
    # lift +21.2, RAE -15.9.
    assert (cell["b"], cell["c"], cell["n_cond"], cell["n_pairs"]) == (8, 45, 233, 240)
    assert f"{cell['oae']:.1f}" == "-15.8"
    assert f"{cell['coverage'] * 100:.1f}" == "97.1"
    assert f"{cell['aggregate_lift']:.1f}" == "21.2"
    assert f"{cell['rae']:.1f}" == "-15.9"
    assert cell["sign_disagreement"] is True


@needs_shared
def test_the_data_agree_with_the_reference_tables() -> None:
    tables = json.loads((SHARED / "spec" / "paper_tables.json").read_text("utf-8"))
    for table in (7, 8, 16, 17, 19):
        theirs = tables[f"SF_T{table}"]["rows"]
        ours = [row for row in ROWS if row["table"] == table]
        assert [(r["model"], r["b"], r["c"], r["n_cond"], r["rae"]) for r in ours] == [
            (r["model"], r["b"], r["c"], r["n" if table == 16 else "n_cond"], r["rae"])
            for r in theirs
        ]


@needs_shared
def test_sign_disagreements_of_table_3_are_those_of_table_6() -> None:
    tables = json.loads((SHARED / "spec" / "paper_tables.json").read_text("utf-8"))
    disagreeing: dict[str, int] = {}
    for row in tables["SF_T3"]["rows"]:
        signs = signs_disagree(lift=Estimate(row["agg_lift"]), effect=Estimate(row["rae"]))
        disagreeing[row["model"]] = disagreeing.get(row["model"], 0) + bool(signs)
    printed = {row["model"]: row["disagree"] for row in tables["SF_T6_row_counts"]["rows"]}
    assert disagreeing == printed
    assert sum(disagreeing.values()) == 17
