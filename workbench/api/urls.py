"""Every JSON address, under ``/api/v1/``."""

from django.urls import path

from runs.api.cells import Cells, OneCell
from runs.api.comparisons import Comparisons
from runs.api.drafts import (
    DraftClone,
    DraftEstimation,
    Drafts,
    DraftStart,
    DraftValidation,
    Endpoints,
    OneDraft,
)
from runs.api.experiments import ExperimentReport, Experiments, OneExperiment
from runs.api.exports import ExportFile, Exports, OneExport
from runs.api.lifecycle import (
    ExperimentBudget,
    ExperimentCancel,
    ExperimentClone,
    ExperimentFile,
    ExperimentPause,
    ExperimentRescore,
    ExperimentResume,
    ExperimentRetry,
    ExperimentStart,
)
from runs.api.pairs import Attempts, CellPairs, ExperimentPairs, OnePair
from runs.api.run_rows import RunRows
from runs.api.suites import OneSuite, Suites, SuiteTasks, SuiteVersions
from skills.api import (
    Libraries,
    LibraryEntries,
    LibraryVersions,
    OneLibrary,
    OneSkill,
    Skills,
    SkillVersions,
)
from workbench.api.audit import AuditEvents
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
from workbench.api.people import (
    Invitations,
    OnePerson,
    PasswordResets,
    People,
    PersonInvitation,
)
from workbench.api.schema import Schema, docs
from workbench.api.status import SystemStatus
from workbench.api.tokens import OneToken, Tokens

urlpatterns = [
    path("schema/", Schema.as_view(), name="api-schema"),
    path("docs/", docs, name="api-docs"),
    path("audit-events/", AuditEvents.as_view(), name="api-audit-events"),
    path("status/", SystemStatus.as_view(), name="api-status"),
    path("people/", People.as_view(), name="api-people"),
    path("people/<str:name>/", OnePerson.as_view(), name="api-person"),
    path(
        "people/<str:name>/invitation/",
        PersonInvitation.as_view(),
        name="api-person-invitation",
    ),
    path("invitations/", Invitations.as_view(), name="api-invitations"),
    path("password-resets/", PasswordResets.as_view(), name="api-password-resets"),
    path("tokens/", Tokens.as_view(), name="api-tokens"),
    path("tokens/<uuid:uid>/", OneToken.as_view(), name="api-token"),
    path("skills/", Skills.as_view(), name="api-skills"),
    path("skills/<str:slug>/", OneSkill.as_view(), name="api-skill"),
    path("skills/<str:slug>/versions/", SkillVersions.as_view(), name="api-skill-versions"),
    path("libraries/", Libraries.as_view(), name="api-libraries"),
    path("libraries/<str:slug>/", OneLibrary.as_view(), name="api-library"),
    path("libraries/<str:slug>/versions/", LibraryVersions.as_view(), name="api-library-versions"),
    path(
        "libraries/<str:slug>/versions/<int:number>/entries/",
        LibraryEntries.as_view(),
        name="api-library-entries",
    ),
    path("suites/", Suites.as_view(), name="api-suites"),
    path("suites/<str:slug>/", OneSuite.as_view(), name="api-suite"),
    path("suites/<str:slug>/versions/", SuiteVersions.as_view(), name="api-suite-versions"),
    path(
        "suites/<str:slug>/versions/<int:number>/tasks/",
        SuiteTasks.as_view(),
        name="api-suite-tasks",
    ),
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
    path("comparisons/", Comparisons.as_view(), name="api-comparisons"),
    path("exports/", Exports.as_view(), name="api-exports"),
    path("exports/<uuid:uid>/", OneExport.as_view(), name="api-export"),
    path("exports/<uuid:uid>/file/", ExportFile.as_view(), name="api-export-file"),
    path("run-rows/", RunRows.as_view(), name="api-run-rows"),
    path("endpoints/", Endpoints.as_view(), name="api-endpoints"),
    path("drafts/", Drafts.as_view(), name="api-drafts"),
    path("drafts/<slug:slug>/", OneDraft.as_view(), name="api-draft"),
    path("drafts/<slug:slug>/validate/", DraftValidation.as_view(), name="api-draft-validate"),
    path("drafts/<slug:slug>/estimate/", DraftEstimation.as_view(), name="api-draft-estimate"),
    path("drafts/<slug:slug>/start/", DraftStart.as_view(), name="api-draft-start"),
    path("drafts/<slug:slug>/clone/", DraftClone.as_view(), name="api-draft-clone"),
    path("experiments/", Experiments.as_view(), name="api-experiments"),
    path("experiments/<slug:slug>/", OneExperiment.as_view(), name="api-experiment"),
    path(
        "experiments/<slug:slug>/report/", ExperimentReport.as_view(), name="api-experiment-report"
    ),
    path("experiments/<slug:slug>/toml/", ExperimentFile.as_view(), name="api-experiment-toml"),
    path("experiments/<slug:slug>/clone/", ExperimentClone.as_view(), name="api-experiment-clone"),
    path("experiments/<slug:slug>/start/", ExperimentStart.as_view(), name="api-experiment-start"),
    path("experiments/<slug:slug>/pause/", ExperimentPause.as_view(), name="api-experiment-pause"),
    path(
        "experiments/<slug:slug>/resume/", ExperimentResume.as_view(), name="api-experiment-resume"
    ),
    path(
        "experiments/<slug:slug>/cancel/", ExperimentCancel.as_view(), name="api-experiment-cancel"
    ),
    path("experiments/<slug:slug>/retry/", ExperimentRetry.as_view(), name="api-experiment-retry"),
    path(
        "experiments/<slug:slug>/rescore/",
        ExperimentRescore.as_view(),
        name="api-experiment-rescore",
    ),
    path(
        "experiments/<slug:slug>/budget/", ExperimentBudget.as_view(), name="api-experiment-budget"
    ),
    path("experiments/<slug:slug>/cells/", Cells.as_view(), name="api-experiment-cells"),
    path("experiments/<slug:slug>/pairs/", ExperimentPairs.as_view(), name="api-experiment-pairs"),
    path("experiments/<slug:slug>/cells/<slug:sha12>/", OneCell.as_view(), name="api-cell"),
    path(
        "experiments/<slug:slug>/cells/<slug:sha12>/pairs/",
        CellPairs.as_view(),
        name="api-cell-pairs",
    ),
    path("pairs/<uuid:uid>/", OnePair.as_view(), name="api-pair"),
    path("executions/<uuid:uid>/attempts/", Attempts.as_view(), name="api-execution-attempts"),
]
