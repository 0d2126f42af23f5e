"""Where the reference material stands that some tests read.

It is no part of the repository. A checkout that has none beside it skips the
tests that need it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("WORKBENCH_SHARED") or ROOT.parent / "shared")

needs_shared = pytest.mark.skipif(
    not (SHARED / "README.md").is_file(),
    reason=(
        f"reference material absent: {SHARED} is no such folder (set WORKBENCH_SHARED to its place)"
    ),
)
