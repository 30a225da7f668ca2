"""A script: the sandbox in a process that can make no namespaces, nor can what it starts. Prints what came out as JSON.

With a command, it runs that instead.
"""

import ctypes
import errno
import json
import os
import platform
import struct
import sys

import sandboxed

from microrl.sandbox import Host, levels, seccomp
from microrl.sandbox.landlock import no_new_privileges

MAKES_NAMESPACES = 0x7E020000
"""The flags of clone(2) that do: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""

NUMBERS = {"unshare": (272, 97), "setns": (308, 268), "clone": (56, 220), "clone3": (435, 435)}
"""On x86_64 and on aarch64."""


def forbid():
    """unshare, setns, and clone with such flags fail with EPERM; clone3, whose flags no filter sees, does not exist."""
    architecture, column, call = seccomp._SYSCALLS[platform.machine()]
    load, equal, any_bit, ret = 0x20, 0x15, 0x45, 0x06
    refuse = (ret, 0, 0, seccomp._ERRNO | errno.EPERM)
    number = {name: numbers[column] for name, numbers in NUMBERS.items()}
    code = [
        (load, 0, 0, 4), (equal, 1, 0, architecture), (ret, 0, 0, seccomp._KILL_PROCESS), (load, 0, 0, 0),
        (equal, 0, 1, number["unshare"]), refuse,
        (equal, 0, 1, number["setns"]), refuse,
        (equal, 0, 1, number["clone3"]), (ret, 0, 0, seccomp._ERRNO | errno.ENOSYS),
        (equal, 0, 3, number["clone"]), (load, 0, 0, 16), (any_bit, 0, 1, MAKES_NAMESPACES), refuse,
        (ret, 0, 0, seccomp._ALLOW),
    ]  # fmt: skip
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    no_new_privileges()
    if ctypes.CDLL(None).syscall(ctypes.c_long(call), 1, 0, ctypes.byref(seccomp._Program(len(code), packed))) != 0:
        raise OSError("seccomp")
    return number


def refused(number, *arguments):
    """Whether a call fails with EPERM."""
    try:
        sandboxed._call(number, *arguments)
    except PermissionError:
        return True
    return False


if __name__ == "__main__":
    number = forbid()
    if sys.argv[1:]:
        os.execv(sys.argv[1], sys.argv[1:])
    flags = (0x10000000, 0x20000000, 0x40000000, 0x00020000)
    found = {"refused": [refused(number["unshare"], flag) for flag in flags]}
    found["refused"] += [refused(number["clone"], flag | 17, None, None, None, None) for flag in flags]
    found["refused"].append(refused(number["setns"], os.open("/proc/self/ns/net", os.O_RDONLY), 0))
    host = Host("sandboxed")
    found["attempts"] = host.ask({"kind": "attempts"}, deadline_s=20, cpu_s=5)
    found["talk"] = host.ask({"kind": "talk"}, {"says": "hello"}, deadline_s=20, cpu_s=5)
    host.close()
    found["levels"] = str(levels())
    print(json.dumps(found))
