"""One arm of a pair: the conversation with a model, with or without the search tool.

The protocol is the paper's (section 4, App. K and L); what it leaves open is
said where it is decided.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, TypeVar

from runs.domain import prompts
from runs.domain.prompts import ReturnedSkill
from skills.domain.search_tool import (
    SEARCH_SKILLS_TOOL,
    TOOL_NAME,
    InvalidArguments,
    parse_arguments,
)
from workbench.kernel.chat import (
    CallFailed,
    ChatModel,
    ChatReply,
    ChatRequest,
    EndpointBusy,
    EndpointFault,
    Finish,
    Message,
    ToolCall,
)

_Number = TypeVar("_Number", int, float)
SearchTool = Callable[[str, tuple[str, ...] | None], Sequence[ReturnedSkill]]

# A decision is one short line; a model that rambles must not cost a full answer.
DECISION_MAX_TOKENS: Final = 256


class Dialect(StrEnum):
    """How a model is offered the tool.

    ``native`` sends a tool definition. ``json_action`` is for endpoints without
    tool calls: a turn constrained to a small JSON object says whether to search.
    """

    NATIVE = "native"
    JSON_ACTION = "json_action"


class Status(StrEnum):
    """How an arm ended; all but ``answered`` carry the reason for a poor answer."""

    ANSWERED = "answered"
    TRUNCATED = "truncated"
    FILTERED = "filtered"
    CONTEXT_OVERFLOW = "context_overflow"
    EMPTY = "empty"


UNKNOWN_TOOL: Final = "unknown_tool"
NO_CALLS_LEFT: Final = "no_calls_left"

_CUT_SHORT: Final = {
    Finish.LENGTH: Status.TRUNCATED,
    Finish.CONTENT_FILTER: Status.FILTERED,
    Finish.CONTEXT_OVERFLOW: Status.CONTEXT_OVERFLOW,
}


@dataclass(frozen=True)
class AgentSettings:
    """What both arms of a pair share.

    Attributes:
        temperature: sampling temperature, 0 and up.
        max_tokens: most tokens of one reply, 1 and up.
        max_searches: most answered tool calls, 1 and up; one more turn gives the answer.
        k: most skills one search may return; 0 where the control returns none.
    """

    temperature: float
    max_tokens: int
    dialect: Dialect = Dialect.NATIVE
    max_searches: int = 3
    k: int = 3

    def __post_init__(self) -> None:
        if self.max_searches < 1 or self.max_tokens < 1 or self.k < 0 or self.temperature < 0:
            raise ValueError("max_searches and max_tokens start at 1, k and temperature at 0")


@dataclass(frozen=True)
class ReturnedRef:
    """A returned skill without its text, which the messages hold."""

    id: str
    name: str
    score: float
    rank: int


@dataclass(frozen=True)
class Search:
    """One tool call that the agent answered.

    Attributes:
        step: number of the call to the model that asked for it.
        arguments: as received, of any JSON type.
        reason: why it was not executed: an ``ArgumentFault`` code, ``unknown_tool`` or
            ``no_calls_left``; None when it was.
    """

    step: int
    call_id: str
    tool: str
    arguments: Any
    query: str | None
    types: tuple[str, ...] | None
    valid: bool
    reason: str | None
    executed: bool
    returned: tuple[ReturnedRef, ...] = ()


@dataclass(frozen=True)
class Step:
    """One completed call to the model.

    A request repeats most of the one before it, so only what is new is kept:
    its messages are the first ``kept`` ones of the previous step, then ``messages``.
    """

    kept: int
    messages: tuple[Message, ...]
    offers_tool: bool
    decision: bool
    reply: ChatReply


@dataclass(frozen=True)
class Trace:
    """All that happened in one arm; partial, with ``status`` None, when a call failed.

    Attributes:
        answer: the text to be graded; empty unless the model gave one.
        turns: completed calls to the model.
        dropped_calls: tool calls that were asked for but not answered, because only
            the first of a reply is, or because the arm offers no tool.
        malformed_decisions: decision turns whose reply was no decision.
        tokens_in, tokens_out: sums over the steps; None when any is unknown.
    """

    exposed: bool
    steps: tuple[Step, ...]
    searches: tuple[Search, ...]
    dropped_calls: int
    malformed_decisions: int
    answer: str
    status: Status | None

    @property
    def turns(self) -> int:
        return len(self.steps)

    @property
    def invocations(self) -> int:
        """Count the calls of the search tool, valid or not."""
        return sum(search.tool == TOOL_NAME for search in self.searches)

    @cached_property
    def returned_ids(self) -> tuple[str, ...]:
        """Return the ids of all returned skills, each once, in order of first return."""
        return tuple(dict.fromkeys(ref.id for search in self.searches for ref in search.returned))

    @property
    def loaded_ids(self) -> tuple[str, ...]:
        """Return the ids whose text entered the context: here all that were returned."""
        return self.returned_ids

    @property
    def retrieved(self) -> bool:
        """Tell whether a search returned at least one skill (paper: S_call = S_ret)."""
        return bool(self.returned_ids)

    @property
    def dropped_parameters(self) -> tuple[str, ...]:
        return tuple(sorted({name for s in self.steps for name in s.reply.dropped_parameters}))

    @property
    def tokens_in(self) -> int | None:
        return _total([step.reply.tokens_in for step in self.steps])

    @property
    def tokens_out(self) -> int | None:
        return _total([step.reply.tokens_out for step in self.steps])

    @property
    def latency_s(self) -> float | None:
        return _total([step.reply.latency_s for step in self.steps])

    def messages_of(self, number: int) -> tuple[Message, ...]:
        """Return all messages of the request of step ``number``, counted from 0."""
        step = self.steps[number]
        before = self.messages_of(number - 1)[: step.kept] if step.kept else ()
        return before + step.messages

    def to_json(self) -> dict[str, Any]:
        """Return the trace as plain JSON; derived figures are there for readers."""
        return {
            "schema": "trace/1",
            "exposed": self.exposed,
            "status": None if self.status is None else self.status.value,
            "answer": self.answer,
            "turns": self.turns,
            "invocations": self.invocations,
            "retrieved": self.retrieved,
            "returned_ids": list(self.returned_ids),
            "loaded_ids": list(self.loaded_ids),
            "dropped_calls": self.dropped_calls,
            "dropped_parameters": list(self.dropped_parameters),
            "malformed_decisions": self.malformed_decisions,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "latency_s": self.latency_s,
            "searches": [_plain(search) for search in self.searches],
            "steps": [_plain(step) for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        """Return the trace that ``to_json`` wrote.

        Raises:
            KeyError: a field is missing.
        """
        return cls(
            exposed=data["exposed"],
            steps=tuple(_step(step) for step in data["steps"]),
            searches=tuple(_search(search) for search in data["searches"]),
            dropped_calls=data["dropped_calls"],
            malformed_decisions=data["malformed_decisions"],
            answer=data["answer"],
            status=None if data["status"] is None else Status(data["status"]),
        )


class AgentStopped(Exception):
    """A call to the model brought no reply; ``trace`` holds what happened before it."""

    def __init__(self, cause: CallFailed | EndpointBusy | EndpointFault, trace: Trace) -> None:
        super().__init__(cause.detail)
        self.cause = cause
        self.trace = trace


class Contaminated(Exception):
    """A skill, or the tool itself, was about to reach an arm that exposes none."""

    def __init__(self, detail: str, trace: Trace) -> None:
        super().__init__(detail)
        self.detail = detail
        self.trace = trace


def plain_request(*, kind: str, prompt: str, settings: AgentSettings, seed: int) -> ChatRequest:
    """Return the request of an arm without skills: no tool sentence, no tool definition.

    Raises:
        ValueError: ``kind`` is no task kind.
    """
    return ChatRequest(
        messages=(
            Message(role="system", content=prompts.system_prompt(kind=kind, exposed=False)),
            Message(role="user", content=prompt),
        ),
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        seed=seed,
    )


def contamination(request: ChatRequest, *, prompt: str | None) -> str | None:
    """Return what in ``request`` an arm without skills must not hold, or None.

    It looks at the final messages, whoever built them: one system message without
    the tool, then the task's own text, and no tool definition.
    """
    if request.tools:
        return "a tool definition in an arm that exposes none"
    if [message.role for message in request.messages] != ["system", "user"]:
        return "messages beside the task in an arm that exposes no skills"
    system, task = request.messages
    if TOOL_NAME in (system.content or ""):
        return "the tool sentence in an arm that exposes none"
    if task.content != prompt:
        return "text added to the task in an arm that exposes no skills"
    return None


def run_agent(
    *,
    model: ChatModel,
    kind: str,
    prompt: str,
    exposed: bool,
    search: SearchTool | None,
    settings: AgentSettings,
    seed: int,
) -> Trace:
    """Return the trace of one arm.

    Args:
        kind: the task's kind, which decides the system prompt.
        prompt: the task, the same text in both arms.
        exposed: whether this arm may search.
        search: called for valid searches only, and never when not ``exposed``.
        seed: generation seed of every request, 0 to 2**31 - 1.

    Raises:
        AgentStopped: a call failed for good or must wait; it carries the partial trace.
        Contaminated: a skill would have reached an arm whose settings expose none.
        ValueError: ``exposed`` without ``search``, or an unknown ``kind``.
    """
    if exposed and search is None:
        raise ValueError("an exposed arm needs a search tool")
    plain = plain_request(kind=kind, prompt=prompt, settings=settings, seed=seed)
    run = _Run(
        model=model,
        settings=settings,
        plain=plain,
        prompt=prompt,
        search=search if exposed else None,
    )
    try:
        if not exposed:
            run.answer_with(run.ask(plain))
        elif settings.dialect is Dialect.NATIVE:
            run.native(kind=kind)
        else:
            run.json_action(kind=kind)
    except (CallFailed, EndpointBusy, EndpointFault) as cause:
        raise AgentStopped(cause, run.trace()) from cause
    return run.trace()


class _Run:
    """One run in progress; everything it notes ends in the trace."""

    def __init__(
        self,
        *,
        model: ChatModel,
        settings: AgentSettings,
        plain: ChatRequest,
        prompt: str,
        search: SearchTool | None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._plain = plain
        self._prompt = prompt
        self._search = search
        self._steps: list[Step] = []
        self._sent: tuple[Message, ...] = ()
        self._searches: list[Search] = []
        self._skills: dict[str, ReturnedSkill] = {}
        self._dropped = 0
        self._malformed = 0
        self._answer = ""
        self._status: Status | None = None

    def trace(self) -> Trace:
        return Trace(
            exposed=self._search is not None,
            steps=tuple(self._steps),
            searches=tuple(self._searches),
            dropped_calls=self._dropped,
            malformed_decisions=self._malformed,
            answer=self._answer,
            status=self._status,
        )

    def native(self, *, kind: str) -> None:
        """Search by tool calls, then answer.

        After ``max_searches`` answered calls the tool is withdrawn. A model that
        still calls it is told once that no calls are left; whatever it says next
        is its answer, so that every run ends.
        """
        system = Message(role="system", content=prompts.system_prompt(kind=kind, exposed=True))
        messages = (system, *self._plain.messages[1:])
        answered = 0
        while True:
            offered = answered < self._settings.max_searches
            reply = self.ask(
                replace(
                    self._plain,
                    messages=messages,
                    tools=(SEARCH_SKILLS_TOOL,) if offered else (),
                )
            )
            if not reply.tool_calls or answered > self._settings.max_searches:
                return self.answer_with(reply)
            # An API wants one tool message for each call it is shown, so the calls
            # that are not answered leave the replayed message too.
            self._dropped += len(reply.tool_calls) - 1
            call = self._with_id(reply.tool_calls[0])
            result = self._answer_call(call, allowed=offered)
            answered += 1
            messages += (
                Message(role="assistant", content=reply.content, tool_calls=(_replayable(call),)),
                Message(role="tool", content=result, tool_call_id=call.id),
            )

    def json_action(self, *, kind: str) -> None:
        """Decide in constrained turns whether to search, then answer in a free one.

        With nothing returned the answer request is the SD arm's, byte for byte, so
        that the arms differ by the skills alone. With skills it is that request with
        their texts after the task. A decision that can't be read ends the deciding.
        """
        system = Message(role="system", content=prompts.decision_prompt(kind=kind))
        messages = (system, *self._plain.messages[1:])
        for _ in range(self._settings.max_searches):
            reply = self.ask(
                replace(
                    self._plain,
                    messages=messages,
                    max_tokens=min(DECISION_MAX_TOKENS, self._settings.max_tokens),
                    response_format=prompts.DECISION_FORMAT,
                )
            )
            self._dropped += len(reply.tool_calls)
            decision = _decision(reply.content)
            if decision is None:
                self._malformed += 1
                break
            if decision["action"] != TOOL_NAME:
                break
            call = self._with_id(ToolCall(id="", name=TOOL_NAME, arguments=json.dumps(decision)))
            result = self._answer_call(call, allowed=True)
            messages += (
                Message(role="assistant", content=reply.content),
                Message(role="user", content=result),
            )
        self.answer_with(self.ask(self._answer_request()))

    def _answer_request(self) -> ChatRequest:
        if not self._skills:
            return self._plain
        system, task = self._plain.messages
        text = prompts.SKILLS_IN_CONTEXT.format(
            prompt=task.content, skills=prompts.skills_text(tuple(self._skills.values()))
        )
        return replace(self._plain, messages=(system, replace(task, content=text)))

    def ask(self, request: ChatRequest) -> ChatReply:
        if self._search is None and (found := contamination(request, prompt=self._prompt)):
            raise Contaminated(found, self.trace())
        reply = self._model.complete(request, step=len(self._steps))
        kept = _common_prefix(self._sent, request.messages)
        self._steps.append(
            Step(
                kept=kept,
                messages=request.messages[kept:],
                offers_tool=bool(request.tools),
                decision=request.response_format is not None,
                reply=reply,
            )
        )
        self._sent = request.messages
        return reply

    def answer_with(self, reply: ChatReply) -> None:
        """Take ``reply``'s text as the answer; reasoning is never one."""
        self._dropped += len(reply.tool_calls)
        text = reply.content or ""
        blank = not text.strip()
        self._answer = "" if blank or reply.finish is Finish.CONTEXT_OVERFLOW else text
        self._status = _CUT_SHORT.get(reply.finish, Status.EMPTY if blank else Status.ANSWERED)

    def _answer_call(self, call: ToolCall, *, allowed: bool) -> str:
        """Return the text of the tool message, having searched where the call is valid."""
        if not allowed:
            self._note(call, reason=NO_CALLS_LEFT)
            return prompts.NO_CALLS_LEFT
        if call.name != TOOL_NAME:
            self._note(call, reason=UNKNOWN_TOOL)
            return prompts.UNKNOWN_TOOL
        parsed = parse_arguments(call.arguments)
        if isinstance(parsed, InvalidArguments):
            self._note(call, reason=parsed.reason.value)
            return prompts.invalid_arguments(parsed.reason)
        assert self._search is not None
        skills = tuple(self._search(parsed.query, parsed.types))
        self._note(call, query=parsed.query, types=parsed.types, skills=skills)
        if len(skills) > self._settings.k:
            raise Contaminated(
                f"a search returned {len(skills)} skills where {self._settings.k} are allowed",
                self.trace(),
            )
        for skill in skills:
            self._skills.setdefault(skill.id, skill)
        return prompts.skills_text(skills) if skills else prompts.NO_SKILL_FOUND

    def _note(
        self,
        call: ToolCall,
        *,
        reason: str | None = None,
        query: str | None = None,
        types: tuple[str, ...] | None = None,
        skills: Sequence[ReturnedSkill] = (),
    ) -> None:
        self._searches.append(
            Search(
                step=len(self._steps) - 1,
                call_id=call.id,
                tool=call.name,
                arguments=call.arguments,
                query=query,
                types=types,
                valid=reason is None,
                reason=reason,
                executed=reason is None,
                returned=tuple(
                    ReturnedRef(id=s.id, name=s.name, score=s.score, rank=s.rank) for s in skills
                ),
            )
        )

    def _with_id(self, call: ToolCall) -> ToolCall:
        """Return ``call`` with an id: some servers send none, all need one back."""
        return call if call.id else replace(call, id=f"call_{len(self._steps) - 1}")


