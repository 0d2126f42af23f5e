"""The adapter: what it sends, and what it makes of anything that comes back."""

from __future__ import annotations

import json
import logging
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests import scripted_server as scripted
from tests.scripted_server import Behaviour, ScriptedServer
from workbench.kernel.chat import (
    CallFailed,
    ChatReply,
    ChatRequest,
    EndpointFault,
    Finish,
    Message,
    ToolCall,
)
from workbench.llm.openai import OpenAIEndpoint, Timeouts, hiding, read_answer, request_body
from workbench.llm.retry import ParameterRefused, Transient

KEY_ENV = "TEST_ENDPOINT_KEY"
CANARY = "sk-canary-0123456789"
REQUEST = ChatRequest(
    messages=(Message("system", "Be brief."), Message("user", "Hé 😀")),
    temperature=0.7,
    max_tokens=99,
    seed=5,
)
ENDPOINT = OpenAIEndpoint(
    label="test",
    base_url="http://127.0.0.1:9/v1",
    model="m",
    api_key_env=KEY_ENV,
    timeouts=Timeouts(connect_s=1.0, read_s=0.2),
)

Serve = Callable[..., tuple[OpenAIEndpoint, ScriptedServer]]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_ENV, CANARY)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a scripted server and gives the endpoint for it."""
    servers: list[ScriptedServer] = []

    def start(*behaviours: Behaviour) -> tuple[OpenAIEndpoint, ScriptedServer]:
        server = ScriptedServer(*behaviours)
        server.__enter__()
        servers.append(server)
        return replace(ENDPOINT, base_url=server.base_url), server

    yield start
    for server in servers:
        server.__exit__()


def read(status: int, body: Any, **more: Any) -> ChatReply:
    text = body if isinstance(body, str) else json.dumps(body)
    return read_answer(status=status, headers={}, text=text, endpoint=ENDPOINT, **more)


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


def chat(message: dict[str, Any], reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], **more}


# --- the request ------------------------------------------------------------


def test_body_holds_what_decides_the_reply_and_nothing_else() -> None:
    assert request_body(REQUEST, "m") == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hé 😀"},
        ],
        "temperature": 0.7,
        "max_tokens": 99,
        "seed": 5,
    }


def test_tool_calls_travel_in_the_wire_format() -> None:
    call = ToolCall(id="c1", name="search_skills", arguments='{"query": "x"}')
    request = replace(
        REQUEST,
        messages=(
            Message("assistant", None, tool_calls=(call,)),
            Message("tool", "found", tool_call_id="c1"),
        ),
        tools=({"type": "function"},),
        response_format={"type": "json_object"},
    )
    body = request_body(request, "m")
    assert body["messages"] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "search_skills", "arguments": '{"query": "x"}'},
                }
            ],
        },
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
    ]
    assert body["tools"] == [{"type": "function"}]
    assert body["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize(
    ("without", "gone", "added"),
    [
        ({"seed"}, {"seed"}, {}),
        ({"seed", "temperature"}, {"seed", "temperature"}, {}),
        ({"max_tokens"}, {"max_tokens"}, {"max_completion_tokens": 99}),
        ({"max_tokens", "max_completion_tokens"}, {"max_tokens"}, {}),
    ],
)
def test_refused_parameters_are_left_out(
    without: set[str], gone: set[str], added: dict[str, int]
) -> None:
    whole = request_body(REQUEST, "m")
    expected = {name: value for name, value in whole.items() if name not in gone} | added
    assert request_body(REQUEST, "m", without=frozenset(without)) == expected


def test_unencodable_text_is_sent_with_a_replacement(serve: Serve) -> None:
    endpoint, server = serve(scripted.reply("fine"))
    endpoint.send(replace(REQUEST, messages=(Message("user", "a\ud800b\0c 😀"),)))
    assert server.seen[0].body["messages"][0]["content"] == "a\ufffdb\ufffdc 😀"


@pytest.mark.parametrize(
    "base_url",
    [
        "ftp://host/v1",
        "http://",
        "host/v1",
        "http://user:pass@host/v1",
        "http://host/v1?api-key=secret",
    ],
)
def test_base_urls_that_are_refused(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url of test") as refused:
        replace(ENDPOINT, base_url=base_url)
    assert "pass" not in str(refused.value).replace("password", "")
    assert "secret" not in str(refused.value)


# --- replies ----------------------------------------------------------------


def test_a_reply_is_read_whole() -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3}
    reply = read(200, chat({"content": "hi", "reasoning": "hm"}, usage=usage), latency_s=1.5)
    assert reply == ChatReply(
        content="hi",
        finish=Finish.STOP,
        tokens_in=12,
        tokens_out=3,
        latency_s=1.5,
        reasoning="hm",
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"type": "thinking", "text": "hm"}, {"type": "output_text", "text": "b"}], "b"),
        (["a", {"text": "b"}, {"type": "image_url"}, 7], "ab"),
        ([], ""),
        (None, None),
        (7, None),
    ],
)
def test_content_may_be_a_list_of_parts(content: Any, text: str | None) -> None:
    assert read(200, chat({"content": content})).content == text


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", Finish.STOP),
        ("STOP", Finish.STOP),
        ("eos", Finish.STOP),
        ("tool_calls", Finish.TOOL_CALLS),
        ("function_call", Finish.TOOL_CALLS),
        ("length", Finish.LENGTH),
        ("MAX_TOKENS", Finish.LENGTH),
        ("content_filter", Finish.CONTENT_FILTER),
        ("SAFETY", Finish.CONTENT_FILTER),
    ],
)
def test_finish_reasons(reason: str, finish: Finish) -> None:
    assert read(200, chat({"content": "hi"}, reason)).finish is finish


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"total_tokens": 9}, {"prompt_tokens": None}, {"prompt_tokens": -1}, "none"],
)
def test_unknown_usage_is_none(usage: Any) -> None:
    reply = read(200, chat({"content": "hi"}, usage=usage))
    assert (reply.tokens_in, reply.tokens_out) == (None, None)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([{"id": "a", "function": {"name": "f", "arguments": {"q": 1}}}], ("a", "f", {"q": 1})),
        ([{"function": {"name": "f"}}], ("", "f", None)),
        ([{"id": 7, "function": {"name": None, "arguments": ["x"]}}], ("7", "", ["x"])),
        ([{"id": "a"}], ("a", "", None)),
        (["junk"], ("", "", None)),
    ],
)
def test_tool_calls_are_kept_as_received(calls: list[Any], expected: tuple[Any, ...]) -> None:
    (call,) = read(200, chat({"content": None, "tool_calls": calls})).tool_calls
    assert (call.id, call.name, call.arguments) == expected


def test_numbers_that_no_row_can_hold_are_unknown() -> None:
    call = '{"id": "a", "function": {"name": "f", "arguments": {"q": [1e999, -1e999, 1e9]}}}'
    text = '{"choices": [{"message": {"tool_calls": [%s]}, "finish_reason": "tool_calls"}]}'
    (kept,) = read(200, text % call).tool_calls
    assert kept.arguments == {"q": [None, None, 1e9]}


@pytest.mark.parametrize(
    ("count", "kept"),
    # The largest that a column holds is 2**31 - 1.
    [(2**31 - 1, 2**31 - 1), (2**31, None), (3_000_000_000, None), (10**20, None), (1e20, None)],
)
def test_a_count_beyond_any_context_is_unknown(count: float, kept: int | None) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 5}
    reply = read(200, chat({"content": "x"}, usage=usage))
    assert (reply.tokens_in, reply.tokens_out) == (kept, 5)


def test_text_that_no_row_can_hold_is_replaced() -> None:
    text = '{"choices": [{"message": {"content": "a\\ud800b\\u0000c"}, "finish_reason": "stop"}]}'
    assert read(200, text).content == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "<html>busy</html>",
        '{"choices": [{"message": {"content": "half',
        {"choices": []},
        {"choices": None},
        {"choices": [{}]},
        {"choices": ["x"]},
        {},
        [],
        chat({"content": "cut?"}, None),
        chat({"content": "cut"}, "error"),
        '{"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "n": NaN}]}',
    ],
)
def test_an_answer_without_a_marked_end_is_incomplete(body: Any) -> None:
    with pytest.raises(Transient) as failed:
        read(200, body)
    assert failed.value.kind == "incomplete"


# --- errors -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, error("Incorrect API key"), "wrong_key"),
        (403, error("Not allowed"), "wrong_key"),
        (402, error("Payment required"), "quota_spent"),
        (429, error("You exceeded your quota", code="insufficient_quota"), "quota_spent"),
        (429, error("Pay", type="billing_hard_limit_reached"), "quota_spent"),
        (403, error("Pay", code="insufficient_quota"), "quota_spent"),
        (400, error("Your credit balance is too low to access the API"), "quota_spent"),
        (404, error("The model does not exist", code="model_not_found"), "unknown_model"),
        (404, "404 page not found", "unknown_model"),
        (400, error("m is not a valid model ID", code=400), "unknown_model"),
        (400, error("Model m is not a valid model ID"), "unknown_model"),
        (400, error("unknown model", code="model_not_found"), "unknown_model"),
    ],
)
def test_faults_of_the_endpoint(status: int, body: Any, kind: str) -> None:
    with pytest.raises(EndpointFault) as fault:
        read(status, body)
    assert fault.value.kind == kind


def test_a_wrong_key_names_its_variable() -> None:
    with pytest.raises(EndpointFault, match=KEY_ENV):
        read(401, error("no"))
    with pytest.raises(
        EndpointFault, match=r"without a key .* api_key_env .* --api-key-env of audit"
    ):
        read_answer(status=401, headers={}, text="", endpoint=replace(ENDPOINT, api_key_env=None))


PAGE = "<!DOCTYPE html>\n<html><head><title>Welcome</title></head></html>"


@pytest.mark.parametrize("page", [PAGE, "\ufeff <HTML>Welcome", f"<!-- Welcome -->{PAGE}"])
@pytest.mark.parametrize("status", [200, 301, 401, 404, 405])
def test_a_web_page_is_not_printed_but_the_base_url_doubted(status: int, page: str) -> None:
    with pytest.raises((EndpointFault, CallFailed, Transient)) as fault:
        read(status, page)
    said = str(fault.value)
    assert "this is a web page, not an API: check the base URL" in said
    assert "Welcome" not in said
    assert "no model" not in said


@pytest.mark.parametrize("body", [PAGE, error(PAGE)])
def test_a_page_of_a_failing_server_says_nothing_about_the_url(body: Any) -> None:
    with pytest.raises(Transient) as failed:
        read(503, body)
    assert failed.value.detail.endswith("answered 503: a web page in place of an answer")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, error("slow down"), "rate_limited"),
        (429, error("You exceeded your current quota", code="RESOURCE_EXHAUSTED"), "rate_limited"),
        (500, error("oops"), "server_error"),
        (503, "<html>", "server_error"),
        (529, error("overloaded"), "server_error"),
        (408, "", "server_error"),
        (409, "", "server_error"),
        # A router that answers 200 with the provider's failure inside.
        (200, error("slow down", code=429), "rate_limited"),
        (200, error("provider failed"), "server_error"),
    ],
)
def test_failures_that_may_pass(status: int, body: Any, kind: str) -> None:
    with pytest.raises(Transient) as failed:
        read(status, body)
    assert failed.value.kind == kind


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("too long", code="context_length_exceeded")),
        (400, error("This model's maximum context length is 8192 tokens.")),
        (400, error("exceeds the available context size", type="exceed_context_size_error")),
        (400, error("prompt is too long: 250000 tokens > 200000 maximum")),
        (413, error("Input is too long for requested model.")),
        (400, {"object": "error", "message": "Please reduce the length of the messages"}),
        (422, {"detail": "inputs exceed the context window"}),
        (200, error("maximum context length is 4096", code=400)),
    ],
)
def test_a_full_context_is_a_reply(status: int, body: Any) -> None:
    reply = read(status, body, without=frozenset({"seed"}))
    assert (reply.finish, reply.content) == (Finish.CONTEXT_OVERFLOW, None)
    assert reply.dropped_parameters == ("seed",)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, error("filtered", code="content_filter")),
        (400, error("rejected", code="content_policy_violation")),
        (403, error("Your input was flagged by moderation")),
    ],
)
def test_refused_content_is_a_filtered_reply(status: int, body: Any) -> None:
    assert read(status, body).finish is Finish.CONTENT_FILTER


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (
            error(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            ),
            "max_tokens",
        ),
        (
            error(
                "Unsupported value: 'temperature' does not support 0.7 with this model. "
                "Only the default (1) value is supported.",
                param="temperature",
                code="unsupported_value",
            ),
            "temperature",
        ),
        (error("Unrecognized request argument supplied: seed"), "seed"),
        (error("max_tokens is deprecated, use max_completion_tokens"), "max_tokens"),
        (error("response_format is not supported by m"), "response_format"),
        ({"detail": [{"loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]}, "seed"),
        (error("not supported", param="response_format.type"), "response_format"),
    ],
)
@pytest.mark.parametrize("status", [400, 422])
def test_a_refused_parameter_is_named(status: int, body: Any, name: str) -> None:
    with pytest.raises(ParameterRefused) as refused:
        read(status, body)
    assert refused.value.name == name
    # Left out already, the same answer can't be helped any more.
    with pytest.raises(CallFailed) as failed:
        read(status, body, without=frozenset({name}))
    assert failed.value.kind == "bad_request"


@pytest.mark.parametrize(
    "body",
    [
        error("Invalid value for temperature: must be at most 2", param="temperature"),
        error("messages: unknown role", param="messages"),
        error("Unsupported parameter: 'tools'", param="tools"),
    ],
)
def test_other_bad_requests_fail(body: Any) -> None:
    with pytest.raises(CallFailed) as failed:
        read(400, body)
    assert failed.value.kind == "bad_request"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "No endpoints found that support tool use."),
        (400, "registry/m does not support tools"),
    ],
)
def test_an_endpoint_without_tools_is_told_the_other_dialect(status: int, message: str) -> None:
    with pytest.raises(CallFailed, match="json_action"):
        read(status, error(message))


# --- over a socket ----------------------------------------------------------


def test_a_request_over_a_socket(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-someone-else")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-someone-else")
    endpoint, server = serve(scripted.reply("fine"))
    reply = endpoint.send(REQUEST)
    assert (reply.content, reply.tokens_in, reply.tokens_out) == ("fine", 10, 5)
    assert reply.latency_s is not None
    (seen,) = server.seen
    assert (seen.path, seen.body) == ("/v1/chat/completions", request_body(REQUEST, "m"))
    assert seen.headers["authorization"] == f"Bearer {CANARY}"
    assert "someone-else" not in str(seen.headers)


def test_without_a_key_no_authorization_is_sent(serve: Serve) -> None:
    endpoint, server = serve(scripted.reply("fine"))
    replace(endpoint, api_key_env=None).send(REQUEST)
    assert "authorization" not in server.seen[0].headers


@pytest.mark.parametrize("value", [None, "", "  ", "“sk-quoted”", "sk one", "sk\none"])
def test_an_impossible_key_sends_nothing(
    value: str | None, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_ENV)
    if value is not None:
        monkeypatch.setenv(KEY_ENV, value)
    endpoint, server = serve(scripted.reply("fine"))
    with pytest.raises(EndpointFault, match=KEY_ENV) as fault:
        endpoint.send(REQUEST)
    assert (fault.value.kind, server.seen) == ("wrong_key", [])
    assert "sk" not in str(fault.value)


def test_silence_is_a_timeout(serve: Serve) -> None:
    endpoint, server = serve(scripted.hang())
    with pytest.raises(Transient) as failed:
        endpoint.send(REQUEST)
    assert (failed.value.kind, len(server.seen)) == ("timeout", 1)


def test_a_body_that_is_cut_off_is_incomplete(serve: Serve) -> None:
    endpoint, server = serve(scripted.cut())
    with pytest.raises(Transient) as failed:
        endpoint.send(REQUEST)
    assert (failed.value.kind, len(server.seen)) == ("incomplete", 1)


def test_nobody_listening_is_a_transport_failure_that_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(
        Transient, match=f"127.0.0.1:{port}.*is it running. Check the URL"
    ) as failed:
        replace(ENDPOINT, base_url=f"http://127.0.0.1:{port}/v1").send(REQUEST)
    assert failed.value.kind == "transport"


def test_redirects_are_not_followed(serve: Serve) -> None:
    _, target = serve(scripted.reply("stolen"))
    endpoint, server = serve(
        scripted.body("", status=307, headers={"Location": f"{target.base_url}/chat/completions"})
    )
    with pytest.raises(CallFailed, match="redirects are off"):
        endpoint.send(REQUEST)
    assert (len(server.seen), target.seen) == (1, [])


def test_a_proxy_in_the_environment_does_not_see_loopback(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint, _ = serve(scripted.reply("fine"))
    _, proxy = serve(scripted.reply("proxied"))
    monkeypatch.setenv("HTTP_PROXY", proxy.base_url)
    assert endpoint.send(REQUEST).content == "fine"
    assert proxy.seen == []


def test_one_request_is_one_request(serve: Serve) -> None:
    endpoint, server = serve(scripted.status(503, headers={"x-should-retry": "true"}))
    with pytest.raises(Transient):
        endpoint.send(REQUEST)
    assert len(server.seen) == 1


def test_headers_of_a_failure_are_kept_for_the_retry(serve: Serve) -> None:
    endpoint, _ = serve(scripted.status(429, headers={"Retry-After": "7"}))
    with pytest.raises(Transient) as failed:
        endpoint.send(REQUEST)
    assert failed.value.headers["retry-after"] == "7"


@pytest.mark.parametrize(
    "behaviour",
    [
        scripted.echo_key_and_refuse(),
        scripted.status(429),
        scripted.status(500),
        scripted.status(400),
        scripted.hang(),
        scripted.cut(),
        scripted.body("not json"),
    ],
)
def test_the_key_is_in_no_exception_and_no_log(
    behaviour: Behaviour, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint, server = serve(behaviour)
    with (
        caplog.at_level(logging.DEBUG),
        pytest.raises((Transient, CallFailed, EndpointFault)) as failed,
    ):
        endpoint.send(REQUEST)
    assert CANARY in server.seen[0].headers["authorization"]
    # The whole chain, as an error reporter would print it.
    printed = "".join(traceback.format_exception(failed.value))
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None
    for text in (printed, repr(failed.value), str(vars(failed.value)), caplog.text):
        assert CANARY not in text


def test_a_reply_that_repeats_the_key_is_redacted(serve: Serve) -> None:
    endpoint, _ = serve(scripted.reply(f"your key is {CANARY}"))
    assert endpoint.send(REQUEST).content == "your key is [key]"


SLASHED = "sk/live+abcdef=123"


def all_escaped(key: str) -> str:
    return "".join(f"\\u{ord(character):04X}" for character in key)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "slashes": lambda key: key.replace("/", "\\/"),
    "first": lambda key: f"\\u{ord(key[0]):04x}{key[1:]}",
    "all": all_escaped,
    # JSON in JSON: whoever decodes the text has the key.
    "twice": lambda key: all_escaped(key).replace("\\", "\\\\"),
    "url": lambda key: key.replace("/", "%2F").replace("+", "%2b"),
    "html": lambda key: key.replace("/", "&#x2F;").replace("+", "&#43;"),
}
spelt = pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)


@spelt
@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, '{"error": {"message": "bad key Bearer KEY, sorry"}}'),
        (500, '{"error": {"message": "bad key Bearer KEY, sorry"}}'),
        (500, '{"detail": [{"KEY": 1, "msg": {"is": "KEY"}}]}'),
        (500, "<p>bad key Bearer KEY, sorry</p>"),
        (500, '{"error": {"message": "' + "x" * 485 + 'KEY"}}'),
        (200, '{"choices": [{"message": {"content": "x"}, "finish_reason": "KEY"}]}'),
        (400, '{"error": {"message": "unknown field KEY in seed", "code": "unknown_parameter"}}'),
    ],
)
def test_however_an_error_spells_the_key_it_is_redacted(
    status: int, text: str, spell: Callable[[str], str], serve: Serve, monkeypatch: Any
) -> None:
    monkeypatch.setenv(KEY_ENV, SLASHED)
    endpoint, _ = serve(scripted.body(text.replace("KEY", spell(SLASHED)), status=status))
    said = ""
    try:
        said = str(endpoint.send(REQUEST))
    except (Transient, CallFailed, EndpointFault, ParameterRefused) as error:
        said = f"{error} {error.detail}"
    # Neither as it is nor after decoding, nor its first half where the text is cut.
    for hidden in (SLASHED, spell(SLASHED), "abcdef", all_escaped(SLASHED), "sk/", "sk\\/"):
        assert hidden not in said
    assert status == 200 or "[key" in said


@spelt
def test_however_a_reply_spells_the_key_it_is_redacted_everywhere(
    spell: Callable[[str], str], serve: Serve, monkeypatch: Any
) -> None:
    monkeypatch.setenv(KEY_ENV, SLASHED)
    text = """{"choices": [{"finish_reason": "stop", "message": {
        "content": [{"type": "text", "text": "It is sk/li"}, {"type": "text", "text": "REST."}],
        "reasoning": "KEY",
        "tool_calls": [
            {"id": "KEY", "function": {"name": "KEY", "arguments": {"KEY": ["KEY", 1]}}},
            {"id": "b", "function": {"name": "f", "arguments": "{\\"q\\": \\"KEY\\"}"}}]}}]}"""
    text = text.replace("KEY", spell(SLASHED)).replace("REST", SLASHED.removeprefix("sk/li"))
    endpoint, _ = serve(scripted.body(text))
    reply = endpoint.send(REQUEST)
    assert (reply.content, reply.reasoning) == ("It is [key].", "[key]")
    first, second = reply.tool_calls
    assert (first.id, first.name, first.arguments) == ("[key]", "[key]", {"[key]": ["[key]", 1]})
    assert second.arguments == '{"q": "[key]"}'


def test_text_that_only_resembles_the_key_stays() -> None:
    hide = hiding(SLASHED)
    near = ["SK/live+abcdef=123", "sk/live+abcdef=12", "sk/live abcdef=123", 5, None]
    assert hide(near) == near
    # So short a secret could be a word.
    assert hiding("word")("a word") == "a word"
    assert hiding(None)("a word") == "a word"
    # A text of nothing but backslashes is searched in a moment.
    assert hide("\\" * 200_000) == "\\" * 200_000


def test_models_are_listed_where_the_endpoint_can(serve: Serve) -> None:
    endpoint, _ = serve(scripted.reply("fine"))
    assert endpoint.models() == ("m",)
    assert replace(endpoint, base_url="http://127.0.0.1:9/v1").models() == ()
