"""The report of an experiment: the dict of schema ``report/1``, from pairs alone.

One function makes every figure that pages, API, command line and exports show. The same pairs
give the same bytes whatever their order: there is no clock and no unseeded randomness here.
Definitions: docs/statistics.md; shape: docs/report-schema.json.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from runs.domain import effects
from runs.domain.effects import CellCounts, Counts, NotReportable, Transition
from runs.domain.estimates import REASONS, Estimate, Interval, Undefined
from runs.domain.intervals import (
    PMethod,
    TaskFlips,
    clustered_tango,
    design_effect,
    eight_cells,
    holm,
    mcnemar_exact,
    multinomial_percentile,
    sign_flip,
    tango,
)

SCHEMA = "report/1"
LEVEL = 0.95
ALPHA = 0.05
# Fewest discordant pairs (or differing tasks) with which an exact two-sided p can reach .05.
FEWEST_DISCORDANT = 6

CAVEAT = (
    "Every RAE is conditional on what this run retrieved: it is not a causal effect over a task "
    "population fixed beforehand, nor a ranking of models."
)


class Preset(StrEnum):
    """Which interval is shown: Tango's, or the one of the paper's tables."""

    DEFAULT = "default"
    PAPER = "paper"


class FailurePolicy(StrEnum):
    """What a failed model call means: the pair is left out, or the arm counts as wrong."""

    CENSOR = "censor"
    INCORRECT = "incorrect"


class Failure(StrEnum):
    """Why an arm has no result."""

    CALL = "call"
    HOST = "host"
    CONTAMINATED = "contaminated"
    PENDING = "pending"
    # Both arms have a result, but they weren't run with equal settings.
    UNEQUAL_PARAMETERS = "unequal_parameters"
    # The next three come from imported runs only.
    NO_RESULT = "no_result"
    MISSING = "missing"
    CONFLICT = "conflict"


FAILURES: Mapping[str, str] = MappingProxyType(
    {
        Failure.CALL: "a model call failed after its retries",
        Failure.HOST: "the sandbox or the host failed",
        Failure.CONTAMINATED: "a run without skills got one",
        Failure.PENDING: "the run isn't finished",
        Failure.UNEQUAL_PARAMETERS: "the endpoint refused a parameter in one arm only",
        Failure.NO_RESULT: "the run has no result",
        Failure.MISSING: "there is no run in this arm",
        Failure.CONFLICT: "several runs disagree",
    }
)


# What every reader must be told, as it also stands in the rows of an export.
DEMONSTRATION = "demonstration model"
CHECKED_UNSANDBOXED = "answers were checked unsandboxed"
IN_PROCESS = "checked in the program's own process, where a pass can be forged"
BEING_GRADED_AGAIN = "being graded again: the grades of some answers are of before, others new"
CANCELLED = "cancelled before its end: what had not run by then never will"


def refused(model: str, parameters: Iterable[str]) -> str:
    """Return the notice that a model's endpoint refused some parameters."""
    return f"{model}: the endpoint refused {', '.join(sorted(parameters))}"


@dataclass(frozen=True)
class PairRecord:
    """One pair as the report sees it.

    Attributes:
        pair: its uid, unique in the cell.
        task: the task's key; pairs of one task are not independent.
        replicate: number of the repetition, unique within the task.
        retrieved: whether a skill was returned in the SE run; None = unknown. For a failed SE
            run it says what the partial trace shows.
        se, sd: whether the arm passed; None = it has no result.
        se_failure, sd_failure: why not (a ``Failure`` code); None when there is a result.
        skills: slugs of the returned skills.
        invoked: whether the SE run called the search tool; None = unknown.
        path: where the pair can be looked at, or None.
        se_status, sd_status: how the arm's answer ended (a code of ``ANSWERS``); None = unknown.
        malformed_decisions: replies of the SE run that should have said whether to search and
            could not be read.
        invalid_calls: search calls of the SE run that could not be carried out.
        unequal: the parameters that the endpoint refused in one arm only.
        in_process: the answers were checked in the program's own process, where a program that
            sets out to can forge a pass.

    Raises:
        ValueError: an arm has both a result and a failure, or neither.
    """

    pair: str
    task: str
    replicate: int
    retrieved: bool | None
    se: bool | None
    sd: bool | None
    skills: tuple[str, ...] = ()
    invoked: bool | None = None
    se_failure: str | None = None
    sd_failure: str | None = None
    path: str | None = None
    se_status: str | None = None
    sd_status: str | None = None
    malformed_decisions: int = 0
    invalid_calls: int = 0
    unequal: tuple[str, ...] = ()
    in_process: bool = False

    def __post_init__(self) -> None:
        for arm, result, failure in (
            ("SE", self.se, self.se_failure),
            ("SD", self.sd, self.sd_failure),
        ):
            if (result is None) != (failure is not None):
                raise ValueError(f"pair {self.pair}: {arm} needs either a result or a failure")
            if failure is not None:
                Failure(failure)

    @property
    def pending(self) -> bool:
        return Failure.PENDING in (self.se_failure, self.sd_failure)


