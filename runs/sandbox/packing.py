"""The code and inputs that travel into the sandbox over standard input.

Nothing of the project is mounted there: its modules are sent along, compiled
once where the interpreter is this one.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from runs.sandbox.jail import MIB, Jail, Limits

# What a request may weigh: code and inputs, before anything runs.
MAX_REQUEST_BYTES = 16 * MIB

# Reads a length and that many bytes of marshal from standard input, makes the
# project's own modules importable from it, and goes on in the last one.
_BOOT = """
import marshal, posix, sys
def read(n):
    parts = []
    while n:
        part = posix.read(0, min(n, 1 << 20))
        if not part: posix._exit(97)
        parts.append(part); n -= len(part)
    return b"".join(parts)
modules, config, request = marshal.loads(read(int(read(12))))
for name, code in modules:
    parent, _, leaf = name.rpartition(".")
    module = type(sys)(name); module.__path__ = []; sys.modules[name] = module
    if parent: setattr(sys.modules[parent], leaf, module)
    if code: exec(code, module.__dict__)
sys.modules["runs.sandbox.child"].main(config, request)
"""
_MODULES = (
    "runs",
    "runs.domain",
    "runs.domain.values",
    "runs.sandbox",
    "runs.sandbox.launcher",
    "runs.sandbox.child",
)
# -S and an empty environment keep out site-packages and PYTHON* variables;
# PYTHONHASHSEED is set by the tier.
PYTHON_FLAGS = ("-S", "-s", "-P", "-B", "-c", _BOOT)


class RequestTooLarge(ValueError):
    """Code and inputs together exceed ``MAX_REQUEST_BYTES``."""


def pack(jail: Jail, request: Mapping[str, Any], limits: Limits, uid: int | None) -> bytes:
    """Return what the process reads on standard input before it does anything."""
    config = {**jail.config, "uid": uid, "limits": limits.resource_limits()}
    modules = _modules((*_MODULES, *_extra(request)), jail.portable)
    sent, kept = dict(request), b""
    if request.get("apart"):
        # Comes after the rest, when the program already has a process of its own.
        kept = _framed(sent.pop("test"))
    payload = _framed((modules, config, sent)) + kept
    if len(payload) > MAX_REQUEST_BYTES:
        raise RequestTooLarge(f"code and inputs take {len(payload)} bytes")
    return payload


def _extra(request: Mapping[str, Any]) -> tuple[str, ...]:
    if request["mode"] == "maths":
        return ("runs.sandbox.maths_child",)
    return ("runs.sandbox.apart",) if request.get("apart") else ()


def _framed(value: Any) -> bytes:
    body = marshal.dumps(value, 4)
    return b"%012d" % len(body) + body


@cache
def _modules(names: tuple[str, ...], portable: bool) -> tuple[tuple[str, Any], ...]:
    """Return modules of the project to send into the sandbox, compiled unless ``portable``."""
    root = Path(__file__).resolve().parents[2]
    loaded: list[tuple[str, Any]] = []
    for name in names:
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        if not path.is_file():
            loaded.append((name, None))
            continue
        source = path.read_text(encoding="utf-8")
        code = source if portable else compile(source, name, "exec", dont_inherit=True)
        loaded.append((name, code))
    return tuple(loaded)
