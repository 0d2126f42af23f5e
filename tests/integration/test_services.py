"""The tests' own servers end with the run that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shared import ROOT

pytestmark = pytest.mark.xdist_group("services")

STARTS_AND_WAITS = """
import sys, time
from pathlib import Path
from tests import services
print(getattr(services, sys.argv[1])(Path(sys.argv[2])), flush=True)
time.sleep(300)
"""


def become_true(found: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not found() and time.monotonic() < deadline:
        time.sleep(0.02)
    return found()


@pytest.mark.parametrize("server", ["valkey_url", "postgres_url"])
def test_a_killed_run_leaves_no_server(server: str, tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    owner = subprocess.Popen(
        [sys.executable, "-c", STARTS_AND_WAITS, server, str(tmp_path)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    url = owner.stdout.readline().replace("%2F", "/")
    folder = Path("/tmp") / url.partition("/tmp/")[2].split("/")[0].strip()
    assert folder.is_dir()
    assert folder.name.startswith("wbtest-")
    owner.kill()
    owner.communicate()
    assert become_true(lambda: not folder.exists())
