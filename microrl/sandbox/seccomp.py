"""A seccomp filter: only the system calls that honest code needs are left, for good. No privilege is needed.

What is allowed is listed; all else fails with EPERM, and calls that are newer than this list do not exist for the process
(ENOSYS). See seccomp(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from microrl.processes import libc
from microrl.sandbox.landlock import no_new_privileges

_SYSCALLS = {"x86_64": (0xC000003E, 0, 317), "aarch64": (0xC00000B7, 1, 277)}
"""By machine: its AUDIT_ARCH number, its column in ALLOWED, and its seccomp(2)."""
_SET_MODE_FILTER, _GET_ACTION_AVAILABLE = 1, 2
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NEWEST = 470
"""Calls from this number on are newer than this list."""

# fmt: off
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # memory of its own
    "brk": (12, 214), "mmap": (9, 222), "munmap": (11, 215), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "mincore": (27, 232),
    # files: Landlock says which, and seccomp not how they were opened
    "read": (0, 63), "write": (1, 64), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65), "writev": (20, 66),
    "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287), "lseek": (8, 62),
    "creat": (85, None), "close": (3, 57), "close_range": (436, 436), "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291), "statfs": (137, 43),
    "fstatfs": (138, 44), "access": (21, None), "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None),
    "readlinkat": (267, 78), "getdents": (78, None), "getdents64": (217, 61), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "umask": (95, 166), "mkdir": (83, None), "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None),
    "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None),
    "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36), "ftruncate": (77, 46),
    "fadvise64": (221, 223), "fsync": (74, 82), "fdatasync": (75, 83), "sendfile": (40, 71), "copy_file_range": (326, 285),
    # waiting, and pipes
    "pipe": (22, None), "pipe2": (293, 59), "poll": (7, None), "ppoll": (271, 73), "select": (23, None), "pselect6": (270, 72),
    "epoll_create": (213, None), "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None),
    "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19), "futex": (202, 98),
    "futex_waitv": (449, 449), "pause": (34, None),
    # time
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "alarm": (37, None), "getitimer": (36, 102),
    "setitimer": (38, 103), "timerfd_create": (283, 85), "timerfd_settime": (286, 86), "timerfd_gettime": (287, 87),
    # itself
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150), "getgroups": (115, 158),
    "getpgrp": (111, None), "getrusage": (98, 165), "getrlimit": (97, 163), "setrlimit": (160, 164), "uname": (63, 160),
    "sysinfo": (99, 179), "getcpu": (309, 168), "getrandom": (318, 278), "sched_yield": (24, 124),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigpending": (127, 136), "rt_sigsuspend": (130, 133), "rt_sigtimedwait": (128, 137),
    "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "restart_syscall": (219, 128), "set_tid_address": (218, 96),
    "set_robust_list": (273, 99), "rseq": (334, 293), "membarrier": (324, 283), "arch_prctl": (158, None), "exit": (60, 93),
    "exit_group": (231, 94), "landlock_create_ruleset": (444, 444),
}
_ONLY_WITH: dict[str, tuple[tuple[int | None, int | None], int, int, frozenset[int] | None]] = {
    # call: its numbers, the argument that is looked at, through which mask, and the values that are allowed; None: 0 and the
    # process's own number. The kernel reads all of these arguments as 32 bits.
    # Not O_TRUNC without write access: before version 3, Landlock lets it empty a file that may only be read.
    "open": ((2, None), 1, 0x203, frozenset({0, 1, 2, 0x201, 0x202})),
    "openat": ((257, 56), 2, 0x203, frozenset({0, 1, 2, 0x201, 0x202})),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, record locks, F_DUPFD_CLOEXEC: no signals to others, no leases, no seals
    "fcntl": ((72, 25), 1, 0xFFFFFFFF, frozenset({0, 1, 2, 3, 4, 5, 6, 7, 1030})),
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, TCGETS2
    "ioctl": ((16, 29), 1, 0xFFFFFFFF, frozenset({0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A})),
    # PR_SET_NAME, PR_GET_NAME, PR_GET_SECCOMP, PR_CAPBSET_READ, PR_GET_NO_NEW_PRIVS, PR_SET_VMA: it stays bound to its parent
    "prctl": ((157, 167), 0, 0xFFFFFFFF, frozenset({15, 16, 21, 23, 39, 0x53564D41})),
    "tgkill": ((234, 131), 0, 0xFFFFFFFF, None),             # a process may end itself
    "prlimit64": ((302, 261), 0, 0xFFFFFFFF, None),          # its own limits can only get tighter
    "sched_getaffinity": ((204, 123), 0, 0xFFFFFFFF, None),
}
_UNSUPPORTED: dict[str, tuple[int, int, int]] = {
    # call: its numbers, and the error after which the C library takes another one
    "clone3": (435, 435, errno.ENOSYS),
    "fallocate": (285, 47, errno.EOPNOTSUPP),  # it allots gigabytes a moment; what is written instead takes its time
}
# fmt: on


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def is_available() -> bool:
    """Whether the kernel has seccomp filters, and this machine's calls are known here."""
    if platform.system() != "Linux" or platform.machine() not in _SYSCALLS:
        return False
    action = ctypes.c_uint32(_ERRNO)
    number = _SYSCALLS[platform.machine()][2]
    return int(libc().syscall(ctypes.c_long(number), _GET_ACTION_AVAILABLE, 0, ctypes.byref(action))) == 0


def install() -> None:
    """Leave this process the listed calls alone, for good. Raises OSError where the kernel refuses.

    It may not fork any more, and tells itself from others by its process number: install it after the fork.
    """
    code = _program(platform.machine(), os.getpid())
    program = _Program(len(code) // 8, code)
    no_new_privileges()
    if libc().syscall(ctypes.c_long(_SYSCALLS[platform.machine()][2]), _SET_MODE_FILTER, 0, ctypes.byref(program)) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def _program(machine: str, own: int) -> bytes:
    """The filter as classic BPF. The kernel lays out: number (4 bytes), architecture (4), instruction pointer (8), arguments."""
    architecture, column, _ = _SYSCALLS[machine]
    load, mask_with, equal, at_least, ret = 0x20, 0x54, 0x15, 0x35, 0x06
    allow, refuse = ((ret, 0, 0, action) for action in (_ALLOW, _ERRNO | errno.EPERM))
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4),
        (equal, 1, 0, architecture),
        (ret, 0, 0, _KILL_PROCESS),  # 32-bit calls have other numbers
        (load, 0, 0, 0),
        (at_least, 0, 1, _NEWEST),  # x32's numbers, too, which begin at 2^30
        (ret, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for *both, error in _UNSUPPORTED.values():
        code += [(equal, 0, 1, both[column]), (ret, 0, 0, _ERRNO | error)]
    for numbers in ALLOWED.values():
        if (number := numbers[column]) is not None:
            code += [(equal, 0, 1, number), allow]
    for numbers, argument, mask, values in _ONLY_WITH.values():
        if (number := numbers[column]) is None:
            continue
        body = [(load, 0, 0, 16 + 8 * argument), (mask_with, 0, 0, mask)]  # the low half, which comes first
        for value in sorted({0, own} if values is None else values):
            body += [(equal, 0, 1, value), allow]
        code += [(equal, 0, len(body) + 1, number), *body, refuse]
    code.append(refuse)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
