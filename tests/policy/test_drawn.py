"""Completions into which a tool has written: only what the policy drew is scored, trained on and counted."""

import dataclasses
import gzip
import json

import pytest
import torch
from algorithms import GRPO
from losses import LOSSES
from random_models import ARCHITECTURES, as_loaded, gradients, own_logits, own_logprobs, random_model, relative_gap, with_adapter
from samples import scored_groups

from microrl.algorithm.batch import Row, assemble
from microrl.policy.microbatch import drawn_mask, plan
from microrl.policy.sft import sft_step
from microrl.run import metrics, rollouts
from microrl.types import Completion, Group, Prompt, Score, SftExample


def with_a_tool(groups):
    """The groups with two to four tokens of a tool in all completions but every third: behind the first third of its tokens."""
    return [
        dataclasses.replace(group, completions=tuple(interrupted(one, number) for number, one in enumerate(group.completions)))
        for group in groups
    ]


def interrupted(completion, number):
    if number % 3 == 2:
        return completion
    place, length = len(completion.token_ids) // 3, 2 + number % 3
    own, others = completion.token_ids, tuple(range(7, 7 + length))
    logprobs = completion.logprobs
    return dataclasses.replace(
        completion,
        token_ids=own[:place] + others + own[place:],
        logprobs=logprobs[:place] + (0.0,) * length + logprobs[place:],
        drawn=(True,) * place + (False,) * length + (True,) * (len(own) - place),
    )


