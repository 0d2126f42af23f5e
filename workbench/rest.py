"""The base of every JSON endpoint: roles and scopes, strict bodies, lists, writes done once."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from rest_framework import serializers
from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.parsers import BaseParser
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.encoders import JSONEncoder
from rest_framework.views import APIView

from workbench import idempotency
from workbench.idempotency import HEADER as KEY_HEADER
from workbench.kernel.api import (
    Conflict,
    NoParameters,
    TooLarge,
    checked_query,
    error_body,
    known_fields_only,
    single_values,
)
from workbench.kernel.lists import BadListQuery, Listing, Shown, page_of
from workbench.kernel.roles import UNBLINDED, Role, role_of
from workbench.kernel.uploads import length_of
from workbench.models import ApiToken
from workbench.tokens import Scope

PIECE = 1 << 16
# Bytes of a refusal that is kept with its key.
LONGEST_REFUSAL = 64 * 1024
SAFE = ("GET", "HEAD", "OPTIONS")
KEPT_SECRET = (
    "This was done by the first request with this key. Its answer held a secret, which is shown "
    "once and isn't kept: take back what was made, or make another with a new key."
)


class RoleAndScope(BasePermission):
    """The endpoint's roles, and where a token is used, its scope."""

    message = "This is not open to your role, or to this token's scopes."

    def has_permission(self, request: Request, view: Any) -> bool:
        if role_of(request.user) not in view.roles:
            return False
        scope = Scope.READ if request.method in SAFE else view.write_scope
        token: ApiToken | Any = request.auth
        return token is None or scope.value in token.scopes


class Endpoint(APIView):
    """What an endpoint of the workbench inherits.

    A write that names a key (header ``Idempotency-Key``) is one transaction together with its
    stored answer. While it goes on nobody else writes on SQLite, so it must neither wait for
    anything outside, which is a job's work, nor compute: ``prepare`` does that before it.

    Attributes:
        roles: who may use it.
        write_scope: what a token needs for methods that change something.
        hash_body: False where the body may be too large to be held in memory for its hash.
        largest_body: bytes; a longer body is refused unread.
        takes_query: True where a write looks at its query itself; else it takes none.
        secret_answer: True where the answer to a write holds a secret that must not be stored.
    """

    roles: tuple[Role, ...] = UNBLINDED
    write_scope: Scope = Scope.WRITE
    hash_body = True
    largest_body = 2_500_000
    takes_query = False
    secret_answer = False
    permission_classes = (RoleAndScope,)
    # OPTIONS would describe the endpoint to whoever asks.
    http_method_names = ["get", "post", "put", "patch", "delete", "head"]

    _taken: idempotency.Taken | None = None
    _spooled: IO[bytes] | None = None

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check who asks; give the first answer again where the request was sent before.

        Nothing of the body is looked at before it is known that it may come, and from whom.
        """
        if length_of(request._request) > self.largest_body:
            raise TooLarge(f"The body may have {self.largest_body:,} bytes here.")
        super().initial(request, *args, **kwargs)
        if self._is_form(request):
            _check_form(request._request)
        method = str(request.method)
        key = request.headers.get(KEY_HEADER, "")
        handler = getattr(self, method.lower(), None)
        if handler is None or method.lower() not in self.http_method_names:
            return
        if method in SAFE:
            setattr(self, method.lower(), _strict(handler))
            return
        if not self.takes_query:
            checked_query(request.query_params, NoParameters)
        if key:
            self._take(request, key, handler)
        self.prepare(request, *args, **kwargs)

    def prepare(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Read and check what a write was sent, before its transaction begins.

        What takes long belongs here; what it finds is kept on ``self`` for the handler.
        """
        if self.hash_body and request.method != "DELETE":
            _ = request.data

    def _take(self, request: Request, key: str, handler: Callable[..., Any]) -> None:
        """Take the key for this request, whose handler then is one transaction with its answer."""
        if len(key) > idempotency.LONGEST_KEY or not (key.isascii() and key.isprintable()):
            said = f"it takes 1 to {idempotency.LONGEST_KEY} printable ASCII characters"
            raise ValidationError({KEY_HEADER: [said]})
        try:
            before = idempotency.begin(
                user=request.user, key=key, request_sha256=self._digest(request), at=timezone.now()
            )
        except idempotency.KeyInUse as refused:
            raise KeyInUse(str(refused)) from refused
        except idempotency.KeyReused as refused:
            raise KeyReused(str(refused)) from refused
        if isinstance(before, idempotency.Answer):
            raise _AnsweredBefore(before)
        self._taken = before
        # dispatch() looks the method's function up on the instance after this.
        setattr(self, str(request.method).lower(), self._once(handler, before))

    def handle_exception(self, exc: Exception) -> Response:
        if isinstance(exc, _AnsweredBefore):
            if exc.answer.body is None and self.secret_answer and exc.answer.status < 400:
                return super().handle_exception(Conflict(KEPT_SECRET))
            return Response(exc.answer.body, status=exc.answer.status)
        if isinstance(exc, idempotency.KeyLost):
            self._taken = None
            exc = Conflict("another request with this key was answered meanwhile")
        try:
            return super().handle_exception(exc)
        except BaseException:
            self._release()
            raise

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Response:
        final = super().finalize_response(request, response, *args, **kwargs)
        if self._taken and isinstance(final, Response) and final.status_code < 500:
            # A refusal: it came about outside the transaction, in which nothing was done.
            idempotency.finish(self._taken, status=final.status_code, body=_kept(final.data))
            self._taken = None
        self._release()
        if self._spooled:
            self._spooled.close()
        if final.status_code in (401, 403):
            # What an address takes is for those who may use it.
            del final["Allow"]
        return final

    def _once(self, handler: Callable[..., Any], taken: idempotency.Taken) -> Callable[..., Any]:
        """Return ``handler`` as one transaction with its stored answer."""

        def answered(request: Request, *args: Any, **kwargs: Any) -> Any:
            with transaction.atomic():
                response = handler(request, *args, **kwargs)
                if response.status_code >= 500:
                    transaction.set_rollback(True)
                elif isinstance(response, Response):
                    kept = None if self.secret_answer else _plain(response.data)
                    idempotency.finish(taken, status=response.status_code, body=kept)
                    self._taken = None
            return response

        return answered

    def _digest(self, request: Request) -> str:
        """Return a hash of what is asked for; a form counts by its parts, not by its boundary."""
        plain = request._request
        digest = hashlib.sha256(f"{request.method}\0{request.get_full_path()}\0".encode())
        if self._is_form(request):
            for name, values in sorted(plain.POST.lists()):
                digest.update(json.dumps([name, values]).encode())
            for name, files in sorted(plain.FILES.lists()):
                for file in files:
                    digest.update(json.dumps([name, file.name, file.size]).encode())
                    for chunk in file.chunks():
                        digest.update(chunk)
                    file.seek(0)
        elif self.hash_body:
            digest.update(plain.body)
        else:
            # Closed with the answer.
            self._spooled = tempfile.TemporaryFile(dir=settings.UPLOADS_DIR)  # noqa: SIM115
            while piece := plain.read(PIECE):
                digest.update(piece)
                self._spooled.write(piece)
            self._spooled.seek(0)
            # The request is as unread as before.
            plain._stream = self._spooled
            plain._read_started = False  # type: ignore[attr-defined]
        return digest.hexdigest()

    def _is_form(self, request: Request) -> bool:
        # Django reads forms of a POST alone.
        form = "multipart/form-data"
        sent = request._request
        takes = any(parser.media_type == form for parser in self.parser_classes)
        return takes and sent.method == "POST" and sent.content_type == form

    def _release(self) -> None:
        taken, self._taken = self._taken, None
        if taken:
            idempotency.release(taken)


