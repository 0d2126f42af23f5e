"""Identity by content: canonical JSON, sha256 and the uids derived from them."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

# Fixed for ever: changing it would change the uid of everything stored.
NAMESPACE = uuid.UUID("8b9d4b5e-6c0f-5c1e-9a53-2f3a7c1d0e64")


def canonical_json(value: Any) -> str:
    """Return the one JSON text of ``value``: sorted keys, no spaces, UTF-8, no NaN.

    Raises:
        ValueError: ``value`` holds NaN or an infinity.
        TypeError: ``value`` holds something JSON has no form for.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def sha256_of(value: Any) -> str:
    """Return the hex sha256 of ``value``'s canonical JSON (64 characters)."""
    return sha256_of_text(canonical_json(value))


def sha256_of_text(text: str) -> str:
    """Return the hex sha256 of ``text`` in UTF-8 (64 characters)."""
    return hashlib.sha256(_bytes(text)).hexdigest()


def _bytes(text: str) -> bytes:
    # Text that models write may hold lone surrogates (JSON "\ud800"): they must hash, not crash.
    return text.encode("utf-8", "surrogatepass")


def uid_for(*parts: Any) -> uuid.UUID:
    """Return the uuid5 of the canonical JSON list of ``parts``: the same parts, the same uid."""
    # uuid.uuid5 itself takes no lone surrogate.
    name = NAMESPACE.bytes + _bytes(canonical_json(list(parts)))
    digest = hashlib.sha1(name, usedforsecurity=False).digest()
    return uuid.UUID(bytes=digest[:16], version=5)


def generation_seed(*, seed_stream: str, task_sha256: str, replicate: int) -> int:
    """Return the 31-bit seed that both arms of a pair send (0 to 2**31 - 1)."""
    digest = hashlib.sha256(_bytes(canonical_json([seed_stream, task_sha256, replicate]))).digest()
    return int.from_bytes(digest[:4], "big") >> 1
