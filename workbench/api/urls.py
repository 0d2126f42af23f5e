"""Every JSON address, under ``/api/v1/``."""

from django.urls import path

from runs.api.experiments import ExperimentReport, Experiments
from workbench.api.jobs import OneJob

urlpatterns = [
    path("jobs/<uuid:uid>/", OneJob.as_view(), name="api-job"),
    path("experiments/", Experiments.as_view(), name="api-experiments"),
    path(
        "experiments/<slug:slug>/report/", ExperimentReport.as_view(), name="api-experiment-report"
    ),
]
