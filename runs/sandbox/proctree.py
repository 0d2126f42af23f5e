"""What a process and its descendants are doing, read from /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cache


@contextlib.contextmanager
def exit_handle(pid: int) -> Iterator[int | None]:
    """Lend a descriptor that becomes readable when ``pid`` exits; None on old kernels."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def descendants(pid: int) -> list[int]:
    """Return ``pid`` and everything below it, orphans included: the sandbox adopts those."""
    found, at = [pid], 0
    while at < len(found):
        for listing in _threads_children(found[at]):
            found.extend(int(child) for child in listing.split())
        at += 1
    return found


def _threads_children(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as text:
                yield text.read()


def _proc(pid: int, name: str) -> Sequence[str]:
    try:
        with open(f"/proc/{pid}/{name}") as text:
            return text.read().split()
    except OSError:
        return ()


_page_bytes: Callable[[], int] = cache(lambda: os.sysconf("SC_PAGE_SIZE"))


def resident_bytes(pids: Sequence[int]) -> int:
    pages = (_proc(pid, "statm") for pid in pids)
    return sum(int(fields[1]) for fields in pages if len(fields) > 1) * _page_bytes()


_ticks_per_s: Callable[[], int] = cache(lambda: os.sysconf("SC_CLK_TCK"))


def processor_seconds(pids: Sequence[int]) -> float | None:
    """Return the processor time of ``pids`` together; None where /proc does not tell it."""
    ticks = None
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as text:
            # A command's name stands in parentheses and may hold anything.
            fields = text.read().rpartition(")")[2].split()
            ticks = (ticks or 0) + int(fields[11]) + int(fields[12])
    return None if ticks is None else ticks / _ticks_per_s()


def was_starved(pids: Sequence[int], elapsed: float) -> bool:
    """Whether the one process of a program spent most of its time waiting for a processor.

    A program with several processes or threads can bring that about itself, so
    it is never excused.
    """
    with contextlib.suppress(OSError):
        if len(pids) == 1 and len(os.listdir(f"/proc/{pids[0]}/task")) == 1:
            waits = _proc(pids[0], "schedstat")
            return len(waits) > 1 and int(waits[1]) / 1e9 > elapsed / 2
    return False
