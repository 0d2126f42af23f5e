"""What a draft has the workers do: its estimate, and its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from runs.domain.agent import AgentStopped
from runs.domain.forecasts import expected_pairs
from runs.domain.pauses import advice_before, patience
from runs.domain.plan import Budget, ExperimentSpec
from runs.domain.suites import InvalidTaskFile
from runs.models import Experiment, ExperimentDraft, ExperimentStatus
from runs.sandbox.grader import Grader, HostFailed, NoIsolation
from runs.selectors import experiment_by_slug
from runs.services import lifecycle
from runs.services.drafting import DraftMissing, check_draft, draft_by_slug
from runs.services.planning import Layout, SameTasks, lay_out, plan_experiment
from runs.services.preparing import (
    UNPLANNABLE,
    EndpointUnusable,
    check_endpoints,
    prepare,
    stored_partitions,
)
from runs.services.probing import CellProbe, ModelEstimate, ProbeRun, probe, probe_runs
from runs.services.rescoring import rescore
from skills.services.libraries import LibraryMissing, LibraryQuarantined
from workbench.jobs import Handle, JobFailed, latest_job, request_job
from workbench.kernel.chat import EndpointBusy, EndpointFault
from workbench.kernel.identity import sha256_of_text
from workbench.kernel.leases import LeaseState
from workbench.llm.factory import BadEndpoint
from workbench.models import Job
from workbench.trail import record_event

ESTIMATE_TASK = "runs.estimate_draft"
START_TASK = "runs.start_draft"
RESCORE_TASK = "runs.rescore"
_LIVE = (LeaseState.PENDING, LeaseState.RUNNING)

# What people can mend, or what their endpoint or host said: told as it is.
_TOLD = (*UNPLANNABLE, EndpointUnusable, HostFailed, NoIsolation)


class DraftNotReady(Exception):
    """The draft's file has problems, which are to be mended first."""


class DraftBusy(Exception):
    """The draft is being estimated or started; the text says what to wait for."""


@dataclass(frozen=True)
class DraftEstimate:
    """What an estimate found; None is unknown, never 0.

    Attributes:
        toml_sha256: of the file it was made for; another file makes it outdated.
        layout_uid: of the plan it was made for; other tasks or skills make it outdated.
        workers: in how many processes at once the runs are made.
        n_cond_low, n_cond_high: limits of ``expected_n_cond``, see ``forecasts.expected_pairs``.
        seconds: with so many workers.
        cost_unknown: why the cost is None.
        over_budget: a sentence for each cap that would be reached before the end.
    """

    toml_sha256: str
    layout_uid: str
    workers: int
    pairs: int
    executions: int
    expected_n_cond: float
    n_cond_low: float
    n_cond_high: float
    calls: float
    tokens: float | None
    cost: float | None
    cost_unknown: str
    seconds: float | None
    over_budget: tuple[str, ...]
    models: tuple[ModelEstimate, ...]


# --- asking for it ----------------------------------------------------------------


def request_estimate(*, slug: str, actor: Any, at: datetime) -> Job:
    """Return the job that estimates the draft; one that is under way is not asked for twice.

    Raises:
        DraftMissing: there is no such draft.
        DraftNotReady: its file has problems.
        DraftBusy: it is being started.
    """
    return _request(ESTIMATE_TASK, slug=slug, actor=actor, at=at)


def request_start(*, slug: str, actor: Any, at: datetime) -> Job:
    """Return the job that plans and starts the draft as it is now.

    Raises:
        DraftMissing: there is no such draft.
        DraftNotReady: its file has problems.
        DraftBusy: an estimate is under way, whose calls the start would make again.
    """
    return _request(START_TASK, slug=slug, actor=actor, at=at)


def request_rescore(*, experiment: Experiment, actor: Any, at: datetime) -> Job:
    """Return the job that grades the experiment's answers again; it calls no model.

    Raises:
        WrongStatus: its runs were made elsewhere.
    """
    lifecycle.refuse_pushed(experiment)
    with transaction.atomic():
        Experiment.objects.select_for_update().get(pk=experiment.pk)
        job = latest_job(kind=RESCORE_TASK, subject=experiment.slug)
        if job and job.state in _LIVE:
            return job
        return request_job(
            kind=RESCORE_TASK, subject=experiment.slug, params={}, actor=actor, at=at
        )


def job_of(draft: ExperimentDraft, kind: str) -> Job | None:
    """Return the draft's newest job of a kind, or None."""
    job = latest_job(kind=kind, subject=draft.slug)
    # An earlier draft may have had the same slug.
    return job if job and job.created_at >= draft.created_at else None


def start_of(slug: str) -> Job | None:
    """Return the newest job that started a draft of this slug; the draft is gone after it."""
    return latest_job(kind=START_TASK, subject=slug)


def estimate_of(draft: ExperimentDraft) -> DraftEstimate | None:
    """Return what the draft's newest estimate found, or None."""
    job = job_of(draft, ESTIMATE_TASK)
    if job is None or job.state != LeaseState.DONE or job.result is None:
        return None
    return estimate_from(job.result)


