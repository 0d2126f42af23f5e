"""Comparing two experiments: which cells belong together, and what the newer skills did."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runs.domain.comparing import (
    CellAbout,
    Comparison,
    Factor,
    TaskPair,
    compare,
    match_cells,
    match_named,
    match_pair,
)
from runs.domain.textdiff import DiffWork, TooDifferent, text_diff
from runs.models import Arm, Cell, Experiment, ExperimentStatus
from runs.selectors import cells_of, experiment_by_slug
from runs.services.reporting import BEING_PUSHED, evidence_of, is_being_pushed
from skills.models import Library
from skills.selectors import VersionText, changed_versions, version_numbers

SHOWN_DIFFS = 20
DIFF_LINES = 400
TOO_DIFFERENT = "The texts are too different to show here line by line; read both whole."

# What the rows of runs made elsewhere say of a cell and no other factor holds is one factor,
# except for what isn't part of a protocol: the skills, which tasks, and where the rows are from.
_NO_FACTOR = frozenset({"library", "partition", "sha12", "experiment", "source"})
_OWN_FACTOR = frozenset(
    {
        *("design", "model", "endpoint", "dialect", "benchmark", "prompt_sha256", "temperature"),
        *("max_tokens", "strategy", "control", "k", "types", "retriever", "tokeniser"),
        "max_searches",
    }
)


class CannotCompare(Exception):
    """These two can't be compared; the text says why and what can be."""


@dataclass(frozen=True)
class SkillChange:
    """One skill that differs between two libraries.

    Attributes:
        old, new: version numbers; None where that library doesn't hold the skill.
        diff: the lines of a unified diff of the texts; empty where one side has none, or
            beyond the first ``SHOWN_DIFFS`` skills; one line saying so where the two are too
            different to compare while somebody waits.
    """

    slug: str
    old: int | None
    new: int | None
    diff: tuple[str, ...] = ()
    cut: bool = False


@dataclass(frozen=True)
class LibraryChange:
    """What differs between the libraries that two compared cells searched."""

    old: str
    new: str
    changes: tuple[SkillChange, ...]
    alike: int


@dataclass(frozen=True)
class ComparedExperiments:
    """The comparison and the libraries behind it, each pair of them once."""

    comparison: Comparison
    libraries: tuple[LibraryChange, ...]


def comparison_of(
    *, a: str, b: str, cell_a: str = "", cell_b: str = "", allowed: Collection[str] = ()
) -> ComparedExperiments:
    """Return how B (the new one) compares with A; stored nowhere.

    Args:
        a, b: slugs of experiments.
        cell_a, cell_b: first digits of a cell's hash on each side, both or neither.
        allowed: names of ``Factor`` that may differ.

    Raises:
        ExperimentMissing: there is no such experiment.
        CannotCompare: a cell is missing, only one is named, both are the same, a factor is
            unknown, a push isn't stored as a whole yet, or no cell of A belongs to one of B.
        ProtocolDiffers: the two differ in more than their library.
    """
    unknown = sorted(set(allowed) - set(Factor))
    if unknown:
        raise CannotCompare(
            f"'{unknown[0]}' is no factor of a protocol; there are: {', '.join(Factor)}"
        )
    if bool(cell_a) != bool(cell_b):
        raise CannotCompare("name a cell of both, or of neither")
    itself = (
        f"'{a}' compared with itself would show no difference. Choose the run with the skills "
        "before the edit as A and the one after it as B; or name two cells of it"
    )
    if a == b and cell_a == cell_b:
        raise CannotCompare(itself)
    old, new = ([_Cell(_about(one, row), row) for row in cells_of(one)] for one in _ended(a, b))
    befores, afters = [cell.about for cell in old], [cell.about for cell in new]
    if cell_a:
        before, after = _named(old, a, cell_a), _named(new, b, cell_b)
        if before.row.pk == after.row.pk:
            raise CannotCompare(itself)
        match = match_pair(old=before.about, new=after.about, allowed=allowed)
        matching = match_named(named=match, old=befores, new=afters, allowed=allowed)
    else:
        for slug, cells in ((a, old), (b, new)):
            if not cells:
                raise CannotCompare(f"'{slug}' has no cells")
        matching = match_cells(old=befores, new=afters, allowed=allowed)
    if not matching.matched:
        reasons = "; ".join(
            f"{one.side} {one.cell.sha12}: {one.reason}" for one in matching.unmatched
        )
        raise CannotCompare(f"no cell of '{a}' belongs to one of '{b}': {reasons}")
    rows = {cell.about.key: cell.row for cell in (*old, *new)}
    matched = [(rows[match.old.key], rows[match.new.key]) for match in matching.matched]
    chosen = {cell.pk: cell for two in matched for cell in two}
    pairs = _pairs_of(list(chosen.values()))
    shown = 1 if cell_a else None
    return ComparedExperiments(
        comparison=compare(
            old=a,
            new=b,
            matching=matching,
            pairs={key: pairs[cell.pk] for key, cell in rows.items() if cell.pk in pairs},
            allowed=sorted(set(allowed)),
            shown=shown,
        ),
        libraries=_library_changes(matched[:shown]),
    )


