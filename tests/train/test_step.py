"""Dynamic sampling and the order of things in a step, with a scripted engine."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from microrl.config import resolve
from microrl.data.sampler import PromptSampler
from microrl.rewards.scorer import RewardScorer
from microrl.rollout.engine import SyncReport
from microrl.run import metrics
from microrl.run.budget import Budget
from microrl.run.stopwatch import Stopwatch
from microrl.train import refill
from microrl.train.refill import always
from microrl.train.setup import Components
from microrl.train.step import sample_groups, with_advantages
from microrl.types import Completion, Group, Prompt, Sampling

RIGHT, WRONG, PLAIN = r"<think>x</think> \boxed{1}", r"<think>x</think> \boxed{2}", r"\boxed{2}"


class ScriptedEngine:
    """Answers a prompt with the texts that stand in its question, and notes what it was asked."""

    name = "scripted"

    def __init__(self):
        self.calls = []
        self.report = SyncReport()

    @contextmanager
    def awake(self, snapshot, *, is_training=False):
        yield self

    def groups(self, prompts, sampling, *, stream, environment=None):
        self.calls.append((len(prompts), stream))
        for position, prompt in reversed(list(enumerate(prompts))):
            texts = prompt.question.split("|")
            yield position, Group(prompt, tuple(Completion((5, 6), (-1.0, -2.0), "stop", 0, text) for text in texts))


def run(questions, loss, **flags):
    may_refill = flags.pop("may_refill", always)
    config = resolve((), {"loss.kind": loss, "sampling.prompts_per_step": 2, "sampling.group_size": 2, **flags})
    prompts = [Prompt(question, "1", "", (1, 2)) for question in questions]
    sampler = PromptSampler(prompts, seed=0)
    sampler._order = lambda epoch: list(range(len(prompts)))
    scorer = RewardScorer(config.reward)
    engine = ScriptedEngine()
    policy = SimpleNamespace(snapshot=lambda: None)
    parts = Components(config, engine, policy, scorer, sampler, Sampling(2, 8), Stopwatch())
    try:
        kept, sampled = sample_groups(parts, 7, lambda groups, total: iter(groups), may_refill)
    finally:
        scorer.close()
    return parts, kept, sampled


def test_without_dynamic_sampling_everything_is_kept_in_prompt_order():
    parts, kept, sampled = run([f"{WRONG}|{WRONG}", f"{RIGHT}|{WRONG}"], "grpo")
    assert kept == sampled and [group.prompt.question[-3:] for group in kept] == ["{2}", "{2}"]
    assert [group.scores[0].accuracy for group in kept] == [0, 1]
    assert parts.engine.calls == [(2, (0, 7, 0))]


USELESS, USEFUL = f"{WRONG}|{PLAIN}", f"{RIGHT}|{WRONG}"
"""Mixed format, but equal accuracy: DAPO drops the first all the same."""


def test_dynamic_sampling_drops_equal_accuracy_and_refills():
    parts, kept, sampled = run([USELESS, USEFUL, f"{RIGHT}|{RIGHT}", USEFUL], "dapo")
    # One of two is missing, and half of them were mixed: (1 + sqrt(1/2)) / (1/2) = 3.4.
    assert parts.engine.calls == [(2, (0, 7, 0)), (4, (0, 7, 1))]
    assert len(kept) == 2 and all({score.accuracy for score in group.scores} == {0, 1} for group in kept)
    assert len(sampled) == 6 and parts.prompts.position == 6
    row = metrics.of_groups(sampled)
    assert row["reward/accuracy"] == 5 / 12, "reward metrics count every sample"
    assert row["groups/useful"] == 5 / 6
    assert refill.missing(parts.config, kept) == 0


def test_a_batch_is_filled_where_a_fifth_of_the_groups_is_mixed():
    parts, kept, sampled = run([*[USELESS] * 4, USEFUL], "dapo", **{"sampling.prompts_per_step": 20})
    assert len(kept) == 20 and refill.missing(parts.config, kept) == 0
    assert len(sampled) <= 7 * 20 and len(parts.engine.calls) <= 3, "few rounds, and not much more than the five batches it needs"


def test_a_step_asks_at_most_ten_batches_and_counts_what_is_missing():
    for questions, lacking in (([USELESS], 4), ([*[USELESS] * 19, USEFUL], 2)):
        parts, kept, sampled = run(questions, "dapo", **{"sampling.prompts_per_step": 4})
        assert len(sampled) == 40 and refill.missing(parts.config, kept) == lacking
    parts, kept, _ = run([USELESS], "dapo")
    batch = with_advantages(parts.config, kept, 0)
    assert batch.groups == 2 and all(row.advantage == 0 for row in batch.rows if row.group == 9), "it says what it saw"
    assert refill.missing(resolve((), {"loss.kind": "grpo"}), kept) is None


def test_shuffled_rewards_are_the_same_in_each_group_and_independent_of_the_completions():
    parts, kept, _ = run([f"{RIGHT}|{WRONG}", f"{WRONG}|{RIGHT}"], "grpo", **{"reward.shuffle": True})
    right = [[score.accuracy == 1 for score in group.scores] for group in kept]
    seen = []
    for step in range(400):
        batch = with_advantages(parts.config, kept, step)
        by_group = [[row.advantage > 0 for row in batch.rows if row.group == number] for number in range(2)]
        assert all(sum(one) == 1 for one in by_group)
        seen += [one == own for one, own in zip(by_group, right, strict=True)]
    assert 0.43 < sum(seen) / len(seen) < 0.57
    again = with_advantages(parts.config, kept, 3)
    assert [row.advantage for row in again.rows] == [row.advantage for row in with_advantages(parts.config, kept, 3).rows]
    true = with_advantages(resolve((), {"sampling.group_size": 2}), kept, 3)
    assert [[row.advantage > 0 for row in true.rows if row.group == number] for number in range(2)] == right


def test_the_clock_bounds_refilling_only_where_it_ends_the_run():
    now = [0.0]
    budget = Budget(hours=100 / 3600, steps=None, started=0.0, now=lambda: now[0])
    a_run = SimpleNamespace(budget=budget, watch=Stopwatch({"update": 6.0}), forecast=SimpleNamespace(update_s=5.0))
    may_refill = refill.may_refill(a_run, step=3)
    assert may_refill(1.0, 0.0, 9.0), "nine tenths of the sampling"
    assert not may_refill(1.0, 0.0, 9.1) and not may_refill(1.0, 5.0, 4.1)
    now[0] = 80.0
    # Twenty seconds are left, 1.2 are for the exit, and an update has taken two.
    assert may_refill(10.0, 0.0, 16.7) and not may_refill(10.0, 0.0, 16.9)
    assert not refill.may_refill(a_run, step=0)(10.0, 0.0, 14.0), "no update is measured yet: the plan's five seconds count"
    budget.is_by_steps = True
    assert refill.may_refill(a_run, step=3)(1.0, 1e6, 1e6), "a run that steps end must repeat, whatever the clock says"


def test_a_round_that_there_is_no_time_for_is_not_begun():
    asked = []

    def may_refill(first_s, refills_s, next_s):
        asked.append((first_s > 0, refills_s > 0, next_s > 0))
        return len(asked) < 2

    parts, kept, _ = run([*[USELESS] * 9, USEFUL], "dapo", may_refill=may_refill, **{"sampling.prompts_per_step": 20})
    assert len(parts.engine.calls) == 2 and asked == [(True, False, True), (True, True, True)]
    assert len(kept) == 10 and refill.missing(parts.config, kept) == 10


@pytest.mark.slow
@pytest.mark.one_of_each
def test_a_first_step_that_is_far_too_large_is_shrunk_and_the_next_ones_are_as_small(inside, tmp_path):
    """Of the size that is asked for here, the automatic rate makes 300 times as much."""
    out, nothing = tmp_path / "run", ("--set", "evaluation.problems=0", "--set", "validation.problems=0")
    done = inside("train", "quickstart", "--steps", 2, "--step-kl", 1e-7, *nothing, "--out", out)
    assert done.returncode == 0 and "step shrunk: it was far larger than optim.step_kl" in done.stderr, done.stderr
    first, second = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    (event,) = [one for one in map(json.loads, (out / "events.jsonl").read_text().splitlines()) if one["kind"] == "step shrunk"]
    assert event["step"] == 0 and event["fraction"] < 0.2
    assert 1e-8 < first["policy/step_kl"] < 30e-7 and first["optim/lr"] == pytest.approx(event["fraction"] * 6.2e-4, rel=0.05)
    assert second["optim/lr"] <= 2 * first["optim/lr"], "it goes on from the lower rate"
