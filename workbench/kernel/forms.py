"""Reading a page's form: its own fields, once each, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.core.exceptions import BadRequest
from django.http import HttpRequest

CSRF_FIELD = "csrfmiddlewaretoken"


@dataclass(frozen=True)
class Fault:
    """What is wrong with one field; ``field`` is the id of its control."""

    field: str
    text: str


def posted(
    request: HttpRequest, *names: str, many: Sequence[str] = (), files: Sequence[str] = ()
) -> dict[str, str]:
    """Return the fields ``names`` of the form, empty where they were left out.

    Args:
        many: further fields that may be sent several times; read them from ``request.POST``.
        files: inputs for files, to be read from ``request.FILES``. A browser sends one in which
            nothing was chosen as a part with an empty file name, which arrives as an empty field.

    Raises:
        BadRequest: another field was sent, or one of ``names`` twice: what isn't named here
            can't be set.
    """
    known = {CSRF_FIELD, *names, *many}
    for name, values in request.POST.lists():
        if name in files and values == [""]:
            continue
        if name not in known or (len(values) > 1 and name not in many):
            raise BadRequest(f"the form has no field {name!r}, or not twice")
    return {name: request.POST.get(name, "") for name in names}


def faults_of_field(field: str, texts: Sequence[str]) -> tuple[Fault, ...]:
    """Return one fault of ``field`` for each text."""
    return tuple(Fault(field, text) for text in texts)