@dataclass(frozen=True)
class CellRecord:
    """A cell: what was run (``descriptor``, plain JSON values) and its pairs."""

    descriptor: Mapping[str, Any]
    pairs: tuple[PairRecord, ...]


# How an answer can end but by being given, in words that follow "3 of 12 SE answers".
ANSWERED = "answered"
ANSWERS: Mapping[str, str] = MappingProxyType(
    {
        "truncated": "were cut off at the limit of tokens",
        "filtered": "were cut off by the endpoint's content filter",
        "context_overflow": "are empty: the context overflowed",
        "empty": "are empty: the model gave none",
    }
)

# What each figure means, in one plain sentence; shown wherever the figure stands.
TERMS: Mapping[str, str] = MappingProxyType(
    {
        "pair": "One task run twice with the same seed: once with skills (SE), once without (SD).",
        "se": "The run with skills at hand (skill-enabled).",
        "sd": "The same run without skills (skill-disabled).",
        "n_planned": "Pairs that were planned.",
        "n_pairs": "Pairs with a result in both arms.",
        "n_pending": "Pairs whose runs aren't finished.",
        "n_censored": "Pairs left out because an arm has no result; they count neither way.",
        "n_cond": "Pairs in which a skill was returned to the SE run.",
        "n_unknown_retrieval": (
            "Pairs of which it is unknown whether a skill was returned; they count in OAE, "
            "not in RAE."
        ),
        "coverage": "Share of the pairs in which a skill was returned.",
        "se_accuracy": "Share of all pairs that passed with skills.",
        "sd_accuracy": "Share of all pairs that passed without skills.",
        "aggregate_lift": (
            "Accuracy with skills on tasks where a skill was returned, minus accuracy with "
            "skills on the other tasks. It compares different tasks and so misleads when "
            "easier or harder tasks are searched."
        ),
        "selection_gap": (
            "The same contrast for the runs without skills: how much easier the tasks were "
            "where a skill was returned."
        ),
        "oae": "Overall effect: won minus lost, as a share of all pairs.",
        "rae": (
            "Retrieved-task effect: won minus lost, as a share of the pairs where a skill was "
            "returned, each against the same task without skills."
        ),
        "skipped_effect": "Won minus lost, as a share of the pairs where no skill was returned.",
        "decomposition": "OAE split into what comes from retrieved and from skipped pairs.",
        "a": "Passed with and without skills.",
        "b": "Failed without skills, passed with them.",
        "c": "Passed without skills, failed with them.",
        "d": "Failed with and without skills.",
        "rae_ci": "Range of RAE values the data agree with, at 95% confidence.",
        "mcnemar_p": (
            "Exact McNemar test: how often chance alone would split won and lost at least this "
            "unevenly."
        ),
        "p": (
            "How often chance alone would give a net effect this large: McNemar's exact test, or "
            "the sign-flip test over tasks where tasks repeat."
        ),
        "p_adjusted": (
            "The same p after Holm's correction for all cells that were planned; cells with too "
            "few pairs keep 1."
        ),
        "sign_disagreement": "Lift and RAE point in opposite directions.",
        "reportable": (
            "The cell enters counts of sign disagreements: at least 10 pairs where a skill was "
            "returned, and a defined lift."
        ),
        "design_effect": (
            "How many pairs of repeated tasks tell as much as one independent task; intervals "
            "widen by it."
        ),
        "sign_flip": (
            "Exact test over tasks: how often the net effect would be this large if each task's "
            "net result had either sign by chance."
        ),
        "failure_readings": (
            "RAE read both ways where model calls failed: failed pairs left out, or failed "
            "runs counted as wrong."
        ),
    }
)

# Short labels of the same figures, for table heads.
# What the four results of a pair are called, by the letter that codes and formulas use.
RESULT_WORDS: Mapping[str, str] = MappingProxyType(
    {"a": "both passed", "b": "won", "c": "lost", "d": "both failed"}
)
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "pair": "pair",
        "se": "SE",
        "sd": "SD",
        "n_pairs": "pairs",
        "n_cond": "returned",
        "coverage": "coverage %",
        "se_accuracy": "SE acc. %",
        "sd_accuracy": "SD acc. %",
        "aggregate_lift": "agg. lift",
        "selection_gap": "selection gap",
        "oae": "OAE",
        "rae": "RAE",
        "rae_ci": "95% interval",
        "b": RESULT_WORDS["b"],
        "c": RESULT_WORDS["c"],
        "mcnemar_p": "McNemar p",
        "p": "p",
        "p_adjusted": "p, Holm",
        "sign_disagreement": "signs disagree",
        "skipped_effect": "skipped effect",
    }
)

NOT_REPORTABLE: Mapping[NotReportable, str] = MappingProxyType(
    {
        NotReportable.INCOMPLETE: "pairs are still pending",
        NotReportable.OTHER_DESIGN: "only cells that compare skills with no skills are counted",
        NotReportable.FEW_RETRIEVED: (
            f"a skill was returned on fewer than {effects.REPORTING_THRESHOLD} pairs"
        ),
        NotReportable.LIFT_UNDEFINED: "lift is undefined",
    }
)


