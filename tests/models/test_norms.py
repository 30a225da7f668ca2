"""RMSNorm as one step of autograd: transformers' values, exact gradients, and no more kept for the backward pass."""

from copy import deepcopy

import pytest
import torch
from random_models import random_model
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from microrl.models.norms import NORMS, RmsNorm, use_fused_rmsnorm


def norms(size, dtype=torch.float32):
    """transformers' norm with uneven weights, and the same as one step."""
    own = LlamaRMSNorm(size, eps=1e-5).to(dtype)
    own.weight.data = torch.linspace(-0.5, 1.5, size, dtype=dtype)
    ours = deepcopy(own)
    ours.__class__ = RmsNorm
    return own, ours


def rows(*shape, dtype=torch.float32):
    """Rows of very different lengths, one of them 0."""
    x = torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    x *= torch.logspace(-4, 3, shape[-2], dtype=dtype)[:, None]
    x[..., 1, :] = 0
    return x.requires_grad_()


@pytest.mark.parametrize("shape", [(7, 64), (2, 3, 5, 16)])
def test_values_are_transformers_own_to_the_last_bit(shape):
    own, ours = norms(shape[-1])
    assert torch.equal(ours(rows(*shape)), own(rows(*shape)))


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("shape", [(7, 64), (2, 3, 5, 16)])
def test_gradients_are_those_of_finite_differences(shape):
    _, ours = norms(shape[-1], torch.float64)
    x = rows(*shape, dtype=torch.float64)
    x = (x.detach().sign() + x.detach() / (1 + x.detach().abs())).requires_grad_()  # of moderate size, as differences need it
    assert torch.autograd.gradcheck(lambda x, w: torch.func.functional_call(ours, {"weight": w}, (x,)), (x, ours.weight))


def test_gradients_are_transformers_own():
    gradients = []
    for norm in norms(576):
        x = rows(33, 576)
        norm(x).square().sum().backward()
        gradients.append((x.grad, norm.weight.grad))
    for found, own in zip(*reversed(gradients), strict=True):
        assert torch.allclose(found, own, rtol=1e-4, atol=1e-5 * float(own.abs().max()))


def test_it_keeps_its_input_and_one_number_a_row():
    kept = {}
    for norm in norms(64):
        norm.weight.requires_grad_(False)
        tensors = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=tensors: to.append(x) or x, lambda x: x):
            y = norm(rows(128, 64))
        kept[type(norm)] = sum({tensor.data_ptr(): tensor.numel() for tensor in tensors}.values())
        assert y.requires_grad
    assert kept[RmsNorm] == 128 * 64 + 128 + 64 <= kept[LlamaRMSNorm]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_model_computes_the_same_with_them(architecture):
    model = random_model(architecture)
    ids = torch.arange(3, 23)[None]
    own = model(input_ids=ids).logits
    before = [name for name, module in model.named_modules() if type(module) in NORMS]
    use_fused_rmsnorm(model)
    assert before == [name for name, module in model.named_modules() if type(module) is RmsNorm] and len(before) >= 5
    assert torch.equal(model(input_ids=ids).logits, own)


@pytest.mark.parametrize("change", ["gemma3", "bfloat16", "subclass"])
def test_other_norms_are_left_to_transformers(change):
    model = random_model("gemma3" if change == "gemma3" else "qwen2")
    if change == "bfloat16":
        model.to(torch.bfloat16)
    if change == "subclass":
        for module in model.modules():
            if type(module) in NORMS:
                module.__class__ = type("Other", (type(module),), {})
    use_fused_rmsnorm(model)
    assert not any(type(module) is RmsNorm for module in model.modules())


def test_rows_of_a_narrow_type_do_not_overflow():
    _, norm = norms(64)
    assert torch.allclose(norm(torch.full((2, 64), 300.0, dtype=torch.float16)), norm(torch.full((2, 64), 300.0)))


def test_a_single_row_without_a_dimension_before_it():
    own, ours = norms(64)
    for norm in (own, ours):
        norm(torch.linspace(-1, 1, 64)).sum().backward()
    assert torch.allclose(ours.weight.grad, own.weight.grad, atol=1e-6)


def test_second_derivatives_are_refused_and_not_wrong():
    _, norm = norms(64)
    x = rows(4, 64)
    (first,) = torch.autograd.grad(norm(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
