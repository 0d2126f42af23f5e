"""The comparisons: what both sides do, the goal, and what isn't equal between them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from workbench.bootstrap import ROOT
from workbench.management.benchmarks.rows import MICROSECONDS, MILLISECONDS, Unit

SEED: Final = 42
_PROCESSES = 2
_PROGRAMS = 40
_PAIRS = 20
_ROWS = 10_000
# Far below what the rows take as objects, so that holding all of them would show.
_MOST_GROWTH_MB = 20

Agree = Callable[[Any, Any], bool]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A job that ours and a peer do side by side.

    Attributes:
        our_job, peer_job: their names in ``ours.JOBS`` and ``peers.JOBS``.
        data: what both are given; its argument is a folder that ends with the row.
        agree: whether both results (ours, the peer's) are of the same job well done.
        rounds: how often they take turns, at most.
        needs_peers: the peer lives in the peers' environment, not in the product's own.
        published: seconds a piece that the peer is known to take; it isn't run then, and
            ``peer_job`` is empty. ``agree`` gets None for its result.
        remark: what else our result says, in words.
    """

    name: str
    job: str
    peer: str
    our_job: str
    peer_job: str
    unit: Unit
    goal: float | None
    limits: str
    data: Callable[[Path], Mapping[str, Any]]
    agree: Agree
    rounds: int = 9
    needs_peers: bool = True
    published: float | None = None
    remark: Callable[[Any], str] = lambda _: ""


