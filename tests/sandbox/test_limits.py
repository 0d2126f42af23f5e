"""Each way a program can end has its verdict, and none passes for the host's fault."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from runs.domain.checking import Verdict
from runs.sandbox import programs, supervisor
from runs.sandbox.grader import Grader
from runs.sandbox.jail import MIB, Limits
from runs.sandbox.packing import RequestTooLarge
from runs.sandbox.supervisor import Ending, Run

pytestmark = pytest.mark.xdist_group("sandbox")

# Ten times the processor time on the clock, so that a busy machine changes no verdict.
FAST = Limits(cpu_s=1, wall_s=10.0)


def run(grader: Grader, program: str, limits: Limits = FAST, args: list[Any] | None = None) -> Run:
    assert grader.isolation is not None
    request = programs.call_all(program=program, entry="f", cases=[(args or [], "")])
    return supervisor.run(grader.isolation.jail, request, limits)


def grade(grader: Grader, program: str, **changes: Any) -> tuple[Verdict, dict[str, Any]]:
    checker = {
        "mode": "cases",
        "entry": "f",
        "prelude": "",
        "cases": [{"args": [1], "expected": 1}, {"args": [2], "expected": 2}],
        "comparator": "exact",
        "timeout_s": 1,
        **changes,
    }
    result = grader.grade(kind="code", checker=checker, reply=program)
    json.dumps(result.details, allow_nan=False)
    return result.verdict, result.details


def test_the_first_failing_case_is_shown_with_its_input(grader: Grader) -> None:
    verdict, details = grade(grader, "def f(x):\n    return 1")
    assert verdict == Verdict.FAIL
    assert details["case"] == {"index": 1, "input": "f(2)", "expected": "2", "got": "1"}
    assert details["answer"] == "def f(x):\n    return 1"
    assert details["checker_isolation"] == "process"


def test_an_exception_names_its_line(grader: Grader) -> None:
    verdict, details = grade(grader, "def f(x):\n    y = x\n    return 1 // 0")
    assert verdict == Verdict.FAIL
    expected = "ZeroDivisionError: integer division or modulo by zero (line 3 of the answer)"
    assert details["message"] == expected


def test_prelude_comes_before_the_answer(grader: Grader) -> None:
    verdict, _ = grade(
        grader, "def f(x):\n    return same(x)", prelude="def same(x):\n    return x"
    )
    assert verdict == Verdict.PASS


def test_cases_share_no_argument(grader: Grader) -> None:
    cases = [{"args": [[3, 1]], "expected": [3, 1, 0]}] * 2
    verdict, _ = grade(grader, "def f(x):\n    x.append(0)\n    return x", cases=cases)
    assert verdict == Verdict.PASS


def test_an_early_mismatch_outweighs_a_later_end(grader: Grader) -> None:
    program = "import os\ndef f(x):\n    if x == 2: os._exit(0)\n    return {}"
    assert grade(grader, program.format(0))[0] == Verdict.FAIL
    assert grade(grader, program.format(1))[0] == Verdict.NO_RESULT


def test_processor_time(grader: Grader) -> None:
    # It ignores the warning, and is killed a second later.
    stubborn = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
    program = stubborn + "def f(x):\n    while True: pass"
    assert grade(grader, program)[0] == Verdict.TIMEOUT


def test_the_clock_stops_a_sleeper_and_leaves_nothing(grader: Grader) -> None:
    started = time.monotonic()
    limits = Limits(cpu_s=1, wall_s=0.5)
    result = run(grader, "import time\ndef f():\n    time.sleep(30)", limits)
    assert result.ending == Ending.WALL
    assert time.monotonic() - started < 10


def test_memory_of_one_process_and_of_all(grader: Grader) -> None:
    verdict, details = grade(grader, "def f(x):\n    return len(bytearray(1 << 30))")
    assert (verdict, details["message"]) == (Verdict.MEMORY, "used more memory than it may")
    several = (
        "import os, time\ndef f():\n    for _ in range(4):\n        if os.fork() == 0:\n"
        "            block = bytearray(100 << 20)\n"
        "            block[::4096] = b'x' * len(block[::4096])\n            time.sleep(20)\n"
        "    time.sleep(20)"
    )
    limits = Limits(cpu_s=5, wall_s=15.0, memory_bytes=256 * MIB)
    assert run(grader, several, limits).ending == Ending.MEMORY


def test_output(grader: Grader) -> None:
    flood = "def f(x):\n    print('x' * (5 << 20))\n    return x"
    assert grade(grader, flood)[0] == Verdict.OUTPUT_LIMIT
    assert grade(grader, "def f(x):\n    return 'x' * (2 << 20)")[0] == Verdict.OUTPUT_LIMIT
    assert grade(grader, "def f(x):\n    print('x' * (1 << 20))\n    return x")[0] == Verdict.PASS


def test_results_may_be_as_large_as_the_expected_ones(grader: Grader) -> None:
    cases = [{"args": [], "expected": "x" * (3 << 20)}]
    assert grade(grader, "def f():\n    return 'x' * (3 << 20)", cases=cases)[0] == Verdict.PASS


@pytest.mark.parametrize(
    "program",
    [
        "import os\nos._exit(0)",
        "import os\nos._exit(97)",
        "import os\nos.kill(os.getpid(), 9)",
        "import os\ntry: os.kill(os.getppid(), 9)\nexcept OSError: os._exit(0)",
        "import os\nos.abort()",
        "import ctypes\nctypes.string_at(0)",
    ],
)
def test_a_program_that_vanishes_has_no_result_and_blames_nobody(
    grader: Grader, program: str
) -> None:
    assert grade(grader, program)[0] == Verdict.NO_RESULT


def test_no_program_and_a_flood_of_reply(grader: Grader) -> None:
    assert grade(grader, "```python\n```") == (
        Verdict.NO_RESULT,
        {"answer": None, "message": "the reply holds no program"},
    )
    verdict, details = grade(grader, "#" * 300_000)
    assert verdict == Verdict.NO_RESULT
    assert details["answer"] is None


def test_a_request_has_a_size(grader: Grader) -> None:
    with pytest.raises(RequestTooLarge):
        run(grader, "def f(x):\n    return 1", args=["x" * (17 * MIB)])


def test_a_sandbox_killed_from_outside_is_an_infrastructure_error(grader: Grader) -> None:
    assert grader.isolation is not None
    if grader.tier == "B":
        pytest.skip("without namespaces the reaper can't tell who killed the program")
    killer = threading.Timer(0.5, _kill_own_children)
    killer.start()
    result = run(grader, "import time\ndef f():\n    time.sleep(20)")
    killer.join()
    assert result.ending == Ending.HOST
    assert "killed from outside" in result.reason


def _kill_own_children() -> None:
    import os

    for listing in (
        f"/proc/self/task/{thread}/children" for thread in os.listdir("/proc/self/task")
    ):
        with open(listing) as text:
            for pid in text.read().split():
                with open(f"/proc/{pid}/comm") as comm:
                    if comm.read().strip() == "bwrap":
                        os.kill(int(pid), 9)


def test_a_sandbox_that_cannot_start_is_an_infrastructure_error(grader: Grader) -> None:
    assert grader.isolation is not None
    jail = grader.isolation.jail
    broken = type(jail)(
        argv=("/nonexistent/python", *jail.argv[1:]),
        environment=jail.environment,
        config=jail.config,
        slots=jail.slots,
        portable=False,
    )
    request = programs.call_all(program="", entry="f", cases=[])
    result = supervisor.run(broken, request, FAST)
    assert (result.ending, result.ready) == (Ending.HOST, None)


def test_runs_in_several_threads_do_not_disturb_each_other(grader: Grader) -> None:
    """Each holds a slot of its own; the sweep of one must not reach another."""
    endings: list[tuple[int, bytes]] = []

    def one(number: int) -> None:
        result = run(grader, "def f(x):\n    return x", args=[number])
        endings.append((number, result.results))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [(n, f'["value",{n}]\n["end"]\n'.encode()) for n in range(6)]
    assert sorted(endings) == expected


def test_the_sandbox_ends_with_its_supervisor(grader: Grader) -> None:
    """A worker that is killed leaves no program running."""
    name = f"orphan{time.time_ns() % 10**7}"
    program = (
        "import ctypes, time\n"
        f"ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0)\nprint('up', flush=True)\ntime.sleep(60)"
    )
    worker = (
        "from runs.sandbox.grader import open_grader\n"
        "grader = open_grader()\n"
        f"grader.grade(kind='code', checker={{'mode': 'cases', 'entry': 'f', 'cases': [], "
        f"'comparator': 'exact', 'timeout_s': 60}}, reply={program!r})\n"
    )
    process = subprocess.Popen([sys.executable, "-c", worker])
    assert _eventually(lambda: name in _names()), "the program never started"
    process.kill()
    process.wait()
    assert _eventually(lambda: name not in _names())


def _eventually(holds: Any) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if holds():
            return True
        threading.Event().wait(0.02)
    return False


def _names() -> set[str]:
    from runs.sandbox.battery import _process_names

    return _process_names()
