"""The sandbox: what is tried inside fails, nothing of the user's is in there, and nothing is left behind."""

import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import sandboxed
import slow_removal
import users
from places import HELPERS

from microrl.errors import MachineFailure
from microrl.sandbox import Host, folders, levels, seccomp

needs_both = pytest.mark.skipif(not levels().is_enforced, reason="this kernel lacks Landlock or seccomp")


@pytest.fixture
def host(monkeypatch):
    monkeypatch.syspath_prepend(HELPERS)
    host = Host("sandboxed")
    yield host
    host.close()


@pytest.fixture
def outside():
    folder = Path(sandboxed.OUTSIDE)
    folder.mkdir(exist_ok=True)
    (folder / "secret").write_text("secret")
    return folder


def ask(host, kind, served=None, deadline_s=20.0, cpu_s=5.0, **more):
    return host.ask({"kind": kind, **more}, served, deadline_s=deadline_s, cpu_s=cpu_s)


EACH_USER = [users.THIS, pytest.param(users.OTHER, marks=[pytest.mark.slow, pytest.mark.one_of_each])]


def as_user(user, *arguments):
    """What `hostile_folders.py` prints, run with a folder of its own for temporary files, in which it leaves nothing."""
    with users.own_folder(user) as folder:
        (temporary := folder / "a link").symlink_to(folder)
        done = users.run(user, temporary, HELPERS / "hostile_folders.py", *arguments, timeout=200)
        if "no such folder here" in done.stderr and "memory" in arguments:
            pytest.skip("this machine lets nobody mount a file system in memory")
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder) == ["a link"]
        return json.loads(done.stdout)


@needs_both
@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("user", [users.OTHER, users.THIS])
def test_whatever_a_program_leaves_the_next_job_works_and_nothing_is_left(user, where):
    assert as_user(user, "jobs", where) == []


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@needs_both
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("user", [users.THIS, users.OTHER])
def test_wherever_a_program_writes_its_size_is_bounded(user, where):
    assert as_user(user, "large", where) == []


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@needs_both
@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.parametrize("user", [users.THIS, users.OTHER])
def test_a_program_that_holds_what_it_may_does_its_work(user, where):
    assert as_user(user, "honest", where) == []


@pytest.mark.parametrize("user", EACH_USER)
def test_whatever_is_in_a_folder_it_is_removed(user):
    assert as_user(user, "removal") == []


@needs_both
@pytest.mark.slow
@pytest.mark.one_of_each
def test_removing_what_a_program_left_takes_none_of_the_next_ones_time(monkeypatch):
    """A thousand folders take a busy disk four seconds. An answer that is given up is not the host's fault."""
    monkeypatch.syspath_prepend(HELPERS)
    host = Host("slow_removal")
    try:
        for _ in range(2):
            assert ask(host, "talk", {"says": "hello"}, deadline_s=slow_removal.TAKES_S).startswith("hello")
        began = time.monotonic()
        assert host.ask({"kind": "state"}, deadline_s=20, cpu_s=5, is_cancelled=lambda: time.monotonic() - began > 0.3) is None
        assert ask(host, "state")
    finally:
        host.close()


def test_folders_of_processes_that_were_killed_are_removed_by_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "from microrl.sandbox.folders import make; import os, signal; print(make()[0], flush=True); os.kill(os.getpid(), 9)"
    killed = Path(subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True,
                                 text=True).stdout.strip())  # fmt: skip
    assert killed.parent == tmp_path and killed.is_dir()
    running, other = folders.make()[0], tmp_path / "other"
    other.mkdir()
    for path in (killed, running, other):
        os.utime(path, (1, 1))
    host = Host("sandboxed")
    host.start()
    try:
        assert set(map(str, tmp_path.iterdir())) == {running, str(other), host._folder}
    finally:
        host.kill()
    assert set(map(str, tmp_path.iterdir())) == {running, str(other)}


@needs_both
@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls by their numbers on x86_64")
def test_nothing_that_is_tried_succeeds(host, outside):
    found = ask(host, "attempts")
    assert found.keys() == sandboxed.ATTEMPTS.keys()
    assert {name for name, outcome in found.items() if outcome == "succeeded"} == set()
    assert sorted(path.name for path in outside.iterdir()) == ["secret"] and outside.stat().st_mode & 0o777 != 0o777


