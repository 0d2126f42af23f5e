"""A tier whose seccomp list lacks some rules: what proves that probes and attacks find the gap."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from runs.sandbox import launcher, packing

# What Landlock leaves to seccomp where a program shares its uid with other processes.
_KINDS = ("chmod", "chown", "utime", "utimensat", "xattr", "truncate")
ATTRIBUTES = tuple(name for name in launcher.DENIED if any(kind in name for kind in _KINDS))
PROCESSES = (
    *("prlimit64", "setpriority", "ioprio_set", "sched_setaffinity"),
    *("sched_setparam", "sched_setscheduler", "sched_setattr"),
)
OBJECTS = ("semctl", "mq_unlink", "inotify_init1", "inotify_add_watch")
GAPS = (*ATTRIBUTES, *PROCESSES, *OBJECTS)


@contextlib.contextmanager
def filter_without(*names: str) -> Iterator[None]:
    """Send a launcher into every sandbox started meanwhile that doesn't refuse ``names``."""
    real = packing._modules
    forget = f"""
for name in {names!r}:
    DENIED.pop(name, None)
    DECIDED.pop(name, None)
"""

    def modules(wanted: tuple[str, ...], portable: bool) -> tuple[tuple[str, Any], ...]:
        source = open(str(launcher.__file__), encoding="utf-8").read() + forget  # noqa: SIM115
        code = source if portable else compile(source, "launcher", "exec", dont_inherit=True)
        return tuple(
            (name, code if name == launcher.__name__ else sent)
            for name, sent in real(wanted, portable)
        )

    with mock.patch.object(packing, "_modules", modules):
        yield
