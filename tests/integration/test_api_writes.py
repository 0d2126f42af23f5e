"""Writes through the API: strict bodies, and keys with which a write is done once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.wsgi import WSGIRequest
from django.core.management import call_command
from django.db import connection, connections
from django.test import Client, override_settings
from django.test.client import BOUNDARY, MULTIPART_CONTENT, encode_multipart
from django.urls import path
from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import Throttled
from rest_framework.parsers import FileUploadParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from tests.factories import NOW, make_user
from workbench import idempotency
from workbench.kernel.api import NoParameters, StrictJSONParser, checked_query
from workbench.kernel.roles import Role
from workbench.models import AuditEvent, IdempotencyKey
from workbench.rest import KEPT_SECRET, Endpoint, RoleAndScope, checked_body
from workbench.tokens import Scope, create_token
from workbench.trail import record_event

URL = "/api/v1/things/"


class RowInput(serializers.Serializer[Any]):
    """A row inside the body."""

    task = serializers.CharField()


class ThingInput(serializers.Serializer[Any]):
    """What these tests send."""

    name = serializers.CharField(max_length=20)
    number = serializers.IntegerField(required=False)
    rows = RowInput(many=True, required=False)


class Things(Endpoint):
    """An endpoint whose effect is an audit event, which can be counted."""

    def get(self, request: Request) -> Response:
        if "a" in request.query_params:
            checked_query(request.query_params, NoParameters)
        return Response({})

    def post(self, request: Request) -> Response:
        given = checked_body(request, ThingInput)
        record_event(actor=request.user, verb="thing.made", subject=given["name"], at=NOW)
        if given["name"] == "broken":
            raise RuntimeError("a fault of ours")
        if given["name"] == "busy":
            raise Throttled(wait=7)
        BARRIERS.wait()
        return Response({"name": given["name"], "at": NOW}, status=201)


class Secrets(Things):
    """The same, with an answer that must not be stored."""

    secret_answer = True


class Files(Endpoint):
    """Takes a file."""

    parser_classes = (MultiPartParser,)
    largest_body = 3_000

    def post(self, request: Request) -> Response:
        size = request.FILES["file"].size
        record_event(actor=request.user, verb="thing.made", subject=str(size), at=NOW)
        return Response({"size": size}, status=201)


class Streams(Endpoint):
    """Takes a body of any length, piece by piece."""

    parser_classes = (StrictJSONParser, FileUploadParser)
    hash_body = False
    takes_query = True

    def post(self, request: Request) -> Response:
        if request.content_type == "application/json":
            said = checked_body(request, ThingInput)["name"]
        else:
            said = request.stream.read().decode()
        record_event(actor=request.user, verb="thing.made", subject=said, at=NOW)
        return Response({"said": said}, status=201)


class Slow(Endpoint):
    """Reckons before it writes."""

    held: ClassVar[list[bool]] = []

    def prepare(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().prepare(request)
        self.held.append(connection.in_atomic_block)
        BARRIERS.wait()

    def post(self, request: Request) -> Response:
        self.held.append(connection.in_atomic_block)
        record_event(actor=request.user, verb="thing.made", subject="slow", at=NOW)
        return Response({}, status=201)


class Barriers:
    """Where a request may be held while another one arrives."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def hold(self) -> None:
        self.reached.clear()
        self.go_on.clear()

    def wait(self) -> None:
        self.reached.set()
        assert self.go_on.wait(10)


BARRIERS = Barriers()
urlpatterns = [
    path("api/v1/things/", Things.as_view(), name="api-things"),
    path("api/v1/secrets/", Secrets.as_view(), name="api-secrets"),
    path("api/v1/streams/", Streams.as_view(), name="api-streams"),
    path("api/v1/files/", Files.as_view(), name="api-files"),
    path("api/v1/slow/", Slow.as_view(), name="api-slow"),
]
handler400 = "workbench.views.errors.bad_request"
handler404 = "workbench.views.errors.not_found"
handler500 = "workbench.views.errors.server_error"


@pytest.fixture(autouse=True)
def these_urls() -> Iterator[None]:
    with override_settings(ROOT_URLCONF=__name__):
        yield


@pytest.fixture
def lead(db: None) -> Client:
    return signed_in("lee")


def signed_in(name: str) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(make_user(name, Role.LEAD))
    return client


