"""Forms with a file input in which nothing was chosen, sent as browsers send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from runs.models import ExperimentDraft
from tests.factories import make_user
from tests.htmlchecks import Page
from workbench.kernel.roles import Role

pytestmark = pytest.mark.django_db

BOUNDARY = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
# What each form is sent with, and what its page must still hold afterwards.
FORMS: Mapping[str, Mapping[str, str]] = {
    "experiment-new": {"toml": ""},
    "push": {"experiment": "kept-name", "preset": "paper"},
    "library-new": {"library": "kept-name"},
    "suite-new": {"suite": "kept-name", "format": "own"},
}


@pytest.fixture
def lead(client: Client) -> Client:
    client.force_login(make_user("lee", Role.LEAD))
    return client


def send(client: Client, name: str, fields: Mapping[str, str], file: str = 'filename=""') -> Any:
    """Post a form by hand: the test client leaves an empty file input out."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'
        for key, value in fields.items()
    ]
    parts.append(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; {file}\r\n'
        "Content-Type: application/octet-stream\r\n\r\n\r\n"
    )
    body = "".join(parts) + f"--{BOUNDARY}--\r\n"
    return client.post(
        reverse(name), body, content_type=f"multipart/form-data; boundary={BOUNDARY}"
    )


def test_a_pasted_file_is_taken_beside_an_empty_file_input(lead: Client) -> None:
    response = send(lead, "experiment-new", {"toml": 'slug = "pasted"\r\n'})
    assert response.status_code == 302
    assert ExperimentDraft.objects.get().slug == "pasted"


@pytest.mark.parametrize("name", FORMS)
def test_an_empty_file_input_is_asked_for_at_its_field(lead: Client, name: str) -> None:
    response = send(lead, name, FORMS[name])
    assert response.status_code == 400
    page = response.content.decode()
    assert "File: choose a" in Page(page).text
    assert ('value="kept-name"' in page) == ("kept-name" in FORMS[name].values())


@pytest.mark.parametrize("name", FORMS)
def test_a_field_that_is_no_input_of_the_form_is_still_refused(lead: Client, name: str) -> None:
    response = send(lead, name, {**FORMS[name], "actor": "1"})
    assert response.status_code == 400
    assert "File: choose a" not in Page(response.content.decode()).text