def _no_constant(name: str) -> Any:
    raise ValueError(name)


# NaN and the infinities are no JSON; rows and servers would refuse them later.
_JSON: Final = json.JSONDecoder(parse_constant=_no_constant)


def _replayable(call: ToolCall) -> ToolCall:
    """Return ``call`` as a server can read it back: a name, and a JSON object as text.

    Servers decode replayed arguments; cut-off ones would fail the next request.
    """
    text = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments)
    arguments = text if _object_in(text) is not None else "{}"
    return replace(call, name=call.name or "unknown", arguments=arguments)


def _object_in(text: str) -> dict[str, Any] | None:
    try:
        value = _JSON.decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _decision(content: str | None) -> dict[str, Any] | None:
    """Return the decision in ``content``: its first JSON object with a known action, or None.

    An endpoint that ignores ``response_format`` may put a fence or words around it.
    """
    text = content or ""
    start = text.find("{")
    if start < 0:
        return None
    try:
        value, _ = _JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("action") not in (TOOL_NAME, "answer"):
        return None
    return value


def _common_prefix(first: Sequence[Message], second: Sequence[Message]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _total(values: Sequence[_Number | None]) -> _Number | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return sum(known[1:], start=known[0])


# --- JSON -------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def _message(data: Mapping[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in data["tool_calls"])
    return Message(**{**data, "tool_calls": calls})


def _reply(data: Mapping[str, Any]) -> ChatReply:
    return ChatReply(
        **{
            **data,
            "finish": Finish(data["finish"]),
            "tool_calls": tuple(ToolCall(**call) for call in data["tool_calls"]),
            "dropped_parameters": tuple(data["dropped_parameters"]),
        }
    )


def _step(data: Mapping[str, Any]) -> Step:
    messages = tuple(_message(message) for message in data["messages"])
    return Step(**{**data, "messages": messages, "reply": _reply(data["reply"])})


def _search(data: Mapping[str, Any]) -> Search:
    types = None if data["types"] is None else tuple(data["types"])
    returned = tuple(ReturnedRef(**ref) for ref in data["returned"])
    return Search(**{**data, "types": types, "returned": returned})
