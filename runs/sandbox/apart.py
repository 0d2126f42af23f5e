"""A published check and the program it calls, in two processes of one sandbox.

Standard library only, sent into the sandbox beside ``child`` where it is
needed. Between the two travel plain values, so no object of the program's
making reaches the check, and the program's process never holds the check.
"""

from __future__ import annotations

import marshal
import os

from runs.domain.values import Unencodable, decode, encode
from runs.sandbox.child import ProgramGone, loaded, text_of, to_json

TYPE_CHECKING = False  # importing typing would take longer than running most programs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class CallFailed(Exception):
    """The program raised something that is no built-in exception."""


def start_program(request: dict[str, Any]) -> Callable[..., Any]:
    """Start a process for the program and return a function that calls it there.

    Plain values travel in both directions, so the check sees no object of the
    program's making; what the program changed in an argument is changed in the
    check's own. The program's process has neither the result channel nor standard
    input, from which the check comes.
    """
    ask, calls = os.pipe()
    answers, say = os.pipe()
    child = os.fork()
    if child == 0:
        for handle in {0, *range(3, 64)} - {ask, say}:
            try:
                os.close(handle)
            except OSError:
                continue
        _serve_calls(request, ask, say)
        os._exit(0)
    os.close(ask)
    os.close(say)
    replies = os.fdopen(answers, "rb")

    def call(*args: Any, **kwargs: Any) -> Any:
        import json

        body = marshal.dumps((args, kwargs), 4)
        try:
            os.write(calls, b"%012d" % len(body))
            left = memoryview(body)
            while left:
                left = left[os.write(calls, left) :]
            message = json.loads(replies.readline())
            if message[0] == "value":
                for argument, changed in zip(args, message[2] or (), strict=False):
                    _follow(argument, decode(changed))
                return decode(message[1])
            name, _, text = str(message[1]).partition(": ")
        except (OSError, ValueError, LookupError, TypeError) as error:
            _end_like(child)
            raise ProgramGone from error
        raise _exception_named(name)(text)

    return call


def _follow(own: Any, changed: Any) -> None:
    """Make a list, dictionary or set equal to ``changed`` in place, as deep as shapes agree."""
    if type(own) is not type(changed) or own == changed:
        return
    if type(own) in (list, tuple) and len(own) == len(changed):
        for at, part in enumerate(changed):
            _follow(own[at], part)
            if type(own) is list and own[at] != part:
                own[at] = part
    elif type(own) is list:
        own[:] = changed
    elif type(own) is dict:
        for key in own.keys() & changed.keys():
            _follow(own[key], changed[key])
            # Kept where it now agrees: another name of the check may hold it.
            changed[key] = own[key] if own[key] == changed[key] else changed[key]
        own.clear()
        own.update(changed)
    elif type(own) is set:
        own.clear()
        own.update(changed)


def _end_like(child: int) -> None:
    """End by the signal that ended the program's process, so that the supervisor sees its cause."""
    import time

    for _ in range(100):  # its pipe closes a moment before it is dead
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            if os.WIFSIGNALED(status):
                os.kill(os.getpid(), os.WTERMSIG(status))
            return
        time.sleep(0.001)


def _exception_named(name: str) -> type[Exception]:
    import builtins

    kind = getattr(builtins, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, Exception) else CallFailed


def _serve_calls(request: dict[str, Any], ask: int, say: int) -> None:
    """Answer calls of the entry function until nobody asks any more."""
    write = os.write

    def send(message: list[Any]) -> None:
        left = to_json(message).encode("ascii") + b"\n"
        while left:
            left = left[write(say, left) :]

    namespace = loaded(request, send)
    if namespace is None:
        return
    function: Any = namespace.get(request["entry"])
    while True:
        args, kwargs = read_framed(ask)
        try:
            send(["value", encode(function(*args, **kwargs)), _encoded_or_none(args)])
        except BaseException as error:
            send(["raise", text_of(error)])


def _encoded_or_none(values: Any) -> list[Any] | None:
    try:
        return [encode(value) for value in values]
    except (Unencodable, RecursionError):
        return None


def read_framed(handle: int) -> Any:
    """Return the next value the trusted side sent over ``handle``; its end ends the process."""
    return marshal.loads(_read(handle, int(_read(handle, 12))))


def _read(handle: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(handle, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
