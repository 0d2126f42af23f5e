"""Run one program inside the sandbox and say what it returned; judge nothing.

Standard library only: this file is sent into the sandbox together with
``launcher`` and ``values``. It holds inputs, never expected values, so a
program that takes over this process learns nothing worth having, and whatever
it writes on the result channel is compared like any other output.

The channel is a pipe of JSON lines. The first, ``["ready", ...]``, is written
before untrusted code runs; without it the host failed, not the program. Then
comes one line a case, ``["value", V]``, until something else happens or
``["end"]``.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
from types import ModuleType

from runs.domain.values import Unencodable, encode
from runs.sandbox import launcher

TYPE_CHECKING = False  # importing typing would take longer than running most programs
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Send = Callable[[list[Any]], None]

try:
    from _json import encode_basestring_ascii as quote
except ImportError:  # another interpreter than CPython; json alone costs 6 ms
    from json.encoder import encode_basestring_ascii as quote

ANSWER_MODULE = "answer"
SETUP_FAILED = 97
_MAX_MESSAGE = 300

# What a published check does to a result before it compares it.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "": lambda value: value,
    "bool": bool,
    "tuple": tuple,
    "list": list,
    "set": set,
    "sorted": sorted,
    "not_none": lambda value: value is not None,
}


class ProgramGone(BaseException):
    """The program's own process ended or spoke no sense; no check may catch this."""


def main(config: dict[str, Any], request: dict[str, Any]) -> None:
    """Enter the sandbox, do what ``request`` asks, and end the process; never returns."""
    send = enter(config)
    try:
        _MODES[request["mode"]](request, send)
    except MemoryError:
        send(["memory"])
    finally:
        # No atexit hook, no waiting for threads, no flushing of what is left.
        os._exit(0)


def enter(config: dict[str, Any]) -> Send:
    """Take the result channel, give up privileges, and return the channel's ``send``."""
    channel = os.dup(1)
    # Whatever the program prints shares the pipe of its errors.
    os.dup2(2, 1)
    write = os.write

    def send(message: list[Any]) -> None:
        left = to_json(message).encode("ascii") + b"\n"
        while left:
            left = left[write(channel, left) :]

    if config["reaper"]:
        _fork_and_reap()
    try:
        reached = launcher.apply(config)
    except launcher.SetupFailed as error:
        send(["setup", str(error)])
        os._exit(SETUP_FAILED)
    send(["ready", reached])
    return send


def to_json(value: Any) -> str:
    """Return the JSON of a tagged value; ``json`` itself would cost a third of the run."""
    kind = type(value)
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is str:
        return quote(value)
    if kind is int or kind is float:
        return repr(value)
    if kind is list:
        return "[" + ",".join([to_json(part) for part in value]) + "]"
    return "{" + ",".join([quote(key) + ":" + to_json(value[key]) for key in value]) + "}"


# -- what may be asked -----------------------------------------------------------------------


def _cases(request: dict[str, Any], send: Send) -> None:
    """Call the entry function once a case, with arguments of its own each time."""
    namespace = loaded(request, send)
    if namespace is None:
        return
    function = namespace.get(request["entry"])
    if not callable(function):
        send(["missing"])
        return
    for arguments, view in request["cases"]:
        try:
            # Decoded anew, so that no case can see what another one changed.
            value = VIEWS[view](function(*marshal.loads(arguments)))
        except BaseException as error:
            send(_failure(error))
            return
        try:
            send(["value", encode(value)])
        except Unencodable as error:
            send(["type", str(error)[:_MAX_MESSAGE]])
            return
        except (RecursionError, ValueError) as error:
            # Nested too deeply, or an integer of more digits than Python prints.
            send(["type", f"{type(error).__name__}: not a value that can be written down"])
            return
    send(["end"])


def _asserts(request: dict[str, Any], send: Send) -> None:
    """Run a published check beside the program, in one process or, ``apart``, in two."""
    if request["apart"]:
        from runs.sandbox import apart

        call = apart.start_program(request)
        # Read only now: the program's process was forked without it.
        request["test"] = apart.read_framed(0)
        request["program"] = ""
    namespace = loaded(request, send)
    if namespace is None:
        return
    if request["apart"]:
        namespace[request["entry"]] = call
    try:
        _execute(request["test"], "<test>", namespace)
        check = namespace.get("check")
        if callable(check):
            check(namespace.get(request["entry"]))
    except AssertionError as error:
        send(["failed", text_of(error)])
        return
    except ProgramGone:
        return
    except BaseException as error:
        send(_failure(error))
        return
    send(["checked"])