def _strict(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``handler``, refusing parameters that it never looked at: it takes none."""

    def answered(request: Request, *args: Any, **kwargs: Any) -> Any:
        response = handler(request, *args, **kwargs)
        if not getattr(request.query_params, "looked_at", False):
            checked_query(request.query_params, NoParameters)
        return response

    return answered


class KeyInUse(Conflict):
    """The first request with the key is still being answered."""

    default_code = "key_in_use"


class KeyReused(Conflict):
    """The key stands for another request."""

    default_code = "key_reused"


class _AnsweredBefore(Exception):
    def __init__(self, answer: idempotency.Answer) -> None:
        self.answer = answer


class StreamParser(BaseParser):
    """A body that the endpoint reads itself, piece by piece; a subclass names its type."""

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        return stream


def media_type_of(request: Request) -> str:
    """Return the type of the body, in small letters and without its parameters."""
    return (request.content_type or "").partition(";")[0].strip().lower()


def checked_body(request: Request, serializer: type[serializers.Serializer[Any]]) -> dict[str, Any]:
    """Return the validated body.

    Raises:
        ValidationError: a value is wrong, or a field isn't one of the serializer's: what is not
            named there can't be set.
    """
    data = request.data
    if not isinstance(data, Mapping):
        raise ValidationError({"": ["the body must be a JSON object"]})
    given = serializer(data=data)
    known_fields_only(data, given)
    given.is_valid(raise_exception=True)
    return dict(given.validated_data)


def listed(
    request: Request,
    queryset: QuerySet[Any],
    *,
    listing: Listing,
    output: type[serializers.Serializer[Any]],
    context: Mapping[str, Any] | None = None,
    shown: Shown | None = None,
) -> Response:
    """Return one page: ``{"results": [...], "next": address or null}``.

    Args:
        context: what the output serializer is given beside the rows.
        shown: as of ``page_of``.

    Raises:
        ValidationError: a parameter or value that the listing doesn't have.
    """
    try:
        query = single_values(request.query_params)
        page = page_of(queryset, listing=listing, query=query, shown=shown)
    except BadListQuery as bad:
        raise ValidationError({name: [reason] for name, reason in bad.fields.items()}) from bad
    here = request.path
    return Response(
        {
            "results": output(page.rows, many=True, context=dict(context or {})).data,
            "next": f"{here}?{page.next_query}" if page.next_query else None,
        }
    )


def _check_form(request: HttpRequest) -> None:
    if any("\0" in text for text in _texts(request)):
        raise ParseError("A NUL character is no part of any name or text.")


def _texts(request: HttpRequest) -> Iterator[str]:
    for name, values in request.POST.lists():
        yield from (str(name), *map(str, values))
    for name, files in request.FILES.lists():
        yield from (str(name), *(str(file.name) for file in files))


def _kept(refusal: Any) -> Any:
    """Return a refusal's body as it is kept: without its fields where they are very long."""
    body = _plain(refusal)
    if len(json.dumps(body)) <= LONGEST_REFUSAL:
        return body
    said = f"{body['message']} Which fields was told in the first answer; it was too long to keep."
    return error_body(body["error"], said)


def _plain(data: Any) -> Any:
    """Return response data as plain JSON values."""
    return json.loads(json.dumps(data, cls=JSONEncoder))
