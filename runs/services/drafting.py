"""Drafts: experiment files that are still being written, in the browser or by API.

A draft is its file. Whoever saves says which revision was changed; over a newer one nothing is
saved, and nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import tomli_w
from django.db import IntegrityError, transaction
from django.db.models import F

from runs.domain.drafts import HEAD, toml_of, with_slug
from runs.domain.filetext import MOST_CHARACTERS, Unreadable, read_toml, unseen
from runs.domain.plan import (
    LONGEST_SLUG,
    ExperimentSpec,
    InvalidExperiment,
    Problem,
    from_json,
    line_of,
    named_in,
    parse_experiment,
    slug_fault,
)
from runs.domain.suites import SUITE_NAMES
from runs.models import Experiment, ExperimentDraft, ExperimentStatus, Origin
from runs.services.naming import check_names, configured_models
from runs.services.offering import suite_choices
from workbench.trail import record_event

LARGEST_BYTES = MOST_CHARACTERS
UNNAMED = "draft"


class DraftMissing(Exception):
    """There is no draft of this slug."""


class DraftChanged(Exception):
    """Somebody saved the draft meanwhile; ``now`` is what it is now."""

    def __init__(self, now: ExperimentDraft) -> None:
        super().__init__(
            f"the draft '{now.slug}' was changed meanwhile (it is at revision {now.revision})"
        )
        self.now = now


class UnreadableFile(ValueError):
    """What was handed in can't be an experiment file; the text says why."""


class NotClonable(ValueError):
    """There is no file from which to make another experiment like it."""


@dataclass(frozen=True)
class DraftCheck:
    """What is wrong with a draft's file, and its size where nothing is.

    Attributes:
        spec: None where there are problems.
        pairs: how many it will run; None where there are problems.
    """

    problems: tuple[Problem, ...]
    spec: ExperimentSpec | None = None
    pairs: int | None = None
    cells: int | None = None


def draft_by_slug(slug: str) -> ExperimentDraft:
    """Return the draft of ``slug``.

    Raises:
        DraftMissing: there is none.
    """
    draft = ExperimentDraft.objects.select_related("author").filter(slug=slug).first()
    if draft is None:
        raise DraftMissing(f"there is no draft '{slug}'")
    return draft


