"""Harmful flips side by side: the passing answer, the failing one, and the skill between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django.urls import reverse

from runs.domain.tasks import Kind
from runs.models import Arm, Attempt, Failure, Grade, Pair, PairArm
from skills.models import Library
from skills.selectors import SkillText, texts_in

# By pair and arm: the attempt that counts, and its latest grade.
_Answers = dict[tuple[int, str], tuple[Attempt, Grade | None]]

ANSWER_SHOWN = 900
SKILL_SHOWN = 400


@dataclass(frozen=True)
class FlipAnswer:
    """What an arm answered, cut where it is long."""

    text: str
    cut: bool
    verdict: str


@dataclass(frozen=True)
class FlipSkill:
    """A skill that was returned."""

    slug: str
    name: str
    text: str
    url: str


@dataclass(frozen=True)
class Flip:
    """One lost pair."""

    uid: str
    task: str
    language: str
    prompt: str
    without: FlipAnswer
    with_skills: FlipAnswer
    skills: tuple[FlipSkill, ...]
    url: str


def flips_of(report: Mapping[str, Any], *, at_most: int) -> tuple[Flip, ...]:
    """Return the report's first harmful flips whose answers can be read, one a task at most."""
    by_task: dict[str, str] = {}
    for flip in report["harmful_flips"]:
        if not flip["failed_call"]:
            by_task.setdefault(flip["task"], flip["pair"])
    wanted = list(by_task.values())[:at_most]
    pairs = {
        str(pair.uid): pair
        for pair in Pair.objects.filter(uid__in=wanted).select_related("task", "cell__library")
    }
    answers = _answers(list(pairs.values()))
    texts = _texts(pairs.values(), answers)
    return tuple(_flip(pairs[uid], answers, texts) for uid in wanted if uid in pairs)


def _answers(pairs: list[Pair]) -> _Answers:
    """Return attempt and latest grade by pair and arm, in three queries."""
    arms = {
        (arm.pair_id, arm.arm): arm.execution_id for arm in PairArm.objects.filter(pair__in=pairs)
    }
    attempts = {
        attempt.execution_id: attempt
        for attempt in Attempt.objects.filter(execution__in=arms.values(), failure=Failure.NONE)
    }
    grades = {
        grade.attempt_id: grade
        for grade in Grade.objects.filter(attempt__in=attempts.values()).order_by("number")
    }
    return {
        key: (attempts[execution], grades.get(attempts[execution].pk))
        for key, execution in arms.items()
        if execution in attempts
    }


def _texts(pairs: Iterable[Pair], answers: _Answers) -> dict[Library, dict[str, SkillText]]:
    """Return the texts of the skills that were returned, in one query a library."""
    wanted: dict[Library, set[str]] = defaultdict(set)
    for pair in pairs:
        if pair.cell.library and (pair.pk, Arm.SE) in answers:
            wanted[pair.cell.library].update(_returned(answers, pair))
    return {library: texts_in(library, slugs) for library, slugs in wanted.items()}


def _returned(answers: _Answers, pair: Pair) -> list[str]:
    treatment = answers.get((pair.pk, Arm.SE))
    return [str(slug) for slug in treatment[0].returned_ids] if treatment else []


def _flip(
    pair: Pair, answers: _Answers, by_library: Mapping[Library, Mapping[str, SkillText]]
) -> Flip:
    texts = by_library.get(pair.cell.library, {}) if pair.cell.library else {}
    return Flip(
        uid=str(pair.uid),
        task=pair.task.key,
        language="python" if pair.task.kind == Kind.CODE else "text",
        prompt=pair.task.prompt[:ANSWER_SHOWN],
        without=_answer(answers.get((pair.pk, Arm.SD))),
        with_skills=_answer(answers.get((pair.pk, Arm.SE))),
        skills=tuple(
            FlipSkill(
                slug=slug,
                name=texts[slug].name if slug in texts else slug,
                text=texts[slug].body[:SKILL_SHOWN] if slug in texts else "",
                url=reverse("skill", kwargs={"slug": slug}) if slug in texts else "",
            )
            for slug in _returned(answers, pair)
        ),
        url=reverse("pair", kwargs={"uid": pair.uid}),
    )


def _answer(found: tuple[Attempt, Grade | None] | None) -> FlipAnswer:
    if found is None:
        return FlipAnswer("", cut=False, verdict="")
    attempt, grade = found
    graded = grade.details.get("answer") if grade else None
    text = str(graded if graded is not None else attempt.trace.get("answer") or "")
    return FlipAnswer(
        text=text[:ANSWER_SHOWN].rstrip(),
        cut=len(text) > ANSWER_SHOWN,
        verdict=grade.verdict if grade else "",
    )
