"""Every URL of the workbench."""

from django.urls import include, path

from workbench import views

urlpatterns = [
    path("", views.home, name="home"),
    path("sign-in/", views.SignIn.as_view(), name="sign-in"),
    path("sign-in/link/<slug:token>/", views.sign_in_by_link, name="sign-in-link"),
    path("sign-out/", views.sign_out, name="sign-out"),
    path("theme/", views.theme, name="theme"),
    path("glossary/", views.glossary, name="glossary"),
    path("health/", views.health, name="health"),
    path("", include("skills.urls")),
    path("", include("runs.urls")),
    path("api/v1/", include("workbench.api")),
]

handler404 = "workbench.views.not_found"
