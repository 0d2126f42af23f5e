"""One pair: task, queries, returned skills, both answers, what the grader said, what it cost."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from runs.domain.effects import Transition
from runs.domain.plan import EMBEDDED, arm_from_json
from runs.domain.report import FAILURES, TERMS
from runs.domain.tasks import Kind
from runs.models import Arm, Attempt, Failure, Grade, Outcome, Pair, PairArm
from runs.views.figures import WORDS
from runs.views.live import spoken
from skills.models import Library
from skills.selectors import SkillText, texts_in
from workbench.kernel.leases import LeaseState
from workbench.kernel.pages import render_page, utc
from workbench.kernel.roles import unblinded_only
from workbench.models import Call

# Characters of one text on the page; the rest is behind its full-text link.
SHOWN = 8_000
SKILL_SHOWN = 3_000
SKILLS_SHOWN = 12
DETAIL_SHOWN = 1_000
CALLS_SHOWN = 60


@dataclass(frozen=True)
class Text:
    """Item text, cut where it is long."""

    text: str
    language: str
    characters: int
    cut: bool
    full_url: str


@dataclass(frozen=True)
class ReturnedView:
    """One skill that a search returned."""

    slug: str
    name: str
    score: str
    rank: int
    text: str
    cut: bool
    url: str


@dataclass(frozen=True)
class SearchView:
    """One call of the search tool."""

    number: int
    query: str
    types: str
    refusal: str
    returned: tuple[ReturnedView, ...]
    unknown: bool


@dataclass(frozen=True)
class Detail:
    """One thing the grader noted."""

    name: str
    text: str


@dataclass(frozen=True)
class ArmView:
    """One arm of the pair, as far as it got."""

    code: str
    title: str
    state: str
    passed: bool | None
    verdict: str
    status: str
    graded: Text | None
    reply: Text | None
    details: tuple[Detail, ...]
    tier: str
    grades: int
    attempts: int
    failures: tuple[Detail, ...]
    trace_url: str


@dataclass(frozen=True)
class CallRow:
    """One request to the model."""

    arm: str
    step: int
    try_number: int
    state: str
    tokens_in: str
    tokens_out: str
    seconds: str
    cost: str


@dataclass(frozen=True)
class PairPage:
    """One pair, unblinded."""

    uid: str
    task: str
    benchmark: str
    kind: str
    demonstration: bool
    replicate: int
    model: str
    control: str
    experiment: str
    experiment_url: str
    cell_url: str
    alike_url: str
    transition: str
    word: str
    meaning: str
    retrieved: str
    pushed: bool
    source: str
    returned: tuple[str, ...]
    gold: tuple[str, ...]
    prompt: Text
    searches: tuple[SearchView, ...]
    arms: tuple[ArmView, ...]
    calls: tuple[CallRow, ...]
    calls_left_out: int


@dataclass(frozen=True)
class _Run:
    """An arm's rows: the attempt that counts (or the last one), all of them, and the grades."""

    code: str
    state: str
    execution_uid: UUID
    spec: Mapping[str, Any]
    attempt: Attempt | None
    attempts: tuple[Attempt, ...]
    grade: Grade | None
    grades: int

    @property
    def is_pushed(self) -> bool:
        return self.spec.get("imported") is not None

    @property
    def trace(self) -> Mapping[str, Any]:
        return self.attempt.trace if self.attempt else {}


@require_safe
@unblinded_only
def pair(request: HttpRequest, uid: UUID) -> HttpResponse:
    """Show one pair."""
    found = _pair_or_404(uid)
    runs = _runs(found)
    outcome = Outcome.objects.filter(pair=found).order_by("-pk").first()
    experiment = found.cell.experiment
    unequal = _unequal(runs)
    transition = outcome.transition if outcome and not unequal else ""
    treatment = arm_from_json(found.cell.treatment.spec)
    cell_url = reverse("cell", kwargs={"slug": experiment.slug, "sha12": found.cell.sha256[:12]})
    calls, left_out = _calls(runs)
    return render_page(
        request,
        "runs/pair.html",
        PairPage(
            uid=str(found.uid),
            task=found.task.key,
            benchmark=treatment.benchmark,
            kind=found.task.kind,
            demonstration=treatment.endpoint == EMBEDDED,
            replicate=found.replicate,
            model=treatment.model or "",
            control=treatment.control or "",
            experiment=experiment.slug,
            experiment_url=reverse("experiment", kwargs={"slug": experiment.slug}),
            cell_url=cell_url,
            alike_url=f"{cell_url}?transition={transition}#pairs" if transition else "",
            transition=transition,
            word="left out"
            if unequal or (treatment.imported and not transition)
            else WORDS.get(transition, "no joint result yet"),
            meaning=_unequal_meaning(unequal) if unequal else _meaning(transition),
            retrieved=_retrieved(runs.get(Arm.SE)),
            pushed=treatment.imported is not None,
            source=_source(runs),
            returned=_returned_elsewhere(runs.get(Arm.SE)),
            gold=tuple(map(str, found.task.gold_skills)),
            prompt=_text(found, "prompt", found.task.prompt, "text"),
            searches=_searches(runs.get(Arm.SE), found.cell.library),
            # Reading order: what the model does by itself, then what skills made of it.
            arms=tuple(_arm(found, runs[code]) for code in (Arm.SD, Arm.SE) if code in runs),
            calls=calls,
            calls_left_out=left_out,
        ),
    )


