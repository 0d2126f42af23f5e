"""Drafts of experiments as JSON: write, check, estimate and start them; and what may be named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from django.http import Http404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from runs.addressed import draft_or_404
from runs.models import ExperimentDraft
from runs.selectors import drafts_for_list
from runs.services.drafting import (
    LARGEST_BYTES,
    DraftChanged,
    DraftCheck,
    DraftMissing,
    UnreadableFile,
    check_draft,
    clone_draft,
    create_draft,
    discard_draft,
    file_of_values,
    file_text,
    save_draft,
)
from runs.services.launching import (
    DraftBusy,
    DraftNotReady,
    estimate_of,
    is_outdated,
    request_estimate,
    request_start,
)
from workbench.jobviews import StateField, state_of
from workbench.kernel.api import Conflict, NoParameters, checked_query
from workbench.kernel.lists import Listing
from workbench.llm.endpoints import InvalidEndpoints, configured_endpoints
from workbench.models import Job
from workbench.rest import Endpoint, checked_body, listed
from workbench.schema import listing_schema

DRAFTS = Listing(
    sorts={"updated": "updated_at", "created": "created_at", "slug": "slug"},
    default_sort="-updated",
)


class FileField(serializers.CharField):
    """An experiment file as text; its line ends and blanks are kept."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, max_length=LARGEST_BYTES, **options)


class DraftInput(serializers.Serializer[Any]):
    """An experiment file: as TOML, or its keys and tables as JSON; one of the two."""

    toml = FileField(required=False)
    experiment = serializers.DictField(
        required=False, help_text="the file's keys: slug, model, benchmark, cell and so on"
    )


class DraftChangeInput(serializers.Serializer[Any]):
    """A draft's file as it is to be, and the revision that was changed."""

    toml = FileField()
    revision = serializers.IntegerField(min_value=1)


class ProblemOutput(serializers.Serializer[Any]):
    """One thing wrong with a file, and its fix."""

    line = serializers.IntegerField(allow_null=True, help_text="from 1; null where it has none")
    message = serializers.CharField()


class CheckOutput(serializers.Serializer[Any]):
    """What is wrong with a draft's file; its size where nothing is, else null."""

    problems = ProblemOutput(many=True)
    cells = serializers.IntegerField(allow_null=True)
    pairs = serializers.IntegerField(allow_null=True)


class CellProbeOutput(serializers.Serializer[Any]):
    """The probed cell of one benchmark; it stands for the model's other cells there."""

    benchmark = serializers.CharField()
    cell = serializers.IntegerField(help_text="its place in the plan, from 1")
    name = serializers.CharField(help_text="what tells it from the other cells")
    probed = serializers.IntegerField(help_text="pairs that were really run")
    asked = serializers.IntegerField(help_text="of them, in how many a skill was asked for")
    returned = serializers.IntegerField(help_text="of them, in how many a skill was returned")
    n_skill_pairs = serializers.IntegerField(help_text="planned pairs that it speaks for")


class ModelEstimateOutput(serializers.Serializer[Any]):
    """What one model's runs will take; null is unknown, never 0."""

    model = serializers.CharField()
    endpoint = serializers.CharField()
    probed = serializers.IntegerField(help_text="pairs that were really run")
    pairs = serializers.IntegerField()
    executions = serializers.IntegerField()
    call_rate = serializers.FloatField(help_text="of SE runs that asked for a skill, 0 to 1")
    expected_n_cond = serializers.FloatField(help_text="pairs with a skill returned")
    n_cond_low = serializers.FloatField(help_text="its exact lower 95% limit")
    n_cond_high = serializers.FloatField(help_text="its exact upper 95% limit")
    calls = serializers.FloatField()
    tokens = serializers.FloatField(allow_null=True)
    seconds = serializers.FloatField(allow_null=True, help_text="one run after another")
    cost = serializers.FloatField(allow_null=True)
    probes = CellProbeOutput(many=True, help_text="one for each benchmark")


