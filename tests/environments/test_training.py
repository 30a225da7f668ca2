"""Whole runs in which a model calls a calculator: what is trained, graded, counted and written, and that they resume."""

import gzip
import json

import pytest
from command_line import in_process
from places import HELPERS
from whole_runs import rows, start

pytestmark = pytest.mark.slow


def arguments(model, environment, *, steps=6):
    sets = {
        "env.path": HELPERS,
        "model.dtype": "float32",
        "data.system": "",
        "adapter.rank": 8,
        "optim.step_kl": 1e-3,
        "sampling.prompts_per_step": 4,
        "sampling.group_size": 8,
        "sampling.max_completion_tokens": 140,
        "reward.format_weight": 0,
        "evaluation.problems": 4,
        "evaluation.samples": 2,
        "evaluation.pass_k": 2,
        "validation.problems": 4,
        "validation.fraction": 0.3,
    }
    given = ["--model", model, "--data", "arithmetic", "--env", f"made_tools:{environment}", "--steps", steps, "--seed", 1]
    return [*map(str, given), *(part for key, value in sets.items() for part in ("--set", f"{key}={value}"))]


def rollouts(run):
    for path in sorted((run / "rollouts").iterdir()):
        with gzip.open(path, "rt") as lines:
            yield from map(json.loads, lines)


@pytest.fixture(scope="module")
def whole(calling, tmp_path_factory):
    """A run that nobody kills. Its calculator takes a time that is different in every run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    done = in_process("train", *arguments(calling, "Slow"), "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def test_a_run_with_a_calculator(whole):
    """What it records of its episodes: turns, calls, the conversation, the grade of the last turn alone."""
    steps, lines = rows(whole), list(rollouts(whole))
    assert all(1 < row["turns/mean"] <= 3 and row["tools/calls"] > 0.2 and row["tools/failures"] is not None for row in steps)
    called = [line for line in lines if "transcript" in line]
    assert 0.2 < len(called) / len(lines) < 1
    for line in lines:
        calls = line.get("transcript", line["completion"]).count('"name": "add"')
        assert line["parts"]["Slow"] in (calls, calls - 1), "a call in a last turn that the limit cut is none"
        assert line["reward"] == line["accuracy"] + line["parts"]["Slow"]
    for line in called:
        first, _, rest = line["transcript"].partition("<|im_end|>\n<|im_start|>tool\n")
        assert first.startswith("<tool_call>") and "<|im_end|>\n<|im_start|>assistant\n" in rest
        assert line["completion"] == rest.rpartition("<|im_start|>assistant\n")[2].removesuffix("<|im_end|>")
        assert line["tokens"] < 140
    tokens = [line for line in called if "pieces" in line]
    assert tokens
    for line in tokens:
        assert [value is None for value in line["logprobs"]].count(False) == line["tokens"]
    assert abs(steps[0]["policy/kl_sampler"]) < 1e-6 and all(row["policy/impossible_tokens"] == 0 for row in steps)


@pytest.mark.cases(one_of_each=1)
@pytest.mark.parametrize(("place", "count"), [("generation", 600), ("update", 5)])
def test_killed_in_mid_episode_it_goes_on_bit_by_bit(place, count, calling, whole, tmp_path):
    out = tmp_path / "killed"
    process = start([*map(str, ("train", *arguments(calling, "Slow"), "--out", out))], place=place, count=count)
    process.communicate()
    assert process.returncode < 0 and not (out / "summary.json").exists() and len(rows(out)) < 6
    done = in_process("train", "--resume", out)
    assert done.returncode == 0, done.stderr
    assert rows(out, times=False) == rows(whole, times=False)
    assert list(rollouts(out)) == list(rollouts(whole))
    name = "final/adapter_model.safetensors"
    assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_a_dry_run_shows_the_tools(calling):
    done = in_process("train", *arguments(calling, "Calculator"), "--dry-run")
    assert done.returncode == 0 and "add\n<|im_start|>user" in done.stdout and "1 Calculator" in done.stdout
