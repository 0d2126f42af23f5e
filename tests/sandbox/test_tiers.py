"""Which tier a host gets, what is refused, and that a weak tier fails its probes."""

from __future__ import annotations

import dataclasses
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runs.domain.checking import Verdict
from runs.sandbox import grader as grading
from runs.sandbox import hosts, launcher, programs, slots, supervisor, tiers
from runs.sandbox.grader import Grader, NoIsolation, open_grader
from runs.sandbox.hosts import Obstacle
from runs.sandbox.jail import Limits
from runs.sandbox.probes import PROBES, ProbeReport, probe
from runs.sandbox.tiers import Tier
from tests.sandbox import loosened
from tests.sandbox.conftest import tier_named

pytestmark = pytest.mark.xdist_group("sandbox")

LIMITS = Limits(cpu_s=2, wall_s=20.0)
CODE: dict[str, Any] = {
    "mode": "cases",
    "entry": "f",
    "prelude": "",
    "cases": [{"args": [1], "expected": 1}],
    "comparator": "exact",
    "timeout_s": 1,
}


def value_of(tier: Tier, expression: str) -> Any:
    program = f"import os, sys\ndef f():\n    return {expression}"
    request = programs.call_all(program=program, entry="f", cases=[([], "")])
    run = supervisor.run(tier.jail, request, LIMITS)
    message = supervisor.read_line(run.results.split(b"\n")[0])
    assert message, run
    return message[1]


def test_a_grader_states_what_it_runs_under(grader: Grader) -> None:
    assert grader.tier in ("A", "A_user", "B")
    facts = grader.facts
    assert facts["tier"] == grader.tier
    assert facts["seccomp"] is True
    assert (facts["bwrap"] is None) is (grader.tier == "B")
    assert grader.report is not None
    assert set(grader.report.findings) == set(PROBES)
    assert all(said.startswith("blocked") for said in grader.report.findings.values())


@pytest.mark.parametrize("name", ["A", "B"])
def test_each_tier_withstands_its_probes(name: str) -> None:
    tier = tier_named(name, f"{name}_user")
    report = probe(tier)
    assert report.built, report.reason
    assert report.reason == ""
    assert report.ready is not None


def weakened(tier: Tier, **config: Any) -> Tier:
    """Return ``tier`` without namespaces and with parts of its configuration replaced."""
    changed = {**tier.jail.config, "landlock": 0, "landlock_max": 0, "seccomp": False, **config}
    jail = dataclasses.replace(tier.jail, config=changed, slots=None)
    return dataclasses.replace(tier, jail=jail)


def test_probes_find_a_tier_without_its_guards() -> None:
    """The guards removed: a process with limits alone lets every canary be touched but one."""
    report = probe(weakened(tier_named("B")))
    assert report.built
    owned = {name for name, said in report.findings.items() if said.startswith("OWNED")}
    # Root's processes may or may not be counted, and a host may refuse user namespaces.
    assert set(PROBES) - owned <= {"user_namespace", "fork_100"}
    assert "secret_file: OWNED" in report.reason


def test_each_guard_of_tier_b_counts() -> None:
    without_seccomp = probe(weakened(tier_named("B"), landlock_max=99))
    assert "OWNED" in without_seccomp.findings["user_namespace"] + without_seccomp.findings["tcp"]
    without_landlock = probe(weakened(tier_named("B"), seccomp=True))
    assert without_landlock.findings["secret_file"] == "OWNED"
    assert without_landlock.findings["tcp"].startswith("blocked")


def test_an_older_landlock_suffices_in_tier_a() -> None:
    tier = tier_named("A", "A_user")
    for most in (0, 1, 2, 5):
        config = {**tier.jail.config, "landlock_max": most}
        older = dataclasses.replace(tier, jail=dataclasses.replace(tier.jail, config=config))
        report = probe(older)
        assert report.reason == ""
        assert report.ready is not None
        assert report.ready["landlock"] <= most


