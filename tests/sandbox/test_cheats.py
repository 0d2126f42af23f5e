"""No cheat passes, every honest program does, and an in-process checker would be fooled."""

from __future__ import annotations

from typing import Any

import pytest

from runs.domain.checking import Verdict
from runs.domain.values import encode
from runs.sandbox.grader import Grader
from tests.sandbox.cheats import CASES, CHEATS, ENTRY, HONEST

pytestmark = pytest.mark.xdist_group("sandbox")

SPLIT = {
    "mode": "cases",
    "entry": ENTRY,
    "prelude": "",
    "cases": [{"args": [items], "expected": total} for items, total in CASES],
    "comparator": "python_eq",
    "timeout_s": 1,
}
IN_PROCESS = {
    "mode": "asserts",
    "entry": ENTRY,
    "prelude": "",
    "test": "def check(candidate):\n"
    + "".join(f"    assert candidate({items}) == {total}\n" for items, total in CASES),
    "timeout_s": 1,
}


TWO_PROCESSES = {**IN_PROCESS, "checker_isolation": "two_processes"}


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def test_the_corpus_is_large_enough() -> None:
    assert len(CHEATS) >= 40


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes(grader: Grader, name: str) -> None:
    result = grader.grade(kind="code", checker=SPLIT, reply=fenced(CHEATS[name]))
    assert result.verdict not in (Verdict.PASS, Verdict.INFRA_ERROR), result.details


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_a_check_in_a_process_of_its_own(grader: Grader, name: str) -> None:
    result = grader.grade(kind="code", checker=TWO_PROCESSES, reply=fenced(CHEATS[name]))
    assert result.verdict not in (Verdict.PASS, Verdict.INFRA_ERROR), result.details
    assert result.details["checker_isolation"] == "two_processes"


def test_a_check_in_a_process_of_its_own_is_out_of_sight(grader: Grader) -> None:
    """The program searches its callers for the check's text and its constants, and finds none."""
    search = (
        "import sys\ndef f(items):\n    frame = sys._getframe()\n    while frame:\n"
        "        text = repr(frame.f_locals) + repr(frame.f_code.co_consts)\n"
        "        if ' '.join(['assert', 'candidate']) in text: return 'seen'\n"
        "        frame = frame.f_back\n"
        "    return 'unseen'"
    )
    for isolation, said in (("in_process", "seen"), ("two_processes", "unseen")):
        tell = "def check(candidate):\n    raise KeyError(candidate(1))\n    assert candidate(2)"
        checker = {**IN_PROCESS, "test": tell, "checker_isolation": isolation}
        result = grader.grade(kind="code", checker=checker, reply=search)
        assert f"KeyError: '{said}'" in result.details["message"]


def test_ends_of_a_program_in_a_process_of_its_own(grader: Grader) -> None:
    for program, verdict in (
        (HONEST, Verdict.PASS),
        ("def f(items):\n    while True: pass", Verdict.TIMEOUT),
        ("def f(items):\n    return bytearray(1 << 30)", Verdict.MEMORY),
        ("import os\nos._exit(0)", Verdict.NO_RESULT),
        ("import os\ndef f(items):\n    os.abort()", Verdict.NO_RESULT),
        ("def f(items):\n    return 1 // 0", Verdict.FAIL),
    ):
        result = grader.grade(kind="code", checker=TWO_PROCESSES, reply=program)
        assert result.verdict == verdict, (program, result.details)


def test_the_honest_program_passes(grader: Grader) -> None:
    for checker in (SPLIT, IN_PROCESS):
        assert grader.grade(kind="code", checker=checker, reply=HONEST).verdict == Verdict.PASS


def test_without_the_split_several_cheats_pass(grader: Grader) -> None:
    """The guard removed: the same programs beside the check, as other harnesses run them."""
    likely = [
        *[name for name in CHEATS if name.startswith("equal_") and "inside" not in name],
        *["mock_any", "function_is_an_object", "frame_constants", "forge_checked"],
    ]
    fooled = [
        name
        for name in likely
        if grader.grade(kind="code", checker=IN_PROCESS, reply=fenced(CHEATS[name])).verdict
        == Verdict.PASS
    ]
    assert len(fooled) >= 8, fooled
    assert {"equal_object", "equal_int", "mock_any", "forge_checked"} <= set(fooled)


