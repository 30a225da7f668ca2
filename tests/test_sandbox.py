"""The sandbox: what is tried inside fails, nothing of the user's is in there, and nothing is left behind."""

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import sandboxed

from microrl.errors import MachineFailure
from microrl.sandbox import Host, levels

TESTS = Path(__file__).parent
needs_both = pytest.mark.skipif(not levels().is_tight, reason="this kernel lacks Landlock or seccomp")


@pytest.fixture
def host(monkeypatch):
    monkeypatch.syspath_prepend(TESTS)
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


@needs_both
@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls by their numbers on x86_64")
def test_nothing_that_is_tried_succeeds(host, outside):
    found = ask(host, "attempts")
    assert found.keys() == sandboxed.ATTEMPTS.keys()
    assert {name for name, outcome in found.items() if outcome == "succeeded"} == set()
    assert sorted(path.name for path in outside.iterdir()) == ["secret"] and outside.stat().st_mode & 0o777 != 0o777


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
    assert len(state["descriptors"]) == 6, "three standard ones, two pipes, and the one for the answer"
    environment = Path(f"/proc/{host._process.pid}/environ").read_bytes()
    assert b"secret" not in environment and b"PYTHONPATH" in environment


@needs_both
def test_the_other_side_has_a_folder_of_its_own(host, outside):
    assert ask(host, "talk", {"says": "hello"}) == "hello, my own folder, PermissionError, PermissionError, succeeded"
    assert ask(host, "talk", {"says": "again"}) == "again, my own folder, PermissionError, PermissionError, succeeded"


def test_whatever_a_job_does_the_next_one_works(host):
    assert ask(host, "die") is None and ask(host, "die", hard=True) is None
    assert ask(host, "memory") is None and ask(host, "large") is None
    began = time.monotonic()
    assert ask(host, "loop", deadline_s=1.0) is None and ask(host, "loop", cpu_s=0.2) is None
    assert ask(host, "sleep", deadline_s=0.5) is None
    assert time.monotonic() - began < 20
    assert ask(host, "talk", {"says": "hello"}).startswith("hello")


@pytest.mark.slow
@pytest.mark.one_of_each
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
    assert host.ask({"kind": "sleep"}, deadline_s=50.0, cpu_s=5.0, gone=lambda: time.monotonic() - began > 1.0) is None
    assert time.monotonic() - began < 20


def test_a_module_that_cannot_be_imported_is_said(monkeypatch):
    with pytest.raises(MachineFailure, match="did not start"):
        Host("no_such_module_at_all").ask({}, deadline_s=1.0, cpu_s=1.0)


def test_no_process_is_left_when_the_parent_is_killed(tmp_path):
    code = (
        "from microrl.sandbox import Host; import sys\n"
        "host = Host('sandboxed'); host.ask({'kind': 'state'}, deadline_s=20, cpu_s=5)\n"
        "print(host._process.pid, flush=True); host.ask({'kind': 'sleep'}, {'says': ''}, deadline_s=90, cpu_s=5)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)
    own = int(parent.stdout.readline())
    until = time.monotonic() + 20
    while len(children(own)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    everyone = [own, *children(own)]
    assert len(everyone) == 3
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in everyone) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{pid}").exists() and "Z" not in state(pid) for pid in everyone)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "Z"
