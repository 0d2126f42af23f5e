"""One arm of a pair, made ready to run: its model, its search tool, its conversation."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db.models import Count

from runs.domain.agent import AgentSettings, Dialect, SearchTool, Trace, run_agent
from runs.domain.plan import EMBEDDED, ArmSpec, ModelSpec, arm_from_json, from_json
from runs.domain.prompts import ReturnedSkill
from runs.models import Execution, Experiment, Position
from skills.domain.retrieval import Bm25, Retriever
from skills.services.libraries import documents_of, versions_of
from workbench.kernel.chat import EndpointFault
from workbench.kernel.identity import generation_seed
from workbench.llm.factory import chat_model_for


def run_execution_agent(
    execution: Execution, experiment: Experiment, *, still_ours: Callable[[], None] = lambda: None
) -> Trace:
    """Return the trace of the execution's arm; calls in the ledger aren't made again.

    Args:
        still_ours: called before each request; raises where the caller lost its lease.

    Raises:
        AgentStopped, Contaminated: see ``run_agent``.
        EndpointFault: the endpoint can't even be tried.
    """
    arm = arm_from_json(execution.arm_spec.spec)
    if arm.dialect is None or arm.temperature is None or arm.max_tokens is None:
        raise ValueError(f"the arm of {execution.uid} ran elsewhere; it can't be run here")
    task = execution.task
    return run_agent(
        model=chat_model_for(
            endpoint=endpoint_of(model_of(experiment, arm)),
            subject=execution.uid,
            still_ours=still_ours,
            retries=retries_of(execution),
        ),
        kind=task.kind,
        prompt=task.prompt,
        exposed=arm.exposed,
        search=search_tool(arm) if arm.exposed else None,
        settings=AgentSettings(
            dialect=Dialect(arm.dialect),
            temperature=arm.temperature,
            max_tokens=arm.max_tokens,
            # The baseline's spec names no search limit and no k: it never searches.
            max_searches=arm.max_searches or 1,
            k=arm.k or 0,
        ),
        seed=generation_seed(
            seed_stream=execution.seed_stream,
            task_sha256=task.sha256,
            replicate=execution.replicate,
        ),
    )


def retries_of(execution: Execution) -> int:
    """Return how often a person has had the execution run again after it was dead.

    Each time gives every pair that it serves in that experiment one more position. One that
    isn't stored yet has never run.
    """
    if execution.pk is None:
        return 0
    positions = Position.objects.filter(pair__arms__execution=execution)
    by_experiment = positions.values("cell__experiment").annotate(
        positions=Count("pk"), pairs=Count("pair", distinct=True)
    )
    return sum(row["positions"] // row["pairs"] - 1 for row in by_experiment)


def model_of(experiment: Experiment, arm: ArmSpec) -> ModelSpec:
    """Return the experiment's model entry that ``arm`` runs on."""
    return next(
        model
        for model in from_json(experiment.spec).models
        if model.id == arm.model and model.endpoint == arm.endpoint
    )


def endpoint_of(model: ModelSpec) -> dict[str, Any]:
    """Return where and how to reach ``model``, as the adapters want it.

    Raises:
        EndpointFault: it is the embedded model and nobody serves it.
    """
    base_url = model.base_url
    if base_url == EMBEDDED:
        base_url = settings.EMBEDDED_MODEL_URL
        if not base_url:
            raise EndpointFault("not_served", "the embedded model's server isn't running")
    timeouts = {"read_s": model.timeout_s} if model.timeout_s else {}
    return {
        "timeouts": timeouts,
        "requests_per_minute": model.requests_per_minute,
        "label": model.endpoint,
        "base_url": base_url,
        "api_key_env": model.api_key_env,
        "model": model.id,
        "dialect": model.dialect,
        "price_in": model.price_in,
        "price_out": model.price_out,
    }


def search_tool(arm: ArmSpec) -> SearchTool:
    """Return the search that the treatment's model may call, under the arm's control."""
    assert arm.library_sha256 is not None
    if arm.control == "schema_empty":
        return lambda query, types: ()
    assert arm.retriever is not None
    assert arm.k is not None
    retriever = _retriever(arm.library_sha256, arm.retriever)
    texts = _texts(arm.library_sha256)
    k, allowed = arm.k, arm.types

    def search(query: str, types: tuple[str, ...] | None) -> tuple[ReturnedSkill, ...]:
        wanted = set(types or allowed or ())
        if types and allowed:
            wanted = set(types) & set(allowed)
            if not wanted:
                return ()
        hits = retriever.search(query, k=k, types=wanted or None)
        return tuple(
            ReturnedSkill(
                id=hit.id,
                name=texts[hit.id][0],
                text=texts[hit.id][1],
                score=hit.score,
                rank=hit.rank,
            )
            for hit in hits
        )

    return search


@lru_cache(maxsize=32)
def _retriever(library_sha256: str, variant: str) -> Retriever:
    return Bm25(documents_of(library_sha256), variant=variant)


@lru_cache(maxsize=32)
def _texts(library_sha256: str) -> dict[str, tuple[str, str]]:
    """Return name and full Markdown body by slug: what a hit adds to the context."""
    return {v.skill.slug: (v.name, v.body) for v in versions_of(library_sha256)}
