"""Addresses of experiments, cells, pairs, and of skills with what came of them."""

from django.urls import path, re_path

from runs.views import (
    cells,
    comparing,
    experiments,
    exports,
    libraries,
    pairs,
    pushes,
    skills,
    suites,
)

urlpatterns = [
    path("experiments/", experiments.experiments, name="experiments"),
    path("experiments/push/", pushes.push, name="push"),
    path("experiments/<slug:slug>/", experiments.experiment, name="experiment"),
    path("experiments/<slug:slug>/progress/", experiments.progress, name="experiment-progress"),
    path("experiments/<slug:slug>/pause/", experiments.pause, name="experiment-pause"),
    path("experiments/<slug:slug>/resume/", experiments.resume, name="experiment-resume"),
    path("experiments/<slug:slug>/cancel/", experiments.cancel, name="experiment-cancel"),
    path("experiments/<slug:slug>/retry/", experiments.retry, name="experiment-retry"),
    re_path(
        r"^experiments/(?P<slug>[-a-zA-Z0-9_]+)/report\.(?P<format>json|csv|md)$",
        experiments.report,
        name="experiment-report",
    ),
    re_path(
        r"^experiments/(?P<slug>[-a-zA-Z0-9_]+)/cells/(?P<sha12>[0-9a-f]{12})/$",
        cells.cell,
        name="cell",
    ),
    path("compare/", comparing.compare, name="compare"),
    path("exports/", exports.exports, name="exports"),
    path("exports/<uuid:uid>/file/", exports.file, name="export-file"),
    path("pairs/<uuid:uid>/", pairs.pair, name="pair"),
    path("pairs/<uuid:uid>/text/<slug:part>/", pairs.pair_text, name="pair-text"),
    path("libraries/", libraries.libraries, name="libraries"),
    path("libraries/new/", libraries.new, name="library-new"),
    path("libraries/<str:slug>/", libraries.library, name="library"),
    path("libraries/<str:slug>/versions/<int:number>/", libraries.library, name="library-version"),
    path("suites/", suites.suites, name="suites"),
    path("suites/new/", suites.new, name="suite-new"),
    path("suites/<str:slug>/", suites.suite, name="suite"),
    path("suites/<str:slug>/versions/<int:number>/", suites.suite, name="suite-version"),
    path(
        "suites/<str:slug>/versions/<int:number>/download/",
        suites.download,
        name="suite-download",
    ),
    path("skills/", skills.skills, name="skills"),
    path("skills/<str:slug>/", skills.skill, name="skill"),
]
