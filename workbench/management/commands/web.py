"""The web server as a process of its own, for a deployment that keeps each process itself."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from runs.management.running import at_least_one, faults_as_exit_codes
from workbench.management.commands.serve import port_number
from workbench.management.commands.worker import become
from workbench.supervise import FIRST_PORT, Web, web_command


class Command(BaseCommand):
    help = "Run the web server alone, until SIGTERM; workers and sweeper run elsewhere."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--host", default="127.0.0.1", metavar="ADDRESS", help="default: this machine alone"
        )
        parser.add_argument(
            "--port", type=port_number, default=FIRST_PORT, metavar="N", help="default: %(default)s"
        )
        parser.add_argument(
            "--workers", type=at_least_one, default=2, help="processes of 8 threads (default 2)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        with faults_as_exit_codes():
            web = Web(host=options["host"], port=options["port"]).with_port()
        become(web_command(host=web.host, port=options["port"], workers=options["workers"]))
