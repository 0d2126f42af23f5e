"""Two experiments compared, as JSON."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from runs.domain.comparing import Factor, ProtocolDiffers
from runs.domain.comparison_render import to_json
from runs.domain.report import FailurePolicy
from runs.selectors import ExperimentMissing
from runs.services.comparing import CannotCompare, comparison_of
from workbench.kernel.api import checked_query
from workbench.rest import Endpoint


class ComparisonInput(serializers.Serializer[Any]):
    """Which experiments, and what may differ between them but their skills."""

    a = serializers.SlugField(help_text="the experiment before the edit")
    b = serializers.SlugField(help_text="the experiment after it")
    cell_a = serializers.RegexField(
        r"^[0-9a-f]{1,64}\Z", required=False, help_text="first digits of one cell of A"
    )
    cell_b = serializers.RegexField(
        r"^[0-9a-f]{1,64}\Z", required=False, help_text="first digits of one cell of B"
    )
    allow = serializers.CharField(
        required=False,
        help_text=f"factors that may differ too, joined by commas: {', '.join(Factor)}",
    )


class ComparedCellOutput(serializers.Serializer[Any]):
    """One cell and where it stands."""

    experiment = serializers.CharField()
    sha12 = serializers.CharField()
    library = serializers.CharField(allow_null=True)
    library_known = serializers.BooleanField(
        help_text="whether it says which skills were searched, and in which versions"
    )
    partition = serializers.CharField()


class UnmatchedCellOutput(ComparedCellOutput):
    """A cell that is compared with none."""

    side = serializers.ChoiceField(choices=("A", "B"))
    reason = serializers.CharField()


class SharedPairOutput(serializers.Serializer[Any]):
    """A pair of A and the pair of B of the same task and replicate."""

    task = serializers.CharField()
    replicate = serializers.IntegerField()
    pair_a = serializers.CharField()
    pair_b = serializers.CharField()
    returned = serializers.CharField(help_text="what became of the returned skills")
    added = serializers.ListField(child=serializers.CharField())
    removed = serializers.ListField(child=serializers.CharField())
    edited = serializers.ListField(child=serializers.CharField())


class RaeIntervalOutput(serializers.Serializer[Any]):
    """An interval, in percentage points."""

    low = serializers.FloatField()
    high = serializers.FloatField()
    level = serializers.FloatField()
    method = serializers.CharField()


class RaeChangeOutput(serializers.Serializer[Any]):
    """RAE of both sides and their difference, in percentage points."""

    a = serializers.FloatField(allow_null=True)
    b = serializers.FloatField(allow_null=True)
    n_a = serializers.IntegerField()
    n_b = serializers.IntegerField()
    n_tasks = serializers.IntegerField()
    difference = serializers.FloatField(allow_null=True, help_text="B minus A")
    reason = serializers.CharField(allow_null=True)
    interval = RaeIntervalOutput(allow_null=True)
    no_interval = serializers.CharField(allow_null=True)
    resamples_dropped = serializers.IntegerField()


class RaeChangesOutput(serializers.Serializer[Any]):
    """Each RAE on its own returned pairs, and both on the pairs returned in both."""

    own = RaeChangeOutput()
    both = RaeChangeOutput()


class SdRunsOutput(serializers.Serializer[Any]):
    """The runs without skills."""

    shared = serializers.IntegerField()
    separate = serializers.IntegerField()
    differing = serializers.IntegerField(help_text="separate ones that came out differently")


class ReturnedSetOutput(serializers.Serializer[Any]):
    """Shared pairs by what became of the returned skills."""

    change = serializers.CharField()
    pairs = serializers.IntegerField()
    won = serializers.IntegerField()
    lost = serializers.IntegerField()


class DifferenceOutput(serializers.Serializer[Any]):
    """A factor that differs and was allowed to."""

    factor = serializers.CharField()
    part = serializers.CharField(
        allow_null=True, help_text="what of the factor, where its parts have names of their own"
    )
    a = serializers.CharField()
    b = serializers.CharField()


class FailureReadingOutput(serializers.Serializer[Any]):
    """Won, lost and p with failed calls left out (censor) or counted as wrong (incorrect)."""

    policy = serializers.ChoiceField(choices=[policy.value for policy in FailurePolicy])
    n_compared = serializers.IntegerField()
    n_won = serializers.IntegerField()
    n_lost = serializers.IntegerField()
    p = serializers.FloatField(allow_null=True)
    p_method = serializers.CharField(allow_null=True)
    p_adjusted = serializers.FloatField(allow_null=True)


class LeftOutOutput(serializers.Serializer[Any]):
    """Shared pairs without a result, by side and reason."""

    pairs = serializers.IntegerField()
    a = serializers.DictField(child=serializers.IntegerField())
    b = serializers.DictField(child=serializers.IntegerField())


class ComparisonNoteOutput(serializers.Serializer[Any]):
    """What a reader must know."""

    code = serializers.CharField()
    text = serializers.CharField()


class CellComparisonOutput(serializers.Serializer[Any]):
    """One cell of A and its counterpart in B."""

    a = ComparedCellOutput()
    b = ComparedCellOutput()
    differences = DifferenceOutput(many=True)
    headline = serializers.CharField()
    verdict = serializers.CharField(allow_null=True, help_text="better, worse or null")
    same_skills = serializers.BooleanField(
        allow_null=True, help_text="two runs of one protocol and library; null if not known"
    )
    complete = serializers.BooleanField()
    cancelled = serializers.ListField(
        child=serializers.CharField(), help_text="sides that were cancelled before all had ended"
    )
    n_shared = serializers.IntegerField()
    n_compared = serializers.IntegerField(help_text="with an SE result on both sides")
    n_pending = serializers.IntegerField()
    n_tasks = serializers.IntegerField()
    n_won = serializers.IntegerField()
    n_lost = serializers.IntegerField()
    n_both_pass = serializers.IntegerField()
    n_both_fail = serializers.IntegerField()
    p = serializers.FloatField(allow_null=True)
    p_method = serializers.CharField(allow_null=True)
    p_adjusted = serializers.FloatField(allow_null=True)
    n_family = serializers.IntegerField(
        help_text="cells of B that have a counterpart: p is corrected for all of them"
    )
    n_shown = serializers.IntegerField()
    failure_readings = FailureReadingOutput(many=True)
    left_out = LeftOutOutput(help_text="a run with skills has no result")
    rae_left_out = LeftOutOutput(help_text="compared, but a run without skills has no result")
    rae = RaeChangesOutput()
    sd_runs = SdRunsOutput()
    returned_sets = ReturnedSetOutput(many=True)
    won = SharedPairOutput(many=True)
    lost = SharedPairOutput(many=True)
    both_pass = SharedPairOutput(many=True)
    both_fail = SharedPairOutput(many=True)
    changed_tasks = serializers.ListField(child=serializers.CharField())
    other_replicates = serializers.ListField(
        child=serializers.CharField(), help_text="same content, but replicates of other numbers"
    )
    only_a = serializers.ListField(child=serializers.CharField())
    only_b = serializers.ListField(child=serializers.CharField())
    notes = ComparisonNoteOutput(many=True)


class ComparisonOutput(serializers.Serializer[Any]):
    """Two experiments compared, schema comparison/1."""

    schema = serializers.CharField()
    a = serializers.CharField()
    b = serializers.CharField()
    allowed = serializers.ListField(child=serializers.CharField())
    cells = CellComparisonOutput(many=True)
    unmatched = UnmatchedCellOutput(many=True)


class Comparisons(Endpoint):
    """Compare two experiments over the tasks they share; stored nowhere."""

    @extend_schema(parameters=[ComparisonInput], responses=ComparisonOutput)
    def get(self, request: Request) -> Response:
        wanted = checked_query(request.query_params, ComparisonInput)
        allowed = [word for word in wanted.get("allow", "").split(",") if word]
        try:
            found = comparison_of(
                a=wanted["a"],
                b=wanted["b"],
                cell_a=wanted.get("cell_a", ""),
                cell_b=wanted.get("cell_b", ""),
                allowed=allowed,
            )
        except ExperimentMissing as missing:
            raise Http404 from missing
        except (CannotCompare, ProtocolDiffers) as refused:
            raise ValidationError({"": [f"{refused}."]}) from refused
        return Response(to_json(found.comparison))
