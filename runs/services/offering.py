"""What an experiment may be made of here: endpoints, suites and libraries, with their sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Subquery

from runs.domain.drafts import EndpointChoice
from runs.domain.plan import ModelSpec
from runs.domain.suites import SUITE_NAMES, InvalidTaskFile, load_suite
from runs.models import Benchmark
from runs.selectors import runnable_benchmarks
from runs.services.preparing import POOLS
from skills.models import Library, Status
from workbench.kernel.versions import split_version, versioned
from workbench.llm.endpoints import configured_endpoints

# So many versions before the newest are offered of each; the others can be written by number.
OLDER_OFFERED = 3


@dataclass(frozen=True)
class SuiteChoice:
    """A suite by the name that files use; ``tasks`` of its newest version."""

    name: str
    tasks: int


@dataclass(frozen=True)
class LibraryChoice:
    """A library by its slug; ``skills`` of its newest version, and how many of them are held."""

    name: str
    skills: int
    quarantined: int = 0


def endpoint_choices() -> tuple[EndpointChoice, ...]:
    """Return the endpoints that may be used from the browser.

    Raises:
        InvalidEndpoints: their file has a problem.
    """
    return tuple(
        EndpointChoice(
            name=endpoint.name,
            base_url=endpoint.base_url,
            api_key_env=endpoint.api_key_env,
            models=tuple(
                ModelSpec(
                    id=model.id,
                    base_url=endpoint.base_url,
                    api_key_env=endpoint.api_key_env,
                    dialect=model.dialect,
                    price_in=model.price_in,
                    price_out=model.price_out,
                    timeout_s=model.timeout_s,
                    requests_per_minute=model.requests_per_minute,
                )
                for model in endpoint.models
            ),
        )
        for endpoint in configured_endpoints()
    )


def suite_choices(names: Collection[str] | None = None) -> tuple[SuiteChoice, ...]:
    """Return the suites that come with the product, then the stored benchmarks, by name.

    Args:
        names: only these; counting the tasks of all takes its time where there are many.
    """
    shipped = [
        (name, _shipped_tasks(name)) for name in SUITE_NAMES if names is None or name in names
    ]
    found = runnable_benchmarks().exclude(slug__in=SUITE_NAMES)
    stored = (
        (found if names is None else found.filter(slug__in=names))
        .annotate(n=Count("tasks"))
        .order_by("slug")
        .values_list("slug", "n")
    )
    by_number = _numbered_suites(
        [split_version(name) for name in names or () if split_version(name)[1] is not None]
    )
    return tuple(SuiteChoice(name, n) for name, n in [*shipped, *stored, *by_number] if n)


def _numbered_suites(wanted: Collection[tuple[str, int | None]]) -> list[tuple[str, int]]:
    if not wanted:
        return []
    found = runnable_benchmarks(newest=False).filter(slug__in={slug for slug, _ in wanted})
    counted = found.annotate(n=Count("tasks")).values_list("slug", "number", "n")
    return [(versioned(slug, number), n) for slug, number, n in counted if (slug, number) in wanted]


def older_suites() -> tuple[SuiteChoice, ...]:
    """Return the last few versions before the newest of each stored suite, by name."""
    counted = (
        runnable_benchmarks(newest=False)
        .annotate(newer=Subquery(_newer(Benchmark)))
        .filter(newer__range=(1, OLDER_OFFERED))
        .annotate(n=Count("tasks"))
        .order_by("slug", "-number")
        .values_list("slug", "number", "n")
    )
    return tuple(SuiteChoice(versioned(slug, number), n) for slug, number, n in counted)


def older_libraries() -> tuple[LibraryChoice, ...]:
    """Return the last few versions before the newest of each stored library, by name."""
    held = Q(entries__skill_version__skill__status=Status.QUARANTINED)
    counted = (
        Library.objects.annotate(newer=Subquery(_newer(Library)))
        .filter(newer__range=(1, OLDER_OFFERED))
        .annotate(n=Count("entries"), held=Count("entries", filter=held))
        .order_by("slug", "-number")
        .values_list("slug", "number", "n", "held")
    )
    return tuple(
        LibraryChoice(versioned(slug, number), n, held) for slug, number, n, held in counted
    )


def _newer(model: type[Benchmark] | type[Library]) -> QuerySet[Any, Any]:
    """Return how many newer versions the version of an outer query has; null for the newest."""
    newer = model._default_manager.filter(slug=OuterRef("slug"), number__gt=OuterRef("number"))
    return newer.order_by().values("slug").annotate(n=Count("pk")).values("n")


def library_choices() -> tuple[LibraryChoice, ...]:
    """Return the libraries that come with the product and those stored, by name."""
    newer = Library.objects.filter(slug=OuterRef("slug"), number__gt=OuterRef("number"))
    held = Q(entries__skill_version__skill__status=Status.QUARANTINED)
    stored = {
        slug: LibraryChoice(slug, skills, quarantined)
        for slug, skills, quarantined in Library.objects.filter(~Exists(newer))
        .annotate(n=Count("entries"), held=Count("entries", filter=held))
        .values_list("slug", "n", "held")
    }
    for slug, folder in POOLS.items():
        # What the pool holds now counts: it is imported again when it is used.
        skills = len(list((settings.BASE_DIR / folder).glob("*/SKILL.md")))
        stored[slug] = LibraryChoice(
            slug, skills, stored[slug].quarantined if slug in stored else 0
        )
    return tuple(stored[slug] for slug in sorted(stored))


@lru_cache
def _shipped_tasks(name: str) -> int:
    try:
        return len(load_suite(name).tasks)
    except InvalidTaskFile:
        return 0  # its package is missing or damaged: then it isn't offered
