"""Mathematical answers: the dev cases, false accepts, deadlines; and the other short answers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from runs.domain.checking import Verdict
from runs.sandbox import grader as grading
from runs.sandbox.grader import Grader, checker_sha256
from runs.sandbox.maths import Comparison, MathsProcess, _Child
from runs.sandbox.proctree import descendants

pytestmark = pytest.mark.xdist_group("sandbox")


def equal(grader: Grader, gold: str, reply: str) -> bool:
    result = grader.grade(kind="maths", checker={"gold": gold}, reply=reply)
    assert result.verdict in (Verdict.PASS, Verdict.FAIL, Verdict.NO_RESULT), result
    return result.verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        (r"$\frac{1}{3^{60}}$", r"$\boxed{\frac{1}{3^{61}}}$", False),
        (r"$\frac{1}{90!}$", r"$\boxed{\frac{1}{91!}}$", False),
        (r"$\frac{1}{3^{60}}$", r"$\boxed{3^{-60}}$", True),
    ],
)
def test_case_B01(grader: Grader, gold: str, reply: str, same: bool) -> None:
    assert equal(grader, gold, reply) is same
    # The same values out of a box, where another reader meets them.
    assert equal(grader, gold, "So it is " + reply.replace(r"\boxed", "")) is same


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        (r"$2 < x \le 9$", r"$\boxed{(2,9]}$", True),
        (r"$2 < x \le 9$", r"$\boxed{(2,9)}$", False),
        ("$[2,9)$", r"$\boxed{(2,9)}$", False),
        ("$[2,9)$", r"so x must lie in \boxed{[2,9)}", True),
    ],
)
def test_case_B03(grader: Grader, gold: str, reply: str, same: bool) -> None:
    assert equal(grader, gold, reply) is same


@pytest.mark.parametrize(
    ("gold", "reply", "same"),
    [
        ("$14$", r"I first wrote \boxed{12}, but rechecking the sum gives \boxed{14}.", True),
        ("$12$", r"I first wrote \boxed{12}, but rechecking the sum gives \boxed{14}.", False),
        (r"$\frac{1}{\sqrt{2}}$", r"so \boxed{\frac{1}{\sqrt{2}}}", True),
        ("$7$", r"earlier \boxed{7}, finally \boxed{8", False),
    ],
)
def test_case_B05(grader: Grader, gold: str, reply: str, same: bool) -> None:
    assert equal(grader, gold, reply) is same


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        # numbers that vanish in fifteen decimals
        (r"\frac{\sqrt{2}}{10^{20}}", r"\frac{\sqrt{3}}{10^{20}}", False),
        (r"\frac{\pi}{90!}", r"\frac{\pi}{91!}", False),
        ("e^{-100}", "e^{-101}", False),
        ("e^{-100}", r"\frac{1}{e^{100}}", True),
        (r"\frac{x}{3^{60}}", r"\frac{x}{3^{61}}", False),
        (r"\frac{\sqrt2}{10^7}", "0.0000002", False),
        (r"\{\frac{\pi}{90!}, 1\}", r"\{\frac{\pi}{91!}, 1\}", False),
        (r"(\frac{\pi}{90!}, 1)", r"(\frac{\pi}{91!}, 1)", False),
        # shapes and ends
        ("(1,2)", r"\{1,2\}", False),
        (r"\{1,2\}", "(2,1)", False),
        (r"\{1,2,3\}", "3,2,1", True),
        ("(1,2,3)", "(3,2,1)", False),
        ("(1,2)", "[1,2]", False),
        ("x > 3", r"(3,\infty)", True),
        ("x > 3", r"[3,\infty)", False),
        ("2 < x \\le 9", "2 < x < 9", False),
        # units
        (r"5\text{ cm}", r"5\text{ m}", False),
        (r"5\text{ cm}", r"5\text{ centimeters}", True),
        (r"5\text{ cm}", "5", True),
        # what must go on working
        (r"\sqrt{2}", r"2^{\frac{1}{2}}", True),
        (r"\sqrt{2}", "1.414214", True),
        (r"\sqrt{2}", "1.414", False),
        (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}", True),
        ("x+1", "y+1", False),
        ("x=5", "5", True),
        ("3+4i", "4i+3", True),
        (r"\text{Evelyn}", "Evelyn", True),
        (r"1\frac{1}{2}", r"\frac{3}{2}", True),
        ("50\\%", r"\frac{1}{2}", True),
        ("2^10", "1024", True),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", True),
        # exactly, where both are rational
        ("0.333333", r"\frac{1}{3}", False),
        ("1,000", "1000", True),
        # a point is no number, whichever of the two is gold
        ("(3,125)", "3125", False),
        ("3125", "(3,125)", False),
        ("(1,234)", "(1,235)", False),
        ("(3,125)", "(3, 125)", True),
        (r"(\frac{1}{2},3)", "(0.5,3)", True),
        ("3{,}125", "3125", True),
        # raised digits are powers
        ("102", "10²", False),
        ("100", "10²", True),
        ("32", "3²", False),
        ("210", "2¹⁰", False),
        ("x2", "x²", False),
        ("x^2+1", "1+x²", True),
        (r"\frac{1}{x}", "x⁻¹", True),
        (r"\frac{3}{2}", "1½", True),
        # number bases
        ("4343_6", "4343_7", False),
        ("4343_{6}", "4343_{7}", False),
        ("1010_2", "1010₃", False),
        ("1010_2", "1011_2", False),
        ("4343_6", "4343_{6}", True),
        ("2516_8", "2516", True),
        ("a_{1}+a_{2}", "a_2+a_1", True),
        (r"\log_2 8", "3", True),
        # factorials
        ("5!", "5", False),
        ("120", "5!", True),
    ],
)
def test_accepts_and_refusals(grader: Grader, gold: str, answer: str, same: bool) -> None:
    assert equal(grader, gold, rf"\boxed{{{answer}}}") is same


def test_details_and_order_of_methods(grader: Grader) -> None:
    def method(gold: str, reply: str) -> Any:
        result = grader.grade(kind="maths", checker={"gold": gold}, reply=reply)
        return result.details["answer"], result.details.get("method")

    assert method("2", r"<think>\boxed{3}</think> \boxed{2}") == ("2", "rational")
    assert method("x+1", r"\boxed{x + 1}") == ("x + 1", "text")
    assert method("x+1", r"\boxed{1 + x}") == ("1 + x", "math_verify")
    none = grader.grade(kind="maths", checker={"gold": "2"}, reply=r"\boxed{2")
    assert (none.verdict, none.details["answer"]) == (Verdict.NO_RESULT, None)
    for empty in ("", r"\boxed{}", r"<think>\boxed{2}</think>"):
        assert grader.grade(kind="maths", checker={"gold": "2"}, reply=empty).verdict == "no_result"


@pytest.fixture(scope="module")
def process(grader: Grader) -> Iterator[MathsProcess]:
    maths = MathsProcess(grader.isolation, deadline_s=1.0)
    yield maths
    maths.close()


def test_an_answer_that_hangs_is_cut_off_and_the_next_one_served(process: MathsProcess) -> None:
    assert process.compare(gold="$x$", answer=r"\boxed{x}") == Comparison.EQUAL
    first = process._child
    started = time.monotonic()
    hang = r"\boxed{9^{9^{9^{9}}}}"
    assert process.compare(gold=r"$\sqrt{5}$", answer=hang) == Comparison.TIMEOUT
    assert time.monotonic() - started < 10
    assert process._child is None
    assert process.compare(gold="$x$", answer=r"\boxed{x}") == Comparison.EQUAL
    assert process._child is not first


def test_a_process_killed_by_the_host_is_started_again(process: MathsProcess) -> None:
    assert process.compare(gold="$x$", answer=r"\boxed{x}") == Comparison.EQUAL
    assert process._child is not None
    process._child._process.kill()
    process._child._process.wait()
    assert process.compare(gold="$x$", answer=r"\boxed{y}") == Comparison.DIFFERENT


def test_a_child_that_gets_no_processor_time_is_the_hosts_fault(grader: Grader) -> None:
    maths = MathsProcess(grader.isolation, deadline_s=0.2)
    try:
        assert maths.compare(gold="$x$", answer=r"\boxed{x}") == Comparison.EQUAL
        assert maths._child is not None
        for pid in descendants(maths._child._process.pid):
            os.kill(pid, signal.SIGSTOP)
        # Longer than a pipe holds: its parent must not wait to be read.
        answer = rf"\boxed{{y{'+y' * 100_000}}}"
        assert maths.compare(gold="$x$", answer=answer) == Comparison.UNAVAILABLE
        assert maths._child is None
    finally:
        maths.close()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        # as the host's out-of-memory killer ends it
        (signal.SIGKILL, Comparison.UNAVAILABLE),
        # as a library ends itself that gets no more memory
        (signal.SIGABRT, Comparison.TIMEOUT),
        (signal.SIGSEGV, Comparison.TIMEOUT),
    ],
)
def test_dying_twice(
    process: MathsProcess, number: signal.Signals, said: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = _Child.ask

    def dies(self: _Child, request: dict[str, str], deadline_s: float) -> Any:
        os.kill(descendants(self._process.pid)[-1], number)
        return ask(self, request, deadline_s)

    monkeypatch.setattr(_Child, "ask", dies)
    assert process.compare(gold="$x$", answer=r"\boxed{x}") == said


def test_without_math_verify_the_host_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runs.sandbox.maths._packages", lambda: None)
    with Grader(isolation=None) as bare:
        result = bare.grade(kind="maths", checker={"gold": "x"}, reply=r"\boxed{y}")
        assert result.verdict == Verdict.INFRA_ERROR
        # Numbers need no such process.
        assert bare.grade(kind="maths", checker={"gold": "2"}, reply="2").verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("kind", "checker", "reply", "verdict", "answer"),
    [
        ("exact", {"answers": ["8:00 PM"]}, "Answer: 8:00 pm.", "pass", "8:00 pm."),
        ("exact", {"answers": ["8:00 PM"]}, "9:00 PM", "fail", "9:00 PM"),
        ("exact", {"answers": ["x"]}, r"\boxed{x", "no_result", None),
        (
            "choice",
            {"answer": "B", "options": {"A": "x", "B": "y"}},
            "The answer is (B).",
            "pass",
            "B",
        ),
        ("choice", {"answer": "B", "options": {"A": "x", "B": "y"}}, "A", "fail", "A"),
        ("choice", {"answer": "B", "options": {"A": "x", "B": "y"}}, "A or B", "no_result", None),
        ("number", {"answer": 3.2, "abs_tol": 0.01}, "about 3.21", "pass", "321/100"),
        ("number", {"answer": 3.2, "rel_tol": 0.1}, "4", "fail", "4"),
        ("number", {"low": 1, "high": 2}, "none", "no_result", None),
        ("number", {"answer": 3, "abs_tol": 0}, r"\boxed{2\sqrt{3}}", "no_result", None),
        ("number", {"answer": 9.8, "abs_tol": 0}, r"\boxed{9.8\ \text{m/s}^2}", "pass", "49/5"),
        ("exact", {"answers": ["5!"]}, r"\boxed{5}", "fail", "5"),
        ("exact", {"answers": ["102"]}, r"\boxed{10²}", "fail", "10²"),
        (
            "choice",
            {"answer": "B", "options": {"A": "x", "B": "y"}},
            "B - correct\nA - incorrect",
            "no_result",
            None,
        ),
    ],
)
def test_short_answers(
    kind: str, checker: dict[str, Any], reply: str, verdict: str, answer: str | None
) -> None:
    with Grader(isolation=None) as text_only:
        result = text_only.grade(kind=kind, checker=checker, reply=reply)
    assert (result.verdict, result.details["answer"]) == (verdict, answer)
    assert result.checker_sha256 == checker_sha256(kind=kind, checker=checker)


def test_the_checker_identity_covers_payload_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    one = checker_sha256(kind="number", checker={"low": 1, "high": 2})
    assert one == checker_sha256(kind="number", checker={"high": 2, "low": 1})
    assert one != checker_sha256(kind="number", checker={"low": 1, "high": 3})
    assert one != checker_sha256(kind="exact", checker={"low": 1, "high": 2})
    monkeypatch.setattr(grading, "CHECKER_VERSION", "next")
    assert one != checker_sha256(kind="number", checker={"low": 1, "high": 2})


def test_answers_are_fit_for_the_database() -> None:
    with Grader(isolation=None) as text_only:
        result = text_only.grade(
            kind="exact", checker={"answers": ["a"]}, reply="nul \0 and lone \ud800"
        )
    result.details["answer"].encode("utf-8")
    assert "\0" not in result.details["answer"]