def post(
    client: Client, body: Any = None, *, key: str = "", url: str = URL, **more: Any
) -> tuple[int, dict[str, Any]]:
    headers = {"Idempotency-Key": key} if key else {}
    data = body if isinstance(body, bytes) else json.dumps(body)
    sent = {"content_type": "application/json", **more}
    response = client.generic("POST", url, data, headers=headers, **sent)
    assert response["Content-Type"] == "application/json", response.content
    return response.status_code, response.json()


def made() -> list[str]:
    return list(AuditEvent.objects.filter(verb="thing.made").values_list("subject", flat=True))


# --- bodies ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "isn't JSON"),
        (b"{", "isn't JSON"),
        (b'{"name": "a", "name": "b"}', "'name' stands twice"),
        (b'{"name": "a", "number": NaN}', "NaN is no JSON number"),
        (b'{"name": "a", "number": 1e999}', "too large"),
        (b'{"name": "a\\u0000b"}', "NUL"),
        (b'{"name": "a", "\\u0000": 1}', "NUL"),
        (b'{"name": "a\\ud800"}', "half a character"),
        (b'{"name": "\xff"}', "isn't UTF-8"),
        (b'{"name": "a", "number": 9223372036854775808}', "64 bits"),
        (b'{"name": "a", "number": ' + b"9" * 5000 + b"}", "isn't JSON"),
        (b'{"name": ' + b"[" * 70 + b"]" * 70 + b"}", "more than 64 levels"),
        (b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "more than 64 levels"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else value,
)
def test_a_body_that_is_no_usable_json_is_unreadable(lead: Client, body: bytes, said: str) -> None:
    if body == b"":
        assert post(lead, body)[1]["fields"] == {"name": ["This field is required."]}
        return
    status, answer = post(lead, body)
    assert (status, answer["error"]) == (400, "unreadable")
    assert said in answer["message"]
    assert made() == []


def test_a_body_at_the_limits_is_read(lead: Client) -> None:
    status, answer = post(lead, {"name": "ä" * 20, "number": 2**63 - 1})
    assert (status, answer["name"]) == (201, "ä" * 20)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 201),
        ("application/json; charset=UTF-8", 201),
        ("application/json; charset=utf-16", 415),
        ("application/json; charset=bz2_codec", 415),
        ("application/json; charset=nonsense", 415),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
def test_json_is_read_as_utf_8_alone(lead: Client, content_type: str, status: int) -> None:
    found, answer = post(lead, {"name": "a"}, content_type=content_type)
    assert found == status
    if status == 415:
        assert answer["error"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ([], {"": ["the body must be a JSON object"]}),
        ("text", {"": ["the body must be a JSON object"]}),
        (None, {"": ["the body must be a JSON object"]}),
        (
            {"name": "a", "is_staff": True},
            {"is_staff": ["unknown; known: name, number, rows"]},
        ),
        ({"name": {"a": 1}}, {"name": ["Not a valid string."]}),
        (
            {"name": "a", "rows": [{"task": "t"}, {"task": ""}, {}]},
            {
                "rows.1.task": ["This field may not be blank."],
                "rows.2.task": ["This field is required."],
            },
        ),
    ],
)
def test_a_body_that_does_not_fit_is_answered_by_field(
    lead: Client, body: Any, fields: Mapping[str, list[str]]
) -> None:
    status, answer = post(lead, body)
    assert (status, answer["error"], answer["fields"]) == (400, "invalid", fields)


def test_a_parameter_given_twice_is_refused(lead: Client) -> None:
    assert lead.get(URL).status_code == 200
    body = lead.get(URL + "?a=1&a=2")
    assert (body.status_code, body.json()["fields"]) == (400, {"a": ["it stands more than once"]})


