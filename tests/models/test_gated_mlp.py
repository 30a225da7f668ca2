"""The gated MLP that keeps two tensors a token: transformers' values and gradients, with fewer activations."""

from contextlib import nullcontext

import pytest
import torch
from every_adapter import config_of
from random_models import random_model

from microrl.adapters.attach import attach
from microrl.adapters.lora_linear import MergedLoraProduct
from microrl.models.gated_mlp import MLPS, Gated, GatedMlp, use_lean_mlps
from microrl.policy.activations import recomputed

IDS = torch.arange(3, 203).view(2, 100)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_gradients_of_the_gate_are_those_of_finite_differences():
    gate, up = draw(5, 7).requires_grad_(), draw(5, 7).requires_grad_()
    assert torch.allclose(Gated.apply(gate, up), torch.nn.functional.silu(gate) * up)
    assert torch.autograd.gradcheck(Gated.apply, (gate, up))


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("rank", [1, 9], ids=["gradients by the pair", "by the weights"])
@pytest.mark.parametrize("trained", ["guAB", "gu", "AB", "gA", "uB"])
def test_gradients_through_a_pair_are_those_of_finite_differences(trained, rank):
    factors = {"g": draw(40, 6), "u": draw(40, 6), "A": draw(rank, 6), "B": draw(5, rank)}
    weight, bias = draw(5, 6), draw(5)
    for name in trained:
        factors[name].requires_grad_()
    gate, up, A, B = factors.values()
    plain = MergedLoraProduct.apply(torch.nn.functional.silu(gate) * up, weight, bias, A, B, 0.7)

    def product(gate, up, A, B):
        return MergedLoraProduct.apply(gate, weight, bias, A, B, 0.7, up)

    assert torch.allclose(product(*factors.values()), plain)
    assert torch.autograd.gradcheck(product, tuple(factors.values()))


def update(architecture, kind, lean, checkpointing=False):
    """Logits, gradients and the numbers kept for the backward pass, of a model whose adapter has left its start."""
    model = random_model(architecture)
    if lean:
        use_lean_mlps(model)
        assert sum(type(module) is GatedMlp for module in model.modules()) == model.config.num_hidden_layers
    attached = attach(model, config_of(kind), seed=0)
    generator, kept = torch.Generator().manual_seed(1), {}
    with torch.no_grad():
        for parameter in attached.parameters.values():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.05
    with recomputed(model) if checkpointing else nullcontext():
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.update({x.data_ptr(): x.numel()}) or x, lambda x: x):
            logits = model(input_ids=IDS, use_cache=False).logits
        (logits * torch.linspace(-1, 1, logits.shape[-1])).mean().backward()
    return logits.detach(), [parameter.grad for parameter in attached.parameters.values()], sum(kept.values())


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("kind", ["lora", "pissa", "lora-fa", "dora", "vera", "ia3"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_model_computes_the_same_with_it(architecture, kind):
    """Whatever its adapter does with the input of the down projection."""
    own, lean = (update(architecture, kind, lean) for lean in (False, True))
    assert torch.allclose(lean[0], own[0], rtol=1e-4, atol=1e-4)
    for found, expected in zip(lean[1], own[1], strict=True):
        assert float((found - expected).norm()) <= 1e-4 * float(expected.norm()) + 1e-9


def test_it_keeps_two_tensors_of_the_inner_width_where_autograd_keeps_four():
    (_, _, own), (_, _, lean) = (update("qwen2", "lora", lean) for lean in (False, True))
    config = random_model("qwen2").config
    assert own - lean == 2 * IDS.numel() * config.intermediate_size * config.num_hidden_layers


def test_checkpointed_activations_are_not_kept_by_it():
    plain, checkpointed = (update("qwen2", "lora", True, checkpointing) for checkpointing in (False, True))
    assert torch.equal(plain[0], checkpointed[0])
    for found, expected in zip(checkpointed[1], plain[1], strict=True):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-7)
    assert checkpointed[2] < plain[2] / 4


@pytest.mark.parametrize("change", ["gemma3", "bfloat16", "subclass", "activation"])
def test_other_mlps_are_left_to_transformers(change):
    model = random_model("gemma3" if change == "gemma3" else "qwen2")
    if change == "bfloat16":
        model.to(torch.bfloat16)
    for module in model.modules():
        if type(module) in MLPS and change == "subclass":
            module.__class__ = type("Other", (type(module),), {})
    if change == "activation":
        model.config.hidden_act = "gelu"
    use_lean_mlps(model)
    assert not any(type(module) is GatedMlp for module in model.modules())
