"""What to do about a paused experiment, told from the reason that is stored with it."""

from __future__ import annotations

import math
import re
from datetime import datetime, timedelta

_RESUME = "Nothing that is recorded runs again."
# By what stands in the reason before a parenthesis, which may hold an endpoint's own words; the
# first that is found counts. Reasons are the sentences of an endpoint's faults (workbench.llm) and
# of the runner, or begin with the kind of such a fault, as those stored by earlier versions do.
# Beside each: what to do where it has been started, and where nothing has been yet.
_ADVICE: tuple[tuple[str, str, str], ...] = (
    (
        r"the environment variable (\w+) is not set",
        "Set {0} where the workers are started, restart them, then resume it. " + _RESUME,
        "Set {0} where the workers are started, restart them, then ask again.",
    ),
    (
        r"refused the key in \w+|refused a request without a key|holds no possible key"
        r"|\bwrong_key\b",
        "The endpoint refuses the key. Whoever runs the workbench puts a valid one into its "
        "environment variable and restarts the workers; then resume it. " + _RESUME,
        "The endpoint refuses the key. Whoever runs the workbench puts a valid one into its "
        "environment variable and restarts the workers; then ask again.",
    ),
    (
        r"the account at .+ has nothing left|\bquota_spent\b",
        "The account at the endpoint has nothing left. Top it up or raise its limit there, then "
        "resume it. " + _RESUME,
        "Top it up or raise its limit there, then ask again.",
    ),
    (
        r"doesn't serve '|a web page, not an API|\bunknown_model\b",
        "The endpoint doesn't serve this model now. If it will again, resume it then. If not, "
        "clone the experiment with another model: runs of two models can't be mixed.",
        "Choose a model that the endpoint serves, or ask again once it serves this one.",
    ),
    (
        r"runs in a row failed at|\bcircuit_open\b",
        "Several runs in a row failed at the endpoint. See whether it is up, then resume it; the "
        "first run tries it. " + _RESUME,
        "See whether the endpoint is up, then ask again.",
    ),
    (
        r"embedded model's server|\bnot_served\b",
        "The demonstration model isn't running. Start the workbench with it, then resume. "
        + _RESUME,
        "Start the workbench with the demonstration model, then ask again.",
    ),
    (
        r"the budget of .+ is reached",
        "What is recorded can be read. To go on, raise the budget below; resumed with the same "
        "budget it pauses again.",
        "Raise the budget, then ask again.",
    ),
    (
        r"of disk is free",
        "Make room on the disk of the data folder, then resume it. " + _RESUME,
        "Make room on the disk of the data folder, then ask again.",
    ),
    (
        r"\bisolat|sandbox",
        "This host can't run the answers' code safely. The command doctor says what is missing; "
        "mend that, then resume it. " + _RESUME,
        "The command doctor says what is missing; mend that, then ask again.",
    ),
    (
        r"quarantine",
        "A skill of its library is held back. Release it to go on with the same skills, or "
        "cancel this and clone it with a library without it.",
        "Release the skill, or choose a library without it.",
    ),
    (r"^paused ", "Resume it when it may go on. " + _RESUME, "Ask again."),
)
_OTHER = "See to the reason, then resume it. " + _RESUME


def advice_on(reason: str) -> str:
    """Return what to do about an experiment that is paused for ``reason``."""
    return _advice(reason)[0]


def advice_before(reason: str) -> str:
    """Return what to do about ``reason`` where nothing has been started yet."""
    return _advice(reason)[1]


def _advice(reason: str) -> tuple[str, str]:
    own = reason.partition(" (")[0]
    for pattern, started, before in _ADVICE:
        if found := re.search(pattern, own):
            return started.format(*found.groups()), before.format(*found.groups())
    return _OTHER, "Mend that, then ask again."


def patience(*, wait_s: float, detail: str, now: datetime) -> str:
    """Return what to do where an endpoint asks to wait and nothing has been started yet.

    Args:
        wait_s: seconds it asks for, above 0.
        detail: what it said.
    """
    minutes = math.ceil(wait_s / 60)
    if minutes < 120:
        span = "a minute's" if minutes == 1 else f"{minutes} minutes'"
    else:
        span = f"{math.ceil(minutes / 60)} hours'"
    # The next whole minute: asked at the very second it may still be too early.
    until = now + timedelta(seconds=wait_s + 60)
    day = "" if until.date() == now.date() else f"{until:%-d %b}, "
    return (
        f"The endpoint asks for {span} patience ({detail.rstrip('.')}). "
        f"Ask again after {day}{until:%H:%M} UTC."
    )


def is_budget(reason: str) -> bool:
    """Return whether the experiment is paused because a cap of its budget is reached."""
    return bool(re.search(r"the budget of .+ is reached", reason))
