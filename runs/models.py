"""Experiments and what came of them.

Two kinds of rows: what may change while work goes on (Experiment, Execution)
and evidence, which is only ever inserted (everything else).
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models

from runs.domain.checking import Verdict
from runs.domain.effects import Transition
from runs.domain.tasks import IMPORTED_KIND, Kind
from skills.models import Library
from workbench.kernel.evidence import EvidenceModel
from workbench.kernel.leases import Leased, LeaseState


class Design(models.TextChoices):
    """What differs between the arms of a cell."""

    SE_SD = "se_sd"
    AA = "aa"
    TARGET = "target"
    LEAVE_ONE_OUT = "leave_one_out"


class Arm(models.TextChoices):
    """The codes of the two arms in every design: treatment and baseline."""

    SE = "SE"
    SD = "SD"


class ExperimentStatus(models.TextChoices):
    """Where an experiment stands."""

    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Failure(models.TextChoices):
    """Why an attempt gave no answer that counts; empty where it gave one."""

    NONE = "", "none"
    CALL = "call"
    HOST = "host"
    CONTAMINATED = "contaminated"
    # The rest come with pushed runs only.
    NO_RESULT = "no_result", "no result"
    CONFLICT = "conflict", "rows that contradict each other"
    UNEQUAL_PARAMETERS = "unequal_parameters", "unequal parameters"


def _one_of(field: str, values: list[str], name: str) -> models.CheckConstraint:
    return models.CheckConstraint(condition=models.Q(**{f"{field}__in": values}), name=name)


class Benchmark(EvidenceModel):
    """A frozen set of tasks; a changed suite is a new benchmark of the same slug."""

    slug = models.SlugField(max_length=100)
    number = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64, help_text="of the sorted hashes of its tasks")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["slug", "number"], name="benchmark_number"),
            models.UniqueConstraint(fields=["slug", "sha256"], name="benchmark_content"),
        ]


class Task(EvidenceModel):
    """One problem with what its answers are checked against."""

    benchmark = models.ForeignKey(Benchmark, on_delete=models.PROTECT, related_name="tasks")
    key = models.CharField(max_length=200)
    prompt = models.TextField()
    kind = models.CharField(max_length=10)
    checker = models.JSONField()
    gold_skills = models.JSONField(default=list)
    tags = models.JSONField(default=list)
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["benchmark", "key"], name="task_key"),
            _one_of("kind", [*(kind.value for kind in Kind), IMPORTED_KIND], "task_kind_known"),
        ]


class Partition(EvidenceModel):
    """A seeded choice of a benchmark's tasks, stored so that it never moves."""

    benchmark = models.ForeignKey(Benchmark, on_delete=models.PROTECT, related_name="partitions")
    size = models.PositiveIntegerField()
    seed = models.IntegerField()
    task_keys = models.JSONField()
    sha256 = models.CharField(max_length=64, help_text="of the hashes of its tasks, in order")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["benchmark", "size", "seed"], name="partition_choice"),
        ]


class ExperimentDraft(models.Model):
    """An experiment being prepared: its file, which may still change. Planning ends the draft."""

    slug = models.SlugField(max_length=100, unique=True)
    toml = models.TextField(help_text="the experiment file as it stands")
    revision = models.PositiveIntegerField(default=1, help_text="compare-and-swap counter")
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()


class Origin(models.TextChoices):
    """Where an experiment's runs come from."""

    PLANNED = "planned", "run here"
    PUSHED = "pushed", "run elsewhere and handed in as run rows"