def lacks_evidence(cell: Mapping[str, Any]) -> bool:
    """Return whether skills were returned in a finished cell, but on too few of its pairs."""
    # Without any retrieved pair there is no figure that evidence could be short for.
    return bool(cell["n_cond"]) and cell["not_reportable"] == NotReportable.FEW_RETRIEVED


def build_report(
    *,
    experiment: Mapping[str, Any],
    cells: Iterable[CellRecord],
    preset: str = Preset.DEFAULT,
    failure_policy: str = FailurePolicy.CENSOR,
    notices: Sequence[str] = (),
    cancelled: bool = False,
) -> dict[str, Any]:
    """Return the report/1 dict; equal data give byte-identical canonical JSON.

    Args:
        experiment: what to call it; plain JSON values without times.
        cells: in any order; each descriptor at most once.
        preset: ``default`` or ``paper``: which interval.
        failure_policy: ``censor`` or ``incorrect``: what a failed model call means.
        notices: what every reader must be told, such as ``demonstration model``.
        cancelled: nothing more will be run, so that what is pending stays so.

    Raises:
        ValueError: an unknown preset or policy, two cells with one descriptor, two pairs with
            one uid or one task and replicate in a cell, NaN anywhere.
        TypeError: something JSON has no form for.
    """
    chosen, policy = Preset(preset), FailurePolicy(failure_policy)
    ordered = _in_order(cells)
    built = [_Cell(record, preset=chosen, policy=policy, cancelled=cancelled) for record in ordered]
    for cell in built:
        cell.compute()
    _adjust(built)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "experiment": dict(experiment),
        "preset": str(chosen),
        "failure_policy": str(policy),
        "notices": list(notices),
        "caveat": CAVEAT,
        "cells": [cell.as_dict() for cell in built],
        "sign_disagreements": _sign_disagreements(built),
        "harmful_flips": [flip for cell in built for flip in cell.harmful_flips()],
    }
    report["report_sha256"] = report_sha256(report)
    return report


def report_sha256(report: Mapping[str, Any]) -> str:
    """Return the hex sha256 of a report's canonical JSON without that sha256 and ``as_of``."""
    rest = {key: value for key, value in report.items() if key not in ("report_sha256", "as_of")}
    return hashlib.sha256(_canonical_json(rest).encode()).hexdigest()


def headline(cell: Mapping[str, Any]) -> str:
    """Return one sentence that says what a report cell shows, without a full stop.

    It takes the cell of a report (a value of ``report["cells"]``).
    """
    design = cell["cell"].get("design", "se_sd")
    if not cell["complete"]:
        settled = cell["n_pairs"] + cell["n_censored"]
        if cell["cancelled"]:
            return (
                f"Cancelled with {settled} of {_plural(cell['n_planned'], 'pair')} settled: of "
                f"{_tasks(cell, cell['n_cond'])} where {_CONDITION.get(design, _RETURNED)}, "
                f"{_won_lost(cell)}; a part of the pairs gives no figures"
            )
        return (
            f"{settled} of {_plural(cell['n_planned'], 'pair')} settled so far: of "
            f"{_tasks(cell, cell['n_cond'])} where {_CONDITION.get(design, _RETURNED)}, "
            f"{_won_lost(cell)}; figures follow when all have settled"
        )
    if not cell["n_pairs"]:
        return (
            f"No pair has both results ({cell['n_censored']} of {cell['n_planned']} left out), "
            "so there is nothing to compare"
        )
    if design == "aa":
        differing = cell["all_b"] + cell["all_c"]
        return (
            f"Both arms ran without skills: {differing} of {_tasks(cell, cell['n_pairs'])} came "
            "out differently by chance alone; this is noise, not an effect"
        )
    if not cell["n_cond"]:
        return _why_no_rae(cell)
    interval = cell["rae_ci"]
    bracket = f" [{interval['low']:+.1f}, {interval['high']:+.1f}]" if interval else ""
    same = "the same task" if cell["n_cond"] == 1 else "the same tasks"
    return (
        f"On the {_tasks(cell, cell['n_cond'])} where {_CONDITION.get(design, _RETURNED)}, "
        f"{_won_lost(cell)} against {same} {_AGAINST.get(design, 'without skills')}: "
        f"{cell['rae']:+.1f} points{bracket}"
    )


