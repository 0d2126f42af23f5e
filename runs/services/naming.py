"""Whether what an experiment file names is there and may be used, told by the file's lines.

A file of the command line is trusted: it stands where the operator stands. One that came by web
or API may name only what is configured or stored here, or it could send the workbench's keys to
an address of its author's, or read files.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from runs.domain.drafts import EndpointChoice
from runs.domain.filetext import MOST_PROBLEMS, read_toml
from runs.domain.plan import InvalidExperiment, ModelSpec, Problem, line_of, named_in
from runs.domain.suites import SUITE_NAMES
from runs.services.offering import endpoint_choices, library_choices, suite_choices
from runs.services.preparing import POOLS
from runs.services.tasks import UnknownSource
from skills.services.libraries import (
    LibraryMissing,
    LibraryQuarantined,
    VersionMissing,
    library_named,
)
from workbench.llm.endpoints import OPENAI, OPENAI_KEY, InvalidEndpoints, plain_url


def check_names(*, text: str, path: str, trusted: bool = True) -> None:
    """Refuse an experiment file that names a suite or a library that isn't there.

    Args:
        text: what ``parse_experiment`` has accepted.
        path: what the messages call the file.
        trusted: False for what came by web: then files and addresses that aren't configured
            are refused as well.

    Raises:
        InvalidExperiment: naming each place by line, and its fix.
    """
    named = [_suites(text, trusted=trusted), _libraries(text, trusted=trusted)]
    if not trusted:
        named.append(_endpoints(text))
    problems = list(islice(chain.from_iterable(named), MOST_PROBLEMS))
    if problems:
        raise InvalidExperiment(path, sorted(problems, key=lambda p: p.line or 0))


def configured_models() -> tuple[ModelSpec, ...]:
    """Return the models of the configured endpoints; none while their file has a problem."""
    try:
        return tuple(model for choice in endpoint_choices() for model in choice.models)
    except InvalidEndpoints:
        return ()  # check_names tells it


def _suites(text: str, *, trusted: bool) -> Iterator[Problem]:
    named = named_in(text, table="benchmark", key="suite")
    here = {one.name for one in suite_choices({source for source, _ in named})}
    if trusted:  # one whose package is missing is told by name when it is loaded
        here |= set(SUITE_NAMES)
    known = ""
    for source, line in named:
        if source in here:
            continue
        if not trusted:
            known = known or ", ".join(one.name for one in suite_choices())
            yield Problem(
                line,
                f"there is no suite {source!r} here; upload the tasks first, or choose one of "
                f"{known}",
            )
        elif not Path(source).exists():
            yield Problem(line, str(UnknownSource(source)))


def _libraries(text: str, *, trusted: bool) -> Iterator[Problem]:
    found: set[str] = set()
    known = ""
    for slug, line in named_in(text, table="cell", key="library"):
        if slug in POOLS or slug in found:  # pools are imported when the experiment is prepared
            continue
        try:
            library_named(slug)
            found.add(slug)
        except LibraryMissing as error:
            known = known or ", ".join(one.name for one in library_choices())
            here = f"there is no library '{slug}' here; upload it first, or choose one of {known}"
            own = trusted or isinstance(error, VersionMissing)
            yield Problem(line, str(error) if own else here)
        except LibraryQuarantined as error:
            yield Problem(line, str(error))


def _endpoints(text: str) -> Iterator[Problem]:
    try:
        choices = endpoint_choices()
    except InvalidEndpoints as error:
        yield Problem(
            None,
            f"the workbench's endpoints can't be read, so nothing can start: {error}",
        )
        return
    by_url = {plain_url(choice.base_url): choice for choice in choices}
    for index, model in enumerate(read_toml(text)["model"]):
        choice = by_url.get(plain_url(model["base_url"]))
        if choice is None:
            offered = ", ".join(f"{one.name} ({one.base_url})" for one in choices)
            yield Problem(
                line_of(text, table="model", index=index, key="base_url"),
                f"base_url {model['base_url']!r} is none of the configured endpoints: "
                f"{offered or 'there are none yet'}. Whoever runs the workbench adds endpoints",
            )
            continue
        for key, fault in _faults_at(choice, model):
            line = line_of(text, table="model", index=index, key=key)
            yield Problem(line or line_of(text, table="model", index=index), fault)


def _faults_at(choice: EndpointChoice, model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield by key what a model entry may not say of its endpoint."""
    given, wanted = model.get("api_key_env"), choice.api_key_env
    # Where the web server has no keys it can't tell whether this one is used.
    either = choice.name == OPENAI and given in (None, OPENAI_KEY)
    if given != wanted and not either:
        fix = f'write api_key_env = "{wanted}"' if wanted else "remove api_key_env"
        # Any other variable's value would be sent to the endpoint as if it were a key.
        fault = "uses another key;" if given else "needs its key named:"
        yield "api_key_env", f"the endpoint {choice.name} {fault} {fix}"
    if not choice.models:
        return
    known = {one.id: one for one in choice.models}
    configured = known.get(model["id"])
    if configured is None:
        yield (
            "id",
            f"the endpoint {choice.name} offers no {model['id']!r}; it offers: " + ", ".join(known),
        )
        return
    most = configured.requests_per_minute
    if most and (model.get("requests_per_minute") or 0) > most:
        yield (
            "requests_per_minute",
            f"the endpoint {choice.name} takes no more; write requests_per_minute = {most}",
        )