# --- cells ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Cell:
    about: CellAbout
    row: Cell


def _ended(*slugs: str) -> list[Experiment]:
    """Return the experiments of ``slugs``, once each.

    Raises:
        ExperimentMissing: there is no such experiment.
        CannotCompare: what is stored of one would look like all of it.
    """
    found = {slug: experiment_by_slug(slug) for slug in dict.fromkeys(slugs)}
    for slug, experiment in found.items():
        if is_being_pushed(experiment):
            raise CannotCompare(f"'{slug}' can't be compared yet: {BEING_PUSHED}")
    return [found[slug] for slug in slugs]


def _named(cells: Sequence[_Cell], slug: str, sha: str) -> _Cell:
    """Return the cell whose hash begins with ``sha``.

    Raises:
        CannotCompare: there is none, or more than one begins so.
    """
    found = [cell for cell in cells if cell.row.sha256.startswith(sha)]
    if len(found) != 1:
        known = ", ".join(cell.about.sha12 for cell in cells) or "none"
        raise CannotCompare(
            f"'{slug}' has {'no' if not found else 'more than one'} cell '{sha}'; "
            f"there are: {known}"
        )
    return found[0]


def _about(experiment: Experiment, cell: Cell) -> CellAbout:
    spec, baseline = cell.treatment.spec, cell.baseline.spec
    imported = spec.get("imported")
    # Of runs that were made elsewhere only what their rows say is known.
    said: Mapping[str, Any] = spec if imported is None else imported["cell"]
    prompts = [said.get("prompt_sha256")]
    if imported is None:
        prompts.append(baseline.get("prompt_sha256"))
    protocol: dict[str, Any] = {
        Factor.DESIGN: cell.design if imported is None else said.get("design") or cell.design,
        Factor.PROMPT: prompts,
        Factor.DECODING: {name: said.get(name) for name in ("temperature", "max_tokens")},
        Factor.SUITE: _suite(said) or spec.get("benchmark"),
        Factor.FAILURE_POLICY: experiment.spec.get("failure_policy"),
        Factor.PRESET: experiment.spec.get("preset"),
        Factor.DESCRIPTION: {}
        if imported is None
        else {k: v for k, v in sorted(said.items()) if k not in _NO_FACTOR | _OWN_FACTOR},
    }
    for factor in Factor:  # the others are named as they are stored
        protocol.setdefault(factor, said.get(factor))
    library = _library_name(cell.library) if cell.library else said.get("library")
    return CellAbout(
        experiment=experiment.slug,
        sha12=cell.sha256[:12],
        library=None if library is None else str(library),
        partition=f"{cell.partition.size} tasks, seed {cell.partition.seed}",
        protocol=protocol,
        library_known=imported is None or bool(str(library or "").partition("@")[2]),
        cancelled=experiment.status == ExperimentStatus.CANCELLED,
    )


