"""Give up privileges for good, in the very process that will run untrusted code.

Standard library only and no import of the project: this file is sent into the
sandbox as it stands. ``apply`` does, in this order: leave root for a slot uid,
``no_new_privs``, resource limits, Landlock, a seccomp deny list. Each step
either works or raises, unless the configuration calls it best effort.

Landlock and seccomp have no interface in the standard library, so both are
spoken to directly (landlock(7), seccomp(2); structures from linux/landlock.h and
linux/filter.h), for x86_64 and aarch64.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

TYPE_CHECKING = False  # importing typing would take longer than running most programs
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

# The Landlock calls have one number on every architecture.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446


class SetupFailed(Exception):
    """A step could not be taken; nothing untrusted may run."""


def apply(config: dict[str, Any]) -> dict[str, int]:
    """Take every step that ``config`` asks for and return what was reached.

    Args:
        config: ``uid`` (int or None: keep), ``limits`` (resource name -> value),
            ``read`` and ``write`` (paths Landlock allows), ``landlock`` (lowest
            acceptable ABI, 0 for best effort), ``landlock_max`` (highest ABI to
            use), ``seccomp`` (bool), ``best_effort`` (bool: go on without a step).

    Returns:
        ``landlock`` (the ABI in force, 0 if none) and ``seccomp`` (1 or 0).

    Raises:
        SetupFailed: a step failed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if config["uid"] is not None:
        _become(config["uid"])
    # Cleared by the change of uid, so it is asked for again.
    libc.prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) and not config["best_effort"]:
        raise SetupFailed(f"no_new_privs: errno {ctypes.get_errno()}")
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    for name, value in config["limits"].items():
        _limit(name, value, config["best_effort"])
    reached = {"landlock": 0, "seccomp": 0}
    try:
        reached["landlock"] = _landlock(libc, config)
    except SetupFailed:
        if config["landlock"] > 0 and not config["best_effort"]:
            raise
    if config["seccomp"]:
        try:
            _seccomp(libc)
            reached["seccomp"] = 1
        except SetupFailed:
            if not config["best_effort"]:
                raise
    return reached


