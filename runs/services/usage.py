"""What an experiment has used: calls, tokens and cost, from the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q, Sum

from runs.domain.plan import Budget
from runs.models import Experiment
from runs.selectors import executions_of
from workbench.models import Call, CallState


@dataclass(frozen=True)
class Usage:
    """Totals over an experiment's calls; None is unknown, never 0.

    Attributes:
        calls: requests sent, whatever came of them.
        tokens: tokens in and out that endpoints reported.
        calls_without_tokens: completed calls whose endpoint reported none.
        cost: in the currency of the configured prices; None as soon as one answered
            call has no known cost.
        least_cost: the sum of the known costs.
    """

    calls: int
    tokens: int | None
    calls_without_tokens: int
    cost: float | None
    least_cost: float


def usage_of(experiment: Experiment) -> Usage:
    """Return what the experiment's calls have used so far."""
    calls = Call.objects.filter(subject__in=executions_of(experiment).values("uid"))
    unreported = Q(state=CallState.COMPLETED) & (Q(tokens_in=None) | Q(tokens_out=None))
    totals = calls.aggregate(
        calls=Count("pk"),
        sum_in=Sum("tokens_in"),
        sum_out=Sum("tokens_out"),
        sum_cost=Sum("cost"),
        unpriced=Count("pk", filter=Q(state=CallState.COMPLETED, cost=None)),
        unreported=Count("pk", filter=unreported),
    )
    known = totals["sum_in"] is not None or totals["sum_out"] is not None
    return Usage(
        calls=totals["calls"],
        tokens=(totals["sum_in"] or 0) + (totals["sum_out"] or 0) if known else None,
        calls_without_tokens=totals["unreported"],
        cost=None if totals["unpriced"] else totals["sum_cost"],
        least_cost=totals["sum_cost"] or 0.0,
    )


def budget_of(experiment: Experiment) -> Budget:
    """Return the caps in force: the plan's, until somebody changed them."""
    return Budget(**(experiment.budget or experiment.spec["budget"]))


def budget_reached(experiment: Experiment) -> str | None:
    """Return which cap of the budget has been reached, as a sentence, or None."""
    budget = budget_of(experiment)
    return None if budget == Budget() else reached(budget, usage_of(experiment))


def reached(budget: Budget, used: Usage) -> str | None:
    """Return which cap of ``budget`` has been reached, as a sentence, or None."""
    for name, cap, amount in (
        ("calls", budget.calls, used.calls),
        ("tokens", budget.tokens, used.tokens),
        ("cost", budget.cost, used.least_cost),
    ):
        if cap is not None and amount is not None and amount >= cap:
            return f"the budget of {cap:g} {name} is reached ({amount:g} used)"
    return None
