"""Stored suites as JSON, and uploading one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.http import Http404
from django.urls import reverse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers, status
from rest_framework.exceptions import ValidationError
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from runs.domain.taskfiles import Format
from runs.models import Benchmark, Task
from runs.selectors import (
    SUITE_LISTING,
    TASK_LISTING,
    SuiteRecord,
    benchmark_version,
    newest_benchmarks,
    suite_records,
)
from runs.services.uploading import (
    MAX_FILE_BYTES,
    CheckedSuite,
    FileTooLarge,
    TaskFileRefused,
    check_suite,
    request_import,
)
from skills.services.uploading import BadSlug
from workbench.kernel.api import NoParameters, TooLarge, checked_query
from workbench.kernel.lists import Listing
from workbench.kernel.uploads import FORM_BYTES
from workbench.rest import Endpoint, StreamParser, checked_body, listed, media_type_of
from workbench.schema import listing_schema

VERSION_LISTING = Listing(sorts={"number": "number"}, default_sort="-number")


class _Records(serializers.ListSerializer[Any]):
    """Suites with their tasks counted, a page of them in one query."""

    def to_representation(self, data: Any) -> Any:
        return super().to_representation(suite_records(list(data)))


class SuiteOutput(serializers.Serializer[Any]):
    """One stored version of a suite."""

    slug = serializers.CharField()
    number = serializers.IntegerField()
    sha256 = serializers.CharField(help_text="of its tasks, whatever their order")
    tasks = serializers.IntegerField()
    kinds = serializers.DictField(
        child=serializers.IntegerField(), help_text="how many tasks of each kind there are"
    )
    tasks_url = serializers.SerializerMethodField()
    versions_url = serializers.SerializerMethodField()
    file_url = serializers.SerializerMethodField(help_text="of a page: all tasks as JSONL")

    class Meta:
        list_serializer_class = _Records

    def get_tasks_url(self, record: SuiteRecord) -> str:
        return reverse("api-suite-tasks", kwargs=_where(record))

    def get_versions_url(self, record: SuiteRecord) -> str:
        return reverse("api-suite-versions", kwargs={"slug": record.slug})

    def get_file_url(self, record: SuiteRecord) -> str:
        return reverse("suite-download", kwargs=_where(record))


class SuiteTaskOutput(serializers.Serializer[Any]):
    """One task with what its answers are checked against."""

    key = serializers.CharField()
    kind = serializers.CharField()
    prompt = serializers.CharField()
    checker = serializers.JSONField()
    gold_skills = serializers.ListField(child=serializers.CharField())
    tags = serializers.ListField(child=serializers.CharField())
    sha256 = serializers.CharField()


class SuiteQuery(serializers.Serializer[Any]):
    """What a bare task file says beside itself, in its address."""

    suite = serializers.CharField(max_length=100, help_text="slug; of a new one or of one there")
    format = serializers.ChoiceField(
        choices=[name.value for name in Format],
        required=False,
        help_text="of the file; known by its first line without it",
    )


class SuiteInput(SuiteQuery):
    """A task file and the suite that it becomes."""

    file = serializers.FileField()


class ReceivedOutput(serializers.Serializer[Any]):
    """What becomes of an upload."""

    suite = serializers.CharField()
    tasks = serializers.IntegerField()
    number = serializers.IntegerField(
        allow_null=True, help_text="the version that holds exactly these tasks already, or null"
    )
    job = serializers.CharField(
        allow_null=True, help_text="address of the job that stores them; null where that is done"
    )
    notices = serializers.ListField(child=serializers.CharField(), help_text="harmless findings")
    advice = serializers.CharField(
        allow_blank=True,
        help_text="says so where the suite's name alone means a newer version than these tasks",
    )


class TaskFileParser(StreamParser):
    """A task file as the whole body."""

    media_type = "application/x-ndjson"


class Suites(Endpoint):
    """Stored suites: all of them by their newest version, and a new version by upload."""

    parser_classes = (MultiPartParser, TaskFileParser)
    takes_query = True
    hash_body = False
    largest_body = MAX_FILE_BYTES + FORM_BYTES

    @listing_schema(SUITE_LISTING, SuiteOutput)
    def get(self, request: Request) -> Response:
        """List the stored suites by slug, each by its newest version."""
        return listed(request, newest_benchmarks(), listing=SUITE_LISTING, output=SuiteOutput)

    _checked: CheckedSuite

    def prepare(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check the file line by line and keep it aside."""
        file: Any
        if media_type_of(request) == TaskFileParser.media_type:
            given = checked_query(request.query_params, SuiteQuery)
            file, file_name = request.stream, "the file"
        else:
            checked_query(request.query_params, NoParameters)
            given = checked_body(request, SuiteInput)
            file, file_name = given["file"], str(given["file"].name)
        try:
            self._checked = check_suite(
                file=file,
                file_name=file_name,
                slug=given["suite"],
                format=Format(given["format"]) if given.get("format") else None,
                at=timezone.now(),
            )
        except BadSlug as error:
            raise ValidationError({"suite": [str(error)]}) from error
        except FileTooLarge as error:
            raise TooLarge(f"The file can't be taken: {error}.") from error
        except TaskFileRefused as refused:
            raise ValidationError(_by_line(refused)) from refused

    @extend_schema(
        request={
            "multipart/form-data": SuiteInput,
            TaskFileParser.media_type: OpenApiTypes.BINARY,
        },
        parameters=[
            OpenApiParameter("suite", str, description="Of a bare file: the suite's slug."),
            OpenApiParameter(
                "format",
                str,
                enum=[name.value for name in Format],
                description="Of a bare file: as in the form.",
            ),
        ],
        responses={200: ReceivedOutput, 202: ReceivedOutput},
    )
    def post(self, request: Request) -> Response:
        """Upload a task file; a job grades its references and stores it.

        Either a form, or the file alone as `application/x-ndjson` with `suite` in the address.
        Every line is checked first: where one can't be used nothing is stored, and `fields` names
        each as `rows.LINE.FIELD`. Where the same tasks are stored already, the answer is 200 and
        says in which version.
        """
        received = request_import(self._checked, actor=request.user, at=timezone.now())
        job = received.job and reverse("api-job", kwargs={"uid": received.job.uid})
        answer = {
            "suite": self._checked.slug,
            "tasks": received.tasks,
            "number": received.stored.number if received.stored else None,
            "job": job,
            "notices": [str(notice) for notice in received.notices],
            "advice": received.advice,
        }
        return Response(
            ReceivedOutput(answer).data,
            status=status.HTTP_202_ACCEPTED if job else status.HTTP_200_OK,
            headers={"Location": job} if job else {},
        )


