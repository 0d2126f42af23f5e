"""Small experiments planned through the services, with scripted models."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from django.utils import timezone

from runs.domain.plan import (
    BenchmarkSpec,
    Budget,
    CellSpec,
    ExperimentSpec,
    ModelSpec,
)
from runs.models import Experiment
from runs.sandbox.grader import Grader, open_grader
from runs.selectors import executions_of
from runs.services.executing import execute
from runs.services.lifecycle import start
from runs.services.planning import plan_experiment
from runs.services.preparing import prepare

# Which of the scripted model's answers are right is decided by hash; see ScriptedModel.
SCRIPTED = ModelSpec(id="scripted", base_url="scripted:mixed")


@lru_cache
def grader() -> Grader:
    """Return this process's grader: its probes take a second, so they are run once."""
    return open_grader()


def write_tasks(path: Path, *, number: int = 12) -> Path:
    """Write a task file of ``number`` exact-match tasks that speak of counting."""
    lines = [
        json.dumps(
            {
                "key": f"count/{n}",
                "prompt": f"Question {n}: count the windows of a prefix sum.",
                "kind": "exact",
                "checker": {"answers": ["right"]},
            }
        )
        for n in range(number)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def make_spec(
    tasks: Path,
    *,
    slug: str = "small",
    model: ModelSpec = SCRIPTED,
    cells: tuple[CellSpec, ...] = (CellSpec(library="coding"),),
    replicates: int = 1,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    failure_policy: str = "censor",
) -> ExperimentSpec:
    """Return the spec of a small experiment on the tasks of a file."""
    return ExperimentSpec(
        slug=slug,
        models=(model,),
        benchmarks=(BenchmarkSpec(suite=str(tasks)),),
        cells=cells,
        replicates=replicates,
        budget=budget,
        failure_policy=failure_policy,
    )


def plan(spec: ExperimentSpec) -> Experiment:
    """Store the spec's tasks, skills and rows; nothing is started."""
    partitions = prepare(spec=spec, open_grader=grader)
    return plan_experiment(spec=spec, partitions=partitions, at=timezone.now())


def run(experiment: Experiment) -> None:
    """Start the experiment and run every execution here, as a single worker would."""
    start(experiment=experiment, actor=None, at=timezone.now())
    run_left(experiment)


def run_left(experiment: Experiment) -> None:
    """Run whatever is pending, in the order of the rows."""
    for uid in executions_of(experiment).order_by("pk").values_list("uid", flat=True):
        execute(uid=uid, open_grader=grader)
    experiment.refresh_from_db()
