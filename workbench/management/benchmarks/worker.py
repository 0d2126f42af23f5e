"""One side of a comparison: a process that times its own work and speaks JSON lines.

Standard library only, as it also runs in the peers' environment. The first
line in holds the job's data and is answered by a version; each further line is
a round's number, answered by what the round took. Start-up, imports and the
pipe are therefore in no figure.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """What one round took.

    Attributes:
        seconds: a piece of work.
        result: what came out, as plain JSON, to be compared with the other side's.
    """

    seconds: float
    result: Any


@dataclass(frozen=True)
class Job:
    """A prepared job: who does it, and one round of it by the round's number."""

    version: str
    run: Callable[[int], Turn]


def serve(jobs: Mapping[str, Callable[[Data], Job]]) -> None:
    """Do the job that the command line names until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints
    try:
        job = jobs[sys.argv[1]](json.loads(sys.stdin.readline()))
        _say(answers, {"version": job.version})
        for line in sys.stdin:
            turn = job.run(int(line))
            _say(answers, {"seconds": turn.seconds, "result": turn.result})
    except Exception as error:
        traceback.print_exc()
        _say(answers, {"error": f"{type(error).__name__}: {error}"})


def timed(work: Callable[[], Any], *, pieces: int, repeats: int = 1) -> Turn:
    """Return the time of one of ``pieces`` that ``work`` does, over ``repeats`` of it."""
    began = time.perf_counter()
    for _ in range(repeats):
        result = work()
    return Turn((time.perf_counter() - began) / (pieces * repeats), result)


def _say(answers: Any, message: Mapping[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()
