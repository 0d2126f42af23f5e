"""Which endpoints the browser may use: configured by file and environment, told by line."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from tests.factories import make_user
from tests.shared import ROOT
from workbench.kernel.roles import Role
from workbench.llm.endpoints import (
    InvalidEndpoints,
    configured_endpoints,
    endpoints_file,
    parse_endpoints,
)
from workbench.management.commands import doctor

EXAMPLE = """\
[[endpoint]]
name = "gateway"
base_url = "https://llm.example/v1"
api_key_env = "GATEWAY_KEY"

[[endpoint.model]]
id = "small"
price_in = 0.5
price_out = 1.5
requests_per_minute = 60

[[endpoint.model]]
id = "large"
dialect = "json_action"

[[endpoint]]
name = "house"
base_url = "http://10.0.0.5:8000/v1/"
models = ["qwen", "llama"]
"""


@pytest.fixture(autouse=True)
def own_folder(settings: Any, tmp_path: Path) -> None:
    settings.DATA_DIR = tmp_path
    settings.WORKBENCH_ALLOW_SCRIPTED = False


def names() -> list[str]:
    return [endpoint.name for endpoint in configured_endpoints()]


def test_the_file_names_endpoints_and_what_their_models_cost() -> None:
    endpoints_file().write_text(EXAMPLE)
    gateway, house = configured_endpoints()
    assert (gateway.base_url, gateway.api_key_env) == ("https://llm.example/v1", "GATEWAY_KEY")
    small, large = gateway.models
    assert (small.price_in, small.price_out, small.requests_per_minute) == (0.5, 1.5, 60)
    assert (large.dialect, large.price_in) == ("json_action", None)
    assert [model.id for model in house.models] == ["qwen", "llama"]
    assert house.api_key_env is None


def test_the_example_of_the_docs_is_accepted() -> None:
    text = (ROOT / "docs" / "experiments.md").read_text()
    example = text.split("## Endpoints for the browser")[1].split("```toml\n")[1].split("```")[0]
    gateway, house = parse_endpoints(example, path="endpoints.toml")
    assert [model.id for model in (*gateway.models, *house.models)] == [
        "small-4b",
        "large-70b",
        "qwen3-8b",
        "qwen3-32b",
    ]


def test_without_a_file_there_is_none_and_another_file_may_be_named(
    settings: Any, tmp_path: Path
) -> None:
    assert configured_endpoints() == ()
    settings.ENDPOINTS_FILE = str(tmp_path / "elsewhere.toml")
    with pytest.raises(InvalidEndpoints, match="no such file"):
        configured_endpoints()
    Path(settings.ENDPOINTS_FILE).write_text(EXAMPLE)
    assert names() == ["gateway", "house"]


def test_the_environment_adds_its_own(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.OPENAI_BASE_URL = "https://other.example/v1"
    settings.EMBEDDED_MODEL_URL = "http://127.0.0.1:1/v1"
    settings.WORKBENCH_ALLOW_SCRIPTED = True
    assert names() == ["OPENAI_BASE_URL", "embedded", "scripted"]
    assert configured_endpoints()[0].api_key_env is None
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    first = configured_endpoints()[0]
    assert (first.api_key_env, first.models) == ("OPENAI_API_KEY", ())
    # The file's own entry of the same address counts, with its models and its key.
    settings.OPENAI_BASE_URL = "https://llm.example/v1/"
    endpoints_file().write_text(EXAMPLE)
    assert names() == ["gateway", "house", "embedded", "scripted"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://user:sk-secret@llm.example/v1", "host, port and path only"),
        ("https://llm.example/v1?api-key=sk-secret", "OPENAI_API_KEY"),
        ("https://llm.example/v1#sk-secret", "host, port and path only"),
        ("https://user:sk-secret", "is no URL"),
        ("https://sk-secret[", "is no URL"),
        ("ftp://sk-secret", "begins with https:// or http://"),
    ],
)
def test_a_secret_in_the_environments_address_is_told_and_never_shown(
    settings: Any, client: Client, url: str, said: str
) -> None:
    settings.OPENAI_BASE_URL = url
    with pytest.raises(InvalidEndpoints, match=re.escape(said)) as error:
        configured_endpoints()
    assert str(error.value).startswith("OPENAI_BASE_URL (environment): the address ")
    client.force_login(make_user("lee", Role.LEAD))
    shown = client.get("/api/v1/endpoints/").content.decode()
    told = " ".join(finding.text for finding in (*doctor.endpoints(), *doctor.model()))
    assert said in shown
    assert said in told
    assert "secret" not in f"{error.value}{shown}{told}"
    # An entry of the file can't hold it either, and doesn't quote it.
    with pytest.raises(InvalidEndpoints) as error:
        parse_endpoints(EXAMPLE.replace("https://llm.example/v1", url), path="endpoints.toml")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('name = "gateway"', 'title = "gateway"'), r":2: unknown key 'title'.*may hold: name"),
        (('name = "gateway"', ""), r":1: \[\[endpoint\]\] needs the key 'name'"),
        (('name = "house"', 'name = "gateway"'), r":17: 'gateway' is named twice"),
        (('name = "gateway"', 'name = "embedded"'), r":2: 'name' may not be embedded"),
        (("https://llm", "ftp://llm"), r":3: 'base_url' must be an address"),
        (("https://llm", "file:///etc"), r":3: 'base_url' must be an address"),
        (("https://llm", "https://sk-1@llm"), r":3: 'base_url' may hold host, port and path"),
        (("https://llm.example/v1", "scripted:mixed"), r":3: 'base_url' is a scripted model"),
        (("http://10.0.0.5:8000/v1/", "https://llm.example/v1/"), r":18: the address is that of"),
        (("GATEWAY_KEY", "sk-proj-12345"), r":4: 'api_key_env' must be the name of an env"),
        (('id = "large"', 'id = "small"'), r":1: the model 'small' is named twice"),
        (("price_in = 0.5", "price_in = -1"), r":8: 'price_in' must be a number from 0"),
        (("price_in = 0.5", "price_in = inf"), r":8: 'price_in' must be a number from 0"),
        (("price_in = 0.5", f"price_in = {'9' * 5_000}"), "not valid TOML"),
        (("price_out = 1.5", 'price_out = "1"'), r":9: 'price_out' must be a number"),
        (("json_action", "xml"), r":14: 'dialect' must be one of native, json_action"),
        (('id = "large"', ""), r":12: \[\[endpoint.model\]\] needs the key 'id'"),
        (('models = ["qwen", "llama"]', "models = 3"), r":19: models must be a list of names"),
        (("[[endpoint]]", "[endpoint]"), r"\[\[endpoint\]\]|not valid TOML"),
        (('id = "small"', "id = "), r":7: not valid TOML"),
    ],
    ids=lambda value: value[1][:30] if isinstance(value, tuple) else "",
)
def test_each_fault_is_told_by_its_line(change: tuple[str, str], fault: str) -> None:
    text = EXAMPLE.replace(*change)
    assert text != EXAMPLE
    with pytest.raises(InvalidEndpoints, match=fault) as error:
        parse_endpoints(text, path="endpoints.toml")
    # A key that was written in the wrong place is not spread further.
    assert "sk-" not in str(error.value)


def test_doctor_lists_the_endpoints_and_their_missing_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from workbench.management.commands import doctor

    monkeypatch.setattr(doctor, "CHECKS", {"endpoints": doctor.endpoints})

    def told() -> str:
        out = io.StringIO()
        call_command("doctor", stdout=out)
        return out.getvalue()

    assert "absent   endpoints none is configured" in told()
    endpoints_file().write_text(EXAMPLE)
    assert "gateway, from " in told()
    assert "its variable GATEWAY_KEY is not set here" in told()
    monkeypatch.setenv("GATEWAY_KEY", "sk-secret")
    assert "ok       endpoints gateway" in told()
    assert "sk-secret" not in told()
    endpoints_file().write_text("[[endpoint]]\n")
    assert "the endpoints can't be read" in told()