class Experiment(models.Model):
    """A named plan and where it stands. ``spec`` is frozen once planned."""

    uid = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)
    slug = models.SlugField(max_length=100, unique=True)
    spec = models.JSONField()
    toml = models.TextField(blank=True, default="", help_text="the file it was planned from")
    budget = models.JSONField(
        null=True, help_text="the caps in force since somebody changed them; null: the plan's"
    )
    origin = models.CharField(max_length=7, choices=Origin.choices, default=Origin.PLANNED)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    status = models.CharField(
        max_length=10, choices=ExperimentStatus.choices, default=ExperimentStatus.PLANNED
    )
    reason = models.TextField(blank=True, default="", help_text="why it is paused or cancelled")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    regrading_since = models.DateTimeField(
        null=True, help_text="some answers have another grade and others wait; null: none does"
    )

    class Meta:
        constraints = [
            _one_of("status", ExperimentStatus.values, "experiment_status_known"),
            _one_of("origin", Origin.values, "experiment_origin_known"),
        ]
        indexes = [models.Index(fields=["-created_at", "-id"], name="experiment_newest")]


class ArmSpec(EvidenceModel):
    """Everything that decides what one arm does, addressed by its content."""

    sha256 = models.CharField(max_length=64, unique=True)
    spec = models.JSONField()


class Cell(EvidenceModel):
    """The reporting unit: a benchmark's partition under a treatment and a baseline."""

    experiment = models.ForeignKey(Experiment, on_delete=models.PROTECT, related_name="cells")
    number = models.PositiveIntegerField(help_text="its place in the plan, from 1")
    design = models.CharField(max_length=14, choices=Design.choices)
    partition = models.ForeignKey(Partition, on_delete=models.PROTECT, related_name="+")
    library = models.ForeignKey(Library, null=True, on_delete=models.PROTECT, related_name="+")
    treatment = models.ForeignKey(ArmSpec, on_delete=models.PROTECT, related_name="+")
    baseline = models.ForeignKey(ArmSpec, on_delete=models.PROTECT, related_name="+")
    sha256 = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["experiment", "sha256"], name="cell_content"),
            models.UniqueConstraint(fields=["experiment", "number"], name="cell_number"),
            _one_of("design", Design.values, "cell_design_known"),
        ]


class Pair(EvidenceModel):
    """One task of a cell, run once in each arm."""

    uid = models.UUIDField(unique=True)
    cell = models.ForeignKey(Cell, on_delete=models.PROTECT, related_name="pairs")
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="+")
    replicate = models.PositiveIntegerField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cell", "task", "replicate"], name="pair_once"),
        ]


class Position(EvidenceModel):
    """The seeded plan order of a cell's pairs; a retried pair takes a new position."""

    cell = models.ForeignKey(Cell, on_delete=models.PROTECT, related_name="positions")
    number = models.PositiveIntegerField()
    pair = models.ForeignKey(Pair, on_delete=models.PROTECT, related_name="positions")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["cell", "number"], name="position_once"),
        ]


class Execution(Leased):
    """The work item: one arm of one task, to be run once. Its rows are the queue."""

    uid = models.UUIDField(unique=True)
    arm_spec = models.ForeignKey(ArmSpec, on_delete=models.PROTECT, related_name="executions")
    task = models.ForeignKey(Task, on_delete=models.PROTECT, related_name="+")
    replicate = models.PositiveIntegerField()
    seed_stream = models.CharField(max_length=100)
    reuse_scope = models.CharField(max_length=100)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["arm_spec", "task", "replicate", "seed_stream", "reuse_scope"],
                name="execution_once",
            ),
            _one_of("state", LeaseState.values, "execution_state_known"),
        ]
        indexes = [models.Index(fields=["state", "lease_until"], name="execution_due")]


class PairArm(EvidenceModel):
    """Which execution serves one arm of a pair; one execution may serve several pairs."""

    pair = models.ForeignKey(Pair, on_delete=models.PROTECT, related_name="arms")
    arm = models.CharField(max_length=2, choices=Arm.choices)
    execution = models.ForeignKey(Execution, on_delete=models.PROTECT, related_name="pair_arms")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pair", "arm"], name="pairarm_once"),
            _one_of("arm", Arm.values, "pairarm_arm_known"),
        ]


