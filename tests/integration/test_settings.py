"""The settings as processes read them: what is refused, and who may read the data folder."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import ROOT

KEY = "k3y-" * 13  # 52 characters
KEY_OF_90 = "".join(chr(33 + (7 * n) % 90) for n in range(64))
PRODUCTION = {
    "WORKBENCH_ENV": "production",
    "SECRET_KEY": KEY_OF_90,
    "DATABASE_URL": "postgres://nobody@localhost/none",
    "BROKER_URL": "redis://localhost/0",
    "WORKBENCH_HOSTS": "workbench.example",
}
SETTINGS = "import django; django.setup(); from django.conf import settings; "


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the settings that ``environment`` makes, with ``folder`` for data."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    given = {"DJANGO_SETTINGS_MODULE": "workbench.settings", "WORKBENCH_DATA": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=kept | given | environment,
        umask=0o022,
        capture_output=True,
        text=True,
        check=False,
    )


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_data_folder_is_its_owners_alone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    script = SETTINGS + (
        "from django.db import connection as c; from pathlib import Path; "
        "c.cursor().execute('CREATE TABLE t (x)'); "
        # Read while it is open: the write-ahead log goes with the connection.
        "print({p.name: oct(p.stat().st_mode & 0o777) for p in Path(settings.DATA_DIR).iterdir()});"
        "print(settings.SECRET_KEY)"
    )
    first = python(data, "-c", script)
    assert first.returncode == 0, first.stderr
    modes, key = first.stdout.splitlines()
    for name in ("secret_key", "workbench.sqlite3", "workbench.sqlite3-wal"):
        assert f"'{name}': '0o600'" in modes
    assert "'uploads': '0o700'" in modes
    assert modes.count("0o600") + 1 == modes.count("0o")
    assert mode(data) == 0o700
    assert len(key) >= 50
    # The second start finds both, and leaves nothing lying about.
    second = python(data, "-c", SETTINGS + "print(settings.SECRET_KEY)")
    assert second.stdout.strip() == key
    assert sorted(path.name for path in data.iterdir()) == [
        "secret_key",
        "uploads",
        "workbench.sqlite3",
    ]


@pytest.mark.parametrize("name", ["Production", "prod", "staging", "PRODUCTION"])
def test_an_environment_of_another_name_is_refused(name: str, tmp_path: Path) -> None:
    refused = python(tmp_path, "-c", SETTINGS, **PRODUCTION | {"WORKBENCH_ENV": name})
    assert refused.returncode != 0
    assert f"WORKBENCH_ENV is {name!r}; it may be unset, 'embedded' or" in refused.stderr


@pytest.mark.parametrize("name", ["", "embedded"])
def test_the_embedded_environment_needs_nothing(name: str, tmp_path: Path) -> None:
    script = SETTINGS + "print(settings.PRODUCTION, settings.SESSION_COOKIE_SECURE)"
    assert python(tmp_path, "-c", script, WORKBENCH_ENV=name).stdout == "False False\n"


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("x", "SECRET_KEY has 1 characters; give at least 50 random ones"),
        (KEY[:49], "SECRET_KEY has 49 characters; give at least 50 random ones"),
        (KEY, "SECRET_KEY repeats 4 characters"),
        ("django-insecure-" + KEY_OF_90[:50], "SECRET_KEY is a sample that others know"),
        ("changeme" + KEY_OF_90[:50], "SECRET_KEY is a sample that others know"),
    ],
)
def test_a_key_that_others_can_guess_is_refused(key: str, says: str, tmp_path: Path) -> None:
    refused = python(tmp_path, "-c", SETTINGS, **PRODUCTION | {"SECRET_KEY": key})
    assert refused.returncode != 0
    assert says in refused.stderr
    assert "secrets.token_urlsafe(64)" in refused.stderr
    if key == KEY:  # one machine's key signs sessions as well
        refused = python(tmp_path, "-c", SETTINGS, SECRET_KEY=key)
        assert says in refused.stderr
    assert key[:49] not in refused.stderr or key == "x"


def test_production_names_all_that_is_missing_at_once(tmp_path: Path) -> None:
    refused = python(tmp_path, "manage.py", "check", WORKBENCH_ENV="production")
    assert refused.returncode == 1
    assert refused.stderr == (
        "error: WORKBENCH_ENV=production needs SECRET_KEY, DATABASE_URL, BROKER_URL, "
        "WORKBENCH_PUBLIC_URL (or WORKBENCH_HOSTS); see docs/hosting.md\n"
    )
    any_host = python(tmp_path, "-c", SETTINGS, **PRODUCTION | {"WORKBENCH_HOSTS": "*"})
    assert "WORKBENCH_HOSTS names any host" in any_host.stderr
    script = SETTINGS + "print(settings.PRODUCTION, settings.DEBUG, settings.PUBLIC_URL)"
    whole = python(tmp_path, "-c", script, DEBUG="1", **PRODUCTION)
    assert whole.stdout == "True False https://workbench.example\n"
    # Nothing of production is in the data folder.
    assert {path.name for path in tmp_path.iterdir()} <= {"uploads"}


WEB = (
    SETTINGS
    + """
