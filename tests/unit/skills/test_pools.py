"""The two pools that ship: their form, their self-tests, and that search finds them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import skills
from skills.domain.retrieval import Bm25, Document, searchable_text
from skills.domain.skillfile import LoadedLibrary, ParsedSkill, SkillType, load_library

POOLS = Path(skills.__file__).parent / "pools"
# Skill Following, tables 20 and 21.
NAMES = {
    "coding": [
        "binary-search-boundary",
        "counting-hash",
        "dfs-iterative",
        "edge-case-guard",
        "knapsack-01-dp",
        "prefix-sum",
        "rotate-left",
        "sliding-window-longest",
        "two-pointer-pair-sum",
    ],
    "maths": [
        "algebraic-substitution",
        "case-analysis",
        "check-by-substitution",
        "coordinate-distance",
        "factor-then-solve",
        "modular-arithmetic",
        "sequence-formulae",
        "systematic-enumeration",
    ],
}
LIBRARIES: dict[str, LoadedLibrary] = {pool: load_library([POOLS / pool]) for pool in NAMES}
SKILLS = {skill.slug: skill for library in LIBRARIES.values() for skill in library.skills}

each_skill = pytest.mark.parametrize("slug", SKILLS)


def blocks(skill: ParsedSkill) -> dict[str, str]:
    """Return the text of each section of ``skill`` by its heading."""
    parts = re.split(r"^## (.+)\n", skill.body, flags=re.M)
    assert parts[0] == "", "text before the first heading"
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def python(section: str) -> str:
    (source,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    return str(source)


def run(code: str, self_tests: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\n{self_tests}"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


@pytest.mark.parametrize("pool", NAMES)
def test_a_pool_holds_the_skills_of_the_paper_and_nothing_else(pool: str) -> None:
    library = LIBRARIES[pool]
    assert [skill.name for skill in library.skills] == NAMES[pool]
    assert library.invalid == ()
    assert library.clashes == ()
    for skill in library.skills:
        assert skill.problems == ()
        assert skill.companions == ()
        assert Path(skill.path).parent.name == skill.slug == skill.name


@each_skill
def test_a_skill_has_its_sections_and_a_signature_of_its_code(slug: str) -> None:
    skill = SKILLS[slug]
    sections = blocks(skill)
    assert list(sections) == ["Application conditions", "Code", "Invariants", "Self-tests"]
    assert "Use " in sections["Application conditions"]
    assert "Not " in sections["Application conditions"]
    assert sections["Invariants"].startswith("- ")
    assert skill.signature is not None
    function = skill.signature.partition("(")[0]
    assert f"def {function}(" in python(sections["Code"])


def test_every_type_is_there_in_both_pools() -> None:
    for library in LIBRARIES.values():
        assert {skill.type for skill in library.skills} == set(SkillType)


@each_skill
def test_a_skill_is_short(slug: str) -> None:
    # A small model reads three of them. Bodies of 1,150 characters came to
    # 234 to 341 tokens with SmolLM2's tokeniser.
    assert len(SKILLS[slug].body) <= 1150


@each_skill
def test_self_tests_pass(slug: str) -> None:
    sections = blocks(SKILLS[slug])
    result = run(python(sections["Code"]), python(sections["Self-tests"]))
    assert result.returncode == 0, result.stderr


# One plausible slip a skill: (what stands in the code, what a careless copy has).
SLIPS = {
    "binary-search-boundary": ("low = mid + 1", "low = mid + 2"),
    "counting-hash": (".get(item, 0) + 1", ".get(item, 1) + 1"),
    "dfs-iterative": ("seen.add(node)", "pass"),
    "edge-case-guard": ("not values or len(values) < 2", "False"),
    "knapsack-01-dp": ("range(capacity, weight - 1, -1)", "range(weight, capacity + 1)"),
    "prefix-sum": ("totals = [0]", "totals = [values[0]]"),
    "rotate-left": ("k %= len(items)", "pass"),
    "sliding-window-longest": ("right - left + 1", "right - left"),
    "two-pointer-pair-sum": ("< abs(sum(best)", "> abs(sum(best)"),
    "algebraic-substitution": ("result * x + coefficient", "result * (x + coefficient)"),
    "case-analysis": (" if holds(x)", ""),
    "check-by-substitution": ("all(", "any("),
    "coordinate-distance": (" if run else None", ""),
    "factor-then-solve": ("Fraction(-p, a)", "Fraction(p, a)"),
    "modular-arithmetic": ("result = 1 % modulus", "result = 1"),
    "sequence-formulae": ("(n - 1) * step", "n * step"),
    "systematic-enumeration": (" if ok(*choice)", ""),
}


@each_skill
def test_self_tests_catch_a_slip(slug: str) -> None:
    sections = blocks(SKILLS[slug])
    right, wrong = SLIPS[slug]
    code = python(sections["Code"])
    assert code.count(right) == 1
    slipped = code.replace(right, wrong)
    assert run(slipped, "").returncode == 0, "the slip must be one that Python accepts"
    assert run(slipped, python(sections["Self-tests"])).returncode != 0


@pytest.mark.parametrize(
    ("pool", "query", "slug"),
    [
        ("coding", "find the insert position in a sorted array", "binary-search-boundary"),
        ("coding", "check whether two words are anagrams", "counting-hash"),
        ("coding", "number of connected components in a graph", "dfs-iterative"),
        ("coding", "handle empty list or None input", "edge-case-guard"),
        ("coding", "choose items with maximum value under a capacity", "knapsack-01-dp"),
        ("coding", "many range sum queries", "prefix-sum"),
        ("coding", "rotate list by k positions", "rotate-left"),
        ("coding", "longest substring with no repeats", "sliding-window-longest"),
        ("coding", "two numbers that add up to a target", "two-pointer-pair-sum"),
        ("maths", "evaluate an expression for given values", "algebraic-substitution"),
        ("maths", "absolute value equation cases", "case-analysis"),
        ("maths", "extraneous roots after squaring", "check-by-substitution"),
        ("maths", "distance between two points", "coordinate-distance"),
        ("maths", "solve a quadratic equation", "factor-then-solve"),
        ("maths", "units digit of a large power", "modular-arithmetic"),
        ("maths", "sum of an arithmetic sequence", "sequence-formulae"),
        ("maths", "count the pairs of dice with a given product", "systematic-enumeration"),
    ],
)
def test_a_plain_question_finds_its_skill_first(pool: str, query: str, slug: str) -> None:
    library = [
        Document(
            id=skill.slug,
            name=skill.name,
            text=searchable_text(description=skill.description, body=skill.body),
            type=skill.type,
        )
        for skill in LIBRARIES[pool].skills
    ]
    assert Bm25(library).search(query, k=3)[0].id == slug
