"""A GPU that torch does not see: every command that would run a model says so before it loads anything."""

import json

import pretend
import pytest
import torch

from microrl.config import resolve
from microrl.errors import UserError
from microrl.models import driver
from microrl.plan import here
from microrl.rollout.preflight import select_engine

OLD = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version:  gcc version 12.2.0\n"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)\n"


@pytest.fixture(autouse=True)
def _nothing_hidden(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def proc(monkeypatch, tmp_path):
    """The driver's folder in /proc, with this text as its version."""

    def write(text):
        folder = tmp_path / "proc"
        folder.mkdir(exist_ok=True)
        (folder / "version").write_text(text)
        monkeypatch.setattr(driver, "PROC", folder)

    return write


@pytest.fixture
def tool(monkeypatch, tmp_path):
    """A folder for PATH with an `nvidia-smi` for an A40 and this driver."""

    def write(version="550.54.14", status=0):
        path = pretend.nvidia_smi(tmp_path / "bin", driver=version, status=status)
        monkeypatch.setenv("PATH", path)
        return path

    return write


def built_for(monkeypatch, cuda):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize(("told", "version"), [(OLD, "550.54.14"), (OPEN, "580.65.06"), ("garbage 12.2.0\n", None)])
def test_the_version_stands_in_proc(proc, told, version):
    proc(told)
    assert driver.version() == version


def test_else_nvidia_smi_is_asked(monkeypatch, tool, tmp_path):
    monkeypatch.setattr(driver, "PROC", tmp_path / "nowhere")
    assert not driver.is_here() and driver.version() is None
    tool("535.183.01")
    assert driver.is_here() and driver.version() == "535.183.01"
    tool("535.183.01", status=9)
    assert driver.is_here() and driver.version() is None


@pytest.mark.parametrize(
    ("cuda", "told", "says", "hints"),
    [
        ("13.0", OLD, r"driver 550\.54\.14 is too old: torch \S+ is built for CUDA 13\.0, which needs driver 580 or",
         ("cuda-compat-13-0", "rent")),
        ("12.8", OLD.replace("550", "520"), r"520\.54\.14 is too old: .*12\.8, which needs driver 525", ("cuda-compat-12-8",)),
        ("13.0", OPEN, r"this machine has NVIDIA driver 580\.65\.06, but torch .* sees no GPU", ("nvidia-smi", "--gpus all")),
        ("12.8", OLD, r"driver 550\.54\.14, but torch \S+ \(built for CUDA 12\.8, which needs driver 525 or later\)", ()),
        ("13.0", "?\n", r"an NVIDIA driver \(its version cannot be read\), but torch .*needs driver 580", ()),
        (None, OLD, r"torch \S+ is a build for CPUs, but this machine has NVIDIA driver 550\.54\.14", ("pip install", "whl/cu")),
    ],
)  # fmt: skip
def test_what_is_found_what_is_needed_and_what_to_do(proc, monkeypatch, cuda, told, says, hints):
    proc(told)
    built_for(monkeypatch, cuda)
    with pytest.raises(UserError, match=says) as caught:
        select_engine(resolve(()))
    assert all(part in caught.value.hint for part in (*hints, 'CUDA_VISIBLE_DEVICES=""')), caught.value.hint


@pytest.mark.parametrize("hidden", ["", "-1", " "])
def test_the_cpu_on_purpose(proc, monkeypatch, hidden):
    proc(OLD)
    built_for(monkeypatch, "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert driver.problem() is None and select_engine(resolve(())) == "transformers"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert driver.problem() is not None


def test_a_gpu_that_torch_sees_is_no_problem(proc, monkeypatch):
    """With cuda-compat the old driver serves: torch decides, not the version."""
    proc(OLD)
    built_for(monkeypatch, "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert driver.problem() is None


@pytest.mark.slow
@pytest.mark.one_of_each
def test_no_command_runs_a_model_on_the_cpu_in_silence(microrl, wares, tool, tmp_path, model_folder, tiny_arguments):
    """The real commands beside an `nvidia-smi` with an old driver: status 2, and nothing is loaded."""
    path = tool()
    train = ["train", *tiny_arguments, "--steps", 1]
    commands = [
        [*train, "--out", tmp_path / "run"],
        [*train, "--dry-run"],
        ["train", "--resume", wares / "killed"],
        ["warmup", model_folder, "--data", wares / "sums.jsonl", "--steps", 1, "--out", tmp_path / "warm"],
        ["eval", wares / "done"],
        ["sample", wares / "done", "What is 2 + 2?"],
        ["bench", "step", "--model", model_folder],
    ]
    for command in commands:
        done = microrl(*command, PATH=path)
        assert done.returncode == 2, (command, done.stderr)
        assert "NVIDIA driver 550.54.14" in done.stderr and "hint: " in done.stderr and not done.stdout, done.stderr
        assert "loading the model" not in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists() and not (tmp_path / "warm").exists()
    assert not (wares / "killed" / "final").exists(), "nothing went on in silence"
    done = microrl("sample", wares / "done", "What is 2 + 2?", PATH=path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr


def test_the_forecast_is_not_for_a_gpu_that_the_run_would_not_use(inside, proc, tool, monkeypatch):
    proc(OLD)
    tool()
    built_for(monkeypatch, "13.0")
    assert here.gpu() is None
    done = inside("plan", "micro-r64")
    assert done.returncode == 0 and "\nt4 " in done.stdout, "all GPUs are compared, as where there is none"
    assert "note: NVIDIA driver 550.54.14 is too old" in done.stderr and "hint: upgrade the driver" in done.stderr
    assert json.loads(inside("plan", "micro-r64", "--gpu", "a40", "--json").stdout)["gpu"] == "a40"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert json.loads(inside("plan", "micro-r64", "--json").stdout)["device"]["name"] == "a40"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = resolve(["micro-r64"])
    from microrl.plan.source import shape_of

    assert here.likely(shape_of(config.model.name)).device.is_cpu, "hidden on purpose: the run will be on the CPU"