@require_safe
@unblinded_only
def pair_text(request: HttpRequest, uid: UUID, part: str) -> HttpResponse:
    """Return one text of the pair whole, as plain text that no browser renders."""
    found = _pair_or_404(uid)
    runs = _runs(found)
    arm, _, which = part.partition("-")
    run = runs.get(arm.upper())
    text: str | None = None
    if part == "prompt":
        text = found.task.prompt
    elif run and which in _WHOLE_TEXTS:
        text = _WHOLE_TEXTS[which](run)
    if text is None:
        raise Http404
    response = HttpResponse(text, content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = "inline"
    response["Cache-Control"] = "no-store"
    return response


# --- rows -----------------------------------------------------------------------


def _pair_or_404(uid: UUID) -> Pair:
    related = ("task", "cell__experiment", "cell__library", "cell__treatment")
    found = Pair.objects.select_related(*related).filter(uid=uid).first()
    if found is None:
        raise Http404
    pair: Pair = found
    return pair


def _runs(found: Pair) -> dict[str, _Run]:
    """Return the arms' rows by arm code, in three queries."""
    arms = list(
        PairArm.objects.filter(pair=found).select_related("execution__arm_spec").order_by("arm")
    )
    attempts: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in Attempt.objects.filter(
        execution__in=[arm.execution_id for arm in arms]
    ).order_by("number"):
        attempts[attempt.execution_id].append(attempt)
    grades: dict[int, list[Grade]] = defaultdict(list)
    wanted = [attempt.pk for several in attempts.values() for attempt in several]
    for grade in Grade.objects.filter(attempt__in=wanted).order_by("number"):
        grades[grade.attempt_id].append(grade)
    runs = {}
    for arm in arms:
        several = attempts[arm.execution_id]
        counts = next((a for a in several if a.failure == Failure.NONE), None)
        shown = counts or (several[-1] if several else None)
        given = grades[shown.pk] if shown else []
        runs[arm.arm] = _Run(
            code=arm.arm,
            state=arm.execution.state,
            execution_uid=arm.execution.uid,
            spec=arm.execution.arm_spec.spec,
            attempt=shown,
            attempts=tuple(several),
            grade=given[-1] if given else None,
            grades=len(given),
        )
    return runs


def _unequal(runs: Mapping[str, _Run]) -> tuple[str, ...]:
    """Return the parameters that the endpoint refused in one arm only, of two that answered."""
    answered = [run for run in runs.values() if run.attempt and not run.attempt.failure]
    if len(answered) < len(Arm):
        return ()
    one, other = (set(run.trace.get("dropped_parameters") or ()) for run in answered)
    return tuple(sorted(one ^ other))


def _unequal_meaning(names: Sequence[str]) -> str:
    return (
        f"The endpoint refused {', '.join(names)} in one arm only, so the arms can't be compared."
    )


def _calls(runs: Mapping[str, _Run]) -> tuple[tuple[CallRow, ...], int]:
    arms = {run.execution_uid: code for code, run in runs.items()}
    found = Call.objects.filter(subject__in=arms).defer("request", "reply")
    rows = [
        CallRow(
            arm=arms[call.subject],
            step=call.step,
            try_number=call.try_number,
            state=call.state + (f": {spoken(call.failure)}" if call.failure else ""),
            tokens_in=_number(call.tokens_in),
            tokens_out=_number(call.tokens_out),
            seconds="–" if call.latency_s is None else f"{call.latency_s:.2f}",
            cost="–" if call.cost is None else f"{call.cost:.5f}",
        )
        for call in found.order_by("subject", "step", "try_number")
    ]
    rows.sort(key=lambda row: row.arm)  # SD first, as everywhere on the page
    return tuple(rows[:CALLS_SHOWN]), max(0, len(rows) - CALLS_SHOWN)


# --- parts of the page ----------------------------------------------------------


def _arm(found: Pair, run: _Run) -> ArmView:
    name = run.code.lower()
    verdict = run.grade.verdict if run.grade else ""
    language = "python" if found.task.kind == Kind.CODE else "text"
    reply = _reply_text(run) or ""
    graded = _graded_text(run)
    details = run.grade.details if run.grade else {}
    return ArmView(
        code=run.code,
        title="Without skills (SD)" if run.code == Arm.SD else "With skills (SE)",
        state=_state(run),
        passed=verdict == "pass" if verdict else None,
        verdict=spoken(verdict),
        status=spoken(run.trace.get("status") or ""),
        graded=None if graded is None else _text(found, f"{name}-graded", graded, language),
        # Where all of the reply was graded it is not printed twice.
        reply=_text(found, f"{name}-reply", reply, "text") if reply not in ("", graded) else None,
        details=tuple(_details(details)),
        tier=run.grade.tier if run.grade else "",
        grades=run.grades,
        attempts=len(run.attempts),
        failures=tuple(
            Detail(
                f"{'Row' if run.is_pushed else 'Try'} {attempt.number}, {utc(attempt.at)}: "
                f"{FAILURES.get(attempt.failure, attempt.failure)}",
                _clipped(attempt.failure_detail),
            )
            for attempt in run.attempts
            if attempt.failure != Failure.NONE
        ),
        trace_url=_text_url(found, f"{name}-trace") if run.trace else "",
    )


def _details(noted: Mapping[str, Any], of: str = "") -> Iterator[Detail]:
    """Yield what the grader noted, one level of nesting told in the name; the answer is shown."""
    for key, value in noted.items():
        if key == "answer" or value in (None, "", [], {}):
            continue
        if isinstance(value, Mapping) and not of:
            yield from _details(value, of=f"{key} ")
        else:
            yield Detail(of + spoken(key), _clipped(value))


def _state(run: _Run) -> str:
    if run.state == LeaseState.DEAD and run.is_pushed:
        return "no result"
    if run.state == LeaseState.DEAD:
        return "failed in all of its tries"
    if run.state == LeaseState.DONE:
        return "done"
    return "under way" if run.state == LeaseState.RUNNING else "waiting"


def _graded_text(run: _Run) -> str | None:
    """Return what the grader took from the reply, or None when it took nothing."""
    answer = run.grade.details.get("answer") if run.grade else None
    return None if answer is None else str(answer)


def _trace_text(run: _Run) -> str | None:
    return json.dumps(run.trace, indent=1, ensure_ascii=False) if run.trace else None


def _reply_text(run: _Run) -> str | None:
    reply = run.trace.get("answer")
    return None if reply is None else str(reply)


# What ``pair_text`` can give of an arm, by the last word of its address.
_WHOLE_TEXTS: Mapping[str, Callable[[_Run], str | None]] = {
    "reply": _reply_text,
    "graded": _graded_text,
    "trace": _trace_text,
}


def _searches(run: _Run | None, library: Library | None) -> tuple[SearchView, ...]:
    if run is None:
        return ()
    searches = run.trace.get("searches") or []
    wanted = {ref["id"] for search in searches for ref in search.get("returned") or []}
    texts = texts_in(library, wanted) if library and wanted else {}
    shown: set[str] = set()
    views = []
    for number, search in enumerate(searches, start=1):
        returned = []
        for ref in search.get("returned") or []:
            text = texts.get(ref["id"])
            # A text that came back twice is printed once.
            first = ref["id"] not in shown and len(shown) < SKILLS_SHOWN
            shown.add(ref["id"])
            returned.append(_returned(ref, text, with_text=first))
        views.append(
            SearchView(
                number=number,
                query=_clipped(search.get("query") or search.get("arguments") or ""),
                types=", ".join(search.get("types") or ()),
                refusal=spoken(search.get("detail") or search.get("reason") or ""),
                returned=tuple(returned),
                # A pushed run says what it searched for, not what each search returned.
                unknown="returned" not in search and not search.get("reason"),
            )
        )
    return tuple(views)


def _returned(ref: Mapping[str, Any], text: SkillText | None, *, with_text: bool) -> ReturnedView:
    body = text.body if text and with_text else ""
    return ReturnedView(
        slug=ref["id"],
        name=str(ref.get("name") or ref["id"]),
        score=f"{ref['score']:.3f}",
        rank=ref["rank"],
        text=body[:SKILL_SHOWN],
        cut=len(body) > SKILL_SHOWN,
        url=reverse("skill", kwargs={"slug": ref["id"]}) if text else "",
    )


def _text(found: Pair, part: str, text: str, language: str) -> Text:
    return Text(
        text=text[:SHOWN],
        language=language,
        characters=len(text),
        cut=len(text) > SHOWN,
        full_url=_text_url(found, part),
    )


def _text_url(found: Pair, part: str) -> str:
    return reverse("pair-text", kwargs={"uid": found.uid, "part": part})


def _clipped(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= DETAIL_SHOWN else text[:DETAIL_SHOWN] + " …"


def _meaning(transition: str) -> str:
    return TERMS[Transition(transition).letter] if transition else "An arm has no graded answer."


def _source(runs: Mapping[str, _Run]) -> str:
    """Return where pushed runs are from, as their rows say."""
    named = (run.attempt.source for run in runs.values() if run.attempt)
    return ", ".join(dict.fromkeys(name for name in named if name))


def _returned_elsewhere(run: _Run | None) -> tuple[str, ...]:
    """Return the skills that a pushed run says were returned; others' are in their searches."""
    if run is None or run.attempt is None or not run.is_pushed:
        return ()
    if run.attempt.failure == Failure.CONFLICT:  # no one row of them speaks for the run
        return ()
    return tuple(map(str, run.attempt.returned_ids))


def _retrieved(run: _Run | None) -> str:
    if run is None or run.attempt is None or run.attempt.failure == Failure.CONFLICT:
        return "unknown"
    return {True: "yes", False: "no", None: "unknown"}[run.attempt.retrieved]


def _number(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"
