"""The ``search_skills`` tool: its definition as the paper prints it, and its arguments read.

Source of the definition: Skill Following, appendix L. Which arguments are
invalid is left open there; the rules are those of ``ArgumentFault``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from skills.domain.skillfile import SkillType

TOOL_NAME: Final = "search_skills"

SEARCH_SKILLS_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": TOOL_NAME,
        "description": (
            "Search the skill library for reusable problem-solving artifacts. "
            "Returns utility functions (callable helpers you can use directly), "
            "procedure templates (algorithm skeletons you can specialize), and "
            "guard checklists (defensive checks to add at function entry)."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "query": {
                    "type": "string",
                    "description": (
                        "Natural-language query describing the subproblem or pattern you need."
                    ),
                },
                "types": {
                    "type": "array",
                    "items": {"type": "string", "enum": ["utility", "procedure", "guard"]},
                    "description": (
                        "Optional filter. Omit for all types. Use "
                        "['utility','procedure'] to skip defensive-only skills."
                    ),
                },
            },
            "required": ["query"],
        },
    },
}


class ArgumentFault(StrEnum):
    """Why a call's arguments are invalid: it returns no skill, and generation goes on."""

    NOT_JSON = "not_json"
    NOT_OBJECT = "not_object"
    NO_QUERY = "no_query"
    BLANK_QUERY = "blank_query"
    BROKEN_QUERY = "broken_query"
    TYPES_NOT_LIST = "types_not_list"
    UNKNOWN_TYPE = "unknown_type"


@dataclass(frozen=True)
class SearchArguments:
    """A valid call; ``types`` None means all."""

    query: str
    types: tuple[str, ...] | None = None


@dataclass(frozen=True)
class InvalidArguments:
    """An invalid call and the first rule that it breaks."""

    reason: ArgumentFault


def parse_arguments(raw: Any) -> SearchArguments | InvalidArguments:
    """Return the arguments in ``raw``, a JSON text or the object decoded from one.

    Keys other than ``query`` and ``types`` are ignored; ``types`` null or
    empty means all types.
    """
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except (ValueError, RecursionError):
            return InvalidArguments(ArgumentFault.NOT_JSON)
    if not isinstance(raw, Mapping):
        return InvalidArguments(ArgumentFault.NOT_OBJECT)

    query: Any = raw.get("query")
    types: Any = raw.get("types")
    types = [] if types is None else types
    if fault := _query_fault(query) or _types_fault(types):
        return InvalidArguments(fault)
    return SearchArguments(query=query, types=tuple(dict.fromkeys(types)) or None)


def _query_fault(query: Any) -> ArgumentFault | None:
    if not isinstance(query, str):
        return ArgumentFault.NO_QUERY
    if not query.strip():
        return ArgumentFault.BLANK_QUERY
    # JSON can escape what no UTF-8 text (half a surrogate pair) and no
    # PostgreSQL column (NUL) can hold.
    if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in query):
        return ArgumentFault.BROKEN_QUERY
    return None


def _types_fault(types: Any) -> ArgumentFault | None:
    if not isinstance(types, list | tuple):
        return ArgumentFault.TYPES_NOT_LIST
    if any(type not in list(SkillType) for type in types):
        return ArgumentFault.UNKNOWN_TYPE
    return None
