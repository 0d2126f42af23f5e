"""The starter suites worked out a second time, by another route than their references.

Slow and plain on purpose: brute force over all subsets, pairs or windows, or a
formula where the reference counts.
"""

from __future__ import annotations

import itertools
import math
import re
import string
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any


def _windows(items: Any) -> list[Any]:
    """Return all non-empty contiguous parts of a sequence."""
    return [items[a:b] for a in range(len(items)) for b in range(a + 1, len(items) + 1)]


def _pairs(values: list[int]) -> list[int]:
    return [a + b for a, b in itertools.combinations(values, 2)]


def _subsets(count: int) -> list[tuple[int, ...]]:
    return [s for n in range(count + 1) for s in itertools.combinations(range(count), n)]


def _closure(doors: dict[str, list[str]], start: str) -> list[str]:
    known = {start}
    for _ in range(len(doors) + 1):
        known |= {room for at in known for room in doors.get(at, [])}
    return sorted(known)


def _groups(n: int, links: list[list[int]]) -> int:
    label = list(range(n))
    for _ in range(2):
        for a, b in links:
            # Merging labels by a full sweep: quadratic, but nothing like a graph search.
            old, new = max(label[a], label[b]), min(label[a], label[b])
            if old != new:
                label = [new if x == old else x for x in label]
    return len(set(label))


def _tally(votes: list[str]) -> dict[str, int]:
    return {name: votes.count(name) for name in votes}


def _length(text: str) -> int:
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)cm)?", text)
    assert found, text
    return 100 * int(found[1] or 0) + int(found[2] or 0)


