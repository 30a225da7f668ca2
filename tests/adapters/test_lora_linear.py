"""The LoRA product of our own: its gradients, PEFT's forward pass beside it, and which layers have it."""

import math

import pytest
import torch
from every_adapter import IDS, config_of
from peft.tuners.lora.layer import Linear as PeftLinear
from random_models import small
from torch.utils._python_dispatch import TorchDispatchMode

from microrl.adapters.adapter import tuned
from microrl.adapters.attach import attach
from microrl.adapters.lora_linear import LoraLinear, LoraProduct, MergedLoraProduct, merges
from microrl.config import resolve
from microrl.config.adapter import LowRankConfig, ResidualConfig
from microrl.config.adapters import KINDS, LoraConfig
from microrl.policy.policy import Policy

PAIRS = [kind for kind, cls in KINDS.items() if issubclass(cls, LowRankConfig) and cls.is_one_product]


def tensors(dtype, tokens=7, width=6, height=5, rank=3, bias=True):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x, weight = draw(tokens, width).to(dtype), draw(height, width).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return x, weight, draw(height).to(dtype) if bias else None, draw(rank, width).to(wide), draw(height, rank).to(wide)


@pytest.mark.cases(fast=12)
@pytest.mark.parametrize("product", [LoraProduct, MergedLoraProduct])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("trained", ["xAB", "AB", "A", "B", "xB", "x"])
@pytest.mark.parametrize("rank", [1, 3], ids=["gradients by the pair", "by the weights"])
def test_gradients_are_exact(trained, bias, product, rank):
    x, weight, b, A, B = tensors(torch.float64, bias=bias, rank=rank)
    for name, tensor in (("x", x), ("A", A), ("B", B)):
        tensor.requires_grad_(name in trained)
    assert torch.autograd.gradcheck(lambda x, A, B: product.apply(x, weight, b, A, B, 0.7), (x, A, B))


class Multiplications(TorchDispatchMode):
    """Counts those of matrix products. (torch's own counter leaves out `addmm_`.)"""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "addmm_"):
            left, right = args[-2:]
            self.count += left.shape[0] * left.shape[1] * right.shape[1]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "shape",
    [
        dict(rank=3),
        dict(tokens=300, width=40, height=30, rank=12),
        dict(tokens=64, width=64, height=8),
        dict(tokens=4, width=40, height=30),
    ],
)
def test_the_form_with_fewer_multiplications_is_taken(shape):
    """Counted product by product in both forms, forward and backward."""
    x, weight, b, A, B = tensors(torch.float64, bias=False, **shape)
    for tensor in (x, A, B):
        tensor.requires_grad_()
    counts = []
    for product in (MergedLoraProduct, LoraProduct):
        with Multiplications() as counter:
            product.apply(x, weight, b, A, B, 0.7).sum().backward()
        counts.append(counter.count)
    assert merges(x, A, B) is (counts[0] < counts[1])


@pytest.mark.parametrize("rank", [1, 9, 10, 40])
def test_gradients_take_the_way_with_fewer_multiplications(rank):
    """300 rows, 40 x 30: by the pair 600 r 70, by the gradient of the weights (300 + 2 r) 1200."""
    x, weight, b, A, B = tensors(torch.float64, bias=False, tokens=300, width=40, height=30, rank=rank)
    with Multiplications() as counter:
        MergedLoraProduct.apply(x.requires_grad_(), weight, b, A.requires_grad_(), B.requires_grad_(), 0.7).sum().backward()
    gradients = counter.count - 2 * 300 * 40 * 30 - 2 * rank * 40 * 30
    assert gradients == min(2 * 300 * rank * 70, (300 + 2 * rank) * 40 * 30)


def test_in_16_bits_nothing_is_merged():
    x, _, _, A, B = tensors(torch.bfloat16)
    assert not merges(x, A, B) and merges(x.double(), A.double(), B.double())


def test_only_what_the_backward_pass_needs_is_kept():
    x, weight, b, A, B = tensors(torch.float64)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        LoraProduct.apply(x.requires_grad_(), weight, b, A, B.requires_grad_(), 0.7)
        assert {tuple(tensor.shape) for tensor in kept} == {(7, 3), (3, 6), (5, 3)}, "x is for the gradient of A alone"
        kept.clear()
        LoraProduct.apply(x, weight, b, A.requires_grad_(), B, 0.7)
        assert (7, 6) in {tuple(tensor.shape) for tensor in kept}
        kept.clear()
        MergedLoraProduct.apply(x, weight, b, A, B, 0.7)
        assert {tuple(tensor.shape) for tensor in kept} == {(7, 6), (3, 6), (5, 3)}, "merged, neither x A^T nor the weights"


def moved_off_its_start(attached):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in attached.parameters.values():
            parameter += torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.05
    return attached


