"""The other tools' sides. Runs in the peers' environment: no Django and none of our packages."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from workbench.management.benchmarks.worker import Data, Job, Turn, serve, timed

RESAMPLES = 20_000
SEED = 42


def mcnemar(data: Data) -> Job:
    """Exact McNemar by statsmodels."""
    from statsmodels.stats.contingency_tables import (  # type: ignore[import-not-found]
        mcnemar as statsmodels_mcnemar,
    )

    tables = [[[0, b], [c, 0]] for b, c in data["tables"]]

    def work() -> list[float]:
        return [float(statsmodels_mcnemar(table, exact=True).pvalue) for table in tables]

    def run(_: int) -> Turn:
        return timed(work, pieces=len(tables), repeats=20)

    return Job(_version("statsmodels"), run)


def resample(data: Data) -> Job:
    """Percentiles of a mean over tasks drawn with replacement, one resample after the other."""
    import numpy as np

    values = np.array(_differences(data), dtype=np.float64)

    def work() -> list[float]:
        generator, n = np.random.default_rng(SEED), len(values)
        means = np.empty(RESAMPLES)
        for number in range(RESAMPLES):
            means[number] = values[generator.integers(0, n, n)].mean()
        return [float(bound) for bound in np.quantile(means, [0.025, 0.975])]

    return Job(_version("numpy"), lambda _: timed(work, pieces=1))


def resample_blocks(data: Data) -> Job:
    """The same in blocks with the narrowest types, the fastest way found with numpy alone."""
    import numpy as np

    values = np.array(_differences(data), dtype=np.int8)

    def work() -> list[float]:
        generator, n = np.random.default_rng(SEED), len(values)
        block = max(1, 100_000 // n)
        means = np.empty(RESAMPLES)
        for first in range(0, RESAMPLES, block):
            size = min(block, RESAMPLES - first)
            drawn = generator.integers(0, n, (size, n), dtype=np.uint16)
            means[first : first + size] = np.take(values, drawn).mean(axis=1)
        return [float(bound) for bound in np.quantile(means, [0.025, 0.975])]

    return Job(_version("numpy"), lambda _: timed(work, pieces=1))


def _differences(data: Data) -> list[int]:
    n, b, c = data["n"], data["b"], data["c"]
    return [1] * b + [-1] * c + [0] * (n - b - c)


def evalplus(data: Data) -> Job:
    """Programs checked by EvalPlus in a pool, as its own evaluate command does."""
    import evalplus.eval  # type: ignore[import-not-found]  # noqa: F401 - the pool inherits it

    programs = data["programs"]
    # Its own check forks, whatever this Python's default is.
    multiprocessing.set_start_method("fork")
    pool = ProcessPoolExecutor(data["processes"])

    def work() -> list[bool]:
        return list(pool.map(_passes, programs))

    return Job(_version("evalplus"), lambda _: timed(work, pieces=len(programs)))


def _passes(program: Data) -> bool:
    from evalplus.eval import PASS, untrusted_check

    status, _ = untrusted_check(
        dataset="humaneval",
        code=program["code"],
        inputs=program["inputs"],
        entry_point=program["entry"],
        expected=program["expected"],
        atol=0,
        ref_time=[0.001] * len(program["inputs"]),
        fast_check=True,
    )
    return bool(status == PASS)


def inspect(data: Data) -> Job:
    """Both arms of each task as samples of one Inspect evaluation with its mock model."""
    _stub_tokeniser()
    import inspect_ai  # type: ignore[import-not-found]
    from inspect_ai.dataset import MemoryDataset, Sample  # type: ignore[import-not-found]
    from inspect_ai.model import (  # type: ignore[import-not-found]
        ChatMessageTool,
        ModelOutput,
        get_model,
    )
    from inspect_ai.scorer import match  # type: ignore[import-not-found]
    from inspect_ai.solver import solver  # type: ignore[import-not-found]
    from inspect_ai.tool import tool  # type: ignore[import-not-found]

    name, skill = "mockllm/model", data["skill"]

    @tool
    def search_skills() -> Any:
        async def execute(query: str) -> str:
            """Search the skills.

            Args:
                query: What to look for.
            """
            return str(skill)

        return execute

    @solver
    def both_arms() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            if state.metadata["exposed"]:
                state.tools = [search_skills()]
            return await generate(state)

        return solve

    calls = Counter[str]()

    def reply(messages: Any, tools: Any, *_: Any) -> Any:
        calls["made"] += 1
        if tools and not any(isinstance(message, ChatMessageTool) for message in messages):
            return ModelOutput.for_tool_call(name, "search_skills", {"query": "prefix sum"})
        return ModelOutput.from_content(name, "right")

    def evaluate(prompts: list[str]) -> float:
        samples = [
            Sample(input=prompt, target="right", metadata={"exposed": exposed})
            for prompt in prompts
            for exposed in (True, False)
        ]
        [log] = inspect_ai.eval(
            inspect_ai.Task(dataset=MemoryDataset(samples), solver=both_arms(), scorer=match()),
            model=get_model(name, custom_outputs=reply, memoize=False),
            log_dir=data["folder"],
            display="none",
        )
        if log.status != "success":
            raise RuntimeError(f"Inspect's evaluation ended with status {log.status}: {log.error}")
        return float(log.results.scores[0].metrics["accuracy"].value)

    def run(number: int) -> Turn:
        prompts = [data["prompt"].format(round=number, task=n) for n in range(data["pairs"])]
        calls.clear()
        turn = timed(lambda: evaluate(prompts), pieces=len(prompts))
        return Turn(turn.seconds, {"accuracy": turn.result, "calls": calls["made"]})

    return Job(_version("inspect-ai"), run)


def _stub_tokeniser() -> None:
    """Keep Inspect's mock model from downloading a tokeniser; it then counts for nothing."""
    import tiktoken  # type: ignore[import-not-found]

    class Tokeniser:
        def encode(self, text: str, **_: Any) -> range:
            return range(len(text) // 4)

    tiktoken.get_encoding = lambda name: Tokeniser()


def _version(package: str) -> str:
    return importlib.metadata.version(package)


JOBS = {
    "mcnemar": mcnemar,
    "resample": resample,
    "resample_blocks": resample_blocks,
    "evalplus": evalplus,
    "inspect": inspect,
}

if __name__ == "__main__":
    serve(JOBS)
