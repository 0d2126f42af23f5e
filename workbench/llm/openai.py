"""One request to an OpenAI-compatible endpoint: send it, and read whatever comes back.

There is no retry here. What can go wrong becomes one of four exceptions:
``Transient`` (may pass), ``ParameterRefused`` (may pass without it),
``CallFailed`` (this request can't pass) and ``EndpointFault`` (none can).
The key is read from the environment at each request and never kept.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlsplit

import httpx2

from workbench.kernel.chat import (
    CallFailed,
    ChatReply,
    ChatRequest,
    EndpointFault,
    Finish,
    ToolCall,
)
from workbench.llm.retry import ParameterRefused, Transient
from workbench.llm.wire import request_json, storable, with_leaves

# The SDK is imported where a request is sent: that takes half a second, which pages and most
# commands never need.
if TYPE_CHECKING:
    from openai import OpenAI

# What a request can go without. ``max_tokens`` is sent under its newer name.
DROPPABLE: Final = (
    "seed",
    "temperature",
    "response_format",
    "max_completion_tokens",
    "max_tokens",
)

_LONGEST_DETAIL: Final = 500
_PAGE: Final = re.compile(
    r"\ufeff?\s*(<\?xml[^>]*>\s*|<!--.*?-->\s*)*<(!doctype html|html|head|body)\b",
    re.IGNORECASE | re.DOTALL,
)
_NOT_AN_API: Final = "this is a web page, not an API: check the base URL (it usually ends in /v1)"
# A shorter secret could be part of ordinary text, which must stay readable.
_SHORTEST_SECRET: Final = 6
# What the ledger's columns hold; a larger count is no count.
_MOST_TOKENS: Final = 2**31 - 1

_KEY: Final = re.compile(r"[!-~]+", re.ASCII)

_FINISH: Final[Mapping[str, Finish]] = {
    "stop": Finish.STOP,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "tool_use": Finish.TOOL_CALLS,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "model_length": Finish.LENGTH,
    "content_filter": Finish.CONTENT_FILTER,
    "safety": Finish.CONTENT_FILTER,
    "sensitive": Finish.CONTENT_FILTER,
    "recitation": Finish.CONTENT_FILTER,
}
# The server itself says that it didn't finish.
_UNFINISHED: Final = frozenset({"", "error", "abort", "cancelled", "insufficient_system_resource"})

_QUOTA_CODES: Final = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "quota_exceeded"}
)
# Not for 429: there some say "quota" of a limit that passes within a minute.
_QUOTA_TEXT: Final = re.compile(r"credit balance|insufficient (balance|credit|fund)", re.I)
_OVERFLOW_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW_TEXT: Final = re.compile(
    r"context[ _](length|window|size)|prompt is too long|input is too long|too many (input )?tokens"
    r"|reduce the length of the (messages|prompt)|exceeds? the (available|maximum) context",
    re.IGNORECASE,
)
_FILTER_CODES: Final = frozenset({"content_filter", "content_policy_violation"})
_FILTER_TEXT: Final = re.compile(r"moderation|content[ _](filter|policy|management)", re.I)
_TOOLS_TEXT: Final = re.compile(r"\btools?\b|tool[ _]use|function call", re.IGNORECASE)
_MODEL_CODES: Final = frozenset({"model_not_found", "unknown_model", "invalid_model"})
_MODEL_TEXT: Final = re.compile(
    r"model\b.{0,120}(does not exist|not found|is not supported)"
    r"|not a valid model|(unknown|invalid|no such) model",
    re.IGNORECASE | re.DOTALL,
)
_REFUSED_CODES: Final = frozenset(
    {"unsupported_parameter", "unsupported_value", "unknown_parameter", "extra_forbidden"}
)
_REFUSED_TEXT: Final = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown|not permitted|not allowed|unexpected"
    r"|deprecated|only the default|cannot be (used|set|specified)|not available",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Timeouts:
    """Seconds to connect, and of silence while reading an answer."""

    connect_s: float = 5.0
    read_s: float = 120.0


@dataclass(frozen=True)
class OpenAIEndpoint:
    """An endpoint and a model on it.

    Attributes:
        label: its name in rows and messages.
        base_url: http or https, without user name, query or fragment.
        api_key_env: name of the environment variable that holds the key, or None.
    """

    label: str
    base_url: str
    model: str
    api_key_env: str | None = None
    timeouts: Timeouts = Timeouts()

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url of {self.label} must start with http:// or https://")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(
                f"base_url of {self.label} may hold no user name, password or query: "
                "name the environment variable of the key in api_key_env"
            )

    @property
    def address(self) -> str:
        """Return host and port, as an operator would check them."""
        parts = urlsplit(self.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return f"{parts.hostname}:{port}"

    def key(self) -> str | None:
        """Return the key, or None where the endpoint needs none.

        Raises:
            EndpointFault: ``wrong_key``: the named variable is unset or empty.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise EndpointFault(
                "wrong_key", f"the environment variable {self.api_key_env} is not set"
            )
        if not _KEY.fullmatch(key):
            # No header can hold it; a typographic quote is a usual cause.
            raise EndpointFault(
                "wrong_key", f"the environment variable {self.api_key_env} holds no possible key"
            )
        return key

    def send(self, request: ChatRequest, *, without: frozenset[str] = frozenset()) -> ChatReply:
        """Return the reply to one request, sent without the named parameters.

        Raises:
            Transient, ParameterRefused, CallFailed, EndpointFault: see the module.
        """
        key = self.key()
        started = time.perf_counter()
        status, headers, text = self._post(key, request_body(request, self.model, without=without))
        latency_s = time.perf_counter() - started
        return read_answer(
            status=status,
            headers=headers,
            text=text,
            endpoint=self,
            without=without,
            latency_s=latency_s,
            hide=hiding(key),
        )

    def models(self) -> tuple[str, ...]:
        """Return the ids of the endpoint's models; empty when it doesn't list them."""
        from openai import OpenAIError

        try:
            key = self.key()
            client = _client(self.base_url, self.timeouts, os.getpid())
            answer = client.get(
                "/models", cast_to=httpx2.Response, options={"headers": _headers(key)}
            )
            data = hiding(key)(json.loads(answer.text))["data"]
            return tuple(sorted(str(item["id"]) for item in data))
        except (OpenAIError, httpx2.HTTPError, ValueError, LookupError, TypeError):
            return ()

    def _post(self, key: str | None, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], str]:
        """Return status, headers and text of the answer, whatever its status."""
        from openai import APIConnectionError, APIStatusError

        client = _client(self.base_url, self.timeouts, os.getpid())
        response: httpx2.Response | None = None
        failure: Exception | None = None
        try:
            response = client.post(
                "/chat/completions",
                body=body,
                cast_to=httpx2.Response,
                options={"headers": _headers(key)},
            )
        except APIStatusError as error:
            response = error.response
        except (APIConnectionError, httpx2.HTTPError) as error:
            failure = self._transport_failure(error.__cause__ or error)
        # Raised out here: an exception chained to the SDK's would carry the request,
        # and with it the key, into tracebacks.
        if failure is not None:
            raise failure
        assert response is not None
        return response.status_code, dict(response.headers), response.text

    def _transport_failure(self, cause: BaseException) -> Transient:
        name = type(cause).__name__
        if isinstance(cause, httpx2.ReadTimeout):
            return Transient(
                "timeout", f"{self.address} sent nothing for {self.timeouts.read_s:g} s"
            )
        never_sent = (
            httpx2.ConnectError,
            httpx2.ConnectTimeout,
            httpx2.PoolTimeout,
            httpx2.ProxyError,
            httpx2.UnsupportedProtocol,
            httpx2.LocalProtocolError,
        )
        if isinstance(cause, never_sent):
            return Transient(
                "transport",
                f"can't reach {self.address} ({name}: {cause}): is it running? Check the URL",
            )
        return Transient("incomplete", f"the connection to {self.address} broke off ({name})")


