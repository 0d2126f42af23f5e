"""What every request passes: refusals that no page has to repeat, and the session's life."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse

from workbench.kernel.api import error_body
from workbench.kernel.pages import render_page
from workbench.kernel.roles import CLOSED, role_of
from workbench.kernel.texts import size_text
from workbench.kernel.uploads import largest_body_of, length_of

NUL = "\0"
NUL_REFUSED = "A NUL character is no part of any name or text."
API = "/api/"
# A session's idle end moves on at most this often: a write per page would make
# every reader wait for whoever is writing.
REFRESH_AFTER_S = 600

# Of a form from somebody who isn't signed in.
STRANGERS_BYTES = 64 * 1024

Handler = Callable[[HttpRequest], HttpResponse]
View = Callable[..., HttpResponse]


@dataclass(frozen=True)
class TooLargePage:
    """What was sent, what the page takes, and where the form is."""

    sent: str
    largest: str
    here: str


FORWARDED = (
    "HTTP_FORWARDED",
    "HTTP_X_FORWARDED_FOR",
    "HTTP_X_FORWARDED_HOST",
    "HTTP_X_FORWARDED_PORT",
    "HTTP_X_FORWARDED_PROTO",
)


def drop_strangers_headers(get_response: Handler) -> Handler:
    """Drop what a request says of its way here, unless the proxy of this installation says it.

    A request over a Unix socket has no address; only a proxy can reach that.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        if not _is_within(request.META.get("REMOTE_ADDR", ""), settings.PROXIES):
            for name in FORWARDED:
                request.META.pop(name, None)
        return get_response(request)

    return middleware


def _is_within(address: str, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    if not networks:
        return False
    try:
        return not address or any(ip_address(address) in network for network in networks)
    except ValueError:
        return False


def refuse_nul(get_response: Handler) -> Handler:
    """Answer 400 to a NUL in path or query: no name holds one, and PostgreSQL stores none."""

    def middleware(request: HttpRequest) -> HttpResponse:
        if any(NUL in text for text in (request.path_info, *request.GET, *_values(request.GET))):
            if request.path_info.startswith(API):
                return JsonResponse(error_body("unreadable", NUL_REFUSED), status=400)
            return HttpResponseBadRequest(NUL_REFUSED)
        return get_response(request)

    return middleware


class _BeforeTheView:
    """A middleware whose look comes once the view is known and nothing of the body was read.

    They stand between the look at who is signed in and the check of the form's token, which
    is the first to read a body.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)


class CloseToRoles(_BeforeTheView):
    """Answer 403 to roles that a page is closed to, whatever the method: it tells of none."""

    def process_view(self, request: HttpRequest, view: View, *_: Any) -> None:
        """Raise PermissionDenied unless the view is for the person's role, or for everybody."""
        roles = getattr(view, "roles", None)
        if roles is not None and role_of(request.user) not in roles:
            raise PermissionDenied(CLOSED)


class RefuseOversize(_BeforeTheView):
    """Answer 413 to a form that is longer than the page takes, before any of it is kept.

    Reading a form stores its files. Who isn't signed in has names, passwords and tokens to
    send, and no file. Endpoints see to theirs themselves.
    """

    def process_view(self, request: HttpRequest, view: View, *_: Any) -> HttpResponse | None:
        """Return the refusal, or None for what may be read."""
        length = length_of(request)
        if length <= STRANGERS_BYTES or request.path_info.startswith(API):
            return None
        signed_in = request.user.is_authenticated
        largest = largest_body_of(view) if signed_in else STRANGERS_BYTES
        if length <= largest:
            return None
        # A browser shows no answer before it has sent all; what is near the limit is thrown away.
        if signed_in and length <= 2 * largest:
            while request.read(64 * 1024):
                pass
        page = TooLargePage(size_text(length), size_text(largest), request.path)
        return render_page(request, "413.html", page, status=413)


class RefuseNulInForms(_BeforeTheView):
    """Answer 400 to a NUL in a page's form; an endpoint reads its body itself."""

    def process_view(self, request: HttpRequest, *_: Any) -> HttpResponse | None:
        """Return the refusal, or None for a form without one."""
        if request.method != "POST" or request.path_info.startswith(API):
            return None
        return (
            HttpResponseBadRequest(NUL_REFUSED)
            if any(NUL in text for text in _values(request.POST))
            else None
        )


def no_store(get_response: Handler) -> Handler:
    """Keep answers out of caches unless the page says otherwise: they are for one person."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    return middleware


def refresh_session(get_response: Handler) -> Handler:
    """Move the session's idle end on while a person is there; polling fragments are nobody."""

    def middleware(request: HttpRequest) -> HttpResponse:
        polled = request.headers.get("HX-Request") == "true" and request.method == "GET"
        if request.user.is_authenticated and not polled:
            now = int(time.time())
            if now - request.session.get("refreshed_at", 0) >= REFRESH_AFTER_S:
                request.session["refreshed_at"] = now
        return get_response(request)

    return middleware


def _values(data: object) -> list[str]:
    return [value for _, values in data.lists() for value in values]  # type: ignore[attr-defined]
