"""What a program is asked to do in the sandbox, as the child understands it."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Sequence
from typing import Any


def call_all(
    *,
    program: str,
    entry: str,
    cases: Iterable[tuple[Sequence[Any], str]],
    prelude: str = "",
) -> dict[str, Any]:
    """Return the request to call ``entry`` once for each (arguments, view).

    Every case travels on its own, so that no two share an object.
    """
    return {
        "mode": "cases",
        "prelude": prelude,
        "program": program,
        "entry": entry,
        "cases": [(marshal.dumps(list(arguments), 4), view) for arguments, view in cases],
    }


def run_check(
    *, program: str, entry: str, test: str, apart: bool, prelude: str = ""
) -> dict[str, Any]:
    """Return the request to run a published check beside the program.

    ``apart`` keeps the two in processes of their own, between which plain values travel.
    """
    return {
        "mode": "asserts",
        "prelude": prelude,
        "program": program,
        "entry": entry,
        "test": test,
        "apart": apart,
    }


def record(*, test: str, prelude: str) -> dict[str, Any]:
    """Return the request to run an instrumented check; it reports its cases twice.

    The second time every argument is changed in place once it is reported.
    """
    return {"mode": "record", "prelude": prelude, "program": "", "test": test}


def maths(*, paths: Sequence[str]) -> dict[str, Any]:
    """Return the request to serve comparisons of mathematical answers until input ends."""
    return {"mode": "maths", "paths": list(paths)}