def file_text(content: bytes | str) -> str:
    """Return an experiment file that came by web as text with plain line ends.

    Raises:
        UnreadableFile: it is too large, no UTF-8, or holds characters that nobody sees.
    """
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if len(data) > LARGEST_BYTES:
        raise UnreadableFile(
            f"the file has {len(data):,} bytes; an experiment file may have {LARGEST_BYTES:,}"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(
            f"the file is no UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    if "\0" in text:
        raise UnreadableFile("the file holds a NUL character; it isn't plain text")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if found := unseen(text):
        line, point = found
        raise UnreadableFile(
            f"line {line} holds {point}, a character that nobody sees or that changes what is "
            "seen; remove it"
        )
    return text if text.endswith("\n") else text + "\n"


def file_of_values(values: Mapping[str, Any]) -> str:
    """Return the experiment file of keys and tables that came as JSON.

    Raises:
        UnreadableFile: a value has no form in TOML, or the file is too large.
    """
    try:
        return file_text(HEAD + "\n" + tomli_w.dumps(dict(values)))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, UnreadableFile):
            raise
        raise UnreadableFile(f"it can't be written as TOML ({error}); leave out nulls") from error


def create_draft(*, toml: str, author: Any, at: datetime) -> ExperimentDraft:
    """Return a new draft of the file ``toml``; where its slug can't be had, under another one.

    Args:
        toml: what ``file_text`` returned; it may have problems.
    """
    return _create(toml=toml, author=author, at=at, verb="draft.created", reason="")


def save_draft(*, slug: str, toml: str, revision: int, actor: Any, at: datetime) -> ExperimentDraft:
    """Save ``toml`` as the next revision; the draft's slug follows that of the file.

    Args:
        revision: the one that was changed.

    Raises:
        DraftMissing: there is no such draft.
        DraftChanged: it has another revision by now; nothing was saved.
    """
    draft = draft_by_slug(slug)
    named = _slug_in(toml)
    wanted = named if named and (named == slug or _is_free(named)) else slug
    with transaction.atomic():
        same = ExperimentDraft.objects.filter(pk=draft.pk, revision=revision)
        if not same.update(toml=toml, revision=F("revision") + 1, updated_at=at):
            raise DraftChanged(draft_by_slug(slug))
        try:
            with transaction.atomic():
                ExperimentDraft.objects.filter(pk=draft.pk).update(slug=wanted)
        except IntegrityError:  # taken meanwhile; the file's problem is told on its page
            wanted = slug
        record_event(actor=actor, verb="draft.saved", subject=wanted, at=at)
    return draft_by_slug(wanted)


def discard_draft(*, slug: str, actor: Any, at: datetime) -> None:
    """Delete the draft.

    Raises:
        DraftMissing: there is no such draft.
    """
    draft = draft_by_slug(slug)
    with transaction.atomic():
        draft.delete()
        record_event(actor=actor, verb="draft.discarded", subject=slug, at=at)


def clone_draft(*, slug: str, actor: Any, at: datetime) -> ExperimentDraft:
    """Return a new draft of the same file under a free slug.

    Raises:
        DraftMissing: there is no such draft.
    """
    source = draft_by_slug(slug)
    toml = with_slug(source.toml, free_slug(slug))
    return _create(
        toml=toml, author=actor, at=at, verb="draft.cloned", reason=f"cloned from draft {slug}"
    )


def clone_experiment(*, experiment: Experiment, actor: Any, at: datetime) -> ExperimentDraft:
    """Return a new draft that plans the same again, under a free slug.

    Raises:
        NotClonable: its runs were made elsewhere.
    """
    toml = file_of(experiment, slug=free_slug(experiment.slug))
    return _create(
        toml=toml,
        author=actor,
        at=at,
        verb="draft.cloned",
        reason=f"cloned from {experiment.slug}",
    )


def file_of(experiment: Experiment, *, slug: str = "") -> str:
    """Return the experiment's file; one whose file wasn't kept is written from its plan.

    Args:
        slug: of a clone: then suites that were files here go by their stored benchmarks' names.

    Raises:
        NotClonable: its runs were made elsewhere.
    """
    if experiment.origin == Origin.PUSHED:
        raise NotClonable(
            f"the runs of '{experiment.slug}' were made elsewhere, so there is no file of it"
        )
    if experiment.toml and not slug:
        return experiment.toml
    if experiment.toml and not _names_files(experiment.toml):
        return with_slug(experiment.toml, slug)
    spec = from_json(experiment.spec)
    # Cells are numbered by model, benchmark and cell entry, so the first model's are enough.
    suites = [
        experiment.cells.select_related("partition__benchmark")
        .get(number=index * len(spec.cells) + 1)
        .partition.benchmark.slug
        for index in range(len(spec.benchmarks))
    ]
    return toml_of(spec, slug=slug or experiment.slug, suites=suites)


def free_slug(slug: str) -> str:
    """Return ``slug`` with the first number, from 2, that neither experiment nor draft has."""
    base = re.sub(r"-\d+\Z", "", slug)
    number = 2
    while True:
        ending = f"-{number}"
        found = base[: LONGEST_SLUG - len(ending)].rstrip("-") + ending
        if _is_free(found):
            return found
        number += 1


def check_draft(toml: str, *, slug: str = "") -> DraftCheck:
    """Return everything that is wrong with a file from the web, by line, and how much it is.

    Args:
        slug: of the draft whose file it is, which the file may have.
    """
    try:
        spec = parse_experiment(toml, path="", configured=configured_models())
        check_names(text=toml, path="", trusted=False)
    except InvalidExperiment as error:
        return DraftCheck(error.problems)
    suites = {benchmark.suite for benchmark in spec.benchmarks}
    tasks = {one.name: one.tasks for one in suite_choices(suites)}
    problems = []
    if fault := _taken(spec.slug, own=slug, toml=toml):
        problems.append(Problem(line_of(toml, table="", key="slug"), fault))
    for index, benchmark in enumerate(spec.benchmarks):
        if benchmark.size and benchmark.size > tasks[benchmark.suite]:
            line = line_of(toml, table="benchmark", index=index, key="partition")
            problems.append(
                Problem(
                    line or line_of(toml, table="benchmark", index=index),
                    f"the suite {benchmark.suite} has {tasks[benchmark.suite]} tasks, not "
                    f"{benchmark.size}; lower the size or leave it out",
                )
            )
    if problems:
        return DraftCheck(tuple(sorted(problems, key=lambda p: p.line or 0)))
    a_cell = sum(benchmark.size or tasks[benchmark.suite] for benchmark in spec.benchmarks)
    per_model = len(spec.cells)
    return DraftCheck(
        (),
        spec,
        pairs=a_cell * per_model * len(spec.models) * spec.replicates,
        cells=len(spec.models) * len(spec.benchmarks) * len(spec.cells),
    )


def _create(*, toml: str, author: Any, at: datetime, verb: str, reason: str) -> ExperimentDraft:
    named = _slug_in(toml)
    wanted = named if named and _is_free(named) else ""
    while True:
        slug = wanted or (UNNAMED if _is_free(UNNAMED) else free_slug(UNNAMED))
        try:
            with transaction.atomic():
                draft: ExperimentDraft = ExperimentDraft.objects.create(
                    slug=slug, toml=toml, author=author, created_at=at, updated_at=at
                )
                record_event(actor=author, verb=verb, subject=slug, reason=reason, at=at)
            return draft
        except IntegrityError:  # somebody took it in this moment
            if not wanted and _is_free(slug):
                raise
            wanted = ""


def _slug_in(toml: str) -> str:
    """Return the file's slug, or an empty text where it has none that could be used."""
    try:
        found = read_toml(toml).get("slug", "")
    except Unreadable:
        return ""
    return "" if slug_fault(found) else str(found)


def _is_free(slug: str) -> bool:
    return not (
        Experiment.objects.filter(slug=slug).exists()
        or ExperimentDraft.objects.filter(slug=slug).exists()
    )


def _taken(slug: str, *, own: str, toml: str) -> str:
    """Return what is wrong with a file's slug, as a sentence, or an empty text."""
    taken = Experiment.objects.filter(slug=slug)
    # This very file, planned by a start that was interrupted: starting it goes on from there.
    begun = taken.filter(status=ExperimentStatus.PLANNED, toml=toml)
    if taken.exists() and not begun.exists():
        return f"an experiment '{slug}' exists; choose another slug, such as {free_slug(slug)}"
    if slug != own and ExperimentDraft.objects.filter(slug=slug).exists():
        return f"a draft '{slug}' exists; choose another slug, such as {free_slug(slug)}"
    return ""


def _names_files(toml: str) -> bool:
    named = {name for name, _ in named_in(toml, table="benchmark", key="suite")}
    return bool(named - {*SUITE_NAMES, *(one.name for one in suite_choices(named))})
