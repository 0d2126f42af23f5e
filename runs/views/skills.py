"""Skills with what came of them: how often each was returned, and what was won and lost then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.db.models import OuterRef, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from runs.domain.effects import Transition
from runs.domain.plan import EMBEDDED
from runs.domain.render import differing, traits
from runs.models import Arm, Attempt, Cell, Failure, Outcome, PairArm
from runs.services.reporting import descriptor_of
from runs.views.listing import ListControls, list_controls, page_or_404
from skills.models import Skill, Status, Validity
from skills.selectors import (
    SKILL_LISTING,
    SkillRecord,
    VersionRecord,
    skill_record,
    skill_records,
    version_numbers,
    version_records,
)
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only

# Characters of one version's text on the page; the rest is behind its full-text link.
SHOWN = 8_000
DESCRIPTION_SHOWN = 1_000
VERSIONS_SHOWN = 5
# Where the search returned the best matches; what a stand-in returned says nothing of a skill.
COUNTED_CONTROL = "normal"


@dataclass
class Returned:
    """Pairs whose SE run was given a version of a skill, by their joint result."""

    pairs: int = 0
    won: int = 0
    lost: int = 0
    alone: int = 0


@dataclass(frozen=True)
class SkillRow:
    """One line of the list of skills: a version that was returned, or the newest one."""

    slug: str
    name: str
    version: int
    type: str
    status: str
    validity: str
    libraries: tuple[str, ...]
    pairs: int
    won: int
    lost: int
    net: str
    url: str


@dataclass(frozen=True)
class SkillsPage:
    """The skills, some at a time, each returned version by itself."""

    rows: tuple[SkillRow, ...]
    skills: int
    returned_somewhere: int
    demonstration: bool
    controls: ListControls


@dataclass(frozen=True)
class WhereRow:
    """One cell in which the skill was returned."""

    experiment: str
    cell: str
    version: int
    demonstration: bool
    pairs: int
    alone: int
    won: int
    lost: int
    url: str
    won_url: str
    lost_url: str


@dataclass(frozen=True)
class VersionTotal:
    """What came of the pairs in which one version was returned."""

    number: int
    pairs: int
    alone: int
    won: int
    lost: int


@dataclass(frozen=True)
class VersionView:
    """One version's text, cut where it is long."""

    number: int
    sha256: str
    name: str
    description: str
    type: str
    libraries: tuple[str, ...]
    companions: tuple[str, ...]
    problems: tuple[str, ...]
    text: str
    cut: bool
    characters: int
    full_url: str


@dataclass(frozen=True)
class SkillPage:
    """One skill."""

    slug: str
    name: str
    description: str
    type: str
    status: str
    validity: str
    libraries: tuple[str, ...]
    demonstration: bool
    totals: tuple[VersionTotal, ...]
    where: tuple[WhereRow, ...]
    versions: tuple[VersionView, ...]
    versions_left_out: int


@require_safe
@unblinded_only
def skills(request: HttpRequest) -> HttpResponse:
    """Show every skill with what came of the pairs it was returned in."""
    page = page_or_404(Skill.objects.all(), SKILL_LISTING, request)
    totals: dict[str, dict[int, Returned]] = defaultdict(lambda: defaultdict(Returned))
    demonstration = False
    for given in _given():
        demonstration |= given.demonstration
        for slug, version in given.versions.items():
            _count(totals[slug][version], given)
    rows = tuple(
        _skill_row(record, version, total)
        for record in skill_records(page.rows)
        for version, total in sorted(
            totals.get(record.slug, {record.versions: Returned()}).items(), reverse=True
        )
    )
    return render_page(
        request,
        "runs/skills.html",
        SkillsPage(
            rows=rows,
            skills=Skill.objects.count(),
            returned_somewhere=len(totals),
            demonstration=demonstration,
            controls=list_controls(
                page,
                url=reverse("skills"),
                columns={"slug": "Skill", "status": "Status", "validity": "Validity"},
                choices={
                    "status": ("Status", tuple(Status.values)),
                    "validity": ("Validity", tuple(Validity.values)),
                },
                texts={"library": "Library"},
            ),
        ),
    )


