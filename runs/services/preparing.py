"""From an experiment file's names to stored tasks and skills, checked before anything runs."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from runs.domain.partitions import PartitionImpossible
from runs.domain.pauses import advice_before, patience
from runs.domain.plan import BenchmarkSpec, ExperimentSpec, ModelSpec
from runs.domain.suites import SUITE_NAMES, InvalidTaskFile, Suite, load_suite
from runs.domain.tasks import names_imported
from runs.models import Benchmark, Partition
from runs.sandbox.grader import Grader, HostFailed
from runs.selectors import benchmark_named
from runs.services.arms import endpoint_of
from runs.services.benchmarks import store_benchmark, store_partition
from runs.services.planning import SameTasks, SlugTaken
from runs.services.tasks import (
    ReferenceState,
    UnknownSource,
    references_check,
    suite_load,
)
from skills.domain.skillfile import slugify
from skills.models import Library
from skills.services.importing import NothingToImport, import_skills, read_directories
from skills.services.libraries import LibraryMissing, LibraryQuarantined
from workbench.kernel.identity import sha256_of
from workbench.llm.factory import Probe, probe_endpoint

# Libraries that come with the product and need no import by hand.
POOLS = {slug: Path("skills") / "pools" / slug for slug in ("coding", "maths")}


class NotReady(Exception):
    """Something an experiment needs is missing; ``problems`` names each with its fix."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


# Why a file can't become an experiment, in words for whoever wrote it.
UNPLANNABLE = (
    InvalidTaskFile,
    LibraryMissing,
    LibraryQuarantined,
    NotReady,
    NothingToImport,
    PartitionImpossible,
    SameTasks,
    SlugTaken,
    UnknownSource,
)


def prepare(
    *, spec: ExperimentSpec, open_grader: Callable[[], Grader], trusted: bool = True
) -> dict[BenchmarkSpec, Partition]:
    """Store the spec's suites and pools and return the partition of each benchmark entry.

    Args:
        trusted: whether a suite may be the path of a file here; not in what came by web.

    Raises:
        NotReady: a key's environment variable is unset, or a reference fails its own cases.
        UnknownSource, InvalidTaskFile: a suite can't be read.
        PartitionImpossible: a partition is larger than its suite.
        HostFailed: this host could not grade a reference.
        NoIsolation: code would have to be graded and nothing here can isolate it.
    """
    missing = sorted(
        {
            f"the model {model.id} names the environment variable {model.api_key_env} for its "
            "key, and it is not set"
            for model in spec.models
            if model.api_key_env and not os.environ.get(model.api_key_env)
        }
    )
    if missing:
        raise NotReady(missing)
    for slug in {cell.library for cell in spec.cells} & set(POOLS):
        import_pool(slug)
    stored: dict[str, Benchmark] = {}
    partitions = {}
    for benchmark in spec.benchmarks:
        if benchmark.suite not in stored:
            stored[benchmark.suite] = _benchmark_of(
                benchmark.suite, open_grader=open_grader, trusted=trusted
            )
        partitions[benchmark] = store_partition(
            benchmark=stored[benchmark.suite], size=benchmark.size, seed=benchmark.seed
        )
    return partitions


def _benchmark_of(suite: str, *, open_grader: Callable[[], Grader], trusted: bool) -> Benchmark:
    """Return the benchmark that a file means by ``suite``.

    A suite that comes with the product is meant first, then a stored benchmark, then a file.
    """
    if suite not in SUITE_NAMES:
        stored = benchmark_named(suite)
        if stored:
            return stored
        if not trusted:
            raise UnknownSource(suite)
    return import_suite(suite=suite_load(source=suite), open_grader=open_grader)


def stored_partitions(spec: ExperimentSpec) -> dict[BenchmarkSpec, Partition] | None:
    """Return what ``prepare`` would return now, or None where it would store anything new."""
    found = {}
    for benchmark in spec.benchmarks:
        if benchmark.suite in SUITE_NAMES:
            suite = Benchmark.objects.filter(
                slug=slugify(benchmark.suite), sha256=_shipped_sha256(benchmark.suite)
            ).first()
        else:
            suite = benchmark_named(benchmark.suite)
        if suite is None:
            return None
        partition = Partition.objects.filter(
            benchmark=suite, size=benchmark.size or suite.tasks.count(), seed=benchmark.seed
        ).first()
        if partition is None:
            return None
        found[benchmark] = partition
    return found


@lru_cache
def _shipped_sha256(name: str) -> str:
    """Return what a benchmark of this shipped suite is found by; it stays while this runs."""
    return sha256_of(sorted(task.sha256 for task in load_suite(name).tasks))


class EndpointUnusable(Exception):
    """A model's endpoint answered the small call before a start with an error, or not at all."""


def check_endpoints(spec: ExperimentSpec) -> None:
    """Make one small call to each model, so that a wrong key is told before anything starts.

    Raises:
        EndpointUnusable: naming each model that can't be used and why.
    """
    longest = max(cell.max_tokens for cell in spec.cells)
    probes = [
        (model, probe_endpoint(endpoint=endpoint_of(model), max_tokens=longest))
        for model in spec.models
    ]
    faults = [_fault_of(model, probe) for model, probe in probes if not probe.ok]
    if faults:
        raise EndpointUnusable("Nothing was started. " + " ".join(dict.fromkeys(faults)))


def _fault_of(model: ModelSpec, probe: Probe) -> str:
    """Return what an endpoint said of a small call, and what to do about it."""
    if probe.wait_s:
        return patience(wait_s=probe.wait_s, detail=probe.message, now=timezone.now())
    told = probe.message if model.endpoint in probe.message else f"{model.id}: {probe.message}"
    return f"{told.rstrip('.')}. {advice_before(probe.message)}"


def import_pool(slug: str) -> Library:
    """Return the library of a pool that comes with the product, imported once per content."""
    loaded = read_directories([settings.BASE_DIR / POOLS[slug]])
    return import_skills(loaded=loaded, library_slug=slug).library


def import_suite(*, suite: Suite, open_grader: Callable[[], Grader]) -> Benchmark:
    """Store the suite's tasks with what their answers are checked against.

    Every reference is graded first. Assert tests and bare inputs become cases
    by running it in the sandbox; later grading compares values in this process.

    Raises:
        NotReady: a reference fails its own check, so the task can't be trusted.
        HostFailed: this host could not grade a reference.
        NoIsolation: the references are code and nothing here can isolate them.
    """
    slug = slugify(suite.name) or "tasks"
    if names_imported(slug):
        raise NotReady([f"{slug} is kept for the tasks of pushed runs; give the file another name"])
    stored = Benchmark.objects.filter(slug=slug).order_by("-number").first()
    if stored and dict(stored.tasks.values_list("key", "sha256")) == {
        task.key: task.sha256 for task in suite.tasks
    }:
        return stored
    checks = list(references_check(suite=suite, grader=open_grader()))
    problems = [
        f"{suite.name}: the reference of task {check.key} fails its own check: {check.message}"
        for check in checks
        if check.state is ReferenceState.FAILED
    ]
    if problems:
        raise NotReady(problems)
    ungraded = [check for check in checks if check.state is ReferenceState.NOT_GRADED]
    if ungraded:
        raise HostFailed(
            f"{suite.name}: this machine could not grade {len(ungraded)} of {len(checks)} "
            f"references, first that of task {ungraded[0].key}: {ungraded[0].message}. "
            "`manage.py doctor` says what is missing; then start again."
        )
    checkers = {check.key: check.checker for check in checks}
    return store_benchmark(slug=slug, tasks=suite.tasks, checkers=checkers)
