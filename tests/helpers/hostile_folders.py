"""A script: what programs leave in their folders. `jobs WHERE` runs them in one host, `removal` does without one.

Prints as JSON what was wrong; nothing, where the next job works and nothing is left. `WHERE`: "memory" or "disk".
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import no_namespaces

from microrl.sandbox import Host, folders

PROGRAMS = {
    "deep": "for _ in range(1100): os.mkdir('d'); os.chdir('d')",
    "deep, with files": "for n in range(400): os.mkdir('d'); open('f', 'w').write('f'); os.chdir('d')",
    "deep, long names": "for _ in range(90): os.mkdir('d' * 255); os.chdir('d' * 255)",
    "deep, cannot be read": "for _ in range(300): os.mkdir('d', 0o300); os.chdir('d')",
    "wide": "for n in range(5000): os.mkdir(str(n))",
    "wide and deep": "for n in range(30): os.makedirs(f'{n}/' + '/'.join('abcdefghij'))",
    "many files": "for n in range(5000): open(str(n), 'w').write('x')",
    "no permissions": "os.mkdir('a', 0); os.mkdir('b', 0); os.mkdir('c', 0o100)",
    "cannot be read": "os.mkdir('a', 0o300); os.chdir('a'); open('f', 'w').write('x')",
    "cannot be written": "os.mkdir('a', 0o500); os.mkdir('b', 0o400)",
    "sticky": "os.mkdir('a', 0o1777); os.mkdir('a/b', 0o3700); open('a/b/f', 'w')",
    "files without permissions": "os.close(os.open('a', os.O_CREAT | os.O_WRONLY, 0))",
    "links in a ring": "os.symlink('b', 'a'); os.symlink('a', 'b'); os.symlink('.', 'c'); os.symlink('..', 'd')",
    "links to outside": "os.symlink(OUTSIDE, 'a'); os.symlink('/', 'b'); os.mkdir('c'); os.symlink(OUTSIDE, 'c/d')",
    "names": r"""
for name in (b'\xff\xfe', b'a\nb', b'-rf', b' ', b'*', b'\x01', b'f (deleted)', b'x' * 254):
    open(name, 'w'); os.mkdir(name + b'd'); open(name + b'd/' + name, 'w')
""",
    "hard links": "open('a', 'w').write('x' * 99999)\nfor n in range(300): os.link('a', f'a{n}')",
    "sparse": "for n in range(50): open(f'{n}', 'w').truncate(4 << 20)",
    "held open": "held = [open(f'{n}', 'wb') for n in range(20)]; os.unlink('3'); time.sleep(60)",
    "in no folder": "os.mkdir('a'); os.chdir('a'); os.rmdir('../a')",
    "renamed meanwhile": """
os.makedirs('a/b'); os.mkdir('c')
while True:
    os.rename('a/b', 'c/b'); os.rename('c/b', 'a/b')
""",
    "made meanwhile": """
while True:
    for n in range(9): os.makedirs(f'{n}/{n}')
    for n in range(9): os.removedirs(f'{n}/{n}')
""",
    "turned over": """
os.makedirs('a/b/c/d')
for n in range(200):
    os.rename('a/b', 'b'); os.rename('a', 'b/c/d/a'); os.rename('b/c', 'c'); os.rename('b', 'c/d/a/b')
    os.rename('c/d', 'd'); os.rename('c', 'd/a/b/c'); os.rename('d/a', 'a'); os.rename('d', 'a/b/c/d')
""",
    "mapped": """
import mmap
held = []
for n in range(30):
    with open('f', 'w+b') as file:
        file.truncate(1 << 20)
        held.append(mmap.mmap(file.fileno(), 4096))
    os.unlink('f')
""",
}
LARGE = {
    "with names": """
while True:
    open(str(number), 'wb').write(bytes(4 << 20)); wrote()
""",
    "deeper than a path": """
for _ in range(40):
    os.mkdir('d' * 200); os.chdir('d' * 200)
while True:
    open(str(number), 'wb').write(bytes(4 << 20)); wrote()
""",
    "where it cannot be read": """
os.mkdir('a', 0o300)
while True:
    open(f'a/{number}', 'wb').write(bytes(4 << 20)); wrote()
""",
    "in folders that are renamed": """
os.makedirs('a/0/1/2/3/4/5'); os.mkdir('b'); os.chdir('a/0/1/2/3/4/5')
a, b = os.open('../../../../../..', os.O_RDONLY), os.open('../../../../../../../b', os.O_RDONLY)
while True:
    with open(str(number), 'wb', buffering=0) as file:
        for _ in range(256):
            os.rename('0', '0', src_dir_fd=a, dst_dir_fd=b); file.write(bytes(1 << 14))
            os.rename('0', '0', src_dir_fd=b, dst_dir_fd=a)
    wrote()
