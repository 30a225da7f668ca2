"""Products by oneDNN: as exact as torch's own, and never with packed weights that have changed since."""

import itertools
import json
import subprocess
import sys

import pytest
import torch
from random_models import random_model, with_adapter
from samples import PROMPTS, collect
from torch.utils._python_dispatch import TorchDispatchMode

from microrl.adapters.lora_linear import LoraProduct, MergedLoraProduct
from microrl.models import onednn
from microrl.models.forward import Head
from microrl.policy.logprobs import chosen_logprobs
from microrl.rollout.transformers import TransformersEngine
from microrl.types import Sampling

ROWS, OUT, IN = 37, 300, 280


@pytest.fixture
def weight():
    return torch.nn.Parameter(torch.randn(OUT, IN, generator=torch.Generator().manual_seed(0)), requires_grad=False)


def rows(width):
    return torch.randn(ROWS, width, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(ROWS,), (3, 5), (0,)])
def test_packed_products_are_as_exact_as_torchs(weight, shape):
    x, g = torch.randn(*shape, IN), torch.randn(*shape, OUT)
    bias = torch.randn(OUT)
    exact = torch.nn.functional.linear(x.double(), weight.double(), bias.double())
    found = onednn.times_transposed(x, weight, bias)
    assert found.shape == (*shape, OUT) and found.dtype is torch.float32
    assert torch.allclose(found.double(), exact, rtol=1e-4, atol=1e-4)
    assert torch.allclose(onednn.times(g, weight).double(), g.double() @ weight.double(), rtol=1e-4, atol=1e-4)
    if x.numel():
        ours, torchs = ((y.double() - exact).norm() for y in (found, torch.nn.functional.linear(x, weight, bias)))
        assert ours <= 2 * torchs


