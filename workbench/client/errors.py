"""What can go wrong between a program and the workbench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any


class WorkbenchError(Exception):
    """Anything that this client raises."""


class Unreachable(WorkbenchError):
    """No answer came, however often it was tried."""


class TimedOut(WorkbenchError):
    """What was waited for didn't come to its end in time; it goes on by itself."""


class JobFailed(WorkbenchError):
    """A job came to no result; the message says why and what to do.

    Attributes:
        job: as it was answered last; ``job.result`` may name what is wrong.
    """

    def __init__(self, job: Any) -> None:
        super().__init__(f"{job.kind} of {job.subject}: {job.problem}")
        self.job = job


class ApiError(WorkbenchError):
    """The workbench refused.

    Attributes:
        status: the HTTP status.
        code: what it is, for programs, such as ``conflict``.
        message: what it is, for people.
        fields: what is wrong by field or parameter; ``''`` is the whole body.
    """

    def __init__(
        self, status: int, code: str, message: str, fields: Mapping[str, Sequence[str]]
    ) -> None:
        said = "; ".join(
            f"{name}: {', '.join(reasons)}" if name else ", ".join(reasons)
            for name, reasons in fields.items()
        )
        super().__init__(f"{status} {code}: {message}" + (f" ({said})" if said else ""))
        self.status = status
        self.code = code
        self.message = message
        self.fields = {name: tuple(reasons) for name, reasons in fields.items()}


class Invalid(ApiError):
    """400: it can't be read, or some of it can't be used; ``fields`` says what."""


class NotSignedIn(ApiError):
    """401: the token is unknown, revoked or expired."""


class Forbidden(ApiError):
    """403: not open to the token's person or its scopes."""


class NotFound(ApiError):
    """404: there is no such thing."""


class Conflict(ApiError):
    """409: the thing isn't in a state in which this can be done."""


class Gone(ApiError):
    """410: it is no longer kept."""


class TooLarge(ApiError):
    """413: more than the address takes."""


class TooManyRequests(ApiError):
    """429: too many requests, even after waiting."""


class ServerFailed(ApiError):
    """5xx: a fault of the workbench, or of what stands before it."""


OF_STATUS: Mapping[int, type[ApiError]] = MappingProxyType(
    {
        400: Invalid,
        401: NotSignedIn,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        410: Gone,
        413: TooLarge,
        429: TooManyRequests,
    }
)


def error_of(status: int, body: Any) -> ApiError:
    """Return the error that an answer tells; a body of another shape is none of ours."""
    kind = OF_STATUS.get(status, ServerFailed if status >= 500 else ApiError)
    if isinstance(body, Mapping) and isinstance(body.get("error"), str):
        return kind(status, body["error"], str(body.get("message")), body.get("fields") or {})
    return kind(status, "unknown", "the answer isn't the workbench's; is the address right?", {})