""",
    "without names": """
held = []
for _ in range(20):
    held.append(open('f', 'wb', buffering=0)); held[-1].write(bytes(4 << 20)); os.unlink('f'); wrote()
time.sleep(3)
""",
    "mapped, without names": """
import mmap
held = []
while True:
    with open('f', 'w+b') as file:
        file.write(bytes(4 << 20)); file.flush(); held.append(mmap.mmap(file.fileno(), 4096))
    os.unlink('f'); wrote()
""",
    "mapped by the C library": """
import ctypes
map = ctypes.CDLL(None).mmap
while True:
    file = os.open('f', os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 4 << 20); map(None, ctypes.c_size_t(4096), 1, 1, file, ctypes.c_long(0))
    os.close(file); os.unlink('f'); wrote()
""",
    "written where it is mapped": """
import mmap
while True:
    with open(str(number), 'w+b') as file:
        file.truncate(4 << 20)
        with mmap.mmap(file.fileno(), 4 << 20) as here: here.write(bytes(4 << 20))
    wrote()
""",
    "allocated": """
while True:
    file = os.open(str(number), os.O_WRONLY | os.O_CREAT)
    os.posix_fallocate(file, 0, 4 << 20); os.close(file); wrote()
""",
    "copied": """
os.write(first := os.open('first', os.O_RDWR | os.O_CREAT), bytes(4 << 20))
while True:
    file = os.open(str(number), os.O_WRONLY | os.O_CREAT)
    os.sendfile(file, first, 0, 4 << 20); os.close(file); wrote()
""",
}
"""Each says when it has written another file of 4 MB, and does not stop; one comes to 80 MB, and then says that it may."""
BEFORE_LARGE = """
number = 0
def wrote():
    global number
    number += 1; say(b'.')
"""
MOST_FILES = 75
"""300 MB: 64, and what is written until somebody looks, on a machine where that takes a tenth of a second."""
HONEST = {
    "siblings": "for n in range(990): os.mkdir(str(n))",
    "a chain": "for n in range(990): os.mkdir('d'); os.chdir('d')",
    "a tree": "for n in range(30): os.makedirs(f'{n}/' + '/'.join(map(str, range(30))))",
    "files in folders": "for n in range(490): os.mkdir(str(n)); open(f'{n}/f', 'w').write('x')",
    "large files": "for n in range(13): open(str(n), 'wb').write(bytes(4 << 20))",
    "allocated": """
for n in range(13):
    with open(str(n), 'wb') as file:
        os.posix_fallocate(file.fileno(), 0, 4 << 20)
    assert os.stat(str(n)).st_size == 4 << 20
""",
    "written again": "for n in range(60): open('f', 'wb').write(bytes(4 << 20))",
    "shared memory": "import mmap\nheld = [mmap.mmap(-1, 1 << 16) for _ in range(100)]",
    "mapped, with names": """
import mmap
held = []
for n in range(20):
    with open(str(n), 'w+b') as file:
        file.truncate(4096); held.append(mmap.mmap(file.fileno(), 4096))