def episodes(model, policy, tokenizer):
    batch = assemble(with_a_tool(scored_groups(model, policy, tokenizer)), GRPO)
    assert 0 < sum(row.drawn is None for row in batch.rows) < len(batch.rows)
    return batch


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("recomputing", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_is_that_of_the_plain_formula(architecture, recomputing, tokenizer):
    """-mean_i mean_t A_i log p over the drawn tokens: packed or behind a cache, and a row at a time, recomputed."""
    model = as_loaded(random_model(architecture)).double()
    policy = with_adapter(model, **{"loss.importance_cap": 1e9, "model.gradient_checkpointing": recomputing})
    batch = episodes(model, policy, tokenizer)
    ours = gradients(policy, batch, max_tokens=90)
    policy.adapter.model.zero_grad()
    total = 0.0
    for row in batch.rows:
        chosen = own_logprobs(policy.adapter.model, row)
        weight = (chosen.detach() - torch.tensor(row.engine_logprobs)).exp()
        total = total - (weight * row.advantage * chosen)[drawn_mask([row], len(chosen))[0]].mean() / len(batch.rows)
    total.backward()
    assert relative_gap(ours, [parameter.grad for parameter in policy.parameters]) < 1e-6


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize(("loss", "mode"), [*((loss, "token_truncate") for loss in LOSSES), ("grpo", "sequence_mask")])
def test_what_the_engine_says_of_a_tools_tokens_changes_nothing(loss, mode, tokenizer):
    """Neither the gradient nor a metric, with the KL term on and several mini-batches."""
    model = as_loaded(random_model("qwen2")).double()
    seen = []
    for value in (0.0, -3.0, -torch.inf):
        overrides = {"loss.kind": loss, "loss.beta": 0.1, "optim.prompts_per_update": 2, "loss.importance_mode": mode}
        policy = with_adapter(as_loaded(random_model("qwen2")).double(), **overrides)
        batch = episodes(model, policy, tokenizer)
        rows = [
            dataclasses.replace(
                row,
                engine_logprobs=tuple(
                    given if is_drawn else value
                    for given, is_drawn in zip(row.engine_logprobs, row.drawn or [True] * len(row.engine_logprobs))
                ),
            )
            for row in batch.rows
        ]
        update = policy.update(dataclasses.replace(batch, rows=tuple(rows)), 1e-3)
        seen.append((update, [parameter.detach().clone() for parameter in policy.parameters]))
    for update, parameters in seen[1:]:
        assert update == seen[0][0] and all(map(torch.equal, parameters, seen[0][1]))
    assert seen[0][0].impossible_tokens == 0


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_scores_and_metrics_are_those_of_the_drawn_tokens(architecture, tokenizer):
    model = as_loaded(random_model(architecture)).double()
    policy = with_adapter(model)
    batch = episodes(model, policy, tokenizer)
    entropies = []
    for row, logprobs in zip(batch.rows, policy.logprobs(batch.rows), strict=True):
        drawn = drawn_mask([row], len(row.completion_ids))[0]
        with torch.no_grad():
            expected = own_logprobs(policy.adapter.model, row)
            everything = own_logits(policy.adapter.model, row).log_softmax(-1)[drawn]
        entropies.append(float(-(everything.exp() * everything).sum(-1).mean()))
        assert (logprobs[~drawn] == 0).all() and torch.allclose(logprobs[drawn], expected[drawn], atol=1e-9)
    update = policy.update(batch, 0.0)
    assert update.entropy == pytest.approx(sum(entropies) / len(entropies), rel=1e-9)


def test_sft_learns_what_is_drawn(tokenizer):
    """The loss is the plain cross-entropy of those tokens, and no other value of the others' targets changes a weight."""
    losses, weights = [], []
    for target in (7, 11):
        model = as_loaded(random_model("qwen2")).double()
        policy = with_adapter(model)
        tool = SftExample(Prompt("q", "1", "", (5, 6)), (9, 8, target), (True, True, False))
        alone = SftExample(Prompt("q", "1", "", (5, 6, 7)), (4, 9))
        with torch.no_grad():
            scores = [own_logprobs(model, Row(one.prompt.token_ids, one.token_ids, (), 0.0, True, 0)) for one in (tool, alone)]
        done = sft_step(policy, [tool, alone], 1e-2)
        assert done.tokens == 4 and done.loss == pytest.approx(-float(scores[0][:2].sum() + scores[1].sum()) / 4, rel=1e-9)
        losses.append(done.loss)
        weights.append([parameter.detach().clone() for parameter in policy.parameters])
    assert losses[0] == losses[1] and all(map(torch.equal, *weights))


def test_a_micro_batch_is_as_long_as_what_is_read():
    """Memory is taken by every token; only the loss is blind to a tool's."""
    prompt = Prompt("q", "1", "", (1, 2, 3))
    long = Completion((4,) * 10, (0.0,) * 10, "stop", 0, "", drawn=(True, *[False] * 8, True))
    group = Group(prompt, (long, dataclasses.replace(long, token_ids=(4, 4), drawn=None)), (Score(0, 0, 0), Score(1, 1, 1)))
    rows = assemble([group], GRPO).rows
    assert plan(rows, 22, share_prompts=True) == [(1,), (0,)] and plan(rows, 23, share_prompts=True) == [(1, 0)]


def test_lengths_count_what_the_policy_drew():
    """In the metrics, the length penalty's argument, the entropy, and what is stored."""
    prompt = Prompt("q", "1", "", (1, 2))
    tool = Completion((4, 5, 6, 7), (-1.0, 0.0, 0.0, -3.0), "stop", 0, "7", (True, False, False, True), "<call>4</call>5 6 7")
    alone = Completion((4, 5, 6), (-1.0, -1.0, -1.0), "length", 0, "4 5 6")
    group = Group(prompt, (tool, alone), (Score(1.0, 1.0, 1.0), Score(0.0, 0.0, 0.0)))
    assert (tool.length, alone.length) == (2, 3) and (tool.entropy, alone.entropy) == (2.0, 1.0)
    row = metrics.of_groups([group])
    assert (row["length/mean"], row["length/max"], row["tokens/generated"]) == (2.5, 3, 5)
    first, second = rollouts.lines([group], [(group, [1.0, -1.0])], lambda ids: "".join(map(str, ids)))
    assert (first["tokens"], first["completion"], first["transcript"]) == (2, "7", "<call>4</call>5 6 7")
    assert first["pieces"] == ["4", "5", "6", "7"] and first["logprobs"] == [-1.0, None, None, -3.0]
    assert "transcript" not in second and second["tokens"] == 3


def test_a_transcript_is_read_back(tmp_path):
    prompt = Prompt("q", "1", "p", (1, 2))
    group = Group(
        prompt, (Completion((4, 5), (-1.0, 0.0), "stop", 0, "4", (True, False), "4 [5]"),) * 2, (Score(1.0, 1.0, 1.0),) * 2
    )
    path = tmp_path / rollouts.name(0)
    path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in rollouts.lines([group])).encode()))
    (again,) = rollouts.read(path, 2)
    assert [(one.text, one.transcript, one.length) for one in again.completions] == [("4", "4 [5]", 1)] * 2
