"""The ChatModel port: what a conversation with a model looks like from inside.

Standard library only, so that domain code may import it. Adapters live in
``workbench.llm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol


class Finish(StrEnum):
    """Why a reply ended, as the endpoint reported it."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    CONTEXT_OVERFLOW = "context_overflow"


@dataclass(frozen=True)
class ToolCall:
    """One function call that a model asked for.

    ``arguments`` is kept as received: a JSON string from most servers, an
    already decoded object from some. The agent decides whether it is valid.
    """

    id: str
    name: str
    arguments: Any


@dataclass(frozen=True)
class Message:
    """One turn of a conversation: ``role`` is system, user, assistant or tool."""

    role: str
    content: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True)
class ChatRequest:
    """Everything that decides a reply; its canonical JSON is the replay key.

    Attributes:
        tools: function definitions in the OpenAI shape; empty sends none.
        temperature: sampling temperature, 0 and up.
        max_tokens: most tokens the reply may have.
        seed: generation seed, 0 to 2**31 - 1.
        response_format: an OpenAI ``response_format`` object or None.
    """

    messages: tuple[Message, ...]
    temperature: float
    max_tokens: int
    seed: int
    tools: tuple[Mapping[str, Any], ...] = ()
    response_format: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class ChatReply:
    """What came back. Unknown usage is None, never 0."""

    content: str | None
    finish: Finish
    tool_calls: tuple[ToolCall, ...] = ()
    tokens_in: int | None = None
    tokens_out: int | None = None
    latency_s: float | None = None
    reasoning: str | None = None
    dropped_parameters: tuple[str, ...] = field(default=())


class CallFailed(Exception):
    """One call could not be completed after its retries; at least one request was sent.

    Attributes:
        kind: ``transport``, ``timeout``, ``rate_limited``, ``server_error``,
            ``incomplete``, ``unstorable`` or ``bad_request``.
        retry_after_s: seconds the endpoint last asked to wait, or None.
    """

    def __init__(self, kind: str, detail: str, retry_after_s: float | None = None) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.retry_after_s = retry_after_s


class EndpointFault(Exception):
    """The endpoint as a whole can't serve: every further call would fail too.

    Attributes:
        kind: ``wrong_key``, ``quota_spent``, ``unknown_model``, ``circuit_open`` or
            ``not_served``; for code, as the text is for people.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail


class EndpointBusy(Exception):
    """The endpoint asks for a longer wait than one call has patience for.

    Nothing has failed: the call is to be made again after ``wait_s`` seconds (above 0).
    """

    def __init__(self, wait_s: float, detail: str) -> None:
        super().__init__(f"busy for {wait_s:.0f} s: {detail}")
        self.wait_s = wait_s
        self.detail = detail


class ChatModel(Protocol):
    """A model bound to one subject (an execution); steps number its calls from 0."""

    def complete(self, request: ChatRequest, *, step: int) -> ChatReply:
        """Return the reply to ``request``.

        Raises:
            CallFailed: this call failed; other calls may succeed.
            EndpointBusy: this call is to be made later.
            EndpointFault: the endpoint can't serve anything now.
        """
        ...
