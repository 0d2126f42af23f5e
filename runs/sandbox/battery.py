"""Forty-nine attacks on a tier, each on a canary planted for it, each bounded.

More than the probes of a worker's start: what they would cost every worker, a
test run or an administrator can afford now and then. An attack says ``OWNED``
when it got what it wanted; what it can't see itself is looked at from outside.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.sandbox import programs, supervisor
from runs.sandbox.jail import MIB, Jail, Limits
from runs.sandbox.supervisor import Run

LIMITS = Limits(cpu_s=1, wall_s=10.0, memory_bytes=512 * MIB)
# Those that wait for the clock need not wait so long.
_SLEEPERS = ("sleep_forever", "ignore_sigterm")
_ON_A_FILE = ("change_mode", "change_owner", "change_times", "change_xattr", "truncate")

# Each is the body of a function of ``ctx`` with os, errno and ctypes at hand.
ATTACKS: Mapping[str, str] = {
    "read_root_file": "return owned(ctx['mark'] in open(ctx['root_file']).read())",
    "read_etc_shadow": "return owned(len(open('/etc/shadow').readline()) > 1)",
    "own_env_key": """
        seen = repr(dict(os.environ))
        with suppressed(): seen += open('/proc/self/environ').read()
        return owned(ctx['mark'] in seen)
        """,
    "parent_env": """
        for pid in (os.getppid(), ctx['supervisor'], ctx['victim']):
            with suppressed():
                if ctx['mark'].encode() in open('/proc/%d/environ' % pid, 'rb').read():
                    return 'OWNED'
        """,
    "read_expected_on_disk": """
        import glob
        with suppressed():
            if ctx['mark'] in open(ctx['expected']).read(): return 'OWNED'
        for prefix in (sys.prefix, '/usr', '/usr/local'):
            for kind in ('site', 'dist'):
                found = glob.glob(prefix + '/lib/python3*/' + kind + '-packages/*')
                if found: return 'OWNED ' + found[0]
        """,
    "write_outside": """
        for place in (ctx['shared'], '/usr/lib', '/py/lib', '/py', '/dev', '/etc', '/'):
            with suppressed():
                open(place + '/written', 'w').write('x')
                return 'OWNED ' + place
        """,
    "change_mode": """
        for place in (ctx['theirs'], os.path.dirname(ctx['theirs'])):
            with suppressed(): os.chmod(place, 0o777); return 'OWNED chmod ' + place
            if libc.syscall(452, -100, place.encode(), 0o777, 0) == 0: return 'OWNED fchmodat2'
            with suppressed(): os.fchmod(os.open(place, os.O_RDONLY), 0o777); return 'OWNED fchmod'
        """,
    "change_owner": "os.chown(ctx['theirs'], -1, os.getgid()); return 'OWNED'",
    "change_times": """
        with suppressed(): os.utime(ctx['theirs'], (0, 0)); return 'OWNED'
        os.utime(ctx['theirs'])
        return 'OWNED'
        """,
    "change_xattr": "os.setxattr(ctx['theirs'], 'user.planted', b'x'); return 'OWNED'",
    "read_xattr": "return os.getxattr(ctx['theirs'], 'user.mark').decode()",
    "truncate": "os.truncate(ctx['theirs'], 0); return 'OWNED'",
    "watch_files": """
        watch = libc.inotify_init1(0)
        return owned(libc.inotify_add_watch(watch, ctx['shared'].encode(), 0xfff) >= 0)
        """,
    "dev_shm_persist": "open('/dev/shm/' + ctx['name'], 'w').write('x')",
    "tcp_loopback": """
        import socket
        return owned(socket.create_connection(('127.0.0.1', ctx['tcp']), 1))
        """,
    "udp_loopback": """
        import socket
        it = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        it.sendto(ctx['mark'].encode(), ('127.0.0.1', ctx['udp']))
        """,
    "unix_abstract": """
        import socket
        socket.socket(socket.AF_UNIX).connect('\\0' + ctx['name'])
        return 'OWNED'
        """,
    "unix_path": """
        import socket
        socket.socket(socket.AF_UNIX).connect(ctx['socket'])
        return 'OWNED'
        """,
    "fork_bomb": """
        import time
        made = 0
        with suppressed():
            while made < 100:
                if os.fork() == 0:
                    time.sleep(2); os._exit(0)
                made += 1
        return owned(made >= 100)
        """,
    "mem_single": """
        block = bytearray(1 << 30)
        block[::4096] = b'x' * len(block[::4096])
        return 'OWNED'
        """,
    "mem_multi": """
        import time
        ends = []
        for _ in range(4):
            r, w = os.pipe()
            if os.fork() == 0:
                try:
                    block = bytearray(300 << 20)
                    block[::4096] = b'x' * len(block[::4096])
                    os.write(w, b'1'); time.sleep(0.6)
                finally: os._exit(0)
            os.close(w); ends.append(r)
        return owned(sum(len(os.read(r, 1)) for r in ends) == 4)
        """,
    "busy_loop": "while True: pass",
    "sleep_forever": "import time; time.sleep(60)",
    "ignore_sigterm": """
        import signal, time
        for number in range(1, 65):
            with suppressed(): signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
        """,
    "huge_stdout": """
        block = b'A' * (1 << 20)
        for _ in range(60): sys.stdout.buffer.write(block)
        return 'OWNED'
        """,
    "kill_parent": """
        for pid in {os.getppid(), ctx['supervisor']}:
            with suppressed(): os.kill(pid, 0); return 'OWNED'
        os.kill(ctx['victim'], 9)
        """,
    "kill_sibling": "os.kill(ctx['sibling'], 9)",
    "signal_otherwise": """
        pid, info = ctx['victim'], (ctypes.c_int * 32)(0, 0, -1)
        arm = os.uname().machine == 'aarch64'
        tkill, tgkill, queue, tgqueue = (130, 131, 138, 240) if arm else (200, 234, 129, 297)
        for call in ((tkill, pid, 0), (tgkill, pid, pid, 0), (queue, pid, 0, info),
                     (tgqueue, pid, pid, 0, info)):
            if libc.syscall(*call) == 0: return 'OWNED %d' % call[0]
        os.killpg(os.getpgid(pid), 0)
        return 'OWNED'
        """,
    "prlimit_other": """
        import resource
        for pid in (ctx['victim'], ctx['supervisor'], os.getppid(), 1):
            with suppressed(): resource.prlimit(pid, resource.RLIMIT_CPU); return 'OWNED %d' % pid
        resource.prlimit(ctx['victim'], resource.RLIMIT_CORE, (0, 0))
        return 'OWNED'
        """,
    "renice_other": "os.setpriority(os.PRIO_PROCESS, ctx['victim'], 19); return 'OWNED'",
    "schedule_other": """
        pid, none = ctx['victim'], os.sched_param(0)
        with suppressed(): os.sched_setaffinity(pid, os.sched_getaffinity(0)); return 'OWNED mask'
        with suppressed(): os.sched_setscheduler(pid, os.SCHED_BATCH, none); return 'OWNED policy'
        with suppressed(): os.sched_setparam(pid, none); return 'OWNED parameter'
        setattr, ioprio = (274, 30) if os.uname().machine == 'aarch64' else (314, 251)
        if libc.syscall(setattr, pid, (ctypes.c_uint * 12)(48), 0) == 0: return 'OWNED attributes'
        return owned(libc.syscall(ioprio, 1, pid, 3 << 13) == 0)
        """,
    "daemon": """
        import time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                libc.prctl(15, ctx['name'].encode(), 0, 0, 0)
                for handle in range(64):
                    with suppressed(): os.close(handle)
                time.sleep(20)
            os._exit(0)
        time.sleep(0.2)
        """,
    "ptrace_parent": """
        for pid in (ctx['victim'], os.getppid()):
            if libc.ptrace(16, pid, 0, 0) == 0:
                libc.ptrace(17, pid, 0, 0)
                return 'OWNED'
        """,
    "mem_read_parent": """
        start = int(open('/proc/%d/maps' % ctx['victim']).readline().split('-')[0], 16)
        memory = open('/proc/%d/mem' % ctx['victim'], 'rb')
        memory.seek(start)
        return owned(memory.read(4))
        """,
    "inherited_fd": """
        for handle in range(3, 64):
            with suppressed():
                if ctx['mark'].encode() in os.pread(handle, 100, 0): return 'OWNED %d' % handle
        """,
    "setuid_root": "os.setuid(0); return owned(os.getuid() == 0)",
    "symlink_result": """
        os.symlink(ctx['root_file'], 'result.json')
        return open('result.json').read()
        """,
    "hardlink_secret": """
        os.link(ctx['root_file'], 'link')
        return owned(ctx['mark'] in open('link').read())
        """,
    "disk_fill": """
        with open('big', 'wb') as out:
            for _ in range(120): out.write(b'x' * (1 << 20))
        return 'OWNED'
        """,
    "disk_fill_many": """
        for at in range(30):
            with open('big%d' % at, 'wb') as out: out.write(b'x' * (7 << 20))
        return 'OWNED'
        """,
    "inode_fill": """
        for at in range(20000): os.close(os.open('f%d' % at, os.O_CREAT | os.O_WRONLY))
        return 'OWNED'
        """,
    "userns": "return owned(libc.unshare(0x10000000) == 0)",
    "io_uring": "return owned(libc.syscall(425, 4, ctypes.create_string_buffer(120)) >= 0)",
    "mount": "return owned(libc.mount(b'none', b'/box', b'tmpfs', 0, None) == 0)",
    "see_host_procs": """
        return owned(open('/proc/%d/cmdline' % ctx['victim']).read())
        """,
    "sysvshm_persist": "libc.shmget(ctx['shm'], 4096, 0o1666)",
    "semaphore": "return owned(libc.semctl(ctx['semaphore'], 0, 16, 7) == 0)",
    "unlink_queue": "return owned(libc.mq_unlink(b'/' + ctx['name'].encode()) == 0)",
    "crash_segv": "ctypes.string_at(0)",
}

_HEAD = """
import contextlib, ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def owned(got): return "OWNED" if got else "nothing"
def suppressed(): return contextlib.suppress(OSError, ValueError)
def attack(ctx):
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one attack: whether it succeeded, and how its process ended."""

    attack: str
    owned: bool
    said: str
    run: Run


@dataclass
class Canaries:
    """The targets, what attacks are told of them, and the checks from outside."""

    context: dict[str, Any]
    victim: subprocess.Popen[bytes]
    sibling: subprocess.Popen[bytes]
    shared: Path
    theirs: Path
    theirs_changed_ns: int
    datagrams: socket.socket

    def touched(self) -> Mapping[str, Callable[[], bool]]:
        """Return the attacks whose success shows outside, and how to see it."""
        return {
            "write_outside": lambda: any(self.shared.iterdir()),
            **dict.fromkeys(_ON_A_FILE, self._file_changed),
            "dev_shm_persist": lambda: os.path.exists(f"/dev/shm/{self.context['name']}"),
            "udp_loopback": self._received,
            "kill_parent": lambda: self.victim.poll() is not None,
            "kill_sibling": lambda: self.sibling.poll() is not None,
            "daemon": lambda: self.context["name"] in _process_names(),
            "sysvshm_persist": lambda: str(self.context["shm"]) in _shared_memory_keys(),
        }

    def _file_changed(self) -> bool:
        # Every change of a file's attributes sets this time.
        changed, self.theirs_changed_ns = self.theirs_changed_ns, self.theirs.stat().st_ctime_ns
        return changed != self.theirs_changed_ns

    def _received(self) -> bool:
        try:
            return self.context["mark"].encode() in self.datagrams.recv(100)
        except BlockingIOError:
            return False


def run_attack(jail: Jail, attack: str, canaries: Canaries) -> Outcome:
    """Run one attack in ``jail`` and say whether it succeeded."""
    body = textwrap.indent(textwrap.dedent(ATTACKS[attack]).strip(), "    ")
    request = programs.call_all(
        program=_HEAD + body, entry="attack", cases=[([canaries.context], "")]
    )
    limits = dataclasses.replace(LIMITS, wall_s=1.0) if attack in _SLEEPERS else LIMITS
    run = supervisor.run(jail, request, limits)
    line = run.results.split(b"\n")[0]
    message = supervisor.read_line(line) or ["nothing", run.ending.value]
    said = str(message[1]) if len(message) > 1 else message[0]
    mark = canaries.context["mark"]
    owned = said.startswith("OWNED") or mark in said or mark in run.printed
    look = canaries.touched().get(attack)
    touched = look is not None and look()
    return Outcome(attack, owned or touched, said, run)


@contextlib.contextmanager
def planted() -> Iterator[Canaries]:
    """Plant all canaries, readable by whoever the host's own rights let read them."""
    # The mark stands for the secret; the name is told to attacks and shows in their errors.
    mark, name = f"canary-{secrets.token_hex(8)}", f"attack{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="workbench-battery-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        directory.chmod(0o755)
        shared = directory / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        for file, mode in (("root_file", 0o600), ("expected", 0o644)):
            (directory / file).write_text(mark)
            (directory / file).chmod(mode)
        theirs = directory / "belongings" / "theirs"
        theirs.parent.mkdir()
        theirs.parent.chmod(0o777)
        theirs.write_text("x")
        theirs.chmod(0o666)
        with contextlib.suppress(OSError):  # a file system without extended attributes
            os.setxattr(theirs, "user.mark", mark.encode())
        handle = os.open(directory / "root_file", os.O_RDONLY)
        os.set_inheritable(handle, True)
        stack.callback(os.close, handle)
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        datagrams = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        datagrams.bind(("127.0.0.1", 0))
        datagrams.setblocking(False)
        for address in (str(directory / "socket"), "\0" + name):
            unix = stack.enter_context(socket.socket(socket.AF_UNIX))
            unix.bind(address)
            unix.listen(4)
        (directory / "socket").chmod(0o777)
        os.environ["WORKBENCH_CANARY"] = mark
        stack.callback(os.environ.pop, "WORKBENCH_CANARY", None)
        victim, sibling = _sleeper(stack, mark), _sleeper(stack, mark)
        shm = secrets.randbelow(1 << 30) + 1
        semaphore = _ipc_objects(stack, name)
        context = {
            "mark": mark,
            "name": name,
            "root_file": str(directory / "root_file"),
            "expected": str(directory / "expected"),
            "shared": str(shared),
            "socket": str(directory / "socket"),
            "tcp": listener.getsockname()[1],
            "udp": datagrams.getsockname()[1],
            "victim": victim.pid,
            "sibling": sibling.pid,
            "supervisor": os.getpid(),
            "shm": shm,
            "theirs": str(theirs),
            "semaphore": semaphore,
        }
        changed = theirs.stat().st_ctime_ns
        yield Canaries(context, victim, sibling, shared, theirs, changed, datagrams)


def _ipc_objects(stack: contextlib.ExitStack, name: str) -> int:
    """Make a semaphore open to all, and a message queue called ``name``; return the first's id."""
    libc = ctypes.CDLL(None, use_errno=True)
    semaphore: int = libc.semget(0, 1, 0o666)
    if semaphore >= 0:
        stack.callback(libc.semctl, semaphore, 0, 0)  # IPC_RMID
    queue = libc.mq_open(f"/{name}".encode(), os.O_CREAT | os.O_RDONLY, 0o666, None)
    if queue >= 0:
        os.close(queue)
        stack.callback(libc.mq_unlink, f"/{name}".encode())
    return semaphore


def _sleeper(stack: contextlib.ExitStack, mark: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["sleep", "120"], env={"PATH": os.defpath, "CANARY": mark})
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _process_names() -> set[str]:
    names = set()
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                names.add(Path(entry.path, "comm").read_text().strip())
    return names


def _shared_memory_keys() -> set[str]:
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[0] for line in lines}
