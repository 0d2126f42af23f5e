"""Runs the tests of constraints, leases and triggers once more, on PostgreSQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.shared import ROOT


def test_constraints_leases_and_triggers_hold_on_postgresql(postgres_url: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env.pop("DJANGO_SETTINGS_MODULE")
    pytest = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    again = subprocess.run(
        [*pytest, "-m", "both_databases", "tests/integration"],
        cwd=ROOT,
        env=env | {"TEST_DATABASE_URL": postgres_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stdout[-4000:] + again.stderr[-2000:]
    assert re.search(r"\d+ passed", again.stdout), again.stdout[-500:]
