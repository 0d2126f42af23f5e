"""Serve the pages of the data folder, with everything that works behind them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from runs.domain.plan import from_json
from runs.management.running import EXIT_INPUT, at_least_one, faults_as_exit_codes
from runs.models import Experiment, ExperimentStatus
from workbench.kernel.hosts import (
    BadAddress,
    PublicAddress,
    is_loopback,
    is_wildcard,
    own_addresses,
    public_address,
)
from workbench.management.serving import invite_first_admin, stay_up, wait_until_ready
from workbench.supervise import (
    ServiceFailed,
    Web,
    absent_model_wheels,
    live_set,
    served_at,
    services,
)

READY_PATIENCE_S = 30.0
NO_TLS = (
    "Warning: there is no TLS. Whoever is on the network between can read what is sent, passwords "
    "included. Put Caddy or nginx in front and give --public-url https://NAME; docs/hosting.md "
    "has an example of each."
)
OPEN_PORT = (
    "Warning: {host} is reached past the proxy that {url} names. Leave --host out, unless the "
    "proxy runs on another machine."
)
NO_MODEL = (
    "Warning: an unfinished experiment uses the embedded demonstration model, which {reason}; it "
    "pauses until the model is served."
)


class Command(BaseCommand):
    help = "Serve the pages, with broker, workers and sweeper, until Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host",
            default="127.0.0.1",
            metavar="ADDRESS",
            help="listen there; 0.0.0.0 for every address (default: this machine alone)",
        )
        parser.add_argument(
            "--port", type=port_number, metavar="N", help="default: the first free one from 8000"
        )
        parser.add_argument(
            "--public-url",
            default=settings.PUBLIC_URL,
            metavar="URL",
            help="where people reach the pages, such as https://audit.example.org "
            "(default: WORKBENCH_PUBLIC_URL)",
        )
        parser.add_argument(
            "--concurrency", type=at_least_one, default=2, help="pool of the worker (default 2)"
        )
        parser.add_argument(
            "--no-model",
            action="store_true",
            help="leave the embedded demonstration model out, even where it is installed",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        public = _public(options["public_url"])
        web = Web(
            host=options["host"],
            port=options["port"],
            public_url=public.origin if public else "",
        )
        with faults_as_exit_codes():
            _check_startable(web)
            call_command("migrate", verbosity=0)
            model = self._serves_model(wanted=not options["no_model"])
            concurrency = options["concurrency"]
            with services(model=model, web=web, concurrency=concurrency):
                self._warn(web, public)
                invite_first_admin(say=self.stdout.write)
                self.stdout.flush()
                state = wait_until_ready(patience_s=READY_PATIENCE_S)
                for trouble in state.troubles:
                    self.stderr.write(f"Warning: {trouble}")
                self.stdout.write("Serving until Ctrl-C.")
                self.stdout.flush()
                stay_up()

    def _serves_model(self, *, wanted: bool) -> bool:
        """Return whether to serve the embedded model, and say where one that is needed isn't."""
        installed = not absent_model_wheels()
        needed = _needs_embedded_model()
        if needed and not (wanted and installed):
            reason = (
                "isn't installed (python3 manage.py demo brings it)" if wanted else "is left out"
            )
            self.stderr.write(NO_MODEL.format(reason=reason))
        offered = not (settings.OPENAI_BASE_URL or settings.PRODUCTION)
        return wanted and installed and (needed or offered)

    def _warn(self, web: Web, public: PublicAddress | None) -> None:
        if public and public.secure:
            if not is_loopback(web.host) and not settings.PRODUCTION:
                self.stderr.write(OPEN_PORT.format(host=web.host, url=public.origin))
        elif not is_loopback(web.host) or (public and not public.is_loopback):
            self.stderr.write(NO_TLS)
        if is_wildcard(web.host) and not public and not own_addresses():
            self.stderr.write("Warning: this machine has no address but loopback.")


def _check_startable(web: Web) -> None:
    """Prove before anything is changed that the pages can be served there.

    Raises:
        ServiceFailed: The port is taken, or the pages of this data folder are served already.
    """
    live = live_set(settings.DATA_DIR)
    if live and "web" in live["children"]:
        raise ServiceFailed(
            f"`{live['title']}` (process {live['owner']}) already serves this data folder, at "
            f"{served_at(settings.DATA_DIR)}. Use that, or end it first."
        )
    web.with_port()


def port_number(text: str) -> int:
    """Return the port in ``text``, for argparse.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise ArgumentTypeError(f"{text!r} must be a port from 1 to 65535")
    return int(text)


def _public(text: str) -> PublicAddress | None:
    try:
        return public_address(text) if text else None
    except BadAddress as error:
        raise CommandError(f"--public-url: {error}", returncode=EXIT_INPUT) from error


def _needs_embedded_model() -> bool:
    """Return whether an experiment that can still run uses the embedded model."""
    unfinished = Experiment.objects.filter(
        status__in=(ExperimentStatus.RUNNING, ExperimentStatus.PAUSED)
    )
    return any(from_json(experiment.spec).embedded for experiment in unfinished)
