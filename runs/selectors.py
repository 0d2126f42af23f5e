"""Reads over experiments that several services and pages share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Subquery, Sum
from django.db.models.fields.json import KT
from django.db.models.functions import Left, Length

from runs.domain.checking import Verdict
from runs.domain.tasks import IMPORTED_KIND, Kind
from runs.models import (
    Attempt,
    Benchmark,
    Cell,
    Execution,
    Experiment,
    ExperimentDraft,
    ExperimentStatus,
    Grade,
    Origin,
    Outcome,
    Pair,
    PairArm,
    Task,
)
from workbench.kernel.leases import LeaseState
from workbench.kernel.lists import Filter, Listing
from workbench.kernel.versions import split_version

EXPERIMENT_LISTING = Listing(
    sorts={"created": "created_at", "slug": "slug"},
    default_sort="-created",
    filters={
        "status": Filter("status", tuple(ExperimentStatus.values)),
        "origin": Filter("origin", tuple(Origin.values)),
        "author": Filter("author__username", meaning="Only those of the person of this name."),
    },
)


class ExperimentMissing(Exception):
    """No experiment has this slug."""


def experiment_by_slug(slug: str) -> Experiment:
    """Return the experiment of ``slug``.

    Raises:
        ExperimentMissing: there is none; the message lists those there are.
    """
    experiment = Experiment.objects.filter(slug=slug).first()
    if experiment is None:
        known = ", ".join(Experiment.objects.order_by("slug").values_list("slug", flat=True)[:20])
        raise ExperimentMissing(f"there is no experiment '{slug}' (known: {known or 'none yet'})")
    return experiment


def executions_of(experiment: Experiment) -> QuerySet[Execution]:
    """Return the executions that serve this experiment's pairs, each once."""
    # A list of keys rather than EXISTS: the database goes from the experiment's few cells to its
    # executions and never over everybody's.
    serves = PairArm.objects.filter(pair__cell__experiment=experiment).values("execution")
    return Execution.objects.filter(pk__in=serves)


def needed() -> Exists:
    """Return the condition that some running experiment needs an execution.

    An EXISTS beside the row's own columns: a claim built on it still checks the
    row's state again under the row's lock.
    """
    serves = PairArm.objects.filter(
        execution=OuterRef("pk"), pair__cell__experiment__status=ExperimentStatus.RUNNING
    )
    return Exists(serves)


def runnable_executions() -> QuerySet[Execution]:
    """Return the executions that some running experiment needs."""
    return Execution.objects.filter(needed())


def running_experiments_of(execution: Execution) -> QuerySet[Experiment]:
    """Return the running experiments that this execution serves."""
    serves = PairArm.objects.filter(execution=execution).values("pair__cell__experiment")
    return Experiment.objects.filter(pk__in=serves, status=ExperimentStatus.RUNNING)


def cells_of(experiment: Experiment) -> QuerySet[Cell, Any]:
    """Return the experiment's cells in plan order with what describes them."""
    return (
        Cell.objects.filter(experiment=experiment)
        .select_related("partition__benchmark", "library", "treatment", "baseline")
        .order_by("number")
    )


def standing_grades(attempts: QuerySet[Attempt]) -> dict[int, tuple[str, str]]:
    """Return verdict and tier of each attempt's standing grade: its latest one with a verdict."""
    grades = Grade.objects.filter(attempt__in=attempts.values("pk"))
    return {
        attempt: (verdict, tier)
        for attempt, verdict, tier in grades.exclude(verdict=Verdict.INFRA_ERROR)
        .order_by("number")
        .values_list("attempt", "verdict", "tier")
    }


def runnable_benchmarks(*, newest: bool = True) -> QuerySet[Benchmark]:
    """Return the newest version of each stored benchmark whose tasks can be run here.

    Args:
        newest: False for every such version.
    """
    foreign = Task.objects.filter(benchmark=OuterRef("pk")).exclude(
        kind__in=[kind.value for kind in Kind]
    )
    found = Benchmark.objects.filter(~Exists(foreign))
    if not newest:
        return found
    newer = Benchmark.objects.filter(slug=OuterRef("slug"), number__gt=OuterRef("number"))
    return found.filter(~Exists(newer))


def benchmark_named(name: str) -> Benchmark | None:
    """Return what a file means by a stored suite's ``slug``, its newest, or ``slug@number``."""
    slug, number = split_version(name)
    if number is None:
        return runnable_benchmarks().filter(slug=slug).first()
    return runnable_benchmarks(newest=False).filter(slug=slug, number=number).first()


def drafts_for_list() -> QuerySet[ExperimentDraft]:
    """Return the drafts with their authors, those touched last first."""
    drafts = ExperimentDraft.objects.defer("toml").select_related("author")
    return drafts.order_by("-updated_at", "-pk")


# --- suites ---------------------------------------------------------------------

