"""Custom reward functions that are confined: what they try fails inside, and works without."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import judged
import pytest

from microrl.config.reward import RewardConfig
from microrl.errors import UserError
from microrl.rewards.custom import process
from microrl.rewards.custom.functions import CustomRewards
from microrl.sandbox import Levels, levels

FUNCTIONS = """
import ctypes, os, socket, subprocess, threading
from pathlib import Path

HERE = Path(__file__).parent
READ = (HERE / "secret").read_text()
BESIDE = threading.Event()
threading.Thread(target=BESIDE.wait, daemon=True).start()

def each(attempt):
    def reward(prompts, completions, rows):
        attempt(completions[0])
        return [1.0] * len(completions)
    return reward

write = each(lambda text: (HERE / "written").write_text(text))
read = each(lambda text: (HERE / "secret").read_text())
connect = each(lambda text: socket.create_connection(("127.0.0.1", int(text))))
start = each(lambda text: subprocess.run(["true"], check=True))
thread = each(lambda text: threading.Thread(target=print).start())

def honest(prompts, completions, rows):
    import wave  # of the standard library, and not imported yet
    return [len(text) + len(READ) + ("HOME" in os.environ) for text in completions]

# Where the process finds, on its stack, the environment that it was started with: proc(5), env_start and env_end.
FIRST, END = map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49])

def from_the_stack(prompts, completions, rows):
    return [float(text.encode() in ctypes.string_at(FIRST, END - FIRST)) for text in completions]

def hangs(prompts, completions, rows):
    while True: pass
"""
needs_sandbox = pytest.mark.skipif(not levels().is_enforced, reason="this kernel lacks Landlock or seccomp")


@pytest.fixture
def make(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    (tmp_path / "secret").write_text("four")
    made = []

    def make(name, **more):
        made.append(CustomRewards(RewardConfig(functions=(f"mine:{name}",), path=str(tmp_path), **more)))
        return made[-1]

    yield make
    for rewards in made:
        rewards.close()


def called(rewards, *texts):
    """The values, and the first reason why one is missing."""
    ((_, values, failures),) = rewards.values_of(["p"] * len(texts), texts, [""] * len(texts))
    return values, failures[0].why if failures else ""


@pytest.mark.cases(fast=2)
@needs_sandbox
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("write", "PermissionError"),
        ("read", "PermissionError"),
        ("connect", "PermissionError"),
        ("start", "PermissionError"),
        ("thread", "RuntimeError"),
    ],
)
def test_what_a_confined_function_tries_fails(make, tmp_path, name, error):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        values, why = called(make(name, confine_functions=True), port)
        assert values == [None] and why.startswith(error)
        assert not (tmp_path / "written").exists()
        assert called(make(name), port) == ([1.0], "")


@needs_sandbox
def test_a_confined_function_computes_and_is_started_again(make):
    """What its module has read while it was imported stays there; the environment does not."""
    rewards = make("honest", confine_functions=True)
    assert called(rewards, "abc", "") == ([7, 4], "")
    (confined,) = judged.below(rewards._rewards[0]._process.pid)
    os.kill(confined, signal.SIGKILL)
    assert "its process " in called(rewards, "abc")[1]
    assert called(rewards, "abc") == ([7], "")


@needs_sandbox
def test_a_secret_of_the_environment_is_not_on_the_stack_either(make, monkeypatch):
    monkeypatch.setenv("API_KEY", "a-secret-of-the-users")
    assert called(make("from_the_stack", confine_functions=True), "a-secret-of-the-users", "PYTHONPATH") == ([0.0, 1.0], "")
    assert called(make("from_the_stack"), "a-secret-of-the-users") == ([1.0], ""), "unconfined, it is there"


@needs_sandbox
def test_a_confined_function_that_hangs_is_killed(make):
    rewards = make("hangs", confine_functions=True, function_deadline_s=0.3)
    rewards.import_all()
    below = judged.below(rewards._rewards[0]._process.pid)
    assert "0.3 s" in called(rewards, "abc")[1] and len(below) == 1
    until_gone(below)


@needs_sandbox
def test_no_confined_process_is_left_when_the_run_is_killed(make, tmp_path):
    make("hangs")
    code = (
        "from microrl.config.reward import RewardConfig; from microrl.rewards.custom.functions import CustomRewards\n"
        f"rewards = CustomRewards(RewardConfig(functions=('mine:hangs',), path={str(tmp_path)!r}, confine_functions=True))\n"
        "rewards.import_all(); print('up', flush=True); list(rewards.values_of(['p'], ['c'], ['']))"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "up\n"
    below = judged.below(run.pid)
    assert len(below) == 2
    run.kill()
    run.communicate()
    until_gone(below)


def until_gone(pids):
    until = time.monotonic() + 20
    while (alive := [pid for pid in pids if judged.fields(pid)[0] != "Z"]) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive


def test_it_is_refused_where_nothing_confines(monkeypatch, make, tmp_path):
    monkeypatch.setattr(process, "levels", lambda: Levels(files=True, system_calls=False, landlock=7))
    make("honest")
    asked = RewardConfig(functions=("mine:honest",), path=str(tmp_path), confine_functions=True)
    with pytest.raises(
        UserError, match="this kernel cannot confine reward functions: it lacks seccomp; in force: Landlock ABI 7, res"
    ) as caught:
        process.refuse_unusable(asked)
    assert "Linux 6.2" in caught.value.hint
    process.refuse_unusable(asked.model_copy(update={"confine_functions": False}))


@needs_sandbox
def test_the_preview_says_what_confines(inside, make, tmp_path, tiny_arguments, monkeypatch):
    make("honest")
    arguments = ["--reward", "mine:honest", "--set", "reward.confine_functions=true", "--steps", 1, "--dry-run"]
    done = inside("train", *tiny_arguments, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"1 honest \(functions confined by Landlock ABI \d+, seccomp, resource limits\)", done.stdout)
    monkeypatch.setattr(process, "levels", lambda: Levels(files=False, system_calls=True))
    done = inside("train", *tiny_arguments, *arguments, cwd=tmp_path)
    assert done.returncode == 2 and "this kernel cannot confine reward functions" in done.stderr and "hint" in done.stderr