def estimate_from(result: dict[str, Any]) -> DraftEstimate:
    """Return the estimate that a job stored."""
    models = tuple(
        ModelEstimate(**{**model, "probes": tuple(CellProbe(**one) for one in model["probes"])})
        for model in result["models"]
    )
    return DraftEstimate(
        **{**result, "models": models, "over_budget": tuple(result["over_budget"])}
    )


def is_outdated(estimate: DraftEstimate, draft: ExperimentDraft) -> bool:
    """Return whether a start would now plan anything but what was estimated.

    That is so when the draft was changed since, or a suite or a library that it names.
    """
    if estimate.toml_sha256 != sha256_of_text(draft.toml):
        return True
    spec = check_draft(draft.toml, slug=draft.slug).spec
    if spec is None:
        return True
    try:
        partitions = stored_partitions(spec)
        if partitions is None:
            return True
        return str(lay_out(spec=spec, partitions=partitions).uid) != estimate.layout_uid
    except (InvalidTaskFile, LibraryMissing, LibraryQuarantined, SameTasks):
        return True


def _request(kind: str, *, slug: str, actor: Any, at: datetime) -> Job:
    with transaction.atomic():
        # Of two who ask at once the second finds the first one's job.
        draft = ExperimentDraft.objects.select_for_update().filter(slug=slug).first()
        if draft is None:
            raise DraftMissing(f"there is no draft '{slug}'")
        under_way = {name: job_of(draft, name) for name in (ESTIMATE_TASK, START_TASK)}
        live = {name: job for name, job in under_way.items() if job and job.state in _LIVE}
        if kind in live:
            return live[kind]
        if live:
            doing = "estimated" if ESTIMATE_TASK in live else "started"
            raise DraftBusy(f"the draft '{slug}' is being {doing}; wait until that has ended")
        if problems := check_draft(draft.toml, slug=draft.slug).problems:
            raise DraftNotReady(
                f"the draft '{slug}' has {len(problems)} problem{'s' * (len(problems) > 1)}; "
                "mend what its page lists first"
            )
        verb = "draft.estimate_requested" if kind == ESTIMATE_TASK else "draft.start_requested"
        record_event(actor=actor, verb=verb, subject=slug, at=at)
        return request_job(
            kind=kind,
            subject=slug,
            params={"toml_sha256": sha256_of_text(draft.toml)},
            actor=actor,
            at=at,
        )


# --- doing it: the workers call these ---------------------------------------------


def estimate_draft(
    handle: Handle, *, open_grader: Callable[[], Grader], workers: int
) -> dict[str, Any]:
    """Probe the draft's models and return the estimate as JSON. Nothing is planned.

    Args:
        workers: how many runs this host makes at once.

    Raises:
        JobFailed: what is to be mended, in words.
    """
    draft = _draft_as_asked(handle)
    with _told():
        handle.report(finished=0, note="preparing the tasks and skills")
        spec = _checked(draft)
        partitions = prepare(spec=spec, open_grader=open_grader, trusted=False)
        layout = lay_out(spec=spec, partitions=partitions)
        now = ProbeRun(0, probe_runs(layout), "")

        def say(run: ProbeRun) -> None:
            nonlocal now
            now = run
            handle.report(finished=run.number - 1, steps=run.of, note=run.text)

        def still_ours() -> None:
            handle.report(finished=max(now.number - 1, 0), steps=now.of, note=now.text)

        models = probe(layout, say=say, still_ours=still_ours)
    return asdict(_summed(layout, models, sha256_of_text(draft.toml), workers))


def start_draft(handle: Handle, *, open_grader: Callable[[], Grader]) -> dict[str, Any]:
    """Plan the draft, start the experiment and end the draft; return ``{"experiment": ...}``.

    Done again after a crash it goes on where it stopped: the plan is addressed by its content,
    and an experiment that has started is not started again.

    Raises:
        JobFailed: what is to be mended, in words.
    """
    if _was_started(handle):
        asked = ExperimentDraft.objects.filter(slug=handle.job.subject).first()
        if asked and sha256_of_text(asked.toml) == handle.job.params["toml_sha256"]:
            asked.delete()
        return _started(handle.job.subject)
    draft = _draft_as_asked(handle)
    with _told():
        spec = _checked(draft)
        handle.report(finished=0, steps=4, note="preparing the tasks and skills")
        partitions = prepare(spec=spec, open_grader=open_grader, trusted=False)
        handle.report(finished=1, steps=4, note="asking the endpoints for a small reply")
        check_endpoints(spec)
        handle.report(finished=2, steps=4, note="planning the pairs")
        experiment = plan_experiment(
            spec=spec,
            partitions=partitions,
            at=timezone.now(),
            toml=draft.toml,
            actor=handle.job.actor,
        )
    handle.report(finished=3, steps=4, note="starting")
    experiment.refresh_from_db()
    if experiment.status == ExperimentStatus.PLANNED:
        lifecycle.start(experiment=experiment, actor=handle.job.actor, at=timezone.now())
    # Saved once more since it was read: then what was written stays, as a draft.
    ExperimentDraft.objects.filter(pk=draft.pk, revision=draft.revision).delete()
    return _started(experiment.slug)