""",
}  # fmt: skip
"""At most 1,000 entries and 64 MB."""
ENDLESS = {"held open", "renamed meanwhile", "made meanwhile"}


def jobs(where):
    """Each program in one host: the next job works, nothing is left, and nothing outside was touched."""
    host, wrong = started(where), []
    outside = Path(tempfile.mkdtemp(prefix="outside-"))
    (outside / "kept").write_text("kept")
    outside.chmod(0o755)
    for name, source in PROGRAMS.items():
        source = f"OUTSIDE = {str(outside)!r}\n{source}"
        deadline_s = 0.4 if name in ENDLESS else 20
        host.ask({"kind": "talk"}, {"source": source, "says": ""}, deadline_s=deadline_s, cpu_s=5)
        if said := does_not_work(host):
            wrong.append(f"{name}: the next job answered {said}")
        until = time.monotonic() + 20  # it is removed after the answer
        while (left := os.listdir(host._folder)) and time.monotonic() < until:
            time.sleep(0.01)
        if left:
            wrong.append(f"{name}: left {left[:3]}")
    host.close()
    if stat.S_IMODE(outside.stat().st_mode) != 0o755 or os.listdir(outside) != ["kept"]:
        wrong.append("outside was changed")
    (outside / "kept").unlink()
    outside.rmdir()
    return wrong


def large(where):
    """Each program is stopped long before the disk is full, and the next job works."""
    host, wrong = started(where), []
    for name, source in LARGE.items():
        source = f"{BEFORE_LARGE}{source}\nsay(b'all')"
        said = host.ask({"kind": "listen"}, {"source": source, "says": ""}, deadline_s=30, cpu_s=20)
        if said is None or not 0 < said.count(".") + (name == "where it cannot be read") <= MOST_FILES or "all" in said:
            wrong.append(f"{name}: {said}")
        if said := does_not_work(host):
            wrong.append(f"{name}: the next job answered {said}")
    host.close()
    return wrong


def honest(where):
    """Each program ends as if nobody had looked, which somebody has."""
    host, wrong = started(where), []
    for name, source in HONEST.items():
        source += "\ntime.sleep(0.2)"
        said = host.ask({"kind": "talk"}, {"source": source, "says": "done"}, deadline_s=20, cpu_s=5)
        if said is None or not said.startswith("done"):
            wrong.append(f"{name}: {said}")
    host.close()
    return wrong


def does_not_work(host):
    """What the next job answers, where it is wrong."""
    said = host.ask({"kind": "talk"}, {"says": "next"}, deadline_s=20, cpu_s=5)
    return "" if said and said.startswith("next, my own folder") else repr(said)


def started(where):
    """A host whose folder is in memory or on the disk. Exits where this machine has no such."""
    if where == "disk":
        no_namespaces.forbid()
    host = Host("sandboxed")
    host.ask({"kind": "state"}, deadline_s=60, cpu_s=5)
    if has_own_mounts(host._process.pid) != (where == "memory"):
        host.close()
        sys.exit("no such folder here")
    return host


def has_own_mounts(pid):
    return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")


def removal():
    """What a program could leave where nothing confines it, made with all of a user's rights."""
    wrong, outside = [], Path(tempfile.mkdtemp(prefix="outside-"))
    (outside / "kept").write_text("kept")
    for make in (_hidden_deep, _special_files, _modes, _links, _held):
        path = tempfile.mkdtemp(prefix=folders.PREFIX)
        os.chdir(path)
        held = make(outside)
        os.chdir("/")
        folders.remove(path)
        if os.path.lexists(path):
            wrong.append(f"{make.__name__}: left")
        del held
    if os.listdir(outside) != ["kept"] or stat.S_IMODE(outside.stat().st_mode) != 0o700:
        wrong.append("outside was changed")
    shutil.rmtree(outside)
    return wrong + _immutable()


def _hidden_deep(outside):
    for number in range(1500):
        os.mkdir("d" * 60)
        os.chdir("d" * 60)
        os.chmod(".", (0o300, 0o700, 0o100)[number % 3] | 0o200)


def _special_files(outside):
    os.mkfifo("fifo", 0)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    os.mkdir("d")
    os.mkfifo("d/fifo")


def _modes(outside):
    for mode in (0, 0o100, 0o200, 0o300, 0o400, 0o500, 0o1000, 0o4000, 0o3300):
        os.makedirs(f"{mode}/inner/{mode}")
        Path(f"{mode}/inner/file").write_text("x")
        os.chmod(f"{mode}/inner/{mode}", mode)
        os.chmod(f"{mode}/inner", mode)
        os.chmod(f"{mode}", mode)
    os.chmod(".", 0)


def _links(outside):
    os.symlink(outside, "a")
    os.mkdir("d")
    os.symlink(outside, "d/a")
    os.link(outside / "kept", "d/kept")


def _held(outside):
    os.mkdir("d")
    return open("d/f", "w"), os.open("d", os.O_RDONLY)


def _immutable():
    """Where it can be made: it stays, is said once, and does not keep the next host from its work."""
    path = tempfile.mkdtemp(prefix=folders.PREFIX)
    os.makedirs(f"{path}/a/b")
    Path(f"{path}/f").write_text("x")
    try:
        done = subprocess.run(["chattr", "+i", f"{path}/a"], capture_output=True)
    except OSError:
        done = None
    if done is None or done.returncode:
        folders.remove(path)
        return ["a plain folder was left"] if os.path.lexists(path) else []
    os.utime(path, (1, 1))
    said = []
    folders.logging.getLogger(folders.__name__).addHandler(handler := folders.logging.Handler())
    handler.emit = said.append
    for _ in range(2):
        os.utime(path, (1, 1))
        made, lock = folders.make()
        folders.remove(made)
        os.close(lock)
    wrong = [] if len(said) == 1 and os.listdir(path) == ["a"] else [f"immutable: said {len(said)}, left {os.listdir(path)}"]
    subprocess.run(["chattr", "-i", f"{path}/a"], check=True)
    os.rmdir(f"{path}/a/b")
    os.rmdir(f"{path}/a")
    os.rmdir(path)
    return wrong


if __name__ == "__main__":
    what, *where = sys.argv[1:]
    print(json.dumps({"jobs": jobs, "large": large, "honest": honest, "removal": removal}[what](*where)))
