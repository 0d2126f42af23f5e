"""Skills, their immutable versions and the frozen libraries made of them."""

from __future__ import annotations

from django.db import models

from skills.domain.skillfile import SkillType
from workbench.kernel.evidence import EvidenceModel


class Status(models.TextChoices):
    """Where a skill stands in its life."""

    CANDIDATE = "candidate"
    ACTIVE = "active"
    RESTRICTED = "restricted"
    QUARANTINED = "quarantined"
    RETIRED = "retired"


class Validity(models.TextChoices):
    """Whether a skill's preconditions hold."""

    VALID = "valid"
    UNKNOWN = "unknown"
    INVALID = "invalid"


class Skill(models.Model):
    """A stable slug under which versions of one skill follow each other."""

    slug = models.SlugField(max_length=100, unique=True, allow_unicode=True)
    status = models.CharField(max_length=12, choices=Status.choices, default=Status.CANDIDATE)
    validity = models.CharField(max_length=8, choices=Validity.choices, default=Validity.UNKNOWN)
    revision = models.PositiveIntegerField(default=0, help_text="compare-and-swap counter")

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=Status.values), name="skill_status_known"
            ),
            models.CheckConstraint(
                condition=models.Q(validity__in=Validity.values), name="skill_validity_known"
            ),
        ]


class SkillVersion(EvidenceModel):
    """One immutable text of a skill, as the model is given it."""

    skill = models.ForeignKey(Skill, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    name = models.CharField(max_length=200)
    description = models.TextField()
    type = models.CharField(max_length=10)
    body = models.TextField()
    sha256 = models.CharField(max_length=64)
    companions = models.JSONField(
        default=list, help_text="names of files beside SKILL.md, which the model is not given"
    )
    problems = models.JSONField(default=list, help_text="what was recovered when it was read")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["skill", "number"], name="skillversion_number"),
            models.UniqueConstraint(fields=["skill", "sha256"], name="skillversion_content"),
            models.CheckConstraint(
                condition=models.Q(type__in=[t.value for t in SkillType]),
                name="skillversion_type_known",
            ),
        ]


class Library(EvidenceModel):
    """A frozen set of skill versions; the newest number of a slug is the current one."""

    slug = models.SlugField(max_length=100)
    number = models.PositiveIntegerField()
    sha256 = models.CharField(max_length=64, help_text="of the sorted hashes of its versions")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["slug", "number"], name="library_number"),
            models.UniqueConstraint(fields=["slug", "sha256"], name="library_content"),
        ]


class LibraryEntry(EvidenceModel):
    """One skill version in a library."""

    library = models.ForeignKey(Library, on_delete=models.PROTECT, related_name="entries")
    skill_version = models.ForeignKey(
        SkillVersion, on_delete=models.PROTECT, related_name="entries"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["library", "skill_version"], name="libraryentry_once"),
        ]