def test_without_isolation_code_is_refused_and_texts_are_graded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = (
        Obstacle("A_user", "namespaces are refused", "Allow them."),
        Obstacle("B", "no Landlock", "Boot another kernel."),
    )
    monkeypatch.setattr(tiers, "candidates", lambda: iter(gone))
    monkeypatch.delenv(grading.ALLOW_UNSANDBOXED, raising=False)
    for allow in (False, True):  # the argument alone changes nothing
        with open_grader(allow_unsandboxed=allow) as refusing:
            assert refusing.tier == "none"
            with pytest.raises(NoIsolation) as refusal:
                refusing.grade(kind="code", checker=CODE, reply="def f(x): return x")
            for part in ("A_user", "namespaces are refused", "Allow them.", "Boot another kernel."):
                assert part in str(refusal.value)
            with pytest.raises(NoIsolation):
                refusing.record_cases(checker=CODE, reference="def f(x): return x")
            exact = refusing.grade(kind="exact", checker={"answers": ["a"]}, reply="A")
            assert (exact.verdict, exact.tier) == (Verdict.PASS, "none")


def test_unsandboxed_needs_the_argument_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "candidates", lambda: iter((Obstacle("A", "no", "fix"),)))
    monkeypatch.setenv(grading.ALLOW_UNSANDBOXED, "1")
    with open_grader() as refusing:
        assert refusing.tier == "none"
    with open_grader(allow_unsandboxed=True) as reckless:
        result = reckless.grade(kind="code", checker=CODE, reply="def f(x): return x")
        assert (result.verdict, result.tier) == (Verdict.PASS, "unsandboxed")
        slow = reckless.grade(kind="code", checker=CODE, reply="while True: pass")
        assert slow.verdict == Verdict.TIMEOUT


def test_a_tier_that_leaks_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    leaky = ProbeReport({"tcp": "OWNED"}, {"landlock": 7, "seccomp": 1}, "tcp: OWNED", built=True)
    monkeypatch.setattr(grading, "probe", lambda tier: leaky)
    with open_grader() as refusing:
        assert refusing.tier == "none"
        assert "tcp: OWNED" in refusing.obstacles[-1].reason


