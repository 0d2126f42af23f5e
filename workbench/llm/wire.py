"""Requests and replies as plain JSON: what the ledger stores and a recording holds."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from typing import Any

from workbench.kernel.chat import ChatReply, ChatRequest, Finish, Message, ToolCall
from workbench.kernel.identity import canonical_json


def storable(value: Any) -> Any:
    """Return JSON ``value`` as every database can hold it.

    Lone surrogates and NULs become U+FFFD: JSON text can hold both; UTF-8 has no
    form for the first, PostgreSQL for either. Numbers that are too large for a
    float, such as 1e999, become None.
    """
    return with_leaves(value, _storable_leaf)


def with_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return JSON ``value`` with ``change`` made to everything in it that holds nothing else.

    The names in objects are among that.
    """
    if isinstance(value, Mapping):
        return {change(name): with_leaves(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_leaves(item, change) for item in value]
    return change(value)


def _storable_leaf(value: Any) -> Any:
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return value
        text = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return text.replace("\0", "\ufffd")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def request_json(request: ChatRequest) -> dict[str, Any]:
    """Return everything that decides the reply, as plain storable JSON."""
    data = {
        "messages": [_message_json(message) for message in request.messages],
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "tools": list(request.tools),
        "response_format": request.response_format,
    }
    return dict(storable(data))


def request_sha256(request: ChatRequest) -> str:
    """Return the hex sha256 of the request's canonical JSON: the ledger's and replay key."""
    return hashlib.sha256(canonical_json(request_json(request)).encode()).hexdigest()


def reply_json(reply: ChatReply) -> dict[str, Any]:
    """Return ``reply`` as plain storable JSON."""
    data = {
        "content": reply.content,
        "finish": reply.finish.value,
        "tool_calls": [_call_json(call) for call in reply.tool_calls],
        "tokens_in": reply.tokens_in,
        "tokens_out": reply.tokens_out,
        "latency_s": reply.latency_s,
        "reasoning": reply.reasoning,
        "dropped_parameters": list(reply.dropped_parameters),
    }
    return dict(storable(data))


def reply_from(data: Mapping[str, Any]) -> ChatReply:
    """Return the reply that ``reply_json`` wrote.

    Raises:
        KeyError: a field is missing.
    """
    return ChatReply(
        content=data["content"],
        finish=Finish(data["finish"]),
        tool_calls=tuple(ToolCall(**call) for call in data["tool_calls"]),
        tokens_in=data["tokens_in"],
        tokens_out=data["tokens_out"],
        latency_s=data["latency_s"],
        reasoning=data["reasoning"],
        dropped_parameters=tuple(data["dropped_parameters"]),
    )


def _message_json(message: Message) -> dict[str, Any]:
    data: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        data["tool_calls"] = [_call_json(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    return data


def _call_json(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments}