@require_safe
@unblinded_only
def skill(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one skill: where it was returned, and its texts."""
    record = skill_record(slug)
    if record is None:
        raise Http404
    totals: dict[int, Returned] = defaultdict(Returned)
    by_cell: dict[int, Returned] = defaultdict(Returned)
    demonstration = False
    version_in: dict[int, int] = {}
    for given in _given():
        if slug in given.versions:
            version_in[given.cell] = given.versions[slug]
            demonstration |= given.demonstration
            _count(totals[given.versions[slug]], given)
            _count(by_cell[given.cell], given)
    versions = version_records(slug)
    return render_page(
        request,
        "runs/skill.html",
        SkillPage(
            slug=record.slug,
            name=record.name,
            description=record.description[:DESCRIPTION_SHOWN],
            type=record.type,
            status=record.status,
            validity=record.validity,
            libraries=record.libraries,
            demonstration=demonstration,
            totals=tuple(
                VersionTotal(number, total.pairs, total.alone, total.won, total.lost)
                for number, total in sorted(totals.items(), reverse=True)
            ),
            where=_where(slug, by_cell, version_in),
            versions=tuple(_version(slug, version) for version in versions[:VERSIONS_SHOWN]),
            versions_left_out=max(0, len(versions) - VERSIONS_SHOWN),
        ),
    )


# --- counting -------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """One pair whose SE run was given skills, with its latest joint result or an empty text.

    Attributes:
        versions: the number of the given version of each skill, by slug.
    """

    cell: int
    demonstration: bool
    versions: Mapping[str, int] = field(default_factory=dict)
    transition: str = ""


def _given() -> Iterator[_Given]:
    """Yield every pair whose SE run was given skills: five queries, whatever there is."""
    given = {
        execution: tuple(map(str, slugs))
        for execution, slugs in Attempt.objects.filter(
            failure=Failure.NONE, retrieved=True
        ).values_list("execution", "returned_ids")
    }
    cells = {
        cell: (library, endpoint == EMBEDDED)
        for cell, library, endpoint in Cell.objects.filter(
            treatment__spec__control=COUNTED_CONTROL
        ).values_list("pk", "library", "treatment__spec__endpoint")
    }
    numbers = version_numbers({library for library, _ in cells.values() if library})
    unequal = _unequal()
    latest = Outcome.objects.filter(pair=OuterRef("pair")).order_by("-pk").values("transition")[:1]
    arms = (
        PairArm.objects.filter(arm=Arm.SE)
        .annotate(transition=Subquery(latest))
        .values_list("pair", "pair__cell", "execution", "transition")
    )
    for pair, cell, execution, transition in arms:
        if execution in given and cell in cells:
            library, demonstration = cells[cell]
            yield _Given(
                cell,
                demonstration,
                {slug: numbers.get((library, slug), 0) for slug in given[execution]},
                "" if pair in unequal else transition or "",
            )


def _unequal() -> set[int]:
    """Return the pairs that were won or lost with unequal settings in their arms."""
    dropped: dict[int, dict[str, frozenset[str]]] = defaultdict(dict)
    for pair, arm, names in PairArm.objects.filter(
        pair__outcomes__transition__in=(Transition.HELPFUL, Transition.HARMFUL),
        pair__outcomes__retrieved=True,
        execution__attempts__failure=Failure.NONE,
    ).values_list("pair", "arm", "execution__attempts__trace__dropped_parameters"):
        dropped[pair][arm] = frozenset(names or ())
    return {pair for pair, of_arms in dropped.items() if len(set(of_arms.values())) > 1}


def _count(total: Returned, given: _Given) -> None:
    total.pairs += 1
    total.won += given.transition == Transition.HELPFUL
    total.lost += given.transition == Transition.HARMFUL
    total.alone += len(given.versions) == 1


def _skill_row(record: SkillRecord, version: int, total: Returned) -> SkillRow:
    net = total.won - total.lost
    return SkillRow(
        slug=record.slug,
        name=record.name,
        version=version,
        type=record.type,
        status=record.status,
        validity=record.validity,
        libraries=record.libraries,
        pairs=total.pairs,
        won=total.won,
        lost=total.lost,
        net=f"{net:+d}".replace("-", "−") if net else "0",
        url=reverse("skill", kwargs={"slug": record.slug}),
    )


def _where(
    slug: str, by_cell: Mapping[int, Returned], version_in: Mapping[int, int]
) -> tuple[WhereRow, ...]:
    cells = list(
        Cell.objects.filter(pk__in=by_cell)
        .select_related("experiment", "treatment", "library", "partition__benchmark")
        .order_by("-experiment__created_at", "experiment__slug", "number")
    )
    names = _names(cells)
    rows = []
    for cell in cells:
        total = by_cell[cell.pk]
        url = reverse("cell", kwargs={"slug": cell.experiment.slug, "sha12": cell.sha256[:12]})

        def pairs_url(url: str = url, **filters: str) -> str:
            return f"{url}?{urlencode({'skill': slug, **filters})}#pairs"

        rows.append(
            WhereRow(
                experiment=cell.experiment.slug,
                cell=names[cell.pk],
                version=version_in[cell.pk],
                demonstration=cell.treatment.spec["endpoint"] == EMBEDDED,
                pairs=total.pairs,
                alone=total.alone,
                won=total.won,
                lost=total.lost,
                url=pairs_url(),
                won_url=pairs_url(transition=Transition.HELPFUL.value),
                lost_url=pairs_url(transition=Transition.HARMFUL.value),
            )
        )
    return tuple(rows)


def _names(cells: Iterable[Cell]) -> dict[int, str]:
    """Return the cells' names; those of one experiment say what tells them apart."""
    descriptors: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for cell in cells:
        descriptors[cell.experiment_id][cell.pk] = descriptor_of(cell)
    names = {}
    for of_one in descriptors.values():
        varying = differing([{"cell": descriptor} for descriptor in of_one.values()])
        for pk, about in of_one.items():
            partition = f"{about['partition']['size']} tasks, seed {about['partition']['seed']}"
            parts = (about["model"], about["benchmark"], partition, *traits(about, varying))
            names[pk] = " · ".join(map(str, parts))
    return names


def _version(slug: str, version: VersionRecord) -> VersionView:
    return VersionView(
        number=version.number,
        sha256=version.sha256,
        name=version.name,
        description=version.description,
        type=version.type,
        libraries=version.libraries,
        companions=version.companions,
        problems=version.problems,
        text=version.body[:SHOWN],
        cut=len(version.body) > SHOWN,
        characters=len(version.body),
        full_url=reverse("skill-text", kwargs={"slug": slug, "number": version.number}),
    )
