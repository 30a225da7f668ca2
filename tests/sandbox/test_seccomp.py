"""The filter of system calls alone, without Landlock: what is not on its list fails, and honest code does not notice it."""

import ctypes
import errno
import fcntl
import json
import os
import platform
import signal
import socket
import sqlite3
import struct
import tempfile
import threading

import pytest

from microrl.sandbox import landlock, seccomp
from microrl.sandbox.confine import Levels, levels_in_force

pytestmark = pytest.mark.skipif(
    not seccomp.is_available() or platform.machine() != "x86_64", reason="calls by their numbers on x86_64"
)
IPC_PRIVATE, IPC_CREAT, IPC_RMID, IPC_STAT, GETVAL = 0, 0o1000, 0, 2, 12
F_SETOWN, F_SETLEASE, F_NOTIFY, F_SETPIPE_SZ = 8, 1024, 1026, 1031


def call(number, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def under_the_filter(work):
    """What `work` returns in a fork that has the filter and nothing else."""
    reads, writes = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            seccomp.install()
            os.write(writes, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(said)


def outcome(attempt):
    try:
        attempt()
    except OSError as error:
        return errno.errorcode[error.errno]
    except RuntimeError as error:  # a thread that cannot be started
        return str(error)
    return "succeeded"


@pytest.fixture
def neighbour(tmp_path):
    """What belongs to another process of the same user: a file, a queue with a message, a semaphore."""
    file = tmp_path / "file"
    file.write_text("content")
    queue, semaphore = call(68, IPC_PRIVATE, IPC_CREAT | 0o600), call(64, IPC_PRIVATE, 1, IPC_CREAT | 0o600)
    call(69, queue, struct.pack("=q8s", 1, b"message"), 8, 0)
    yield file, queue, semaphore
    for number, which, *rest in ((71, queue, IPC_RMID, None), (66, semaphore, 0, IPC_RMID)):
        call(number, which, *rest)


def attempts(file, queue, semaphore):
    buffer = ctypes.create_string_buffer(4096)
    path = str(file).encode()
    opened = os.open(file, os.O_RDONLY)
    return {
        "truncate": lambda: os.truncate(file, 0),
        "empty by opening": lambda: os.open(file, os.O_RDONLY | os.O_TRUNC),
        "empty by opening for nothing": lambda: os.open(file, 3 | os.O_TRUNC),
        "openat2": lambda: call(437, -100, path, struct.pack("=QQQ", os.O_TRUNC, 0, 0), 24),
        "receive a message": lambda: call(70, queue, buffer, 100, 0, 0),
        "read a queue": lambda: call(71, queue, IPC_STAT, buffer),
        "remove a queue": lambda: call(71, queue, IPC_RMID, None),
        "send a message": lambda: call(69, queue, struct.pack("=q8s", 1, b"another"), 8, 0),
        "change a semaphore": lambda: call(65, semaphore, struct.pack("=Hhh", 0, 1, 0), 1),
        "change a semaphore, in time": lambda: call(220, semaphore, struct.pack("=Hhh", 0, 1, 0), 1, None),
        "read a semaphore": lambda: call(66, semaphore, 0, GETVAL),
        "share memory": lambda: call(29, IPC_PRIVATE, 4096, IPC_CREAT | 0o600),
        "read attributes": lambda: os.listxattr(file),
        "read an attribute": lambda: call(191, path, b"user.x", buffer, 100),
        "set an attribute": lambda: os.setxattr(file, "user.x", b""),
        "watch a file": lambda: call(254, call(294, 0), path, 0xFFF),
        "sync": lambda: call(162),
        "syncfs": lambda: call(306, opened),
        "lease": lambda: fcntl.fcntl(opened, F_SETLEASE, 0),
        "notify": lambda: fcntl.fcntl(os.open(file.parent, os.O_RDONLY), F_NOTIFY, 1),
        "own": lambda: fcntl.fcntl(opened, F_SETOWN, os.getppid()),
        "pipe size": lambda: fcntl.fcntl(os.pipe()[0], F_SETPIPE_SZ, 1 << 20),
        "lock": lambda: fcntl.flock(opened, 1),
        "flags of a file": lambda: fcntl.ioctl(opened, 0x80086601, buffer),
        "change permissions": lambda: os.chmod(file, 0o777),
        "change times": lambda: os.utime(file),
        "change the owner": lambda: os.chown(file, os.getuid(), os.getgid()),
        "affinity": lambda: os.sched_setaffinity(0, {0}),
        "another's affinity": lambda: os.sched_getaffinity(os.getppid()),
        "another's limits": lambda: call(302, os.getppid(), 7, None, buffer),
        "another's session": lambda: os.getsid(os.getppid()),
        "signal the parent": lambda: os.kill(os.getppid(), 0),
        "signal a thread": lambda: call(234, os.getppid(), os.getppid(), 0),
        "pidfd": lambda: os.pidfd_open(os.getppid()),
        "fork": os.fork,
        "start a thread": lambda: threading.Thread(target=print).start(),
        "start a program": lambda: os.execv("/bin/true", ["true"]),
        "a socket": lambda: socket.socket(),
        "keep running after the parent": lambda: call(157, 1, 0, 0, 0, 0),
        "be readable again": lambda: call(157, 4, 1, 0, 0, 0),
        "io_uring": lambda: call(425, 8, buffer),
        "bpf": lambda: call(321, 0, buffer, 100),
        "trace": lambda: call(101, 16, os.getppid(), 0, 0),
        "read another's memory": lambda: call(310, os.getppid(), buffer, 1, buffer, 1, 0),
        "a key": lambda: call(250, 0, -3, 0),
        "a message queue": lambda: call(240, b"microrl", os.O_CREAT, 0o600, None),
        "a file in memory": lambda: os.memfd_create("x"),
        "userfaultfd": lambda: call(323, 0),
        "a namespace": lambda: call(272, 0x10000000),
        "a timer with a signal": lambda: call(222, 0, None, buffer),
        "a call of x32": lambda: call(0x40000000 + 76, path, 0),
        "a call yet unknown": lambda: call(600),
    }  # fmt: skip


def test_what_is_not_listed_fails_and_leaves_the_neighbour_alone(neighbour):
    file, queue, semaphore = neighbour
    found = under_the_filter(lambda: {name: outcome(attempt) for name, attempt in attempts(*neighbour).items()})
    held_back = {"EPERM", "ENOSYS", "can't start new thread"}
    assert {name: said for name, said in found.items() if said not in held_back} == {}
    assert file.read_text() == "content" and call(66, semaphore, 0, GETVAL) == 0
    buffer = ctypes.create_string_buffer(16)
    assert call(70, queue, buffer, 8, 0, 0o4000) == 8 and buffer.raw[8:15] == b"message", "it is still there"


def test_without_the_filter_they_succeed(neighbour):
    tried = attempts(*neighbour)
    for name in ("read attributes", "sync", "watch a file", "read a queue", "change a semaphore", "receive a message",
                 "empty by opening", "truncate", "affinity", "another's session", "lease"):  # fmt: skip
        assert outcome(tried[name]) == "succeeded", name


def _honest(folder):
    """What programs and rewards do, once each."""
    os.chdir(folder)
    with open("a", "w+") as file:
        file.write("12345")
        file.flush()
        os.posix_fallocate(file.fileno(), 0, 1 << 16)  # the C library writes, where it cannot be allotted
        assert os.fstat(file.fileno()).st_size == 1 << 16
        file.truncate(3)
        os.fsync(file.fileno())
    os.rename("a", "b")
    os.makedirs("c/d", exist_ok=True)
    os.link("b", "c/d/e")
    os.symlink("b", "f")
    with tempfile.TemporaryDirectory(dir=".") as inner, tempfile.NamedTemporaryFile(dir=inner) as file:
        file.write(b"x")
    with sqlite3.connect("data.db") as base:
        base.execute("create table t (x)")
        base.execute("insert into t values (1)")
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    signal.pause()
    import decimal
    import select
    import time

    time.sleep(0.001)
    reads, writes = os.pipe()
    os.write(writes, b"x")
    ready = select.select([reads], [], [], 1)[0] == [reads] and select.poll() is not None
    with open("b") as file:
        text = file.read()
    names = sorted(entry.name for entry in os.scandir("."))
    counted = len(os.sched_getaffinity(0)) > 0 and (os.cpu_count() or 0) > 0 and os.statvfs(".").f_bsize > 0
    return [
        text,
        names,
        ready,
        counted,
        len(os.urandom(8)),
        str(decimal.Decimal(1) / 3)[:4],
        os.isatty(reads),
        os.getcwd() == folder,
    ]


def test_honest_code_does_not_notice_it(tmp_path):
    expected = ["123", ["b", "c", "data.db", "f"], True, True, 8, "0.33", False, True]
    assert under_the_filter(lambda: _honest(str(tmp_path))) == expected


def test_code_is_refused_where_landlock_lets_files_be_emptied():
    assert Levels(True, True, 3).is_enforced and not Levels(True, True, 2).is_enforced and not Levels(True, False, 7).is_enforced
    assert "does not hold back truncation" in Levels(True, True, 2).lacking and str(Levels(True, True, 2)).startswith(
        "Landlock ABI 2"
    )
    assert Levels(False, False, 7).lacking == "Landlock and seccomp"


@pytest.mark.skipif(landlock.version() < 3, reason="this kernel's Landlock does not know truncation")
def test_the_probe_sees_that_files_can_be_emptied(tmp_path, monkeypatch):
    """Landlock as in version 2, and no filter of system calls: an outside file is emptied, so files are not safe."""
    victim = tmp_path / "victim"
    victim.write_text("content")

    def levels():
        return [levels_in_force(str(victim)).files]

    reads, writes = os.pipe()
    if os.fork() == 0:
        try:
            monkeypatch.setattr(landlock, "_FILE_RIGHTS", {1: (1 << 13) - 1, 2: 1 << 13})
            landlock.enter(landlock.ruleset(read=("/usr/lib", "/lib")))
            os.write(writes, json.dumps(levels()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        assert json.loads(pipe.read()) == [False]
    os.wait()
    assert victim.read_text() == ""
