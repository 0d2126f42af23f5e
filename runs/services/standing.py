"""Figures over many rows as pages show them: exact where that is quick, else with their moment.

A report of a finished experiment is stored and read back. What still changes is counted when it is
asked for as long as that is quick; above that the last count is shown with the time it was made,
and the sweep counts again. Nothing here is a counter: every figure comes from the rows each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Count, Sum
from django.utils import timezone

from runs.models import Arm, Attempt, Cell, Execution, Experiment, Grade, PairArm, Tally
from runs.selectors import States
from runs.services.reporting import inputs_of, report_of, stored_report
from runs.services.skill_totals import being_pushed, count_skills
from workbench.kernel.identity import sha256_of
from workbench.kernel.leases import LeaseState

# Up to so many executions are counted while a page waits: about a tenth of a second.
COUNTED_AT_ONCE = 2_000
# A count is made again at most this often, and never takes more than this share of the time.
COUNT_EVERY = timedelta(seconds=15)
SHARE_OF_TIME = 0.05
SKILLS, REPORT = "skills", "report:"


@dataclass(frozen=True)
class Standing:
    """Figures and, where rows have come since they were counted, when that was.

    Attributes:
        states: of a report, where the experiment's executions stand now.
    """

    result: Any
    as_of: datetime | None = None
    states: States | None = None


def standing_report(experiment: Experiment) -> Standing:
    """Return the experiment's report as pages show it (see ``reporting.report_of``)."""
    inputs = inputs_of(experiment)
    stored = stored_report(experiment, inputs)
    if stored is not None:
        return Standing(stored, states=inputs.states)
    if inputs.states.total <= COUNTED_AT_ONCE:
        return Standing(report_of(experiment, inputs), states=inputs.states)
    found = _standing(_key_of(experiment), inputs.sha256, lambda: report_of(experiment, inputs))
    return replace(found, states=inputs.states)


def standing_skill_totals() -> Standing:
    """Return what came of the pairs that skills were returned in (``skill_totals``)."""
    if _few_arms():
        return Standing(count_skills().to_json())
    return _standing(SKILLS, _skills_mark(), lambda: count_skills().to_json())


def refresh_oldest(*, now: datetime) -> bool:
    """Count what was never counted, or the oldest count that is due; return whether one was."""
    if (experiment := _uncounted()) is not None:
        _count_report(experiment)
        return True
    if not Tally.objects.filter(key=SKILLS).exists() and not _few_arms():
        _count(SKILLS, _skills_mark(), lambda: count_skills().to_json())
        return True
    for tally in Tally.objects.defer("result").order_by("at", "pk"):
        pause = max(COUNT_EVERY, timedelta(seconds=tally.seconds / SHARE_OF_TIME))
        if now >= tally.at + pause and _refresh(tally):
            return True
    return False


def _refresh(tally: Tally) -> bool:
    """Count the tally again unless it is of the rows there are; return whether it was."""
    if tally.key == SKILLS:
        mark = _skills_mark()
        if mark == tally.mark:
            return False
        _count(SKILLS, mark, lambda: count_skills().to_json())
        return True
    slug = tally.key.removeprefix(REPORT)
    experiment = Experiment.objects.filter(slug=slug).first()
    if experiment is None or inputs_of(experiment).sha256 == tally.mark:
        return False
    _count_report(experiment)
    return True


def _uncounted() -> Experiment | None:
    """Return a large experiment of which there is no report of any moment, or None."""
    large = (
        Experiment.objects.filter(reports=None)
        .annotate(pairs=Count("cells__pairs"))
        .filter(pairs__gt=COUNTED_AT_ONCE // len(Arm))
        .order_by("pk")
    )
    counted = set(Tally.objects.values_list("key", flat=True))
    return next((one for one in large if _key_of(one) not in counted), None)


def _count_report(experiment: Experiment) -> None:
    inputs = inputs_of(experiment)
    key = _key_of(experiment)
    _count(key, inputs.sha256, lambda: report_of(experiment, inputs))
    if stored_report(experiment, inputs) is not None:  # a complete one is kept for good
        Tally.objects.filter(key=key).delete()


def _few_arms() -> bool:
    return PairArm.objects.order_by()[: COUNTED_AT_ONCE + 1].count() <= COUNTED_AT_ONCE


def _key_of(experiment: Experiment) -> str:
    return f"{REPORT}{experiment.slug}"


def _standing(key: str, mark: str, count: Callable[[], Any]) -> Standing:
    """Return the tally if it is of these rows; else count, or show it with its moment."""
    tally = Tally.objects.filter(key=key).first()
    if tally is not None and tally.mark == mark:
        return Standing(tally.result)
    if tally is None:
        return Standing(_count(key, mark, count))
    return Standing(tally.result, as_of=tally.at)


def _count(key: str, mark: str, count: Callable[[], Any]) -> Any:
    began, at = time.monotonic(), timezone.now()
    result = count()
    values = {
        "mark": mark,
        "seconds": time.monotonic() - began,
        "at": at,
        "result": result,
    }
    with transaction.atomic():
        Tally.objects.update_or_create(key=key, defaults=values)
    return result


def _skills_mark() -> str:
    """Return what changes with every row that skill totals are counted from, in few look-ups.

    The rows are only ever added, so their number tells of each: one that another transaction
    took a key for before, and commits now, has no higher key than those there were. A run that
    died may be tried again, and then has no result any more.
    """
    numbers = [model.objects.order_by().count() for model in (Attempt, Grade, PairArm, Cell)]
    dead = Execution.objects.filter(state=LeaseState.DEAD).aggregate(
        number=Count("pk"), keys=Sum("pk")
    )
    died = [dead["number"], int(dead["keys"] or 0)]
    return sha256_of(["skills/2", numbers, died, being_pushed().count()])