def _suite(said: Mapping[str, Any]) -> str | None:
    """Return the suite without its number: a changed task is told by its content."""
    name = said.get("benchmark")
    return None if name is None else re.sub(r"@[0-9]+\Z", "", str(name))


def _library_name(library: Library) -> str:
    return f"{library.slug}@{library.number}"


# --- pairs ----------------------------------------------------------------------


def _pairs_of(cells: Sequence[Cell]) -> dict[int, list[TaskPair]]:
    """Return the pairs of each cell, in a fixed number of queries; no trace is loaded."""
    evidence = evidence_of(cells, notes=False)
    contents: dict[str, str] = {}
    sd_runs: dict[str, str] = {}
    for arm in evidence.arms:
        contents[arm.pair] = arm.task_sha256
        if arm.arm == Arm.SD:
            sd_runs[arm.pair] = str(arm.execution)
    numbers = version_numbers({cell.library_id for cell in cells if cell.library_id})
    # Most pairs return one of few sets of skills; each is looked up once.
    sets: dict[tuple[int, tuple[str, ...]], dict[str, str]] = {}
    found: dict[int, list[TaskPair]] = {}
    for cell, record in zip(cells, evidence.records(), strict=True):
        library = cell.library_id or 0
        found[cell.pk] = those = []
        for pair in record.pairs:
            versions = sets.get((library, pair.skills))
            if versions is None:
                versions = {slug: str(numbers.get((library, slug), "")) for slug in pair.skills}
                sets[library, pair.skills] = versions
            those.append(TaskPair(contents[pair.pair], pair, versions, sd_runs.get(pair.pair, "")))
    return found


# --- libraries ------------------------------------------------------------------


def _library_changes(matched: Sequence[tuple[Cell, Cell]]) -> tuple[LibraryChange, ...]:
    """Return what changed between the libraries of each match, each pair of libraries once."""
    work = DiffWork()
    pairs = {
        (old.library, new.library): None
        for old, new in matched
        if old.library and new.library and old.library_id != new.library_id
    }
    return tuple(_library_change(old, new, work) for old, new in pairs if old and new)


def _library_change(old: Library, new: Library, work: DiffWork) -> LibraryChange:
    numbers = version_numbers({old.pk, new.pk})
    before = {slug: n for (library, slug), n in numbers.items() if library == old.pk}
    after = {slug: n for (library, slug), n in numbers.items() if library == new.pk}
    slugs = sorted(before.keys() | after.keys())
    differing = [slug for slug in slugs if before.get(slug) != after.get(slug)]
    edited = [slug for slug in differing if slug in before and slug in after][:SHOWN_DIFFS]
    texts = changed_versions(edited, libraries=(old.pk, new.pk))
    changes = []
    for slug in differing:
        lines: list[str] = []
        if slug in edited:
            lines = _diff(texts[old.pk, slug], texts[new.pk, slug], work)
        changes.append(
            SkillChange(
                slug,
                before.get(slug),
                after.get(slug),
                tuple(lines[:DIFF_LINES]),
                cut=len(lines) > DIFF_LINES,
            )
        )
    return LibraryChange(
        _library_name(old), _library_name(new), tuple(changes), len(slugs) - len(differing)
    )


def _diff(old: VersionText, new: VersionText, work: DiffWork) -> list[str]:
    """Return the lines of a unified diff of what the model is given of two versions."""
    names = {"old_name": f"version {old.number}", "new_name": f"version {new.number}"}
    try:
        return text_diff(old.as_text(), new.as_text(), **names, work=work)
    except TooDifferent:
        return [TOO_DIFFERENT]
