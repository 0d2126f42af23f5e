"""Brings the locked packages into var/venv and runs the command there.

Standard library only: this runs before anything is installed. The environment
is trusted when its stamp names the hash locks the command needs; else it is
made, completed or rebuilt under a file lock, so that concurrent first runs
install once. The stamp is written last and a marker stands while an install
runs, so an interrupted one is rebuilt and never used.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "workbench" / "locks"
STAMP = ".workbench-stamp.json"
MARKER = ".workbench-installing"

# What a command needs besides the base lock. test.txt contains base.txt.
LOCKS_OF = {
    "demo": ("base", "model"),
    "audit": ("base", "model"),
    "test": ("base", "test", "model"),
}
# Measured on x86-64 Linux, in MB on disk; only for the progress lines and the space check.
MEGABYTES = {"base": 320, "model": 200, "test": 630, "peers": 480}

WINDOWS_NOTE = (
    "Windows: the workbench runs inside WSL 2 (install it with `wsl --install`, then use the "
    "same commands in its terminal), where everything works; on Windows itself only --help and "
    "version do."
)
MACOS_NOTE = (
    "macOS: everything works but the grading of code, which needs Linux namespaces or Landlock; "
    'for that use a container: docker run --rm -it -v "$PWD":/workbench -w /workbench '
    "-v workbench:/data -e WORKBENCH_VENV=/data/venv -e WORKBENCH_DATA=/data "
    "python:3.12 python3 manage.py demo --no-serve"
)


class CannotPrepare(Exception):
    """The packages can't be brought; the text says why and what to do."""


def main(argv: Sequence[str]) -> int:
    """Run one manage.py command line and return its exit code (or replace the process)."""
    arguments = list(argv[1:])
    # What stands behind `--` belongs to another program.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    command = own[0] if own else "help"
    if own in ([], ["help"], ["--help"], ["-h"]):
        print(overview())
        return 0
    if own in (["version"], ["--version"]):
        print(version())
        return 0
    try:
        return _run(argv, command, asks_help="help" in own[:1] or {"--help", "-h"} & {*own})
    except CannotPrepare as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 130


def _run(argv: Sequence[str], command: str, *, asks_help: object) -> int:
    if _in_foreign_environment():
        return _run_django(argv)
    if not asks_help and (fault := _fault_of_folder(command, argv[2:])):
        print(f"error: {fault}", file=sys.stderr)
        return 2
    venv = venv_folder()
    needed = ("base",) if asks_help else locks_of(command, argv[1:])
    if asks_help and not is_ready(venv, needed):
        subject = argv[2] if command == "help" and len(argv) > 2 else command
        print(summary_of(subject))
        return 0
    if sys.platform == "win32":
        raise CannotPrepare(WINDOWS_NOTE)
    installed = not is_ready(venv, needed)
    if installed:
        prepare(venv, needed)
    if not installed and _is_prefix(venv):
        return _run_django(argv)
    python = str(venv_python(venv))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(python, [python, str(ROOT / "manage.py"), *argv[1:]])


def _fault_of_folder(command: str, arguments: Sequence[str]) -> str:
    """Return why the folder of an audit can't be one, before packages are fetched for it."""
    if command != "audit" or not arguments or arguments[0].startswith("-"):
        return ""
    folder = Path(arguments[0])
    return "" if folder.is_dir() else f"{folder} is not a directory; name the folder of the skills"


