"""What every test may count on: settings of its own, and the lazy services."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

# The tests' own surroundings, set before Django reads its settings.
_DATA = tempfile.mkdtemp(prefix="wbtest-data-")
atexit.register(shutil.rmtree, _DATA, ignore_errors=True)
for _name in ("BROKER_URL", "DATABASE_URL", "OPENAI_BASE_URL", "OPENAI_API_KEY", "WORKBENCH_ENV"):
    os.environ.pop(_name, None)
os.environ |= {
    "DJANGO_SETTINGS_MODULE": "workbench.settings",
    "WORKBENCH_DATA": _DATA,
    "WORKBENCH_ALLOW_SCRIPTED": "1",
    "WORKBENCH_LEASE_SECONDS": "3",
    "WORKBENCH_RENEW_SECONDS": "1",
    "WORKBENCH_SWEEP_SECONDS": "1",
}
# The second run of the tests that are marked both_databases.
if "TEST_DATABASE_URL" in os.environ:
    os.environ["DATABASE_URL"] = os.environ["TEST_DATABASE_URL"]

import django  # noqa: E402
import hypothesis  # noqa: E402
import pytest  # noqa: E402
from django import conf  # noqa: E402

from tests import services  # noqa: E402

django.setup()

# A renewal in the test's own process would wait for the very transaction that the test is; what
# renews is tried with a value of its own, and by worker processes, which take the one above.
conf.settings.RENEW_SECONDS = 600

# The same examples every time, and no test that fails because the machine was busy.
hypothesis.settings.register_profile("workbench", deadline=None, derandomize=True)
hypothesis.settings.load_profile("workbench")

# Tests below these folders share a machine-wide thing: one process runs a group.
GROUP_OF_FOLDER = {"browser": "browser", "sandbox": "sandbox", "model": "model"}
GROUP_OF_FIXTURE = {"valkey_url": "services", "postgres_url": "services", "chromium": "browser"}


# Seconds of test time a group may take. Each runs in one process, but for what is in no group:
# two processes share that, in 120 s.
BUDGETS = {"services": 120, "browser": 120, "sandbox": 60, "model": 30, "unit and web": 240}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what each group of a parallel run took beside its budget."""
    if terminalreporter.config.getoption("dist", "no") != "loadgroup":
        return
    seconds = dict.fromkeys(BUDGETS, 0.0)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                group = report.nodeid.rpartition("@")[2]
                seconds[group if group in seconds else "unit and web"] += report.duration
    terminalreporter.section("seconds by group")
    for group, budget in BUDGETS.items():
        over = "  over its budget" if seconds[group] > budget else ""
        terminalreporter.line(f"{group:<12} {seconds[group]:6.1f} of {budget}{over}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Put each test that names no xdist_group into the one of its fixture or folder."""
    for item in items:
        if not item.get_closest_marker("xdist_group") and (group := _group_of(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    yield
    if config.getoption("loadgroup", False):
        for item in items:
            _name_group(item)


def _group_of(item: pytest.Item) -> str | None:
    for fixture, group in GROUP_OF_FIXTURE.items():
        if fixture in getattr(item, "fixturenames", ()):
            return group
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return GROUP_OF_FOLDER.get(folder)


def _name_group(item: pytest.Item) -> None:
    """Append the group to the test's id, where pytest-xdist looks for it.

    pytest-xdist 3.8 does this by an attribute that pytest 9.2 no longer reads,
    so that groups were silently ignored (pytest-dev/pytest-xdist#1386).
    """
    mark = item.get_closest_marker("xdist_group")
    suffix = f"@{mark.args[0]}" if mark else ""
    if not item.nodeid.endswith(suffix):
        structured = item._id
        item._id = type(structured).parse(item.nodeid + suffix)
        assert item.nodeid.endswith(suffix)


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all processes of this run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def valkey_url(session_folder: Path) -> str:
    """Return the URL of the session's Valkey, emptied."""
    import redis

    url = services.valkey_url(session_folder)
    with redis.Redis(unix_socket_path=url.removeprefix("redis+socket://")) as client:
        client.flushall()
    return url


@pytest.fixture(scope="session")
def postgres_url(session_folder: Path) -> str:
    """Return the DATABASE_URL of the session's PostgreSQL."""
    return services.postgres_url(session_folder)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a Chromium; without one the test skips, or fails where CI=true."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    reason = "no Chromium on this machine; `apt install chromium` brings one"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
