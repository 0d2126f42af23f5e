"""From an endpoint's configuration to a model, and a check that it can serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl
from uuid import UUID

from django.conf import settings

from workbench.kernel.chat import (
    CallFailed,
    ChatModel,
    ChatReply,
    ChatRequest,
    EndpointFault,
    Finish,
    Message,
)
from workbench.llm.ledger import Adapter, LedgeredModel, Price
from workbench.llm.limits import EndpointGateKeeper, GatePolicy
from workbench.llm.openai import DROPPABLE, OpenAIEndpoint, Timeouts
from workbench.llm.replay import (
    ReplayModel,
    ScriptedAnswer,
    ScriptedModel,
    answers_to,
    read_recording,
)
from workbench.llm.retry import (
    ParameterRefused,
    RetryPolicy,
    Timing,
    Transient,
    asked_wait_s,
)

POLICY: Final = RetryPolicy()

# The smallest tool there is, to see whether the endpoint takes any.
_PROBE_TOOL: Final[Mapping[str, Any]] = {
    "type": "function",
    "function": {
        "name": "noop",
        "description": "Does nothing. Never call it.",
        "parameters": {"type": "object", "properties": {}},
    },
}
_PROBE_FORMAT: Final[Mapping[str, Any]] = {
    "type": "json_schema",
    "json_schema": {
        "name": "probe",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"ok": {"type": "boolean"}},
            "required": ["ok"],
            "additionalProperties": False,
        },
    },
}
_MOST_MODELS_LISTED: Final = 20
_EMBEDDED_READ_S: Final = 600.0


class BadEndpoint(ValueError):
    """An endpoint's configuration can't be used; the text says what to change."""


@dataclass(frozen=True)
class Probe:
    """What one small call to an endpoint showed.

    Attributes:
        kind: ``ok``, or why it can't serve: a kind of ``EndpointFault`` or ``CallFailed``,
            ``bad_endpoint``, or ``context_overflow``.
        message: for the operator, one line; never holds the key.
        dropped_parameters: parameters that the model refuses; both arms go without.
        wait_s: seconds it asked to wait, where it did.
    """

    ok: bool
    kind: str
    message: str
    dropped_parameters: tuple[str, ...] = ()
    wait_s: float | None = None


def chat_model_for(
    *,
    endpoint: Mapping[str, Any],
    subject: UUID,
    timing: Timing | None = None,
    still_ours: Callable[[], None] = lambda: None,
    retries: int = 0,
) -> ChatModel:
    """Return the model of ``endpoint``, bound to ``subject`` in the call ledger.

    Args:
        endpoint: ``label``, ``base_url`` and ``model``; optionally ``api_key_env``,
            ``price_in`` and ``price_out`` per million tokens, ``timeouts``
            (``connect_s``, ``read_s``) and ``requests_per_minute``.
            ``base_url`` is http(s), or ``replay:PATH`` of a recording.
        timing: clock, sleep and random; the real ones when None.
        still_ours: called before each request; raises where the caller lost its lease.
        retries: how often a person has had the subject's failed calls tried once more.

    Raises:
        BadEndpoint: the configuration can't be used.
        EndpointFault: ``wrong_key``: its environment variable is not set here.
    """
    timing = timing or Timing()
    return LedgeredModel(
        adapter=_adapter(endpoint),
        subject=subject,
        endpoint=endpoint["label"],
        model=endpoint["model"],
        gate=_gate(endpoint, timing, subject=str(subject)),
        price=Price(tokens_in=endpoint.get("price_in"), tokens_out=endpoint.get("price_out")),
        timing=timing,
        policy=POLICY,
        still_ours=still_ours,
        retries=retries,
    )


def probe_endpoint(*, endpoint: Mapping[str, Any], max_tokens: int = 16) -> Probe:
    """Return whether ``endpoint`` answers one small call as an experiment would make it.

    It isn't retried, isn't in the ledger and passes an open circuit, which it
    closes when the endpoint is back. Refused parameters are remembered.

    Args:
        endpoint: as in ``chat_model_for``; ``dialect`` decides what is tried.
        max_tokens: what the experiment will ask for: an endpoint whose context is
            smaller says so here rather than in every run.
    """
    try:
        adapter = _adapter(endpoint)
        gate = _gate(endpoint, Timing(), subject="probe")
        reply, dropped = _probe(adapter, gate, _probe_request(endpoint, max_tokens))
    except BadEndpoint as error:
        return Probe(ok=False, kind="bad_endpoint", message=str(error))
    except EndpointFault as fault:
        message = fault.detail
        if fault.kind == "unknown_model" and isinstance(adapter, OpenAIEndpoint):
            message += _known_models(adapter)
        return Probe(ok=False, kind=fault.kind, message=message)
    except Transient as failure:
        wait_s = asked_wait_s(failure.headers, now=datetime.now(UTC))
        return Probe(ok=False, kind=failure.kind, message=failure.detail, wait_s=wait_s)
    except CallFailed as failure:
        return Probe(ok=False, kind=failure.kind, message=failure.detail)
    if reply.finish is Finish.CONTEXT_OVERFLOW:
        message = f"{endpoint['label']} has no room for max_tokens = {max_tokens}; lower it"
        return Probe(ok=False, kind="context_overflow", message=message)
    message = f"{endpoint['label']} serves {endpoint['model']}"
    if dropped:
        message += f", without {', '.join(dropped)}"
    return Probe(ok=True, kind="ok", message=message, dropped_parameters=dropped)


def _probe(
    adapter: Adapter, gate: EndpointGateKeeper, request: ChatRequest
) -> tuple[ChatReply, tuple[str, ...]]:
    without = gate.refused()
    for _ in range(len(DROPPABLE) + 1):
        try:
            reply = adapter.send(request, without=without)
        except ParameterRefused as refused:
            gate.refuse(refused.name)
            without |= {refused.name}
        else:
            gate.answered()
            return reply, tuple(sorted(without))
    raise CallFailed("bad_request", f"it refuses {', '.join(sorted(without))} and more")


def _probe_request(endpoint: Mapping[str, Any], max_tokens: int) -> ChatRequest:
    native = endpoint.get("dialect", "native") == "native"
    return ChatRequest(
        messages=(Message(role="user", content="Reply with OK."),),
        temperature=0.7,
        max_tokens=max_tokens,
        seed=0,
        tools=(_PROBE_TOOL,) if native else (),
        response_format=None if native else _PROBE_FORMAT,
    )


def _known_models(endpoint: OpenAIEndpoint) -> str:
    names = endpoint.models()
    if not names:
        return ""
    more = "" if len(names) <= _MOST_MODELS_LISTED else f" and {len(names) - 20} more"
    return f" (it serves: {', '.join(names[:_MOST_MODELS_LISTED])}{more})"


def _adapter(endpoint: Mapping[str, Any]) -> Adapter:
    base_url = str(endpoint["base_url"])
    scheme, _, rest = base_url.partition(":")
    try:
        if scheme == "replay":
            return ReplayModel(read_recording(Path(rest)))
        if scheme == "scripted":
            return _scripted(rest)
        adapter = OpenAIEndpoint(
            label=endpoint["label"],
            base_url=base_url,
            model=endpoint["model"],
            api_key_env=endpoint.get("api_key_env"),
            timeouts=_timeouts(endpoint),
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadEndpoint(str(error)) from error
    adapter.key()
    return adapter


def _timeouts(endpoint: Mapping[str, Any]) -> Timeouts:
    """Return the endpoint's timeouts; the embedded model may think longer.

    Its silence means that this machine is busy, and a request that is given up
    for it would only be made again.
    """
    embedded = bool(settings.EMBEDDED_MODEL_URL) and (
        endpoint["base_url"] == settings.EMBEDDED_MODEL_URL
    )
    patient = {"read_s": _EMBEDDED_READ_S} if embedded else {}
    return Timeouts(**{**patient, **(endpoint.get("timeouts") or {})})


def _scripted(spec: str) -> ScriptedModel:
    """Return the model of ``mixed?search=0.5&right=0.6&latency_ms=30&tasks=PATH``.

    Without ``tasks`` it knows the answers to the suites that come with the product.
    """
    if not settings.WORKBENCH_ALLOW_SCRIPTED:
        raise BadEndpoint("scripted models are for tests (WORKBENCH_ALLOW_SCRIPTED)")
    name, _, query = spec.partition("?")
    options = dict(parse_qsl(query, strict_parsing=bool(query)))
    if name != "mixed":
        raise BadEndpoint(f"no scripted model is called {name!r}; there is: mixed")
    latency_s = float(options.pop("latency_ms", 0)) / 1000
    answers = _scripted_answers(options.pop("tasks", None))
    shares = {option: float(value) for option, value in options.items()}
    return ScriptedModel(latency_s=latency_s, answers=answers, **shares)


@lru_cache(maxsize=4)
def _scripted_answers(tasks: str | None) -> tuple[ScriptedAnswer, ...]:
    suites = (settings.BASE_DIR / "runs" / "suites").glob("*/tasks.jsonl")
    paths = [Path(tasks)] if tasks else sorted(suites)
    return tuple(answer for path in paths for answer in answers_to(path))


def _gate(endpoint: Mapping[str, Any], timing: Timing, *, subject: str) -> EndpointGateKeeper:
    return EndpointGateKeeper(
        label=endpoint["label"],
        model=endpoint["model"],
        subject=subject,
        timing=timing,
        policy=GatePolicy(requests_per_minute=endpoint.get("requests_per_minute")),
        retry_policy=POLICY,
    )
