"""Whether what an experiment file names is there, told by the file's lines."""

from __future__ import annotations

from pathlib import Path

from runs.domain.plan import InvalidExperiment, Problem, named_in
from runs.domain.suites import SUITE_NAMES
from runs.services.preparing import POOLS
from runs.services.tasks import UnknownSource
from skills.services.libraries import LibraryMissing, LibraryQuarantined, current_library


def check_names(*, text: str, path: str) -> None:
    """Refuse an experiment file that names a suite or a library that isn't there.

    Args:
        text: what ``parse_experiment`` has accepted.
        path: what the messages call the file.

    Raises:
        InvalidExperiment: naming each place by line, and its fix.
    """
    problems = [
        Problem(line, str(UnknownSource(source)))
        for source, line in named_in(text, table="benchmark", key="suite")
        if source not in SUITE_NAMES and not Path(source).exists()
    ]
    for slug, line in named_in(text, table="cell", key="library"):
        if slug in POOLS:  # imported when the experiment is prepared
            continue
        try:
            current_library(slug)
        except (LibraryMissing, LibraryQuarantined) as error:
            problems.append(Problem(line, str(error)))
    if problems:
        raise InvalidExperiment(path, sorted(problems, key=lambda p: p.line or 0))
