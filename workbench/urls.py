"""Every URL of the workbench."""

urlpatterns: list = []