def outputs(attached):
    """Logits, and the gradient of a loss on them."""
    logits = attached.model(input_ids=IDS).logits
    attached.model.zero_grad()
    (logits * torch.arange(logits.shape[-1])).mean().backward()
    return logits.detach(), {name: parameter.grad.clone() for name, parameter in attached.parameters.items()}


def by_peft(attached):
    for layer in tuned(attached.model).values():
        layer.__class__ = PeftLinear
    return outputs(attached)


@pytest.mark.cases(fast=6)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", PAIRS)
def test_forward_and_gradients_are_pefts(kind, dtype, tokenizer):
    """To the last bits that the type has: the sums are the same, in another order."""
    attached = moved_off_its_start(attach(small("qwen2").to(dtype), config_of(kind), seed=0))
    assert all(type(layer) is LoraLinear for layer in tuned(attached.model).values())
    ours, theirs = outputs(attached), by_peft(attached)
    near = 100 * torch.finfo(dtype).eps
    assert float((ours[0] - theirs[0]).abs().max()) < near * float(theirs[0].abs().max())
    for name, gradient in theirs[1].items():
        assert float((ours[1][name] - gradient).norm()) < near * 10 * float(gradient.norm()), name


@pytest.mark.parametrize(
    ("kind", "product"), [("lora", MergedLoraProduct), ("pissa", MergedLoraProduct), ("lora-fa", LoraProduct)]
)
def test_a_frozen_a_is_not_merged(kind, product, tokenizer):
    """LoRA-FA is there to keep no inputs."""
    attached = attach(small("qwen2"), config_of(kind, rank=32), seed=0)
    layer = next(iter(tuned(attached.model).values()))
    y = layer(torch.randn(200, layer.in_features, requires_grad=True))
    assert type(y.grad_fn.next_functions[0][0]).__name__ == f"{product.__name__}Backward"


def test_other_forms_and_bases_keep_pefts(tokenizer):
    for kind in ("dora", "adalora", "miss", "vera", "ia3"):
        attached = attach(small("qwen2"), config_of(kind), seed=0)
        assert not any(isinstance(layer, LoraLinear) for layer in attached.model.modules()), kind


def test_a_variant_that_is_more_than_the_pair_keeps_pefts(monkeypatch, tokenizer):
    """What it adds to PEFT's layers, `LoraLinear` does not know: it would have no effect, and no gradient."""
    monkeypatch.setattr(LoraConfig, "is_one_product", False)
    layers = tuned(attach(small("qwen2"), config_of("lora"), seed=0).model)
    assert {type(layer) for layer in layers.values()} == {PeftLinear}


def test_off_is_the_untouched_base(tokenizer):
    model = small("qwen2")
    with torch.no_grad():
        base = model(input_ids=IDS).logits
    attached = moved_off_its_start(attach(model, config_of("pissa"), seed=0))
    with torch.no_grad(), attached.off():
        assert torch.equal(model(input_ids=IDS).logits, base)
    with torch.no_grad():
        assert not torch.equal(model(input_ids=IDS).logits, base)


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize("kind", [kind for kind, cls in KINDS.items() if issubclass(cls, ResidualConfig)])
def test_a_residual_form_starts_at_the_base_to_the_last_bit_in_16_bits_too(kind, tokenizer):
    """Written as two large products that cancel it does not."""
    model = small("qwen2").to(torch.bfloat16)
    with torch.no_grad():
        base = model(input_ids=IDS).logits
        attached = attach(model, config_of(kind), seed=0)
        assert torch.equal(attached.model(input_ids=IDS).logits, base)


def test_in_16_bits_it_is_nearer_to_vllms_adapter_than_pefts_is():
    """vLLM rounds A and s B, then x A^T, then the update, and adds it to the rounded output of the base
    (`lora_shrink` and `lora_expand` of vllm/lora/ops/triton_ops, 0.32)."""
    x, weight, _, A, B = tensors(torch.bfloat16, tokens=256, width=256, height=320, rank=64, bias=False)
    A, B, scale = A / 16, B / 8, 0.25
    narrow = torch.bfloat16
    base = torch.nn.functional.linear(x, weight)
    xA = (x.float() @ A.to(narrow).float().t()).to(narrow)
    vllms = base + (xA.float() @ (B * scale).to(narrow).float().t()).to(narrow)
    pefts = (base + (x.float() @ A.t()) @ B.t() * scale).to(narrow)
    ours = LoraProduct.apply(x, weight, None, A, B, scale)
    gaps = [float((found.float() - vllms.float()).abs().mean()) for found in (ours, pefts)]
    print(gaps)
    assert gaps[0] <= gaps[1]


def test_policies_compute_with_it(tokenizer):
    policy = Policy(small("qwen2"), resolve((), {"adapter.rank": 8}))
    assert all(type(layer) is LoraLinear for layer in tuned(policy.adapter.model).values())
    assert math.isfinite(float(policy.score([(5, 6, 7)])[0].sum()))
