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
    [
        *[
            "`",
            "</think>",
            "```\n",
            "> ",
            "- ",
            "'</think>'",
            "```python\n'</think>'\n",
            "\\boxed{",
        ],
        *["1 ", "1,", "\\text{a}", "1\\,", "A. ", "(A) ", "²", "not "],
    ],
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


@pytest.mark.parametrize("part", ["a  ", "ab", "a / ", "a^2 ", r"\text{a} ", "(a) ", "m \\cdot "])
def test_long_units_are_read_in_bounded_time(part: str) -> None:
    started = time.perf_counter()
    for end in ("1", "\\", "x", ""):
        extract_number(rf"\boxed{{5 {part * (1_900 // len(part))}{end}}}")
    assert time.perf_counter() - started < 5.0


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


FOUR = {"A": "5", "B": "6", "C": "7", "D": "8"}


@pytest.mark.parametrize(
    "reply",
    [
        "A. wrong\nB. right\nC. wrong\nD. wrong",
        "B - correct\nA - incorrect",
        "A: incorrect.\nB: correct.\nD, which is wrong",
        "I eliminate options one by one.\nD - this can't be.",
        "D - this can't be.",
        "The answer would be A: wrong",
        "(D) is impossible.",
        # the options said again choose the last one as little as the first
        "Of these:\nA. 5\nB. 6\nC. 7\nD. 8",
    ],
)
def test_an_option_ruled_out_is_no_choice(reply: str) -> None:
    assert extract_choice(reply, FOUR) is None


@pytest.mark.parametrize(
    "reply",
    [
        "A. wrong\nC. wrong\nD. wrong\nB",
        "A. 5\nB. 6\nC. 7\nD. 8\n\nB",
        "Adding one gives six.\nB) 6",
        "Adding one gives six.\n**B. 6**",
        "Adding one gives six.\n6",
        "B - which is the sum.",
    ],
)
def test_a_last_line_that_is_an_option_is_the_choice(reply: str) -> None:
    assert extract_choice(reply, FOUR) == "B"


def test_options_that_differ_in_a_power_or_a_factorial_alone() -> None:
    close = {"A": "3²", "B": "32", "C": "5!", "D": "5"}
    for key, wording in close.items():
        assert extract_choice(rf"\boxed{{{wording}}}", close) == key


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


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        # units, inside and outside of \text, with powers of their own
        *[(r"9.8\ \text{m/s}^2", "9.8"), (r"9.8\ \mathrm{m\,s^{-2}}", "9.8"), ("5 N", "5")],
        *[(r"9.8\ \frac{\text{m}}{\text{s}^2}", "9.8"), (r"25\,\text{cm}^3", "25")],
        *[("25cm³", "25"), ("60 mph", "60"), (r"5\ \mu\text{m}", "5"), (r"15^\circ", "15")],
        *[(r"120\ \text{km}/\text{h}", "120"), (r"25\%", "25"), (r"\$1,234.50", "1234.5")],
        *[(r"\text{25 apples}", "25"), ("about 25 apples", "25"), ("25 (rounded)", "25")],
        # thousands by spaces, mixed numbers, fractions, powers
        *[("1 000", "1000"), (r"1\,000\,000", "1000000"), ("12{,}345", "12345")],
        *[(r"1\frac12", "1.5"), (r"-2\frac{3}{4}", "-2.75"), ("1 1/2", "1.5"), ("1½", "1.5")],
        *[(r"\frac{1.5}{2}", "0.75"), (r"\dfrac{3}{8}\text{ miles}", "0.375")],
        *[("2^{10}", "1024"), ("2^10", "1024"), ("10²", "100"), ("10⁻³", "0.001"), ("5!", "120")],
        *[(r"6.02 \times 10^{23}\ \text{mol}^{-1}", "6.02e23"), ("3 x 10^8 m/s", "3e8")],
        # what is said last of an equation
        *[("x = 25", "25"), (r"3 \times 4 = 12", "12"), (r"2\sqrt{3} \approx 3.46", "3.46")],
    ],
)
def test_numbers_of_a_box(answer: str, number: str) -> None:
    assert extract_number(rf"so \boxed{{{answer}}}") == Fraction(number)


@pytest.mark.parametrize(
    "answer",
    [
        *[r"2\sqrt{3}", r"\frac{\pi}{2}", r"2\pi", "3π", r"\frac{x}{2}", "5x", "2i", r"\sqrt{16}"],
        *["√16", r"\log_{10} 5", r"25 \pm 1", r"\pm 5", "(1,234)", "3, 4", "1,5", "15:00"],
        *[r"3 \text{ or } 4", r"x=3 \text{ or } x=4", "3 hours 20 minutes", r"\text{m}"],
    ],
)
def test_a_box_without_one_number_of_its_own(answer: str) -> None:
    assert extract_number(rf"so \boxed{{{answer}}}") is None


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("The acceleration is 9.8 m/s^2.", "9.8"),
        ("So we get 25 cm².", "25"),
        ("The answer is $2^{10}$.", "1024"),
        ("The answer is $3 \\times 4 = 12$.", "12"),
        ("The answer is 2√3, about 3.46", "3.46"),
        ("The answer, from step 2, is 25.", "25"),
        ("It is **25**", "25"),
    ],
)
def test_numbers_without_a_box(reply: str, number: str) -> None:
    assert extract_number(reply) == Fraction(number)


@pytest.mark.parametrize(
    "reply",
    [
        *["", "none", r"\boxed{2", r"5 \boxed{x}", "1" * 500, "1/0"],
        *["Answer: 2√3", "The answer is 2√3. (Step 4)", r"which is 2\sqrt{3}"],
    ],
)
def test_no_number(reply: str) -> None:
    assert extract_number(reply) is None


def test_short_texts() -> None:
    assert extract_text("8:00 PM") == "8:00 PM"
    assert extract_text("It began late.\nFinal answer: **8:00 PM**") == "**8:00 PM**"
    assert extract_text(r"\boxed{\text{8:00 PM}}") == "8:00 PM"
    assert extract_text("<think>9?</think> 8") == "8"
    assert extract_text("") is extract_text(r"\boxed{8") is None
    assert strip_reasoning("a</think>b</think> c ") == "c"
