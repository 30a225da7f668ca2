"""The losses against numbers worked out by hand, and against TRL's own on recorded random tensors."""

import json
import math
from functools import partial

import pytest
import torch
from places import FIXTURES

from microrl import algorithm
from microrl.algorithm.advantages import advantages
from microrl.algorithm.grpo import Tokens
from microrl.algorithm.loss import constant_length, importance_weights, k3, mismatch, sequence_mean, surrogate, token_mean
from microrl.config import resolve
from microrl.errors import UserError
from microrl.rewards.scorer import soft_overlong_penalty

LN = math.log


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_advantages_by_hand():
    rewards_PG = tensor([[1.0, 0.0, 0.0, 1.0], [0.2, 0.2, 0.2, 0.2]])
    # Mean 1/2, unbiased variance 4 * 1/4 / 3 = 1/3.
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert advantages(rewards_PG, scale_by_std=True).tolist() == [
        pytest.approx([expected, -expected, -expected, expected], rel=1e-12),
        [0.0] * 4,
    ]
    assert advantages(rewards_PG, scale_by_std=False)[0].tolist() == [0.5, -0.5, -0.5, 0.5]


def test_equal_rewards_give_exactly_zero():
    """The mean of three times 0.1 is not 0.1 in floating point, and 1e-17 over 1e-4 must not become a gradient."""
    assert advantages(tensor([[0.1, 0.1, 0.1]]), scale_by_std=True).abs().max() == 0


def test_a_group_of_one_has_no_advantage():
    for scale in (True, False):
        assert advantages(tensor([[0.7], [0.0]]), scale_by_std=scale).tolist() == [[0.0], [0.0]]
    with pytest.raises(UserError, match="group_size"):
        resolve((), {"sampling.group_size": 1})


# Two completions of 2 tokens and 1 token, advantages +1 and -2, and these ratios:
RATIOS = [[1.5, 0.5], [1.5, 1.0]]
MASK = tensor([[1, 1], [1, 0]])
NEW = tensor(RATIOS).log()
OLD = torch.zeros(2, 2, dtype=torch.float64)
ADVANTAGES = tensor([1.0, -2.0])


def loss(average, **options):
    terms, _ = surrogate(NEW, OLD, ADVANTAGES, MASK.bool(), **options)
    return float((average(MASK) * terms).sum())


def test_grpo_by_hand():
    # A > 0: min(1.5, 1.2) = 1.2 and min(0.5, 0.8) = 0.5. A < 0: min(-3, -2.4) = -3.
    # Mean over tokens: (1.2 + 0.5) / 2 = 0.85 and -3; over completions: -(0.85 - 3) / 2.
    assert loss(sequence_mean, clip_low=0.2, clip_high=0.2) == pytest.approx(1.075, abs=1e-12)


def test_dapo_by_hand():
    # Clip-higher: 1.28 + 0.5 - 3, over all three tokens.
    assert loss(token_mean, clip_low=0.2, clip_high=0.28) == pytest.approx(-(1.28 + 0.5 - 3) / 3, abs=1e-12)


def test_dr_grpo_by_hand():
    # The same sum over 2 completions * 10 tokens, whatever their own lengths.
    assert loss(partial(constant_length, max_tokens=10), clip_low=0.2, clip_high=0.2) == pytest.approx(
        -(1.2 + 0.5 - 3) / 20, abs=1e-12
    )


def test_gspo_by_hand():
    # Ratio of the first: exp((ln 1.5 + ln 0.5) / 2) = sqrt(0.75) = 0.866; A > 0 takes min(0.866, clip to 0.9997) = 0.866.
    # Of the second 1.5, A < 0: min(-3, -2 * 1.0004) = -3. Mean over completions.
    expected = -(math.sqrt(0.75) - 3) / 2
    assert loss(sequence_mean, clip_low=3e-4, clip_high=4e-4, per_sequence=True) == pytest.approx(expected, abs=1e-12)


def test_dual_clip_by_hand():
    new, old, mask = tensor([[LN(20.0)]]), tensor([[0.0]]), torch.ones(1, 1, dtype=torch.bool)
    options = dict(clip_low=0.2, clip_high=0.2)
    plain, _ = surrogate(new, old, tensor([-1.0]), mask, **options)
    bounded, is_bounded = surrogate(new, old, tensor([-1.0]), mask, dual_clip=10.0, **options)
    positive, is_clipped = surrogate(new, old, tensor([1.0]), mask, dual_clip=10.0, **options)
    assert (float(plain), float(bounded), float(positive)) == pytest.approx((20.0, 10.0, -1.2))
    _, is_active = surrogate(new, old, tensor([-1.0]), mask, dual_clip=21.0, **options)
    assert is_bounded and is_clipped and not is_active, "its gradient is 0"


def test_clip_activity():
    _, active = surrogate(NEW, OLD, ADVANTAGES, MASK.bool(), clip_low=0.2, clip_high=0.2)
    # Only A > 0 with a ratio above 1.2 is cut: at 0.5 the unclipped term is the smaller one, and so it is for A < 0.
    assert active.tolist() == [[True, False], [False, False]]


def test_k3_by_hand():
    assert float(k3(tensor([LN(2.0)]), tensor([0.0]))) == pytest.approx(2 - LN(2.0) - 1, abs=1e-12)
    assert float(k3(tensor([-3.0]), tensor([-3.0]))) == 0


