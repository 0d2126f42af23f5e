"""Files to be saved."""

from __future__ import annotations

from typing import IO

from django.http import FileResponse


def attachment(opened: IO[bytes], *, name: str) -> FileResponse:
    """Return a file to be saved, never shown: it may hold what models and strangers wrote.

    Args:
        opened: closed once it is sent.
        name: of ASCII letters, digits, dots and hyphens.
    """
    response = FileResponse(
        opened, as_attachment=True, filename=name, content_type="application/octet-stream"
    )
    response["X-Content-Type-Options"] = "nosniff"
    response["Cache-Control"] = "no-store"
    return response