def locks_of(command: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the locks the command needs; an audit of an endpoint needs no embedded model."""
    endpoint = os.environ.get("OPENAI_BASE_URL") or any(
        argument.partition("=")[0] == "--base-url" for argument in arguments
    )
    if command == "audit" and endpoint:
        return ("base",)
    return LOCKS_OF.get(command, ("base",))


def _run_django(argv: Sequence[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "workbench.settings")
    _check_data_folder()
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line

        try:
            execute_from_command_line(list(argv))
        except ImproperlyConfigured as fault:
            raise CannotPrepare(str(fault)) from fault
    except ModuleNotFoundError as missing:
        if missing.name is None or (ROOT / missing.name.partition(".")[0]).exists():
            raise
        raise CannotPrepare(
            f"this Python environment ({sys.prefix}) lacks {missing.name}. Leave it (deactivate) "
            f"and run the command again, or install {LOCKS / 'base.txt'} into it."
        ) from missing
    return 0


def _check_data_folder() -> None:
    data = Path(os.environ.get("WORKBENCH_DATA") or ROOT / "var").absolute()
    with contextlib.suppress(OSError):
        data.mkdir(parents=True, exist_ok=True)
    if not os.access(data, os.W_OK | os.X_OK):
        raise CannotPrepare(
            f"can't write the data folder {data}; set WORKBENCH_DATA to a folder you may write."
        )


# --- which environment --------------------------------------------------------


def venv_folder() -> Path:
    """Return the environment's folder: WORKBENCH_VENV, else var/venv beside manage.py."""
    return Path(os.environ.get("WORKBENCH_VENV") or ROOT / "var" / "venv").absolute()


def venv_python(venv: Path) -> Path:
    """Return the environment's interpreter."""
    return venv / "bin" / "python"


def _is_prefix(venv: Path) -> bool:
    return os.path.realpath(sys.prefix) == os.path.realpath(venv)


def _in_foreign_environment() -> bool:
    """Tell whether an environment of the user's own, with Django in it, is active."""
    activated = sys.prefix != sys.base_prefix or os.environ.get("CONDA_PREFIX") == sys.prefix
    if not activated or _is_prefix(venv_folder()):
        return False
    return importlib.util.find_spec("django") is not None


def is_ready(venv: Path, locks: Sequence[str]) -> bool:
    """Tell whether ``venv`` holds these locks, installed by an interpreter that still exists."""
    try:
        stamp = json.loads((venv / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return (
        not (venv / MARKER).exists()
        and os.access(venv_python(venv), os.X_OK)
        and stamp.get("interpreter") == _interpreter(venv)
        and all(stamp.get("locks", {}).get(name) == _digest(name, venv) for name in locks)
    )


def _interpreter(venv: Path) -> str:
    return os.path.realpath(venv_python(venv))


def _digest(lock: str, venv: Path) -> str:
    """Return the sha256 of a lock and of the Python it was installed for."""
    config = (venv / "pyvenv.cfg").read_bytes() if (venv / "pyvenv.cfg").exists() else b""
    return hashlib.sha256((LOCKS / f"{lock}.txt").read_bytes() + b"\0" + config).hexdigest()


# --- making it ----------------------------------------------------------------


def prepare(venv: Path, locks: Sequence[str]) -> None:
    """Install ``locks`` into ``venv``, making or rebuilding it where needed.

    Raises:
        CannotPrepare: with the reason and the remedy.
    """
    try:
        venv.parent.mkdir(parents=True, exist_ok=True)
        with _file_lock(venv.with_name(venv.name + ".lock")):
            if not is_ready(venv, locks):
                _install(venv, locks)
    except OSError as error:
        raise CannotPrepare(
            f"can't write {error.filename or venv}: {error.strerror}. Make room or give write "
            "access, or set WORKBENCH_VENV and WORKBENCH_DATA to folders you may write."
        ) from error


def _install(venv: Path, locks: Sequence[str]) -> None:
    began = time.monotonic()
    if _must_rebuild(venv):
        _say(f"{_shown(venv)} is incomplete or its Python is gone: making it anew.")
        shutil.rmtree(venv)
    _check_space(venv, locks)
    fresh = not venv.exists()
    venv.mkdir(exist_ok=True)
    (venv / MARKER).touch()
    if fresh:
        _say(
            f"First run: preparing {_shown(venv)} with Python {platform.python_version()}. "
            "Later runs start at once and need no network."
        )
        _make_venv(venv)
    _install_packages(venv, locks)
    record = {
        "interpreter": _interpreter(venv),
        # A lock that an earlier command installed stays installed.
        "locks": _old_locks(venv) | {name: _digest(name, venv) for name in locks},
    }
    (venv / STAMP).write_text(json.dumps(record, indent=1))
    (venv / MARKER).unlink()
    _say(f"Ready after {time.monotonic() - began:.0f} s.")


def _must_rebuild(venv: Path) -> bool:
    if not venv.exists():
        return False
    if (venv / MARKER).exists():
        return True
    if not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        raise CannotPrepare(f"{venv} exists and is no virtual environment; move it away.")
    stamp = venv / STAMP
    if stamp.exists():
        return bool(json.loads(stamp.read_text())["interpreter"] != _interpreter(venv))
    # Made by hand: completed in place if its interpreter works.
    return not _succeeds([str(venv_python(venv)), "-I", "-c", "import pip"])


def _old_locks(venv: Path) -> dict[str, str]:
    try:
        return dict(json.loads((venv / STAMP).read_text())["locks"])
    except (OSError, ValueError, KeyError):
        return {}


def _check_space(venv: Path, locks: Sequence[str]) -> None:
    wanted = sum(MEGABYTES[name] for name in _files_of(locks))
    installed = 0 if not venv.exists() else MEGABYTES["base"]
    free = shutil.disk_usage(venv.parent).free // 1_000_000
    if free < wanted - installed:
        raise CannotPrepare(
            f"{venv.parent} has {free} MB free and the packages take about {wanted} MB. "
            "Make room, or set WORKBENCH_VENV to a folder on a larger disk."
        )


def _make_venv(venv: Path) -> None:
    python = getattr(sys, "_base_executable", None) or sys.executable
    if not _has_ensurepip(python):
        _bring_venv_module()
        if not _has_ensurepip(python):
            raise CannotPrepare(f"{python} has no venv module that works; use another Python.")
    failure = _step("making the environment", [python, "-I", "-m", "venv", str(venv)])
    if failure:
        raise CannotPrepare(f"can't make a virtual environment with {python}:\n{failure}")


def _has_ensurepip(python: str) -> bool:
    """Tell whether venv can put pip into an environment; Debian splits that part off."""
    return _succeeds([python, "-I", "-c", "import ensurepip, venv; ensurepip.version()"])


def _bring_venv_module() -> None:
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    if not shutil.which("apt-get"):
        raise CannotPrepare("this Python lacks the venv module; install it and try again.")
    if os.geteuid() != 0:
        raise CannotPrepare(
            f"this Python lacks the venv module. Install it with: sudo apt install {package}"
        )
    failure = apt_install(package)
    if failure:
        raise CannotPrepare(f"apt-get could not install {package}:\n{failure}")


def apt_install(package: str) -> str | None:
    """Install one Debian package as root; return None, or the end of apt's output."""
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", package]
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    failure = _step(f"installing {package} with apt-get", install, env)
    if failure:  # the package lists of a fresh machine are empty or old
        _step("reading apt's package lists", ["apt-get", "update", "-q"], env)
        failure = _step(f"installing {package} with apt-get", install, env)
    return failure


def _files_of(locks: Sequence[str]) -> list[str]:
    """Return the lock files to read: test.txt contains base.txt."""
    return [name for name in locks if not (name == "base" and "test" in locks)]


def _install_packages(venv: Path, locks: Sequence[str]) -> None:
    files = [LOCKS / f"{name}.txt" for name in _files_of(locks)]
    size = sum(MEGABYTES[name] for name in _files_of(locks))
    names = ", ".join(file.name for file in files)
    what = f"installing the packages of {names} ({size} MB on disk)"
    options = ["--require-hashes", "--no-deps"]
    for file in files:
        options += ["-r", str(file)]
    python = str(venv_python(venv))
    pip = [python, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", "install"]
    uv = venv / "bin" / "uv"
    if not uv.exists():
        lock = ["--require-hashes", "--no-deps", "--only-binary=:all:", "-r", str(LOCKS / "uv.txt")]
        _step("fetching the installer uv (18 MB)", [*pip, "--retries=2", *lock], _pip_env())
    failure: str | None = "uv could not be fetched"
    if uv.exists():
        command = [str(uv), "pip", "install", "-q", "--no-build", "--python", python, *options]
        failure = _step(what, command, _uv_env(python))
    if failure and "No space left" not in failure:
        _say(f"    {failure.splitlines()[-1].strip()}: pip does it, in 1 to 4 minutes")
        failure = _step(what, [*pip, "--only-binary=:all:", *options], _pip_env())
    if failure:
        raise CannotPrepare(
            f"the packages could not be installed:\n{failure}\n"
            "The first run needs the network (a package index that pip can reach) and disk space."
        )


def _pip_env() -> dict[str, str]:
    # Settings that would make pip install somewhere else.
    return {"PIP_USER": "0", "PIP_TARGET": "", "PIP_PREFIX": ""}


def _uv_env(python: str) -> dict[str, str]:
    """Return settings that make uv trust what pip trusts and fetch where pip fetches."""
    env = {"UV_SYSTEM_CERTS": "1"}
    index = (
        os.environ.get("PIP_INDEX_URL")
        or subprocess.run(
            [python, "-I", "-m", "pip", "config", "get", "global.index-url"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    )
    if index:
        env["UV_DEFAULT_INDEX"] = index
    if not os.access(os.path.expanduser("~"), os.W_OK):
        env["UV_NO_CACHE"] = "1"
    return {name: value for name, value in env.items() if name not in os.environ}


# --- small tools --------------------------------------------------------------


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _step(what: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> str | None:
    """Run one step with a progress line; return None, or the end of the output of a failure."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        _say(f"  {what} ...")
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | (env or {}),
            close_fds=False,
        ) as process:
            while process.returncode is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=15)
                if process.returncode is None:
                    _say(f"    still at it after {time.monotonic() - began:.0f} s")
        if process.returncode == 0:
            _say(f"    done in {time.monotonic() - began:.1f} s")
            return None
        output.seek(0)
        lines = [
            line
            for line in output.read().decode(errors="replace").strip().splitlines()
            if not line.startswith(("Ignoring ", "WARNING: Retrying"))
        ]
        return "\n".join(lines[-15:]) or f"exit code {process.returncode}"


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    import fcntl

    with open(path, "w") as file:
        # An installer that outlives a killed manage.py holds the lock to its end.
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("Another manage.py is installing the packages; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- what can be said without Django ------------------------------------------


def version() -> str:
    """Return the project's version."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def command_summaries() -> dict[str, str]:
    """Return every command of the project with its one-line help, read from the sources."""
    files = sorted(ROOT.glob("*/management/commands/[!_]*.py"))
    return {file.stem: _help_of(file) for file in files}


def _help_of(file: Path) -> str:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == "Command":
            for line in node.body:
                names = [ast.unparse(target) for target in getattr(line, "targets", [])]
                if isinstance(line, ast.Assign) and names == ["help"]:
                    with contextlib.suppress(ValueError):
                        return str(ast.literal_eval(line.value))
    return ""


def overview() -> str:
    """Return the text of a bare --help: what it is and every command."""
    summaries = command_summaries()
    first = [name for name in ("demo", "test", "doctor") if name in summaries]
    width = max(map(len, summaries), default=0) + 2

    def rows(names: Sequence[str]) -> str:
        return "\n".join(
            textwrap.fill(
                summaries[name],
                width=96,
                initial_indent=f"  {name:<{width}}",
                subsequent_indent=" " * (width + 2),
            )
            or f"  {name}"
            for name in names
        )

    return "\n".join(
        [
            f"Skill Audit Workbench {version()}: do agent skills help or harm where they are used?",
            "",
            "Usage: python3 manage.py COMMAND [options]",
            "",
            "Start here",
            rows(first),
            "",
            "Commands",
            rows([name for name in summaries if name not in first]),
            "",
            "Nothing has to be installed or activated first: a command that needs packages brings",
            "them into var/venv. A command's options: python3 manage.py COMMAND --help. Django's",
            "own commands (migrate, createsuperuser, ...): python3 manage.py help --commands.",
        ]
    )


def summary_of(command: str) -> str:
    """Return what can be said of one command before the packages are there."""
    summary = command_summaries().get(command)
    if summary is None:
        return overview()
    return (
        f"python3 manage.py {command}: {summary}\n\nIts options are shown once the packages are "
        "installed; `python3 manage.py doctor` brings them and looks over the machine."
    )