def paper_example() -> CellRecord:
    """Return a worked example in which lift and RAE disagree in sign, from printed counts.

    Skill Following (arXiv 2609.00549), DeepSeek-V3.2 on MBPP+, three partitions of 80 pooled:
    Table 17 (Table 14 for the counts) prints b = 8, c = 45, n_cond = 233, OAE -15.8, lift +21.2.
    Tables 3, 8 and 19 leave one whole-number solution for SE passes: 116 retrieved, 2 skipped.
    OAE = -38/240 gives the 7 skipped pairs a net of -1; that it is one loss and no win is the
    choice with fewest flips (no shown estimate depends on it). Pairs count as independent, as
    in the paper. The pairs are stand-ins: they can't be opened or labelled.
    """
    groups = (
        (True, Counts(a=108, b=8, c=45, d=72)),
        (False, Counts(a=2, b=0, c=1, d=4)),
    )
    outcomes = [
        (retrieved, se, sd)
        for retrieved, counts in groups
        for count, se, sd in (
            (counts.a, True, True),
            (counts.b, True, False),
            (counts.c, False, True),
            (counts.d, False, False),
        )
        for _ in range(count)
    ]
    return CellRecord(
        descriptor={
            "example": True,
            "source": "Skill Following, arXiv 2609.00549, Table 17 with Tables 3, 8, 14 and 19",
            "design": "se_sd",
            "model": "DeepSeek-V3.2",
            "benchmark": "MBPP+",
            "partition": "seeds 42, 43 and 44 pooled",
            "control": "normal",
            "strategy": "search",
            "k": 3,
        },
        pairs=tuple(
            PairRecord(
                pair=f"example-{number:03}",
                task=f"example task {number:03}",
                replicate=0,
                retrieved=retrieved,
                se=se,
                sd=sd,
                invoked=None,
            )
            for number, (retrieved, se, sd) in enumerate(outcomes, start=1)
        ),
    )


# --- one cell --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Settled:
    """A pair with both results under the failure policy."""

    pair: PairRecord
    transition: Transition
    supplied: bool  # a failed call was counted as wrong, so there may be no answer to look at


def transition_of(pair: PairRecord, policy: FailurePolicy) -> Transition | None:
    """Return the pair's transition under the failure policy, None without both results."""
    if pair.pending:
        return None
    se, sd = pair.se, pair.sd
    if policy is FailurePolicy.INCORRECT:
        se = False if pair.se_failure == Failure.CALL else se
        sd = False if pair.sd_failure == Failure.CALL else sd
    return None if se is None or sd is None else Transition.of(se=se, sd=sd)


def _settle(pair: PairRecord, policy: FailurePolicy) -> _Settled | None:
    transition = transition_of(pair, policy)
    supplied = pair.se is None or pair.sd is None
    return None if transition is None else _Settled(pair, transition, supplied)


@dataclass(frozen=True)
class _Group:
    """Settled pairs that an effect is taken over."""

    settled: tuple[_Settled, ...]

    @property
    def counts(self) -> Counts:
        return Counts.of(item.transition for item in self.settled)

    @property
    def tasks(self) -> tuple[TaskFlips, ...]:
        by_task: dict[str, list[Transition]] = {}
        for item in self.settled:
            by_task.setdefault(item.pair.task, []).append(item.transition)
        return tuple(
            TaskFlips(
                pairs=len(found),
                won=found.count(Transition.HELPFUL),
                lost=found.count(Transition.HARMFUL),
            )
            for _, found in sorted(by_task.items())
        )

    @property
    def repeats(self) -> bool:
        return len({item.pair.task for item in self.settled}) < len(self.settled)

    def interval(self, preset: Preset) -> Interval:
        """The interval of (b - c) / n in points; the group must not be empty."""
        counts = self.counts
        if self.repeats:
            found = clustered_tango(tasks=self.tasks, level=LEVEL)
        elif preset is Preset.PAPER:
            found = multinomial_percentile(b=counts.b, c=counts.c, n=counts.n, level=LEVEL)
        else:
            found = tango(b=counts.b, c=counts.c, n=counts.n, level=LEVEL)
        return found.in_points()


