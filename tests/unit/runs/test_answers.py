"""What is read out of a reply: programs, boxes, choices, numbers."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.answers import (
    Box,
    BoxState,
    extract_choice,
    extract_code,
    extract_number,
    extract_text,
    last_box,
    strip_reasoning,
)

INC = "def inc(x):\n    return x + 1"
DEC = 'def dec(x):\n    """Usage:\n\n    ```\n    dec(2)\n    ```\n    """\n    return x - 1'


def test_case_A01() -> None:
    bare = "def triple(n):\n    return 3 * n"
    assert extract_code(bare + "\n```") == bare
    # The same stray fence with talk after it, which is no block either.
    assert extract_code(bare + "\n```\nThis triples n.") == bare
    assert extract_code("```\n" + bare) == bare


@pytest.mark.parametrize(
    "reply",
    [
        f"Example:\n```\n>>> inc(1)\n2\n```\nSolution:\n```Python\n{INC}\n```",
        "Steps:\r\n```text\r\nadd one\r\n```\r\n```py\r\n" + INC.replace("\n", "\r\n") + "\r\n```",
        "1. Here it is:\n\n   ```python3\n   def inc(x):\n       return x + 1\n   ```\n",
        f"~~~python\n{INC}\n~~~",
    ],
)
def test_case_A02(reply: str) -> None:
    assert extract_code(reply) == INC


@pytest.mark.parametrize("fence", ["```", "````"])
def test_case_A04(fence: str) -> None:
    assert extract_code(f"{fence}python\n{DEC}\n{fence}") == DEC


def test_case_A06() -> None:
    reply = (
        "<think>maybe\n```python\ndef neg(x):\n    return x\n```\nno, flip sign</think>\n"
        "```python\ndef neg(x):\n    return -x\n```"
    )
    assert extract_code(reply) == "def neg(x):\n    return -x"


@pytest.mark.parametrize(
    "reply",
    [
        f"```python title=a.py\n{INC}\n```",
        f"``` {{.python .numberLines}}\n{INC}\n```",
        f"```python3.11\n{INC}\n```",
        f"```python\n{INC}",
        f"> quoted\n>\n> ```py3\n> {INC.replace(chr(10), chr(10) + '> ')}\n> ```",
        f"<answer>\n```python\n{INC}\n```\n</answer>",
        f"```python\n\n```\n```python\n{INC}\n```",
        f"```\n{INC}\n```\n",
        f"```js\n{INC}\n```\nonly a block of another language",
        f"\n\n{INC}\n\n",
        f"```python\n{INC}\n```\n```python\ninc(1)\n```",
        f"no\n```pycon\n>>> 1\n```\n```PY\n{INC}\n```",
    ],
)
def test_blocks_models_write(reply: str) -> None:
    assert extract_code(reply) == INC


@pytest.mark.parametrize("reply", ["", "\n \n", "```", "```python", "```python\n```", "~~~\n~~~"])
def test_no_program(reply: str) -> None:
    assert extract_code(reply) == ""


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("<think>a</think>\n```python\nx = '</think>'\n```", "x = '</think>'"),
        ("```python\nx = '</think>'; y = \"</think>\"\n```", "x = '</think>'; y = \"</think>\""),
        ("```python\n# ends at </think>\nx = 1\n```", "# ends at </think>\nx = 1"),
        ('```python\ns = """\n</think>\n"""\n```', 's = """\n</think>\n"""'),
        ("t = '</think>'", "t = '</think>'"),
        ("<think>```python\nx='</think>'\n```\nso</think>def f(): pass", "def f(): pass"),
        ("<think>I don't know</think>def f(): pass", "def f(): pass"),
        ("<think>```python\ndef f():\n</think>\n```python\ndef g(): pass\n```", "def g(): pass"),
        ("no tag opened</think>x = 1", "x = 1"),
    ],
)
def test_a_closing_think_tag_ends_reasoning_unless_it_is_text_of_the_program(
    reply: str, code: str
) -> None:
    assert extract_code(reply) == code


@given(st.text(alphabet="`~ \n>-1.abc\"'#\\</think>"))
def test_any_text_gives_a_program_without_blank_ends(reply: str) -> None:
    code = extract_code(reply)
    assert code == code.rstrip()
    assert not code or code.split("\n")[0].strip()


@pytest.mark.parametrize(
    "part",
    ["`", "</think>", "```\n", "> ", "- ", "'</think>'", "```python\n'</think>'\n", "\\boxed{"],
)
def test_floods_are_read_in_bounded_time(part: str) -> None:
    flood = part * (200_000 // len(part))
    started = time.perf_counter()
    extract_code(flood)
    last_box(flood)
    extract_number(flood)
    extract_choice(flood, {"A": "x", "B": "y"})
    assert time.perf_counter() - started < 10.0


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{12}, but rechecking gives \boxed{14}.", "14"),
        (r"so \boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {7}", "7"),
        (r"\boxed 7", "7"),
        (r"\fbox{3} \fboxed{4}", "4"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_complete_box(text: str, content: str) -> None:
    assert last_box(text) == Box(BoxState.COMPLETE, content)


def test_a_box_that_never_closes_is_no_answer() -> None:
    assert last_box(r"earlier \boxed{7}, finally \boxed{8") == Box(BoxState.UNTERMINATED)
    assert last_box(r"\boxed") == Box(BoxState.UNTERMINATED)
    assert last_box("seven") == last_box(r"\boxedness{7}") == Box(BoxState.ABSENT)


OPTIONS = {"A": "Paris", "B": "Rome", "C": "Berlin"}


@pytest.mark.parametrize(
    "reply",
    [
        *[
            "B",
            "b.",
            "(B)",
            "**B**",
            "B) Rome",
            "**B. Rome**",
            "B: Rome",
            "B - Rome",
            "Rome",
            "rome.",
        ],
        *["The answer is B.", "Final answer: **B**", "answer: (b)", r"so \boxed{B}", "Option B"],
        *[r"\boxed{\text{Rome}}", "A city like Rome is nice.\nB", "I think (B) fits best."],
        *[
            "The answer is A. Wait, the answer is B.",
            "<think>A. answer: C</think>B",
            "B because C.",
        ],
    ],
)
def test_choices(reply: str) -> None:
    expected = None if reply == "B because C." else "B"
    assert extract_choice(reply, OPTIONS) == expected


@pytest.mark.parametrize(
    "reply",
    [
        *["", "I don't know", "A or B", "A, B", "answer: A or B", "A bird in the hand", "D"],
        *["A. Paris is wrong, it must be B", "(A) or (B)", r"\boxed{B", r"\boxed{D} B"],
    ],
)
def test_no_single_choice(reply: str) -> None:
    assert extract_choice(reply, OPTIONS) is None


def test_choices_by_word() -> None:
    tens = {"choice_1": "a cat", "choice_10": "a dog"}
    assert extract_choice("choice_10", tens) == "choice_10"
    assert extract_choice("Answer: choice_1: a cat", tens) == "choice_1"
    yes = {"yes": "", "no": ""}
    assert extract_choice("Yes, that holds.", yes) == "yes"
    assert extract_choice("No one can tell.", yes) is None


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("The answer is 3.2 mg", "3.2"),
        (r"\boxed{1,234.5}", "1234.5"),
        (r"\boxed{x = -\frac{3}{4}}", "-0.75"),
        ("3.2 × 10^5", "320000"),
        (r"2 \times 10^{-2}", "0.02"),
        ("1e-3", "0.001"),
        ("Answer: 3/4", "0.75"),
        ("first 12, in the end -7", "-7"),
        ("The answer is: **12.5** (of 20)", "12.5"),
        ("−5", "-5"),
        ("$1{,}000$", "1000"),
        (".5", "0.5"),
    ],
)
def test_numbers(reply: str, number: str) -> None:
    assert extract_number(reply) == Fraction(number)


@pytest.mark.parametrize("reply", ["", "none", r"\boxed{2", r"5 \boxed{x}", "1" * 500, "1/0"])
def test_no_number(reply: str) -> None:
    assert extract_number(reply) is None


def test_short_texts() -> None:
    assert extract_text("8:00 PM") == "8:00 PM"
    assert extract_text("It began late.\nFinal answer: **8:00 PM**") == "**8:00 PM**"
    assert extract_text(r"\boxed{\text{8:00 PM}}") == "8:00 PM"
    assert extract_text("<think>9?</think> 8") == "8"
    assert extract_text("") is extract_text(r"\boxed{8") is None
    assert strip_reasoning("a</think>b</think> c ") == "c"
