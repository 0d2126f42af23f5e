"""Try to break out of a tier before trusting it: ten attacks on canaries planted for them.

The probe program runs on the very path that graded programs take. A probe that
brings no answer counts as a failed tier, and so does a canary found touched
from outside.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.sandbox import supervisor
from runs.sandbox.jail import Limits
from runs.sandbox.programs import call_all
from runs.sandbox.supervisor import Ending
from runs.sandbox.tiers import Tier

OWNED = "OWNED"
# Fork comes last: it leaves thirty sleeping processes to the supervisor.
PROBES = (
    "secret_file",
    "parent_environment",
    "tcp",
    "unix_socket",
    "write_outside",
    "user_namespace",
    "file_attributes",
    "other_process",
    "kill_parent",
    "fork_100",
)

_PROGRAM = r"""
import errno, os
def secret_file(ctx):
    return "OWNED" if ctx["mark"] in open(ctx["secret"]).read() else "read, but empty"
def parent_environment(ctx):
    mark = ctx["mark"].encode()
    if mark in repr(dict(os.environ)).encode(): return "OWNED own environment"
    for pid in (ctx["victim"], os.getppid()):
        try:
            if mark in open("/proc/%d/environ" % pid, "rb").read(): return "OWNED %d" % pid
        except OSError as error: said = error.strerror
    return "blocked: " + said
def tcp(ctx):
    import socket
    socket.create_connection(("127.0.0.1", ctx["port"]), 2)
    return "OWNED"
def unix_socket(ctx):
    import socket
    said = ""
    for address in (ctx["socket"], "\0" + ctx["mark"]):
        try:
            socket.socket(socket.AF_UNIX).connect(address)
            return "OWNED " + repr(address)
        except OSError as error: said = error.strerror
    return "blocked: " + said
def write_outside(ctx):
    open(ctx["shared"] + "/written", "w").write("x")
    return "OWNED"
def user_namespace(ctx):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) == 0: return "OWNED"
    return "blocked: " + os.strerror(ctypes.get_errno())
def every(acts):
    done = []
    for name, act in acts:
        try: act(); done.append(name)
        except OSError as error: said = error.strerror
    return "OWNED " + ", ".join(done) if done else "blocked: " + said
def file_attributes(ctx):
    file = ctx["theirs"]
    return every((
        ("chmod", lambda: os.chmod(file, 0o666)),
        ("chmod of its folder", lambda: os.chmod(ctx["shared"], 0o777)),
        ("utime", lambda: os.utime(file)),
        ("chown", lambda: os.chown(file, -1, os.getgid())),
        ("setxattr", lambda: os.setxattr(file, "user.planted", b"x")),
    ))
def other_process(ctx):
    import resource
    pid, core = ctx["victim"], resource.RLIMIT_CORE
    return every((
        ("prlimit", lambda: resource.prlimit(pid, core, (0, 0))),
        ("prlimit of the parent", lambda: resource.prlimit(os.getppid(), core)),
        ("setpriority", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19)),
        ("affinity", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(0))),
        ("scheduler", lambda: os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))),
    ))
def kill_parent(ctx):
    os.kill(ctx["victim"], 9)
    return "OWNED"
def fork_100(ctx):
    import time
    made = 0
    try:
        while made < 100:
            if os.fork() == 0:
                time.sleep(5); os._exit(0)
            made += 1
    except OSError as error: return "blocked after %d: %s" % (made, error.strerror)
    return "OWNED"
def probe(name, ctx):
    try: return globals()[name](ctx)
    except Exception as error: return "blocked: " + (getattr(error, "strerror", None) or str(error))
"""


@dataclass(frozen=True)
class ProbeReport:
    """What the probes found: one line a probe, and whether the tier can be trusted.

    Attributes:
        findings: probe -> ``blocked: ...``, ``OWNED ...`` or ``no answer``.
        ready: what the launcher reached (Landlock ABI, seccomp), None if nothing ran.
        reason: why the tier can't be trusted, "" if it can.
        built: whether the sandbox could be set up at all.
    """

    findings: Mapping[str, str]
    ready: Mapping[str, int] | None
    reason: str
    built: bool


def probe(tier: Tier) -> ProbeReport:
    """Attack ``tier`` with all probes in one process and report."""
    with _canaries() as (context, touched):
        cases = [([name, context], "") for name in PROBES]
        request = call_all(program=_PROGRAM, entry="probe", cases=cases)
        run = supervisor.run(tier.jail, request, Limits(cpu_s=5, wall_s=30.0))
        if run.ready is None:
            return ProbeReport({}, None, run.reason, built=False)
        findings = dict.fromkeys(PROBES, "no answer")
        for name, line in zip(PROBES, run.results.splitlines(), strict=False):
            message = supervisor.read_line(line)
            if message and message[0] == "value" and isinstance(message[1], str):
                findings[name] = message[1]
        for name in touched():
            if not findings[name].startswith(OWNED):
                findings[name] = OWNED
    failed = [name for name, said in findings.items() if not said.startswith("blocked")]
    reason = "; ".join(f"{name}: {findings[name]}" for name in failed)
    if not reason and run.ending is not Ending.EXITED:
        reason = f"the probes ended with {run.ending}"
    return ProbeReport(findings, run.ready, reason, built=True)


@contextlib.contextmanager
def _canaries() -> Iterator[tuple[dict[str, Any], Any]]:
    """Plant the canaries, and lend their description and a check that they are untouched.

    All of them are open to every user of the host, so that nothing but the
    tier keeps them.
    """
    mark = f"canary-{secrets.token_hex(8)}"
    directory = Path(tempfile.mkdtemp(prefix="workbench-probe-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o755)
        secret, theirs, shared = (directory / name for name in ("secret", "theirs", "shared"))
        for file, mode in ((secret, 0o644), (theirs, 0o666)):
            file.write_text(mark)
            file.chmod(mode)
        shared.mkdir()
        shared.chmod(0o777)
        port = _listen(stack, socket.AF_INET, ("127.0.0.1", 0))
        path = str(directory / "socket")
        _listen(stack, socket.AF_UNIX, path)
        os.chmod(path, 0o777)
        _listen(stack, socket.AF_UNIX, "\0" + mark)
        victim = subprocess.Popen(
            ["sleep", "60"], env={"PATH": os.defpath, "CANARY": mark}, stdin=subprocess.DEVNULL
        )
        stack.callback(victim.wait)
        stack.callback(victim.kill)

        # Whatever is done to a file's attributes sets the time of its last change.
        changed = theirs.stat().st_ctime_ns
        nice = os.getpriority(os.PRIO_PROCESS, victim.pid)

        def touched() -> list[str]:
            seen = {
                "write_outside": any(shared.iterdir()),
                "file_attributes": theirs.stat().st_ctime_ns != changed,
                "other_process": os.getpriority(os.PRIO_PROCESS, victim.pid) != nice,
                "kill_parent": victim.poll() is not None,
            }
            return [name for name, found in seen.items() if found]

        yield (
            {
                "mark": mark,
                "secret": str(secret),
                "theirs": str(theirs),
                "shared": str(shared),
                "socket": path,
                "port": port,
                "victim": victim.pid,
            },
            touched,
        )


def _listen(stack: contextlib.ExitStack, family: int, address: Any) -> Any:
    listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
    listener.bind(address)
    listener.listen(4)
    return listener.getsockname()[1] if family == socket.AF_INET else address
