"""The supervisor with real processes: what starts, who notices, and that nothing stays."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import pytest

from workbench import supervise
from workbench.kernel.hosts import listening_port
from workbench.supervise import Child, ServiceFailed, processes, supervised

pytestmark = pytest.mark.xdist_group("services")

ROOT = supervise.ROOT
T = TypeVar("T")
# The command as its user sees it: it prints what runs and waits.
COMMAND = textwrap.dedent(
    """
    import json, os, sys, time
    from pathlib import Path
    from workbench.supervise import Child, supervised
    children = [Child(**child) for child in json.loads(sys.argv[2])]
    with supervised(children, data=Path(sys.argv[1])) as running:
        print(json.dumps([dict(running.environment), dict(running.pids)]), flush=True)
        while True:
            time.sleep(60)
    """
)
WRITES_AT_END = textwrap.dedent(
    """
    import pathlib, signal, sys, time
    name, log, ready = sys.argv[1:]
    def end(*_):
        with open(log, "a") as file:
            file.write(name + "\\n")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    pathlib.Path(ready).touch()
    time.sleep(300)
    """
)


def sleeper(name: str = "sleeper") -> Child:
    return Child(name=name, command=["sleep", "300"])


def broker() -> Child:
    return supervise.valkey_child()


def kept_worker() -> Child:
    celery = [sys.executable, "-m", "celery", "-A", "tests.integration.kept_app", "worker"]
    return Child(name="worker", command=[*celery, "--concurrency", "1", "--without-gossip"])


def wait_for(found: Callable[[], T], seconds: float = 15) -> T:
    """Poll until ``found`` returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.02)
    raise AssertionError(f"waited {seconds} s in vain")


def own_the_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Run:
    """A command under test; everything it starts carries a mark in its environment."""

    pids: Mapping[str, int] = MappingProxyType({})

    def __init__(self, data: Path, children: list[Child], *, terminal: int | None = None) -> None:
        self.mark = f"KEPT_MARK={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        plan = json.dumps([asdict(child) for child in children])
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, str(data), plan],
            cwd=ROOT,
            env=os.environ | {name: value},
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if terminal is None else terminal,
            text=True,
            start_new_session=terminal is not None,
            preexec_fn=None if terminal is None else own_the_terminal,
        )

    def started(self) -> tuple[dict[str, str], Mapping[str, int]]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        environment, self.pids = json.loads(line)
        return environment, self.pids

    def names(self) -> list[str]:
        """Return the program names of the living processes."""
        return [Path(f"/proc/{pid}/comm").read_text().strip() for pid in self.alive()]

    def alive(self) -> list[int]:
        """Return the living processes that carry the mark."""
        # Valkey writes its title over its environment.
        found = [pid for pid in self.pids.values() if processes.started_at(pid)]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and processes.started_at(int(entry.name)):
                try:
                    environ = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if self.mark.encode() in environ:
                    found.append(int(entry.name))
        return found

    def kill(self) -> None:
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ended(self, seconds: float = 5) -> bool:
        return wait_for(lambda: not self.alive(), seconds)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs = []

    def start(*children: Child, terminal: int | None = None) -> Run:
        runs.append(Run(tmp_path / "data", list(children), terminal=terminal))
        return runs[-1]

    yield start
    for one in runs:
        one.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(15)
        one.kill()
        one.process.communicate()


def test_children_run_inside_the_block_and_end_with_it(tmp_path: Path) -> None:
    with supervised([broker(), sleeper()], data=tmp_path) as running:
        path = running.broker_url.removeprefix("redis+socket://")
        assert Path(path).is_socket()
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
        assert len(path) < 108
        pids = dict(running.pids)
        assert all(processes.started_at(pid) for pid in pids.values())
        assert supervise.live_set(tmp_path) is not None
    assert not any(processes.started_at(pid) for pid in pids.values())
    assert not Path(path).parent.exists()
    assert supervise.live_set(tmp_path) is None


def test_children_end_in_the_reverse_order_of_their_start(tmp_path: Path) -> None:
    log = tmp_path / "order"
    names = ["model", "worker", "web"]
    children = [
        Child(
            name=name,
            command=[sys.executable, "-c", WRITES_AT_END, name, str(log), str(tmp_path / name)],
        )
        for name in names
    ]
    with supervised(children, data=tmp_path / "data"):
        wait_for(lambda: all((tmp_path / name).exists() for name in names))
    assert log.read_text().split() == ["web", "worker", "model"]


