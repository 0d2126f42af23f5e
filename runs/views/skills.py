"""Skills with what came of them: how often each was returned, and what was won and lost then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlencode

from django.db.models import OuterRef, Subquery
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from runs.domain.effects import Transition
from runs.models import Arm, Attempt, Cell, Failure, Outcome, PairArm
from skills.selectors import (
    SkillRecord,
    VersionRecord,
    skill_record,
    skill_records,
    version_records,
)
from workbench.kernel.pages import render_page
from workbench.kernel.roles import unblinded_only

# Characters of one version's text on the page; the rest is behind its full-text link.
SHOWN = 8_000
DESCRIPTION_SHOWN = 1_000
VERSIONS_SHOWN = 5


@dataclass
class Returned:
    """Pairs whose SE run was given a skill, by their joint result."""

    pairs: int = 0
    won: int = 0
    lost: int = 0
    alone: int = 0


@dataclass(frozen=True)
class SkillRow:
    """One line of the list of skills."""

    slug: str
    name: str
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
    """Every skill that was imported."""

    rows: tuple[SkillRow, ...]
    returned_somewhere: int


@dataclass(frozen=True)
class WhereRow:
    """One cell in which the skill was returned."""

    experiment: str
    cell: str
    pairs: int
    alone: int
    won: int
    lost: int
    url: str
    won_url: str
    lost_url: str


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
    pairs: int
    alone: int
    won: int
    lost: int
    where: tuple[WhereRow, ...]
    versions: tuple[VersionView, ...]
    versions_left_out: int


@require_safe
@unblinded_only
def skills(request: HttpRequest) -> HttpResponse:
    """Show every skill with what came of the pairs it was returned in."""
    totals: dict[str, Returned] = defaultdict(Returned)
    for given in _given():
        for slug in given.slugs:
            _count(totals[slug], given)
    rows = tuple(_skill_row(record, totals[record.slug]) for record in skill_records())
    return render_page(
        request, "runs/skills.html", SkillsPage(rows, sum(row.pairs > 0 for row in rows))
    )


@require_safe
@unblinded_only
def skill(request: HttpRequest, slug: str) -> HttpResponse:
    """Show one skill: where it was returned, and its texts."""
    record = skill_record(slug)
    if record is None:
        raise Http404
    total = Returned()
    by_cell: dict[int, Returned] = defaultdict(Returned)
    for given in _given():
        if slug in given.slugs:
            _count(total, given)
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
            pairs=total.pairs,
            alone=total.alone,
            won=total.won,
            lost=total.lost,
            where=_where(slug, by_cell),
            versions=tuple(_version(slug, version) for version in versions[:VERSIONS_SHOWN]),
            versions_left_out=max(0, len(versions) - VERSIONS_SHOWN),
        ),
    )


# --- counting -------------------------------------------------------------------


@dataclass(frozen=True)
class _Given:
    """One pair whose SE run was given skills, with its latest joint result or an empty text."""

    cell: int
    slugs: frozenset[str] = field(default_factory=frozenset)
    transition: str = ""


def _given() -> Iterator[_Given]:
    """Yield every pair whose SE run was given skills: two queries, whatever there is."""
    given = {
        execution: frozenset(map(str, slugs))
        for execution, slugs in Attempt.objects.filter(
            failure=Failure.NONE, retrieved=True
        ).values_list("execution", "returned_ids")
    }
    latest = Outcome.objects.filter(pair=OuterRef("pair")).order_by("-pk").values("transition")[:1]
    arms = (
        PairArm.objects.filter(arm=Arm.SE)
        .annotate(transition=Subquery(latest))
        .values_list("pair__cell", "execution", "transition")
    )
    for cell, execution, transition in arms:
        if execution in given:
            yield _Given(cell, given[execution], transition or "")


def _count(total: Returned, given: _Given) -> None:
    total.pairs += 1
    total.won += given.transition == Transition.HELPFUL
    total.lost += given.transition == Transition.HARMFUL
    total.alone += len(given.slugs) == 1


def _skill_row(record: SkillRecord, total: Returned) -> SkillRow:
    net = total.won - total.lost
    return SkillRow(
        slug=record.slug,
        name=record.name,
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


def _where(slug: str, by_cell: dict[int, Returned]) -> tuple[WhereRow, ...]:
    cells = (
        Cell.objects.filter(pk__in=by_cell)
        .select_related("experiment", "treatment")
        .order_by("-experiment__created_at", "experiment__slug", "number")
    )
    rows = []
    for cell in cells:
        spec, total = cell.treatment.spec, by_cell[cell.pk]
        url = reverse("cell", kwargs={"slug": cell.experiment.slug, "sha12": cell.sha256[:12]})

        def pairs_url(url: str = url, **filters: str) -> str:
            return f"{url}?{urlencode({'skill': slug, **filters})}#pairs"

        rows.append(
            WhereRow(
                experiment=cell.experiment.slug,
                cell=" · ".join(str(spec[k]) for k in ("model", "benchmark", "control")),
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
