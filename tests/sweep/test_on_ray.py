"""What `microrl sweep --on ray` does where a cluster fails, without one."""

import subprocess
import sys
import types

import pytest

from microrl.run.folder import RunFolder
from microrl.sweep import on_ray

HOLD = """
import sys, time
from pathlib import Path
from microrl.run.folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.lock()
print("locked", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def lost(monkeypatch):
    """A cluster that takes a trial, and is gone then."""

    def wait(*given, **more):
        raise ConnectionError("Client is shutting down.\nand more")

    task = types.SimpleNamespace(remote=lambda *given: "reference")
    fake = types.SimpleNamespace(
        init=lambda **given: None, shutdown=lambda: None, wait=wait, remote=lambda **given: lambda function: task,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": 1}}],
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", fake)


def test_a_cluster_that_is_lost_is_told_with_how_to_resume(inside, lost, tmp_path):
    words = ["--steps", "1", "--on", "ray://head:10001", "--cpus", "1", "--out", tmp_path / "study"]
    done = inside("sweep", "quickstart", *words)
    assert done.returncode == 1 and "error: the connection to the Ray cluster was lost: Client is shutting down." in done.stderr
    assert f"microrl sweep --resume {tmp_path / 'study'} --on ray://head:10001 --cpus 1" in done.stderr.partition("hint: ")[2]


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_task_waits_for_the_one_before_it_to_leave_the_run(tmp_path, monkeypatch):
    """Of a client that was killed, Ray ends the tasks only after a while."""
    path = tmp_path / "run"
    path.mkdir()
    (path / "metrics.jsonl").touch()  # so it is a run folder
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path, "1.5"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "locked\n"

    def run(command, **given):
        RunFolder(path).lock()  # which is free
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(on_ray.subprocess, "run", run)
    assert on_ray.train(str(path), str(tmp_path / "log"), ["-c", ""], 1) == 0
    assert holder.wait(timeout=10) == 0


def test_a_task_does_not_wait_for_ever(tmp_path, monkeypatch):
    path = tmp_path / "run"
    path.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path, "60"], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "locked\n"
    monkeypatch.setattr(on_ray, "LINGER_S", 0.1)
    monkeypatch.setattr(on_ray.subprocess, "run", lambda command, **given: subprocess.CompletedProcess(command, 2))
    assert on_ray.train(str(path), str(tmp_path / "log"), ["-c", ""], 1) == 2
    holder.kill()
    holder.wait()
