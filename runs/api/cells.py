"""An experiment's cells as JSON."""

from __future__ import annotations

from typing import Any

from django.http import Http404
from django.urls import reverse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from runs.addressed import experiment_or_404
from runs.api.experiments import as_of_text
from runs.models import Cell, Design, Experiment
from runs.selectors import cells_of
from runs.services.reporting import descriptor_of
from runs.services.standing import standing_report
from workbench.kernel.api import NoParameters, checked_query
from workbench.kernel.lists import Filter, Listing
from workbench.rest import Endpoint, listed
from workbench.schema import listing_schema

CELLS = Listing(
    sorts={"number": "number"},
    default_sort="number",
    filters={"design": Filter("design", tuple(Design.values))},
)


def cell_or_404(experiment: Experiment, sha12: str) -> Cell:
    """Return the experiment's cell of these first twelve digits.

    Raises:
        Http404: it has none.
    """
    cell: Cell | None = None
    if len(sha12) == 12:
        cell = cells_of(experiment).filter(sha256__startswith=sha12).first()
    if cell is None:
        raise Http404
    return cell


class CellLinks(serializers.Serializer[Any]):
    """Where more of a cell is; addresses on this server."""

    self = serializers.CharField()
    pairs = serializers.CharField()
    page = serializers.CharField(help_text="for people")


class CellOutput(serializers.Serializer[Any]):
    """One cell: what was run."""

    number = serializers.IntegerField(help_text="its place in the plan, from 1")
    sha12 = serializers.SerializerMethodField()
    design = serializers.ChoiceField(choices=Design.choices)
    cell = serializers.SerializerMethodField(help_text="what tells it from the others")
    links = serializers.SerializerMethodField()

    def get_sha12(self, cell: Cell) -> str:
        return cell.sha256[:12]

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_cell(self, cell: Cell) -> dict[str, Any]:
        return descriptor_of(cell)

    @extend_schema_field(CellLinks)
    def get_links(self, cell: Cell) -> dict[str, str]:
        where = {"slug": self.context["slug"], "sha12": cell.sha256[:12]}
        return {
            "self": reverse("api-cell", kwargs=where),
            "pairs": reverse("api-cell-pairs", kwargs=where),
            "page": reverse("cell", kwargs=where),
        }


class CellDetailOutput(CellOutput):
    """One cell with its arms' settings and its figures."""

    treatment = serializers.JSONField(source="treatment.spec", help_text="settings of SE")
    baseline = serializers.JSONField(source="baseline.spec", help_text="settings of SD")
    as_of = serializers.SerializerMethodField(
        help_text="when its figures were counted, where pairs have ended since; else null"
    )
    figures = serializers.SerializerMethodField(
        help_text="as in the report, docs/report-schema.json; null while there is no report"
    )

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_as_of(self, cell: Cell) -> str | None:
        return as_of_text(self.context["as_of"])

    @extend_schema_field(
        {"type": "object", "additionalProperties": True, "nullable": True, "properties": {}}
    )
    def get_figures(self, cell: Cell) -> Any:
        return self.context["figures"]


class Cells(Endpoint):
    """List an experiment's cells in the order of its plan."""

    @listing_schema(CELLS, CellOutput)
    def get(self, request: Request, slug: str) -> Response:
        found = cells_of(experiment_or_404(slug))
        return listed(request, found, listing=CELLS, output=CellOutput, context={"slug": slug})


class OneCell(Endpoint):
    """Show one cell with its figures."""

    @extend_schema(responses=CellDetailOutput)
    def get(self, request: Request, slug: str, sha12: str) -> Response:
        checked_query(request.query_params, NoParameters)
        experiment = experiment_or_404(slug)
        cell = cell_or_404(experiment, sha12)
        standing = standing_report(experiment)
        cells = standing.result["cells"]
        figures = next((one for one in cells if one["cell"].get("sha12") == sha12), None)
        context = {"slug": slug, "figures": figures, "as_of": standing.as_of}
        return Response(CellDetailOutput(cell, context=context).data)
