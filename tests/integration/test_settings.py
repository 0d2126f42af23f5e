"""The settings as processes read them: what is refused, and who may read the data folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import ROOT

KEY = "k3y-" * 13  # 52 characters
PRODUCTION = {
    "WORKBENCH_ENV": "production",
    "SECRET_KEY": "".join(chr(33 + (7 * n) % 90) for n in range(64)),
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
    assert modes.count("0o600") == modes.count("0o")
    assert mode(data) == 0o700
    assert len(key) >= 50
    # The second start finds both, and leaves nothing lying about.
    second = python(data, "-c", SETTINGS + "print(settings.SECRET_KEY)")
    assert second.stdout.strip() == key
    assert sorted(path.name for path in data.iterdir()) == ["secret_key", "workbench.sqlite3"]


@pytest.mark.parametrize("name", ["Production", "prod", "staging", "PRODUCTION"])
def test_an_environment_of_another_name_is_refused(name: str, tmp_path: Path) -> None:
    refused = python(tmp_path, "-c", SETTINGS, **PRODUCTION | {"WORKBENCH_ENV": name})
    assert refused.returncode != 0
    assert f"WORKBENCH_ENV is {name!r}; it may be unset, 'embedded' or" in refused.stderr


@pytest.mark.parametrize("name", ["", "embedded"])
def test_the_embedded_environment_needs_nothing(name: str, tmp_path: Path) -> None:
    script = SETTINGS + "print(settings.PRODUCTION, settings.SESSION_COOKIE_SECURE)"
    assert python(tmp_path, "-c", script, WORKBENCH_ENV=name).stdout == "False False\n"


def test_production_refuses_a_short_key_and_none(tmp_path: Path) -> None:
    for short in ("x", KEY[:49]):
        refused = python(tmp_path, "-c", SETTINGS, **PRODUCTION | {"SECRET_KEY": short})
        assert refused.returncode != 0
        assert f"SECRET_KEY has {len(short)} characters; give at least 50" in refused.stderr
        assert KEY[:49] not in refused.stderr
    for name in ("SECRET_KEY", "DATABASE_URL", "BROKER_URL"):
        given = {key: value for key, value in PRODUCTION.items() if key != name}
        refused = python(tmp_path, "-c", SETTINGS, **given)
        assert refused.returncode != 0
        assert name in refused.stderr
    script = SETTINGS + "print(settings.PRODUCTION, settings.SESSION_COOKIE_SECURE)"
    assert python(tmp_path, "-c", script, **PRODUCTION).stdout == "True True\n"
    # Nothing of production is in the data folder.
    assert list(tmp_path.iterdir()) == []


def test_djangos_own_check_finds_nothing_in_production(tmp_path: Path) -> None:
    strict = ["manage.py", "check", "--deploy", "--fail-level", "WARNING"]
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
