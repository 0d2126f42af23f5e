"""Reading experiment files: what unfolds, and what is refused with its line."""

from __future__ import annotations

import pytest

from runs.domain.plan import (
    ArmSpec,
    CellSpec,
    InvalidExperiment,
    ModelSpec,
    arm_from_json,
    from_json,
    named_in,
    parse_experiment,
)

GOOD = """\
schema = 1
slug = "first-look"
seed = 7
replicates = 2

[budget]
calls = 100

[[model]]
id = "small"
base_url = "http://localhost:8080/v1"
price_in = 0.5

[[benchmark]]
suite = "starter"
partition = { size = 24, seed = 43 }

[[cell]]
library = "coding"
control = ["normal", "schema_empty"]
k = [1, 3]
"""


def problems_of(text: str) -> list[tuple[int | None, str]]:
    with pytest.raises(InvalidExperiment) as caught:
        parse_experiment(text, path="plan.toml")
    return [(problem.line, problem.message) for problem in caught.value.problems]


def test_lists_unfold_to_their_product() -> None:
    spec = parse_experiment(GOOD, path="plan.toml")
    # 2 controls x 2 depths
    assert [(cell.control, cell.k) for cell in spec.cells] == [
        ("normal", 1),
        ("normal", 3),
        ("schema_empty", 1),
        ("schema_empty", 3),
    ]
    assert spec.benchmarks[0].size == 24
    assert spec.models[0].endpoint == "http://localhost:8080/v1"
    assert spec.budget.calls == 100
    assert spec.failure_policy == "censor"


def test_the_paper_preset_counts_failed_calls_as_wrong_unless_told_otherwise() -> None:
    paper = GOOD.replace("seed = 7", 'preset = "paper"')
    assert parse_experiment(paper, path="p").failure_policy == "incorrect"
    told = paper.replace("replicates", 'failure_policy = "censor"\nreplicates')
    assert parse_experiment(told, path="p").failure_policy == "censor"


def test_a_spec_survives_storage() -> None:
    spec = parse_experiment(GOOD + 'types = ["guard"]\n', path="p")
    assert from_json(spec.to_json()) == spec


def test_types_filter_or_product_of_filters() -> None:
    one = parse_experiment(GOOD + 'types = ["utility", "guard"]\n', path="p")
    assert {cell.types for cell in one.cells} == {("guard", "utility")}
    two = parse_experiment(GOOD + 'types = [["utility"], ["guard"]]\n', path="p")
    assert {cell.types for cell in two.cells} == {("utility",), ("guard",)}


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("seed = 7", "sead = 7"), 3, "unknown key 'sead'"),
        (("price_in", "prize_in"), 12, "unknown key 'prize_in'"),
        (("k = [1, 3]", "k = [1, 0]"), 21, "at least 1"),
        (("k = [1, 3]", 'k = "3"'), 21, "a whole number"),
        (("k = [1, 3]", "k = true"), 21, "a whole number"),
        (('"normal", "schema_empty"', '"filler_dummy"'), 20, "not built yet"),
        (('"normal", "schema_empty"', '"nonsense"'), 20, "must be one of"),
        (("size = 24", "size = 0"), 16, "at least 1"),
        (("size = 24", "sice = 24"), 16, "unknown key 'sice'"),
        (("calls = 100", "calls = 1.5"), 7, "a whole number"),
        (("calls = 100", "cost = 2"), 7, "needs price_in and price_out of every model"),
        (('slug = "first-look"', 'slug = "First look"'), 2, "slug must be"),
        (('library = "coding"\n', ""), 18, "needs the key 'library'"),
        (('id = "small"\n', ""), 9, "needs the key 'id'"),
        (("schema = 1", "schema = 2"), 1, "at most 1"),
        (("[[model]]", "[model]"), 9, "at least one [[model]]"),
        (("seed = 7", "seed = "), 3, "not valid TOML"),
        (("k = [1, 3]", 'skills = ["a"]'), 21, "not built yet"),
        *(
            (("[[model]]", f"[analysis]\n{key} = 9\n[[model]]"), 10, f"'{key}' belongs to cell")
            for key in ("family", "threshold", "delta")
        ),
    ],
)
def test_each_fault_is_named_with_its_line(change: tuple[str, str], line: int, words: str) -> None:
    assert change[0] in GOOD
    found = problems_of(GOOD.replace(*change))
    assert any(at == line and words in message for at, message in found), found


def test_all_faults_are_told_at_once() -> None:
    found = problems_of(GOOD.replace("seed = 7", "sead = 7").replace("size = 24", "size = 0"))
    assert [line for line, _ in found] == [3, 16]


def test_a_fault_in_the_second_table_has_the_second_line() -> None:
    text = GOOD + '\n[[cell]]\nlibrary = "coding"\nk = 0\n'
    assert [line for line, _ in problems_of(text)] == [25]


def test_names_are_found_with_their_lines() -> None:
    text = GOOD + '\n[[cell]]\nk = 2\nlibrary = ["maths", "mine"]\n'
    # GOOD has 21 lines; then come a blank one, the header, k and the library.
    assert named_in(text, table="cell", key="library") == [
        ("coding", 19),
        ("maths", 25),
        ("mine", 25),
    ]
    assert named_in(text, table="benchmark", key="suite") == [("starter", 15)]


def test_a_table_that_repeats_another_is_refused() -> None:
    text = GOOD + '\n[[benchmark]]\nsuite = "starter"\npartition = { size = 24, seed = 43 }\n'
    assert problems_of(text) == [(23, "this [[benchmark]] repeats an earlier one; remove it")]


def test_missing_tables_are_named() -> None:
    messages = [message for _, message in problems_of('schema = 1\nslug = "a"\n')]
    assert [m.split(" table")[0] for m in messages] == [
        "at least one [[model]]",
        "at least one [[benchmark]]",
        "at least one [[cell]]",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@host.example/v1",
        "https://secret@pw@host.example/v1",
        "https://host.example/v1?api-key=secret",
        "https://host.example/v1#key=secret",
        "https://host.example/v1;key=secret",
    ],
)
def test_a_url_that_holds_a_secret_is_refused_and_never_shown(url: str) -> None:
    found = problems_of(GOOD.replace("http://localhost:8080/v1", url))
    assert found[0][0] == 11
    assert "api_key_env" in found[0][1]
    assert "secret" not in found[0][1]
    assert "secret" not in ModelSpec(id="m", base_url=url).endpoint.partition(";")[0]


def test_an_arm_without_a_library_exposes_nothing() -> None:
    arm = ArmSpec(
        model="m",
        endpoint="e",
        dialect="native",
        benchmark="b",
        benchmark_sha256="0",
        partition_sha256="0",
        prompt_sha256="0",
        temperature=0.7,
        max_tokens=10,
        strategy="direct",
    )
    assert not arm.exposed
    assert arm_from_json(arm.to_json()) == arm


def test_equal_cells_are_planned_once() -> None:
    spec = parse_experiment(GOOD.replace("k = [1, 3]", "k = [3, 3]"), path="p")
    assert spec.cells == (
        CellSpec(library="coding", control="normal"),
        CellSpec(library="coding", control="schema_empty"),
    )