def test_a_child_deaf_to_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    deaf = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
    child = Child(name="deaf", command=["sh", "-c", deaf], grace_s=0.3)
    with supervised([child], data=tmp_path / "data") as running:
        wait_for(ready.exists)
        pid = running.pids["deaf"]
    assert processes.started_at(pid) is None


def test_a_port_file_tells_the_later_children_where_to_go(tmp_path: Path) -> None:
    server = textwrap.dedent(
        """
        import pathlib, socket, sys, time
        listener = socket.create_server(("127.0.0.1", 0))
        pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
        time.sleep(300)
        """
    )
    port_file, seen = tmp_path / "port", tmp_path / "seen"
    children = [
        Child(
            name="model",
            command=[sys.executable, "-c", server, str(port_file)],
            port_file=str(port_file),
            exports={"MODEL_URL": "http://127.0.0.1:{port}/v1"},
        ),
        Child(name="worker", command=["sh", "-c", f"echo $MODEL_URL > {seen}; sleep 300"]),
    ]
    with supervised(children, data=tmp_path / "data") as running:
        expected = f"http://127.0.0.1:{port_file.read_text()}/v1"
        assert running.environment["MODEL_URL"] == expected
        assert wait_for(lambda: seen.exists() and seen.read_text().strip()) == expected


