"""What may stand in a name that people type and others read."""

from __future__ import annotations

import unicodedata

# Control and format characters, and the separators that break a line.
_UNSEEN = ("Cc", "Cf", "Zl", "Zp")
UNSEEN_REFUSED = "It holds a control character or one that isn't seen; type it anew."


def has_unseen(text: str) -> bool:
    """Return whether ``text`` holds a character that steers a terminal or turns text around."""
    return any(unicodedata.category(character) in _UNSEEN for character in text)


def size_text(size: int) -> str:
    """Return ``size`` bytes as people read it, in powers of ten as everywhere here."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f}\N{NO-BREAK SPACE}{unit}"
    return f"{size}\N{NO-BREAK SPACE}byte{'' if size == 1 else 's'}"
