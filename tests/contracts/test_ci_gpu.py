"""`.ci/gpu`, the script for a rented card, with tools that only pretend: its limits, bars, and what a lost machine leaves."""

import json
import os
import re
import subprocess
import sys
import time

import pytest
from places import ROOT

FINE = {"findings": [{"about": "GPU", "status": "ok", "says": "an A40"},
                     {"about": "self-test", "status": "ok", "says": "vllm on cuda: started"}]}  # fmt: skip
ROLLOUT = {"rollouts": [{"arch": "qwen2", "ratio": 0.97, "sync_fraction": 0.03}]}

pytestmark = pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="an installed package has no .ci")


@pytest.fixture
def gpu(tmp_path):
    """Start the script where `microrl` does what `cases` say, by its first argument; a minute of the limits is 2 s."""

    def start(doctor=FINE, rollout=ROLLOUT, **cases):
        tools = tmp_path / "bin"
        tools.mkdir()
        (tmp_path / "doctor.json").write_text(json.dumps(doctor))
        (tmp_path / "rollout.json").write_text(json.dumps(rollout))
        told = {"doctor --measure": "exit 0", "doctor": f"cat {tmp_path}/doctor.json", "bench": f"cat {tmp_path}/rollout.json",
                "train": "exit 0", **cases}  # fmt: skip
        lines = "".join(f'"{begins}"*) {what};;\n' for begins, what in told.items())
        scripts = {
            "microrl": f'#!/bin/sh\ncase "$*" in\n{lines}esac\n',
            "pip": "#!/bin/sh\n",
            "nvidia-smi": "#!/bin/sh\necho A40\n",
            "python": f'#!/bin/sh\ncase "$1" in -m) echo "$@";; *) exec {sys.executable} "$@";; esac\n',
        }
        for name, text in scripts.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "VIRTUAL_ENV": "one", "MINUTE_S": "2"}
        return subprocess.Popen([ROOT / ".ci" / "gpu", tmp_path / "out"], env=environment, stdout=subprocess.PIPE, text=True)

    return start


def results(tmp_path):
    rows = [line.split("\t") for line in (tmp_path / "out" / "summary.tsv").read_text().splitlines()]
    return {row[0]: row[1] for row in rows[1:]}


def test_the_files_that_it_tests_exist():
    paths = re.findall(r"tests/[\w/*]+\.py", (ROOT / ".ci" / "gpu").read_text())
    assert len(paths) > 3 and not [path for path in paths if not list(ROOT.glob(path))]


def test_it_says_what_it_will_take_and_passes(gpu, tmp_path):
    process = gpu()
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said
    assert "measure     about 20 min, at most 45: every stage of it has a result" in said
    assert said.index("in all about 70 minutes, at most 200") < said.index("== install")
    assert set(results(tmp_path).values()) == {"passed"} and len(results(tmp_path)) == 9
    assert "tests/rollout/vllm/test_vllm_swap.py" in (tmp_path / "out" / "engine.log").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "stage", "says"),
    [
        ({"doctor": {"findings": [*FINE["findings"], {"about": "C compiler", "status": "problem", "says": "no gcc"}]}}, "doctor",
         "C compiler: no gcc"),
        ({"doctor": {"findings": FINE["findings"][:1]}}, "doctor", "the self-test: not made"),
        ({"rollout": {"rollouts": [{"arch": "qwen2", "ratio": 0.9, "sync_fraction": 0.06}]}}, "rollout", "qwen2: 0.900 of vLLM"),
        ({"bench": "kill -ABRT $$"}, "rollout", ""),
        ({"train": "exit 1"}, "quickstart", ""),
    ],
)  # fmt: skip
def test_a_stage_below_its_bar_fails_and_the_next_begins(gpu, tmp_path, changed, stage, says):
    process = gpu(**changed)
    process.communicate(timeout=100)
    assert process.returncode == 1
    found = results(tmp_path)
    assert found.pop(stage).startswith("failed with status") and set(found.values()) == {"passed"}
    assert says in (tmp_path / "out" / f"{stage}.log").read_text()


@pytest.mark.slow
def test_a_stage_that_hangs_is_ended_and_a_lost_machine_has_told_what_it_knew(gpu, tmp_path):
    process = gpu(train="sleep 300")
    until = time.monotonic() + 60
    while "quickstart" not in results(tmp_path) if (tmp_path / "out" / "summary.tsv").exists() else True:
        assert time.monotonic() < until
        time.sleep(0.1)
    process.kill()
    process.communicate()
    found = results(tmp_path)
    assert found["quickstart"] == "no end within 10 min" and found["doctor"] == "passed"