def landlock_abi() -> int:
    """Return the kernel's Landlock ABI version, 0 if it has none or it is switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    abi: int = libc.syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return max(abi, 0)


def _become(uid: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise SetupFailed(f"uid {uid}: {error}") from error
    if os.getresuid() != (uid, uid, uid):
        raise SetupFailed(f"uid {uid} was not kept")


def _limit(name: str, value: int, best_effort: bool) -> None:
    try:
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        # The processor limit warns one second before it kills: SIGXCPU tells
        # a spent budget from any other death.
        top = value + 1 if name == "RLIMIT_CPU" else value
        if hard != resource.RLIM_INFINITY:
            top = min(top, hard)
        resource.setrlimit(kind, (min(value, top), top))
    except (AttributeError, OSError, ValueError) as error:
        if not best_effort:
            raise SetupFailed(f"{name}: {error}") from error


# -- Landlock --------------------------------------------------------------------------------

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1, 2, 4, 8, 1 << 14
# Rights the kernel knows from each ABI on: refer came with 2, truncate with 3, device ioctl with 5.
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1}
_ALL_RIGHTS = (1 << 16) - 1
_TCP = 3  # bind and connect, from ABI 4
_SCOPES = 3  # abstract Unix sockets and signals, from ABI 6


def _landlock(libc: Any, config: dict[str, Any]) -> int:
    abi = min(landlock_abi(), config.get("landlock_max", 99))
    if abi < max(1, config["landlock"]):
        raise SetupFailed(f"Landlock ABI {abi}, {config['landlock']} needed")
    rights = _RIGHTS.get(abi, _ALL_RIGHTS)
    attributes = struct.pack("=QQQ", rights, _TCP if abi >= 4 else 0, _SCOPES if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    rules = libc.syscall(LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if rules < 0:
        raise SetupFailed(f"Landlock rule set: errno {ctypes.get_errno()}")
    for path in config["read"]:
        _allow(libc, rules, path, _READ_FILE | _READ_DIR)
    for path in config["write"]:
        # Nothing may be executed: the interpreter already runs.
        _allow(libc, rules, path, rights & ~_EXECUTE)
    if libc.syscall(LANDLOCK_RESTRICT_SELF, rules, 0):
        raise SetupFailed(f"Landlock: errno {ctypes.get_errno()}")
    os.close(rules)
    return int(abi)


def _allow(libc: Any, rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a rule that is missing only allows less
    if not os.path.isdir(path):
        rights &= _READ_FILE | _WRITE_FILE | _TRUNCATE
    rule = struct.pack("=Qi", rights, handle)
    failed = libc.syscall(LANDLOCK_ADD_RULE, rules, 1, rule, 0)
    os.close(handle)
    if failed:
        raise SetupFailed(f"Landlock rule: errno {ctypes.get_errno()}")


# -- seccomp ---------------------------------------------------------------------------------

# Denied calls: name -> (x86_64, aarch64); None where the architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    # other programs, other users
    "execve": (59, 221), "execveat": (322, 281),
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143),
    "setresuid": (117, 147), "setresgid": (119, 149), "setgroups": (116, 159),
    "setfsuid": (122, 151), "setfsgid": (123, 152),
    # the network, and every other socket
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "get_robust_list": (274, 100),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    # what Landlock leaves open of files outside: attributes, their times and owners, watching them
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "getxattr": (191, 8), "lgetxattr": (192, 9), "fgetxattr": (193, 10),
    "listxattr": (194, 11), "llistxattr": (195, 12), "flistxattr": (196, 13),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "truncate": (76, 45),  # Landlock knows it from ABI 3 on
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    # namespaces and mounts
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "mount_setattr": (442, 442),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "statmount": (457, 457), "listmount": (458, 458),
    # memory that no limit of ours counts, and objects that outlive the process
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "msgget": (68, 186),
    # others' objects answer to small numbers that can be guessed, no get needed
    "semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192),
    "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "mknod": (133, None), "mknodat": (259, 33),
    # wide or young kernel surface
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_setup": (206, 0), "io_submit": (209, 2), "vmsplice": (278, 75),
    "fanotify_init": (300, 262), "lookup_dcookie": (212, 18), "modify_ldt": (154, None),
    "mbind": (237, 235), "set_mempolicy": (238, 237), "migrate_pages": (256, 238),
    "move_pages": (279, 239), "personality": (135, 92),
    # the machine itself
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "reboot": (169, 142),
    "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161),
    "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None), "uselib": (134, None), "_sysctl": (156, None),
    "nfsservctl": (180, 42), "sync": (162, 81), "syncfs": (306, 267),
}  # fmt: skip
# machine -> (audit architecture, column above)
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_CLONE3 = 435
# Calls younger than this list are refused as unknown; C libraries then take the older way.
# Among them are setxattrat, removexattrat (463 to 466) and file_setattr (469).
_LAST_KNOWN_CALL = 462
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone takes
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW = 0x80000000, 0x7FFF0000
# EPERM, ENOSYS and EOPNOTSUPP; the last is what a file system says of a command it lacks.
_REFUSE, _UNKNOWN, _LACKING = 0x00050000 | 1, 0x00050000 | 38, 0x00050000 | 95
# Offsets in struct seccomp_data. An argument has two words, the low one first; the
# kernel itself looks at the low one alone where the argument is an int.
_CALL, _ARCHITECTURE, _FIRST, _FIRST_HIGH, _SECOND = 0, 4, 16, 20, 24

# F_SETOWN, F_SETSIG and F_SETOWN_EX: signals for others. F_SETLEASE: holds up whoever opens
# the file. F_NOTIFY: watches a folder. F_SETPIPE_SZ: uses up what the user has for pipes.
_DENIED_FCNTL = (8, 10, 15, 1024, 1026, 1031)
_TERMINAL, _BEYOND_TERMINAL = 0x5400, 0x5500  # also FIONBIO and FIOCLEX, which Python uses

# Calls that an argument decides on: name -> (x86_64, aarch64, what decides).
DECIDED: dict[str, tuple[int, int, tuple[tuple[int, int, int, int], ...]]] = {
    "clone": (56, 220, (
        (_LOAD, 0, 0, _FIRST), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    )),
    # Limits of another process kill it; 0 is the caller.
    "prlimit64": (302, 261, (
        (_LOAD, 0, 0, _FIRST), (_EQUAL, 0, 2, 0), (_LOAD, 0, 0, _FIRST_HIGH), (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW),
    )),
    "fcntl": (72, 25, (
        (_LOAD, 0, 0, _SECOND),
        *(part for command in _DENIED_FCNTL
          for part in ((_EQUAL, 0, 1, command), (_RETURN, 0, 0, _REFUSE))),
        (_RETURN, 0, 0, _ALLOW),
    )),
    # A file open for reading is enough to change its flags, which Landlock doesn't cover.
    "ioctl": (16, 29, (
        (_LOAD, 0, 0, _SECOND), (_AT_LEAST, 1, 0, _BEYOND_TERMINAL), (_AT_LEAST, 1, 0, _TERMINAL),
        (_RETURN, 0, 0, _LACKING), (_RETURN, 0, 0, _ALLOW),
    )),
}  # fmt: skip


def seccomp_program(machine: str) -> bytes:
    """Return the deny list for ``machine`` as classic BPF, eight bytes an instruction.

    Raises:
        SetupFailed: no list is known for this machine.
    """
    if machine not in MACHINES:
        raise SetupFailed(f"no seccomp list for {machine}")
    architecture, column = MACHINES[machine]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _CALL),
    ]  # fmt: skip
    if machine == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)]
    code += [(_AT_LEAST, 0, 1, _LAST_KNOWN_CALL + 1), (_RETURN, 0, 0, _UNKNOWN)]
    # clone3 keeps its flags in memory, where a filter can't look.
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _UNKNOWN)]
    for number in _numbers(column):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for decided in DECIDED.values():
        numbers, checks = decided[:2], decided[2]
        code += [(_EQUAL, 0, len(checks), numbers[column]), *checks]
    code += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _numbers(column: int) -> Iterable[int]:
    for pair in DENIED.values():
        number = pair[column]
        if number is not None:
            yield number


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


def _seccomp(libc: Any) -> None:
    program = seccomp_program(os.uname().machine)
    buffer = ctypes.create_string_buffer(program, len(program))
    mode_filter = 2
    table = _Filter(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    if libc.prctl(PR_SET_SECCOMP, mode_filter, ctypes.byref(table), 0, 0):
        raise SetupFailed(f"seccomp: errno {ctypes.get_errno()}")