@needs_both
@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls by their numbers on x86_64")
def test_all_holds_where_no_namespaces_can_be_made(outside):
    """As in most containers: user namespaces are not needed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    script = [sys.executable, HELPERS / "no_namespaces.py"]
    done = subprocess.run(script, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(found["refused"]) and re.fullmatch(r"Landlock ABI \d+, seccomp, resource limits", found["levels"])
    assert found["attempts"].keys() == sandboxed.ATTEMPTS.keys() and "succeeded" not in found["attempts"].values()
    assert found["talk"] == "hello, my own folder, PermissionError, PermissionError, succeeded"


def test_outside_all_that_would_succeed_for_this_user(outside):
    """So the test above is one of the sandbox."""
    for name in ("read a file", "list a folder", "open a socket", "change times"):
        assert sandboxed._outcome(sandboxed.ATTEMPTS[name]) == "succeeded"


def test_nothing_of_the_users_is_inside(host, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    inherited, _ = os.pipe()
    os.set_inheritable(inherited, True)
    state = ask(host, "state")
    assert state["environment"] == {} and state["folder"] == "/"
    assert len(state["descriptors"]) == 5, "three standard ones, the pipe for the answer, and that which says that it is there"
    environment = Path(f"/proc/{host._process.pid}/environ").read_bytes()
    assert b"secret" not in environment and b"PYTHONPATH" in environment


@needs_both
def test_the_other_side_has_a_folder_of_its_own(host, outside):
    assert ask(host, "talk", {"says": "hello"}) == "hello, my own folder, PermissionError, PermissionError, succeeded"
    assert ask(host, "talk", {"says": "again"}) == "again, my own folder, PermissionError, PermissionError, succeeded"


@pytest.mark.slow
@pytest.mark.one_of_each
def test_whatever_a_job_does_the_next_one_works(host):
    assert ask(host, "die") is None and ask(host, "die", hard=True) is None
    assert ask(host, "memory") is None and ask(host, "large") is None
    began = time.monotonic()
    assert ask(host, "loop", deadline_s=1.0) is None and ask(host, "loop", cpu_s=0.2) is None
    assert ask(host, "sleep", deadline_s=0.5) is None
    assert time.monotonic() - began < 20
    assert ask(host, "talk", {"says": "hello"}).startswith("hello")


@pytest.mark.slow
@pytest.mark.cases(one_of_each=1)
@needs_both
@pytest.mark.parametrize("size", [0, 1 << 20], ids=["many files", "large files"])
def test_a_program_cannot_fill_the_disk(host, size):
    assert ask(host, "talk", {"says": "", "fills": size or 1}) == "", "it was killed"
    assert ask(host, "talk", {"says": "hello"}).startswith("hello")


def test_no_folder_is_left(host, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert ask(host, "state") and ask(host, "die") is None and ask(host, "loop", deadline_s=0.5) is None
    assert ask(host, "talk", {"says": "hello"})
    (own,) = tmp_path.iterdir()
    host.close()
    assert not own.exists() and not list(tmp_path.iterdir())


def test_a_job_that_nobody_wants_any_more_is_given_up(host):
    began = time.monotonic()
    assert host.ask({"kind": "sleep"}, deadline_s=50.0, cpu_s=5.0, is_cancelled=lambda: time.monotonic() - began > 1.0) is None
    assert time.monotonic() - began < 20


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_job_that_is_killed_costs_no_start(host):
    """Nor does one whose requests are not read to their end, of which the next job sees nothing."""
    assert ask(host, "state")
    own, long = host._process.pid, "x" * 10_000_000
    assert ask(host, "loop", deadline_s=0.5) is None and ask(host, "die") is None
    looks = []

    def is_cancelled():
        """Stop whoever reads, and leave a little later."""
        looks.extend(descendants(own))
        for pid in looks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return len(looks) > 10

    for requests in ([{"kind": "state", "long": long}], [{"kind": "talk"}, {"says": "hello", "long": long}]):
        assert host.await_ready()
        assert host.ask(*requests, deadline_s=20, cpu_s=5, is_cancelled=is_cancelled) is None
        looks.clear()
    assert ask(host, "talk", {"says": "hello"}).startswith("hello") and host._process.pid == own


def test_a_host_outlives_the_thread_that_started_it(host):
    starter = threading.Thread(target=lambda: ask(host, "state"))
    starter.start()
    starter.join()
    own = host._process.pid
    assert ask(host, "talk", {"says": "hello"}).startswith("hello") and host._process.pid == own


def test_a_module_that_cannot_be_imported_is_said(monkeypatch):
    with pytest.raises(MachineFailure, match="did not start"):
        Host("no_such_module_at_all").ask({}, deadline_s=1.0, cpu_s=1.0)


def test_no_process_is_left_when_the_parent_is_killed(tmp_path):
    code = (
        "from microrl.sandbox import Host; import sys\n"
        "host = Host('sandboxed'); host.ask({'kind': 'state'}, deadline_s=20, cpu_s=5)\n"
        "print(host._process.pid, flush=True); host.ask({'kind': 'sleep'}, {'says': ''}, deadline_s=90, cpu_s=5)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    environment["TMPDIR"] = str(tmp_path)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    own = int(parent.stdout.readline())
    until = time.monotonic() + 20
    while len(descendants(own)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    forks = descendants(own)
    while any(oom_score(pid) != 1000 for pid in forks) and time.monotonic() < until:
        time.sleep(0.02)
    assert [oom_score(pid) for pid in forks] == [1000, 1000], "they go first where memory runs out"
    everyone = [own, *forks]
    assert len(everyone) == 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in everyone) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in everyone)
    assert not list(tmp_path.glob("*/*")), "what jobs wrote is gone, too"


def oom_score(pid):
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descendants(pid):
    found = children(pid)
    return found + [other for child in found for other in descendants(child)]


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"


HEADERS = (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm-generic/unistd.h"))
"""The numbers on x86_64, and the generic ones, which are aarch64's. Debian's package linux-libc-dev has them."""


@pytest.mark.skipif(not all(header.exists() for header in HEADERS), reason="the kernel's headers are not installed")
def test_the_numbers_of_system_calls_are_the_kernels():
    pattern = re.compile(r"#define __NR(?:3264)?_(\w+)\s+(\d+)$", re.MULTILINE)
    kernels = [{name: int(number) for name, number in pattern.findall(header.read_text())} for header in HEADERS]
    listed = {**seccomp.ALLOWED, **{name: numbers for name, (numbers, *_) in seccomp._ONLY_WITH.items()}, **seccomp._UNSUPPORTED}
    for column, known in enumerate(kernels):
        known.setdefault("newfstatat", known.get("fstatat"))
        ours = {name: numbers[column] for name, numbers in listed.items()}
        wrong = {name: number for name, number in ours.items() if name in known and known[name] != number}
        assert not wrong
        missing = {name for name in ours if name not in known and ours[name] is not None}
        assert all(ours[name] > max(known.values()) or ours[name] > 440 for name in missing), "newer than these headers"
        assert len(ours.keys() & known.keys()) > 90