class OneSuite(Endpoint):
    """Show the newest version of a stored suite."""

    @extend_schema(responses=SuiteOutput)
    def get(self, request: Request, slug: str) -> Response:
        checked_query(request.query_params, NoParameters)
        [record] = suite_records([_suite_or_404(slug)])
        return Response(SuiteOutput(record).data)


class SuiteVersions(Endpoint):
    """List a suite's versions, the newest first."""

    @listing_schema(VERSION_LISTING, SuiteOutput)
    def get(self, request: Request, slug: str) -> Response:
        _suite_or_404(slug)
        found = Benchmark.objects.filter(slug=slug)
        return listed(request, found, listing=VERSION_LISTING, output=SuiteOutput)


class SuiteTasks(Endpoint):
    """List the tasks of one version of a suite, by key."""

    @listing_schema(TASK_LISTING, SuiteTaskOutput)
    def get(self, request: Request, slug: str, number: int) -> Response:
        found = Task.objects.filter(benchmark=_suite_or_404(slug, number))
        return listed(request, found, listing=TASK_LISTING, output=SuiteTaskOutput)


def _suite_or_404(slug: str, number: int | None = None) -> Benchmark:
    found = benchmark_version(slug, number)
    if found is None:
        raise Http404
    return found


def _where(record: SuiteRecord) -> dict[str, Any]:
    return {"slug": record.slug, "number": record.number}


def _by_line(refused: TaskFileRefused) -> dict[str, list[str]]:
    """Return what is wrong by line and field; the file as a whole is line 0."""
    found: dict[str, list[str]] = defaultdict(list)
    for problem in refused.problems:
        place = f"rows.{problem.line}" if problem.line else "file"
        name = f"{place}.{problem.field}" if problem.line and problem.field else place
        found[name].append(f"{problem.reason}. {problem.fix}")
    if refused.cut:
        found["file"].append(f"reading stopped after {len(refused.problems)} problems")
    return dict(found)
