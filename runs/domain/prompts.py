"""Every fixed text that an arm may send to a model.

The SE prompt is the SD prompt plus the sentences about the tool, nothing else
(paper, App. L). A change of any text here changes ``prompts_sha256``, which is
part of an arm's spec.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runs.domain.tasks import Kind
from skills.domain.search_tool import SEARCH_SKILLS_TOOL, ArgumentFault

_ROLE: Final = "You are a helpful assistant."
_TOOL_SENTENCES: Final = (
    "You have a `search_skills` tool that searches a skill library. "
    "Use it if you think it could help solve the task."
)
# The code text is the paper's; the paper prints no others.
_INSTRUCTIONS: Final[Mapping[Kind, str]] = {
    Kind.CODE: (
        "Implement the requested function with the exact signature. "
        "Reply inside a ```python block — only the function, no test code."
    ),
    Kind.MATHS: "Solve the problem. Put the final answer, and nothing else, inside \\boxed{}.",
    Kind.EXACT: "Answer the question. Put the final answer, and nothing else, inside \\boxed{}.",
    Kind.CHOICE: (
        "Choose one of the given options. "
        "Put the letter of your choice, and nothing else, inside \\boxed{}."
    ),
    Kind.NUMBER: (
        "Answer the question with one number. "
        "Put the number, without its unit, inside \\boxed{} at the end."
    ),
}

# --- native dialect ---------------------------------------------------------

NO_SKILL_FOUND: Final = "The search returned no skill."
_INVALID_ARGUMENTS: Final = "Invalid arguments: {reason}. No skill was returned."
UNKNOWN_TOOL: Final = "There is no such tool. No skill was returned."
NO_CALLS_LEFT: Final = "No calls left. No skill was returned. Give your final answer now."

# --- json_action dialect ----------------------------------------------------

DECISION_INSTRUCTION: Final = (
    "{description} Don't solve the task yet: first decide whether to search. "
    "Reply with one JSON object only. "
    'To search: {{"action": "search_skills", "query": "<the subproblem or pattern you need>"}}. '
    'To go on without searching: {{"action": "answer", "query": ""}}.'
)
DECISION_FORMAT: Final[Mapping[str, Any]] = {
    "type": "json_schema",
    "json_schema": {
        "name": "decision",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "action": {"type": "string", "enum": ["search_skills", "answer"]},
                "query": {"type": "string"},
            },
            "required": ["action", "query"],
            "additionalProperties": False,
        },
    },
}
SKILLS_IN_CONTEXT: Final = "{prompt}\n\nSkills found in the skill library:\n\n{skills}"


@dataclass(frozen=True)
class ReturnedSkill:
    """One skill as a search returned it: ``rank`` counts from 1, ``text`` is its full text."""

    id: str
    name: str
    text: str
    score: float
    rank: int


def system_prompt(*, kind: str, exposed: bool) -> str:
    """Return the system prompt of an arm for a task of ``kind``.

    Raises:
        ValueError: ``kind`` is no task kind.
    """
    instruction = _INSTRUCTIONS[Kind(kind)]
    return " ".join([_ROLE, _TOOL_SENTENCES, instruction] if exposed else [_ROLE, instruction])


def decision_prompt(*, kind: str) -> str:
    """Return the system prompt of a decision turn: the SE prompt and how to state the choice.

    Raises:
        ValueError: ``kind`` is no task kind.
    """
    description = SEARCH_SKILLS_TOOL["function"]["description"]
    instruction = DECISION_INSTRUCTION.format(description=description)
    return f"{system_prompt(kind=kind, exposed=True)}\n\n{instruction}"


def skills_text(skills: Sequence[ReturnedSkill]) -> str:
    """Return the full text of each of ``skills``, in order, between fixed marks."""
    blocks = (
        f"[skill {number}: {skill.name}]\n{skill.text.strip()}\n[end of skill {number}]"
        for number, skill in enumerate(skills, start=1)
    )
    return "\n\n".join(blocks)


def invalid_arguments(fault: ArgumentFault) -> str:
    """Return the text that answers a call whose arguments break the rule ``fault``."""
    return _INVALID_ARGUMENTS.format(reason=fault.value.replace("_", " "))


def prompts_sha256(*, exposed: bool, dialect: str) -> str:
    """Return the hex sha256 of every fixed text an arm may send, for its spec."""
    texts: dict[str, Any] = {kind: system_prompt(kind=kind, exposed=False) for kind in Kind}
    if exposed:
        texts = {"system": {kind: system_prompt(kind=kind, exposed=True) for kind in Kind}}
        probe = ReturnedSkill(id="id", name="name", text="text", score=1.0, rank=1)
        texts["skills"] = skills_text([probe, probe])
        texts["replies"] = [NO_SKILL_FOUND, UNKNOWN_TOOL, NO_CALLS_LEFT]
        texts["faults"] = [invalid_arguments(fault) for fault in ArgumentFault]
        texts["tool"] = SEARCH_SKILLS_TOOL
        texts["dialect"] = dialect
        texts["decision"] = [DECISION_INSTRUCTION, DECISION_FORMAT, SKILLS_IN_CONTEXT]
    canonical = json.dumps(texts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
