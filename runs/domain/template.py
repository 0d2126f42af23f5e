"""The text that `manage.py new_tasks` writes: one example of every kind of task."""

from __future__ import annotations

from typing import Final

# Every line is pinned by a test that reads it back with the own format's reader.
TEMPLATE: Final = r"""# Tasks of your own: one JSON object a line. Lines that start with # and blank lines are skipped.
# Check them with: python3 manage.py check_tasks THIS_FILE
#
# Every task: "key" (unique), "kind" (code, maths, exact, choice, number), "prompt" (what the model
# sees), "checker" (how the answer is judged). Optional: "gold_skills" (slugs of the skills that
# truly apply), "reference" (a right answer, never shown to a model), "tags".
#
# Code with input cases. "args" is the list of arguments. "comparator" is "exact" (types must match)
# or "python_eq" (Python's ==). Tuples, sets and the like are tagged: {"$tuple": [1, 2]}.
{"key": "last_item", "kind": "code", "prompt": "def last_item(items: list[int]) -> int | None:\n    \"\"\"Write a function that returns the last item, or None if there is none.\"\"\"\n", "checker": {"mode": "cases", "entry": "last_item", "cases": [{"args": [[1, 2, 3]], "expected": 3}, {"args": [[]], "expected": null}], "comparator": "exact"}, "gold_skills": ["edge-case-guard"], "reference": "def last_item(items):\n    return items[-1] if items else None\n", "tags": ["very_easy"]}
#
# Code with inputs alone: the expected values are what the reference returns.
{"key": "halve", "kind": "code", "prompt": "def halve(n: float) -> float:\n    \"\"\"Write a function that returns half of n.\"\"\"\n", "checker": {"mode": "inputs", "entry": "halve", "inputs": [[8.0], [1.0], [-3.0]]}, "reference": "def halve(n):\n    return n / 2\n"}
#
# Code with assert statements (or a function check(candidate)) that call the entry function.
{"key": "min_max", "kind": "code", "prompt": "def min_max(values: list[int]) -> tuple[int, int]:\n    \"\"\"Write a function that returns the smallest and the largest value.\"\"\"\n", "checker": {"mode": "asserts", "entry": "min_max", "test": "assert min_max([3, 1, 2]) == (1, 3)\nassert min_max([5]) == (5, 5)\n"}, "reference": "def min_max(values):\n    return min(values), max(values)\n"}
#
# Maths: the gold answer in LaTeX; equal forms count as right.
{"key": "half_of_three", "kind": "maths", "prompt": "What is half of $3$?", "checker": {"gold": "\\frac{3}{2}"}}
#
# Exact match with any of the answers (case, spacing and a final full stop do not matter).
{"key": "capital_of_france", "kind": "exact", "prompt": "What is the capital of France? Answer with one word.", "checker": {"answers": ["Paris"]}}
#
# Multiple choice: write the options into the prompt too.
{"key": "first_prime", "kind": "choice", "prompt": "Which number is the smallest prime?\nA) 1\nB) 2\nC) 3", "checker": {"answer": "B", "options": {"A": "1", "B": "2", "C": "3"}}}
#
# A number with a tolerance: "abs_tol", "rel_tol", or the limits "low" and "high".
{"key": "circle_area", "kind": "number", "prompt": "What is the area of a circle with radius 2, to two decimals?", "checker": {"answer": 12.566, "abs_tol": 0.01}}
"""  # noqa: E501
