"""An audit: one's own skills directory against a set of tasks, as one experiment."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from runs.domain.exposure import Exposure, exposures
from runs.domain.plan import (
    EMBEDDED,
    BenchmarkSpec,
    CellSpec,
    ExperimentSpec,
    ModelSpec,
)
from runs.domain.report import PairRecord
from runs.models import Experiment, Partition
from runs.selectors import cells_of
from runs.services.reporting import cell_record
from skills.models import Library, SkillVersion
from skills.services.libraries import versions_of
from workbench.kernel.identity import sha256_of

# The demonstration model: what a fresh machine runs when no endpoint is configured.
EMBEDDED_MODEL = ModelSpec(id="SmolLM2-135M-Instruct", base_url=EMBEDDED, dialect="json_action")


def embedded_cell(library: str) -> CellSpec:
    """Return what the embedded model can do on two cores: short answers and a single search."""
    return CellSpec(library=library, max_tokens=384, max_searches=1)


@dataclass(frozen=True)
class SkillLine:
    """One skill of an audit: what it was returned for, and what the model wasn't given."""

    exposure: Exposure
    companions: tuple[str, ...]


def audit_spec(
    *, library: str, source: str, size: int | None, model: ModelSpec, seed: int
) -> ExperimentSpec:
    """Return the experiment that audits ``library`` on the tasks of ``source``, yet unnamed."""
    cell = embedded_cell(library) if model == EMBEDDED_MODEL else CellSpec(library=library)
    return ExperimentSpec(
        slug="audit",
        seed=seed,
        models=(model,),
        benchmarks=(BenchmarkSpec(suite=source, size=size, seed=seed),),
        cells=(cell,),
    )


def named_by_content(
    spec: ExperimentSpec, *, library: Library, partitions: Iterable[Partition]
) -> ExperimentSpec:
    """Return the audit under a slug that ends in a hash of all that it is made of.

    So the same audit is found again, and after an edit of a skill, of a task or
    of anything else a new one stands beside it.
    """
    content = sha256_of([spec.to_json(), library.sha256, [p.sha256 for p in partitions]])
    return replace(spec, slug=f"audit-{library.slug}-{content[:6]}")


def skill_lines(experiment: Experiment) -> list[SkillLine]:
    """Return every skill of the experiment's libraries with what came of its pairs, by slug."""
    versions: dict[str, SkillVersion] = {}
    pairs: list[PairRecord] = []
    for cell in cells_of(experiment):
        pairs += cell_record(cell).pairs
        if cell.library:
            versions |= {v.skill.slug: v for v in versions_of(cell.library.sha256)}
    return [
        SkillLine(exposure, tuple(versions[exposure.skill].companions))
        for exposure in exposures(pairs=pairs, skills=versions)
        if exposure.skill in versions
    ]


def skill_table(lines: Iterable[SkillLine]) -> str:
    """Return the per-skill lines as a text table."""
    rows = [["skill", "returned", "alone", "shared", "won", "lost", "companion files, not given"]]
    for line in lines:
        e = line.exposure
        counts = (e.returned, e.alone, e.shared, e.won, e.lost)
        rows.append([e.skill, *map(str, counts), ", ".join(line.companions) or "-"])
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    shown = []
    for name, *counts_shown, files in rows:
        cells = [n.rjust(width) for n, width in zip(counts_shown, widths[1:], strict=True)]
        shown.append("  ".join([name.ljust(widths[0]), *cells, files]))
    return "\n".join(shown)
