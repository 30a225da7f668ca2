"""Episodes with the real vLLM: what it draws, the trainer scores alike, and so does the other engine."""

import dataclasses

import pytest
import torch
from echoes import Echoes
from samples import rows_of
from vllm_served import CLOSE, GROUP, LENGTH, STREAMED_LENGTH, prompts

from microrl.rollout.requests import Queue, Request
from microrl.types import BASE, Sampling

pytestmark = pytest.mark.vllm


@pytest.mark.parametrize("mode", ["swap", "merge"])
def test_what_is_drawn_in_episodes_is_scored_alike(served, mode):
    policy = served.change("lora", seed=61)
    groups = played(served.in_mode(mode), policy.snapshot(), served, temperature=0.7)
    gaps = [
        (torch.tensor(row.engine_logprobs) - found.cpu()).abs().max()
        for row, found in zip(rows_with_drawn(groups), policy.logprobs(rows_with_drawn(groups)), strict=True)
    ]
    assert max(gaps) < CLOSE, gaps


def test_both_engines_give_the_same_episodes_the_same_log_probabilities(served):
    groups = played(served.in_mode("swap"), BASE, served)
    shown = [[one.token_ids for one in group.completions] for group in groups]
    scores = served.transformers.score([group.prompt.token_ids for group in groups], shown)
    for completion, found in zip((one for group in groups for one in group.completions), scores, strict=True):
        drawn = torch.tensor(completion.drawn or [True] * len(completion.token_ids))
        assert (torch.tensor(completion.logprobs) - found.cpu())[drawn].abs().max() < CLOSE


def test_a_turn_does_not_wait_for_the_others_of_its_question(served):
    request = Request((9,), prompts(served)[0].token_ids, 4 * GROUP)
    with served.in_mode("swap").awake(BASE) as sampler:
        ended = {}
        for _, number, completion in sampler.complete(Queue([request], stream=(9,)), Sampling(4 * GROUP, STREAMED_LENGTH)):
            ended[number] = sampler.decode_steps, len(completion.token_ids)
    steps = {at for at, _ in ended.values()}
    assert len(ended) == 4 * GROUP and len(steps) > 1
    assert [length for _, length in sorted(ended.values())] == sorted(length for _, length in ended.values())


def played(engine, snapshot, served, temperature=1.0):
    """Groups whose completions have up to three turns. The other engine scores at temperature 1."""
    with engine.awake(snapshot) as sampler:
        limits = Sampling(GROUP, 2 * LENGTH, temperature)
        found = dict(sampler.groups(prompts(served), limits, stream=(4,), environment=Echoes(extra=1)))
    turns = [one.episode.turns for group in found.values() for one in group.completions]
    assert max(turns) > 1, turns
    return [group for _, group in sorted(found.items())]


def rows_with_drawn(groups):
    completions = [one for group in groups for one in group.completions]
    return [dataclasses.replace(row, drawn=one.drawn) for row, one in zip(rows_of(groups), completions, strict=True)]
