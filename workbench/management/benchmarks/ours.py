"""Our side of every comparison, through the functions and services that the product uses."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.bootstrap import version
from workbench.management.benchmarks.worker import Data, Job, Turn, serve, timed

if TYPE_CHECKING:
    from runs.models import Experiment
    from runs.sandbox.grader import Grader


def mcnemar(data: Data) -> Job:
    """Exact McNemar of each table."""
    from runs.domain.intervals import mcnemar_exact

    tables = data["tables"]

    def work() -> list[float]:
        return [mcnemar_exact(b=b, c=c) for b, c in tables]

    return Job(version(), lambda _: timed(work, pieces=len(tables), repeats=100))


def multinomial(data: Data) -> Job:
    """The paper's interval of the RAE."""
    from runs.domain.intervals import multinomial_percentile

    def work() -> list[float]:
        interval = multinomial_percentile(b=data["b"], c=data["c"], n=data["n"])
        return [interval.low, interval.high]

    return Job(version(), lambda _: timed(work, pieces=1, repeats=10))


def tango(data: Data) -> Job:
    """The default interval of the RAE."""
    from runs.domain.intervals import tango as tango_interval

    def work() -> list[float]:
        interval = tango_interval(b=data["b"], c=data["c"], n=data["n"])
        return [interval.low, interval.high]

    return Job(version(), lambda _: timed(work, pieces=1, repeats=100))


# A pool's process has one grader, as a worker process of the product has.
_GRADER: Grader | None = None


def grading(data: Data) -> Job:
    """Programs graded in the sandbox, by a pool of processes."""
    programs = data["programs"]
    pool = ProcessPoolExecutor(
        data["processes"],
        mp_context=multiprocessing.get_context("fork"),
        initializer=_open_grader,
    )
    tier = pool.submit(_tier).result()

    def work() -> list[bool]:
        return list(pool.map(_passes, programs))

    return Job(f"{version()}, tier {tier}", lambda _: timed(work, pieces=len(programs)))


def _open_grader() -> None:
    global _GRADER
    from runs.sandbox.grader import open_grader

    _GRADER = open_grader()


def _tier() -> str:
    assert _GRADER is not None
    return _GRADER.tier


def _passes(program: Data) -> bool:
    assert _GRADER is not None
    result = _GRADER.grade(
        kind="code",
        checker={
            "mode": "cases",
            "entry": program["entry"],
            "cases": [
                {"args": arguments, "expected": expected}
                for arguments, expected in zip(program["inputs"], program["expected"], strict=True)
            ],
            "comparator": "exact",
        },
        reply=f"```python\n{program['code']}\n```",
    )
    return result.verdict == "pass"


def orchestration(data: Data) -> Job:
    """Experiments of a few pairs from their tasks to the report, in a database of their own."""
    import django

    django.setup()
    from django.core.management import call_command

    from runs.sandbox.grader import open_grader
    from workbench.models import Call

    call_command("migrate", verbosity=0)
    grader = open_grader()

    def run(number: int) -> Turn:
        prompts = [data["prompt"].format(round=number, task=n) for n in range(data["pairs"])]
        tasks = _write_tasks(Path(data["folder"]) / f"tasks-{number}.jsonl", prompts)
        calls_before = Call.objects.count()
        turn = timed(
            lambda: _accuracy(_run_experiment(tasks, f"round-{number}", grader)),
            pieces=len(prompts),
        )
        calls = Call.objects.count() - calls_before
        return Turn(turn.seconds, {"accuracy": turn.result, "calls": calls})

    return Job(version(), run)


def _write_tasks(path: Path, prompts: list[str]) -> Path:
    lines = [
        {"key": prompt, "prompt": prompt, "kind": "exact", "checker": {"answers": ["right"]}}
        for prompt in prompts
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _run_experiment(tasks: Path, slug: str, grader: Grader) -> Experiment:
    from django.utils import timezone

    from runs.domain.plan import BenchmarkSpec, CellSpec, ExperimentSpec, ModelSpec
    from runs.selectors import executions_of
    from runs.services.executing import execute
    from runs.services.lifecycle import start
    from runs.services.planning import plan_experiment
    from runs.services.preparing import prepare

    # Every reply is right, and every turn that may search does: here the first alone.
    model = "scripted:mixed?search=1&right=1&right_with_skills=1"
    spec = ExperimentSpec(
        slug=slug,
        models=(ModelSpec(id="scripted", base_url=model),),
        benchmarks=(BenchmarkSpec(suite=str(tasks)),),
        cells=(CellSpec(library="coding", max_searches=1),),
    )
    partitions = prepare(spec=spec, open_grader=lambda: grader)
    experiment = plan_experiment(spec=spec, partitions=partitions, at=timezone.now())
    start(experiment=experiment, actor=None, at=timezone.now())
    for uid in executions_of(experiment).order_by("pk").values_list("uid", flat=True):
        execute(uid=uid, open_grader=lambda: grader)
    experiment.refresh_from_db()
    return experiment


def _accuracy(experiment: Experiment) -> float | None:
    """Return the share of right answers over both arms, from the experiment's report."""
    from runs.services.reporting import report_of

    [cell] = report_of(experiment)["cells"]
    return float((cell["se_accuracy"] + cell["sd_accuracy"]) / 2)


def importing(data: Data) -> Job:
    """Task files from the upload to the stored suite, in a database of their own."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.utils import timezone

    from runs.sandbox.grader import open_grader
    from runs.services.uploading import import_received, receive_suite
    from workbench.jobs import perform

    call_command("migrate", verbosity=0)
    grader = open_grader()

    def work(path: Path, slug: str) -> dict[str, int]:
        with path.open("rb") as file:
            received = receive_suite(
                file=file,
                file_name=path.name,
                slug=slug,
                format=None,
                actor=None,
                at=timezone.now(),
            )
        assert received.job is not None
        perform(
            received.job.uid,
            lambda handle: import_received(handle, open_grader=lambda: grader),
        )
        received.job.refresh_from_db()
        return {"tasks": (received.job.result or {}).get("tasks", 0)}

    def run(number: int) -> Turn:
        path = _write_rows(Path(data["folder"]) / f"rows-{number}.jsonl", number, data["rows"])
        before = _memory("VmRSS")
        # From here on the peak is that of this round.
        Path("/proc/self/clear_refs").write_text("5")
        turn = timed(lambda: work(path, f"round-{number}"), pieces=1)
        grown = (_memory("VmHWM") - before) / 1024
        return Turn(turn.seconds, {**turn.result, "grown_mb": grown})

    return Job(version(), run)


def _write_rows(path: Path, number: int, rows: int) -> Path:
    """Write rows as people's own are: a few hundred characters of prompt and a short answer."""
    with path.open("w", encoding="utf-8") as file:
        for n in range(rows):
            row = {
                "key": f"row/{n:06}",
                "kind": "exact",
                "prompt": f"Round {number}, question {n}. " + "What is asked stands here. " * 10,
                "checker": {"answers": [f"answer {n}", f"the answer {n}"]},
                "gold_skills": ["two-pointer"],
                "tags": ["easy", f"part-{n % 7}"],
            }
            file.write(json.dumps(row) + "\n")
    return path


def _memory(name: str) -> int:
    """Return one of this process's memory figures, in KB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise LookupError(name)


JOBS = {
    "mcnemar": mcnemar,
    "multinomial": multinomial,
    "tango": tango,
    "grading": grading,
    "orchestration": orchestration,
    "importing": importing,
}

if __name__ == "__main__":
    serve(JOBS)
