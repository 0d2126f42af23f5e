"""A Celery application for the supervisor's tests; it needs no database."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from celery import Celery

# Not the current one: the tests that run after this is imported use the workbench's.
app = Celery("kept", broker=os.environ.get("BROKER_URL"), set_as_current=False)
app.conf.task_ignore_result = True

# A grandchild that leaves its session and its parent, as a daemon does.
DAEMON = "setsid sh -c 'sleep 300 & sleep 300' & setsid sleep 300"


@app.task(name="kept.hold")
def hold(*, sign: str) -> None:
    """Start grandchildren in sessions of their own, say so, and stay busy."""
    with subprocess.Popen(["sh", "-c", DAEMON]) as shell:
        Path(sign).write_text(str(os.getpid()))
        shell.wait()
