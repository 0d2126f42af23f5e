"""Drafts on a scripted model and a small stored suite."""

from __future__ import annotations

from pathlib import Path

from django.utils import timezone

from runs.models import Benchmark, Experiment, ExperimentDraft
from runs.services.drafting import create_draft
from runs.services.launching import (
    ESTIMATE_TASK,
    estimate_draft,
    request_estimate,
    request_start,
    start_draft,
)
from runs.services.preparing import import_suite
from runs.services.tasks import suite_load
from tests.experiments import grader, write_tasks
from workbench.jobs import perform
from workbench.models import Job

TOML = """\
schema = 1
slug = "panel"
seed = 7

[[model]]
id = "scripted"
base_url = "scripted:mixed"
price_in = 1
price_out = 2

[[benchmark]]
suite = "counting"

[[cell]]
library = "coding"
"""


def store_suite(folder: Path, *, number: int = 12) -> Benchmark:
    """Store a suite called counting, as an upload would."""
    tasks = write_tasks(folder / "counting.jsonl", number=number)
    return import_suite(suite=suite_load(source=str(tasks)), open_grader=grader)


def make_draft(toml: str = TOML) -> ExperimentDraft:
    return create_draft(toml=toml, author=None, at=timezone.now())


def work_off(job: Job) -> Job:
    """Do what a worker would do with the job."""
    grader()
    if job.kind == ESTIMATE_TASK:
        perform(job.uid, lambda h: estimate_draft(h, open_grader=grader, workers=2))
    else:
        perform(job.uid, lambda h: start_draft(h, open_grader=grader))
    job.refresh_from_db()
    return job


def experiment_of(job: Job) -> Experiment:
    """Return the experiment that a start came to."""
    assert job.result is not None, job.problem
    return Experiment.objects.get(slug=job.result["experiment"])


def estimate(draft: ExperimentDraft) -> Job:
    return work_off(request_estimate(slug=draft.slug, actor=None, at=timezone.now()))


def start(draft: ExperimentDraft) -> Job:
    return work_off(request_start(slug=draft.slug, actor=None, at=timezone.now()))
