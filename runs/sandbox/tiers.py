"""How programs can be isolated on this host: the tiers, and which of them can be built.

====================  ======================================================================
``A``                 root: namespaces by bwrap, then a slot uid, Landlock, seccomp
``A_user``            anyone, where user namespaces are allowed: the same without a slot uid
``B``                 no namespaces. Root: slot uid, Landlock, seccomp. Others: Landlock ABI 6
``unsandboxed``       whatever of the above works; only by explicit choice
``none``              code is not run
====================  ======================================================================

A tier that can be built is not yet trusted: ``probes`` tries to break out of it
first. docs/sandbox.md says what each keeps out and what it costs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runs.sandbox.hosts import (
    CONTAINER,
    LANDLOCK,
    SLOT_RANGE,
    Interpreter,
    Obstacle,
    common_interpreter,
    find_bwrap,
    on_linux,
    own_interpreter,
    slots_or_none,
)
from runs.sandbox.jail import Jail
from runs.sandbox.launcher import landlock_abi

BOX_BYTES = 16 << 20
# From this ABI on Landlock keeps signals and abstract sockets inside, which is
# what a shared uid needs.
LANDLOCK_FOR_SHARED_UID = 6

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_LIBRARIES = ("lib", "lib64", "lib32", "libx32")


@dataclass(frozen=True)
class Tier:
    """One way to isolate a program.

    Attributes:
        name: as it is recorded with each grade.
        jail: how its processes are started.
        python: version of the interpreter inside, such as ``3.11.7``.
        bwrap: version of bubblewrap, None where none is used.
    """

    name: str
    jail: Jail
    python: str
    bwrap: str | None = None


def candidates() -> Iterator[Tier | Obstacle]:
    """Yield the tiers this host can try, strongest first, and why it lacks the others."""
    if not on_linux():
        yield Obstacle("A", f"{sys.platform} has no namespaces and no Landlock", CONTAINER)
        return
    if not Path("/proc/thread-self/children").exists():
        reason = "the kernel lists no child processes in /proc, so memory can't be watched"
        yield Obstacle("A", reason, "Mount /proc; the kernel needs CONFIG_PROC_CHILDREN.")
        return
    yield _with_namespaces()
    yield _without_namespaces()


def unsandboxed() -> Tier:
    """Return the tier that runs programs as the caller, with limits and little else."""
    interpreter = own_interpreter()
    jail = Jail(
        argv=(os.path.join(interpreter.prefix, interpreter.executable),),
        environment=_environment(interpreter.prefix, home="/nonexistent"),
        config=_config(
            read=(*_readable(interpreter), *_DEVICES[1:]),
            write=("/dev/null",),
            seccomp=True,
            reaper=True,
            best_effort=True,
        ),
        slots=None,
        portable=False,
    )
    return Tier(name="unsandboxed", jail=jail, python=interpreter.version)


# -- A: namespaces ---------------------------------------------------------------------------


def _with_namespaces() -> Tier | Obstacle:
    found = find_bwrap()
    if isinstance(found, Obstacle):
        return found
    bwrap, version = found
    slots = slots_or_none() if os.geteuid() == 0 else None
    # The root of a user namespace that maps no further uids is an ordinary user.
    root = slots is not None
    name = "A" if root else "A_user"
    interpreter = own_interpreter()
    jail = Jail(
        argv=(*_bwrap_arguments(bwrap, interpreter, root=root), f"/py/{interpreter.executable}"),
        environment=_environment("/py", home="/box"),
        config=_config(
            read=("/usr", "/lib", "/lib64", "/lib32", "/libx32", "/py", "/etc", *_DEVICES[1:]),
            write=("/box", "/dev/null"),
            seccomp=True,
        ),
        slots=slots,
        portable=False,
    )
    return Tier(name=name, jail=jail, python=interpreter.version, bwrap=version)


def with_packages(tier: Tier, directory: str) -> Tier:
    """Return ``tier`` with ``directory`` readable at ``/site`` (A) or where it is (others)."""
    jail = tier.jail
    if jail.argv[0].endswith("bwrap"):
        at = jail.argv.index("--remount-ro")
        argv = (*jail.argv[:at], "--ro-bind", directory, "/site", *jail.argv[at:])
        read = (*jail.config["read"], "/site")
    else:
        argv, read = jail.argv, (*jail.config["read"], directory)
    changed = Jail(
        argv=argv,
        environment=jail.environment,
        config={**jail.config, "read": read},
        slots=jail.slots,
        portable=jail.portable,
    )
    return Tier(name=tier.name, jail=changed, python=tier.python, bwrap=tier.bwrap)


def _bwrap_arguments(bwrap: str, interpreter: Interpreter, *, root: bool) -> list[str]:
    """Return the command that builds the namespaces and a file system of read-only parts.

    No /proc, no /sys, no /tmp. Only trusted directories are bound, and nothing
    is mounted beneath a place a program can write (CVE-2026-87766): its own
    tmpfs comes last and stays a leaf.
    """
    arguments = [bwrap, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--unshare-cgroup-try", "--new-session", "--die-with-parent"]
    if root:
        # The launcher needs these two to become the slot uid, and loses them by it.
        arguments += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        arguments += ["--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    # Made here with their mode: bwrap would make them 0700, closed to the slot uid.
    for parent in ("/usr", "/usr/share", "/etc"):
        arguments += ["--perms", "0755", "--dir", parent]
    for library in _LIBRARIES:
        arguments += _library(library)
    for source in ("/usr/share/zoneinfo", "/etc/ld.so.cache"):
        if os.path.exists(source):
            arguments += ["--ro-bind", source, source]
    arguments += ["--perms", "0755", "--dir", "/py"]
    for name in (os.path.dirname(interpreter.executable), *_LIBRARIES):
        source = os.path.join(interpreter.prefix, name)
        if os.path.isdir(source):
            arguments += ["--ro-bind", source, f"/py/{name}"]
    for hidden in _packages(interpreter.prefix):
        arguments += ["--tmpfs", f"/py/{hidden}"]
    for device in _DEVICES:
        arguments += ["--dev-bind", device, device]
    arguments += ["--perms", "1777", "--size", str(BOX_BYTES), "--tmpfs", "/box"]
    return [*arguments, "--remount-ro", "/", "--chdir", "/box", "--"]


def _library(name: str) -> list[str]:
    """Return the arguments that bring one directory of system libraries, packages hidden."""
    arguments = []
    if os.path.isdir(f"/usr/{name}"):
        arguments += ["--ro-bind", f"/usr/{name}", f"/usr/{name}"]
        for hidden in _packages("/usr", libraries=(name,)):
            arguments += ["--tmpfs", f"/usr/{hidden}"]
    if os.path.islink(f"/{name}"):
        arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
    elif os.path.isdir(f"/{name}"):
        arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    return arguments


def _packages(prefix: str, libraries: Sequence[str] = _LIBRARIES) -> list[str]:
    """Return where packages are installed below ``prefix``: benchmarks are, with their answers."""
    hidden = []
    for name in libraries:
        for kind in ("site-packages", "dist-packages"):
            for found in sorted(Path(prefix, name).glob(f"python3*/{kind}")):
                if not found.is_symlink():
                    hidden.append(str(found.relative_to(prefix)))
    return hidden


# -- B: Landlock -----------------------------------------------------------------------------


def _without_namespaces() -> Tier | Obstacle:
    root, abi = os.geteuid() == 0, landlock_abi()
    needed = 1 if root else LANDLOCK_FOR_SHARED_UID
    if abi < needed:
        reason = f"the kernel's Landlock has ABI {abi}, and {needed} is needed"
        return Obstacle("B", reason, LANDLOCK)
    slots = slots_or_none() if root else None
    if root and slots is None:
        return Obstacle("B", "no free range of user ids to run programs under", SLOT_RANGE)
    interpreter = common_interpreter() if root else own_interpreter()
    if interpreter is None:
        reason = "this Python lies below a directory that only root may enter"
        return Obstacle("B", reason, "Install a Python outside it, for example Debian's python3.")
    jail = Jail(
        argv=(os.path.join(interpreter.prefix, interpreter.executable),),
        environment=_environment(interpreter.prefix, home="/nonexistent"),
        # Nothing is writable: there is no file system of its own to write to.
        config=_config(
            read=(*_readable(interpreter), *_DEVICES[1:]),
            write=("/dev/null",),
            landlock=needed,
            seccomp=True,
            reaper=True,
        ),
        slots=slots,
        portable=interpreter.portable,
    )
    return Tier(name="B", jail=jail, python=interpreter.version)


def _readable(interpreter: Interpreter) -> list[str]:
    """Return the paths an interpreter needs: system libraries and its own, without packages."""
    paths = ["/etc/ld.so.cache"]
    for name in _LIBRARIES:
        for root in ("/usr", "/"):
            paths += _without_packages(Path(root, name))
        paths += _without_packages(Path(interpreter.prefix, name))
    return list(dict.fromkeys(paths))


def _without_packages(library: Path) -> list[str]:
    library = library.resolve()
    if not library.is_dir():
        return []
    pythons = list(library.glob("python3*"))
    if not pythons:
        return [str(library)]
    # Landlock can only allow, so the siblings of what is hidden are listed.
    kept = [path for path in library.iterdir() if path not in pythons]
    for python in pythons:
        if python.is_dir():
            kept += [path for path in python.iterdir() if not path.name.endswith("-packages")]
    return sorted(str(path) for path in kept)


# -- shared ----------------------------------------------------------------------------------


def _config(
    *,
    read: Sequence[str] = (),
    write: Sequence[str] = (),
    landlock: int = 0,
    seccomp: bool = False,
    reaper: bool = False,
    best_effort: bool = False,
) -> Mapping[str, Any]:
    return {
        "read": tuple(read),
        "write": tuple(write),
        "landlock": landlock,
        "seccomp": seccomp,
        "reaper": reaper,
        "best_effort": best_effort,
    }


def _environment(prefix: str, *, home: str) -> Mapping[str, str]:
    # The library path serves interpreters built with a shared libpython.
    return {
        "HOME": home,
        "LANG": "C.UTF-8",
        "PATH": "/nonexistent",
        "PYTHONHASHSEED": "0",
        "LD_LIBRARY_PATH": f"{prefix}/lib",
    }
