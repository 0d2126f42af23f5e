"""Telling leads and admins where an experiment stopped or ended, why, and what to do next."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.urls import reverse

from runs.models import Experiment, Pair
from workbench.kernel.leases import LeaseState
from workbench.notices import NoticeKind, notify

# What stands after the reason of a pause, by kind.
_NEXT = {
    NoticeKind.EXPERIMENT_PAUSED: "See to the reason, then resume it on its page.",
    NoticeKind.BUDGET_REACHED: (
        "What is recorded can be read. To go on, give it a larger budget on its page; resumed as "
        "it is, it pauses again."
    ),
}
_LONGEST_REASON = 1_000


def tell_paused(
    experiment: Experiment, *, kind: NoticeKind, transition: str, actor: Any, at: datetime
) -> None:
    """Tell that the experiment was paused, with the reason stored in it.

    Args:
        transition: what names this change of status and no other.
    """
    reason = _sentence(experiment.reason)
    if experiment.reason.startswith("paused "):  # a person did it, and that is all there is to say
        text = f"{reason[0].upper()}{reason[1:]} Resume it on its page when it may go on."
    else:
        text = f"Paused: {reason} {_NEXT[kind]}"
    _tell(experiment, kind, transition, text, actor, at)


def tell_ended(experiment: Experiment, *, transition: str, at: datetime) -> None:
    """Tell that the experiment finished, and how many pairs have no result.

    Args:
        transition: what names this change of status and no other.
    """
    pairs = Pair.objects.filter(cell__experiment=experiment)
    total = pairs.count()
    lost = pairs.filter(arms__execution__state=LeaseState.DEAD).distinct().count()
    if not lost:
        text = f"Finished: {_pairs(total)} ended. Read what the skills did on its page."
        _tell(experiment, NoticeKind.EXPERIMENT_FINISHED, transition, text, None, at)
        return
    verb = "has" if lost == 1 else "have"
    text = (
        f"Finished, but {lost} of {_pairs(total)} {verb} no result: a run of each failed in all "
        "of its tries. See the causes on its page, mend them, then retry the failed runs there."
    )
    _tell(experiment, NoticeKind.EXPERIMENT_FAILED, transition, text, None, at)


def _tell(
    experiment: Experiment,
    kind: NoticeKind,
    transition: str,
    text: str,
    actor: Any,
    at: datetime,
) -> None:
    notify(
        kind=kind,
        event=f"experiment {transition}",
        subject=experiment.slug,
        text=text,
        path=reverse("experiment", kwargs={"slug": experiment.slug}),
        actor=actor,
        at=at,
    )


def _pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"


def _sentence(reason: str) -> str:
    """Return the reason as one sentence."""
    short = reason.strip()[:_LONGEST_REASON] or "nobody said why"
    return short if short.endswith((".", "!", "?")) else short + "."
