"""What an engine samples from a model of `random_models`: in groups, as rows of a batch, with made-up scores, at a pace."""

import torch
from random_models import random_model

from microrl.algorithm.batch import Row
from microrl.rollout.transformers import TransformersEngine
from microrl.types import Group, Prompt, Sampling, Score

PROMPTS = [Prompt("q", "1", "", tuple(range(5, 5 + length))) for length in (4, 11, 6)]


def collect(engine, snapshot, prompts, sampling, stream=(0, 0)):
    with engine.awake(snapshot) as sampler:
        return [group for _, group in sorted(sampler.groups(prompts, sampling, stream=stream), key=lambda item: item[0])]


def rows_of(groups):
    return [
        Row(group.prompt.token_ids, completion.token_ids, completion.logprobs, 1.0, True, 0)
        for group in groups
        for completion in group.completions
    ]


class ScriptedPace:
    """A pace that lets so many groups be decoded at once, and ends after so many looks."""

    def __init__(self, at_once, looks=10**9):
        self.at_once, self.looks, self.most = at_once, looks, 0

    def may_start(self, in_flight):
        self.most = max(self.most, in_flight)
        return in_flight < self.at_once

    def is_over(self):
        self.looks -= 1
        return self.looks < 0


def scored_groups(model, policy, tokenizer, size=4, tokens=16):
    # The engine is built on a model without adapters; this one has the same weights from the same seed.
    fresh = random_model(model.config.model_type.removesuffix("_text")).to(model.dtype)
    engine = TransformersEngine(fresh, tokenizer, max_kv_gb=1)
    groups = collect(engine, policy.snapshot(), PROMPTS, Sampling(size, tokens))
    generator = torch.Generator().manual_seed(2)
    rewards = [float(torch.rand((), generator=generator)) for _ in range(len(groups) * size)]
    return [
        Group(group.prompt, group.completions, tuple(Score(rewards.pop(), 1.0, float(i % 2)) for i in range(size)))
        for group in groups
    ]
