"""Tagged values: the plain Python values a checker compares, in a JSON form that keeps their types.

``null``, booleans, integers, finite floats, strings and lists stand for
themselves, and so does a dictionary whose keys are strings that don't begin
with ``$``. Everything else is an object with one key::

    {"$tuple": [...]}  {"$set": [...]}  {"$frozenset": [...]}  {"$dict": [[key, value], ...]}
    {"$float": "nan" | "inf" | "-inf"}  {"$bytes": "<base64>"}  {"$complex": [real, imaginary]}

This module is also run inside the sandbox, so it imports nothing that an
isolated interpreter would not have.
"""

from __future__ import annotations

import binascii
import sys

TYPE_CHECKING = False  # importing typing would take longer than running most programs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    Tagged: TypeAlias = Any

# A list that holds itself twice, thirty times over, has 2**30 leaves.
MAX_NODES = 500_000


class Unencodable(ValueError):
    """A value has no tagged form: an object, an instance of a subclass, or too much of it."""


class Malformed(ValueError):
    """A tagged form stands for no value, or for more than the caller accepts."""


def encode(value: Any) -> Tagged:
    """Return the tagged form of ``value``.

    Types are compared exactly, so an object that claims to equal everything,
    or an instance of a subclass of ``list``, has none. The dictionaries of
    ``collections`` are the exception: honest programs return them for ``dict``
    and Python holds them equal, so their contents are encoded as a ``dict``'s.

    Raises:
        Unencodable: ``value`` or something in it has no tagged form.
        RecursionError: ``value`` is nested too deeply, or holds itself.
    """
    budget = [MAX_NODES]

    def walk(item: Any) -> Tagged:
        budget[0] -= 1
        if budget[0] < 0:
            raise Unencodable("value too large")
        kind = type(item)
        if item is None or kind is bool or kind is int or kind is str:
            return item
        if kind is float:
            return _encode_float(item)
        if kind is list:
            return [walk(part) for part in item]
        if kind is tuple:
            return {"$tuple": [walk(part) for part in item]}
        if kind is set or kind is frozenset:
            # Sorted, so that one set has one form whatever the hash seed.
            return {"$" + kind.__name__: sorted((walk(part) for part in item), key=repr)}
        if kind is dict or any(kind is known for known in _library_dicts()):
            return _encode_dict(item, walk)
        if kind is bytes:
            return {"$bytes": binascii.b2a_base64(item, newline=False).decode("ascii")}
        if kind is complex:
            return {"$complex": [_encode_float(item.real), _encode_float(item.imag)]}
        raise Unencodable(f"{kind.__name__} is not a plain value")

    return walk(value)


def decode(tagged: Tagged, *, max_hashed: int | None = None) -> Any:
    """Return the value that ``tagged`` (as ``json.loads`` gives it) stands for.

    Args:
        max_hashed: most set members and ``$dict`` keys to build. Integers can
            be chosen to collide, which makes building a set of n take n**2
            steps, so a caller that reads untrusted text gives a bound.

    Raises:
        Malformed: an unknown tag, a wrong shape, a number that isn't finite,
            an unhashable member, or more than ``max_hashed`` members.
        RecursionError: nested too deeply.
    """
    budget = [sys.maxsize if max_hashed is None else max_hashed]

    def spend(members: list[Any]) -> None:
        budget[0] -= len(members)
        if budget[0] < 0:
            raise Malformed("more set members or keys than any accepted value has")

    def walk(item: Tagged) -> Any:
        kind = type(item)
        if item is None or kind is bool or kind is int or kind is str:
            return item
        if kind is float:
            if item - item != 0.0:
                raise Malformed("a float that is not finite needs its tag")
            return item
        if kind is list:
            return [walk(part) for part in item]
        if kind is not dict:
            raise Malformed(f"{kind.__name__} is no JSON type")
        tag = next(iter(item), "")
        if len(item) != 1 or not tag.startswith("$"):
            if any(key.startswith("$") for key in item):
                raise Malformed("a tag stands alone")
            return {key: walk(part) for key, part in item.items()}
        return untag(tag, item[tag])

    def untag(tag: str, body: Any) -> Any:
        if tag == "$float":
            if body not in ("nan", "inf", "-inf"):
                raise Malformed("$float is nan, inf or -inf")
            return float(body)
        if tag == "$bytes":
            if type(body) is not str:
                raise Malformed("$bytes is base64 text")
            try:
                return binascii.a2b_base64(body, strict_mode=True)
            except ValueError as error:
                raise Malformed("$bytes is base64 text") from error
        if type(body) is not list:
            raise Malformed(f"{tag} holds a list")
        if tag == "$tuple":
            return tuple([walk(part) for part in body])
        if tag == "$complex":
            parts = [walk(part) for part in body]
            if len(parts) != 2 or any(type(part) not in (int, float) for part in parts):
                raise Malformed("$complex holds two numbers")
            try:
                return complex(*parts)
            except OverflowError as error:
                raise Malformed("$complex holds two numbers") from error
        spend(body)
        try:
            if tag == "$set":
                return {walk(part) for part in body}
            if tag == "$frozenset":
                return frozenset([walk(part) for part in body])
            if tag == "$dict":
                pairs = [walk(pair) for pair in body]
                if any(type(pair) is not list or len(pair) != 2 for pair in pairs):
                    raise Malformed("$dict holds pairs")
                return dict(pairs)
        except TypeError as error:
            raise Malformed(f"{tag} has a member that can't be hashed") from error
        raise Malformed(f"unknown tag {tag[:20]}")

    return walk(tagged)


def hashed_members(tagged: Tagged) -> int:
    """Return how many set members and ``$dict`` keys ``tagged`` holds, as ``decode`` counts them.

    Equal values have equal counts, so this is the bound for any value that
    could still equal ``tagged``.
    """
    if type(tagged) is list:
        return sum(hashed_members(part) for part in tagged)
    if type(tagged) is not dict:
        return 0
    own = sum(len(tagged[tag]) for tag in ("$set", "$frozenset", "$dict") if tag in tagged)
    return own + sum(hashed_members(part) for part in tagged.values())


def _encode_float(item: float) -> Tagged:
    if item != item:
        return {"$float": "nan"}
    if item in (float("inf"), float("-inf")):
        return {"$float": "inf" if item > 0 else "-inf"}
    return item


def _encode_dict(item: dict[Any, Any], walk: Callable[[Any], Tagged]) -> Tagged:
    pairs = list(dict.items(item))
    if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
        return {key: walk(part) for key, part in pairs}
    return {"$dict": [[walk(key), walk(part)] for key, part in pairs]}


def _library_dicts() -> tuple[type, ...]:
    # Looked up, not imported: a program that returns one has imported it, and
    # the import would cost every other program a tenth of its time.
    collections = sys.modules.get("collections")
    if collections is None:
        return ()
    return (collections.Counter, collections.defaultdict, collections.OrderedDict)