@override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=100)
def test_a_body_that_is_too_long_is_refused_unread(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("", "k"):
        status, answer = post(lead, {"name": "a" * 200}, key=key)
        assert (status, answer["error"]) == (413, "too_large")
    monkeypatch.setattr(Things, "largest_body", 50)
    status, answer = post(lead, {"name": "a" * 60})
    assert (status, answer["message"]) == (413, "The body may have 50 bytes here.")


def test_a_fault_of_ours_is_json_and_says_nothing_of_it(lead: Client) -> None:
    status, answer = post(lead, {"name": "broken"})
    assert (status, answer["error"], answer["fields"]) == (500, "unexpected", {})
    assert "fault of ours" not in str(answer)


def test_too_many_requests_say_when_to_come_back(lead: Client) -> None:
    response = lead.post(URL, {"name": "busy"}, content_type="application/json")
    assert (response.status_code, response["Retry-After"]) == (429, "7")
    assert response.json()["error"] == "too_many_requests"


def test_a_request_with_a_strange_host_is_refused_in_the_same_shape(lead: Client) -> None:
    response = lead.get(URL, HTTP_HOST="evil.example")
    assert (response.status_code, response.json()["error"]) == (400, "unreadable")


def test_what_an_endpoint_is_tells_no_options(lead: Client) -> None:
    response = lead.options(URL)
    assert (response.status_code, response["Allow"]) == (405, "GET, POST, HEAD")
    assert lead.generic("FOO", URL).status_code == 405


# --- who may send one ---------------------------------------------------------------


def test_who_may_not_write_is_told_so_before_the_body_is_read(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither parsed nor written to disk: not for a form token either, which a form may hold."""
    read: list[str] = []
    monkeypatch.setattr(WSGIRequest, "_load_post_and_files", lambda self: read.append("form"))
    monkeypatch.setattr(StrictJSONParser, "parse", lambda self, *args, **kw: read.append("json"))
    monkeypatch.setattr(Files, "largest_body", 3_000_000)
    annotator = Client(enforce_csrf_checks=True, raise_request_exception=False)
    annotator.force_login(make_user("ann", Role.ANNOTATOR))
    annotator.cookies["csrftoken"] = "a" * 32
    with_token = {"X-CSRFToken": "a" * 32}
    upload = {"file": SimpleUploadedFile("a.zip", b"x" * 2_000_000)}
    for headers in (with_token, {}):
        for url, body, kind in (
            (URL, b"{bad", "application/json"),
            (URL, b"{bad", "application/x-www-form-urlencoded"),
            ("/api/v1/files/", encode_multipart(BOUNDARY, upload), MULTIPART_CONTENT),
        ):
            response = annotator.generic("POST", url, body, content_type=kind, headers=headers)
            assert (response.status_code, response.json()["error"]) == (403, "forbidden")
            upload["file"].seek(0)
    assert Client().post(URL, b"{bad", content_type="application/json").status_code == 401
    user = make_user("lou", Role.LEAD)
    _, text = create_token(user=user, name="t", scopes=[Scope.READ], at=timezone.now())
    status, answer = post(Client(), b"{bad", HTTP_AUTHORIZATION=f"Bearer {text}", key="k")
    assert (status, answer["message"]) == (403, RoleAndScope.message)
    assert read == []


@pytest.mark.parametrize("who", ["nobody", "annotator", "lead"])
def test_a_body_that_is_too_long_is_refused_before_anybody_is_looked_up(
    who: str, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(WSGIRequest, "_load_post_and_files", lambda self: read.append("form"))
    client = Client(raise_request_exception=False)
    if who != "nobody":
        client.force_login(make_user("ann", Role(who)))
    large = SimpleUploadedFile("a.zip", b"x" * 4_000)
    response = client.post("/api/v1/files/", {"file": large})
    assert (response.status_code, response.json()["error"]) == (413, "too_large")
    assert read == []


def test_a_form_token_counts_in_its_header_alone(db: None) -> None:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(make_user("lee", Role.LEAD))
    client.cookies["csrftoken"] = "a" * 32
    small = {"file": SimpleUploadedFile("a.zip", b"x"), "csrfmiddlewaretoken": "a" * 32}
    assert client.post("/api/v1/files/", small).status_code == 403
    small["file"] = SimpleUploadedFile("a.zip", b"x")
    del small["csrfmiddlewaretoken"]
    sent = client.post("/api/v1/files/", small, headers={"X-CSRFToken": "a" * 32})
    assert sent.status_code == 201


# --- what is refused at length --------------------------------------------------------


def test_names_that_stand_twice_are_found_in_one_pass(lead: Client) -> None:
    """20 times as many names take about 20 times as long, where every pair would take 400."""

    def seconds(names: int) -> float:
        body = "{" + "".join(f'"k{n}":0,' for n in range(names)) + '"z":0,"z":0}'
        began = time.process_time()
        status, answer = post(lead, body.encode())
        assert (status, "'z' stands twice" in answer["message"]) == (400, True)
        return time.process_time() - began

    seconds(1_000)
    few = max(min(seconds(5_000) for _ in range(3)), 0.002)
    assert seconds(100_000) < 100 * few


def test_a_refusal_is_not_much_longer_than_what_it_refuses(lead: Client) -> None:
    body = {f"k{n}": 0 for n in range(10_000)} | {"x" * 50_000: 0}
    status, answer = post(lead, body, key="k")
    assert (status, len(answer["fields"])) == (400, 21)
    assert answer["fields"]["k0"] == ["unknown; known: name, number, rows"]
    assert answer["fields"][""] == ["and 9,981 more unknown names"]
    assert len(json.dumps(answer)) < 5_000
    status, answer = post(lead, b'{"%s":0,"%s":0}' % (b"y" * 50_000, b"y" * 50_000))
    assert len(answer["message"]) < 300
    many = "&".join(f"{'z' * 500}{n}=1&{'z' * 500}{n}=2" for n in range(50))
    assert len(lead.get(f"{URL}?a=1&{many}").content) < 10_000


def test_a_very_long_refusal_is_kept_without_its_fields(lead: Client) -> None:
    body = {"name": "a", "rows": [{}] * 5_000}
    first, again = (post(lead, body, key="k") for _ in range(2))
    assert (first[0], len(first[1]["fields"])) == (400, 5_000)
    assert (again[0], again[1]["error"], again[1]["fields"]) == (400, "invalid", {})
    assert "too long to keep" in again[1]["message"]
    short = {"name": "a", "rows": [{}] * 5}
    assert post(lead, short, key="k2") == post(lead, short, key="k2")


# --- tokens and scopes ------------------------------------------------------------


@pytest.mark.parametrize(("scope", "status"), [(Scope.READ, 403), (Scope.WRITE, 201)])
def test_a_token_writes_only_with_the_scope_for_it(db: None, scope: Scope, status: int) -> None:
    user = make_user("lee", Role.LEAD)
    _, text = create_token(user=user, name="t", scopes=[scope], at=timezone.now())
    found, _ = post(Client(), {"name": "a"}, HTTP_AUTHORIZATION=f"Bearer {text}", key="k")
    assert found == status
    assert IdempotencyKey.objects.count() == (1 if status == 201 else 0)


def test_a_refused_token_is_told_how_to_sign_in(db: None) -> None:
    for header in ("Bearer wb_unknown", "Bearer", "Bearer a b", ""):
        response = Client().get(URL, HTTP_AUTHORIZATION=header)
        assert (response.status_code, response["WWW-Authenticate"]) == (401, "Bearer")
        assert response.json()["error"] == "not_signed_in"


# --- keys -----------------------------------------------------------------------


def test_a_write_without_a_key_is_done_as_often_as_it_is_sent(lead: Client) -> None:
    assert [post(lead, {"name": "a"})[0] for _ in range(2)] == [201, 201]
    assert made() == ["a", "a"]


def test_the_same_request_with_the_same_key_gets_the_first_answer_again(lead: Client) -> None:
    first = post(lead, {"name": "a"}, key="k")
    assert (
        post(lead, {"name": "a"}, key="k")
        == first
        == (201, {"name": "a", "at": "2026-03-02T09:30:00Z"})
    )
    assert made() == ["a"]


def test_a_key_stands_for_one_request(lead: Client) -> None:
    post(lead, {"name": "a"}, key="k")
    for body, url in (({"name": "b"}, URL), ({"name": "a"}, "/api/v1/secrets/")):
        status, answer = post(lead, body, key="k", url=url)
        assert (status, answer["error"]) == (409, "key_reused")
    assert made() == ["a"]


def test_a_key_is_its_persons_own(lead: Client) -> None:
    other = signed_in("lou")
    assert post(lead, {"name": "a"}, key="k")[0] == 201
    assert post(other, {"name": "b"}, key="k") == (201, {"name": "b", "at": "2026-03-02T09:30:00Z"})


def test_a_refusal_is_given_again_too(lead: Client) -> None:
    first = post(lead, {"name": ""}, key="k")
    assert first[0] == 400
    assert post(lead, {"name": ""}, key="k") == first


@pytest.mark.parametrize("name", ["broken"])
def test_a_write_that_failed_did_nothing_and_may_be_sent_again(
    lead: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert post(lead, {"name": name}, key="k")[0] == 500
    assert (made(), IdempotencyKey.objects.count()) == ([], 0)
    monkeypatch.setattr(Things, "post", lambda self, request: Response({}, status=201))
    assert post(lead, {"name": name}, key="k")[0] == 201


def test_without_the_transaction_a_failed_write_leaves_its_effect(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard removed: what the test above shows is the transaction's doing."""
    monkeypatch.setattr(Endpoint, "_once", lambda self, handler, taken: handler)
    assert post(lead, {"name": "broken"}, key="k")[0] == 500
    assert made() == ["broken"]


@pytest.mark.parametrize("key", ["x" * 201, "a\tb", "ä"])
def test_a_key_that_can_not_be_kept_is_refused(lead: Client, key: str) -> None:
    status, answer = post(lead, {"name": "a"}, key=key)
    assert (status, list(answer["fields"])) == (400, ["Idempotency-Key"])
    assert made() == []


def test_a_key_of_an_abandoned_request_may_be_taken_over(lead: Client) -> None:
    user = make_user("lou", Role.LEAD)
    first = idempotency.begin(user=user, key="k", request_sha256="0" * 64, at=NOW)
    assert isinstance(first, idempotency.Taken)
    with pytest.raises(idempotency.KeyInUse):
        idempotency.begin(user=user, key="k", request_sha256="0" * 64, at=NOW)
    later = NOW + idempotency.ABANDONED_AFTER + timedelta(seconds=1)
    second = idempotency.begin(user=user, key="k", request_sha256="0" * 64, at=later)
    assert isinstance(second, idempotency.Taken)
    # The slow first one may neither answer for the second nor give its key away.
    with pytest.raises(idempotency.KeyLost):
        idempotency.finish(first, status=200, body={})
    idempotency.release(first)
    idempotency.finish(second, status=200, body={})


def test_a_request_that_lost_its_key_undoes_what_it_did(
    lead: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def takes_long() -> None:
        IdempotencyKey.objects.all().delete()

    monkeypatch.setattr(BARRIERS, "wait", takes_long)
    status, answer = post(lead, {"name": "a"}, key="k")
    assert (status, answer["error"]) == (409, "conflict")
    assert made() == []


def test_old_keys_are_forgotten(lead: Client) -> None:
    post(lead, {"name": "a"}, key="k")
    now = timezone.now()
    idempotency.forget_old(now=now + timedelta(days=6))
    assert IdempotencyKey.objects.count() == 1
    idempotency.forget_old(now=now + timedelta(days=8))
    assert IdempotencyKey.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_the_sweep_forgets_old_keys() -> None:
    user = make_user("lou", Role.LEAD)
    long_ago = timezone.now() - timedelta(days=8)
    idempotency.begin(user=user, key="k", request_sha256="0" * 64, at=long_ago)
    call_command("sweep", once=True)
    assert IdempotencyKey.objects.count() == 0


def test_a_secret_is_answered_once_and_stored_nowhere(lead: Client) -> None:
    status, answer = post(lead, {"name": "topsecret"}, key="k", url="/api/v1/secrets/")
    assert (status, answer["name"]) == (201, "topsecret")
    assert IdempotencyKey.objects.get().body is None
    status, answer = post(lead, {"name": "topsecret"}, key="k", url="/api/v1/secrets/")
    assert (status, answer["message"]) == (409, KEPT_SECRET)
    assert made() == ["topsecret"]


def test_a_form_is_the_same_whatever_its_boundary(lead: Client) -> None:
    def send(content: bytes, boundary: str, name: str = "a.zip") -> int:
        body = (
            (
                f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"'
                f"\r\n\r\n"
            ).encode()
            + content
            + f"\r\n--{boundary}--\r\n".encode()
        )
        response = lead.post(
            "/api/v1/files/",
            body,
            content_type=f"multipart/form-data; boundary={boundary}",
            headers={"Idempotency-Key": "k"},
        )
        return response.status_code

    assert send(b"one", "aaa") == 201
    assert send(b"one", "bbbbbb") == 201
    assert made() == ["3"]
    assert send(b"two", "aaa") == 409
    assert send(b"one", "aaa", name="b.zip") == 409


def test_a_form_is_checked_before_it_is_used(lead: Client) -> None:
    large = SimpleUploadedFile("a.zip", b"x" * 4_000)
    assert lead.post("/api/v1/files/", {"file": large}).status_code == 413
    small = SimpleUploadedFile("a.zip", b"x")
    response = lead.post("/api/v1/files/", {"file": small, "note": "a\0b"})
    assert (response.status_code, response.json()["error"]) == (400, "unreadable")
    assert made() == []


@pytest.mark.parametrize("key", ["", "k"])
def test_a_long_body_is_told_from_another_of_its_length(lead: Client, key: str) -> None:
    def send(said: bytes) -> tuple[int, dict[str, Any]]:
        return post(lead, said, key=key, url="/api/v1/streams/", content_type="text/csv")

    assert send(b"one") == send(b"one") == (201, {"said": "one"})
    assert send(b"two")[0] == (409 if key else 201)
    assert made() == (["one"] if key else ["one", "one", "two"])
    other = f"{key}2" if key else ""
    assert post(lead, {"name": "a"}, key=other, url="/api/v1/streams/") == (201, {"said": "a"})


def test_a_parameter_that_nothing_looks_at_is_refused(lead: Client) -> None:
    url = URL + "?is_staff=1"
    refused = {"is_staff": ["unknown; known: nothing"]}
    status, answer = post(lead, {"name": "a"}, url=url)
    assert (status, answer["fields"], made()) == (400, refused, [])
    assert lead.get(url).json()["fields"] == refused
    assert post(lead, b"a", url="/api/v1/streams/?a=1", content_type="text/csv")[0] == 201


# --- at the same time ---------------------------------------------------------------


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_of_two_requests_at_once_with_one_key_one_is_done() -> None:
    first, second = signed_in("lee"), Client(raise_request_exception=False)
    second.cookies = first.cookies
    answers: list[tuple[int, dict[str, Any]]] = []
    BARRIERS.hold()

    def send() -> None:
        answers.append(post(first, {"name": "a"}, key="k"))
        connections.close_all()

    thread = threading.Thread(target=send)
    thread.start()
    assert BARRIERS.reached.wait(10)
    if connection.vendor == "postgresql":  # on SQLite the second one waits for the first
        status, answer = post(second, {"name": "a"}, key="k")
        assert (status, answer["error"]) == (409, "key_in_use")
    BARRIERS.go_on.set()
    thread.join()
    assert answers[0][0] == 201
    assert post(second, {"name": "a"}, key="k") == answers[0]
    assert made() == ["a"]


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_nobody_waits_for_a_write_that_still_reckons() -> None:
    """The key is taken and no transaction is open: another person's write goes through."""
    first, second = signed_in("lee"), signed_in("lou")
    answers: list[tuple[int, dict[str, Any]]] = []
    Slow.held.clear()
    BARRIERS.hold()

    def send() -> None:
        answers.append(post(first, {}, key="k", url="/api/v1/slow/"))
        connections.close_all()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        assert BARRIERS.reached.wait(10)
        record_event(actor=None, verb="thing.made", subject="meanwhile", at=NOW)
        status, answer = post(first, {}, key="k", url="/api/v1/slow/")
        assert (status, answer["error"]) == (409, "key_in_use")
        assert second.get(URL).status_code == 200
    finally:
        BARRIERS.go_on.set()
        thread.join()
    assert answers[0][0] == 201
    assert post(first, {}, key="k", url="/api/v1/slow/") == answers[0]
    assert made() == ["meanwhile", "slow"]
    assert Slow.held == [False, True]


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_many_requests_at_once_with_one_key_have_one_effect() -> None:
    found = _all_at_once()
    assert found[201] >= 1
    assert found[201] + found[409] == 8
    assert made() == ["a"]


@pytest.mark.both_databases
@pytest.mark.django_db(transaction=True)
def test_without_the_key_they_have_as_many_effects_as_there_are_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard removed: the requests above do race."""
    monkeypatch.setattr(
        idempotency, "begin", lambda *, user, key, request_sha256, at: idempotency.Taken(0)
    )
    monkeypatch.setattr(idempotency, "finish", lambda taken, *, status, body: None)
    assert _all_at_once()[201] == 8
    assert made() == ["a"] * 8


def _all_at_once() -> dict[int, int]:
    signed = signed_in("lee")
    found = {201: 0, 409: 0}
    start = threading.Barrier(8)

    def send() -> None:
        client = Client(raise_request_exception=False)
        client.cookies = signed.cookies
        start.wait(10)
        status = post(client, {"name": "a"}, key="k")[0]
        found[status] += 1
        connections.close_all()

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
