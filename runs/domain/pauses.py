"""What to do about a paused experiment, told from the reason that is stored with it."""

from __future__ import annotations

import re

_RESUME = "Nothing that is recorded runs again."
# By what stands in the reason; the first that is found counts. Reasons name the kind of an
# endpoint's fault (see workbench.kernel.chat.EndpointFault) or are the runner's own sentences.
_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"wrong_key: the environment variable (\w+) is not set",
        "Set {0} where the workers are started, restart them, then resume it. " + _RESUME,
    ),
    (
        r"\bwrong_key\b",
        "The endpoint refuses the key. Whoever runs the workbench puts a valid one into its "
        "environment variable and restarts the workers; then resume it. " + _RESUME,
    ),
    (
        r"\bquota_spent\b",
        "The account at the endpoint has nothing left. Top it up or raise its limit there, then "
        "resume it. " + _RESUME,
    ),
    (
        r"\bunknown_model\b",
        "The endpoint doesn't serve this model now. If it will again, resume it then. If not, "
        "clone the experiment with another model: runs of two models can't be mixed.",
    ),
    (
        r"\bcircuit_open\b",
        "Several runs in a row failed at the endpoint. See whether it is up, then resume it; the "
        "first run tries it. " + _RESUME,
    ),
    (
        r"\bnot_served\b|embedded model's server",
        "The demonstration model isn't running. Start the workbench with it, then resume. "
        + _RESUME,
    ),
    (
        r"the budget of .+ is reached",
        "What is recorded can be read. To go on, raise the budget below; resumed with the same "
        "budget it pauses again.",
    ),
    (
        r"of disk is free",
        "Make room on the disk of the data folder, then resume it. " + _RESUME,
    ),
    (
        r"\bisolat|sandbox",
        "This host can't run the answers' code safely. The command doctor says what is missing; "
        "mend that, then resume it. " + _RESUME,
    ),
    (
        r"quarantine",
        "A skill of its library is held back. Release it to go on with the same skills, or "
        "cancel this and clone it with a library without it.",
    ),
    (r"^paused ", "Resume it when it may go on. " + _RESUME),
)
_OTHER = "See to the reason, then resume it. " + _RESUME


def advice_on(reason: str) -> str:
    """Return what to do about an experiment that is paused for ``reason``."""
    for pattern, advice in _ADVICE:
        if found := re.search(pattern, reason):
            return advice.format(*found.groups())
    return _OTHER


def advice_before(reason: str) -> str:
    """Return what to do about ``reason`` where nothing has been started yet."""
    if found := re.search(r"the environment variable (\w+) is not set", reason):
        return f"Set {found[1]} where the workers are started, restart them, then ask again."
    if "unknown_model" in reason:
        return "Choose a model that the endpoint serves, or ask again once it serves this one."
    return "Mend that, then ask again."


def is_budget(reason: str) -> bool:
    """Return whether the experiment is paused because a cap of its budget is reached."""
    return bool(re.search(r"the budget of .+ is reached", reason))