def _record(request: dict[str, Any], send: Send) -> None:
    """Run an instrumented check twice and report each case: arguments and expected value.

    The second time every argument is spoilt once it is reported.
    """
    for spoil in (_leave, _spoil):
        if "random" in request["test"]:
            import random

            random.seed(0)
        namespace = loaded(request, send)
        if namespace is None:
            return
        namespace["__case__"] = _recorder(send, spoil)
        try:
            _execute(request["test"], "<test>", namespace)
        except Unencodable as error:
            send(["unsplittable", str(error)[:_MAX_MESSAGE]])
            return
        except BaseException as error:
            send(_failure(error))
            return
    send(["end"])


def _recorder(send: Send, spoil: Callable[[Any], None]) -> Callable[..., None]:
    def case(
        arguments: tuple[Any, ...],
        expected: Callable[[], Any],
        view: str,
        abs_tol: float | None,
        comparator: str,
    ) -> None:
        written = encode(list(arguments))
        spoil(arguments)
        wanted = expected() if abs_tol is None else float(expected())
        send(["case", written, encode(wanted), view, abs_tol, comparator])

    return case


def _maths(request: dict[str, Any], send: Send) -> None:
    from runs.sandbox import maths_child

    sys.path.extend(request["paths"])
    maths_child.serve(send)


_MODES: dict[str, Callable[[dict[str, Any], Send], None]] = {
    "cases": _cases,
    "asserts": _asserts,
    "record": _record,
    "maths": _maths,
}


# -- helpers ---------------------------------------------------------------------------------


def loaded(request: dict[str, Any], send: Send) -> dict[str, Any] | None:
    """Return the namespace of prelude and program, or None after reporting what they raised."""
    module = ModuleType(ANSWER_MODULE)
    sys.modules[ANSWER_MODULE] = module
    try:
        _execute(request["prelude"], "<prelude>", module.__dict__)
        _execute(request["program"], "<answer>", module.__dict__)
    except BaseException as error:
        send(_failure(error))
        return None
    return module.__dict__


def _execute(source: str, name: str, namespace: dict[str, Any]) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), namespace)


def _failure(error: BaseException) -> list[Any]:
    if isinstance(error, MemoryError):
        return ["memory"]
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<answer>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return ["raise", text_of(error), line]


def text_of(error: BaseException) -> str:
    try:
        text = str(error)
        message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    except BaseException:
        message = "an exception that can't be printed"
    return str(message[:_MAX_MESSAGE])


def _leave(value: Any) -> None:
    """Change nothing."""


def _spoil(value: Any) -> None:
    """Change every list, dictionary and set in ``value``, as a careless program might."""
    if type(value) is tuple or type(value) is list:
        for part in value:
            _spoil(part)
    if type(value) is dict:
        for part in value.values():
            _spoil(part)
        value.clear()
        value["spoilt"] = "spoilt"
    elif type(value) is list:
        value[:] = ["spoilt"]
    elif type(value) is set:
        value.clear()
        value.add("spoilt")


# -- without a PID namespace -----------------------------------------------------------------


def _fork_and_reap() -> None:
    """Go on in a child; the parent stays outside the sandbox and ends everything with it.

    As a sub-reaper it inherits every orphan, so a program can't leave a daemon
    behind. Its exit code is the child's, 128 + n for a signal, as bwrap does it.
    """
    import signal  # 2 ms for its enums, wasted where no reaper is needed

    libc = ctypes.CDLL(None)
    libc.prctl(launcher.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.fork()
    if child == 0:
        return
    libc.prctl(launcher.PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: _kill_children())
    os.close(1)
    os.close(0)
    code = SETUP_FAILED
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(code)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code
            child = 0
        if child == 0:
            _kill_children()


def _kill_children() -> None:
    try:
        with open("/proc/thread-self/children") as listing:
            children = listing.read().split()
    except OSError:
        return
    for child in children:
        try:
            os.kill(int(child), 9)
        except OSError:
            continue
