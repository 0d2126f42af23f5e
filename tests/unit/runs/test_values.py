"""Tagged values: round trips, exact types, and what an untrusted text may not do."""

from __future__ import annotations

import collections
import enum
import json
import math
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.domain.values import (
    Malformed,
    Unencodable,
    decode,
    encode,
    hashed_members,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
)
HASHABLE = st.recursive(
    SCALARS,
    lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(HASHABLE, max_size=4)
        | st.frozensets(HASHABLE, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(HASHABLE, inner, max_size=4)
    ),
    max_leaves=20,
)


def shape(value: Any) -> Any:
    """Return value and types as text, NaN and the order of sets and keys apart."""
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(repr(shape(part)) for part in value)
    if isinstance(value, dict):
        return "dict", sorted(repr((shape(k), shape(v))) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [shape(part) for part in value]
    return type(value).__name__, repr(value)


@given(VALUES)
def test_decoding_gives_back_value_and_types_through_json(value: Any) -> None:
    text = json.dumps(encode(value), allow_nan=False)
    assert shape(decode(json.loads(text))) == shape(value)


@given(VALUES)
def test_the_number_of_hashed_members_suffices_to_decode(value: Any) -> None:
    tagged = encode(value)
    assert shape(decode(tagged, max_hashed=hashed_members(tagged))) == shape(value)


def test_plain_values_stand_for_themselves() -> None:
    plain = {"a": [None, True, 1, 2.5, "x"], "b": {}}
    assert encode(plain) == plain
    assert encode((1, {2})) == {"$tuple": [1, {"$set": [2]}]}
    assert encode({"$a": 1}) == {"$dict": [["$a", 1]]}
    assert encode({1: "x"}) == {"$dict": [[1, "x"]]}
    assert encode(math.inf) == {"$float": "inf"}
    assert encode(b"\x00") == {"$bytes": "AA=="}
    assert encode(1 + 2j) == {"$complex": [1.0, 2.0]}


def test_one_set_has_one_form() -> None:
    # Built in both orders, so that collisions would show a difference.
    assert encode({8, 0, 16}) == encode({16, 8, 0}) == {"$set": [0, 16, 8]}


def test_library_dictionaries_count_as_dictionaries() -> None:
    counted = collections.Counter("aab")
    assert encode(counted) == {"a": 2, "b": 1}
    assert encode(collections.defaultdict(list, {1: [2]})) == {"$dict": [[1, [2]]]}
    assert encode(collections.OrderedDict(x=1)) == {"x": 1}


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class _List(list[int]):
    pass


class _Dict(dict[str, int]):
    pass


class _Number(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    "value",
    [
        *[_Equal(), _List([1]), _Dict(a=1), _Number.ONE, [_Equal()], {"a": _List()}],
        *[{_Number.ONE: 1}, range(3), iter([1]), len, object, bytearray(b"x")],
        collections.deque([1]),
    ],
)
def test_objects_and_subclasses_have_no_form(value: Any) -> None:
    with pytest.raises(Unencodable):
        encode(value)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(RecursionError):
        encode(loop)


def test_shared_parts_do_not_explode() -> None:
    value: list[Any] = [0]
    for _ in range(40):  # 2**40 leaves if written out
        value = [value, value]
    with pytest.raises(Unencodable, match="too large"):
        encode(value)


@pytest.mark.parametrize(
    "tagged",
    [
        {"$what": []},
        {"$tuple": 1},
        {"$tuple": [], "x": 1},
        {"x": 1, "$set": []},
        {"$float": "1e5"},
        {"$float": 1.0},
        {"$bytes": "*"},
        {"$bytes": 1},
        {"$complex": [1]},
        {"$complex": [True, 1]},
        {"$complex": [10**400, 0]},
        {"$dict": [[1]]},
        {"$dict": [1]},
        {"$set": [[1]]},
        {"$dict": [[[1], 2]]},
        {"$frozenset": {}},
        math.inf,
        math.nan,
        (1,),
    ],
)
def test_malformed_tags_are_refused(tagged: Any) -> None:
    with pytest.raises(Malformed):
        decode(tagged)


def test_colliding_members_cost_nothing_within_the_bound() -> None:
    # Multiples of 2**61 - 1 all hash to 0: 30,000 of them would take minutes.
    hostile = {"$set": [n * (2**61 - 1) for n in range(1, 30_000)]}
    started = time.perf_counter()
    with pytest.raises(Malformed, match="more set members"):
        decode(hostile, max_hashed=3)
    assert time.perf_counter() - started < 1.0
