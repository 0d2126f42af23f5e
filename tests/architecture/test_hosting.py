"""docs/hosting.md: its units are units, its settings are settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.shared import ROOT

TEXT = (ROOT / "docs" / "hosting.md").read_text()
UNITS = dict(re.findall(r"```ini\n# /etc/systemd/system/(\S+\.service)\n(.*?)```", TEXT, re.S))


def test_every_unit_ends_what_it_starts_in_order() -> None:
    assert set(UNITS) == {"workbench.service", "workbench-web.service"}
    for name, text in UNITS.items():
        # Otherwise pool processes and children are told to end before their parent asks them.
        assert "KillMode=mixed" in text, name
        assert re.search(r"^ExecStart=/usr/bin/python3 \S+/manage\.py (serve|web) ", text, re.M)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_every_unit(name: str, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze on this machine")
    assert faults(analyze, name, UNITS[name], tmp_path) == []
    # It does look.
    spoiled = UNITS[name].replace("KillMode=mixed", "KillMode=gently")
    assert faults(analyze, name, spoiled, tmp_path)


def faults(analyze: str, name: str, unit: str, folder: Path) -> list[str]:
    """Return what systemd says of the unit."""
    # The program, its folder and its user are another machine's.
    text = unit.replace("/usr/bin/python3", "/bin/sh").replace("User=workbench", "User=root")
    (folder / name).write_text(text.replace("/srv/workbench/app", "/"))
    checked = subprocess.run(
        [analyze, "verify", "--man=no", str(folder / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [line for line in checked.stderr.splitlines() if name in line]


def test_caddy_accepts_its_example(tmp_path: Path) -> None:
    caddy = shutil.which("caddy")
    if caddy is None:
        pytest.skip("no Caddy on this machine")
    example = tmp_path / "Caddyfile"
    example.write_text(TEXT.split("```caddy\n")[1].split("```")[0])
    command = [caddy, "adapt", "--config", str(example), "--adapter", "caddyfile"]
    adapted = subprocess.run(command, capture_output=True, text=True, check=False)
    assert adapted.returncode == 0, adapted.stderr
    assert '"dial":"127.0.0.1:8000"' in adapted.stdout


def test_every_setting_of_the_web_has_its_row() -> None:
    source = (ROOT / "workbench" / "settings.py").read_text()
    source = source.split("# --- where the pages are")[1].split("INSTALLED_APPS")[0]
    read = set(re.findall(r'"(WORKBENCH_[A-Z_]+)"', source)) - {"WORKBENCH_WEB_URL"}
    assert {"WORKBENCH_HOSTS", "WORKBENCH_PROXIES"} <= read
    rows = set(re.findall(r"^\| `(WORKBENCH_[A-Z_]+)` \|", TEXT, re.M))
    assert read <= rows
