"""From recorded rows to a report: what is compared, left out, counted and told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from runs.domain.agent import Contaminated, run_agent
from runs.domain.plan import CellSpec, ModelSpec
from runs.domain.tasks import Kind, TaskSpec
from runs.models import (
    Arm,
    EffectReport,
    Execution,
    Experiment,
    ExperimentStatus,
    Pair,
    PairArm,
)
from runs.services import arms, lifecycle
from runs.services.executing import execute
from runs.services.reporting import report_of
from tests.experiments import grader, make_spec, plan, run, run_left, write_tasks
from tests.factories import cells_of, finished_experiment, make_experiment, record, set_status
from tests.scripted_server import ScriptedServer, context_overflow, reply, status, tool_call
from workbench.kernel.leases import LeaseState

pytestmark = pytest.mark.django_db


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    return write_tasks(tmp_path / "counting.jsonl")


def report_against(
    answer: Any, tasks: Path, *, dialect: str = "native", cells: Sequence[CellSpec] = ()
) -> dict[str, Any]:
    """Return the report of an experiment whose endpoint answers by the function ``answer``."""
    with ScriptedServer(answer) as server:
        model = ModelSpec(id="m", base_url=server.base_url, dialect=dialect)
        spec = make_spec(tasks, model=model, cells=tuple(cells) or (CellSpec(library="coding"),))
        experiment = plan(spec)
        run(experiment)
    return report_of(experiment)


def texts(cell: dict[str, Any]) -> dict[str, str]:
    return {note["code"]: note["text"] for note in cell["notes"]}


def searching(seen: Any) -> bool:
    return "tools" in seen.body and len(seen.body["messages"]) < 4


def test_a_parameter_refused_in_one_arm_only_makes_no_effect(tasks: Path) -> None:
    def answer(seen: Any) -> Any:
        # With tools it takes no temperature, and without a temperature it answers wrongly.
        if "tools" in seen.body and "temperature" in seen.body:
            said = "Unsupported parameter: 'temperature'"
            code = "unsupported_parameter"
            return status(400, message=said, param="temperature", code=code)(seen)
        if searching(seen):
            return tool_call(json.dumps({"query": "prefix sum windows"}))(seen)
        right = "temperature" in seen.body
        return reply("\\boxed{right}" if right else "\\boxed{wrong}")(seen)

    with ScriptedServer(answer) as server:
        experiment = plan(make_spec(tasks, model=ModelSpec(id="m", base_url=server.base_url)))
        lifecycle.start(experiment=experiment, actor=None, at=timezone.now())
        first = PairArm.objects.filter(arm=Arm.SD).values_list("execution__uid", flat=True)[:8]
        for uid in list(first):
            execute(uid=uid, open_grader=grader)
        run_left(experiment)  # the refusal is remembered, so the last SD runs drop it as well
    report = report_of(experiment)
    (cell,) = report["cells"]
    assert cell["censored"]["se"] == {"unequal_parameters": 8}
    # The four equal pairs failed in both arms. All twelve would have given 8 lost.
    assert (cell["n_pairs"], cell["all_d"], cell["c"]) == (4, 4, 0)
    assert "In 8 pairs the endpoint refused temperature" in texts(cell)["unequal_parameters"]
    assert "m: the endpoint refused temperature" in report["notices"]


def test_answers_lost_to_the_context_are_told(tasks: Path) -> None:
    def answer(seen: Any) -> Any:
        if searching(seen):
            return tool_call(json.dumps({"query": "prefix sum windows"}))(seen)
        return (context_overflow() if "tools" in seen.body else reply("\\boxed{right}"))(seen)

    (cell,) = report_against(answer, tasks)["cells"]
    assert cell["rae"] == -100.0
    assert cell["answers"] == {"se": {"context_overflow": 12}, "sd": {"answered": 12}}
    assert texts(cell)["unusual_answers"] == (
        "12 of 12 SE answers are empty: the context overflowed."
    )


def test_decisions_that_could_not_be_read_are_told(tasks: Path) -> None:
    def answer(seen: Any) -> Any:
        decides = "response_format" in seen.body
        return (reply(None, finish="length") if decides else reply("\\boxed{right}"))(seen)

    (cell,) = report_against(answer, tasks, dialect="json_action")["cells"]
    assert (cell["n_malformed_decisions"], cell["n_cond"]) == (12, 0)
    assert texts(cell)["malformed_decisions"].startswith("12 decisions of SE runs")


def test_search_calls_that_could_not_be_carried_out_are_told(tasks: Path) -> None:
    def answer(seen: Any) -> Any:
        return (tool_call('{"quary": 1}') if searching(seen) else reply("\\boxed{right}"))(seen)

    (cell,) = report_against(answer, tasks)["cells"]
    assert (cell["n_invalid_calls"], cell["n_cond"]) == (12, 0)


def test_contaminated_runs_that_were_tried_again_are_told_no_more(
    tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leak(**arguments: Any) -> Any:
        trace = run_agent(**arguments)
        if not arguments["exposed"]:
            raise Contaminated("a skill reached an arm without skills", trace)
        return trace

    experiment = plan(make_spec(tasks))
    with monkeypatch.context() as patched:
        patched.setattr(arms, "run_agent", leak)
        run(experiment)
    assert report_of(experiment)["notices"] == ["contaminated runs, left out: 12"]
    lifecycle.retry_failed(experiment=experiment, actor=None, at=timezone.now())
    run_left(experiment)
    assert report_of(experiment)["notices"] == []


def code_tasks(*isolations: str) -> tuple[TaskSpec, ...]:
    return tuple(
        TaskSpec(
            key=f"tasks/{isolation}",
            prompt="Write solve.",
            kind=Kind.CODE,
            checker={
                "mode": "cases" if isolation == "process" else "asserts",
                "checker_isolation": isolation,
            },
        )
        for isolation in isolations
    )


def test_tasks_checked_in_process_are_listed_and_reported_apart() -> None:
    kinds = code_tasks("in_process", "process", "two_processes")
    report = report_of(finished_experiment("panel", retrieved="bcc", tasks=kinds))
    assert report["notices"] == [
        "checked in the program's own process, where a pass can be forged: tasks/in_process"
    ]
    apart = report["cells"][0]["checked_in_process"]
    assert (apart["only"]["b"], apart["only"]["n_pairs"]) == (1, 1)
    assert (apart["without"]["c"], apart["without"]["rae"]) == (2, -100.0)


def test_the_benchmarks_number_is_part_of_its_name() -> None:
    finished_experiment("first", retrieved="ab")
    other = finished_experiment("second", retrieved="ab", tasks=code_tasks("process", "other"))
    assert report_of(other)["cells"][0]["cell"]["benchmark"] == "tasks@2"


def test_a_complete_report_is_read_back_until_a_row_is_added(
    django_assert_max_num_queries: Any,
) -> None:
    experiment = make_experiment("panel", tasks=3)
    pairs = list(Pair.objects.order_by("task__key"))
    for pair in pairs[:2]:
        record(pair, "b", skills=("two-pointer",))
    assert not report_of(experiment)["cells"][0]["complete"]
    assert not EffectReport.objects.exists()
    record(pairs[2], "c", skills=("two-pointer",))
    report = report_of(experiment)
    assert report["cells"][0]["c"] == 1
    with django_assert_max_num_queries(3):  # two sums over the rows, and the stored report
        assert report_of(experiment) == report
    # A state that changes alone, as a retry does it, makes another report.
    Execution.objects.filter(pk=Execution.objects.order_by("pk")[0].pk).update(
        state=LeaseState.PENDING
    )
    report_of(experiment)
    assert EffectReport.objects.count() == 2


def test_a_report_takes_as_many_queries_however_many_cells_there_are(
    django_assert_num_queries: Any,
) -> None:
    for number, controls in enumerate((("normal",), ("normal", "schema_empty"))):
        experiment: Experiment = make_experiment(f"panel-{number}", controls=controls)
        with django_assert_num_queries(9):
            report_of(experiment)


def test_a_cancelled_experiment_says_so_in_its_headline() -> None:
    experiment = make_experiment("panel", tasks=3)
    record(cells_of(experiment)[0].pairs.order_by("task__key")[0], "b", skills=("two-pointer",))
    going = report_of(experiment)["cells"][0]
    assert "settled so far" in going["headline"]
    set_status(experiment, ExperimentStatus.CANCELLED)
    ended = report_of(experiment)["cells"][0]
    assert ended["headline"].startswith("Cancelled with 1 of 3 pairs settled")