HONEST_STYLES: dict[str, tuple[str, list[Any], Any]] = {
    "comprehension": ("def f(x):\n    return [i + 1 for i in x]", [[1, 2]], [2, 3]),
    "typing": (
        "from typing import List, Optional\ndef f(x: List[int]) -> Optional[int]:\n    return x[0]",
        [[1]],
        1,
    ),
    "dataclass": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\n"
        "class P:\n    x: int\ndef f(x):\n    return P(x).x",
        [3],
        3,
    ),
    "main_guard": (
        "def f(x):\n    return x\nif __name__ == '__main__':\n    print(input())",
        [1],
        1,
    ),
    "prints": ("def f(x):\n    print('working on', x)\n    return x", [1], 1),
    "prints_a_lot": ("def f(x):\n    print('y' * 500_000)\n    return x", [1], 1),
    "counter": (
        "from collections import Counter\ndef f(x):\n    return Counter(x)",
        ["aab"],
        {"a": 2, "b": 1},
    ),
    "defaultdict": (
        "from collections import defaultdict\ndef f(x):\n    d = defaultdict(int)\n    d[x] += 1\n"
        "    return d",
        [4],
        {4: 1},
    ),
    "tuple_and_set": (
        "def f(x):\n    return (x, {x}, frozenset([x]))",
        [1],
        (1, {1}, frozenset({1})),
    ),
    "nan": ("def f(x):\n    return x - x", [float("inf")], float("nan")),
    "bytes": ("def f(x):\n    return x[::-1]", [b"\x00\xff"], b"\xff\x00"),
    "complex": ("def f(x):\n    return x * 1j", [1 + 1j], -1 + 1j),
    "big_integer": ("def f(x):\n    return x ** 999", [7], 7**999),
    "unicode": ("def f(x):\n    return x.upper()", ["straße \U0001f600"], "STRASSE \U0001f600"),
    "recursive": ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)", [500], None),
    "changes_its_argument": ("def f(x):\n    x.sort()\n    return x", [[3, 1]], [1, 3]),
    "class_with_state": (
        "class Box:\n    def __init__(self): self.n = 0\n    def add(self, k):\n"
        "        self.n += k\n        return self\ndef f(x):\n    return Box().add(x).add(x).n",
        [2],
        4,
    ),
    "threads": (
        "import threading\ndef f(x):\n    out = []\n    t = threading.Thread(target=out.append, "
        "args=(x,))\n    t.start()\n    t.join()\n    return out",
        [1],
        [1],
    ),
    "standard_library": (
        "import re, math, itertools, functools, heapq, bisect, string, decimal, fractions, random\n"
        "import datetime, json, statistics, operator, copy, hashlib\n"
        "def f(x):\n    return re.sub('a', 'b', x) + hashlib.md5(b'').hexdigest()[:2]",
        ["a"],
        "bd4",
    ),
    "scratch_file": (
        "import tempfile\ndef f(x):\n    with tempfile.TemporaryFile() as t:\n"
        "        t.write(x)\n        t.seek(0)\n        return t.read()",
        [b"x"],
        b"x",
    ),
    "lru_cache": (
        "from functools import lru_cache\n@lru_cache(None)\ndef f(n):\n"
        "    return n if n < 2 else f(n - 1) + f(n - 2)",
        [90],
        2880067194370816120,
    ),
    "lambda": ("f = lambda x: x * 2", [2], 4),
    "partial": ("from functools import partial\nf = partial(pow, 2)", [5], 32),
    "async": (
        "def f(x):\n    async def g(): return x\n    try: g().send(None)\n"
        "    except StopIteration as stop: return stop.value",
        [1],
        1,
    ),
}


@pytest.mark.parametrize("style", HONEST_STYLES)
def test_honest_programs_pass(grader: Grader, style: str) -> None:
    program, args, expected = HONEST_STYLES[style]
    if style == "recursive":
        import math

        expected = math.factorial(*args)
    if style == "scratch_file" and grader.tier == "B":
        pytest.skip("tier B gives programs nothing to write to")
    checker = {
        **SPLIT,
        "cases": [{"args": [encode(arg) for arg in args], "expected": encode(expected)}],
    }
    result = grader.grade(kind="code", checker=checker, reply=fenced(program))
    assert result.verdict == Verdict.PASS, result.details


def test_values_that_cannot_be_written_down_fail_with_their_reason(grader: Grader) -> None:
    for name, reason in (
        ("huge_integer", "not a value that can be written down"),
        ("endless_nesting", "RecursionError"),
        ("generator", "generator is not a plain value"),
        ("recursion", "RecursionError: maximum recursion depth"),
        ("no_function", "defines no function f"),
    ):
        result = grader.grade(kind="code", checker=SPLIT, reply=fenced(CHEATS[name]))
        assert result.verdict == Verdict.FAIL
        assert reason in result.details["message"], name