class EstimateOutput(serializers.Serializer[Any]):
    """What a draft will take; null is unknown, never 0."""

    outdated = serializers.BooleanField(
        help_text="the draft, or a suite or library that it names, was changed since"
    )
    toml_sha256 = serializers.CharField(help_text="of the file it was made for")
    layout_uid = serializers.UUIDField(help_text="of the plan it was made for")
    workers = serializers.IntegerField(help_text="runs made at once")
    pairs = serializers.IntegerField()
    executions = serializers.IntegerField()
    expected_n_cond = serializers.FloatField(help_text="pairs with a skill returned")
    n_cond_low = serializers.FloatField(help_text="its exact lower 95% limit")
    n_cond_high = serializers.FloatField(help_text="its exact upper 95% limit")
    calls = serializers.FloatField()
    tokens = serializers.FloatField(allow_null=True)
    cost = serializers.FloatField(allow_null=True)
    cost_unknown = serializers.CharField(help_text="why the cost is null")
    seconds = serializers.FloatField(allow_null=True, help_text="with so many workers")
    over_budget = serializers.ListField(
        child=serializers.CharField(), help_text="caps that would be reached, in words"
    )
    models = ModelEstimateOutput(many=True)


class DraftLinks(serializers.Serializer[Any]):
    """Where more of a draft is; addresses on this server."""

    self = serializers.CharField()
    validation = serializers.CharField()
    estimate = serializers.CharField()
    start = serializers.CharField()
    page = serializers.CharField(help_text="for people")


class DraftOutput(serializers.Serializer[Any]):
    """One draft."""

    slug = serializers.CharField()
    revision = serializers.IntegerField()
    author = serializers.SerializerMethodField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    links = serializers.SerializerMethodField()

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_author(self, draft: ExperimentDraft) -> str | None:
        return draft.author.get_username() if draft.author else None

    @extend_schema_field(DraftLinks)
    def get_links(self, draft: ExperimentDraft) -> dict[str, str]:
        where = {"slug": draft.slug}
        names = {
            "self": "api-draft",
            "validation": "api-draft-validate",
            "estimate": "api-draft-estimate",
            "start": "api-draft-start",
            "page": "draft",
        }
        return {key: reverse(name, kwargs=where) for key, name in names.items()}


class DraftDetailOutput(DraftOutput):
    """One draft with its file, what is wrong with it and its newest estimate."""

    toml = serializers.CharField()
    check = serializers.SerializerMethodField()
    estimate = serializers.SerializerMethodField(help_text="null before the first")

    @extend_schema_field(CheckOutput)
    def get_check(self, draft: ExperimentDraft) -> Any:
        return _checked(check_draft(draft.toml, slug=draft.slug))

    @extend_schema_field(EstimateOutput(allow_null=True))
    def get_estimate(self, draft: ExperimentDraft) -> Any:
        found = estimate_of(draft)
        if found is None:
            return None
        return {"outdated": is_outdated(found, draft), **asdict(found)}


class JobStartedOutput(serializers.Serializer[Any]):
    """A job that was asked for: its ``url`` says how far it is."""

    uid = serializers.UUIDField()
    kind = serializers.CharField()
    subject = serializers.CharField()
    state = serializers.SerializerMethodField()
    url = serializers.SerializerMethodField()

    @extend_schema_field(StateField)
    def get_state(self, job: Job) -> str:
        return state_of(job)

    def get_url(self, job: Job) -> str:
        return reverse("api-job", kwargs={"uid": job.uid})


class Drafts(Endpoint):
    """Drafts: those there are, and a new one."""

    @listing_schema(DRAFTS, DraftOutput)
    def get(self, request: Request) -> Response:
        """List the drafts, the one saved last first."""
        return listed(request, drafts_for_list(), listing=DRAFTS, output=DraftOutput)

    @extend_schema(request=DraftInput, responses={201: DraftDetailOutput})
    def post(self, request: Request) -> Response:
        """Keep a file as a draft; nothing runs. Problems are kept with it and told as ``check``."""
        checked_query(request.query_params, NoParameters)
        given = checked_body(request, DraftInput)
        if len(given) != 1:
            raise ValidationError({"": ["send either toml or experiment"]})
        [field] = given
        toml = _file(field, given[field])
        draft = create_draft(toml=toml, author=request.user, at=timezone.now())
        return Response(DraftDetailOutput(draft).data, status=status.HTTP_201_CREATED)


class OneDraft(Endpoint):
    """One draft."""

    @extend_schema(responses=DraftDetailOutput)
    def get(self, request: Request, slug: str) -> Response:
        """Show a draft with its file, what is wrong with it and its newest estimate."""
        checked_query(request.query_params, NoParameters)
        return Response(DraftDetailOutput(draft_or_404(slug)).data)

    @extend_schema(request=DraftChangeInput, responses=DraftDetailOutput)
    def put(self, request: Request, slug: str) -> Response:
        """Save the file; refused where somebody saved a newer revision. The slug follows it."""
        checked_query(request.query_params, NoParameters)
        given = checked_body(request, DraftChangeInput)
        toml = _file("toml", given["toml"])
        try:
            draft = save_draft(
                slug=slug,
                toml=toml,
                revision=given["revision"],
                actor=request.user,
                at=timezone.now(),
            )
        except DraftMissing as error:
            raise Http404 from error
        except DraftChanged as changed:
            raise Conflict(f"{changed}; read it again and put your change into it") from changed
        return Response(DraftDetailOutput(draft).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str) -> Response:
        """Discard the draft."""
        checked_query(request.query_params, NoParameters)
        try:
            discard_draft(slug=slug, actor=request.user, at=timezone.now())
        except DraftMissing as error:
            raise Http404 from error
        return Response(status=status.HTTP_204_NO_CONTENT)