def test_a_second_command_attaches_and_leaves_the_services_alone(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    owner = run(broker(), sleeper())
    environment, pids = owner.started()
    with supervised([broker(), sleeper()], data=tmp_path / "data") as running:
        assert running.attached
        assert running.environment == environment
        assert running.pids == pids
    assert all(processes.started_at(pid) for pid in pids.values())


def test_attaching_to_a_set_that_lacks_a_service_says_which(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    owner = run(sleeper("worker"))
    owner.started()
    wanted = [sleeper("worker"), sleeper("web")]
    with (
        pytest.raises(ServiceFailed, match="without: web"),
        supervised(wanted, data=tmp_path / "data"),
    ):
        pass


def test_an_attached_command_fails_when_the_services_end(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    owner = run(sleeper())
    owner.started()

    def use_them_till_their_owner_ends() -> None:
        with supervised([sleeper()], data=tmp_path / "data"):
            owner.process.terminate()
            signal.pause()

    with pytest.raises(ServiceFailed, match="ended with"):
        use_them_till_their_owner_ends()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything_with_130(run: Callable[..., Run], number: int) -> None:
    command = run(broker(), sleeper())
    command.started()
    command.process.send_signal(number)
    assert command.process.wait(10) == supervise.EXIT_INTERRUPTED
    assert command.alive() == []


def test_a_closed_terminal_leaves_nothing(run: Callable[..., Run]) -> None:
    master, slave = pty.openpty()
    command = run(broker(), sleeper(), terminal=slave)
    command.started()
    os.close(slave)
    os.close(master)
    assert command.process.wait(10) == supervise.EXIT_INTERRUPTED
    assert command.alive() == []


def test_a_signal_during_the_start_ends_everything(run: Callable[..., Run], tmp_path: Path) -> None:
    never_ready = Child(name="slow", command=["sleep", "300"], address=str(tmp_path / "none"))
    command = run(never_ready)
    wait_for(lambda: len(command.alive()) == 3)  # the command, its keeper, the child
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(10) == supervise.EXIT_INTERRUPTED
    assert command.alive() == []


def busy_worker(run: Callable[..., Run], tmp_path: Path) -> tuple[Run, Mapping[str, int], int]:
    """Start a broker and a worker whose pool child is busy with daemons of its own."""
    from tests.integration.kept_app import app

    command = run(broker(), kept_worker())
    environment, pids = command.started()
    sign = tmp_path / "sign"
    with app.connection_for_write(environment["BROKER_URL"]) as connection:
        app.send_task("kept.hold", kwargs={"sign": str(sign)}, connection=connection)
    pool_child = int(wait_for(lambda: sign.exists() and sign.read_text(), 30))
    wait_for(lambda: command.names().count("sleep") == 3)
    return command, pids, pool_child


def test_nothing_outlives_a_killed_command_by_5_seconds(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    command, _, _ = busy_worker(run, tmp_path)
    command.process.kill()
    assert command.ended(5)
    assert supervise.live_set(tmp_path / "data") is None


def test_without_a_keeper_the_daemons_do_outlive_their_command(tmp_path: Path) -> None:
    """Shows that the test above would notice."""
    from tests.integration.kept_app import DAEMON

    mark = f"KEPT_MARK={uuid.uuid4()}"
    unkept = f"import subprocess, time; subprocess.Popen(['sh', '-c', {DAEMON!r}]); time.sleep(300)"
    command = Run.__new__(Run)
    command.mark = mark
    command.process = subprocess.Popen(
        [sys.executable, "-c", unkept], env=os.environ | dict([mark.split("=")]), text=True
    )
    wait_for(lambda: command.names().count("sleep") == 3)
    command.process.kill()
    command.process.wait()
    try:
        with pytest.raises(AssertionError, match="in vain"):
            command.ended(1)
    finally:
        command.kill()


def test_a_killed_worker_takes_its_pool_along_and_is_started_again(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    command, pids, pool_child = busy_worker(run, tmp_path)
    os.kill(pids["worker"], signal.SIGKILL)
    wait_for(lambda: processes.started_at(pool_child) is None, 5)

    def again() -> int:
        record = supervise.live_set(tmp_path / "data")
        pid = record["children"]["worker"]["pid"] if record else 0
        return pid if pid != pids["worker"] else 0

    assert processes.started_at(wait_for(again))
    command.process.terminate()
    _, errors = command.process.communicate(timeout=20)
    assert "worker service was killed by signal 9; starting it again (1 of 2)" in errors


def test_a_child_that_dies_three_times_fails_the_command_and_names_its_log(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    crash = Child(name="worker", command=["sh", "-c", f"echo x >> {runs}; echo no disk; exit 3"])
    with pytest.raises(ServiceFailed) as failed, supervised([crash], data=tmp_path / "data"):
        signal.pause()
    # The first start and two restarts.
    assert runs.read_text().count("x") == 3
    assert "the worker service died 3 times" in str(failed.value)
    assert str(tmp_path / "data" / "logs" / "worker.log") in str(failed.value)
    assert str(failed.value).endswith("no disk")


def test_a_child_that_ends_before_it_is_ready_fails_the_start(tmp_path: Path) -> None:
    child = Child(name="model", command=["sh", "-c", "echo no weights; exit 1"], address="/none")
    with (
        pytest.raises(ServiceFailed, match="ended before it was ready") as failed,
        supervised([child], data=tmp_path / "data"),
    ):
        pass
    assert str(failed.value).endswith("no weights")


def test_a_program_that_is_not_there_fails_the_start(tmp_path: Path) -> None:
    child = Child(name="model", command=["/nonexistent/server"])
    with (
        pytest.raises(ServiceFailed, match="model service can't be started"),
        supervised([child], data=tmp_path / "data"),
    ):
        pass


def test_orphans_that_end_leave_no_zombies(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    orphan = f"(sh -c 'echo $$ > {pid_file}' &); exec sleep 300"
    child = Child(name="worker", command=["sh", "-c", orphan])
    with supervised([child], data=tmp_path / "data"):
        wait_for(lambda: pid_file.exists() and pid_file.read_text())
        orphan_folder = Path("/proc", pid_file.read_text().strip())
        wait_for(lambda: not orphan_folder.exists(), 5)


def test_a_killed_keeper_fails_the_command_and_leaves_no_child(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    command, pids, pool_child = busy_worker(run, tmp_path)
    record = supervise.live_set(tmp_path / "data")
    assert record is not None
    os.kill(record["pid"], signal.SIGKILL)
    _, errors = command.process.communicate(timeout=10)
    assert "the supervisor of the services was killed" in errors
    # Daemons that left their session stay; a sandbox dies with its parent by itself.
    kept = [pool_child, *pids.values()]
    wait_for(lambda: not any(map(processes.started_at, kept)), 5)
    assert not Path(record["run"]).exists()


def test_a_start_clears_away_what_a_killed_command_and_keeper_left(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    command, pids, pool_child = busy_worker(run, tmp_path)
    record = supervise.live_set(tmp_path / "data")
    assert record is not None
    command.process.kill()
    os.kill(record["pid"], signal.SIGKILL)
    wait_for(lambda: processes.started_at(record["pid"]) is None)
    with supervised([sleeper()], data=tmp_path / "data"):
        assert not any(map(processes.started_at, [pool_child, *pids.values()]))
        assert not Path(record["run"]).exists()


def test_a_port_in_use_is_passed_over() -> None:
    import socket

    first = listening_port(host="127.0.0.1", port=None, first=18_000)
    with socket.create_server(("127.0.0.1", first)):
        assert listening_port(host="127.0.0.1", port=None, first=first) > first