SUITE_LISTING = Listing(sorts={"slug": "slug"}, default_sort="slug")
TASK_LISTING = Listing(
    sorts={"key": "key"},
    default_sort="key",
    filters={"kind": Filter("kind", tuple(Kind), meaning="how answers are judged")},
)
PROMPT_BEGINNING = 240


@dataclass(frozen=True)
class SuiteRecord:
    """One stored version of a suite, with its tasks counted by kind."""

    slug: str
    number: int
    sha256: str
    kinds: Mapping[str, int]

    @property
    def tasks(self) -> int:
        """How many tasks there are."""
        return sum(self.kinds.values())


def newest_benchmarks() -> QuerySet[Benchmark]:
    """Return the newest version of each stored suite; tasks of pushed runs are none."""
    newer = Benchmark.objects.filter(slug=OuterRef("slug"), number__gt=OuterRef("number"))
    # All of a benchmark's tasks came with runs, or none did: one of them is looked at.
    kind = Task.objects.filter(benchmark=OuterRef("pk")).order_by("benchmark", "key")
    return Benchmark.objects.annotate(kind=Subquery(kind.values("kind")[:1])).filter(
        ~Exists(newer), ~Q(kind=IMPORTED_KIND)
    )


def benchmark_version(slug: str, number: int | None = None) -> Benchmark | None:
    """Return one version of a stored suite, the newest without ``number``, or None."""
    found = Benchmark.objects.filter(slug=slug).order_by("-number")
    return (found if number is None else found.filter(number=number)).first()


def suite_records(benchmarks: Sequence[Benchmark]) -> list[SuiteRecord]:
    """Return the records of ``benchmarks``, in their order, in one query."""
    kinds: dict[int, dict[str, int]] = defaultdict(dict)
    counted = Task.objects.filter(benchmark__in=benchmarks).values_list("benchmark", "kind")
    for benchmark, kind, n in counted.annotate(n=Count("pk")).order_by("benchmark", "kind"):
        kinds[benchmark][kind] = n
    return [SuiteRecord(b.slug, b.number, b.sha256, kinds[b.pk]) for b in benchmarks]


def tasks_for_list(benchmark: Benchmark) -> QuerySet[Task]:
    """Return the tasks with what a list shows: the beginning of the prompt, not all of it.

    Each has ``beginning``, ``characters`` (of the prompt), and of the checker ``mode`` and
    ``isolation``, which are None where it has none.
    """
    return (
        Task.objects.filter(benchmark=benchmark)
        .annotate(
            beginning=Left("prompt", PROMPT_BEGINNING),
            characters=Length("prompt"),
            mode=KT("checker__mode"),
            isolation=KT("checker__checker_isolation"),
        )
        .defer("prompt", "checker")
    )


def isolation_counts(benchmark: Benchmark) -> dict[str, int]:
    """Return how many code tasks are checked in each way: ``cases`` or a test left whole."""
    counted = (
        Task.objects.filter(benchmark=benchmark, kind=Kind.CODE)
        .annotate(isolation=KT("checker__checker_isolation"))
        .values_list("isolation")
        .annotate(n=Count("pk"))
        .order_by()
    )
    return {isolation or "cases": n for isolation, n in counted}


@dataclass(frozen=True)
class PairCounts:
    """How many cells and pairs an experiment has, and how many of these have a joint result."""

    cells: int = 0
    planned: int = 0
    done: int = 0


def pair_counts(experiments: Collection[int]) -> dict[int, PairCounts]:
    """Return the counts of each of ``experiments`` (primary keys), in three queries."""
    cells = Cell.objects.filter(experiment__in=experiments).values_list("experiment")
    pairs = Pair.objects.filter(cell__experiment__in=experiments).values_list("cell__experiment")
    done = Outcome.objects.filter(pair__cell__experiment__in=experiments)
    found = [
        dict(cells.annotate(n=Count("pk"))),
        dict(pairs.annotate(n=Count("pk"))),
        dict(done.values_list("pair__cell__experiment").annotate(n=Count("pair", distinct=True))),
    ]
    return {pk: PairCounts(*(counts.get(pk, 0) for counts in found)) for pk in experiments}


@dataclass(frozen=True)
class States:
    """An experiment's executions by where they stand.

    Attributes:
        claims: how often they were taken up, all together.
    """

    pending: int
    running: int
    done: int
    dead: int
    claims: int

    @property
    def total(self) -> int:
        return self.pending + self.running + self.done + self.dead


def states_of(experiment: Experiment) -> States:
    """Return where the experiment's executions stand, in one query."""
    counts = executions_of(experiment).aggregate(
        claims=Sum("fencing_token"),
        **{state.value: Count("pk", filter=Q(state=state)) for state in LeaseState},
    )
    return States(**{**counts, "claims": counts["claims"] or 0})