class _Cell:
    """Everything the report says of one cell."""

    def __init__(
        self, record: CellRecord, *, preset: Preset, policy: FailurePolicy, cancelled: bool
    ) -> None:
        self.record = record
        self.cancelled = cancelled
        self.preset = preset
        self.policy = policy
        self.settled = _settled(record.pairs, policy)
        self.retrieved = _Group(tuple(s for s in self.settled if s.pair.retrieved is True))
        self.skipped = _Group(tuple(s for s in self.settled if s.pair.retrieved is False))
        self.everything = _Group(self.settled)
        self.counts = _cell_counts(self.settled)
        self.n_pending = sum(pair.pending for pair in record.pairs)
        self.complete = self.n_pending == 0
        self.values: dict[str, Any] = {}
        self.undefined: dict[str, str] = {}

    @property
    def design(self) -> str:
        return str(self.record.descriptor.get("design", "se_sd"))

    @property
    def is_example(self) -> bool:
        return bool(self.record.descriptor.get("example"))

    @property
    def counts_in_prevalence(self) -> bool:
        return self.complete and self.design == "se_sd" and not self.is_example

    @property
    def p_in_family(self) -> float:
        """The p value that the cell brings to the family of all cells: 1 without evidence."""
        enough = self.counts.retrieved.n >= effects.REPORTING_THRESHOLD
        found: float | None = self.values["p"]
        return 1.0 if found is None or not enough else found

    def compute(self) -> None:
        """Compute every figure that the cell has by itself."""
        self._put_counts()
        self._put_answers()
        self._put_effects()
        self._put_intervals()
        self._put_test()
        self._put_signs()
        self.values["failure_readings"] = self._failure_readings()
        self.values["checked_in_process"] = self._checked_in_process()

    def put_adjusted(self, p: float, *, family: int) -> None:
        """Set the p value after the correction for ``family`` cells."""
        self.values["p_adjusted"] = None if self.values["p"] is None else p
        self.values["n_family"] = family
        if "p" in self.undefined:
            self.undefined["p_adjusted"] = self.undefined["p"]

    def as_dict(self) -> dict[str, Any]:
        cell = {"cell": dict(self.record.descriptor), **self.values, "undefined": self.undefined}
        cell["notes"] = self._notes(cell)
        cell["headline"] = headline(cell)
        return cell

    def harmful_flips(self) -> list[dict[str, Any]]:
        if self.is_example:
            return []
        return [
            {
                "cell": self.record.descriptor.get("sha12"),
                "pair": item.pair.pair,
                "task": item.pair.task,
                "replicate": item.pair.replicate,
                "skills": list(item.pair.skills),
                "path": item.pair.path,
                "failed_call": item.supplied,
            }
            for item in self.retrieved.settled
            if item.transition is Transition.HARMFUL
        ]

    # Each _put_* fills ``values``; a figure without a value also names its reason.

    def _put(self, name: str, estimate: Estimate) -> None:
        if not self.complete:
            estimate = Estimate(None, Undefined.INCOMPLETE)
        self.values[name] = estimate.value
        if estimate.reason is not None:
            self.undefined[name] = str(estimate.reason)

    def _put_interval(self, name: str, found: Interval | Undefined) -> None:
        if isinstance(found, Undefined):
            self.values[name] = None
            self.undefined[name] = str(found)
            return
        self.values[name] = {
            "low": found.low,
            "high": found.high,
            "level": found.level,
            "method": str(found.method),
        }

    def _put_counts(self) -> None:
        pairs, counts = self.record.pairs, self.counts
        censored = [
            pair for pair in pairs if not pair.pending and _settle(pair, self.policy) is None
        ]
        invoked = [item.pair.invoked for item in self.settled]
        self.values |= {
            "complete": self.complete,
            "cancelled": self.cancelled,
            "n_planned": len(pairs),
            "n_pairs": counts.all.n,
            "n_pending": self.n_pending,
            "n_censored": len(censored),
            "censored": {
                "se": _tally(pair.se_failure for pair in censored),
                "sd": _tally(pair.sd_failure for pair in censored),
            },
            "n_failed_calls": sum(
                Failure.CALL in (pair.se_failure, pair.sd_failure) for pair in pairs
            ),
            "n_tasks": len({item.pair.task for item in self.settled}),
            "n_cond": counts.retrieved.n,
            "n_tasks_cond": len(self.retrieved.tasks),
            "n_skip": counts.skipped.n,
            "n_unknown_retrieval": counts.unknown.n,
            "n_invoked": None if None in invoked else sum(map(bool, invoked)),
        }
        groups = (("", counts.retrieved), ("all_", counts.all), ("skip_", counts.skipped))
        for prefix, group in groups:
            for letter in "abcd":
                self.values[prefix + letter] = getattr(group, letter)

    def _put_answers(self) -> None:
        pairs = [item.pair for item in self.settled]
        self.values |= {
            "answers": {
                "se": _tally(pair.se_status for pair in pairs),
                "sd": _tally(pair.sd_status for pair in pairs),
            },
            "n_malformed_decisions": sum(pair.malformed_decisions for pair in pairs),
            "n_invalid_calls": sum(pair.invalid_calls for pair in pairs),
        }

    def _checked_in_process(self) -> dict[str, Any] | None:
        if not self.complete or not any(item.pair.in_process for item in self.settled):
            return None
        return {
            name: _reading(_cell_counts([s for s in self.settled if s.pair.in_process is state]))
            for name, state in (("only", True), ("without", False))
        }

    def _put_effects(self) -> None:
        for name, figure in _FIGURES.items():
            self._put(name, figure(counts=self.counts))
        parts = effects.decompose(counts=self.counts) if self.complete else None
        self.values["decomposition"] = parts and {
            "retrieved_part": parts.retrieved,
            "skipped_part": parts.skipped,
            "unknown_part": parts.unknown,
        }
        if parts is None:
            self.undefined["decomposition"] = str(
                Undefined.NO_PAIRS if self.complete else Undefined.INCOMPLETE
            )

    def _put_intervals(self) -> None:
        self._put_interval("rae_ci", self._paired("rae", self.retrieved))
        self._put_interval("oae_ci", self._paired("oae", self.everything))
        eight, dropped = self._eight()
        self.values["resamples_dropped"] = dropped
        for name in ("aggregate_lift", "selection_gap"):
            self._put_interval(f"{name}_ci", _pick(eight, name))
        self._put_interval(
            "skipped_effect_ci",
            _pick(eight, "skipped_effect")
            if self.preset is Preset.PAPER
            else self._paired("skipped_effect", self.skipped),
        )
        for name in ("retrieved_part", "skipped_part"):
            self._put_interval(f"{name}_ci", _pick(eight, name))
        repeats = self.complete and self.retrieved.repeats
        self.values["design_effect"] = (
            design_effect(tasks=self.retrieved.tasks) if repeats else None
        )

    def _paired(self, name: str, group: _Group) -> Interval | Undefined:
        if name in self.undefined:
            return Undefined(self.undefined[name])
        return group.interval(self.preset)

    def _eight(self) -> tuple[Mapping[str, Interval] | Undefined, int | None]:
        if "aggregate_lift" in self.undefined:
            return Undefined(self.undefined["aggregate_lift"]), None
        # Resampling pairs treats them as independent, which repeats of one task are not.
        if _Group(self.retrieved.settled + self.skipped.settled).repeats:
            return Undefined.TASKS_REPEAT, None
        found = eight_cells(
            retrieved=self.counts.retrieved,
            skipped=self.counts.skipped,
            unknown=self.counts.unknown,
            level=LEVEL,
        )
        return found.intervals or Undefined.RESAMPLES_DROPPED, found.dropped

    def _put_test(self) -> None:
        repeats = self.retrieved.repeats
        counts = self.counts.retrieved
        self.values["mcnemar_descriptive"] = repeats
        if "rae" in self.undefined:
            self.values |= {"mcnemar_p": None, "p": None, "p_method": None}
            self.undefined |= dict.fromkeys(("mcnemar_p", "p"), self.undefined["rae"])
            return
        pooled = mcnemar_exact(b=counts.b, c=counts.c)
        self.values["mcnemar_p"] = pooled
        if repeats:
            differences = [task.won - task.lost for task in self.retrieved.tasks]
            self.values["p"] = sign_flip(differences=differences)
            self.values["p_method"] = str(PMethod.SIGN_FLIP_EXACT)
        else:
            self.values["p"] = pooled
            self.values["p_method"] = str(PMethod.MCNEMAR_EXACT)

    def _put_signs(self) -> None:
        lift, effect = self.values["aggregate_lift"], self.values["rae"]
        disagree = None
        if lift is not None and effect is not None:
            disagree = effects.signs_disagree(lift=Estimate(lift), effect=Estimate(effect))
        self.values["sign_disagreement"] = disagree
        if disagree is None:
            missing = "rae" if effect is None else "aggregate_lift"
            self.undefined["sign_disagreement"] = self.undefined[missing]
        self.values["sign_disagreement_firm"] = disagree and all(
            _excludes_zero(self.values[name]) for name in ("aggregate_lift_ci", "rae_ci")
        )
        why = self._why_not_reportable()
        self.values["reportable"] = why is None
        self.values["not_reportable"] = why and str(why)

    def _why_not_reportable(self) -> NotReportable | None:
        if not self.complete:
            return NotReportable.INCOMPLETE
        if self.design != "se_sd":
            return NotReportable.OTHER_DESIGN
        return effects.why_not_reportable(counts=self.counts)

    def _failure_readings(self) -> dict[str, Any] | None:
        if not self.complete or not self.values["n_failed_calls"]:
            return None
        return {
            str(policy): _reading(_cell_counts(_settled(self.record.pairs, policy)))
            for policy in FailurePolicy
        }

    def _notes(self, cell: Mapping[str, Any]) -> list[dict[str, str]]:
        notes = {
            "example": self.is_example and _EXAMPLE_NOTE.format(source=cell["cell"].get("source")),
            "incomplete": not self.complete
            and f"{_plural(self.n_pending, 'pair')} "
            + (
                "never ended." if self.cancelled else "still pending: counts only until all settle."
            ),
            "censored": cell["n_censored"] and _censored_note(cell),
            "unequal_parameters": self._unequal_note(),
            "calls_counted_wrong": any(item.supplied for item in self.settled)
            and f"Failed model calls count as wrong in "
            f"{_plural(sum(item.supplied for item in self.settled), 'pair')}.",
            "unusual_answers": _answers_note(cell),
            "malformed_decisions": cell["n_malformed_decisions"]
            and f"{_plural(cell['n_malformed_decisions'], 'decision')} of SE runs could not be "
            "read; such a run answers without a further search.",
            "invalid_calls": cell["n_invalid_calls"]
            and f"{_plural(cell['n_invalid_calls'], 'search call')} of SE runs could not be "
            "carried out.",
            "checked_in_process": cell["checked_in_process"] and _in_process_note(cell),
            "unknown_retrieval": self.counts.unknown.n and _unknown_note(cell),
            "several_pairs_per_task": cell["design_effect"] is not None and _repeats_note(cell),
            "not_the_papers_interval": self.preset is Preset.PAPER
            and cell["design_effect"] is not None
            and "The paper's interval is for one pair a task, so this one is Tango's with the "
            "design effect.",
            "few_discordant": cell["p"] is not None and self._few_discordant_note(cell),
            "interval_and_test_disagree": cell["p"] is not None and _disagreement_note(cell),
            "several_cells": cell["p"] is not None and _family_note(cell),
        }
        return [{"code": code, "text": text} for code, text in notes.items() if text]

    def _unequal_note(self) -> str | None:
        pairs = [pair for pair in self.record.pairs if pair.unequal]
        if not pairs:
            return None
        names = ", ".join(sorted({name for pair in pairs for name in pair.unequal}))
        return (
            f"In {_plural(len(pairs), 'pair')} the endpoint refused {names} in one arm only: the "
            "arms differ in more than skills there, so nothing of them counts."
        )

    def _few_discordant_note(self, cell: Mapping[str, Any]) -> str | None:
        if cell["mcnemar_descriptive"]:
            differing = sum(task.won != task.lost for task in self.retrieved.tasks)
            what = _plural(differing, "task") + " with a net result"
        else:
            differing = cell["b"] + cell["c"]
            what = _plural(differing, "pair") + " that differ" + ("s" if differing == 1 else "")
        if differing >= FEWEST_DISCORDANT:
            return None
        return f"With {what} the exact test can't reach p = .05 whichever way they fall."


