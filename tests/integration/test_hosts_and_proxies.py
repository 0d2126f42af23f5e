"""Host headers of strangers, and whose word about a request counts (S24)."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest
from django.test import Client, RequestFactory
from django.urls import reverse

from tests.factories import make_user
from workbench.accounts import create_reset_link
from workbench.kernel.addresses import client_address
from workbench.kernel.public import public_url
from workbench.kernel.roles import Role
from workbench.middleware import drop_strangers_headers

pytestmark = pytest.mark.django_db

EVIL = "evil.example"
PUBLIC = "https://audit.example.org"


@pytest.fixture
def behind_a_proxy(settings: Any) -> None:
    """Have the settings of an https address behind a proxy on this machine."""
    settings.ALLOWED_HOSTS = ["localhost", "audit.example.org"]
    settings.PUBLIC_URL = PUBLIC
    settings.CSRF_TRUSTED_ORIGINS = [PUBLIC]
    settings.PROXIES = [ip_network("127.0.0.0/8")]
    settings.TRUSTED_PROXIES = 1
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_SSL_HOST = "audit.example.org"
    settings.SECURE_REDIRECT_EXEMPT = [r"^health/$", r"^ready/$"]
    settings.SESSION_COOKIE_SECURE = settings.CSRF_COOKIE_SECURE = True
    settings.SECURE_HSTS_SECONDS = 60


HOSTS = [
    EVIL,
    "testserver.evil.example",
    "testserver@evil.example",
    "testserver:80@evil.example",
    "evil.example:80",
    "testserver, evil.example",
    "",
    "*",
    "[::1].evil.example",
    "<script>evil.example",
]


@pytest.mark.parametrize("host", HOSTS)
def test_a_strangers_host_is_refused_and_never_given_back(host: str) -> None:
    client = Client(raise_request_exception=False)
    for path in ("/", "/sign-in/", "/health/", "/ready/", "/api/v1/status/"):
        response = client.get(path, headers={"Host": host})
        assert response.status_code == 400, path
        assert "evil" not in response.content.decode()
        assert "evil" not in str(response.headers)
        # The same request to a host of ours is answered.
        assert client.get(path, headers={"Host": "testserver"}).status_code != 400


def test_a_forwarded_host_means_nothing() -> None:
    client = Client()
    for name in ("X-Forwarded-Host", "Forwarded", "X-Original-Host"):
        response = client.get("/", headers={name: f"host={EVIL}"})
        assert response.status_code == 302
        assert EVIL not in response["Location"]


def test_links_are_made_from_the_settings_whatever_the_request_says(settings: Any) -> None:
    settings.PUBLIC_URL = PUBLIC
    settings.ALLOWED_HOSTS = ["*"]
    admin, rater = make_user("ada", Role.ADMIN), make_user("rae", Role.ANNOTATOR)
    from django.utils import timezone

    link = create_reset_link(user=rater, actor=admin, at=timezone.now())
    path = reverse("sign-in-link", kwargs={"token": link.token})
    assert public_url(path) == f"{PUBLIC}{path}"
    settings.PUBLIC_URL = ""
    assert public_url(path, served="http://127.0.0.1:8001/") == f"http://127.0.0.1:8001{path}"
    settings.WEB_URL = "http://192.0.2.7:8000/"
    assert public_url(path, served="http://127.0.0.1:8001/") == f"http://192.0.2.7:8000{path}"


# --- the proxy -------------------------------------------------------------------

HTTPS = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.9"}


def get(path: str, *, peer: str, **headers: str) -> Any:
    client = Client(REMOTE_ADDR=peer)
    return client.get(path, headers={"Host": "audit.example.org", **headers})


def test_the_proxys_word_makes_a_request_secure(behind_a_proxy: None) -> None:
    page = get("/sign-in/", peer="127.0.0.1", **HTTPS)
    assert page.status_code == 200
    assert page["Strict-Transport-Security"].startswith("max-age=60")
    assert page.cookies["csrftoken"]["secure"]
    # Without it the browser is sent to the public address, wherever it came in.
    plain = Client().get("/sign-in/", headers={"Host": "localhost"})
    assert (plain.status_code, plain["Location"]) == (301, f"{PUBLIC}/sign-in/")


@pytest.mark.parametrize("peer", ["192.0.2.55", "10.0.0.1", "::ffff:192.0.2.55", "nonsense"])
def test_a_strangers_word_is_dropped(behind_a_proxy: None, peer: str) -> None:
    response = get("/sign-in/", peer=peer, **HTTPS)
    assert (response.status_code, response["Location"]) == (301, f"{PUBLIC}/sign-in/")


def test_without_a_proxy_nobodys_word_counts() -> None:
    # The peer is this machine itself, as for every request to a workbench on loopback.
    page = Client().get("/sign-in/", headers=HTTPS)
    assert page.status_code == 200
    assert not page.wsgi_request.is_secure()
    assert client_address(page.wsgi_request) == "127.0.0.1"


def test_without_the_first_middleware_it_would(behind_a_proxy: None, settings: Any) -> None:
    """Shows that the tests above would notice."""
    settings.MIDDLEWARE = [
        name for name in settings.MIDDLEWARE if not name.endswith("drop_strangers_headers")
    ]
    assert get("/sign-in/", peer="192.0.2.55", **HTTPS).status_code == 200


def test_a_client_is_known_by_the_address_that_its_proxy_saw(
    behind_a_proxy: None, settings: Any
) -> None:
    def seen(peer: str, forwarded: str) -> str:
        request = RequestFactory().get("/", REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=forwarded)
        drop_strangers_headers(lambda request: client_address(request))(request)  # type: ignore[arg-type,return-value]
        return client_address(request)

    assert seen("127.0.0.1", "198.51.100.9") == "198.51.100.9"
    # What the client wrote itself stands before what the proxy added.
    assert seen("127.0.0.1", "203.0.113.1, 198.51.100.9") == "198.51.100.9"
    assert seen("192.0.2.55", "198.51.100.9") == "192.0.2.55"
    # A Unix socket has no address; only a proxy reaches it.
    assert seen("", "198.51.100.9") == "198.51.100.9"
    settings.PROXIES = []
    assert seen("127.0.0.1", "198.51.100.9") == "127.0.0.1"
    assert seen("", "198.51.100.9") == ""


def test_probes_on_this_machine_need_no_tls(behind_a_proxy: None) -> None:
    for path, status in (("/health/", 200), ("/ready/", 503)):
        assert Client().get(path, headers={"Host": "localhost"}).status_code == status
    assert Client().get("/glossary/", headers={"Host": "localhost"}).status_code == 301


def test_forms_are_taken_from_the_public_address_alone(behind_a_proxy: None) -> None:
    client = Client(enforce_csrf_checks=True, REMOTE_ADDR="127.0.0.1")
    headers = {"Host": "audit.example.org", "X-Forwarded-Proto": "https"}
    client.get("/sign-in/", headers=headers)
    form = {"theme": "dark", "next": "/", "csrfmiddlewaretoken": client.cookies["csrftoken"].value}
    for origin, status in ((PUBLIC, 302), (f"https://{EVIL}", 403), ("null", 403)):
        response = client.post("/theme/", form, headers={**headers, "Origin": origin})
        assert response.status_code == status, origin
