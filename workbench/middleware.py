"""What every request passes: refusals that no page has to repeat, and the session's life."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, JsonResponse
from django.template.defaultfilters import filesizeformat

from workbench.kernel.api import error_body
from workbench.kernel.pages import render_page
from workbench.kernel.uploads import largest_body_of, length_of

NUL = "\0"
NUL_REFUSED = "A NUL character is no part of any name or text."
API = "/api/"
# A session's idle end moves on at most this often: a write per page would make
# every reader wait for whoever is writing.
REFRESH_AFTER_S = 600

Handler = Callable[[HttpRequest], HttpResponse]


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
    """Answer 400 to a NUL in path, query or form: no name holds one, and PostgreSQL stores none."""

    def middleware(request: HttpRequest) -> HttpResponse:
        texts = [request.path_info, *request.GET, *_values(request.GET)]
        api = request.path_info.startswith(API)
        # An endpoint reads its body itself, once it knows who sends it.
        if request.method == "POST" and not api:
            texts += _values(request.POST)
        if any(NUL in text for text in texts):
            if api:
                return JsonResponse(error_body("unreadable", NUL_REFUSED), status=400)
            return HttpResponseBadRequest(NUL_REFUSED)
        return get_response(request)

    return middleware


def refuse_oversize(get_response: Handler) -> Handler:
    """Answer 413 to a page's form that is longer than the page takes, before any of it is kept.

    Reading a form stores its files, and whoever sends one isn't known yet. Endpoints see to
    theirs themselves.
    """

    def middleware(request: HttpRequest) -> HttpResponse:
        length = length_of(request)
        if length <= settings.DATA_UPLOAD_MAX_MEMORY_SIZE or request.path_info.startswith(API):
            return get_response(request)
        largest = largest_body_of(request)
        if length <= largest:
            return get_response(request)
        # A browser shows no answer before it has sent all; what is near the limit is thrown away.
        if length <= 2 * largest:
            while request.read(64 * 1024):
                pass
        page = TooLargePage(filesizeformat(length), filesizeformat(largest), request.path)
        return render_page(request, "413.html", page, status=413)

    return middleware


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
