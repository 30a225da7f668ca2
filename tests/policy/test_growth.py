"""What an update costs as the work grows: processor time, which other processes do not take."""

import math
import time

import pytest
import torch
from random_models import random_model, with_adapter
from samples import collect

from microrl.algorithm.batch import Batch, Row
from microrl.models.attention import use_lower_right
from microrl.rollout.transformers import TransformersEngine
from microrl.types import Prompt, Sampling

MAX_EXPONENT = 1.1


def tiny_policy():
    model = random_model("qwen2")
    use_lower_right(model)
    return with_adapter(model, **{"optim.tokens_per_microbatch": 8448})


ROUNDS = 3


def least(measure, sizes):
    """The least of some rounds for each size. Rounds, so that a time at which the machine is slower falls on every size."""
    rounds = [[measure(*size) for size in sizes] for _ in range(ROUNDS)]
    return [min(spent) for spent in zip(*rounds)]


def seconds(policy, group, tokens):
    """Processor time of the update of one prompt's group."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 50, (group, tokens), generator=draw).tolist()
    rows = tuple(Row((5, 6, 7), tuple(row), (-5.0,) * tokens, (1.0, -1.0)[n % 2], True, 0) for n, row in enumerate(ids))
    began = time.process_time()
    policy.update(Batch(rows, 1, policy.version), lr=1e-6)
    return time.process_time() - began


def exponent(sizes, spent):
    """The slope of a straight line through the logarithms."""
    x, y = [math.log(size) for size in sizes], [math.log(one) for one in spent]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / sum((a - mean_x) ** 2 for a in x)


def test_exponents_by_hand():
    assert exponent([1, 2, 4], [3, 6, 12]) == pytest.approx(1) and exponent([1, 2, 4], [3, 12, 48]) == pytest.approx(2)


@pytest.mark.slow
@pytest.mark.one_of_each
def test_an_update_grows_with_the_group_as_the_group():
    policy = tiny_policy()
    sizes = (4, 8, 16, 32, 64)
    seconds(policy, 4, 256)  # a first pass allocates
    spent = least(lambda group: seconds(policy, group, 256), [(group,) for group in sizes])
    assert exponent(sizes, spent) <= MAX_EXPONENT, spent


@pytest.mark.slow
def test_an_update_grows_with_the_length_as_the_length_but_for_attention(monkeypatch):
    """Attention is left out: what is passed on in its place is the queries."""
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda query, *arguments, **more: query)
    policy = tiny_policy()
    sizes = (256, 512, 1024, 2048, 4096)
    seconds(policy, 2, 256)
    spent = least(lambda tokens: seconds(policy, 2, tokens), [(tokens,) for tokens in sizes])
    assert exponent(sizes, spent) <= MAX_EXPONENT, spent


def sampling_seconds(engine, snapshot, group, tokens):
    """Processor time of sampling one prompt's group, every completion of this length."""
    began = time.process_time()
    collect(engine, snapshot, [Prompt("q", "1", "", (5, 6, 7))], Sampling(group, tokens, min_tokens=tokens))
    return time.process_time() - began


def attend_to_one_token(monkeypatch):
    """Attention's two products, as the engine forms them while decoding, over one key and one value whatever the length."""
    bmm, baddbmm = torch.bmm, torch.baddbmm

    def one(left, right):
        tokens = left.shape[-1]
        return bmm(left, right[..., :1]) if tokens > 1 else bmm(left, right[:, :1])

    monkeypatch.setattr(torch, "bmm", one)
    monkeypatch.setattr(torch, "baddbmm", lambda bias, left, right, **more: baddbmm(bias[..., :1], left, right[..., :1], **more))


@pytest.mark.slow
@pytest.mark.parametrize("grows", ["group", "length"])
def test_sampling_grows_with_the_group_and_with_the_length_but_for_attention(grows, monkeypatch, tokenizer):
    attend_to_one_token(monkeypatch)
    sizes = {"group": [(n, 64) for n in (4, 8, 16, 32, 64)], "length": [(2, n) for n in (256, 512, 1024, 2048, 4096)]}[grows]
    model = random_model("qwen2")
    use_lower_right(model)
    engine = TransformersEngine(model, tokenizer, max_kv_gb=None)
    snapshot = with_adapter(model).snapshot()
    sampling_seconds(engine, snapshot, 4, 64)
    spent = least(lambda *size: sampling_seconds(engine, snapshot, *size), sizes)
    print(spent, exponent([group * tokens for group, tokens in sizes], spent))
    assert exponent([group * tokens for group, tokens in sizes], spent) <= MAX_EXPONENT, spent