def test_a_tier_that_cannot_be_built_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    tier_named("B")

    def refuses_namespaces(tier: Tier) -> ProbeReport:
        if tier.name == "B":
            return probe(tier)
        return ProbeReport({}, None, "No permissions to create a new namespace", built=False)

    monkeypatch.setattr(grading, "probe", refuses_namespaces)
    with open_grader() as second:
        assert second.tier == "B"
        assert "new namespace" in second.obstacles[0].reason
        assert second.obstacles[0].fix
        assert second.grade(kind="code", checker=CODE, reply="def f(x): return x").verdict == "pass"


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_told_of_the_container(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    (obstacle,) = tiers.candidates()
    assert isinstance(obstacle, Obstacle)
    assert "container" in obstacle.fix


def test_remedies_name_the_switch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, _refused, fix in hosts._SWITCHES:
        monkeypatch.setattr(
            Path,
            "read_text",
            lambda self, name=name: "1" if "apparmor" in name else "0",
        )
        monkeypatch.setattr(hosts, "_SWITCHES", ((name, _refused, fix),))
        assert hosts.namespace_fix() == fix
        monkeypatch.undo()


def test_inside_there_is_nothing_but_an_interpreter() -> None:
    tier = tier_named("A", "A_user")
    elsewhere = ("/proc", "/sys", "/tmp", "/root", "/home", "/var", "/srv", "/opt", "/usr/bin")
    assert value_of(tier, f"[path for path in {elsewhere} if os.path.exists(path)]") == []
    environment = value_of(tier, "sorted(os.environ)")
    assert set(environment) <= {
        *("HOME", "LANG", "PATH", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "PWD", "LC_CTYPE"),
    }
    assert value_of(tier, "hash('a')") == value_of(tier, "hash('a')")
    # What an interpreter would import from: packages hold benchmarks with their answers.
    count = (
        "sum(len(os.listdir(found)) for base in ('/py/lib', '/usr/lib') "
        "for found in __import__('glob').glob(base + '/python3*/*-packages'))"
    )
    assert value_of(tier, count) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_programs_run_under_a_uid_nobody_has() -> None:
    for name in ("A", "B"):
        tier = tier_named(name)
        assert tier.jail.slots is not None
        uid = value_of(tier, "os.getuid()")
        assert uid in tier.jail.slots.uids
        assert value_of(tier, "[os.geteuid() == os.getgid(), os.getgroups()]") == [True, []]
        assert not slots.inhabited(uid)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_slot_is_lent_to_one_process_at_a_time() -> None:
    found = slots.open_slots()
    assert found is not None
    with found.lease() as first, found.lease() as second:
        assert first != second
        third = subprocess.run(
            [
                sys.executable,
                "-c",
                "from runs.sandbox.slots import open_slots\n"
                "with open_slots().lease() as uid: print(uid)",
            ],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        assert int(third.stdout) not in (first, second)
    with found.lease() as again:
        assert again == first


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_slot_that_is_lived_in_is_swept() -> None:
    found = slots.open_slots()
    assert found is not None
    with found.lease() as uid:
        stray = subprocess.Popen(["sleep", "60"], user=uid, group=uid, extra_groups=[])
        assert slots.inhabited(uid)
        import threading

        # Waited for, or its zombie would keep the slot.
        threading.Thread(target=stray.wait).start()
    assert not slots.inhabited(uid)
    assert stray.wait() == -9


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_without_a_slot_range_fails_the_fork_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel counts no processes of its root, so namespaces alone would let a bomb grow."""
    monkeypatch.setattr(hosts, "open_slots", lambda: None)
    with open_grader() as refusing:
        assert refusing.tier == "none"
        assert "fork_100" in refusing.obstacles[-1].reason


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_of_a_container_without_rights_gets_tier_b() -> None:
    tier_named("B")
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed")
    program = (
        "from runs.sandbox.grader import open_grader\n"
        "grader = open_grader()\nprint(grader.tier, grader.obstacles[0].reason)"
    )
    done = subprocess.run(
        [setpriv, "--bounding-set=-sys_admin", "--inh-caps=-all", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.startswith("B ")
    assert "Operation not permitted" in done.stdout


def test_an_ordinary_user_gets_namespaces_too() -> None:
    """The same as nobody, with the system's Python, since this one may lie below /root."""
    if os.geteuid() != 0:
        pytest.skip("the other tests already run as an ordinary user")
    said = as_nobody(
        "from runs.sandbox.grader import open_grader\n"
        f"checker = {CODE!r}\n"
        "with open_grader() as g:\n"
        "    replies = ['def f(x): return x', 'import os; os._exit(0)']\n"
        "    print(g.tier, *[g.grade(kind='code', checker=checker, reply=r).verdict"
        " for r in replies])"
    )
    assert said.split() == ["A_user", "pass", "no_result"]


def as_nobody(program: str) -> str:
    """Run ``program`` with the system's Python as the user nobody and return what it prints."""
    python, root = "/usr/bin/python3", Path(__file__).resolve().parents[2]
    packages = Path(pytest.__file__).parent.parent
    command = [python, "-B", "-c", program]
    env = {"PYTHONPATH": f"{root}:{packages}", "PATH": os.defpath, "HOME": "/nonexistent"}
    options: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": [], "env": env}
    try:
        subprocess.run(
            [python, "-c", "import sys, markdown_it, runs; sys.exit(sys.version_info < (3, 11))"],
            check=True,
            capture_output=True,
            cwd="/",
            **options,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"nobody can't run the project with {python}: {error}")
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", **options, check=False)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_probes_find_a_filter_with_gaps() -> None:
    """The guard removed: all of tier B but for one family of calls, under the caller's uid."""
    tier = tier_named("B")
    shared = dataclasses.replace(tier, jail=dataclasses.replace(tier.jail, slots=None))
    for names, name in (
        (loosened.ATTRIBUTES, "file_attributes"),
        (("utimensat",), "file_attributes"),
        (("setxattr",), "file_attributes"),
        (loosened.PROCESSES, "other_process"),
        (("prlimit64",), "other_process"),
        (("setpriority",), "other_process"),
    ):
        with loosened.filter_without(*names):
            findings = probe(shared).findings
        assert findings[name].startswith("OWNED")
    whole = probe(shared).findings
    assert whole["file_attributes"].startswith("blocked")
    assert whole["other_process"].startswith("blocked")


@pytest.mark.parametrize("at", [0, 1])
def test_an_ordinary_user_is_refused_code_where_the_filter_has_gaps(at: int) -> None:
    """The same as nobody: tier B with the whole filter is trusted, with a gap it is not."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become nobody")
    without = ((), loosened.GAPS)[at]
    said = as_nobody(
        "from runs.sandbox import tiers\n"
        "from runs.sandbox.grader import open_grader\n"
        "from tests.sandbox.loosened import filter_without\n"
        "tiers._with_namespaces = lambda: tiers.Obstacle('A_user', 'refused', 'allow them')\n"
        f"with filter_without(*{without!r}), open_grader() as grader:\n"
        "    print(grader.tier, *[o.reason for o in grader.obstacles[1:]])"
    )
    assert said.split()[0] == ("B", "none")[at]
    for leak in ("file_attributes: OWNED chmod, ", "other_process: OWNED prlimit, "):
        assert (leak in said) is (at == 1)


def decision(
    machine: str, number: int, arguments: tuple[int, ...] = (), architecture: int | None = None
) -> int:
    """Return what the filter of ``machine`` does with a call: a small cBPF machine."""
    own = launcher.MACHINES[machine][0]
    words = struct.pack("<iIQ", number, architecture or own, 0)
    data = words + struct.pack("<6Q", *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", launcher.seccomp_program(machine)))
    at, held = 0, 0
    while True:
        code, yes, no, value = program[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
            continue
        holds = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
        at += yes if holds else no


ALLOWED, DENIED, UNKNOWN, LACKING = 0x7FFF0000, 0x50001, 0x50026, 0x5005F


@pytest.mark.parametrize("machine", launcher.MACHINES)
def test_the_filter_decides_by_call_and_argument(machine: str) -> None:
    column = launcher.MACHINES[machine][1]
    for name, pair in launcher.DENIED.items():
        number = pair[column]
        if number is not None:
            assert decision(machine, number) == DENIED, name
    numbers = {name: pair[column] for name, pair in launcher.DECIDED.items()}
    high = 1 << 32
    for call, arguments, expected in (
        ("prlimit64", (0,), ALLOWED),  # the caller itself
        ("prlimit64", (1,), DENIED),
        ("prlimit64", (high,), DENIED),
        ("prlimit64", (2**64 - 1,), DENIED),
        ("clone", (0x01200011,), ALLOWED),  # fork as the C library makes it
        ("clone", (0x10000000,), DENIED),  # with a user namespace
        ("fcntl", (0, 1030), ALLOWED),  # F_DUPFD_CLOEXEC
        ("fcntl", (0, 6), ALLOWED),  # F_SETLK
        ("fcntl", (0, 1024), DENIED),  # F_SETLEASE
        ("fcntl", (0, high | 1024), DENIED),  # the kernel looks at the low word
        ("fcntl", (0, 1026), DENIED),  # F_NOTIFY
        ("fcntl", (0, 8), DENIED),  # F_SETOWN
        ("ioctl", (0, 0x5401), ALLOWED),  # TCGETS, of isatty
        ("ioctl", (0, 0x5451), ALLOWED),  # FIOCLEX
        ("ioctl", (0, 0x40086602), LACKING),  # FS_IOC_SETFLAGS
        ("ioctl", (0, high | 0x40086602), LACKING),
        ("ioctl", (0, 0x2), LACKING),  # FIGETBSZ
    ):
        named = numbers[call]
        assert isinstance(named, int)
        assert decision(machine, named, arguments) == expected, (call, arguments)
    # openat, read, getrandom, futex, exit_group: what every program needs.
    for pair in ((257, 56), (0, 63), (318, 278), (202, 98), (231, 94)):
        assert decision(machine, pair[column]) == ALLOWED
    # setxattrat, getxattrat, listxattrat, removexattrat, file_setattr; clone3
    for number in (463, 464, 465, 466, 469, 435):
        assert decision(machine, number) == UNKNOWN
    assert decision(machine, 0, architecture=0x40000003) == 0x80000000  # another one is killed


def test_a_program_changes_no_attributes_of_its_own_files_either() -> None:
    tier = tier_named("A", "A_user")
    made = "open('/box/f', 'w').write('x')"
    for call in (
        "os.chmod('/box/f', 0o600)",
        "os.utime('/box/f')",
        "os.setxattr('/box/f', 'user.x', b'')",
        "__import__('fcntl').fcntl(os.open('/box/f', 0), 1024, 0)",
        "__import__('fcntl').ioctl(os.open('/box/f', 0), 0x40086602, bytes(8))",
    ):
        program = f"import os\ndef f():\n    {made}\n    {call}"
        request = programs.call_all(program=program, entry="f", cases=[([], "")])
        message = supervisor.read_line(supervisor.run(tier.jail, request, LIMITS).results)
        assert message is not None
        assert message[0] == "raise"
        assert "Operation not" in message[1], call  # permitted, or supported


def test_what_honest_programs_do_with_files_and_limits_works() -> None:
    tier = tier_named("A", "A_user")
    for call, expected in (
        ("__import__('shutil').copyfile(sys.executable, '/box/copy')", "/box/copy"),
        ("__import__('shutil').move(__import__('tempfile').mkstemp()[1], '/box/m')", "/box/m"),
        ("__import__('tempfile').TemporaryDirectory().cleanup()", None),
        ("[__import__('pathlib').Path('/box/t').touch() for _ in range(2)]", [None, None]),
        ("__import__('resource').getrlimit(0)[0]", 2),
        ("__import__('resource').setrlimit(4, (0, 0))", None),
        ("len(os.sched_getaffinity(0)) > 0 and os.getpriority(0, 0) >= 0", True),
        ("__import__('signal').pthread_kill(__import__('threading').get_ident(), 0)", None),
        ("__import__('fcntl').flock(os.open('/box/l', os.O_CREAT | os.O_RDWR), 2)", None),
        ("os.set_blocking(os.pipe()[0], False)", None),
        ("os.isatty(0)", False),
    ):
        assert value_of(tier, call) == expected, call


def test_seccomp_lists_hold_on_both_architectures() -> None:
    for machine, (architecture, column) in launcher.MACHINES.items():
        program = launcher.seccomp_program(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 < 4096  # the kernel's limit
        assert architecture.to_bytes(4, sys.byteorder) in program
        numbers = [pair[column] for pair in launcher.DENIED.values() if pair[column] is not None]
        assert len(set(numbers)) == len(numbers)
        assert not set(numbers) & {pair[column] for pair in launcher.DECIDED.values()}
        assert max(n for n in numbers if n is not None) <= 462
    with pytest.raises(launcher.SetupFailed):
        launcher.seccomp_program("riscv64")


def test_call_numbers_agree_with_the_kernel_headers() -> None:
    import re

    for column, path in enumerate(
        ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h")
    ):
        if not Path(path).is_file():
            pytest.skip(f"{path} is not installed")
        pattern = re.compile(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)
        known = {name: int(number) for name, number in pattern.findall(Path(path).read_text())}
        for name, pair in {**launcher.DENIED, **launcher.DECIDED}.items():
            assert pair[column] is None or pair[column] == known.get(name, pair[column]), name


def test_the_launcher_fails_closed() -> None:
    tier = tier_named("A", "A_user")
    config = {**tier.jail.config, "landlock": 99}
    broken = dataclasses.replace(tier, jail=dataclasses.replace(tier.jail, config=config))
    report = probe(broken)
    assert not report.built
    assert "Landlock ABI" in report.reason


def test_what_the_standard_library_loads_from_the_system_is_there(grader: Grader) -> None:
    """Modules on system libraries (sqlite3, ssl, ...) work for the uid that programs run under."""
    program = (
        "def loaded():\n    import bz2, lzma, sqlite3, ssl\n    return sqlite3.sqlite_version > '3'"
    )
    checker = {
        "mode": "cases",
        "entry": "loaded",
        "prelude": "",
        "cases": [{"args": [], "expected": True}],
        "comparator": "exact",
        "timeout_s": 10,
    }
    result = grader.grade(kind="code", checker=checker, reply=f"```python\n{program}\n```")
    assert result.verdict == "pass", result.details
