"""Files that jobs leave in the data folder, and when they are of no more use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path


def written_before(folder: Path, *patterns: str, moment: datetime) -> Iterator[Path]:
    """Yield the files of ``folder`` that were last written before ``moment``.

    Another process may remove them meanwhile, or the folder may not be there yet: then there are
    none.
    """
    for pattern in patterns:
        for path in folder.glob(pattern):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < moment.timestamp():
                    yield path