class DraftValidation(Endpoint):
    """Show what is wrong with a draft's file, by line, and how much it will run."""

    @extend_schema(responses=CheckOutput)
    def get(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        draft = draft_or_404(slug)
        return Response(_checked(check_draft(draft.toml, slug=slug)))


class DraftEstimation(Endpoint):
    """Have three pairs per model run and the whole reckoned from them; nothing is planned."""

    @extend_schema(request=None, responses={202: JobStartedOutput})
    def post(self, request: Request, slug: str) -> Response:
        return _asked(request, slug, request_estimate)


class DraftStart(Endpoint):
    """Plan the draft and start the experiment; the job's result names it."""

    @extend_schema(request=None, responses={202: JobStartedOutput})
    def post(self, request: Request, slug: str) -> Response:
        return _asked(request, slug, request_start)


class DraftClone(Endpoint):
    """Make another draft of the same file, under a free slug."""

    @extend_schema(request=None, responses={201: DraftDetailOutput})
    def post(self, request: Request, slug: str) -> Response:
        no_body(request)
        try:
            draft = clone_draft(slug=slug, actor=request.user, at=timezone.now())
        except DraftMissing as error:
            raise Http404 from error
        return Response(DraftDetailOutput(draft).data, status=status.HTTP_201_CREATED)


class EndpointModelOutput(serializers.Serializer[Any]):
    """A model; prices per million tokens, null is unknown."""

    id = serializers.CharField()
    dialect = serializers.CharField()
    price_in = serializers.FloatField(allow_null=True)
    price_out = serializers.FloatField(allow_null=True)
    requests_per_minute = serializers.IntegerField(allow_null=True)


class EndpointOutput(serializers.Serializer[Any]):
    """A configured endpoint, as a file names it. Its key is nowhere here."""

    name = serializers.CharField()
    base_url = serializers.CharField()
    api_key_env = serializers.CharField(
        allow_null=True, help_text="the name of the variable that holds its key"
    )
    models = EndpointModelOutput(many=True, help_text="empty: any model may be asked for")


class EndpointsOutput(serializers.Serializer[Any]):
    """The endpoints that a draft may name; ``problem`` says why none can be read."""

    endpoints = EndpointOutput(many=True)
    problem = serializers.CharField()


class Endpoints(Endpoint):
    """Show the endpoints and models that drafts may name."""

    @extend_schema(responses=EndpointsOutput)
    def get(self, request: Request) -> Response:
        checked_query(request.query_params, NoParameters)
        try:
            found, problem = configured_endpoints(), ""
        except InvalidEndpoints as error:
            found, problem = (), str(error)
        return Response(EndpointsOutput({"endpoints": found, "problem": problem}).data)


class NoBody(serializers.Serializer[Any]):
    """The body of a write that needs none."""


def no_body(request: Request) -> None:
    """Refuse parameters and fields where none are meant.

    Raises:
        ValidationError: naming them.
    """
    checked_query(request.query_params, NoParameters)
    checked_body(request, NoBody)


def _asked(request: Request, slug: str, ask: Callable[..., Job]) -> Response:
    no_body(request)
    try:
        job = ask(slug=slug, actor=request.user, at=timezone.now())
    except DraftMissing as error:
        raise Http404 from error
    except (DraftNotReady, DraftBusy) as refused:
        raise Conflict(str(refused)) from refused
    return Response(JobStartedOutput(job).data, status=status.HTTP_202_ACCEPTED)


def _file(field: str, given: Any) -> str:
    try:
        return file_text(given) if field == "toml" else file_of_values(given)
    except UnreadableFile as refused:
        raise ValidationError({field: [str(refused)]}) from refused


def _checked(check: DraftCheck) -> dict[str, Any]:
    return {
        "problems": [{"line": p.line, "message": p.message} for p in check.problems],
        "cells": check.cells,
        "pairs": check.pairs,
    }
