"""The form of an experiment draft as its page shows it: fields, choices, what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runs.domain.drafts import (
    GROUPS,
    MOST_GROUPS,
    TOP,
    DraftForm,
    EndpointChoice,
    FieldFault,
    Group,
    empty_group,
    first_of,
)
from runs.domain.plan import (
    CONTROLS,
    DIALECTS,
    EMBEDDED,
    FAILURE_POLICY_OF,
    RETRIEVERS,
    SKILL_TYPES,
    Problem,
)
from runs.services.offering import LibraryChoice, SuiteChoice
from workbench.kernel.forms import Fault
from workbench.kernel.versions import split_version

_WORDS = {
    "slug": "Name",
    "preset": "Preset",
    "replicates": "Runs of each task per arm",
    "seed": "Seed",
    "failure_policy": "A failed model call",
    "calls": "Calls",
    "tokens": "Tokens",
    "cost": "Cost",
    "endpoint": "Endpoint",
    "id": "Model name",
    "dialect": "Tool calls",
    "price_in": "Price of tokens in",
    "price_out": "Price of tokens out",
    "timeout_s": "Longest wait for a reply",
    "requests_per_minute": "Requests per minute",
    "suite": "Suite",
    "size": "Tasks",
    "library": "Library",
    "control": "Control",
    "types": "Types of skill",
    "k": "Skills per search",
    "retriever": "Retriever",
    "max_searches": "Searches per run",
    "temperature": "Temperature",
    "max_tokens": "Tokens per reply",
}
_HINTS = {
    "slug": "Words of a-z and 0-9 joined by hyphens; the page's address.",
    "replicates": "1 unless you want to see how much runs of the same task differ.",
    "seed": "Decides the order of the pairs and the seeds sent to the model.",
    "calls": "Empty: no cap.",
    "tokens": "In and out together. Empty: no cap.",
    "cost": "In the currency of the prices, which every model then needs.",
    "id": "As the endpoint calls it.",
    "price_in": "Per million. Empty: as configured.",
    "price_out": "Per million. Empty: as configured.",
    "timeout_s": "Seconds. Empty: as configured, or 120.",
    "requests_per_minute": "Of all workers together. Empty: as configured.",
    "size": "How many, chosen by the seed. Empty: all of them.",
    "types": "None ticked: every type.",
    "k": "Several, with commas between: a cell for each.",
    "max_searches": "At most so many. Several, with commas: a cell for each.",
    "temperature": "0 to 2. Several, with commas: a cell for each.",
    "max_tokens": "At most so many. Several, with commas: a cell for each.",
    "control": "What the search tool returns; both: a cell for each.",
}
_CONTROLS = {
    "normal": "normal: the skills that match",
    "schema_empty": "schema_empty: nothing, though the tool is there",
}
_POLICIES = {"censor": "leaves its pair out", "incorrect": "counts as a wrong answer"}
# What to do where a needed field was left empty.
_EMPTY = {
    "endpoint": "choose one of the endpoints",
    "id": "type it as the endpoint calls it",
    "suite": "choose one of the suites",
    "library": "choose one of the libraries",
}
_TITLES = {"model": "Model", "benchmark": "Benchmark", "cell": "Cell"}
_RARE = {
    "": ("preset", "replicates", "seed", "failure_policy"),
    "model": ("dialect", "price_in", "price_out", "timeout_s", "requests_per_minute"),
    "benchmark": ("seed",),
    "cell": ("types", "retriever", "max_searches", "temperature", "max_tokens"),
}
_NUMERIC = ("replicates", "seed", "calls", "tokens", "size", "requests_per_minute")


@dataclass(frozen=True)
class Offer:
    """What can be chosen."""

    endpoints: tuple[EndpointChoice, ...]
    suites: tuple[SuiteChoice, ...]
    libraries: tuple[LibraryChoice, ...]


@dataclass(frozen=True)
class Choice:
    """One option of a list or one box to tick."""

    value: str
    label: str
    chosen: bool


@dataclass(frozen=True)
class FieldView:
    """One control; ``kind`` is text, select or checks, ``name`` also its id."""

    name: str
    label: str
    kind: str
    value: str
    hint: str
    help_id: str
    numeric: bool
    suggestions: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True)
class GroupView:
    """The fields of one model, benchmark or cell; ``rare`` ones are folded away."""

    key: str
    title: str
    fields: tuple[FieldView, ...]
    rare: tuple[FieldView, ...]
    open: bool
    removable: bool


@dataclass(frozen=True)
class SectionView:
    """All groups of one name, and whether another one may be added."""

    name: str
    title: str
    groups: tuple[GroupView, ...]
    count: int
    may_add: bool


@dataclass(frozen=True)
class FormView:
    """The whole form.

    Attributes:
        models: names of configured models, which the field suggests.
        rare_open: whether what is folded away of the top holds a fault.
    """

    top: tuple[FieldView, ...]
    rare: tuple[FieldView, ...]
    rare_open: bool
    budget: tuple[FieldView, ...]
    sections: tuple[SectionView, ...]
    models: tuple[str, ...]


def new_form(offer: Offer) -> DraftForm:
    """Return what a new form begins with: the first of what there is to choose."""
    first = offer.endpoints[0] if offer.endpoints else None
    model = dict(empty_group("model"))
    if first:
        model["endpoint"] = (first.name,)
        model["id"] = (first.models[0].id,) if first.models else ()
    small = first is not None and first.base_url == EMBEDDED
    return DraftForm(
        top={"preset": ("default",), "replicates": ("1",), "seed": ("42",)},
        models=(model,),
        benchmarks=(empty_group("benchmark"),),
        cells=(empty_group("cell", small=small),),
    )


def changed_groups(form: DraftForm, asked: str) -> DraftForm:
    """Return the form after a press on an add or remove button; others change nothing."""
    verb, _, rest = asked.partition("-")
    name, _, number = rest.partition("-")
    if name not in GROUPS:
        return form
    groups = list(form.groups(name))
    if verb == "add" and len(groups) < MOST_GROUPS:
        # The new one begins like the last: mostly one thing differs.
        groups.append(groups[-1] if name == "cell" else empty_group(name))
    if verb == "remove" and number.isascii() and number.isdigit() and len(groups) > 1:
        groups = [group for n, group in enumerate(groups) if n != int(number[:3])]
    return form.having(name, groups)


def faults_of(
    faults: Sequence[FieldFault], problems: Sequence[Problem], fields: Mapping[int, str]
) -> tuple[Fault, ...]:
    """Return what is wrong by field: what couldn't be written, then what the file's check says."""
    found = [Fault(fault.name, fault.message) for fault in faults]
    told = {fault.name for fault in faults}
    for problem in problems:
        name = fields.get(problem.line or 0, "slug")
        if name in told:  # it follows from what is told already
            continue
        told.add(name)
        empty = _EMPTY.get(name.rpartition("-")[2]) if "is blank" in problem.message else None
        found.append(Fault(name, empty or problem.message))
    return tuple(
        Fault(fault.field, f"{_where(fault.field)}: {fault.text}")
        for fault in sorted(dict.fromkeys(found), key=lambda fault: _place(fault.field))
    )


def _place(name: str) -> tuple[int, int, int]:
    """Return where a field stands in the form, for sorting."""
    if name in TOP:
        return 0, 0, TOP.index(name)
    group, _, rest = name.partition("-")
    if group in GROUPS:
        number, _, key = rest.partition("-")
        return 1 + list(GROUPS).index(group), int(number), GROUPS[group].index(key)
    return 9, 0, 0


def form_view(form: DraftForm, offer: Offer, *, faults: Sequence[Fault]) -> FormView:
    """Return the form for its page."""
    wrong = {fault.field for fault in faults}
    top = [_field(name, name, form.top, offer) for name in ("slug", *_RARE[""])]
    return FormView(
        top=tuple(top[:1]),
        rare=tuple(top[1:]),
        rare_open=bool(wrong & set(_RARE[""])),
        budget=tuple(_field(name, name, form.top, offer) for name in ("calls", "tokens", "cost")),
        sections=tuple(_section(name, form, offer, wrong) for name in GROUPS),
        models=tuple(dict.fromkeys(model.id for one in offer.endpoints for model in one.models)),
    )


def _section(name: str, form: DraftForm, offer: Offer, wrong: set[str]) -> SectionView:
    groups = form.groups(name)
    views = []
    for number, group in enumerate(groups):
        key = f"{name}-{number}"
        fields = [_field(f"{key}-{one}", one, group, offer) for one in GROUPS[name]]
        rare = [field for field in fields if field.name.removeprefix(f"{key}-") in _RARE[name]]
        views.append(
            GroupView(
                key=key,
                title=f"{_TITLES[name]} {number + 1}" if len(groups) > 1 else _TITLES[name],
                fields=tuple(field for field in fields if field not in rare),
                rare=tuple(rare),
                open=any(field.name in wrong for field in rare),
                removable=len(groups) > 1,
            )
        )
    return SectionView(
        name=name,
        title=f"{_TITLES[name]}s",
        groups=tuple(views),
        count=len(groups),
        may_add=len(groups) < MOST_GROUPS,
    )


def _field(name: str, key: str, group: Group, offer: Offer) -> FieldView:
    label = _WORDS[key]
    if name.startswith("benchmark-") and key == "seed":
        label = "Seed of the choice"
    choices = tuple(_choices(key, group.get(key, ()), offer))
    several = key in ("control", "types")
    hint = "" if name.startswith("benchmark-") and key != "size" else _HINTS.get(key, "")
    return FieldView(
        name=name,
        label=label,
        kind="checks" if several else "select" if choices else "text",
        value=first_of(group, key),
        hint=hint,
        help_id=f"{name}-help" if hint else "",
        numeric=key in _NUMERIC,
        suggestions="known-models" if key == "id" else "",
        choices=choices,
    )


def _choices(key: str, chosen: Sequence[str], offer: Offer) -> Iterator[Choice]:
    given = [value for value in chosen if value]
    options = list(_options(key, offer))
    known = [value for value, _ in options]
    for value, label in options:
        yield Choice(value, label, value in given or (value == "" and not given))
    if options:
        for value in given:
            if value not in known:  # kept as it was typed, so that its fault can be told
                numbered = key in ("suite", "library") and split_version(value)[1] is not None
                yield Choice(value, value if numbered else f"{value} (not here)", True)


def _options(key: str, offer: Offer) -> Iterator[tuple[str, str]]:
    if key == "endpoint":
        yield "", "Choose one"
        for endpoint in offer.endpoints:
            models = len(endpoint.models)
            what = "any model" if not models else f"{models} model{'s' * (models > 1)}"
            yield endpoint.name, f"{endpoint.name} ({what})"
    elif key == "suite":
        yield "", "Choose one"
        for suite in offer.suites:
            yield suite.name, f"{suite.name} ({suite.tasks:,} task{'s' * (suite.tasks != 1)})"
    elif key == "library":
        yield "", "Choose one"
        for library in offer.libraries:
            held = f", {library.quarantined} quarantined" if library.quarantined else ""
            skills = f"{library.skills:,} skill{'s' * (library.skills != 1)}"
            yield library.name, f"{library.name} ({skills}{held})"
    elif key == "dialect":
        yield "", "as configured"
        yield from ((value, value) for value in DIALECTS)
    elif key == "preset":
        yield from ((value, value) for value in reversed(FAILURE_POLICY_OF))
    elif key == "failure_policy":
        yield "", "as the preset has it"
        yield from _POLICIES.items()
    elif key == "control":
        yield from ((value, _CONTROLS[value]) for value in CONTROLS)
    elif key == "types":
        yield from ((value, value) for value in SKILL_TYPES)
    elif key == "retriever":
        yield from ((value, value) for value in RETRIEVERS)


def _where(name: str) -> str:
    """Return how a field is called in the summary of faults."""
    group, _, rest = name.partition("-")
    if group not in GROUPS:
        return _WORDS.get(name, "The form")
    number, _, key = rest.partition("-")
    return f"{_TITLES[group]} {int(number) + 1}, {_WORDS[key].lower()}"
