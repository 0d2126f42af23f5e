"""Handing in runs that another program made, as JSON, JSONL or CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.urls import reverse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from runs.domain.report import FailurePolicy, Preset
from runs.domain.rows import BadRows, UnmatchedReplicates
from runs.services.handing_in import BadPushRequest, PushTooLarge, keep_rows, request_push
from runs.services.pushing import LARGEST_BYTES, MOST_ROWS, BadPush, OtherContent
from workbench.jobviews import JobOutput
from workbench.kernel.api import (
    Conflict,
    NoParameters,
    StrictJSONParser,
    TooLarge,
    checked_query,
)
from workbench.rest import Endpoint, StreamParser, checked_body, media_type_of

# A JSON body is read whole; a stream of rows never is.
LARGEST_JSON = 10_000_000
PIECE = 64 * 1024


class NdjsonParser(StreamParser):
    media_type = "application/x-ndjson"


class CsvParser(StreamParser):
    media_type = "text/csv"


class RunRowsQuery(serializers.Serializer[Any]):
    """What a stream of rows says beside them, in its address."""

    experiment = serializers.CharField(max_length=100)
    preset = serializers.ChoiceField(choices=[p.value for p in Preset], default=Preset.DEFAULT)
    failure_policy = serializers.ChoiceField(
        choices=[p.value for p in FailurePolicy],
        required=False,
        help_text="what a failed model call means; without it, as the preset has it",
    )


class RunRowsInput(RunRowsQuery):
    """Rows of docs/exports.md and the experiment that they become."""

    rows = serializers.ListField(child=serializers.JSONField(), min_length=1, max_length=MOST_ROWS)


class RunRows(Endpoint):
    """Hand in runs that were made elsewhere; they become a finished experiment.

    As JSON (at most 10 MB), or streamed as `application/x-ndjson` or `text/csv` (at most 100 MB
    and 200,000 rows) with `experiment` in the address. The answer is a job: its `result` names
    the experiment, and what could not be paired; where rows can't be used it fails, stores
    nothing and names each of them in `result.problems`.
    """

    parser_classes = (StrictJSONParser, NdjsonParser, CsvParser)
    takes_query = True
    hash_body = False
    largest_body = LARGEST_BYTES

    _given: Mapping[str, Any]
    _kept: str

    def prepare(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Take the rows in before anything is done with them, however slow they come."""
        kind = media_type_of(request)
        if kind in _FORMATS:
            self._given = checked_query(request.query_params, RunRowsQuery)
            self._kept = _keep(_pieces(request.stream), _FORMATS[kind])
            return
        if int(request.META.get("CONTENT_LENGTH") or 0) > LARGEST_JSON:
            raise TooLarge(
                f"JSON may have {LARGEST_JSON:,} bytes here; send more rows as "
                f"{NdjsonParser.media_type}, one object a line."
            )
        checked_query(request.query_params, NoParameters)
        self._given = checked_body(request, RunRowsInput)
        self._kept = _keep(_lines(self._given["rows"]), "jsonl")

    @extend_schema(
        request={"application/json": RunRowsInput},
        parameters=[
            OpenApiParameter(
                "experiment", str, description="Of a stream: the slug of the experiment."
            ),
            OpenApiParameter(
                "preset", str, enum=[p.value for p in Preset], description="Of a stream."
            ),
            OpenApiParameter(
                "failure_policy",
                str,
                enum=[p.value for p in FailurePolicy],
                description="Of a stream.",
            ),
        ],
        responses={202: JobOutput},
    )
    def post(self, request: Request) -> Response:
        given = self._given
        try:
            job = request_push(
                kept=self._kept,
                slug=given["experiment"],
                preset=given["preset"],
                failure_policy=given.get("failure_policy", ""),
                actor=request.user,
                at=timezone.now(),
            )
        except BadPushRequest as bad:
            raise ValidationError({n: [text] for n, text in bad.fields.items()}) from bad
        except OtherContent as taken:
            raise Conflict(str(taken)) from taken
        except BadRows as bad_rows:
            raise ValidationError({"rows": [str(p) for p in bad_rows.problems]}) from bad_rows
        except (BadPush, UnmatchedReplicates) as refused:
            raise ValidationError({"rows": [str(refused)]}) from refused
        return Response(
            JobOutput(job).data,
            status=status.HTTP_202_ACCEPTED,
            headers={"Location": reverse("api-job", kwargs={"uid": job.uid})},
        )


_FORMATS = {NdjsonParser.media_type: "ndjson", CsvParser.media_type: "csv"}


def _keep(chunks: Iterable[bytes], format: str) -> str:
    try:
        return keep_rows(chunks=chunks, format=format)
    except PushTooLarge as refused:
        raise TooLarge(str(refused)) from refused


def _pieces(stream: Any) -> Iterator[bytes]:
    while piece := stream.read(PIECE):
        yield piece


def _lines(rows: list[Any]) -> Iterator[bytes]:
    for row in rows:
        yield json.dumps(row, ensure_ascii=False).encode() + b"\n"
