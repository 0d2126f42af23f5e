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
from django.db.models import Count, Max
from django.utils import timezone

from runs.models import Attempt, Cell, Experiment, Grade, Outcome, PairArm, Snapshot
from runs.selectors import States
from runs.services.reporting import inputs_of, report_of, stored_report
from runs.services.skill_totals import count_skills
from workbench.kernel.identity import sha256_of

# Up to so many executions are counted while a page waits: about a tenth of a second.
COUNTED_AT_ONCE = 2_000
# A count is made again at most this often, and never takes more than this share of the time.
COUNT_EVERY = timedelta(seconds=15)
SHARE_OF_TIME = 0.05
SKILLS = "skills"


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
    found = _standing(
        _key_of(experiment), inputs.sha256, lambda: report_of(experiment, inputs), wait=False
    )
    return replace(found, states=inputs.states)


def standing_skill_totals() -> Standing:
    """Return what came of the pairs that skills were returned in (``skill_totals``)."""
    few = PairArm.objects.order_by()[: COUNTED_AT_ONCE + 1].count() <= COUNTED_AT_ONCE
    return _standing(SKILLS, _skills_mark(), lambda: count_skills().to_json(), wait=few)


def refresh_oldest(*, now: datetime) -> bool:
    """Count again the oldest snapshot that is due and out of date; return whether one was."""
    for snapshot in Snapshot.objects.defer("result").order_by("at", "pk"):
        pause = max(COUNT_EVERY, timedelta(seconds=snapshot.seconds / SHARE_OF_TIME))
        if now < snapshot.at + pause:
            continue
        if snapshot.key == SKILLS:
            mark = _skills_mark()
            if mark != snapshot.mark:
                _count(SKILLS, mark, lambda: count_skills().to_json())
                return True
        elif _refresh_report(snapshot):
            return True
    return False


def _refresh_report(snapshot: Snapshot) -> bool:
    slug = snapshot.key.removeprefix("report:")
    experiment = Experiment.objects.filter(slug=slug).first()
    inputs = inputs_of(experiment) if experiment else None
    if experiment is None or inputs is None or inputs.sha256 == snapshot.mark:
        return False
    report = _count(snapshot.key, inputs.sha256, lambda: report_of(experiment, inputs))
    if all(cell["complete"] for cell in report["cells"]):
        snapshot.delete()  # the complete report is stored for good
    return True


def _key_of(experiment: Experiment) -> str:
    return f"report:{experiment.slug}"


def _standing(key: str, mark: str, count: Callable[[], Any], *, wait: bool) -> Standing:
    """Return the snapshot if it is of these rows; else count, or show it with its moment."""
    snapshot = Snapshot.objects.filter(key=key).first()
    if snapshot is not None and snapshot.mark == mark:
        return Standing(snapshot.result)
    if snapshot is None or wait:
        return Standing(_count(key, mark, count))
    return Standing(snapshot.result, as_of=snapshot.at)


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
        Snapshot.objects.update_or_create(key=key, defaults=values)
    return result


def _skills_mark() -> str:
    """Return what changes with every row that skill totals are counted from, in few look-ups."""
    last = [
        model.objects.aggregate(last=Max("pk"))["last"]
        for model in (Attempt, Grade, Outcome, PairArm)
    ]
    return sha256_of(["skills/1", last, Cell.objects.aggregate(n=Count("pk"))["n"]])
