"""`microrl doctor`: what it finds, what it says to do, and its status."""

import json
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from microrl.commands import doctor
from microrl.rollout.preflight import Installed


@pytest.mark.one_of_each
@pytest.mark.slow
def test_this_machine_is_fit(microrl):
    done = microrl("doctor", "--json", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {finding["about"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert {
        "GPU",
        "C compiler",
        "Python.h",
        "python",
        "libraries",
        "vLLM",
        "allocator",
        "disk for runs",
        "disk for models",
        "Hugging Face Hub",
        "self-test",
    } <= set(found)
    assert found["self-test"]["status"] == "ok" and "one update" in found["self-test"]["says"]
    assert found["Hugging Face Hub"]["status"] == "warning" and "--model FOLDER" in found["Hugging Face Hub"]["do"]


def test_a_problem_is_status_2_with_what_to_do(inside, monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda: Installed("vllm", "0.20.0"))
    done = inside("doctor", "--no-self-test")
    assert done.returncode == 2
    assert "problem  vLLM              0.20.0 is not supported (0.26 to 0.33 are)\n" in done.stdout
    assert "-> in your clone of microrl: pip install -e '.[gpu]'" in done.stdout


def test_requirements_are_really_compared():
    torch = metadata.version("torch")
    assert doctor._unmet(Requirement(f"torch=={torch}")) is None
    assert doctor._unmet(Requirement("torch>=2.0,<3")) is None
    assert doctor._unmet(Requirement("torch==1.0")) == f"torch is {torch}, but ==1.0 is required"
    assert doctor._unmet(Requirement("no-such-package>1")) == "no-such-package is missing"
    assert doctor._unmet(Requirement("no-such-package>1; extra == 'gpu'")) is None
    assert doctor._unmet(Requirement("no-such-package>1; sys_platform == 'nowhere'")) is None


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "import sys; print('Illegal instruction', file=sys.stderr); sys.exit(132)",
            "failed with status 132: Illegal instruction",
        ),
        ("import time; time.sleep(60)", "no answer in 1 s"),
        ('print(\'{"error": "the swap failed", "hint": "fix it"}\')', "the swap failed"),
    ],
)
def test_a_self_test_that_fails_is_a_finding(monkeypatch, tmp_path, script, says):
    """Whatever the process of the self-test does: crash, hang, or say what is wrong."""
    fake, body = tmp_path / "python", tmp_path / "body.py"
    body.write_text(script)
    fake.write_text(f"#!/bin/sh\nexec {doctor.sys.executable} {body}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(fake))
    monkeypatch.setattr(doctor, "SELF_TEST_S", 1.0 if "sleep" in script else 60.0)
    finding = doctor._self_test()
    assert finding.status == "problem" and finding.says == says and finding.do


def test_a_change_too_small_for_a_slope_is_said(monkeypatch, tmp_path):
    seen = dict(engine="vllm", device="cuda", start_s=20.0, generate_s=0.1, tokens=100, swap_s=0.01, probe_gap=0.01,
                probe_slope=None, freed_bytes=int(3e9), update_s=0.1, kl_sampler=1e-5)  # fmt: skip
    fake, body = tmp_path / "python", tmp_path / "body.py"
    body.write_text(f"print({json.dumps(json.dumps({'found': seen}))})")
    fake.write_text(f"#!/bin/sh\nexec {doctor.sys.executable} {body}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(fake))
    finding = doctor._self_test()
    assert finding.status == "ok" and "slope not measurable" in finding.says and "sleep freed 3.0 GB" in finding.says


def test_expandable_segments_are_a_warning_where_they_hurt(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(doctor.gpu, "_vllm_reads_both_names", lambda: False)
    assert doctor._allocator().status == "warning" and "PYTORCH_CUDA_ALLOC_CONF" in doctor._allocator().do
    monkeypatch.setattr(doctor.gpu, "_vllm_reads_both_names", lambda: True)
    assert doctor._allocator().status == "ok" and "expandable_segments" in doctor._allocator().says
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    assert doctor._allocator().status == "ok" and doctor._allocator().do is None
    assert doctor._allocator().says.startswith("neither PYTORCH_ALLOC_CONF nor PYTORCH_CUDA_ALLOC_CONF enables")


def test_a_hub_that_is_switched_off_is_told_from_one_that_does_not_answer(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    off = doctor._hub()
    assert off.says.startswith("switched off by HF_HUB_OFFLINE") and off.do.startswith("unset HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    monkeypatch.setattr(doctor.hub, "reachable", lambda: False)
    silent = doctor._hub()
    assert silent.says.startswith("no answer from http://hub.example") and silent.do.startswith("check the network")
    assert off.status == silent.status == "warning" and "--model FOLDER" in off.do and "--model FOLDER" in silent.do


def test_the_driver_found_and_the_one_needed_are_named(monkeypatch, tmp_path):
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n")
    monkeypatch.setattr(doctor.driver, "PROC", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(doctor.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor.torch.version, "cuda", "13.0")
    (found,) = doctor._card()
    assert found.status == "problem" and "550.54.14" in found.says and "driver 580 or later" in found.says
    assert "cuda-compat-13-0" in found.do
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (found,) = doctor._card()
    assert found.status == "ok" and "hides the GPUs" in found.says
    for name, value in (("is_available", True), ("mem_get_info", (24e9, 25e9)), ("get_device_capability", (8, 6)),
                        ("get_device_name", "NVIDIA A40")):  # fmt: skip
        monkeypatch.setattr(doctor.torch.cuda, name, lambda value=value: value)
    first, *_ = doctor._card()
    assert "driver 550.54.14 (CUDA 13.0 needs 580 or later)" in first.says


@pytest.mark.parametrize(
    ("tools", "cc", "status", "says", "do"),
    [
        (("gcc",), None, "ok", "gcc", None), (("clang",), None, "ok", "clang", None), ((), "/opt/cc", "ok", "/opt/cc", None),
        ((), None, "problem", "no gcc and no clang", "apt install gcc"), (("cc",), None, "problem", "no gcc", "export CC=cc"),
    ],
)  # fmt: skip
def test_the_compiler_that_triton_will_look_for(monkeypatch, tmp_path, tools, cc, status, says, do):
    for name in tools:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", cc) if cc else monkeypatch.delenv("CC", raising=False)
    found = doctor.machine.compiler(is_needed=True)
    assert found.status == status and says in found.says and (found.do or "").startswith(do or "")
    assert doctor.machine.compiler(is_needed=False).status == "ok", "nothing is compiled without a GPU"


def test_the_header_that_triton_will_include(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.machine.sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    found = doctor.machine.python_header(is_needed=True)
    assert found.status == "problem" and f"{tmp_path}/Python.h is missing" in found.says and "-dev" in found.do
    (tmp_path / "Python.h").touch()
    assert doctor.machine.python_header(is_needed=True).status == "ok"


def test_a_full_disk_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for free, status in ((1e9, "problem"), (10e9, "warning"), (100e9, "ok")):
        monkeypatch.setattr(doctor.room, "free_bytes", lambda place, free=free: free)
        assert next(iter(doctor.room.disks())).status == status
