"""How a run ends, whatever goes away under it: the wall clock, the terminal, the disk, its folder."""

import json
import time

import pytest
from test_run import rows

from microrl.budget import Budget
from microrl.train import saving


@pytest.fixture(scope="module")
def arguments(tiny_arguments):
    """A tiny run whose rewards differ (by length), so that its weights move; four steps."""
    sets = ["sampling.max_completion_tokens=16", "reward.overlong.buffer=15", "optim.lr=0.002", "validate.problems=0"]
    return [*map(str, tiny_arguments), "--steps", "4", *(part for key in sets for part in ("--set", key))]


def before_step(monkeypatch, step, act):
    """Call `act` once, in the middle of a run: when the rollouts of `step` are about to be written."""
    original, done = saving.RunFolder.log_rollouts, []

    def wrapped(self, number, groups):
        if number >= step and not done:
            done.append(number)
            act(self)
        return original(self, number, groups)

    monkeypatch.setattr(saving.RunFolder, "log_rollouts", wrapped)
    return done


def summary_of(out):
    return json.loads((out / "summary.json").read_text())


# ---- the wall clock


@pytest.mark.parametrize("jump_s", [-7200, 7200])
def test_a_wall_clock_that_is_set_changes_nothing(inside, arguments, tmp_path, monkeypatch, jump_s):
    """The machine's clock is set in the middle of a run of at most an hour: steps, bill and final evaluation are the same."""
    real, offset, out = time.time, [0.0], tmp_path / "run"
    monkeypatch.setattr(time, "time", lambda: real() + offset[0])
    defaults = Budget.__init__.__kwdefaults__
    for name in [name for name, value in defaults.items() if value is real]:
        monkeypatch.setitem(defaults, name, time.time)
    jumped = before_step(monkeypatch, 1, lambda folder: offset.__setitem__(0, jump_s))
    began = time.monotonic()
    done = inside("train", *arguments, "--hours", 1, "--price", 3600, "--out", out)
    seconds = time.monotonic() - began
    assert done.returncode == 0 and jumped, done.stderr
    summary = summary_of(out)
    assert (summary["status"], summary["steps"]) == ("done", 4)
    assert summary["eval"]["after"]["questions"] == summary["eval"]["before"]["questions"] == 4
    # The time of this test's own process counts too.
    spent_s = [row["budget/elapsed_s"] for row in rows(out)]
    assert 0 < spent_s[0] < spent_s[1] < spent_s[2] < spent_s[3] < spent_s[0] + seconds
    assert summary["cost_usd"] == pytest.approx(summary["hours_spent"] * 3600, abs=0.1)
    assert spent_s[3] < summary["hours_spent"] * 3600 < spent_s[0] + seconds
    assert sum(summary["seconds_by_phase"].values()) == pytest.approx(summary["hours_spent"] * 3600, rel=0.01, abs=1)
    heartbeat = json.loads((out / "heartbeat.json").read_text())["elapsed_s"]
    assert heartbeat == pytest.approx(summary["hours_spent"] * 3600, abs=5)