names = ("ALLOWED_HOSTS CSRF_TRUSTED_ORIGINS SESSION_COOKIE_SECURE CSRF_COOKIE_SECURE "
    "SECURE_SSL_REDIRECT SECURE_SSL_HOST SECURE_HSTS_SECONDS SECURE_PROXY_SSL_HEADER "
    "TRUSTED_PROXIES PROXIES")
import json
print(json.dumps({name: getattr(settings, name) for name in names.split()}, default=str))
"""
)
LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]
YEAR_S = 31_536_000
PLAIN = {
    "ALLOWED_HOSTS": LOOPBACK,
    "CSRF_TRUSTED_ORIGINS": [],
    "SESSION_COOKIE_SECURE": False,
    "CSRF_COOKIE_SECURE": False,
    "SECURE_SSL_REDIRECT": False,
    "SECURE_SSL_HOST": None,
    "SECURE_HSTS_SECONDS": 0,
    "SECURE_PROXY_SSL_HEADER": None,
    "TRUSTED_PROXIES": 0,
    "PROXIES": [],
}
PROXIED = {
    "SECURE_PROXY_SSL_HEADER": ["HTTP_X_FORWARDED_PROTO", "https"],
    "TRUSTED_PROXIES": 1,
    "PROXIES": ["127.0.0.0/8", "::1/128"],
}
SECURE = {
    "SESSION_COOKIE_SECURE": True,
    "CSRF_COOKIE_SECURE": True,
    "SECURE_SSL_REDIRECT": True,
    "SECURE_HSTS_SECONDS": YEAR_S,
}


@pytest.mark.parametrize(
    ("given", "differs"),
    [
        ({}, {}),
        (
            {"WORKBENCH_PUBLIC_URL": "https://audit.example.org:8443/"},
            PROXIED
            | SECURE
            | {
                "ALLOWED_HOSTS": [*LOOPBACK, "audit.example.org"],
                "CSRF_TRUSTED_ORIGINS": ["https://audit.example.org:8443"],
                "SECURE_SSL_HOST": "audit.example.org:8443",
            },
        ),
        # Served there directly: no proxy, whose word would count, and no TLS.
        (
            {
                "WORKBENCH_PUBLIC_URL": "http://audit.lan:8000",
                "WORKBENCH_WEB_URL": "http://192.0.2.7:8000/",
            },
            {
                "ALLOWED_HOSTS": [*LOOPBACK, "audit.lan"],
                "CSRF_TRUSTED_ORIGINS": ["http://audit.lan:8000"],
                "SECURE_SSL_HOST": "audit.lan:8000",
            },
        ),
        # A proxy without TLS, on another machine.
        (
            {
                "WORKBENCH_PUBLIC_URL": "http://audit.lan",
                "WORKBENCH_WEB_URL": "http://192.0.2.7:8000/",
                "WORKBENCH_PROXIES": "10.0.0.5, 172.16.0.0/12",
            },
            PROXIED
            | {
                "ALLOWED_HOSTS": [*LOOPBACK, "audit.lan"],
                "CSRF_TRUSTED_ORIGINS": ["http://audit.lan"],
                "SECURE_SSL_HOST": "audit.lan",
                "PROXIES": ["10.0.0.5/32", "172.16.0.0/12"],
            },
        ),
        (
            PRODUCTION,
            PROXIED
            | SECURE
            | {"ALLOWED_HOSTS": ["workbench.example"], "SECURE_SSL_HOST": "workbench.example"},
        ),
    ],
    ids=["loopback", "https", "direct", "proxy", "production"],
)
def test_the_public_address_decides_hosts_cookies_and_whom_to_believe(
    given: dict[str, str], differs: dict[str, object], tmp_path: Path
) -> None:
    read = python(tmp_path, "-c", WEB, **given)
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == PLAIN | differs


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("WORKBENCH_PUBLIC_URL", "audit.example.org", "write https://audit.example.org"),
        ("WORKBENCH_PUBLIC_URL", "https://example.org/audit", "can't live below a path"),
        ("WORKBENCH_PROXIES", "10.0.0.5;10.0.0.6", "write as in 10.0.0.5,172.16.0.0/12"),
    ],
)
def test_an_address_that_can_not_be_is_refused_by_its_variable(
    name: str, value: str, says: str, tmp_path: Path
) -> None:
    given = {"WORKBENCH_PUBLIC_URL": "https://audit.example.org", name: value}
    refused = python(tmp_path, "manage.py", "check", **given)
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"error: {name}: ")
    assert says in refused.stderr


def test_djangos_own_check_finds_nothing_in_production(tmp_path: Path) -> None:
    strict = ["-W", "error", "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    checked = python(tmp_path, *strict, **PRODUCTION)
    assert checked.returncode == 0, checked.stderr
    assert "no issues" in checked.stdout
    assert "WARNING" not in checked.stderr
    # The check does look: the embedded settings are for one machine.
    assert python(tmp_path, *strict).returncode != 0


def test_a_sqlite_database_by_address_is_opened_like_the_embedded_one(tmp_path: Path) -> None:
    script = SETTINGS + "print(settings.DATABASES['default']['OPTIONS']['transaction_mode'])"
    url = f"sqlite:///{tmp_path}/other.sqlite3"
    assert python(tmp_path, "-c", script, DATABASE_URL=url).stdout == "IMMEDIATE\n"


MAIL = SETTINGS + (
    "print(settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_HOST_USER,"
    " settings.EMAIL_HOST_PASSWORD, settings.EMAIL_USE_TLS, settings.EMAIL_USE_SSL)"
)


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("smtp+tls://me%40x:p%2Fw@mail.example", "mail.example 587 me@x p/w True False"),
        ("smtp+ssl://me:pw@mail.example:4465", "mail.example 4465 me pw False True"),
        ("smtp://mail.example", "mail.example 25   False False"),
    ],
)
def test_the_address_of_the_mail_server_says_how_it_is_spoken_to(
    tmp_path: Path, url: str, read: str
) -> None:
    done = python(tmp_path, "-c", MAIL, WORKBENCH_SMTP_URL=url, WORKBENCH_MAIL_FROM="w@example.org")
    assert done.stdout.strip() == read, done.stderr


@pytest.mark.parametrize("url", ["smtps://mail.example", "smtp://mail.example?tls=true", "mail:25"])
def test_a_mail_server_that_might_be_told_a_password_in_the_clear_is_refused(
    tmp_path: Path, url: str
) -> None:
    done = python(tmp_path, "-c", MAIL, WORKBENCH_SMTP_URL=url, WORKBENCH_MAIL_FROM="w@example.org")
    assert done.returncode
    assert "WORKBENCH_SMTP_URL must be smtp+tls://" in done.stderr
