"""Skills with what came of them: how often each was returned, and what was won and lost then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from runs.domain.effects import Transition
from runs.domain.plan import EMBEDDED
from runs.domain.render import differing, traits
from runs.models import Cell
from runs.services.reporting import descriptor_of
from runs.services.skill_totals import InCell, Returned, SkillTotals
from runs.services.standing import standing_skill_totals
from runs.views.listing import ListControls, list_controls, page_or_404
from skills.models import Skill, Status, Validity
from skills.selectors import (
    SKILL_LISTING,
    SkillRecord,
    VersionRecord,
    skill_record,
    skill_records,
    version_records,
)
from workbench.kernel.pages import render_page, utc_seconds
from workbench.kernel.roles import unblinded_only

# Characters of one version's text on the page; the rest is behind its full-text link.
SHOWN = 8_000
DESCRIPTION_SHOWN = 1_000
VERSIONS_SHOWN = 5


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
    as_of: str
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
    as_of: str
    totals: tuple[VersionTotal, ...]
    where: tuple[WhereRow, ...]
    versions: tuple[VersionView, ...]
    versions_left_out: int


@require_safe
@unblinded_only
def skills(request: HttpRequest) -> HttpResponse:
    """Show every skill with what came of the pairs it was returned in."""
    page = page_or_404(Skill.objects.all(), SKILL_LISTING, request)
    standing = standing_skill_totals()
    totals = SkillTotals.from_json(standing.result)
    rows = tuple(
        _skill_row(record, version, total)
        for record in skill_records(page.rows)
        for version, total in sorted(
            (totals.versions(record.slug) or {record.versions: Returned()}).items(), reverse=True
        )
    )
    return render_page(
        request,
        "runs/skills.html",
        SkillsPage(
            rows=rows,
            skills=Skill.objects.count(),
            returned_somewhere=len(totals.by_skill),
            demonstration=bool(totals.demonstrations),
            as_of=utc_seconds(standing.as_of),
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
    standing = standing_skill_totals()
    totals = SkillTotals.from_json(standing.result)
    by_cell = {row.cell: row for row in totals.by_skill.get(slug, ())}
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
            demonstration=bool(totals.demonstrations & by_cell.keys()),
            as_of=utc_seconds(standing.as_of),
            totals=tuple(
                VersionTotal(number, total.pairs, total.alone, total.won, total.lost)
                for number, total in sorted(totals.versions(slug).items(), reverse=True)
            ),
            where=_where(slug, by_cell),
            versions=tuple(_version(slug, version) for version in versions[:VERSIONS_SHOWN]),
            versions_left_out=max(0, len(versions) - VERSIONS_SHOWN),
        ),
    )


# --- parts ---------------------------------------------------------------------


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


def _where(slug: str, by_cell: Mapping[int, InCell]) -> tuple[WhereRow, ...]:
    cells = list(
        Cell.objects.filter(pk__in=by_cell)
        .select_related("experiment", "treatment", "library", "partition__benchmark")
        .order_by("-experiment__created_at", "experiment__slug", "number")
    )
    names = _names(cells)
    rows = []
    for cell in cells:
        total = by_cell[cell.pk].returned
        url = reverse("cell", kwargs={"slug": cell.experiment.slug, "sha12": cell.sha256[:12]})

        def pairs_url(url: str = url, **filters: str) -> str:
            return f"{url}?{urlencode({'skill': slug, **filters})}#pairs"

        rows.append(
            WhereRow(
                experiment=cell.experiment.slug,
                cell=names[cell.pk],
                version=by_cell[cell.pk].version,
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
