"""Dynamic sampling and the order of things in a step, with a scripted engine."""

from contextlib import contextmanager
from types import SimpleNamespace

from microrl.config import resolve
from microrl.data.sampler import PromptSampler
from microrl.rewards import Judge
from microrl.rollout.engine import SyncReport
from microrl.tracking import metrics
from microrl.tracking.stopwatch import Stopwatch
from microrl.train.setup import Parts
from microrl.train.step import sample, to_batch
from microrl.types import Completion, Group, Prompt, Sampling

RIGHT, WRONG, PLAIN = r"<think>x</think> \boxed{1}", r"<think>x</think> \boxed{2}", r"\boxed{2}"


class ScriptedEngine:
    """Answers a prompt with the texts that stand in its question, and notes what it was asked."""

    name = "scripted"

    def __init__(self):
        self.calls = []
        self.report = SyncReport()

    @contextmanager
    def awake(self, snapshot, *, trial=False):
        yield self

    def groups(self, prompts, sampling, *, stream):
        self.calls.append((len(prompts), stream))
        for position, prompt in reversed(list(enumerate(prompts))):
            texts = prompt.question.split("|")
            yield position, Group(prompt, tuple(Completion((5, 6), (-1.0, -2.0), "stop", 0, text) for text in texts))


def run(questions, loss, **flags):
    config = resolve((), {"loss.kind": loss, "sampling.prompts_per_step": 2, "sampling.group_size": 2, **flags})
    prompts = [Prompt(question, "1", "", (1, 2)) for question in questions]
    sampler = PromptSampler(prompts, seed=0)
    sampler._order = lambda epoch: list(range(len(prompts)))
    judge = Judge(config.reward)
    engine = ScriptedEngine()
    policy = SimpleNamespace(snapshot=lambda: None)
    parts = Parts(config, engine, policy, judge, sampler, [], Sampling(2, 8))
    try:
        kept, sampled = sample(parts, 7, Stopwatch(), lambda groups, total: iter(groups), parts.sampling)
    finally:
        judge.close()
    return parts, kept, sampled


def test_without_dynamic_sampling_everything_is_kept_in_prompt_order():
    parts, kept, sampled = run([f"{WRONG}|{WRONG}", f"{RIGHT}|{WRONG}"], "grpo")
    assert kept == sampled and [group.prompt.question[-3:] for group in kept] == ["{2}", "{2}"]
    assert [group.scores[0].accuracy for group in kept] == [0, 1]
    assert parts.engine.calls == [(2, (0, 7, 0))]


def test_dynamic_sampling_drops_equal_accuracy_and_refills():
    # Mixed format, but equal accuracy: DAPO drops it all the same.
    useless, useful = f"{WRONG}|{PLAIN}", f"{RIGHT}|{WRONG}"
    parts, kept, sampled = run([useless, useful, f"{RIGHT}|{RIGHT}", useful], "dapo")
    assert parts.engine.calls == [(2, (0, 7, 0)), (1, (0, 7, 1)), (1, (0, 7, 2))], "two, then one to refill, then one more"
    assert len(kept) == 2 and all({score.accuracy for score in group.scores} == {0, 1} for group in kept)
    assert len(sampled) == 4 and parts.prompts.position == 4
    row = metrics.of_groups(sampled)
    assert row["reward/accuracy"] == 4 / 8, "reward metrics count every sample"
    assert row["groups/useful"] == 3 / 4


def test_dynamic_sampling_gives_up_after_its_rounds():
    parts, kept, sampled = run([f"{WRONG}|{WRONG}"], "dapo", **{"loss.max_rounds": 3})
    assert len(parts.engine.calls) == 3 and len(sampled) == 6
    batch = to_batch(parts, kept)
    assert batch.groups == 2 and all(row.advantage == 0 for row in batch.rows), "what is left teaches nothing, and says so"
