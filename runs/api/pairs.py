"""Pairs, their arms, and the recorded tries behind them, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import Http404
from django.urls import reverse
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from runs.addressed import experiment_or_404
from runs.api.cells import cell_or_404
from runs.domain.checking import Verdict
from runs.domain.effects import Transition
from runs.domain.report import FailurePolicy, PairRecord, transition_of
from runs.models import (
    Arm,
    Attempt,
    Execution,
    Experiment,
    Failure,
    Grade,
    Pair,
    PairArm,
)
from runs.services.pair_lists import CENSORED, narrowed
from runs.services.reporting import pair_records
from skills.selectors import texts_in
from workbench.kernel.api import NoParameters, checked_query
from workbench.kernel.leases import LeaseState
from workbench.kernel.lists import Filter, Listing, true_or_false
from workbench.rest import Endpoint, listed
from workbench.schema import listing_schema

TRANSITIONS = tuple(transition.value for transition in Transition)
RETRIEVED: Mapping[str, bool | None] = {"true": True, "false": False, "unknown": None}
PAIRS = Listing(
    sorts={"planned": "pk"},
    default_sort="planned",
    filters={
        "transition": Filter(
            "", TRANSITIONS, meaning="Only those that came out so, as the report counts them."
        ),
        "retrieved": Filter(
            "", tuple(RETRIEVED), meaning="Whether a skill was returned to the SE run."
        ),
        "censored": Filter(
            "", parse=true_or_false, meaning="Whether it is left out: an arm has no result."
        ),
        "skill": Filter("", meaning="Only those in which the skill of this slug was returned."),
    },
)
ATTEMPTS = Listing(sorts={"number": "number"}, default_sort="number")


# --- lists of pairs -----------------------------------------------------------------


@dataclass(frozen=True)
class PairRow:
    """One pair as the report counts it; ``transition`` is None while it has no joint result."""

    uid: UUID
    cell: str
    transition: str | None
    record: PairRecord

    @property
    def censored(self) -> bool:
        return self.transition is None and not self.record.pending


class ArmResult(serializers.Serializer[Any]):
    """Whether an arm passed, or why it has no result."""

    passed = serializers.BooleanField(allow_null=True)
    failure = serializers.CharField(allow_null=True, help_text="why it has no result")


class PairOutput(serializers.Serializer[Any]):
    """One pair as the report counts it."""

    uid = serializers.UUIDField()
    cell = serializers.CharField(help_text="sha12 of its cell")
    task = serializers.CharField(source="record.task")
    replicate = serializers.IntegerField(source="record.replicate")
    transition = serializers.ChoiceField(choices=TRANSITIONS, allow_null=True)
    censored = serializers.BooleanField(help_text="left out: an arm has no result")
    pending = serializers.BooleanField(source="record.pending", help_text="still to be run")
    retrieved = serializers.BooleanField(
        source="record.retrieved", allow_null=True, help_text="null is unknown"
    )
    skills = serializers.ListField(
        child=serializers.CharField(), source="record.skills", help_text="slugs that were returned"
    )
    se = serializers.SerializerMethodField()
    sd = serializers.SerializerMethodField()
    url = serializers.SerializerMethodField()

    @extend_schema_field(ArmResult)
    def get_se(self, row: PairRow) -> dict[str, Any]:
        return {"passed": row.record.se, "failure": row.record.se_failure}

    @extend_schema_field(ArmResult)
    def get_sd(self, row: PairRow) -> dict[str, Any]:
        return {"passed": row.record.sd, "failure": row.record.sd_failure}

    def get_url(self, row: PairRow) -> str:
        return reverse("api-pair", kwargs={"uid": row.uid})


class ExperimentPairs(Endpoint):
    """List an experiment's pairs in the order of its plan.

    A page may hold fewer rows than asked for while there are more behind it: follow ``next``
    until it is null.
    """

    @listing_schema(PAIRS, PairOutput)
    def get(self, request: Request, slug: str) -> Response:
        experiment = experiment_or_404(slug)
        return _listed(request, experiment, Pair.objects.filter(cell__experiment=experiment))


class CellPairs(Endpoint):
    """List a cell's pairs in the order of its plan.

    A page may hold fewer rows than asked for while there are more behind it: follow ``next``
    until it is null.
    """

    @listing_schema(PAIRS, PairOutput)
    def get(self, request: Request, slug: str, sha12: str) -> Response:
        experiment = experiment_or_404(slug)
        cell = cell_or_404(experiment, sha12)
        return _listed(request, experiment, Pair.objects.filter(cell=cell))


def _listed(request: Request, experiment: Experiment, pairs: QuerySet[Pair]) -> Response:
    policy = FailurePolicy(experiment.spec["failure_policy"])

    def shown(rows: Sequence[Pair], asked: Mapping[str, str]) -> list[PairRow | None]:
        found = {row.uid: row for row in _rows(rows, policy) if _wanted(row, asked)}
        return [found.get(pair.uid) for pair in rows]

    query = request.query_params
    left_out = CENSORED if query.get("censored") == "true" else ""
    pairs = narrowed(
        pairs,
        transition=query.get("transition", "") or left_out,
        retrieved=query.get("retrieved", ""),
        skill=query.get("skill", ""),
    )
    related = ("cell__partition__benchmark", "cell__library", "cell__treatment")
    return listed(
        request, pairs.select_related(*related), listing=PAIRS, output=PairOutput, shown=shown
    )


def _rows(pairs: Sequence[Pair], policy: FailurePolicy) -> Iterator[PairRow]:
    """Yield the pairs as the report counts them, in four queries a cell."""
    for _, several in groupby(pairs, key=lambda pair: pair.cell_id):
        of_cell = list(several)
        cell = of_cell[0].cell
        for record in pair_records(cell, [pair.pk for pair in of_cell]):
            transition = transition_of(record, policy)
            yield PairRow(
                uid=UUID(record.pair),
                cell=cell.sha256[:12],
                transition=transition.value if transition else None,
                record=record,
            )


def _wanted(row: PairRow, asked: Mapping[str, str]) -> bool:
    return (
        asked.get("transition") in (None, row.transition)
        and ("retrieved" not in asked or RETRIEVED[asked["retrieved"]] is row.record.retrieved)
        and ("censored" not in asked or true_or_false(asked["censored"]) is row.censored)
        and ("skill" not in asked or asked["skill"] in row.record.skills)
    )


# --- one pair -----------------------------------------------------------------------


class GradeOutput(serializers.Serializer[Any]):
    """What a checker said of an attempt."""

    number = serializers.IntegerField()
    verdict = serializers.ChoiceField(choices=[verdict.value for verdict in Verdict])
    details = serializers.JSONField()
    tier = serializers.CharField(help_text="how the checked code was isolated")
    checker_sha256 = serializers.CharField()
    at = serializers.DateTimeField()


class AttemptOutput(serializers.Serializer[Any]):
    """One recorded try: its trace, or its failure and what there was of a trace."""

    number = serializers.IntegerField()
    failure = serializers.CharField(help_text="whose failure ended it; empty when none did")
    failure_detail = serializers.CharField()
    retrieved = serializers.BooleanField(allow_null=True, help_text="null is unknown")
    returned_ids = serializers.ListField(child=serializers.CharField())
    tokens_in = serializers.IntegerField(allow_null=True)
    tokens_out = serializers.IntegerField(allow_null=True)
    latency_s = serializers.FloatField(allow_null=True)
    source = serializers.CharField(  # type: ignore[assignment]
        help_text="where a run that was handed in is from"
    )
    at = serializers.DateTimeField()
    grades = GradeOutput(many=True)


class AttemptTraceOutput(AttemptOutput):
    """One recorded try with its trace."""

    trace = serializers.JSONField()


class ReturnedSkill(serializers.Serializer[Any]):
    """A skill that a search returned."""

    slug = serializers.CharField()
    name = serializers.CharField()
    rank = serializers.IntegerField(allow_null=True)
    score = serializers.FloatField(allow_null=True)
    text = serializers.CharField(allow_null=True, help_text="as the library holds it, or null")


class ArmOutput(serializers.Serializer[Any]):
    """One arm of a pair, as far as it got."""

    arm = serializers.ChoiceField(choices=Arm.choices)
    execution = serializers.UUIDField()
    state = serializers.ChoiceField(choices=LeaseState.choices)
    answer = serializers.CharField(allow_null=True, help_text="what the model replied")
    attempt = AttemptOutput(allow_null=True, help_text="the one that counts, or the last")
    attempts = serializers.CharField(help_text="address of all tries, with their traces")


class TaskOutput(serializers.Serializer[Any]):
    """The task of a pair."""

    key = serializers.CharField()
    benchmark = serializers.CharField()
    kind = serializers.CharField()
    prompt = serializers.CharField()
    gold_skills = serializers.ListField(child=serializers.CharField())


class PairDetailOutput(PairOutput):
    """One pair: task, both arms, grades and returned skills."""

    experiment = serializers.SlugField()
    task = TaskOutput()  # type: ignore[assignment]
    returned = ReturnedSkill(many=True)
    arms = ArmOutput(many=True)


class OnePair(Endpoint):
    """Show one pair: its task, both arms, the grades and the skills that were returned."""

    @extend_schema(responses=PairDetailOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        checked_query(request.query_params, NoParameters)
        related = ("task__benchmark", "cell__experiment", "cell__partition__benchmark")
        pair = (
            Pair.objects.select_related(*related, "cell__library", "cell__treatment")
            .filter(uid=uid)
            .first()
        )
        if pair is None:
            raise Http404
        return Response(_detail(pair))


def _detail(pair: Pair) -> dict[str, Any]:
    experiment = pair.cell.experiment
    (row,) = _rows([pair], FailurePolicy(experiment.spec["failure_policy"]))
    arms = PairArm.objects.filter(pair=pair).select_related("execution").order_by("arm")
    recorded = {arm.arm: (arm.execution, _standing(arm.execution)) for arm in arms}
    _, se = recorded.get(Arm.SE, (None, None))
    answer = PairOutput(row).data
    return {
        **answer,
        "experiment": experiment.slug,
        "task": TaskOutput(
            {
                "key": pair.task.key,
                "benchmark": f"{pair.task.benchmark.slug}@{pair.task.benchmark.number}",
                "kind": pair.task.kind,
                "prompt": pair.task.prompt,
                "gold_skills": list(map(str, pair.task.gold_skills)),
            }
        ).data,
        "returned": _returned(pair, se),
        "arms": [_arm(code, execution, attempt) for code, (execution, attempt) in recorded.items()],
    }


def _standing(execution: Execution) -> Attempt | None:
    """Return the attempt that counts, or the last one."""
    attempts = list(execution.attempts.prefetch_related("grades").order_by("number"))
    last = attempts[-1] if attempts else None
    return next((a for a in attempts if a.failure == Failure.NONE), last)


def _arm(code: str, execution: Execution, attempt: Attempt | None) -> dict[str, Any]:
    answer = attempt.trace.get("answer") if attempt else None
    return {
        "arm": code,
        "execution": str(execution.uid),
        "state": execution.state,
        "answer": None if answer is None else str(answer),
        "attempt": AttemptOutput(_as_recorded(attempt)).data if attempt else None,
        "attempts": reverse("api-execution-attempts", kwargs={"uid": execution.uid}),
    }


def _as_recorded(attempt: Attempt) -> dict[str, Any]:
    """Return the attempt's fields with its grades in order."""
    grades: list[Grade] = sorted(attempt.grades.all(), key=lambda grade: grade.number)
    names = [str(name) for name in AttemptTraceOutput().fields if name != "grades"]
    return {name: getattr(attempt, name) for name in names} | {"grades": grades}


