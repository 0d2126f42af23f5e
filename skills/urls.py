"""Addresses of the skills themselves."""

from django.urls import path

from skills import views

urlpatterns = [
    path("skills/<str:slug>/text/<int:number>/", views.skill_text, name="skill-text"),
]
