"""Renderings: a table, Markdown and CSV that say what the report says and nothing a cell adds."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain import render
from runs.domain.report import CAVEAT, LABELS, TERMS, CellRecord, PairRecord, build_report


def pairs(b: int, c: int, rest: int, skipped: int = 0) -> tuple[PairRecord, ...]:
    outcomes = [
        *([(True, False, True)] * b),
        *([(False, True, True)] * c),
        *([(True, True, True)] * rest),
        *([(False, False, False)] * skipped),
    ]
    return tuple(
        PairRecord(pair=f"p{i}", task=f"t{i:03}", replicate=0, retrieved=got, se=se, sd=sd)
        for i, (se, sd, got) in enumerate(outcomes)
    )


def report(*cells: tuple[dict[str, Any], tuple[PairRecord, ...]], **options: Any) -> dict[str, Any]:
    return build_report(
        experiment={"slug": "panel"},
        cells=[CellRecord(descriptor, record) for descriptor, record in cells],
        **options,
    )


MODEL = {"model": "m-1", "benchmark": "starter", "partition": {"size": 43, "seed": 42}}
REPORT = report(
    ({**MODEL, "control": "normal"}, pairs(6, 13, 24, 7)),
    ({**MODEL, "control": "schema_empty"}, pairs(0, 0, 0, 50)),
    notices=["demonstration model"],
)


# --- figures ---------------------------------------------------------------------------------


def test_figures_are_rounded_once() -> None:
    assert render.points(-7 / 43 * 100) == "-16.3"
    assert render.points(0.0) == "+0.0"
    assert render.percent(23 / 80) == "28.7"
    assert render.interval({"low": -35.12, "high": 3.76}) == "[-35.1, +3.8]"
    assert [render.yes_no(value) for value in (True, False, None)] == ["yes", "no", "–"]
    assert [show(None) for show in (render.points, render.percent, render.interval)] == ["–"] * 3


def test_p_values_keep_their_digits() -> None:
    assert render.p_value(1.5366822481155396e-08) == "1.54e-08"
    assert render.p_value(0.021484375) == "0.0215"
    assert render.p_value(1.0) == "1"
    assert render.p_value(0.0) == "< 1e-300"  # below what a float holds
    assert render.p_value(None) == "–"


# --- table -----------------------------------------------------------------------------------


def test_table_has_figures_sentences_terms_and_caveat() -> None:
    text = render.table(REPORT)
    flowing = " ".join(text.split())
    assert "Notice: demonstration model" in text
    assert "1. m-1 / starter s42 n43 / normal" in text
    assert "On the 43 tasks where a skill was returned, 6 were won and 13 lost" in flowing
    assert "[-35.1, +3.8]" in text
    assert "No skill was returned on any of 50 tasks, so there is no RAE to show." in flowing
    assert "Not shown: agg. lift, RAE, 95% interval, p, signs disagree (no skill was" in flowing
    assert " ".join(CAVEAT.split()) in flowing
    for name in ("pair", "se", "sd", "n_cond", "rae", "aggregate_lift", "p"):
        assert f"{LABELS[name]}: {TERMS[name]}" in flowing


@pytest.mark.parametrize("show", [render.table, render.markdown])
def test_a_cell_below_the_reporting_threshold_says_so(show: Any) -> None:
    words = "Not enough evidence: a skill was returned on fewer than 10 pairs."
    # The threshold is 10 returned pairs; without any there is nothing to be short of.
    for returned, said in ((0, False), (1, True), (9, True), (10, False)):
        text = " ".join(show(report((MODEL, pairs(0, 0, returned, 20)))).split())
        assert (words in text) is said, returned


def test_table_explains_only_figures_that_some_cell_has() -> None:
    flowing = " ".join(render.table(report((MODEL, pairs(0, 0, 0, 20)))).split())
    assert f"oae: {TERMS['oae']}".lower() in flowing.lower()
    assert TERMS["rae"] not in flowing
    assert "What the words mean" not in render.table(build_report(experiment={}, cells=[]))


def test_figures_stand_with_their_method() -> None:
    lines = render.table(REPORT).splitlines()
    head = next(line for line in lines if line.startswith("#") and "RAE" in line)
    assert head.split()[-4:] == ["interval", "by", "p", "test"]
    row = lines[lines.index(head) + 2]
    assert row.split()[-3:] == ["Tango", "0.167", "McNemar"]
    assert "| [-35.1, +3.8] | Tango | 6 | 13 | 0.167 | McNemar |" in render.markdown(
        REPORT
    ).replace("\\", "")


@pytest.mark.parametrize("show", [render.table, render.markdown])
def test_repeated_tasks_show_the_test_that_counts(show: Any) -> None:
    # Five tasks won three times each, one lost: McNemar 15:3 gives .0075, the signs of six
    # equal nets 2 (1 + 6) / 2^6 = .219.
    repeated = tuple(
        PairRecord(f"p{t}-{r}", f"t{t}", r, retrieved=True, se=t < 5, sd=t >= 5)
        for t in range(6)
        for r in range(3)
    )
    text = show(report((MODEL, repeated), preset="paper")).replace("\\", "")
    columns = text.split("won", 1)[1]
    assert "sign-flip" in columns
    assert "0.219" in columns
    assert "Tango, clustered" in columns
    assert "percentile" not in text
    # The other p stands in one note, called descriptive.
    assert text.count("0.00754") == 1


def test_cells_are_named_by_what_tells_them_apart() -> None:
    text = render.table(
        report(
            ({**MODEL, "k": 1, "strategy": "search", "sha12": "0a"}, pairs(1, 1, 10)),
            ({**MODEL, "k": 3, "strategy": "search", "sha12": "0b"}, pairs(1, 1, 10)),
        )
    )
    assert "1. m-1 (k 1) / starter s42 n43 / –" in text
    assert "2. m-1 (k 3) / starter s42 n43 / –" in text


def test_table_fits_a_terminal() -> None:
    assert max(map(len, render.table(REPORT).splitlines())) <= 98


def test_table_shows_both_readings_of_failed_calls() -> None:
    dead = PairRecord(
        pair="x",
        task="x",
        replicate=0,
        retrieved=True,
        se=None,
        sd=True,
        se_failure="call",
    )
    text = " ".join(render.table(report((MODEL, (*pairs(6, 13, 24), dead)))).split())
    # 13 of 43 lost; counted as wrong 14 of 44: (6 - 14) / 44 = -18.2.
    assert "left out: -16.3 (6 won and 13 lost of 43)" in text
    assert "counted as wrong: -18.2 (6 won and 14 lost of 44)" in text


def test_table_of_an_empty_and_of_an_incomplete_report() -> None:
    assert CAVEAT[:40] in render.table(build_report(experiment={}, cells=[]))
    waiting = PairRecord(
        pair="x",
        task="x",
        replicate=0,
        retrieved=None,
        se=None,
        sd=None,
        se_failure="pending",
        sd_failure="pending",
    )
    text = render.table(report((MODEL, (*pairs(6, 13, 24), waiting))))
    assert "[-35.1" not in text
    assert "(pairs are still pending)" in " ".join(text.split())


def test_table_counts_sign_disagreements() -> None:
    # The skipped tasks all failed, so lift is positive; RAE is -16.3.
    text = render.table(REPORT)
    assert "1 of 1 (from 10 pairs)" in " ".join(text.split())
    assert "Not final" not in text


def test_a_count_of_sign_disagreements_says_when_it_is_not_final() -> None:
    waiting = PairRecord("x", "x", 0, None, None, None, se_failure="pending", sd_failure="pending")
    text = render.table(report((MODEL, pairs(6, 13, 24, 7)), ({"model": "m-2"}, (waiting,))))
    assert "Not final: 1 more cell lacks results of pairs." in " ".join(text.split())


def test_names_cannot_steer_a_terminal_or_break_lines() -> None:
    text = render.table(report(({"model": "a\x1b[31m\nb\u202e"}, pairs(1, 1, 10))))
    assert "a[31m b / – / –" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


# --- Markdown --------------------------------------------------------------------------------


def test_markdown_is_a_table_with_one_row_a_cell() -> None:
    text = render.markdown(REPORT)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "| -16.3 |" in lines[2]
    assert "> Notice: demonstration model" in text
    assert "- RAE: " in text


def test_markdown_shows_names_as_they_are() -> None:
    text = render.markdown(report(({"model": "a|b<script>*x*"}, pairs(1, 1, 10))))
    assert "| a\\|b&lt;script&gt;\\*x\\* |" in text
    assert "<script>" not in text


# --- CSV -------------------------------------------------------------------------------------


def test_csv_guards_text_and_leaves_numbers() -> None:
    cells = ["=1+1", "+x", "@cmd", "-5 tests", "plain", -45.5, None]
    assert [render.guarded(cell) for cell in cells] == [
        "'=1+1",
        "'+x",
        "'@cmd",
        "'-5 tests",
        "plain",
        -45.5,
        None,
    ]
    assert render.guarded("\t=1") == "'\t=1"
    assert render.guarded("＝1") == "'＝1"


@given(st.text().filter(lambda text: not text.startswith("'")))
def test_the_guard_comes_off_again(text: str) -> None:
    assert render.unguarded(render.guarded(text)) == text


def test_csv_holds_unrounded_figures() -> None:
    dangerous = report(({"model": "=cmd()", "k": 3}, pairs(6, 13, 24, 7)))
    (line,) = csv.DictReader(io.StringIO(render.csv_text(dangerous)))
    cell = dangerous["cells"][0]
    assert line["cell.model"] == "'=cmd()"
    assert float(line["rae"]) == cell["rae"]
    assert line["rae"].startswith("-16.27")  # a number, not guarded text
    assert float(line["rae_ci_low"]) == cell["rae_ci"]["low"]
    assert line["rae_ci_method"] == "tango"
    assert float(line["retrieved_part"]) == cell["decomposition"]["retrieved_part"]
    assert line["sign_disagreement"] in ("true", "false")
    assert line["complete"] == "true"


def test_csv_leaves_undefined_figures_empty_and_says_why() -> None:
    full, empty = csv.DictReader(io.StringIO(render.csv_text(REPORT)))
    assert full.keys() == empty.keys()
    assert (empty["rae"], empty["rae_ci_low"], empty["p"]) == ("", "", "")
    assert "rae: no_skill_returned" in empty["undefined"]
    assert full["undefined"] == ""
    assert empty["oae"] == "0.0"


def test_every_line_of_a_csv_says_what_holds_for_the_whole_report() -> None:
    for line in csv.DictReader(io.StringIO(render.csv_text(REPORT))):
        assert (line["preset"], line["failure_policy"]) == ("default", "censor")
        assert line["notices"] == "demonstration model"
        assert line["caveat"] == CAVEAT


@pytest.mark.parametrize("show", [render.table, render.markdown, render.csv_text])
def test_renderings_are_deterministic_and_leave_the_report_alone(show: Any) -> None:
    before = REPORT["report_sha256"]
    assert show(REPORT) == show(REPORT)
    assert build_report(experiment={}, cells=[]) != REPORT
    assert REPORT["report_sha256"] == before


def test_csv_heads_are_words_where_the_report_has_letters() -> None:
    line = next(csv.DictReader(io.StringIO(render.csv_text(REPORT))))
    for head in ("both_passed", "won", "lost", "both_failed"):
        assert {head, f"all_{head}", f"skip_{head}"} <= set(line)
    assert not {"a", "b", "c", "d", "all_b", "all_c", "skip_b", "skip_c"} & set(line)
    assert int(line["won"]) == REPORT["cells"][0]["b"]
    assert int(line["all_lost"]) == REPORT["cells"][0]["all_c"]
