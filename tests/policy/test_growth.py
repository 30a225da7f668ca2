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


def seconds(policy, group, tokens):
    """Processor time of the update of one prompt's group: the less of two."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 50, (group, tokens), generator=draw).tolist()
    rows = tuple(Row((5, 6, 7), tuple(row), (-5.0,) * tokens, (1.0, -1.0)[n % 2], True, 0) for n, row in enumerate(ids))
    spent = []
    for _ in range(2):
        began = time.process_time()
        policy.update(Batch(rows, 1, policy.version), lr=1e-6)
        spent.append(time.process_time() - began)
    return min(spent)


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
    spent = [seconds(policy, group, 256) for group in sizes]
    assert exponent(sizes, spent) <= MAX_EXPONENT, spent


@pytest.mark.slow
def test_an_update_grows_with_the_length_as_the_length_but_for_attention(monkeypatch):
    """Attention is left out: what is passed on in its place is the queries."""
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda query, *arguments, **more: query)
    policy = tiny_policy()
    sizes = (256, 512, 1024, 2048, 4096)
    seconds(policy, 2, 256)
    spent = [seconds(policy, 2, tokens) for tokens in sizes]
    assert exponent(sizes, spent) <= MAX_EXPONENT, spent


def sampling_seconds(engine, snapshot, group, tokens):
    """Processor time of sampling one prompt's group, every completion of this length: the less of two."""
    spent = []
    for _ in range(2):
        began = time.process_time()
        collect(engine, snapshot, [Prompt("q", "1", "", (5, 6, 7))], Sampling(group, tokens, min_tokens=tokens))
        spent.append(time.process_time() - began)
    return min(spent)


@pytest.mark.slow
@pytest.mark.parametrize("grows", ["group", "length"])
def test_sampling_grows_with_the_group_and_with_the_length_but_for_attention(grows, monkeypatch, tokenizer):
    sizes = {"group": [(n, 64) for n in (4, 8, 16, 32, 64)], "length": [(2, n) for n in (256, 512, 1024, 2048, 4096)]}[grows]
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", lambda query, *arguments, **more: query)
    model = random_model("qwen2")
    use_lower_right(model)
    engine = TransformersEngine(model, tokenizer, max_kv_gb=None)
    policy = with_adapter(model)
    sampling_seconds(engine, policy.snapshot(), 4, 64)
    spent = [sampling_seconds(engine, policy.snapshot(), group, tokens) for group, tokens in sizes]
    print(spent, exponent([group * tokens for group, tokens in sizes], spent))
    assert exponent([group * tokens for group, tokens in sizes], spent) <= MAX_EXPONENT, spent
