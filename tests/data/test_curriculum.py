"""`data.curriculum`: which questions are drawn, what that follows from, and that a killed run draws the same ones."""

import collections
import json
import signal
import sys

import processes
import pytest
from places import HELPERS
from safetensors.torch import load_file

from microrl.data.sampler import CurriculumSampler, PromptSampler

ITEMS = [f"question {number}" for number in range(12)]


def sampler(seed=3, items=ITEMS, group_size=4):
    return CurriculumSampler(items, seed, group_size)


def test_a_draw_follows_from_the_seed_the_position_and_the_history_alone():
    first = sampler()
    first.draw(5)
    first.learn([(item, 0.5, 4) for item in ITEMS[:5]])
    drawn = [first.draw(4), first.draw(3)]
    second = sampler()
    second.restore(5, {str(number): (2.0, 4.0) for number in range(5)})
    assert [second.draw(4), second.draw(3)] == drawn
    second.restore(5, {str(number): (50.0, 50.0) for number in range(0, 12, 2)})
    assert [second.draw(4), second.draw(3)] != drawn
    assert sampler(seed=4).draw(5) != sampler(seed=3).draw(5)


def test_nothing_is_drawn_twice_in_a_step_while_there_is_anything_else():
    draws = sampler()
    rounds = draws.draw(5) + draws.draw(7)
    assert sorted(rounds) == sorted(ITEMS)
    more = draws.draw(30)
    assert len(more) == 30 and set(more) == set(ITEMS)


def test_the_weights_by_hand():
    draws = sampler()
    draws.learn([(ITEMS[0], 1.0, 4), (ITEMS[1], 0.5, 4), (ITEMS[2], 0.0, 4)])
    solved = 0.1 + 0.9 * (1 - (5 / 6) ** 4 - (1 / 6) ** 4)
    assert draws._weights()[:4].tolist() == pytest.approx([solved, 0.1 + 0.9 * (1 - 2 / 16), solved, 1.0])
    draws.learn([(ITEMS[0], 1.0, 4)])  # what was known counts half: 6 of 6
    assert draws.history["0"] == (6.0, 6.0)
    assert draws._weights()[0] == pytest.approx(0.1 + 0.9 * (1 - (7 / 8) ** 4 - (1 / 8) ** 4))


def test_questions_that_still_differ_are_drawn_more_often_and_none_is_forgotten():
    draws, counts = sampler(), collections.Counter()
    shares = {item: [0.0, 0.5, 1.0][number % 3] for number, item in enumerate(ITEMS)}
    for _ in range(1500):
        step = draws.draw(3)
        counts.update(step)
        draws.learn([(item, shares[item], 4) for item in step])
    by_share = {share: sum(counts[item] for item in ITEMS if shares[item] == share) for share in (0.0, 0.5, 1.0)}
    assert by_share[0.5] > 1.8 * by_share[0.0] and by_share[0.5] > 1.8 * by_share[1.0]
    assert min(counts.values()) > 100


def test_without_it_the_history_changes_nothing():
    plain = PromptSampler(ITEMS, 3)
    plain.draw(4)
    plain.learn([(ITEMS[0], 1.0, 4)])
    assert plain.history == {} and plain.draw(8) == PromptSampler(ITEMS, 3, position=4).draw(8)


@pytest.mark.slow
def test_a_killed_run_draws_the_same_questions_and_ends_the_same(microrl, tiny_arguments, tmp_path):
    (tmp_path / "letters.py").write_text(
        "def count(prompts, completions, rows):\n    return [len(set(t)) % 3 for t in completions]\n"
    )
    arguments = [*tiny_arguments, "--set", "data.curriculum=true", "--reward", "letters:count", "--steps", 6]
    done = microrl("train", *arguments, "--out", tmp_path / "whole", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    killed = processes.run(
        [sys.executable, HELPERS / "killed.py", "update", 4, "train", *arguments, "--out", tmp_path / "killed"],
        timeout=600, cwd=tmp_path,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = microrl("train", "--resume", tmp_path / "killed", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    state = [json.loads((tmp_path / run / "checkpoints/step-000006/state.json").read_text()) for run in ("whole", "killed")]
    assert state[0]["question_history"] == state[1]["question_history"] and len(state[0]["question_history"]) > 4
    tensors = [load_file(tmp_path / run / "final" / "adapter_model.safetensors") for run in ("whole", "killed")]
    assert all((tensors[0][name] == tensors[1][name]).all() for name in tensors[0])