def _fence(metres: int) -> int:
    # Choose which of the boards are long: with k long ones there are metres - 2k boards.
    return sum(math.comb(metres - 2 * k, k) for k in range(metres // 3 + 1))


def _backpack(weights: list[int], values: list[int], limit: int) -> int:
    return max(
        sum(values[i] for i in chosen)
        for chosen in _subsets(len(weights))
        if sum(weights[i] for i in chosen) <= limit
    )


def _merge_out(values: list[Any]) -> list[int]:
    return [int(found) for found in re.findall(r"-?\d+", repr(values))]


def _cube_root(n: int) -> int:
    guess = round(n ** (1 / 3))
    return max(r for r in range(max(0, guess - 3), guess + 4) if r * r * r <= n)


CODE: Mapping[str, Callable[..., Any]] = {
    "sum_of_two": lambda a, b: sum([a, b]),
    "is_even": lambda n: str(n)[-1] in "02468",
    "reverse_text": lambda text: "".join(reversed(text)),
    "square_of": lambda n: sum(abs(n) for _ in range(abs(n))),
    "larger_of": lambda a, b: sorted([a, b])[1],
    "shout": lambda text: "".join(char.upper() for char in text),
    "greet": lambda name: f"Hello, {name}!",
    "text_length": lambda text: sum(1 for _ in text),
    "minutes_to_seconds": lambda minutes: sum([60] * minutes),
    "repeat_word": lambda word, times: "".join([word] * times),
    "absolute_gap": lambda a, b: max(a, b) - min(a, b),
    "area_of_rectangle": lambda w, h: sum([w] * h),
    "sign_word": lambda n: {1: "positive", 0: "zero", -1: "negative"}[(n > 0) - (n < 0)],
    "celsius_to_fahrenheit": lambda c: float(Fraction(c) * Fraction(9, 5) + 32),
    "dash_join": lambda words: "".join("-" + word for word in words)[1:],
    "ticket_price": lambda age: (6 * [0] + 12 * [5] + 47 * [12] + 60 * [8])[age],
    "initials": lambda name: "".join(f"{w[0]}." for w in re.findall(r"\S+", name.upper())),
    "swap_case_ends": lambda word: "".join(
        char.upper() if i in (0, len(word) - 1) else char.lower() for i, char in enumerate(word)
    ),
    "clock_text": lambda m: ":".join(str(part).rjust(2, "0") for part in divmod(m, 60)),
    "colour_code": lambda *rgb: "#" + bytes(rgb).hex(),
    "parse_length": _length,
    "first_cool_reading": lambda readings, limit: next(
        (i for i, reading in enumerate(readings) if reading <= limit), -1
    ),
    "whole_cube_root": _cube_root,
    "count_between": lambda values, low, high: sum(low <= v <= high for v in values),
    "tally_votes": _tally,
    "lonely_gloves": lambda sizes: sum(1 for size in set(sizes) if sizes.count(size) % 2),
    "can_spell": lambda word, tiles: all(word.count(c) <= tiles.count(c) for c in word),
    "reachable_rooms": _closure,
    "count_groups": _groups,
    "safe_average": lambda numbers: math.fsum(numbers) / len(numbers) if numbers else 0.0,
    "last_word": lambda text: (re.findall(r"[^ ]+", text or "") or [""])[-1],
    "first_and_last": lambda items: [items[0], items[len(items) - 1]] if items else [],
    "best_backpack": _backpack,
    "can_pay_exactly": lambda coins, amount: any(
        sum(coins[i] for i in chosen) == amount for chosen in _subsets(len(coins))
    ),
    "running_total": lambda values: [sum(values[: i + 1]) for i in range(len(values))],
    "range_totals": lambda values, ranges: [sum(values[a : b + 1]) for a, b in ranges],
    "balance_point": lambda values: next(
        (i for i in range(len(values)) if sum(values[:i]) == sum(values[i + 1 :])), -1
    ),
    "turn_queue": lambda names, turns: [names[(i + turns) % len(names)] for i in range(len(names))],
    "rotate_word": lambda word, k: "".join(word[(i + k) % len(word)] for i in range(len(word))),
    "longest_cheap_walk": lambda tolls, budget: max(
        (len(part) for part in _windows(tolls) if sum(part) <= budget), default=0
    ),
    "longest_two_colours": lambda beads: max(
        (len(part) for part in _windows(beads) if len(set(part)) <= 2), default=0
    ),
    "has_pair_sum": lambda values, target: target in _pairs(values),
    "closest_pair_sum": lambda values, target: min(
        _pairs(values), key=lambda total: (abs(total - target), total)
    ),
    "total_of": lambda values: sum(values),
    "largest_of": lambda values: sorted(values)[-1],
    "contains_item": lambda items, wanted: items.count(wanted) > 0,
    "reverse_list": lambda items: [items[-1 - i] for i in range(len(items))],
    "double_all": lambda values: [value + value for value in values],
    "count_letter": lambda text, letter: len(text.split(letter)) - 1,
    "is_sorted": lambda values: sorted(values) == values,
    "smallest_and_largest": lambda values: (sorted(values)[0], sorted(values)[-1]),
    "every_other": lambda items: [item for i, item in enumerate(items) if i % 2 == 0],
    "shift_right_by_one": lambda items: [items[i - 1] for i in range(len(items))],
    "without_repeats": lambda items: list(dict.fromkeys(items)),
    "merge_queues": lambda left, right: sorted(left + right),
    "second_smallest": lambda values: next(
        (v for v in values if len({w for w in values if w < v}) == 1), None
    ),
    "longest_same_run": lambda text: max(
        (len(part) for part in _windows(text) if len(set(part)) == 1), default=0
    ),
    "mirror_phrase": lambda phrase: (
        lambda kept: all(a == b for a, b in zip(kept, reversed(kept), strict=True))
    )([char for char in phrase.casefold() if char in string.ascii_lowercase]),
    "fence_ways": _fence,
    "flatten_numbers": _merge_out,
    "busiest_three_days": lambda visitors: max(
        (sum(part) for part in _windows(visitors) if len(part) == 3), default=0
    ),
}

_INTEGERS = range(-100, 101)


def _solutions(holds: Callable[[int], bool]) -> list[int]:
    """Return the integers from -100 to 100 for which an equation holds."""
    return [x for x in _INTEGERS if holds(x)]


def _product(values: list[int]) -> int:
    return math.prod(values)


# Fractions are exact; a float is compared within 1e-9.
MATHS: Mapping[str, Callable[[], Fraction | int | float]] = {
    "three_four_two": lambda: 3 * 4 + 2,
    "sum_of_tens": lambda: sum(range(20, 50, 10)),
    "take_away": lambda: len(range(37, 100)),
    "half_of_sixty_eight": lambda: next(n for n in range(100) if n + n == 68),
    "seven_nines": lambda: sum([9] * 7),
    "brackets_first": lambda: 2 * 8 - 2 * 3,
    "power_of_two": lambda: len(list(itertools.product((0, 1), repeat=5))),
    "apples_left": lambda: 15 - (6 + 4),
    "minutes_in_hours": lambda: Fraction(5, 2) * 60,
    "quarter_plus_half": lambda: Fraction(1, 4) + Fraction(1, 2),
    "price_of_pens": lambda: Fraction(6, 4) * 10,
    "twenty_percent": lambda: Fraction(20, 100) * 85,
    "garden_fence": lambda: 12 + 7 + 12 + 7,
    "fraction_quotient": lambda: Fraction(2, 3) / Fraction(4, 9),
    "average_mark": lambda: next(m for m in range(100) if Fraction(6 + 7 + 9 + 10 + m, 5) == 8),
    "double_and_one": lambda: 11 + 11 + 1,
    "decimal_sum": lambda: Fraction("1.25") + Fraction("0.5"),
    "value_of_expression": lambda: 3 * 4 - 5,
    "substitute_two_letters": lambda: 2**2 * -3 - 2 * 2 * -3 + (-3) ** 2,
    "value_of_square_sum": lambda: {
        x * x + y * y for x in _INTEGERS for y in [7 - x] if x * y == 10
    }.pop(),
    "two_absolute_values": lambda: sum(_solutions(lambda x: abs(x - 3) == 5)),
    # The solutions are whole (5 and -1), and two cases give at most two of them.
    "absolute_plus_line": lambda: _product(_solutions(lambda x: abs(2 * x - 1) == x + 4)),
    "which_root_fits": lambda: next(x for x in (1, 2, 3, 4) if x**3 - 5 * x == 12),
    "root_that_survives": lambda: next(x for x in range(101) if x + 6 == x * x),
    "distance_three_four": lambda: math.hypot(3, 4),
    "midpoint_to_origin": lambda: math.hypot((2 + 6) / 2, (7 - 1) / 2),
    "distance_with_root": lambda: math.dist((-1, 3), (3, 5)),
    "positive_root": lambda: next(x for x in range(1, 101) if x * x - x - 20 == 0),
    "sum_of_cubic_roots": lambda: max(_solutions(lambda x: x**3 - 6 * x**2 + 8 * x == 0)),
    "last_digit_of_power": lambda: pow(7, 2026, 10),
    "day_after_hundred": lambda: (3 - 1 + 100) % 7 + 1,
    "remainder_of_product": lambda: (123 * 456) % 11,
    "sum_to_fifty": lambda: sum(range(1, 51)),
    "tenth_term": lambda: list(range(5, 100, 3))[9],
    "telescoping_sum": lambda: sum(
        (Fraction(1, n * (n + 1)) for n in range(1, 10)), start=Fraction(0)
    ),
    "two_digit_sum_five": lambda: sum(n // 10 + n % 10 == 5 for n in range(10, 100)),
    "coins_to_ten": lambda: sum(
        a + 2 * b + 5 * c == 10 for a in range(11) for b in range(6) for c in range(3)
    ),
    "solve_plus": lambda: _solutions(lambda x: x + 9 == 21)[0],
    "solve_times": lambda: _solutions(lambda x: 6 * x == 42)[0],
    "solve_two_steps": lambda: _solutions(lambda x: 3 * x - 4 == 11)[0],
    "remainder_small": lambda: 17 % 5,
    "next_number": lambda: range(2, 100, 2)[4],
    "absolute_difference": lambda: abs(3 - 11),
    "points_on_line": lambda: len(range(-4, 9)),
    "even_numbers_between": lambda: sum(n % 2 == 0 for n in range(1, 21)),
    "common_divisor": lambda: max(n for n in range(1, 37) if 36 % n == 60 % n == 0),
    "dice_sum": lambda: Fraction(sum(a + b == 4 for a in range(1, 7) for b in range(1, 7)), 36),
    "two_numbers": lambda: next(x for x in _INTEGERS if x - (30 - x) == 8),
    "handshakes": lambda: len(list(itertools.combinations(range(6), 2))),
    "slope_between": lambda: Fraction(4 - 2, 5 - 1),
}