def test_importance_weights_are_truncated_and_carry_no_gradient():
    old = tensor([LN(3.0), LN(0.5)]).requires_grad_()
    weights = importance_weights(old, tensor([0.0, 0.0]), 2.0)
    assert weights.tolist() == pytest.approx([2.0, 0.5])
    assert not weights.requires_grad


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token_truncate", [[2, 0.5, 1], [1.5, 1.5, 1]]),
        ("token_mask", [[0, 0.5, 1], [1.5, 1.5, 1]]),
        ("sequence_truncate", [[1.5], [2]]),
        ("sequence_mask", [[1.5], [0]]),
    ],
)
def test_importance_weights_by_token_and_by_sequence(mode, expected):
    """Ratios (3, 1/2) and (3/2, 3/2), whose products are 3/2 and 9/4, against a cap of 2; the last token is not in the mask."""
    old, mask = tensor([[LN(3), LN(0.5), 0], [LN(1.5), LN(1.5), 0]]), torch.tensor([[True, True, False]] * 2)
    for outside in (0.0, -math.inf, math.nan):
        weights = importance_weights(old, tensor([[0, 0, outside]] * 2), 2.0, mask, mode)
        assert torch.allclose(weights * mask, tensor(expected) * mask, rtol=1e-12)


def test_a_mode_without_a_cap_is_refused():
    with pytest.raises(UserError, match="importance_mode=sequence_mask has no effect"):
        resolve((), {}, ["loss.importance_cap=none", "loss.importance_mode=sequence_mask"])


def test_a_token_that_the_sampler_calls_impossible_is_finite_everywhere():
    """It counts as -100 nats; where both sides call it so, nothing differs."""
    none = -math.inf
    old, engine = tensor([-3.0, none, none, -3.0, -150.0]), tensor([none, none, -3.0, math.nan, -100.0])
    assert mismatch(old, engine).tolist() == [97, 0, -97, 97, 0]
    assert importance_weights(old, engine, 2.0).tolist() == pytest.approx([2, 1, math.exp(-97), 2, 1])


def test_soft_overlong_penalty_by_hand():
    lengths = {0: 0.0, 12: 0.0, 14: -0.5, 16: -1.0, 20: -1.0}
    for length, expected in lengths.items():
        assert soft_overlong_penalty(length, limit=16, buffer=4, factor=1.0) == pytest.approx(expected)
    assert soft_overlong_penalty(14, limit=16, buffer=4, factor=0.5) == pytest.approx(-0.25)


TRL = json.loads((FIXTURES / "trl_losses.json").read_text())
OURS = [
    case
    for case in TRL["cases"]
    if case["settings"]["loss_type"] != "bnpo"
    # What TRL offers beyond the papers: its KL weighted by the ratio.
    and not case["name"].endswith(("_bias_corrected", "_accum2"))
]
KEYS = {
    "beta": "beta",
    "importance_mode": "importance_sampling_mode",
    "clip_low": "epsilon_low",
    "clip_high": "epsilon_high",
    "dual_clip": "delta",
    "ratio_cap": "epsilon_high",
    "temperature_positive": "sapo_temperature_pos",
    "temperature_negative": "sapo_temperature_neg",
}
"""Our name of a key, and TRL's."""


def as_trl_sets(settings):
    """The algorithm that these settings of TRL's describe."""
    kind = "gspo" if settings["importance_sampling_level"] == "sequence" else settings["loss_type"]
    known = type(resolve((), {"loss.kind": kind}).loss).model_fields
    flags = {f"loss.{key}": settings[name] for key, name in KEYS.items() if key in known}
    cap = settings["importance_sampling_clip_max"] if settings["importance_sampling_correction"] else "none"
    limit = {"sampling.max_completion_tokens": settings["max_completion_length"]}
    return algorithm.make(resolve((), {"loss.kind": kind, **flags, **limit}, [f"loss.importance_cap={cap}"]))


def test_the_recorded_cases_cover_every_loss():
    names = {case["name"] for case in OURS}
    assert names >= {
        "grpo",
        "grpo_kl",
        "dapo",
        "dr_grpo",
        "gspo",
        "cispo",
        "sapo",
        "grpo_dual",
        "grpo_is",
        "grpo_truncated",
        "grpo_is_token_mask",
        "grpo_is_sequence_truncate",
        "grpo_is_sequence_mask",
    }


@pytest.mark.parametrize("case", OURS, ids=lambda case: case["name"])
def test_agrees_with_trl(case):
    """Loss and gradient to 1e-9 against TRL 1.16 (recorded by fixtures/record_trl_losses.py)."""
    of = as_trl_sets(case["settings"])
    take = {role: tensor(TRL["tensors"][name]) for role, name in case["tensors"].items() if name}
    new, mask = take["new"].requires_grad_(), tensor(case["mask"])
    old = take.get("old", new.detach())
    value = of.loss(
        Tokens(
            new, old, take.get("engine", old), take.get("ref"), tensor(case["advantages"]), mask.bool(), of.token_weights(mask)
        )
    ).loss
    value.backward()
    assert value.item() == pytest.approx(case["loss"], abs=1e-9)
    assert torch.allclose(new.grad, tensor(case["grad"]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "record", [r for r in TRL["advantages"] if r["scale_rewards"] != "batch"], ids=lambda r: r["scale_rewards"]
)
def test_advantages_agree_with_trl(record):
    rewards = TRL["tensors"][record["rewards"]] if isinstance(record["rewards"], str) else record["rewards"]
    ours = advantages(tensor(rewards).view(-1, record["group_size"]), scale_by_std=record["scale_rewards"] == "group")
    assert ours.flatten().tolist() == pytest.approx(record["advantages"], abs=1e-9)
