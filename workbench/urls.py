"""Every URL of the workbench."""

from django.urls import include, path

from workbench.views import account, home, house, jobs, notices, people, signing_in

urlpatterns = [
    path("", home.home, name="home"),
    path("sign-in/", signing_in.sign_in, name="sign-in"),
    path("sign-in/link/<slug:token>/", signing_in.sign_in_by_link, name="sign-in-link"),
    path("sign-out/", signing_in.sign_out, name="sign-out"),
    path("invite/<slug:token>/", signing_in.invite, name="invite"),
    path("reset/<slug:token>/", signing_in.reset, name="reset"),
    path("account/", account.account, name="account"),
    path("account/password/", account.password, name="account-password"),
    path("account/email/", account.email, name="account-email"),
    path("account/tokens/", account.create_token, name="account-tokens"),
    path("account/tokens/<uuid:uid>/revoke/", account.revoke_token, name="account-token-revoke"),
    path("account/sign-out/", account.sign_out_everywhere, name="account-sign-out"),
    path("people/", people.people, name="people"),
    path("people/<str:name>/", people.person, name="person"),
    path("people/<str:name>/role/", people.role, name="person-role"),
    path("people/<str:name>/deactivate/", people.deactivate, name="person-deactivate"),
    path("people/<str:name>/reactivate/", people.reactivate, name="person-reactivate"),
    path("people/<str:name>/reset-link/", people.reset_link, name="person-reset-link"),
    path("people/<str:name>/invitation/", people.invite_again, name="person-invitation"),
    path(
        "people/<str:name>/invitation/revoke/",
        people.revoke_invitation,
        name="person-invitation-revoke",
    ),
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
