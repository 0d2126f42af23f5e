"""The search_skills tool: its printed definition, and which arguments are valid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skills.domain.search_tool import (
    SEARCH_SKILLS_TOOL,
    TOOL_NAME,
    ArgumentFault,
    InvalidArguments,
    SearchArguments,
    parse_arguments,
)
from skills.domain.skillfile import SkillType

# Skill Following, appendix L, with the spaces and quotes that text extraction lost.
AS_PRINTED = """{
  "type": "function",
  "function": {
    "name": "search_skills",
    "description": "Search the skill library for reusable problem-solving artifacts. Returns \
utility functions (callable helpers you can use directly), procedure templates (algorithm \
skeletons you can specialize), and guard checklists (defensive checks to add at function entry).",
    "parameters": {
      "type": "object",
      "properties": {
        "query": {
          "type": "string",
          "description": "Natural-language query describing the subproblem or pattern you need."
        },
        "types": {
          "type": "array",
          "items": {"type": "string", "enum": ["utility", "procedure", "guard"]},
          "description": "Optional filter. Omit for all types. Use ['utility','procedure'] to \
skip defensive-only skills."
        }
      },
      "required": ["query"]
    }
  }
}"""


def test_the_definition_is_the_printed_one() -> None:
    assert json.loads(AS_PRINTED) == SEARCH_SKILLS_TOOL
    assert TOOL_NAME == "search_skills"
    # Servers put the definition into the prompt: its key order is part of it.
    assert json.dumps(SEARCH_SKILLS_TOOL) == json.dumps(json.loads(AS_PRINTED))


def test_the_types_are_those_of_skills() -> None:
    properties = SEARCH_SKILLS_TOOL["function"]["parameters"]["properties"]
    assert properties["types"]["items"]["enum"] == [type.value for type in SkillType]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"query": "sort"}, SearchArguments("sort")),
        ({"query": " sort \n"}, SearchArguments(" sort \n")),
        ({"query": "sort", "types": None}, SearchArguments("sort")),
        ({"query": "sort", "types": []}, SearchArguments("sort")),
        ({"query": "sort", "types": ["guard"]}, SearchArguments("sort", ("guard",))),
        (
            {"query": "sort", "types": ["utility", "guard", "utility"]},
            SearchArguments("sort", ("utility", "guard")),
        ),
        ({"query": "sort", "k": 5, "more": {}}, SearchArguments("sort")),
        ({"query": "\u524d\u7f00"}, SearchArguments("前缀")),
    ],
)
def test_valid_arguments(arguments: dict[str, Any], expected: SearchArguments) -> None:
    assert parse_arguments(arguments) == expected
    assert parse_arguments(json.dumps(arguments)) == expected


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", ArgumentFault.NOT_JSON),
        ("sort", ArgumentFault.NOT_JSON),
        ('{"query": "sort"', ArgumentFault.NOT_JSON),
        ("{'query': 'sort'}", ArgumentFault.NOT_JSON),
        ("[" * 100_000, ArgumentFault.NOT_JSON),
        ("null", ArgumentFault.NOT_OBJECT),
        ('"sort"', ArgumentFault.NOT_OBJECT),
        ('["sort"]', ArgumentFault.NOT_OBJECT),
        (None, ArgumentFault.NOT_OBJECT),
        (7, ArgumentFault.NOT_OBJECT),
        ({}, ArgumentFault.NO_QUERY),
        ({"q": "sort"}, ArgumentFault.NO_QUERY),
        ({"query": None}, ArgumentFault.NO_QUERY),
        ({"query": ["sort"]}, ArgumentFault.NO_QUERY),
        ({"query": ""}, ArgumentFault.BLANK_QUERY),
        ({"query": " \n\t"}, ArgumentFault.BLANK_QUERY),
        (r'{"query": "a\ud800"}', ArgumentFault.BROKEN_QUERY),
        (r'{"query": "a\u0000"}', ArgumentFault.BROKEN_QUERY),
        ({"query": "sort", "types": "guard"}, ArgumentFault.TYPES_NOT_LIST),
        ({"query": "sort", "types": ""}, ArgumentFault.TYPES_NOT_LIST),
        ({"query": "sort", "types": False}, ArgumentFault.TYPES_NOT_LIST),
        ({"query": "sort", "types": {"guard": 1}}, ArgumentFault.TYPES_NOT_LIST),
        ({"query": "sort", "types": ["guard", "recipe"]}, ArgumentFault.UNKNOWN_TYPE),
        ({"query": "sort", "types": ["Guard"]}, ArgumentFault.UNKNOWN_TYPE),
        ({"query": "sort", "types": [["guard"]]}, ArgumentFault.UNKNOWN_TYPE),
        ({"query": "sort", "types": [None]}, ArgumentFault.UNKNOWN_TYPE),
    ],
)
def test_invalid_arguments(raw: Any, reason: ArgumentFault) -> None:
    assert parse_arguments(raw) == InvalidArguments(reason)
    if not isinstance(raw, str | None):
        assert parse_arguments(json.dumps(raw)) == InvalidArguments(reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["query", "types"]), inner),
    max_leaves=5,
)


@given(JSON)
def test_any_arguments_are_valid_or_given_a_reason(raw: Any) -> None:
    result = parse_arguments(raw)
    if isinstance(result, SearchArguments):
        assert result.query.strip()
        assert result.types is None or set(result.types) <= set(SkillType)
    else:
        assert result.reason in ArgumentFault
