"""The head of manage.py: when it installs, what, and what it says when it can't."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench import bootstrap

ROOT = bootstrap.ROOT
PYTHON = getattr(sys, "_base_executable", sys.executable)


class Installer:
    """Stands in for the steps that need a network, and keeps what was asked for."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.commands: list[list[str]] = []
        self.failures: dict[str, str] = {}
        self.during: Callable[[str], None] = lambda what: None

    def __call__(
        self, what: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> str | None:
        self.steps.append(what)
        self.commands.append(list(command))
        self.during(what)
        for part, failure in self.failures.items():
            if part in " ".join(command):
                return failure
        if "venv" in command:
            make_venv(Path(command[-1]))
        if any(word.endswith("uv.txt") for word in command):
            (Path(command[0]).parent / "uv").touch()
        return None

    @property
    def installed(self) -> list[str]:
        """Return the names of the lock files the last step read."""
        return [Path(word).name for word in self.commands[-1] if word.endswith(".txt")]


def make_venv(venv: Path) -> None:
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(PYTHON)
    (venv / "pyvenv.cfg").write_text("version = 3.11.0\n")


@pytest.fixture
def installer(monkeypatch: pytest.MonkeyPatch) -> Installer:
    fake = Installer()
    monkeypatch.setattr(bootstrap, "_step", fake)
    monkeypatch.setattr(bootstrap, "_uv_env", lambda python: {})
    monkeypatch.setattr(bootstrap, "_has_ensurepip", lambda python: True)
    return fake


def manage(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run manage.py as a machine without any package does, from another folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    return subprocess.run(
        [PYTHON, "-I", "-S", str(ROOT / "manage.py"), *arguments],
        cwd=cwd,
        env=clean | env,
        capture_output=True,
        text=True,
        check=False,
    )


# --- without packages -----------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command_and_installs_nothing(
    arguments: list[str], tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    shown = manage(*arguments, cwd=tmp_path, WORKBENCH_VENV=str(venv))
    assert shown.returncode == 0, shown.stderr
    for file in ROOT.glob("*/management/commands/[!_]*.py"):
        assert re.search(rf"^  {file.stem} ", shown.stdout, re.MULTILINE), file.stem
    assert not list(tmp_path.iterdir())


def test_every_command_says_what_it_does() -> None:
    assert [name for name, text in bootstrap.command_summaries().items() if not text] == []


@pytest.mark.parametrize("arguments", [["demo", "--help"], ["help", "demo"], ["demo", "-h"]])
def test_a_commands_help_installs_nothing(arguments: list[str], tmp_path: Path) -> None:
    shown = manage(*arguments, cwd=tmp_path, WORKBENCH_VENV=str(tmp_path / "venv"))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("python3 manage.py demo: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_the_version_installs_nothing(argument: str, tmp_path: Path) -> None:
    shown = manage(argument, cwd=tmp_path, WORKBENCH_VENV=str(tmp_path / "venv"))
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", shown.stdout)
    assert not list(tmp_path.iterdir())


def test_an_old_python_can_read_manage_py() -> None:
    source = (ROOT / "manage.py").read_text()
    ast.parse(source, feature_version=(3, 4))
    # feature_version lets f-strings pass.
    assert not [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)]


def test_windows_is_sent_to_wsl(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORKBENCH_VENV", str(tmp_path / "venv"))
    monkeypatch.setattr(bootstrap, "_in_foreign_environment", lambda: False)
    monkeypatch.setattr(bootstrap.sys, "platform", "win32")
    assert bootstrap.main(["manage.py", "demo"]) == 1
    assert "wsl --install" in capsys.readouterr().err


# --- locks ----------------------------------------------------------------------


def requirements(name: str) -> set[str]:
    lines = (bootstrap.LOCKS / f"{name}.txt").read_text().splitlines()
    return {line.rstrip("\\ ") for line in lines if line[:1].isalnum()}


def test_the_test_lock_contains_the_base_lock() -> None:
    assert requirements("base") <= requirements("test")


@pytest.mark.parametrize("name", ["base", "model", "test", "uv"])
def test_a_lock_pins_hashes_and_names_no_address(name: str) -> None:
    text = (bootstrap.LOCKS / f"{name}.txt").read_text()
    assert "://" not in text
    blocks = re.split(r"\n(?=\S)", text.strip())
    assert blocks
    assert all(re.match(r"[A-Za-z0-9.\[\]_-]+==", block) for block in blocks)
    assert all("--hash=sha256:" in block for block in blocks)


@pytest.mark.parametrize(
    ("command", "locks"),
    [
        ("demo", ["base.txt", "model.txt"]),
        ("test", ["test.txt", "model.txt"]),
        ("migrate", ["base.txt"]),
    ],
)
def test_a_command_gets_the_locks_it_needs(
    command: str, locks: list[str], installer: Installer, tmp_path: Path
) -> None:
    bootstrap.prepare(tmp_path / "venv", bootstrap.LOCKS_OF.get(command, ("base",)))
    assert installer.installed == locks


# --- when it installs -------------------------------------------------------------


def test_a_prepared_environment_is_left_alone(installer: Installer, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    bootstrap.prepare(venv, ("base",))
    assert bootstrap.is_ready(venv, ("base",))
    steps = len(installer.steps)
    bootstrap.prepare(venv, ("base",))
    assert len(installer.steps) == steps


def test_a_further_lock_is_added_and_the_first_stays(installer: Installer, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    bootstrap.prepare(venv, ("base",))
    bootstrap.prepare(venv, ("base", "model"))
    assert bootstrap.is_ready(venv, ("base", "model"))
    bootstrap.prepare(venv, ("test",))
    assert bootstrap.is_ready(venv, ("base", "model", "test"))
    # One environment and one uv serve all three.
    assert sum("environment" in step for step in installer.steps) == 1
    assert sum("uv" in step for step in installer.steps) == 1


def test_a_changed_lock_is_installed(
    installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv, locks = tmp_path / "venv", tmp_path / "locks"
    locks.mkdir()
    (locks / "base.txt").write_text("a==1\n")
    monkeypatch.setattr(bootstrap, "LOCKS", locks)
    bootstrap.prepare(venv, ("base",))
    (locks / "base.txt").write_text("a==2\n")
    assert not bootstrap.is_ready(venv, ("base",))
    bootstrap.prepare(venv, ("base",))
    assert bootstrap.is_ready(venv, ("base",))


def test_an_interrupted_installation_is_rebuilt(installer: Installer, tmp_path: Path) -> None:
    venv = tmp_path / "venv"

    def interrupt(what: str) -> None:
        if "packages" in what:
            assert (venv / bootstrap.MARKER).exists()
            (venv / "half a package").touch()
            raise KeyboardInterrupt

    installer.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        bootstrap.prepare(venv, ("base",))
    assert not bootstrap.is_ready(venv, ("base",))
    installer.during = lambda what: None
    bootstrap.prepare(venv, ("base",))
    assert bootstrap.is_ready(venv, ("base",))
    assert not (venv / "half a package").exists()


def test_an_interrupted_addition_is_rebuilt_although_a_stamp_stands(
    installer: Installer, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    bootstrap.prepare(venv, ("base",))
    (venv / bootstrap.MARKER).touch()
    assert not bootstrap.is_ready(venv, ("base",))


def test_an_environment_whose_python_is_gone_is_rebuilt(
    installer: Installer, tmp_path: Path
) -> None:
    venv = tmp_path / "venv"
    bootstrap.prepare(venv, ("base",))
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/nonexistent/python3.11")
    assert not bootstrap.is_ready(venv, ("base",))
    bootstrap.prepare(venv, ("base",))
    assert bootstrap.is_ready(venv, ("base",))


def test_a_damaged_stamp_is_no_stamp(installer: Installer, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    bootstrap.prepare(venv, ("base",))
    (venv / bootstrap.STAMP).write_text("{")
    assert not bootstrap.is_ready(venv, ("base",))


def test_concurrent_first_runs_install_once(
    installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv = tmp_path / "venv"
    inside, waiting, go_on = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(
        bootstrap, "_say", lambda text: waiting.set() if "waiting for it" in text else None
    )

    def dawdle(what: str) -> None:
        inside.set()
        assert go_on.wait(10)

    installer.during = dawdle
    runs = [threading.Thread(target=bootstrap.prepare, args=(venv, ("base",))) for _ in range(2)]
    runs[0].start()
    assert inside.wait(10)
    runs[1].start()
    assert waiting.wait(10)
    go_on.set()
    for run in runs:
        run.join(10)
    assert sum("environment" in step for step in installer.steps) == 1
    assert bootstrap.is_ready(venv, ("base",))


# --- when it can't ------------------------------------------------------------------


def test_without_uv_pip_installs(installer: Installer, tmp_path: Path) -> None:
    installer.failures = {"uv.txt": "no matching distribution"}
    bootstrap.prepare(tmp_path / "venv", ("base",))
    assert installer.commands[-1][2:4] == ["-m", "pip"]
    assert "--require-hashes" in installer.commands[-1]


def test_where_uv_fails_pip_installs(installer: Installer, tmp_path: Path) -> None:
    installer.failures = {"bin/uv pip": "invalid peer certificate"}
    bootstrap.prepare(tmp_path / "venv", ("base",))
    assert installer.commands[-1][2:4] == ["-m", "pip"]


def test_a_full_disk_is_said_and_not_tried_again(installer: Installer, tmp_path: Path) -> None:
    installer.failures = {"bin/uv pip": "No space left on device (os error 28)"}
    with pytest.raises(bootstrap.CannotPrepare, match="No space left"):
        bootstrap.prepare(tmp_path / "venv", ("base",))
    assert "pip" not in installer.commands[-1][2:4]


def test_too_little_space_is_said_before_anything_is_made(
    installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bootstrap.shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000_000)
    )
    with pytest.raises(bootstrap.CannotPrepare, match="has 100 MB free"):
        bootstrap.prepare(tmp_path / "venv", ("base",))
    assert not (tmp_path / "venv").exists()


def test_a_folder_that_can_t_be_written_is_named(installer: Installer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(bootstrap.CannotPrepare, match="WORKBENCH_VENV"):
        bootstrap.prepare(tmp_path / "file" / "venv", ("base",))


def test_a_folder_of_something_else_is_not_touched(installer: Installer, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(bootstrap.CannotPrepare, match="is no virtual environment"):
        bootstrap.prepare(tmp_path, ("base",))
    assert (tmp_path / "thesis.txt").exists()


def test_without_the_venv_module_the_exact_command_is_said(
    installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "_has_ensurepip", lambda python: False)
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    with pytest.raises(bootstrap.CannotPrepare, match=f"sudo apt install python{version}-venv"):
        bootstrap.prepare(tmp_path / "venv", ("base",))
    assert installer.steps == []


def test_root_gets_the_venv_module_by_apt(
    installer: Installer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        bootstrap,
        "_has_ensurepip",
        lambda python: any("apt-get" in step for step in installer.steps),
    )
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)
    bootstrap.prepare(tmp_path / "venv", ("base",))
    assert bootstrap.is_ready(tmp_path / "venv", ("base",))


# --- which environment ----------------------------------------------------------------


def test_an_active_environment_with_django_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # These tests run in one.
    monkeypatch.setenv("WORKBENCH_VENV", str(tmp_path / "venv"))
    assert bootstrap._in_foreign_environment()
    monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
    assert not bootstrap._in_foreign_environment()


def test_the_system_python_is_no_environment_even_with_django(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORKBENCH_VENV", str(tmp_path / "venv"))
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    monkeypatch.setattr(bootstrap.sys, "prefix", sys.base_prefix)
    assert not bootstrap._in_foreign_environment()


def test_uv_fetches_where_pip_does_and_trusts_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    for name in ("UV_DEFAULT_INDEX", "UV_SYSTEM_CERTS"):
        monkeypatch.delenv(name, raising=False)
    env = bootstrap._uv_env(sys.executable)
    assert env["UV_DEFAULT_INDEX"] == "https://mirror.example/simple"
    assert env["UV_SYSTEM_CERTS"] == "1"
    # What the user set for uv stays.
    monkeypatch.setenv("UV_SYSTEM_CERTS", "0")
    assert "UV_SYSTEM_CERTS" not in bootstrap._uv_env(sys.executable)


def test_the_stamp_is_plain_json(installer: Installer, tmp_path: Path) -> None:
    bootstrap.prepare(tmp_path / "venv", ("base",))
    stamp = json.loads((tmp_path / "venv" / bootstrap.STAMP).read_text())
    assert set(stamp) == {"interpreter", "locks"}
    assert re.fullmatch("[0-9a-f]{64}", stamp["locks"]["base"])


def test_an_audit_of_no_folder_installs_nothing(
    tmp_path: Path,
    installer: Installer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WORKBENCH_VENV", str(tmp_path / "venv"))
    monkeypatch.setattr(bootstrap, "_in_foreign_environment", lambda: False)
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        arguments = ["manage.py", "audit", str(tmp_path / name), "--tasks", "starter"]
        assert bootstrap.main(arguments) == 2
        assert f"{name} is not a directory" in capsys.readouterr().err
    assert (installer.steps, (tmp_path / "venv").exists()) == ([], False)
    there = ["audit", [str(tmp_path), "--tasks", "starter"]]
    assert bootstrap._fault_of_folder(*there) == ""  # type: ignore[arg-type]
    assert bootstrap._fault_of_folder("audit", ["--tasks", "absent"]) == ""
    assert bootstrap._fault_of_folder("serve", ["absent"]) == ""


def test_an_audit_brings_the_model_only_where_it_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    audit = ["audit", "skills", "--tasks", "starter"]
    assert bootstrap.locks_of("audit", audit) == ("base", "model")
    assert bootstrap.locks_of("audit", [*audit, "--base-url=http://h/v1"]) == ("base",)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://h/v1")
    assert bootstrap.locks_of("audit", audit) == ("base",)
