"""Every URL of the workbench."""

from django.urls import include, path

from workbench.views import home, house, jobs, notices, signing_in

urlpatterns = [
    path("", home.home, name="home"),
    path("sign-in/", signing_in.SignIn.as_view(), name="sign-in"),
    path("sign-in/link/<slug:token>/", signing_in.sign_in_by_link, name="sign-in-link"),
    path("sign-out/", signing_in.sign_out, name="sign-out"),
    path("theme/", house.theme, name="theme"),
    path("glossary/", house.glossary, name="glossary"),
    path("health/", house.health, name="health"),
    path("ready/", house.ready, name="ready"),
    path("jobs/<uuid:uid>/", jobs.job, name="job"),
    path("jobs/<uuid:uid>/progress/", jobs.progress, name="job-progress"),
    path("notices/", notices.notices, name="notices"),
    path("notices/read/", notices.read, name="notices-read"),
    path("notices/mail/", notices.mail, name="notices-mail"),
    path("notices/webhooks/", notices.webhooks, name="webhooks"),
    path("notices/webhooks/<uuid:uid>/remove/", notices.webhook_remove, name="webhook-remove"),
    path("notices/webhooks/<uuid:uid>/test/", notices.webhook_test, name="webhook-test"),
    path("", include("skills.urls")),
    path("", include("runs.urls")),
    path("api/v1/", include("workbench.api.urls")),
]

handler400 = "workbench.views.errors.bad_request"
handler404 = "workbench.views.errors.not_found"
handler500 = "workbench.views.errors.server_error"
