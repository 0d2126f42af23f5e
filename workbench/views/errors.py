"""Errors that no view answers, in the shape of what was asked for."""

from __future__ import annotations

from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.defaults import bad_request as bad_request_page
from django.views.defaults import page_not_found
from django.views.defaults import server_error as server_error_page

from workbench.kernel.api import NOT_FOUND, TOO_LARGE, UNEXPECTED, error_body

UNREADABLE = "The request can't be read."


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer a request that is refused before it reaches a view."""
    if not _api(request):
        return bad_request_page(request, exception)
    if isinstance(exception, RequestDataTooBig):
        return JsonResponse(error_body("too_large", TOO_LARGE), status=413)
    return JsonResponse(error_body("unreadable", UNREADABLE), status=400)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer an unknown address."""
    if not _api(request):
        return page_not_found(request, exception)
    return JsonResponse(error_body("not_found", NOT_FOUND), status=404)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer a fault of ours; what it was stands in the log alone."""
    if not _api(request):
        return server_error_page(request)
    return JsonResponse(error_body("unexpected", UNEXPECTED), status=500)


def _api(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")
