"""What the tests of the sandbox run in it: a module for `microrl.sandbox.Host`."""

import ctypes
import os
import signal
import socket
import threading
import time
from pathlib import Path

OUTSIDE = f"/tmp/microrl-outside-{os.getuid()}"
"""The tests make it, with a file in it."""
ATTEMPTS = {
    "read a file": Path(f"{OUTSIDE}/secret").read_text,
    "read another process's memory": lambda: Path(f"/proc/{os.getppid()}/maps").read_text(),
    "list a folder": lambda: os.listdir(OUTSIDE),
    "write a file": lambda: Path(f"{OUTSIDE}/written").write_text(""),
    "remove a file": lambda: os.remove(f"{OUTSIDE}/secret"),
    "rename a file": lambda: os.rename(f"{OUTSIDE}/secret", f"{OUTSIDE}/other"),
    "make a link": lambda: os.symlink("/etc", f"{OUTSIDE}/link"),
    "change permissions": lambda: os.chmod(OUTSIDE, 0o777),
    "change times": lambda: os.utime(f"{OUTSIDE}/secret"),
    "open a socket": lambda: socket.socket(),
    "open a local socket": lambda: socket.socketpair(),
    "fork": os.fork,
    "start a program": lambda: os.execv("/bin/true", ["true"]),
    "start a thread": lambda: threading.Thread(target=print).start(),
    "signal the parent": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "signal everyone": lambda: os.kill(-1, signal.SIGTERM),
    "trace the parent": lambda: _call(101, 16, os.getppid(), 0, 0),
    "unshare": lambda: _call(272, 0x10000000),
    "set up io_uring": lambda: _call(425, 8, ctypes.create_string_buffer(120)),
    "outlive the parent": lambda: _call(157, 1, 0, 0, 0, 0),
    "change the limits of others": lambda: _call(302, os.getppid(), 7, None, None),
    "share memory": lambda: _call(29, 1, 4096, 0o1600),
    "an unknown call": lambda: _call(500),
    "a 32-bit number": lambda: _call(0x40000000 + 41, 1, 1, 0),
}


def _call(number, *arguments):
    """A system call by its number on x86_64."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(number), *arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def prepare():
    """Nothing to import."""


def handle(request, reads, writes):
    kind = request["kind"]
    if kind == "attempts":
        return {name: _outcome(attempt) for name, attempt in ATTEMPTS.items()}
    if kind == "state":
        return {"environment": dict(os.environ), "descriptors": _open_descriptors(), "folder": os.getcwd()}
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL) if request.get("hard") else os._exit(0)
    if kind == "loop":
        while True:
            pass
    if kind == "sleep":
        time.sleep(60)
    if kind == "memory":
        return len(bytearray(4 << 30))
    if kind == "large":
        return "x" * (1 << 22)
    os.write(writes, b"?")
    said = os.read(reads, 1 << 16)
    while kind == "listen" and (more := os.read(reads, 1 << 16)):
        said += more
    return said.decode()


def serve(request, reads, writes):
    os.read(reads, 1)
    if "source" in request:
        exec(request["source"], {"__name__": "program", "os": os, "time": time, "say": lambda text: os.write(writes, text)})
    if request.get("fills"):
        for number in range(100_000):
            Path(f"{number}").write_bytes(bytes(request["fills"]))
    Path("own").write_text("my own folder")
    found = [_outcome(attempt) for attempt in (ATTEMPTS["read a file"], _import_a_package, _import_a_module)]
    os.write(writes, f"{request['says']}, {Path('own').read_text()}, {', '.join(found)}".encode())


def _import_a_package():
    import pytest  # noqa: F401


def _import_a_module():
    import wave  # noqa: F401


def _outcome(attempt):
    try:
        attempt()
    except Exception as error:
        return type(error).__name__
    return "succeeded"


def _open_descriptors():
    found = []
    for number in range(64):
        try:
            os.fstat(number)
            found.append(number)
        except OSError:
            pass
    return found
