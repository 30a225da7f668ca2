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
                probe_slope=None, sleep_wake_s=0.1, freed_bytes=int(3e9), update_s=0.1, kl_sampler=1e-5)  # fmt: skip
    fake, body = tmp_path / "python", tmp_path / "body.py"
    body.write_text(f"print({json.dumps(json.dumps({'passed': seen}))})")
    fake.write_text(f"#!/bin/sh\nexec {doctor.sys.executable} {body}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(fake))
    finding = doctor._self_test()
    assert finding.status == "ok" and "slope not measurable" in finding.says and "sleep freed 3.0 GB" in finding.says


def test_expandable_segments_are_a_warning(monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert doctor._allocator().do == "unset PYTORCH_ALLOC_CONF"
    monkeypatch.delenv("PYTORCH_ALLOC_CONF")
    assert doctor._allocator().status == "ok"


def test_a_full_disk_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    usage = type(doctor.shutil.disk_usage("/"))
    for free, status in ((1e9, "problem"), (10e9, "warning"), (100e9, "ok")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path, free=free: usage(int(1e12), int(1e12 - free), int(free)))
        assert next(iter(doctor._disk())).status == status