def rescore_experiment(handle: Handle, *, open_grader: Callable[[], Grader]) -> dict[str, Any]:
    """Grade the experiment's answers again; return how many got a new grade.

    Raises:
        JobFailed: this host can't grade them, and why.
    """
    experiment = experiment_by_slug(handle.job.subject)

    def say(done: int, of: int) -> None:
        handle.report(finished=done, steps=of, note="grading the stored answers")

    with _told():
        graded = rescore(
            experiment=experiment,
            grader=open_grader(),
            at=timezone.now(),
            actor=handle.job.actor,
            say=say,
        )
    return {"graded": graded, **_started(experiment.slug)}


def _draft_as_asked(handle: Handle) -> ExperimentDraft:
    """Return the job's draft.

    Raises:
        JobFailed: it is gone, or not what it was when somebody asked.
    """
    try:
        draft = draft_by_slug(handle.job.subject)
    except DraftMissing as error:
        raise JobFailed(
            "The draft was discarded or renamed meanwhile; nothing was done."
        ) from error
    if sha256_of_text(draft.toml) != handle.job.params["toml_sha256"]:
        raise JobFailed(
            "The draft was changed after this was asked for, so nothing was done. Look at it, "
            "then ask again."
        )
    return draft


def _was_started(handle: Handle) -> bool:
    """Return whether this start was interrupted after the experiment had begun."""
    experiment = Experiment.objects.filter(slug=handle.job.subject).first()
    asked = handle.job.params["toml_sha256"]
    return (
        experiment is not None
        and experiment.status != ExperimentStatus.PLANNED
        and sha256_of_text(experiment.toml) == asked
    )


def _started(slug: str) -> dict[str, Any]:
    return {"experiment": slug, "path": reverse("experiment", kwargs={"slug": slug})}


def _checked(draft: ExperimentDraft) -> ExperimentSpec:
    """Return the draft's spec, checked again: what it names may be gone since it was asked for.

    Raises:
        JobFailed: naming each problem by line.
    """
    check = check_draft(draft.toml, slug=draft.slug)
    if check.spec is None:
        lines = [f"line {p.line}: {p.message}" if p.line else p.message for p in check.problems]
        raise JobFailed("The draft's file has problems. " + "\n".join(lines))
    return check.spec


@contextmanager
def _told() -> Iterator[None]:
    """Turn anticipated faults into what a failed job shows."""
    try:
        yield
    except (AgentStopped, BadEndpoint, EndpointBusy, EndpointFault) as error:
        cause = error.cause if isinstance(error, AgentStopped) else error
        if isinstance(cause, EndpointBusy):
            raise JobFailed(
                patience(wait_s=cause.wait_s, detail=cause.detail, now=timezone.now())
            ) from error
        raise JobFailed(
            f"A model can't be used: {str(error).rstrip('.')}. {advice_before(str(error))}"
        ) from error
    except _TOLD as error:
        raise JobFailed(str(error)) from error


def _summed(
    layout: Layout, models: list[ModelEstimate], toml_sha256: str, workers: int
) -> DraftEstimate:
    spec = layout.spec
    expected = expected_pairs([probe.group for model in models for probe in model.probes])
    tokens = _total([model.tokens for model in models])
    cost = _total([model.cost for model in models])
    seconds = _total([model.seconds for model in models])
    calls = sum(model.calls for model in models)
    return DraftEstimate(
        toml_sha256=toml_sha256,
        layout_uid=str(layout.uid),
        workers=workers,
        pairs=layout.pairs,
        executions=layout.executions_of(layout.cells),
        expected_n_cond=expected.value,
        n_cond_low=expected.low,
        n_cond_high=expected.high,
        calls=calls,
        tokens=tokens,
        cost=cost,
        cost_unknown="" if cost is not None else _why_no_cost(spec),
        seconds=None if seconds is None else seconds / max(workers, 1),
        over_budget=tuple(_over(spec.budget, calls=calls, tokens=tokens, cost=cost)),
        models=tuple(models),
    )


def _total(amounts: list[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def _why_no_cost(spec: ExperimentSpec) -> str:
    unpriced = [m.id for m in spec.models if m.price_in is None or m.price_out is None]
    if unpriced:
        return f"no price is given for {', '.join(unpriced)}"
    return "the endpoint doesn't say how many tokens it used"


def _over(
    budget: Budget, *, calls: float, tokens: float | None, cost: float | None
) -> Iterator[str]:
    for name, cap, amount in (
        ("calls", budget.calls, calls),
        ("tokens", budget.tokens, tokens),
        ("cost", budget.cost, cost),
    ):
        if cap is not None and amount is not None and amount > cap:
            yield f"about {amount:,.4g} {name}, and the budget is {cap:,g}"
