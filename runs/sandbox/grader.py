"""Grade replies: programs in the sandbox, short answers in text, mathematics in its own process.

    with open_grader() as grader:
        result = grader.grade(kind="code", checker=payload, reply=reply)

A grader is opened once a worker process. Where no tier can be had or trusted,
code is refused with ``NoIsolation``; the other kinds are graded all the same.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from runs.domain import answers
from runs.domain.answers import BoxState
from runs.domain.checking import (
    Verdict,
    maths_certainly_differs,
    maths_text_matches,
    number_matches,
    text_matches,
)
from runs.domain.rationals import parse_rational
from runs.domain.values import decode
from runs.sandbox import hosts, programs, supervisor, tiers
from runs.sandbox.hosts import Obstacle
from runs.sandbox.jail import MIB, Limits
from runs.sandbox.judging import Details, clean, judge_cases, judge_check
from runs.sandbox.maths import Comparison, MathsProcess, as_boxed, as_gold
from runs.sandbox.packing import RequestTooLarge
from runs.sandbox.probes import ProbeReport, probe
from runs.sandbox.recording import HostFailed, ReferenceFailed, record_cases
from runs.sandbox.slots import NoSlot
from runs.sandbox.supervisor import Run
from runs.sandbox.tiers import Tier
from workbench.kernel.identity import sha256_of

__all__ = ["GradeResult", "Grader", "HostFailed", "NoIsolation", "ReferenceFailed", "open_grader"]

# Raised whenever a verdict could come out otherwise for the same payload and reply.
CHECKER_VERSION = "2"
ALLOW_UNSANDBOXED = "WORKBENCH_ALLOW_UNSANDBOXED"
_RECORDING = Limits(cpu_s=60, wall_s=180.0, result_bytes=16 * MIB)


class NoIsolation(Exception):
    """No tier on this host can run untrusted code; the text names each obstacle and its fix."""

    def __init__(self, obstacles: tuple[Obstacle, ...]) -> None:
        self.obstacles = obstacles
        lines = [f"tier {item.tier}: {item.reason}. {item.fix}" for item in obstacles]
        super().__init__("Programs can't be isolated on this host.\n" + "\n".join(lines))


@dataclass(frozen=True)
class GradeResult:
    """A checker's result for one reply.

    Attributes:
        verdict: see ``Verdict``; ``infra_error`` never counts and is tried again.
        details: plain JSON. ``answer`` is what was read out of the reply, or
            None; for programs also ``cases`` and the first failing ``case``
            (index, input, expected, got), ``message``, ``checker_isolation``.
        tier: the isolation the program ran under.
        checker_sha256: identity of payload and checker version together.
    """

    verdict: Verdict
    details: Details
    tier: str
    checker_sha256: str


@dataclass
class Grader:
    """Grades replies under one tier. Open it with ``open_grader``."""

    isolation: Tier | None
    obstacles: tuple[Obstacle, ...] = ()
    report: ProbeReport | None = None
    _maths: MathsProcess = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._maths = MathsProcess(self.isolation)

    @property
    def tier(self) -> str:
        """Return ``A``, ``A_user``, ``B``, ``unsandboxed`` or ``none``."""
        return self.isolation.name if self.isolation is not None else "none"

    @property
    def facts(self) -> dict[str, Any]:
        """Return what an execution records of its isolation, as plain JSON."""
        found = self.isolation
        ready = self.report.ready if self.report is not None else None
        return {
            "tier": self.tier,
            "kernel": platform.release(),
            "landlock": ready["landlock"] if ready else 0,
            "seccomp": bool(ready and ready["seccomp"]),
            "bwrap": found.bwrap if found is not None else None,
            "python": found.python if found is not None else None,
            "checker_version": CHECKER_VERSION,
        }

    def grade(self, *, kind: str, checker: Mapping[str, Any], reply: str) -> GradeResult:
        """Return the result of checking ``reply``.

        Args:
            kind: ``code``, ``maths``, ``exact``, ``choice`` or ``number``.
            checker: the task's checker payload, as ``runs.domain.tasks`` describes it.
            reply: all of the model's last message.

        Raises:
            NoIsolation: ``kind`` is code and no tier could be had.
            ValueError: the kind or the payload's mode is unknown.
        """
        if kind not in _KINDS:
            raise ValueError(f"no checker for kind {kind!r}")
        if kind == "code" and self.isolation is None:
            raise NoIsolation(self.obstacles)
        if len(reply) > answers.MAX_REPLY_CHARS:
            verdict, details = Verdict.NO_RESULT, _no_answer("the reply is too long to be read")
        else:
            verdict, details = _KINDS[kind](self, checker, reply)
        return GradeResult(
            verdict=verdict,
            details=details,
            tier=self.tier,
            checker_sha256=checker_sha256(kind=kind, checker=checker),
        )

    def record_cases(self, *, checker: Mapping[str, Any], reference: str) -> dict[str, Any]:
        """Return a code checker with expected values, worked out once in the sandbox.

        ``asserts`` become ``cases`` where the check provably splits. The others
        keep their mode and get ``checker_isolation``: ``two_processes`` where the
        reference passes with check and program apart, else ``in_process``.
        ``inputs`` become ``cases`` with what the reference returns. ``cases``
        come back as they are.

        Raises:
            NoIsolation: no tier could be had.
            ReferenceFailed: the reference does not pass, so the task is unusable.
            HostFailed: this host could not run it, which says nothing about the task.
        """
        if self.isolation is None:
            raise NoIsolation(self.obstacles)
        return record_cases(
            checker=checker,
            reference=reference,
            run=lambda request: self._run(request, _RECORDING),
            passes=lambda payload: self._grade_program(payload, reference),
        )

    def close(self) -> None:
        """End what the grader keeps running."""
        self._maths.close()

    def __enter__(self) -> Self:
        """Return the grader itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the grader."""
        self.close()

    # -- programs --------------------------------------------------------------------------

    def _code(self, checker: Mapping[str, Any], reply: str) -> tuple[Verdict, Details]:
        program = answers.extract_code(reply)
        if not program:
            return Verdict.NO_RESULT, _no_answer("the reply holds no program")
        verdict, details = self._grade_program(checker, program)
        return verdict, {"answer": clean_answer(program), **details}

    def _grade_program(self, checker: Mapping[str, Any], program: str) -> tuple[Verdict, Details]:
        mode = checker["mode"]
        if mode not in ("cases", "asserts"):
            raise ValueError(f"a checker of mode {mode!r} must be recorded before it can grade")
        common = {
            "program": program,
            "entry": checker["entry"],
            "prelude": checker.get("prelude", ""),
        }
        limits = _limits(checker)
        isolation = "process"
        if mode == "asserts":
            isolation = checker.get("checker_isolation", "in_process")
        try:
            if mode == "cases":
                cases = [
                    ([decode(value) for value in case["args"]], case.get("view", ""))
                    for case in checker["cases"]
                ]
                run = self._run(programs.call_all(cases=cases, **common), limits)
                verdict, details = judge_cases(run, checker)
            else:
                apart = isolation == "two_processes"
                request = programs.run_check(test=checker["test"], apart=apart, **common)
                verdict, details = judge_check(self._run(request, limits))
        except NoSlot as error:
            return Verdict.INFRA_ERROR, {"message": str(error)}
        except RequestTooLarge as error:
            return Verdict.NO_RESULT, {"message": str(error)}
        details["checker_isolation"] = isolation
        return verdict, details

    def _run(self, request: Mapping[str, Any], limits: Limits) -> Run:
        assert self.isolation is not None
        return supervisor.run(self.isolation.jail, request, limits)

    # -- text ------------------------------------------------------------------------------

    def _mathematics(self, checker: Mapping[str, Any], reply: str) -> tuple[Verdict, Details]:
        text = answers.strip_reasoning(reply)
        box = answers.last_box(text)
        answer = box.content if box.state is BoxState.COMPLETE else text
        if box.state is BoxState.UNTERMINATED or not answer:
            return Verdict.NO_RESULT, _no_answer("the reply holds no finished answer")
        gold, details = str(checker["gold"]), {"answer": clean_answer(answer)}
        wanted, given = parse_rational(gold), parse_rational(answer)
        if wanted is not None and given is not None:
            return _pass_if(wanted == given), {**details, "method": "rational"}
        if maths_text_matches(gold, answer):
            return Verdict.PASS, {**details, "method": "text"}
        if maths_certainly_differs(gold, answer):
            return Verdict.FAIL, {**details, "method": "text"}
        said = self._maths.compare(
            gold=as_gold(gold),
            answer=as_boxed(answer) if box.state is BoxState.COMPLETE else answer,
        )
        return _MATHS_VERDICTS[said], {**details, "method": "math_verify"}

    def _exact(self, checker: Mapping[str, Any], reply: str) -> tuple[Verdict, Details]:
        answer = answers.extract_text(reply)
        if answer is None:
            return Verdict.NO_RESULT, _no_answer("the reply holds no answer")
        return _pass_if(text_matches(checker["answers"], answer)), {"answer": clean_answer(answer)}

    def _choice(self, checker: Mapping[str, Any], reply: str) -> tuple[Verdict, Details]:
        answer = answers.extract_choice(reply, checker["options"])
        if answer is None:
            return Verdict.NO_RESULT, _no_answer("the reply chooses none of the options, or two")
        return _pass_if(answer == checker["answer"]), {"answer": answer}

    def _number(self, checker: Mapping[str, Any], reply: str) -> tuple[Verdict, Details]:
        answer = answers.extract_number(reply)
        if answer is None:
            return Verdict.NO_RESULT, _no_answer("the reply holds no number")
        return _pass_if(number_matches(checker, answer)), {"answer": clean_answer(str(answer))}


_Check = Callable[[Grader, Mapping[str, Any], str], tuple[Verdict, Details]]
_KINDS: Mapping[str, _Check] = {
    "code": Grader._code,
    "maths": Grader._mathematics,
    "exact": Grader._exact,
    "choice": Grader._choice,
    "number": Grader._number,
}
_MATHS_VERDICTS = {
    Comparison.EQUAL: Verdict.PASS,
    Comparison.DIFFERENT: Verdict.FAIL,
    Comparison.TIMEOUT: Verdict.TIMEOUT,
    Comparison.UNAVAILABLE: Verdict.INFRA_ERROR,
}


def open_grader(*, allow_unsandboxed: bool = False) -> Grader:
    """Return a grader under the strongest tier that can be built here and withstands its probes.

    A tier that was built but let a probe through ends the search: what leaks
    once is not trusted with less. ``allow_unsandboxed`` together with the
    variable WORKBENCH_ALLOW_UNSANDBOXED=1 then runs programs with limits alone.
    """
    obstacles: list[Obstacle] = []
    for found in tiers.candidates():
        if isinstance(found, Obstacle):
            obstacles.append(found)
            continue
        report = probe(found)
        if report.built and not report.reason:
            return Grader(isolation=found, obstacles=tuple(obstacles), report=report)
        if report.built:
            fix = "Report it with the output of `python3 manage.py doctor`; nothing is run."
            obstacles.append(Obstacle(found.name, f"a probe broke out ({report.reason})", fix))
            break
        fix = hosts.namespace_fix() if found.name != "B" else hosts.LANDLOCK
        obstacles.append(Obstacle(found.name, clean(report.reason), fix))
    if allow_unsandboxed and os.environ.get(ALLOW_UNSANDBOXED) == "1" and hosts.on_linux():
        return Grader(isolation=tiers.unsandboxed(), obstacles=tuple(obstacles))
    return Grader(isolation=None, obstacles=tuple(obstacles))


def checker_sha256(*, kind: str, checker: Mapping[str, Any]) -> str:
    """Return the identity of a checker: its payload and the version of the code that applies it."""
    return sha256_of({"kind": kind, "checker": dict(checker), "version": CHECKER_VERSION})


def clean_answer(answer: str) -> str:
    """Return an extracted answer fit for storage; unlike messages it is kept whole."""
    return answer.encode("utf-8", "replace").decode("utf-8").replace("\0", "\\x00")


def _limits(checker: Mapping[str, Any]) -> Limits:
    """Return the limits of one program: the task's processor time, twice that and 5 s on the clock.

    A program mostly runs out of processor time; the clock is for those that
    sleep. The result channel has room for twice the expected values and 1 MiB.
    """
    cpu_s = max(1, math.ceil(checker.get("timeout_s", 10)))
    expected = len(json.dumps([case["expected"] for case in checker.get("cases", ())]))
    return Limits(cpu_s=cpu_s, wall_s=2.0 * cpu_s + 5.0, result_bytes=MIB + 2 * expected)


def _pass_if(right: bool) -> Verdict:
    return Verdict.PASS if right else Verdict.FAIL


def _no_answer(message: str) -> Details:
    return {"answer": None, "message": message}
