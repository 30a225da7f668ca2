"""Models that learn from rewards to use the built-in environments; `quickstart-tools` is the calculator's."""

import json
import random

import calling_model
import pytest
from calling_model import END_GUESS, END_RUN, GAMES, GUESS, RUN
from command_line import in_process
from whole_runs import rows

from microrl.sandbox import levels

pytestmark = pytest.mark.slow


def train(model, out, environment, *, steps, data="arithmetic", tokens=64):
    """Its summary, and its rows."""
    sets = {
        "model.dtype": "float32", "data.system": "", "adapter.rank": 8, "sampling.prompts_per_step": 8, "sampling.group_size": 8,
        "sampling.max_completion_tokens": tokens, "reward.format_weight": 0, "evaluation.problems": 16, "evaluation.samples": 8,
        "evaluation.pass_k": 8, "data.held_out": 0.2,
    }  # fmt: skip
    given = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    done = in_process(
        "train", "--model", model, "--data", data, "--env", environment, "--steps", steps, "--step-kl", 1e-3, "--out", out, *given
    )
    assert done.returncode == 0, done.stderr
    return json.loads((out / "summary.json").read_text()), rows(out)


@pytest.mark.skipif(not levels().is_enforced, reason="this kernel cannot confine")
def test_a_model_learns_to_use_the_interpreter(tmp_path):
    """It cannot add, and learns to have it done: in a variable of one call, which the next call shows."""
    model = tmp_path / "model"
    calling_model.save(model, calling_model.programs, tool="run", markup=(RUN, END_RUN), steps=300, batch=64)
    summary, steps = train(model, tmp_path / "run", "python", steps=40)
    assert calls(steps[:5]) < 1 < 1.6 < calls(steps[-5:]), "two for each sum"
    assert summary["eval"]["paired_gain"]["ci95"][0] > 0.1, summary["eval"]


def test_a_model_learns_to_play(tmp_path):
    """It was mostly shown to give up after one guess, and learns that more of them narrow the range."""
    model, data, rng = tmp_path / "model", tmp_path / "games.jsonl", random.Random(1)
    calling_model.save(model, calling_model.games, tool="guess", markup=(GUESS, END_GUESS))
    data.write_text("\n".join(json.dumps({**row, "answer": str(rng.randint(row["low"], row["high"]))}) for row in GAMES))
    _, steps = train(model, tmp_path / "run", "higher-lower", steps=40, data=data, tokens=96)
    earned = [row["reward/part/HigherLower"] for row in steps]
    assert calls(steps[:3]) < 2 < 3 < calls(steps[-10:]), "of the four that are allowed"
    assert sum(earned[-10:]) / 10 > sum(earned[:3]) / 3 + 0.08, earned


def calls(steps):
    return sum(row["tools/calls"] for row in steps) / len(steps)
