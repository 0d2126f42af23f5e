"""A cell's pairs as the report counts them, a page at a time however many there are."""

from __future__ import annotations

import json
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery, TextField
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from runs.domain.effects import Transition
from runs.domain.report import FailurePolicy, PairRecord, transition_of
from runs.models import Arm, Attempt, Cell, Outcome, Pair
from runs.services.reporting import pair_records

# Pairs whose records are read at once, and how often at most for one page.
CHUNK = 200
CHUNKS = 5
CENSORED, PENDING = "censored", "pending"


@dataclass(frozen=True)
class PairsPage:
    """One page; ``next`` is the task and replicate after which the next one begins, or None."""

    records: tuple[PairRecord, ...]
    next: tuple[str, int] | None


def state_of(pair: PairRecord, policy: str) -> str:
    """Return the pair's transition under the failure policy, or ``censored`` or ``pending``."""
    if pair.pending:
        return PENDING
    transition = transition_of(pair, FailurePolicy(policy))
    return CENSORED if transition is None else transition.value


def pairs_page(
    cell: Cell,
    *,
    policy: str,
    transition: str = "",
    retrieved: str = "",
    skill: str = "",
    unequal: bool = True,
    descending: bool = False,
    after: tuple[str, int] | None = None,
    size: int,
) -> PairsPage:
    """Return the cell's pairs by task and replicate, from behind ``after`` on.

    The database narrows the pairs down as far as it can; what a pair counts as is then decided
    by the report's own rules. A page may hold fewer than ``size`` while ``next`` isn't None.

    Args:
        transition: a ``state_of``, or empty for all.
        retrieved: ``true``, ``false``, ``unknown`` or empty.
        skill: slug of a skill that was returned, or empty.
        unequal: whether there may be pairs whose arms weren't run with equal settings.
    """
    found = narrowed(
        Pair.objects.filter(cell=cell),
        transition=transition,
        retrieved=retrieved,
        skill=skill,
        unequal=unequal,
    )
    sign, side = ("-", "lt") if descending else ("", "gt")
    found = found.order_by(f"{sign}task__key", f"{sign}replicate")
    kept: list[PairRecord] = []
    position = after
    for _ in range(CHUNKS):
        rows = _behind(found, position, side).values_list("pk", "task__key", "replicate")
        limit = CHUNK if transition or retrieved or skill else size + 1
        chunk = list(rows[:limit])
        if not chunk:
            return PairsPage(tuple(kept), None)
        records = pair_records(cell, [pk for pk, _, _ in chunk])
        by_key = {(record.task, record.replicate): record for record in records}
        for _, task, replicate in chunk:
            record = by_key[task, replicate]
            if _matches(record, policy, transition, retrieved, skill):
                if len(kept) == size:
                    last = kept[-1]
                    return PairsPage(tuple(kept), (last.task, last.replicate))
                kept.append(record)
        if len(chunk) < limit:
            return PairsPage(tuple(kept), None)
        position = chunk[-1][1:]
    return PairsPage(tuple(kept), position)


def _behind(found: QuerySet[Pair], after: tuple[str, int] | None, side: str) -> QuerySet[Pair]:
    if after is None:
        return found
    task, replicate = after
    return found.filter(
        Q(**{f"task__key__{side}": task}) | Q(task__key=task, **{f"replicate__{side}": replicate})
    )


def narrowed(
    pairs: QuerySet[Pair],
    *,
    transition: str = "",
    retrieved: str = "",
    skill: str = "",
    unequal: bool = True,
) -> QuerySet[Pair]:
    """Return a superset of the pairs that match, told apart by what the database can see.

    Args as of ``pairs_page``.
    """
    if transition:
        outcomes = Outcome.objects.filter(pair=OuterRef("pk")).order_by("-pk")
        latest = outcomes.values("transition")[:1]
        if transition in set(Transition):
            # A failed call may count as wrong, which no outcome says.
            pairs = pairs.annotate(latest=Subquery(latest)).filter(
                Q(latest=transition) | Q(latest=None)
            )
        elif transition == CENSORED:
            left_out = ~Q(Exists(outcomes))
            if unequal:
                runs = Attempt.objects.filter(execution__pair_arms__pair=OuterRef("pk"))
                refused = runs.annotate(dropped=KT("trace__dropped_parameters"))
                left_out |= Q(Exists(refused.filter(dropped__contains='"')))
            pairs = pairs.filter(left_out)
    if retrieved or skill:
        attempts = Attempt.objects.filter(
            execution__pair_arms__pair=OuterRef("pk"), execution__pair_arms__arm=Arm.SE
        )
        if retrieved in ("true", "false"):
            pairs = pairs.filter(Exists(attempts.filter(retrieved=retrieved == "true")))
        if skill:
            # Its quoted slug stands in the JSON text of the list, escaped or not.
            texts = attempts.annotate(text=Cast("returned_ids", TextField()))
            quoted = Q(text__contains=json.dumps(skill)) | Q(
                text__contains=json.dumps(skill, ensure_ascii=False)
            )
            pairs = pairs.filter(Exists(texts.filter(quoted)))
    return pairs


def _matches(record: PairRecord, policy: str, transition: str, retrieved: str, skill: str) -> bool:
    known = {True: "true", False: "false", None: "unknown"}[record.retrieved]
    return (
        transition in ("", state_of(record, policy))
        and retrieved in ("", known)
        and (not skill or skill in record.skills)
    )