_RETURNED = "a skill was returned"
_CONDITION = {"target": "the target skill was given"}
_AGAINST = {"leave_one_out": "with that skill left out"}
_EXAMPLE_NOTE = "Worked example from printed counts, not a run of this installation. {source}."
_FIGURES = {
    "coverage": effects.coverage,
    "se_accuracy": effects.se_accuracy,
    "sd_accuracy": effects.sd_accuracy,
    "aggregate_lift": effects.aggregate_lift,
    "selection_gap": effects.selection_gap,
    "oae": effects.oae,
    "skipped_effect": effects.skipped_effect,
    "rae": effects.rae,
}


# --- sentences -------------------------------------------------------------------------------


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _tasks(cell: Mapping[str, Any], number: int) -> str:
    # Where a task has several pairs, "pairs" is the honest unit.
    return _plural(number, "pair" if cell["n_tasks"] < cell["n_pairs"] else "task")


def _won_lost(cell: Mapping[str, Any]) -> str:
    return f"{cell['b']} {'was' if cell['b'] == 1 else 'were'} won and {cell['c']} lost"


def _why_no_rae(cell: Mapping[str, Any]) -> str:
    pairs = _tasks(cell, cell["n_pairs"])
    if cell["n_unknown_retrieval"]:
        return (
            f"It is unknown for {cell['n_unknown_retrieval']} of {pairs} whether a skill was "
            "returned, and none is known to have got one, so there is no RAE; over all of them "
            f"{cell['all_b']} {'was' if cell['all_b'] == 1 else 'were'} won and "
            f"{cell['all_c']} lost: {cell['oae']:+.1f} points"
        )
    called = cell["n_invoked"]
    tool = f" (the search was called in {called})" if called else ""
    return f"No skill was returned on any of {pairs}{tool}, so there is no RAE to show"


