"""Real SKILL.md files that no one here wrote: each is read, or refused with a reason."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from skills.domain.retrieval import Bm25, Document, searchable_text
from skills.domain.skillfile import InvalidSkill, ParsedSkill, parse_skill, render_skill
from tests.shared import SHARED, needs_shared

# Files and what comes of them: (clean, recovered, refused).
COLLECTIONS = {
    "anthropics_apache_skills.jsonl": (12, 0, 0),
    "dotnet_mit_skills.jsonl": (31, 0, 0),
}


def texts(name: str) -> list[dict[str, str]]:
    lines = (SHARED / "data" / "skills" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def read(name: str) -> tuple[list[ParsedSkill], list[InvalidSkill]]:
    skills, invalid = [], []
    for row in texts(name):
        try:
            skills.append(parse_skill(row["text"].encode(), path=row["path"]))
        except InvalidSkill as error:
            invalid.append(error)
    return skills, invalid


@needs_shared
@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_real_skill_is_read_or_refused_with_a_reason(name: str) -> None:
    skills, invalid = read(name)
    recovered = sum(bool(skill.problems) for skill in skills)
    assert (len(skills) - recovered, recovered, len(invalid)) == COLLECTIONS[name]
    assert all(error.reason and error.fix for error in invalid)


@needs_shared
@pytest.mark.parametrize("name", COLLECTIONS)
def test_no_text_of_a_real_skill_is_lost(name: str) -> None:
    skills, _ = read(name)
    for row, skill in zip(texts(name), skills, strict=True):
        assert skill.name == row["skill_id"]
        # The body reaches to the last line of the file.
        assert row["text"].rstrip().endswith(skill.body)
        assert row["text"].count("\n---\n") == skill.body.count("\n---\n") + 1
        again = parse_skill(
            render_skill(
                name=skill.name,
                description=skill.description,
                type=skill.type,
                body=skill.body,
                metadata=skill.metadata,
            ).encode(),
            path=skill.path,
        )
        assert again == skill


@needs_shared
@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_real_description_finds_its_skill(name: str) -> None:
    skills, _ = read(name)
    library = Bm25(
        Document(
            id=skill.slug,
            name=skill.name,
            text=searchable_text(description=skill.description, body=skill.body),
            type=skill.type,
        )
        for skill in skills
    )
    ranks = Counter(
        next(hit.rank for hit in library.search(s.description, k=len(skills)) if hit.id == s.slug)
        for s in skills
    )
    assert ranks[1] / len(skills) >= 0.9