def _tables(*, fewest: int, most: int) -> Mapping[str, Any]:
    """Return 16 tables (b, c) with ``fewest`` to ``most`` discordant pairs."""
    generator = random.Random(SEED)
    tables = []
    for _ in range(16):
        discordant = generator.randint(fewest, most)
        b = generator.randint(2 * discordant // 5, 3 * discordant // 5)
        tables.append((b, discordant - b))
    return {"tables": tables}


def _same_p_values(ours: list[float], theirs: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(ours, theirs, strict=True))


def _same_interval(ours: list[float], theirs: list[float]) -> bool:
    """Tell whether each bound is the other's to a tenth of the interval's width."""
    width = theirs[1] - theirs[0]
    return all(abs(a - b) <= width / 10 for a, b in zip(ours, theirs, strict=True))


def _all_passed(ours: list[bool], theirs: list[bool]) -> bool:
    return all(ours) and all(theirs) and len(ours) == len(theirs)


def _same_work(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Tell whether both sides got every answer right in three model calls a pair."""
    return ours == theirs == {"accuracy": 1.0, "calls": 3 * _PAIRS}


def _programs(_: Path) -> Mapping[str, Any]:
    """Return starter tasks with their references; inputs that plain JSON holds, small ones."""
    programs: list[Mapping[str, Any]] = []
    with (ROOT / "runs" / "suites" / "starter" / "tasks.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            task = json.loads(line)
            cases = task["checker"]["cases"]
            text = json.dumps(cases)
            if "$" not in text and len(text) < 2_000 and len(programs) < _PROGRAMS:
                programs.append(
                    {
                        "code": task["reference"],
                        "entry": task["checker"]["entry"],
                        "inputs": [case["args"] for case in cases],
                        "expected": [case["expected"] for case in cases],
                    }
                )
    return {"programs": programs, "processes": _PROCESSES}


def _pairs(folder: Path) -> Mapping[str, Any]:
    """Return prompts, and for the peer's tool as much text as our search returns: three skills."""
    pool = sorted((ROOT / "skills" / "pools" / "coding").rglob("*.md"))
    return {
        "folder": str(folder),
        "pairs": _PAIRS,
        "prompt": "Question {round}.{task}: count the windows of a prefix sum.",
        "skill": "\n".join(path.read_text(encoding="utf-8") for path in pool[:3]),
    }


def _all_stored(ours: Mapping[str, Any], _: None) -> bool:
    """Tell whether every row was stored and memory stayed bounded."""
    return bool(ours["tasks"] == _ROWS and ours["grown_mb"] < _MOST_GROWTH_MB)


_RESAMPLING = (
    "The peer draws each resample of tasks with replacement (PCG64, seed 42, one resample after "
    "the other in float64, all in numpy but for the loop); ours draws the counts (won, lost, rest) "
    "of 20,000 resamples at once. Both are the same distribution of the same figure with other "
    "random numbers, so the bounds agree within the resampling error only."
)

COMPARISONS: Final = (
    Comparison(
        name="mcnemar",
        job="exact McNemar p, a table, 5 to 100 discordant pairs",
        peer="statsmodels",
        our_job="mcnemar",
        peer_job="mcnemar",
        unit=MICROSECONDS,
        goal=10,
        limits=(
            "statsmodels takes a 2x2 table and returns a result object by way of scipy's binomial "
            "distribution, whose time does not depend on the counts; ours takes the two counts and "
            "sums exact integers, whose time grows with them: see mcnemar-large. The p values are "
            "equal to nine digits."
        ),
        data=lambda _: _tables(fewest=5, most=100),
        agree=_same_p_values,
    ),
    Comparison(
        name="mcnemar-large",
        job="the same, 900 to 1,100 discordant pairs",
        peer="statsmodels",
        our_job="mcnemar",
        peer_job="mcnemar",
        unit=MICROSECONDS,
        goal=None,
        limits="As mcnemar. It shows where exact integers stop being the faster way.",
        data=lambda _: _tables(fewest=900, most=1_100),
        agree=_same_p_values,
    ),
    Comparison(
        name="rae-378",
        job="95% interval of the RAE, 20,000 resamples, 378 pairs",
        peer="resampling tasks, numpy",
        our_job="multinomial",
        peer_job="resample",
        unit=MILLISECONDS,
        goal=20,
        limits=_RESAMPLING + " A faster way to resample tasks is the row rae-blocks.",
        data=lambda _: {"n": 378, "b": 30, "c": 45},
        agree=_same_interval,
        needs_peers=False,
    ),
    Comparison(
        name="rae-10000",
        job="the same, 10,000 pairs",
        peer="resampling tasks, numpy",
        our_job="multinomial",
        peer_job="resample",
        unit=MILLISECONDS,
        goal=200,
        limits=_RESAMPLING,
        data=lambda _: {"n": 10_000, "b": 800, "c": 1_200},
        agree=_same_interval,
        rounds=7,
        needs_peers=False,
    ),
    Comparison(
        name="rae-blocks",
        job="the same, 378 pairs",
        peer="resampling tasks in blocks, numpy",
        our_job="multinomial",
        peer_job="resample_blocks",
        unit=MILLISECONDS,
        goal=None,
        limits=(
            "The peer is the fastest resampling of tasks found with numpy alone: blocks of "
            "resamples, 16-bit indices, 8-bit differences. It works up to 65,536 pairs."
        ),
        data=lambda _: {"n": 378, "b": 30, "c": 45},
        agree=_same_interval,
        needs_peers=False,
    ),
    Comparison(
        name="tango",
        job="Tango's 95% interval of the RAE (the default) beside resampling, 378 pairs",
        peer="resampling tasks, numpy",
        our_job="tango",
        peer_job="resample",
        unit=MILLISECONDS,
        goal=None,
        limits=(
            "Not the same interval: ours is a score interval without random numbers, the peer's a "
            "percentile bootstrap. The bounds agree to a tenth of the width for this table; with "
            "few flips they don't and shouldn't."
        ),
        data=lambda _: {"n": 378, "b": 30, "c": 45},
        agree=_same_interval,
        needs_peers=False,
    ),
    Comparison(
        name="grading",
        job=f"grade a small program with 8 to 10 cases, {_PROCESSES} processes",
        peer="evalplus untrusted_check",
        our_job="grading",
        peer_job="evalplus",
        unit=Unit("programs/s", rate=True),
        goal=0.3,
        limits=(
            "EvalPlus isolates nothing: it forks its own process, sets memory limits and blanks "
            "dangerous functions, and the verdict lies in memory that the program can write. Ours "
            "starts a fresh interpreter under the tier that stands beside its figure, and keeps "
            "the expected values outside. Ours also reads the program out of a Markdown reply and "
            "compares types. Both get the same reference programs and cases and pass them all; no "
            "program is slow or fails, so time limits play no part."
        ),
        data=_programs,
        agree=_all_passed,
        rounds=7,
    ),
    Comparison(
        name="orchestration",
        job=f"one pair without model time, in experiments of {_PAIRS} pairs from tasks to report",
        peer="Inspect AI",
        our_job="orchestration",
        peer_job="inspect",
        unit=MILLISECONDS,
        goal=5,
        limits=(
            "Per pair both make three model calls (search, answer; answer) and grade two short "
            "answers. Ours plans, starts, runs one execution after the other in one process, and "
            "reports; each stage and each model call is committed to an SQLite file with fsync, so "
            "that a kill at any moment repeats no finished call, and the search is a real one over "
            "the coding pool. Inspect runs both arms as samples of one evaluation, several at a "
            "time in one event loop, keeps their events in an SQLite file without fsync and writes "
            "one log at the end; its tool returns a fixed text of three skills. Its tokeniser, "
            "which it would download, is a stub that costs it "
            "nothing. No broker and no worker process is in either figure."
        ),
        data=_pairs,
        agree=_same_work,
        rounds=5,
    ),
    Comparison(
        name="import",
        job=f"import {_ROWS:,} task rows: read, check, grade the references, store",
        peer="Label Studio 1.23.2, as published, not run here",
        our_job="importing",
        peer_job="",
        unit=Unit("s"),
        goal=3,
        limits=(
            "The peer's figure, 2.1 s, is of its import of 10,000 tasks on another machine, so the "
            "ratio holds for its size only. Ours goes through the services of an upload: the file "
            "is copied and every line checked as a web process does it, then read again, each "
            "reference graded and all rows stored in one transaction of an SQLite file, as a "
            "worker does it. The rows have short answers; a code task's reference is run in the "
            "sandbox and takes what the row grading says. The peer grades nothing."
        ),
        data=lambda folder: {"folder": str(folder), "rows": _ROWS},
        agree=_all_stored,
        rounds=5,
        published=2.1,
        remark=lambda ours: f"memory grew by {ours['grown_mb']:.1f} MB at its peak",
    ),
)
