"""Killing workers at random moments, and comparing with a run that nobody disturbed.

Everything runs as it does for a user, in processes of its own: a Valkey
server, Celery workers, the sweeper and commands, over a data folder per run.
The model is scripted, so that both runs get the same replies.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.supervise import ROOT, valkey_binary

SLUG = "kill"
WORKERS = 2
PATIENCE_S = 300.0
PLAN = """\
schema = 1
slug = "{slug}"
[[model]]
id = "scripted"
base_url = "scripted:mixed?latency_ms=30"
[[benchmark]]
suite = "starter"
partition = {{ size = {pairs}, seed = 42 }}
[[cell]]
library = "coding"
"""


@dataclass(frozen=True)
class RunFacts:
    """What a run left behind.

    Attributes:
        report: the report's JSON text.
        executions: how many executions there are.
        attempts: attempts without a failure; each execution must have exactly one.
        most_attempts: the most such attempts of one execution.
        completed_calls: completed calls in the ledger.
        repeated_calls: completed calls beyond the first of their step.
        unfinished_calls: calls that were in flight when their worker was killed.
        kills: how many times the worker was killed.
    """

    report: str
    executions: int
    attempts: int
    most_attempts: int
    completed_calls: int
    repeated_calls: int
    unfinished_calls: int
    kills: int

    def faults(self, undisturbed: RunFacts) -> list[str]:
        """Return every way in which this run isn't as good as the undisturbed one."""
        found = []
        if self.report != undisturbed.report:
            found.append("the report differs from the undisturbed run's")
        if (self.attempts, self.most_attempts) != (self.executions, 1):
            found.append(f"{self.attempts} attempts for {self.executions} executions")
        if self.repeated_calls:
            found.append(f"{self.repeated_calls} finished calls were made again")
        if self.completed_calls != undisturbed.completed_calls:
            found.append(
                f"{self.completed_calls} completed calls instead of {undisturbed.completed_calls}"
            )
        if self.unfinished_calls > WORKERS * self.kills:
            found.append(f"{self.unfinished_calls} calls cut off by {self.kills} kills")
        return found


def run_with_kills(*, folder: Path, pairs: int, points: int, seed: int) -> RunFacts:
    """Run an experiment of ``pairs`` in ``folder``, killing its worker ``points`` times.

    The moments are drawn by ``seed`` over the calls of the whole run.

    Raises:
        TimeoutError: the run didn't end.
    """
    folder.mkdir(parents=True)
    (folder / "plan.toml").write_text(PLAN.format(slug=SLUG, pairs=pairs))
    with _broker(folder) as broker:
        environment = {
            **os.environ,
            "WORKBENCH_DATA": str(folder),
            "BROKER_URL": broker,
            "WORKBENCH_ALLOW_SCRIPTED": "1",
            "WORKBENCH_LEASE_SECONDS": "3",
            "WORKBENCH_RENEW_SECONDS": "1",
            "WORKBENCH_SWEEP_SECONDS": "1",
            # A run may be hit by many kills; here none of them is its own fault.
            "WORKBENCH_MAX_TRIES": "100000",
        }
        _manage(environment, "migrate", "--verbosity", "0")
        _manage(environment, "run_experiment", str(folder / "plan.toml"), "--plan-only")
        _manage(environment, "experiment", "start", SLUG, "--no-wait")
        kills = _drive(folder, environment, _moments(pairs, points, seed))
        report = _manage(environment, "report", SLUG, "--format", "json")
    return _facts(folder, report, kills)


def _moments(pairs: int, points: int, seed: int) -> list[int]:
    """Return after how many calls the worker is killed, ascending; a pair makes about three."""
    generator = random.Random(seed)
    return sorted(generator.randrange(1, 3 * pairs) for _ in range(points))


def _drive(folder: Path, environment: Mapping[str, str], moments: list[int]) -> int:
    """Keep a worker and the sweeper alive, kill the worker at its moments; return how often."""
    deadline = time.monotonic() + PATIENCE_S + 10 * len(moments)
    kills = 0
    sweeper = _start(folder, environment, "sweeper", [sys.executable, "manage.py", "sweep"])
    worker = _start_worker(folder, environment)
    try:
        while not _finished(folder):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the run in {folder} didn't end; see its logs there")
            if kills < len(moments) and _calls(folder) >= moments[kills]:
                _kill(worker)
                kills += 1
                worker = _start_worker(folder, environment)
            time.sleep(0.02)
    finally:
        _kill(worker)
        _kill(sweeper)
    return kills


def _start_worker(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "-A", "workbench.celery", "worker"]
    command += ["--concurrency", str(WORKERS), "--queues", "executions", "--loglevel", "WARNING"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return _start(folder, environment, "worker", command)


def _start(
    folder: Path, environment: Mapping[str, str], name: str, command: list[str]
) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children as a machine does that loses its power."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _manage(environment: Mapping[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"manage.py {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


@contextlib.contextmanager
def _broker(folder: Path) -> Iterator[str]:
    socket = folder / "broker.sock"
    server = subprocess.Popen(
        [valkey_binary(), "--port", "0", "--unixsocket", str(socket), "--save", ""],
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    try:
        while not socket.exists():
            if server.poll() is not None:
                raise RuntimeError(f"the broker in {folder} didn't start")
            time.sleep(0.02)
        yield f"redis+socket://{socket}"
    finally:
        server.kill()
        server.wait()


def _query(folder: Path, sql: str) -> list[tuple[int, ...]]:
    database = sqlite3.connect(f"file:{folder / 'workbench.sqlite3'}?mode=ro", uri=True, timeout=20)
    with contextlib.closing(database):
        return database.execute(sql).fetchall()


def _calls(folder: Path) -> int:
    return _query(folder, "SELECT count(*) FROM workbench_call")[0][0]


def _finished(folder: Path) -> bool:
    sql = "SELECT count(*) FROM runs_experiment WHERE status = 'finished'"
    return bool(_query(folder, sql)[0][0])


def _facts(folder: Path, report: str, kills: int) -> RunFacts:
    attempts = _query(
        folder, "SELECT count(*) FROM runs_attempt WHERE failure = '' GROUP BY execution_id"
    )
    completed = _query(
        folder,
        "SELECT count(*) FROM workbench_call WHERE state = 'completed' GROUP BY subject, step",
    )
    unfinished = "SELECT count(*) FROM workbench_call WHERE state IN ('sent', 'orphaned')"
    return RunFacts(
        report=json.dumps(json.loads(report), sort_keys=True),
        executions=_query(folder, "SELECT count(*) FROM runs_execution")[0][0],
        attempts=sum(n for (n,) in attempts),
        most_attempts=max((n for (n,) in attempts), default=0),
        completed_calls=sum(n for (n,) in completed),
        repeated_calls=sum(n - 1 for (n,) in completed),
        unfinished_calls=_query(folder, unfinished)[0][0],
        kills=kills,
    )