def _censored_note(cell: Mapping[str, Any]) -> str:
    unequal = Failure.UNEQUAL_PARAMETERS
    reasons = []
    for arm, tally in cell["censored"].items():
        found = [f"{FAILURES[code]} ({n})" for code, n in tally.items() if code != unequal]
        if found:
            reasons.append(f"{arm.upper()}: " + ", ".join(found))
    # It is of the pair, not of an arm.
    times = max(tally.get(unequal, 0) for tally in cell["censored"].values())
    if times:
        reasons.append(f"{FAILURES[unequal]} ({times})")
    return f"{_plural(cell['n_censored'], 'pair')} left out ({'; '.join(reasons)})."


def _answers_note(cell: Mapping[str, Any]) -> str:
    return " ".join(
        f"{tally[status]} of {sum(tally.values())} {arm.upper()} answers {words}."
        for arm, tally in cell["answers"].items()
        for status, words in ANSWERS.items()
        if status in tally
    )


def _in_process_note(cell: Mapping[str, Any]) -> str:
    only, without = cell["checked_in_process"]["only"], cell["checked_in_process"]["without"]
    rest = "there is no RAE" if without["rae"] is None else f"RAE is {without['rae']:+.1f}"
    return (
        f"The answers of {_plural(only['n_pairs'], 'pair')} were checked in the program's own "
        f"process, where a pass can be forged: {only['b']} won and {only['c']} lost of "
        f"{only['n_cond']} where a skill was returned. Without them {rest}."
    )


def _family_note(cell: Mapping[str, Any]) -> str | None:
    if cell["n_family"] < 2 or cell["n_cond"] < effects.REPORTING_THRESHOLD:
        return None
    return f"After Holm's correction for {cell['n_family']} cells p = {cell['p_adjusted']:.3g}."


def _unknown_note(cell: Mapping[str, Any]) -> str:
    unknown, known, total = cell["n_unknown_retrieval"], cell["n_cond"], cell["n_pairs"]
    return (
        f"Retrieval is unknown for {_plural(unknown, 'pair')}: coverage lies between "
        f"{known / total * 100:.1f}% and {(known + unknown) / total * 100:.1f}%."
    )


