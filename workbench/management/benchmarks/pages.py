"""Server time of every list and page over a full workbench, each against one limit.

Run as a module it is the measuring process: it fills the database of its own data folder, counts
what the sweep would count, asks for every page and prints one JSON line for each.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

LIMIT_MS: Final = 200.0
ROUNDS: Final = 7


@dataclass(frozen=True)
class PageTime:
    """What one page took.

    Attributes:
        first_ms: the first time it was asked for.
        median_ms, worst_ms: of the rounds after that.
        cpu_ms: median of what the process computed in that time: what is left on a busy machine.
        queries: to the database, in one round.
        kilobytes: of the answer.
    """

    name: str
    path: str
    first_ms: float
    median_ms: float
    cpu_ms: float
    worst_ms: float
    queries: int
    kilobytes: float

    @property
    def met(self) -> bool:
        """Whether half of the rounds stay below the limit."""
        return self.median_ms < LIMIT_MS

    def text(self) -> str:
        """Return it as a line for the terminal."""
        return (
            f"  {self.name:<28} {self.median_ms:7.0f} ms  (CPU {self.cpu_ms:.0f}, first "
            f"{self.first_ms:.0f}, worst {self.worst_ms:.0f}; {self.queries} queries, "
            f"{self.kilobytes:.0f} KB)"
            f"{'' if self.met else '  MISSED'}"
        )


class PagesFailed(Exception):
    """The measuring process ended early; the text is the end of what it printed."""


def measure(*, environment: Mapping[str, str]) -> Iterator[str | PageTime]:
    """Yield what is said while the database is filled, then each page's time.

    Args:
        environment: of the measuring process; its data folder is replaced by one that ends
            with it.

    Raises:
        PagesFailed: it ended early.
    """
    with tempfile.TemporaryDirectory(prefix="wbpages-") as folder, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env={**environment, "WORKBENCH_DATA": folder},
            cwd=Path(__file__).resolve().parents[3],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                found = json.loads(line)
                yield found if isinstance(found, str) else PageTime(**found)
        if process.wait():
            log.seek(0)
            raise PagesFailed(log.read().decode(errors="replace")[-2000:])


# --- the measuring process ----------------------------------------------------------------


def main() -> None:
    """Fill the database and print the time of every page."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.utils import timezone

    from runs.services.standing import refresh_oldest
    from workbench.management.benchmarks.full import FULL, build

    began = time.monotonic()
    call_command("migrate", verbosity=0)
    build(FULL)
    while refresh_oldest(now=timezone.now()):
        pass
    _say(
        f"{FULL.pairs:,} pairs with {2 * FULL.pairs:,} executions in {len(FULL.experiments)} "
        f"experiments, built in {time.monotonic() - began:.0f} s"
    )
    for row in _times():
        _say(asdict(row))


def _times() -> Iterator[PageTime]:
    from django.conf import settings
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from workbench.accounts import ensure_user
    from workbench.kernel.roles import Role

    settings.ALLOWED_HOSTS = ["testserver"]
    client = Client()
    client.force_login(ensure_user(name="measured", role=Role.ADMIN))
    client.get("/glossary/")  # what the process loads once is in no figure
    for name, path in _paths().items():
        took, computed = [], []
        for _ in range(ROUNDS + 1):
            began, cpu = time.perf_counter(), time.process_time()
            response = client.get(path)
            took.append((time.perf_counter() - began) * 1000)
            computed.append((time.process_time() - cpu) * 1000)
        if response.status_code != 200:
            raise SystemExit(f"{path} answered {response.status_code}")
        with CaptureQueriesContext(connection) as captured:
            client.get(path)
        yield PageTime(
            name=name,
            path=path,
            first_ms=took[0],
            median_ms=statistics.median(took[1:]),
            cpu_ms=statistics.median(computed[1:]),
            worst_ms=max(took[1:]),
            queries=len(captured),
            kilobytes=len(response.content) / 1024,
        )


def _paths() -> dict[str, str]:
    """Return the address of every list and page whose time could grow with the rows."""
    from django.urls import reverse

    from runs.models import Cell, Pair

    paths = {
        "home": reverse("home"),
        "experiments": reverse("experiments"),
        "experiments, running": f"{reverse('experiments')}?status=running",
        "compare, to choose": reverse("compare"),
        "compare": f"{reverse('compare')}?a=study-05&b=study-18",
        "skills": reverse("skills"),
        "skill": reverse("skill", kwargs={"slug": "skill-0003"}),
        "libraries": reverse("libraries"),
        "library": reverse("library", kwargs={"slug": "coding"}),
        "people": reverse("people"),
        "notices": reverse("notices"),
        "API experiments": reverse("api-experiments"),
        "API comparison": f"{reverse('api-comparisons')}?a=study-05&b=study-18",
        "API skills": reverse("api-skills"),
    }
    for slug in ("study-05", "running-4000", "pairs-4000", "pairs-20000"):
        cell = Cell.objects.filter(experiment__slug=slug).order_by("number")[0]
        where = {"slug": slug, "sha12": cell.sha256[:12]}
        page = reverse("cell", kwargs=where)
        paths |= {
            f"{slug}": reverse("experiment", kwargs={"slug": slug}),
            f"{slug}, progress": reverse("experiment-progress", kwargs={"slug": slug}),
            f"{slug}, cell": page,
            f"{slug}, lost pairs": f"{page}?transition=harmful",
            f"{slug}, left out": f"{page}?transition=censored",
            f"{slug}, by skill": f"{page}?skill=skill-0003&sort=-task",
            f"{slug}, API pairs": reverse("api-cell-pairs", kwargs=where),
            f"{slug}, API report": reverse("api-experiment-report", kwargs={"slug": slug}),
            f"{slug}, API experiment": reverse("api-experiment", kwargs={"slug": slug}),
            f"{slug}, API lost pairs": reverse("api-experiment-pairs", kwargs={"slug": slug})
            + "?transition=harmful",
            f"{slug}, API pairs left out": reverse("api-experiment-pairs", kwargs={"slug": slug})
            + "?censored=true",
        }
    pair = Pair.objects.filter(cell=cell).order_by("pk")[0]
    paths["pair"] = reverse("pair", kwargs={"uid": pair.uid})
    return paths


def _say(message: Any) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
