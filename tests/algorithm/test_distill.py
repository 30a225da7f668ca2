"""The loss of a distillation: numbers worked out by hand, and gradients against autograd of the plain formula in float64."""

import math

import pytest
import torch

from microrl import algorithm
from microrl.algorithm.grpo import Tokens
from microrl.config import resolve


def made(**flags):
    return algorithm.make(resolve((), {"distill.teacher": "quickstart", **flags}))


def test_the_loss_by_hand():
    """Ratios (1.5, 0.5) and 1.5, and group advantages +1 and -2 of weight 0.5, as in `test_algorithms.py`. The old weights give
    every token p = 1, the teacher p = e, 1 / e and 1: A is (1, -1) and 0 without the reward, (1.5, -0.5) and -1 with it."""
    mask_BT = torch.tensor([[1, 1], [1, 0]])
    new_BT = torch.tensor([[1.5, 0.5], [1.5, 1.0]], dtype=torch.float64).log()
    teacher_BT = torch.tensor([[1.0, -1.0], [0.0, 0.0]], dtype=torch.float64)
    old_BT, advantages_B = torch.zeros_like(new_BT), torch.tensor([1.0, -2.0], dtype=torch.float64)
    for weight, expected in ((0.0, -(1.5 - 0.5) / 3), (0.5, -(1.5 * 1.5 - 0.5 * 0.5 - 1.5) / 3)):
        of = made(**{"distill.reward_weight": weight})
        weights_BT = of.token_weights(mask_BT)
        done = of.loss(Tokens(new_BT, old_BT, old_BT, None, advantages_B, mask_BT.bool(), weights_BT, teacher_BT))
        assert float(done.loss) == pytest.approx(expected, abs=1e-12) and not done.clipped_BT.any()


@pytest.mark.parametrize("weight", [0.0, 0.7])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_the_gradient_is_autograds_of_the_plain_formula(weight, is_fresh):
    """With a tool's tokens in the middle, importance weights and, where not fresh, weights that have moved since sampling."""
    torch.manual_seed(0)
    new_BT, moved_BT, engine_BT, teacher_BT = (-2 * torch.rand(3, 5, dtype=torch.float64) for _ in range(4))
    old_BT = new_BT.clone() if is_fresh else moved_BT
    mask_BT = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1], [0, 1, 0, 0, 0]], dtype=torch.bool)
    advantages_B = torch.tensor([1.0, 0.0, -2.0], dtype=torch.float64)
    of = made(**{"distill.reward_weight": weight, "loss.importance_cap": 1.3})
    ours_BT, plain_BT = new_BT.clone().requires_grad_(), new_BT.clone().requires_grad_()
    tokens = (tensor.masked_fill(~mask_BT, 0.0) for tensor in (ours_BT, old_BT, engine_BT))
    done = of.loss(Tokens(*tokens, None, advantages_B, mask_BT, of.token_weights(mask_BT), teacher_BT.masked_fill(~mask_BT, 0.0)))
    done.loss.backward()
    total = 0.0
    for row, token in mask_BT.nonzero().tolist():
        advantage = teacher_BT[row, token] - old_BT[row, token] + weight * advantages_B[row]
        importance = (old_BT[row, token] - engine_BT[row, token]).exp().clamp(max=1.3)
        total = total - importance * (plain_BT[row, token] - old_BT[row, token]).exp() * advantage / int(mask_BT.sum())
    total.backward()
    assert done.loss.item() == pytest.approx(total.item(), abs=1e-12)
    assert torch.allclose(ours_BT.grad, plain_BT.grad, rtol=1e-12, atol=1e-14) and plain_BT.grad.norm() > 0.1


def test_a_student_that_equals_its_teacher_has_no_gradient():
    of, old_BT = made(), -torch.rand(2, 3)
    new_BT, mask_BT = old_BT.clone().requires_grad_(), torch.ones(2, 3, dtype=torch.bool)
    of.loss(Tokens(new_BT, old_BT, old_BT, None, torch.ones(2), mask_BT, of.token_weights(mask_BT), old_BT)).loss.backward()
    assert (new_BT.grad == 0).all()


def test_what_the_teacher_calls_impossible_has_no_gradient_from_it():
    """-inf and NaN: A is 0. -200 nats are bounded: A is -100 - old."""
    of, mask_BT = made(), torch.ones(1, 4, dtype=torch.bool)
    new_BT = torch.full((1, 4), -1.0, dtype=torch.float64, requires_grad=True)
    teacher_BT = torch.tensor([[-math.inf, math.nan, -200.0, -1.0]], dtype=torch.float64)
    old_BT = new_BT.detach()
    tokens = Tokens(new_BT, old_BT, old_BT, None, torch.ones(1).double(), mask_BT, of.token_weights(mask_BT), teacher_BT)
    of.loss(tokens).loss.backward()
    assert new_BT.grad.tolist() == [[0.0, 0.0, 99 / 4, 0.0]]
