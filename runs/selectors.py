"""Reads over experiments that several services and pages share."""

from __future__ import annotations

from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from runs.domain.tasks import Kind
from runs.models import (
    Benchmark,
    Cell,
    Execution,
    Experiment,
    ExperimentDraft,
    ExperimentStatus,
    PairArm,
    Task,
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


def runnable_benchmarks() -> QuerySet[Benchmark]:
    """Return the newest version of each stored benchmark whose tasks can be run here."""
    newer = Benchmark.objects.filter(slug=OuterRef("slug"), number__gt=OuterRef("number"))
    foreign = Task.objects.filter(benchmark=OuterRef("pk")).exclude(
        kind__in=[kind.value for kind in Kind]
    )
    return Benchmark.objects.filter(~Exists(newer), ~Exists(foreign))


def drafts_for_list() -> QuerySet[ExperimentDraft]:
    """Return the drafts with their authors, those touched last first."""
    return ExperimentDraft.objects.select_related("author").order_by("-updated_at", "-pk")