def _returned(pair: Pair, attempt: Attempt | None) -> list[dict[str, Any]]:
    if attempt is None:
        return []
    slugs = [str(slug) for slug in attempt.returned_ids]
    texts = texts_in(pair.cell.library, slugs) if pair.cell.library and slugs else {}
    found: dict[str, Any] = {}
    for search in attempt.trace.get("searches") or ():
        for ref in search.get("returned") or ():
            found.setdefault(str(ref["id"]), ref)
    return [
        {
            "slug": slug,
            "name": str(found.get(slug, {}).get("name") or slug),
            "rank": found.get(slug, {}).get("rank"),
            "score": found.get(slug, {}).get("score"),
            "text": texts[slug].body if slug in texts else None,
        }
        for slug in slugs
    ]


# --- attempts -----------------------------------------------------------------------


class Attempts(Endpoint):
    """List the recorded tries of an execution with their traces and grades."""

    @listing_schema(ATTEMPTS, AttemptTraceOutput)
    def get(self, request: Request, uid: UUID) -> Response:
        execution = Execution.objects.filter(uid=uid).first()
        if execution is None:
            raise Http404
        attempts = execution.attempts.prefetch_related("grades")
        return listed(
            request,
            attempts,
            listing=ATTEMPTS,
            output=AttemptTraceOutput,
            shown=lambda rows, asked: [_as_recorded(attempt) for attempt in rows],
        )