class Attempt(EvidenceModel):
    """One recorded try of an execution: its trace, or its failure and what there was of a trace."""

    execution = models.ForeignKey(Execution, on_delete=models.PROTECT, related_name="attempts")
    number = models.PositiveIntegerField()
    failure = models.CharField(max_length=20, choices=Failure.choices, blank=True)
    failure_detail = models.TextField(blank=True)
    trace = models.JSONField()
    exposed = models.BooleanField(help_text="whether the arm's model was offered skills")
    invoked = models.BooleanField(
        null=True, help_text="whether the model asked for skills; null is unknown"
    )
    retrieved = models.BooleanField(null=True, help_text="true, false or unknown")
    returned_ids = models.JSONField(default=list)
    loaded_ids = models.JSONField(default=list)
    gold_ids = models.JSONField(default=list)
    tokens_in = models.PositiveIntegerField(null=True)
    tokens_out = models.PositiveIntegerField(null=True)
    latency_s = models.FloatField(null=True)
    source = models.CharField(
        max_length=200, blank=True, default="", help_text="where a run that was handed in is from"
    )
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["execution", "number"], name="attempt_number"),
            _one_of("failure", Failure.values, "attempt_failure_known"),
            # One trace that counts: a finished execution is never run again.
            models.UniqueConstraint(
                fields=["execution"],
                condition=models.Q(failure=""),
                name="attempt_one_without_failure",
            ),
        ]
        indexes = [
            # Few fail: they are counted without a look at the others.
            models.Index(
                fields=["execution", "failure"],
                condition=~models.Q(failure=""),
                name="attempt_failed",
            ),
        ]


class Grade(EvidenceModel):
    """What a checker said of an attempt. Grading again adds a row and calls no model."""

    attempt = models.ForeignKey(Attempt, on_delete=models.PROTECT, related_name="grades")
    number = models.PositiveIntegerField()
    checker_sha256 = models.CharField(max_length=64)
    verdict = models.CharField(max_length=12)
    details = models.JSONField()
    tier = models.CharField(max_length=12, help_text="how the checked code was isolated")
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "number"], name="grade_number"),
            _one_of("verdict", [verdict.value for verdict in Verdict], "grade_verdict_known"),
        ]


class Outcome(EvidenceModel):
    """The joint result of a pair's two graded arms; the latest of a pair counts."""

    uid = models.UUIDField(unique=True)
    pair = models.ForeignKey(Pair, on_delete=models.PROTECT, related_name="outcomes")
    se_grade = models.ForeignKey(Grade, on_delete=models.PROTECT, related_name="+")
    sd_grade = models.ForeignKey(Grade, on_delete=models.PROTECT, related_name="+")
    transition = models.CharField(max_length=9)
    retrieved = models.BooleanField(null=True)
    at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pair", "se_grade", "sd_grade"], name="outcome_of_two_grades"
            ),
            _one_of("transition", [transition.value for transition in Transition], "outcome_known"),
        ]
        indexes = [models.Index(fields=["transition", "retrieved"], name="outcome_transition")]


class EffectReport(EvidenceModel):
    """A computed report, kept so that the same inputs always show the same numbers."""

    experiment = models.ForeignKey(Experiment, on_delete=models.PROTECT, related_name="reports")
    inputs_sha256 = models.CharField(max_length=64)
    report_sha256 = models.CharField(max_length=64)
    result = models.JSONField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["experiment", "inputs_sha256"], name="effectreport_once"
            ),
        ]


class Tally(models.Model):
    """Figures over so many rows that no page counts them while it is asked for.

    Not evidence: it may be deleted at any time and is counted again from the rows.
    """

    key = models.CharField(max_length=120, unique=True)
    mark = models.CharField(max_length=64, help_text="changes with the rows it was counted from")
    seconds = models.FloatField(help_text="how long counting took")
    at = models.DateTimeField()
    result = models.JSONField()