def test_rows_of_any_layout(weight):
    x = rows(2 * IN)[:, ::2]
    assert not x.is_contiguous()
    assert torch.allclose(onednn.times_transposed(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_avx512", [False, True])
def test_changed_weights_are_packed_again(weight, has_avx512, monkeypatch):
    """Without AVX-512 only for x W^T: for g W MKL is as fast without a copy, and a head's copy can be as large as the model."""
    monkeypatch.setattr(onednn, "_beats_mkl", lambda: has_avx512)
    x = rows(IN)
    onednn.times(rows(OUT), weight)
    onednn.times_transposed(x, weight)
    with torch.no_grad():
        weight.mul_(2)
    assert torch.allclose(onednn.times_transposed(x, weight), x @ weight.t(), rtol=1e-4, atol=1e-4)
    assert torch.allclose(onednn.times(rows(OUT), weight), rows(OUT) @ weight, rtol=1e-4, atol=1e-4)
    assert set(onednn._PACKED[weight][1]) == ({0, 1} if has_avx512 else {0})


def test_what_is_packed_goes_with_its_weights():
    before = len(onednn._PACKED)
    weight = torch.nn.Parameter(torch.randn(OUT, IN), requires_grad=False)
    onednn.times_transposed(rows(IN), weight)
    assert len(onednn._PACKED) == before + 1
    del weight
    assert len(onednn._PACKED) == before


def test_a_large_weight_is_not_packed(weight, monkeypatch):
    monkeypatch.setattr(onednn, "MAX_ELEMENTS", OUT * IN - 1)
    assert onednn.pack(weight) is None
    assert torch.allclose(onednn.times_transposed(rows(IN), weight), rows(IN) @ weight.t(), rtol=1e-4, atol=1e-4)
    assert torch.allclose(onednn.times(rows(OUT), weight), rows(OUT) @ weight, rtol=1e-4, atol=1e-4)


def test_of_a_layer_with_a_pair_no_copy_is_kept(weight):
    """Neither of a merged one nor of one with too few rows for that: its copies would be as large as the model, twice."""
    before, (A, B) = len(onednn._PACKED), (torch.randn(8, IN), torch.randn(OUT, 8))
    for product in (LoraProduct, MergedLoraProduct):
        x = rows(IN).requires_grad_()
        y = product.apply(x, weight, None, A.requires_grad_(), B, 1.0)
        y.sum().backward()
        assert torch.allclose(y, x @ (weight + B @ A).t(), rtol=1e-3, atol=1e-3)
    assert len(onednn._PACKED) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_and_small_weights_are_left_alone(weight, dtype):
    assert onednn.pack(weight.to(dtype)) is None and onednn.pack(torch.randn(8, 8)) is None
    x = rows(IN).to(dtype)
    assert torch.equal(onednn.times_transposed(x, weight.to(dtype)), torch.nn.functional.linear(x, weight.to(dtype)))


@pytest.mark.parametrize("size", [4, 300])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("has_avx512", [False, True])
def test_products_of_any_size_and_layout(size, transposed, has_avx512, monkeypatch):
    """Small ones are torch's, and without AVX-512 all; the others are oneDNN's. All are as exact."""
    monkeypatch.setattr(onednn, "_beats_mkl", lambda: has_avx512)
    calls, real = [], onednn._multiply
    monkeypatch.setattr(onednn, "_multiply", lambda *factors: calls.append(factors) or real(*factors))
    left, right = torch.randn(size, IN), torch.randn(IN, size + 1)
    if transposed:
        left, right = left.t().contiguous().t(), right.t().contiguous().t()
    exact = left.double() @ right.double()
    assert torch.allclose(onednn.product(left, right).double(), exact, atol=1e-4)
    out = torch.ones(size, size + 1)
    assert onednn.add_product_(out, left, right, 0.5) is out
    assert torch.allclose(out.double(), 1 + 0.5 * exact, atol=1e-4)
    for one, other in ((left, right), (right.t(), left.t())):  # more columns than rows, and the other way round
        assert torch.allclose(onednn.scaled_product(one, other, 0.5).double(), 0.5 * one.double() @ other.double(), atol=1e-4)
    assert len(calls) == (4 if size > 4 and has_avx512 else 0)


def test_small_frozen_weights_are_not_copied(monkeypatch):
    """They are as fast where they are."""
    weight, before = torch.randn(64, 96), len(onednn._PACKED)
    x, g = torch.randn(400, 96), torch.randn(400, 64)
    assert torch.allclose(onednn.times_transposed(x, weight), x @ weight.t(), atol=1e-4)
    assert torch.allclose(onednn.times(g, weight), g @ weight, atol=1e-4)
    assert len(onednn._PACKED) == before


def test_a_trained_head_is_not_packed(weight):
    """It changes with every update."""
    head = torch.nn.Linear(IN, OUT, bias=False)
    before = len(onednn._PACKED)
    logprobs, _ = chosen_logprobs(rows(IN).requires_grad_(), torch.arange(ROWS), Head(head.weight, head.bias))
    logprobs.sum().backward()
    assert len(onednn._PACKED) == before and head.weight.grad is not None


def test_an_engine_with_packed_weights_samples_what_the_trainer_scores(monkeypatch, tokenizer):
    """Everything is packed here, however small; the second version is not sampled from the first one's weights."""
    monkeypatch.setattr(onednn, "MIN_ELEMENTS", 1)
    model = random_model("qwen2")
    engine = TransformersEngine(model, tokenizer, max_kv_gb=None)
    policy = with_adapter(model)
    found = []
    for version in range(2):
        with torch.no_grad():
            for parameter in policy.parameters:
                parameter.add_(torch.randn_like(parameter), alpha=0.05)
        policy.version = version
        groups = collect(engine, policy.snapshot(), PROMPTS[:2], Sampling(4, 12))
        found.append(groups)
        for group in groups:
            for completion in group.completions:
                ids = (*group.prompt.token_ids, *completion.token_ids)
                (scored,) = policy.score([ids])
                assert torch.allclose(scored[-len(completion.token_ids) :], torch.tensor(completion.logprobs), atol=1e-4)
    assert found[0] != found[1]
    assert not any(getattr(module, "packed", None) is not None for module in engine.model.modules()), "kept while asleep"


class _Shapes(TorchDispatchMode):
    """The shapes that oneDNN computes with."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if function.overloadpacket.__name__ == "_linear_pointwise":
            self.seen.add((arguments[0].shape, arguments[1].shape))
        return function(*arguments, **(named or {}))


def test_few_shapes_however_many_token_counts(weight, monkeypatch):
    """oneDNN keeps generated code for each: a step's number of tokens is hardly ever the same twice."""
    monkeypatch.setattr(onednn, "_beats_mkl", lambda: True)
    up, with_bias = torch.randn(2 * IN, IN), torch.randn(OUT)
    with _Shapes() as shapes:
        for count in range(513, 1024, 37):
            x = torch.randn(count, IN)
            for found, exact in (
                (onednn.times_transposed(x, weight, with_bias), x @ weight.t() + with_bias),
                (onednn.product(x, up.t()), x @ up.t()),
                (onednn.scaled_product(x.t(), x[:, :64], 1.0), x.t() @ x[:, :64]),
            ):
                assert found.shape == exact.shape and torch.allclose(found, exact, rtol=1e-3, atol=1e-3)
    assert 3 * 4 < len(shapes.seen) <= 3 * 8


@pytest.mark.slow
def test_the_process_stops_growing(tmp_path):
    """Completions become longer in the first 200 steps."""
    sizes = ("budget.hours=2", "evaluation.problems=8")
    settings = itertools.chain.from_iterable(("--set", size) for size in sizes)
    command = [sys.executable, "-m", "microrl", "train", "quickstart", "--seed", "31", "--steps", "600", *settings]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    peaks = [row["memory/peak_gb"] for row in rows]
    assert len(peaks) == 600 and peaks[-1] <= 1.05 * peaks[200]