def _repeats_note(cell: Mapping[str, Any]) -> str:
    return (
        f"{cell['n_cond']} pairs come from {_plural(cell['n_tasks_cond'], 'task')}: the interval "
        f"allows for it (design effect {cell['design_effect']:.2f}), the test is the sign-flip "
        f"test over tasks. McNemar's p over all pairs ({cell['mcnemar_p']:.3g}) is descriptive "
        "only: it takes the pairs of a task for independent ones."
    )


def _disagreement_note(cell: Mapping[str, Any]) -> str | None:
    outside, significant = _excludes_zero(cell["rae_ci"]), cell["p"] <= ALPHA
    if outside == significant:
        return None
    return (
        f"The interval {'leaves 0 out' if outside else 'contains 0'} although p = {cell['p']:.3g} "
        f"is {'below' if significant else 'above'} .05: the two are different methods, and the "
        "verdict follows p."
    )


# --- parts -----------------------------------------------------------------------------------


def _in_order(cells: Iterable[CellRecord]) -> list[CellRecord]:
    """Return the cells by descriptor, examples last, with their pairs by task and replicate."""
    keyed: dict[tuple[bool, str], CellRecord] = {}
    for record in cells:
        key = (bool(record.descriptor.get("example")), _canonical_json(dict(record.descriptor)))
        if key in keyed:
            raise ValueError(f"two cells have the descriptor {key[1]}: pool their pairs")
        pairs = sorted(record.pairs, key=lambda pair: (pair.task, pair.replicate, pair.pair))
        if len({pair.pair for pair in pairs}) < len(pairs):
            raise ValueError("two pairs of a cell have the same uid")
        if len({(pair.task, pair.replicate) for pair in pairs}) < len(pairs):
            raise ValueError("two pairs of a cell have the same task and replicate")
        keyed[key] = CellRecord(record.descriptor, tuple(pairs))
    return [record for _, record in sorted(keyed.items(), key=lambda item: item[0])]


def _settled(pairs: Iterable[PairRecord], policy: FailurePolicy) -> tuple[_Settled, ...]:
    found = (_settle(pair, policy) for pair in pairs)
    return tuple(item for item in found if item is not None)


def _cell_counts(settled: Sequence[_Settled]) -> CellCounts:
    return CellCounts(
        *(
            Counts.of(item.transition for item in settled if item.pair.retrieved is state)
            for state in (True, False, None)
        )
    )


def _reading(counts: CellCounts) -> dict[str, Any]:
    effect = effects.rae(counts=counts)
    return {
        "n_pairs": counts.all.n,
        "n_cond": counts.retrieved.n,
        "b": counts.retrieved.b,
        "c": counts.retrieved.c,
        "rae": effect.value,
        "undefined": {"rae": str(effect.reason)} if effect.reason else {},
    }


def _adjust(cells: Sequence[_Cell]) -> None:
    """Correct p for the family of all planned cells; a worked example is its own."""
    family = [cell for cell in cells if not cell.is_example]
    adjusted = holm(p_values=[cell.p_in_family for cell in family])
    for cell, p in zip(family, adjusted, strict=True):
        cell.put_adjusted(p, family=len(family))
    for cell in cells:
        if cell.is_example:
            cell.put_adjusted(cell.p_in_family, family=1)


def found_effect(cell: Mapping[str, Any]) -> str:
    """Return ``won`` or ``lost`` where a report cell's test finds an effect, else an empty text.

    It does when the cell is complete and has enough pairs in which a skill was returned, and p
    is at most .05 after the correction for all cells.
    """
    if cell["p_adjusted"] is None or cell["p_adjusted"] > ALPHA or not cell["rae"]:
        return ""
    if not cell["complete"] or cell["n_cond"] < effects.REPORTING_THRESHOLD:
        return ""
    return "won" if cell["rae"] > 0 else "lost"


def _sign_disagreements(cells: Sequence[_Cell]) -> list[dict[str, int]]:
    counted = [cell.counts for cell in cells if cell.counts_in_prevalence]
    found = (
        effects.prevalence(cells=counted, threshold=threshold)
        for threshold in effects.SENSITIVITY_THRESHOLDS
    )
    pending = sum(
        cell.design == "se_sd" and not cell.is_example and not cell.complete for cell in cells
    )
    return [
        {
            "threshold": row.threshold,
            "disagreeing": row.disagreeing,
            "cells": row.cells,
            "pending": pending,
        }
        for row in found
    ]


def _pick(found: Mapping[str, Interval] | Undefined, name: str) -> Interval | Undefined:
    return found if isinstance(found, Undefined) else found[name].in_points()


def _excludes_zero(interval: Mapping[str, Any] | None) -> bool:
    return interval is not None and (interval["low"] > 0 or interval["high"] < 0)


def _tally(failures: Iterable[str | None]) -> dict[str, int]:
    return dict(sorted(Counter(str(code) for code in failures if code is not None).items()))


def _canonical_json(value: Any) -> str:
    # The same text as workbench.kernel.identity's, which domain code may not import.
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def reason_text(code: str) -> str:
    """Return the plain words for a code of ``undefined``."""
    return REASONS[Undefined(code)]