def request_body(
    request: ChatRequest, model: str, *, without: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the body of a chat completion request."""
    data = request_json(request)
    body: dict[str, Any] = {
        "model": model,
        "messages": [_wire_message(message) for message in data["messages"]],
        "temperature": data["temperature"],
        "max_tokens": data["max_tokens"],
        "seed": data["seed"],
    }
    if data["tools"]:
        body["tools"] = data["tools"]
    if data["response_format"] is not None:
        body["response_format"] = data["response_format"]
    if "max_tokens" in without:
        body["max_completion_tokens"] = body["max_tokens"]
    return {name: value for name, value in body.items() if name not in without}


def read_answer(
    *,
    status: int,
    headers: Mapping[str, str],
    text: str,
    endpoint: OpenAIEndpoint,
    without: frozenset[str] = frozenset(),
    latency_s: float | None = None,
    hide: Callable[[Any], Any] = lambda value: value,
) -> ChatReply:
    """Return the reply in an HTTP answer.

    A full context and a refused content are replies too: they are results of the
    model, not failures of the call.

    Args:
        hide: takes the key out of whatever comes back; see ``hiding``.

    Raises:
        Transient, ParameterRefused, CallFailed, EndpointFault: see the module.
    """
    body = _decode(text, hide)
    error = _error_of(body, failed=status >= 300)
    if error is None and status < 500 and _PAGE.match(text):
        error = _Error(_NOT_AN_API)
        if status < 300:
            raise Transient("incomplete", f"{endpoint.label} answered {status}: {_NOT_AN_API}")
    if status < 300 and error is None:
        reply = read_reply(body, without=without, latency_s=latency_s)
        # Once more: a text may come in parts, none of which holds the whole key.
        return replace(reply, content=hide(reply.content), reasoning=hide(reply.reasoning))
    if status < 300 and error is not None:
        # Some routers answer 200 and put the provider's status into the body.
        status = error.status if error.status >= 400 else 502
    error = error or _Error(_brief(hide(text)))
    return _read_error(status, headers, error, endpoint, without, latency_s)


def read_reply(
    body: Any, *, without: frozenset[str] = frozenset(), latency_s: float | None = None
) -> ChatReply:
    """Return the reply in the body of a chat completion.

    Raises:
        Transient: ``incomplete``: no choice, no message, or no reason why it ended
            (an answer whose end isn't marked can't be told from one cut off).
    """
    choices = body.get("choices") if isinstance(body, Mapping) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
        raise Transient("incomplete", "the answer holds no chat completion")
    reason = str(choice.get("finish_reason") or "").lower()
    if reason in _UNFINISHED:
        raise Transient("incomplete", f"the answer did not finish (finish_reason {reason!r})")
    calls = message.get("tool_calls")
    usage = body.get("usage")
    return ChatReply(
        content=_content(message.get("content")),
        finish=_FINISH.get(reason, Finish.STOP),
        tool_calls=tuple(map(_tool_call, calls)) if isinstance(calls, list) else (),
        tokens_in=_count(usage, "prompt_tokens"),
        tokens_out=_count(usage, "completion_tokens"),
        latency_s=latency_s,
        reasoning=_content(message.get("reasoning_content") or message.get("reasoning")),
        dropped_parameters=tuple(sorted(without)),
    )


# --- the key ----------------------------------------------------------------


def hiding(key: str | None) -> Callable[[Any], Any]:
    """Return a function that puts ``[key]`` for ``key`` in every text of a JSON value."""
    if key is None or len(key) < _SHORTEST_SECRET:
        return lambda value: value
    pattern = re.compile("".join(map(_spellings, key)), re.IGNORECASE)

    def without_key(value: Any) -> Any:
        return pattern.sub("[key]", value) if isinstance(value, str) else value

    return lambda value: with_leaves(value, without_key)


def _spellings(character: str) -> str:
    """Return a pattern of the ways to write ``character`` in JSON, a URL and HTML.

    A text may hold JSON that is decoded later, such as the arguments of a tool
    call, and that may hold JSON again: so there may be several backslashes.
    """
    number, code = ord(character), f"{ord(character):02x}"
    in_json = rf"\\{{0,7}}(?-i:{re.escape(character)})|\\{{1,7}}u00{code}"
    return rf"(?:{in_json}|%{code}|&#0*{number};|&#x0*{code};)"


# --- errors -----------------------------------------------------------------


@dataclass(frozen=True)
class _Error:
    message: str
    codes: frozenset[str] = frozenset()
    param: str | None = None
    status: int = 0


def _error_of(body: Any, *, failed: bool) -> _Error | None:
    """Return the error in ``body`` in any of the shapes servers use, or None."""
    if not isinstance(body, Mapping):
        return None
    found = body.get("error") or body.get("detail") or body.get("errors")
    if not found and (failed or body.get("object") == "error"):
        found = body
    if not found or body.get("choices"):
        return None
    if isinstance(found, list):
        found = found[0]
    if not isinstance(found, Mapping):
        return _Error(_brief(str(found)))
    code = found.get("code")
    message = found.get("message") or found.get("msg") or found
    location = found.get("loc")
    param = location[-1] if isinstance(location, list) and location else found.get("param")
    return _Error(
        message=_brief(message if isinstance(message, str) else json.dumps(message)),
        codes=frozenset(str(found[name]) for name in ("code", "type") if found.get(name)),
        param=param if isinstance(param, str) else None,
        status=code if isinstance(code, int) and not isinstance(code, bool) else 0,
    )


def _read_error(
    status: int,
    headers: Mapping[str, str],
    error: _Error,
    endpoint: OpenAIEndpoint,
    without: frozenset[str],
    latency_s: float | None,
) -> ChatReply:
    answer = f"{status}: {error.message.rstrip('.: ')}"
    detail = f"{endpoint.label} answered {answer}"
    if status == 402 or error.codes & _QUOTA_CODES or _says_quota(status, error):
        spent = f"the account at {endpoint.label} has nothing left ({answer})"
        raise EndpointFault("quota_spent", spent)
    if status in (400, 403, 413, 422):
        finish = _finish_of_refusal(status, error)
        if finish is not None:
            return ChatReply(
                content=None,
                finish=finish,
                latency_s=latency_s,
                dropped_parameters=tuple(sorted(without)),
            )
    if status in (401, 403):
        refused_key = (
            f"the key in {endpoint.api_key_env} ({answer})"
            if endpoint.api_key_env
            else f"a request without a key ({answer}); name the variable that holds one: "
            "api_key_env in an experiment file, --api-key-env of audit"
        )
        raise EndpointFault("wrong_key", f"{endpoint.label} refused {refused_key}")
    refused = _refused_parameter(error) if status in (400, 422) else None
    if refused is not None and refused not in without:
        raise ParameterRefused(refused, detail)
    if _model_is_unknown(status, error, endpoint.model):
        if error.message != _NOT_AN_API:
            detail = f"{endpoint.base_url} doesn't serve {endpoint.model!r} ({answer})"
        raise EndpointFault("unknown_model", detail)
    raise _failure(status, headers, error, detail)


def _says_quota(status: int, error: _Error) -> bool:
    return status in (400, 403) and bool(_QUOTA_TEXT.search(error.message))


def _finish_of_refusal(status: int, error: _Error) -> Finish | None:
    if error.codes & _FILTER_CODES or (status == 403 and _FILTER_TEXT.search(error.message)):
        return Finish.CONTENT_FILTER
    if error.codes & _OVERFLOW_CODES or (status != 403 and _OVERFLOW_TEXT.search(error.message)):
        return Finish.CONTEXT_OVERFLOW
    return None


def _model_is_unknown(status: int, error: _Error, model: str) -> bool:
    if error.codes & _MODEL_CODES:
        return True
    if status == 404:
        # A router without a provider that takes tools answers 404 as well.
        return not _TOOLS_TEXT.search(error.message)
    return status < 429 and model in error.message and bool(_MODEL_TEXT.search(error.message))


def _failure(
    status: int, headers: Mapping[str, str], error: _Error, detail: str
) -> Transient | CallFailed:
    if status == 429:
        return Transient("rate_limited", detail, headers)
    if status >= 500 or status in (408, 409, 425):
        return Transient("server_error", detail, headers)
    if status < 400:
        detail += " (redirects are off)"
    elif _TOOLS_TEXT.search(error.message):
        detail += ' (for an endpoint without tool calls set dialect = "json_action")'
    return CallFailed("bad_request", detail)


def _refused_parameter(error: _Error) -> str | None:
    """Return the droppable parameter that ``error`` refuses, or None."""
    if not (error.codes & _REFUSED_CODES or _REFUSED_TEXT.search(error.message)):
        return None
    if error.param is not None:
        param = error.param.split(".")[0].split("[")[0]
        return param if param in DROPPABLE else None
    # The refused name comes first; an advice such as "use ... instead" after it.
    named = [(error.message.find(name), name) for name in DROPPABLE if name in error.message]
    return min(named)[1] if named else None


# --- shapes -----------------------------------------------------------------


def _wire_message(message: Mapping[str, Any]) -> dict[str, Any]:
    data = dict(message)
    if "tool_calls" in data:
        data["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in data["tool_calls"]
        ]
    return data


def _tool_call(call: Any) -> ToolCall:
    call = call if isinstance(call, Mapping) else {}
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    return ToolCall(
        id=str(call.get("id") or ""),
        name=str(function.get("name") or ""),
        arguments=function.get("arguments"),
    )


def _content(content: Any) -> str | None:
    """Return the text of ``content``: a string, or a list of parts of which text counts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, Mapping) else part
            for part in content
            if not isinstance(part, Mapping) or part.get("type", "text") in ("text", "output_text")
        ]
        return "".join(text for text in texts if isinstance(text, str))
    return None


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _decode(text: str, hide: Callable[[Any], Any]) -> Any:
    """Return the JSON in ``text`` made storable and without the key, or None."""
    try:
        return hide(storable(json.loads(text, parse_constant=_no_constant)))
    except (ValueError, RecursionError):
        return None


def _brief(text: str) -> str:
    if _PAGE.match(text):
        return "a web page in place of an answer"
    text = " ".join(str(storable(text)).split())
    return text if len(text) <= _LONGEST_DETAIL else text[:_LONGEST_DETAIL] + "…"


# --- connection -------------------------------------------------------------


def _headers(key: str | None) -> dict[str, Any]:
    """Return the headers of one request; the SDK adds none of its own about the account."""
    from openai import Omit

    return {
        "Authorization": Omit() if key is None else f"Bearer {key}",
        "OpenAI-Organization": Omit(),
        "OpenAI-Project": Omit(),
    }


@lru_cache(maxsize=32)
def _client(base_url: str, timeouts: Timeouts, pid: int) -> OpenAI:
    """Return this process's client: a forked child must not share its parent's sockets."""
    from openai import OpenAI

    return OpenAI(
        # The real key goes with each request.
        api_key="none",
        base_url=base_url,
        max_retries=0,
        http_client=httpx2.Client(
            timeout=httpx2.Timeout(timeouts.read_s, connect=timeouts.connect_s),
            follow_redirects=False,
            # A proxy in the environment can't reach this machine's own servers.
            trust_env=not _is_loopback(base_url),
        ),
    )


def _is_loopback(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
