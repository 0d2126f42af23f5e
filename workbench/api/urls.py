"""Every JSON address, under ``/api/v1/``."""

from django.urls import path

from runs.api.experiments import ExperimentReport, Experiments
from workbench.api.jobs import OneJob
from workbench.api.notices import (
    Notices,
    NoticesRead,
    OneWebhook,
    Subscriptions,
    WebhookDeliveries,
    Webhooks,
    WebhookTest,
)
from workbench.api.status import SystemStatus

urlpatterns = [
    path("status/", SystemStatus.as_view(), name="api-status"),
    path("jobs/<uuid:uid>/", OneJob.as_view(), name="api-job"),
    path("notices/", Notices.as_view(), name="api-notices"),
    path("notices/read/", NoticesRead.as_view(), name="api-notices-read"),
    path("subscriptions/", Subscriptions.as_view(), name="api-subscriptions"),
    path("webhooks/", Webhooks.as_view(), name="api-webhooks"),
    path("webhooks/<uuid:uid>/", OneWebhook.as_view(), name="api-webhook"),
    path("webhooks/<uuid:uid>/test/", WebhookTest.as_view(), name="api-webhook-test"),
    path(
        "webhooks/<uuid:uid>/deliveries/",
        WebhookDeliveries.as_view(),
        name="api-webhook-deliveries",
    ),
    path("experiments/", Experiments.as_view(), name="api-experiments"),
    path(
        "experiments/<slug:slug>/report/", ExperimentReport.as_view(), name="api-experiment-report"
    ),
]
