"""The bytes that an update's elementwise operations move: counted op by op, bounded, and as the plan's roofline has them."""

import pytest
import torch
from peft.tuners.lora.layer import Linear as PeftLinear
from traffic import Traffic
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from microrl.adapters.adapter import tuned
from microrl.adapters.attach import attach
from microrl.algorithm.batch import Row
from microrl.config import resolve
from microrl.models import onednn
from microrl.models.attention import use_lower_right
from microrl.models.forward import Head
from microrl.plan import Shape, devices, efficiency, roofline
from microrl.plan.workload import Workload
from microrl.policy.logprobs import chosen_logprobs
from microrl.policy.microbatch import hidden_states, pad

WIDE = dict(hidden_size=1536, intermediate_size=8960, num_attention_heads=12, num_key_value_heads=2)
"""Qwen2.5-1.5B's."""
SMALL = dict(hidden_size=96, intermediate_size=224, num_attention_heads=6, num_key_value_heads=2, head_dim=16)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """A CPU's own way to multiply moves more, in float32."""
    monkeypatch.setattr(onednn, "is_float32_on_cpu", lambda tensor: False)


def network(cls, dtype, layers, **sizes):
    """A network of constant weights: what is moved depends on no number."""
    config = cls(**sizes, num_hidden_layers=layers, vocab_size=64, tie_word_embeddings=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model = model.to_empty(device="cpu").eval().requires_grad_(False)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(0.01)
    use_lower_right(model)
    return model


def counted(attached):
    """(bytes for each further token, bytes of a micro-batch however few its tokens), with completions of one prompt."""
    found = []
    for completion in (2, 8):
        rows = [Row(tuple(range(2, 18)), (5,) * completion, (0.0,) * completion, 1.0, True, 0)] * 3
        batch = pad(rows, (0, 1, 2), torch.device("cpu"), share_prompts=True)
        attached.model.zero_grad(set_to_none=True)
        with Traffic() as traffic:
            hidden_states(attached.model, batch, share_prompts=True).float().sum().backward()
        found.append((16 + 3 * completion, traffic.elementwise_bytes))
    (few, less), (many, more) = found
    a_token = (more - less) / (many - few)
    return a_token, less - a_token * few


def workload(model, rank):
    config = resolve((), {"adapter.rank": rank, "model.dtype": str(model.dtype).removeprefix("torch.")})
    return Workload.from_config(config, Shape.from_config(model.config.to_dict()), devices.DEVICES["a40"])


@pytest.mark.slow  # a processor without AVX-512 takes more than a minute in bfloat16
def test_at_the_papers_width_and_rank():
    """Rank 256 in bfloat16, in a micro-batch of 4,096 tokens. PEFT's float32 path moves 2.2 MB a token and layer."""
    layers, tokens = 1, 4096
    model = network(Qwen2Config, torch.bfloat16, layers, **WIDE)
    work = workload(model, rank=256)
    attached = attach(model, work.config.adapter, seed=0)
    found = {}
    for whose in ("ours", "PEFT"):
        found[whose] = counted(attached)
        for layer in tuned(model).values():
            layer.__class__ = PeftLinear
    kb = {whose: (a_token + a_pass / tokens) / layers / 1e3 for whose, (a_token, a_pass) in found.items()}
    print(kb)
    assert kb["ours"] <= 1030 and kb["PEFT"] > 2000
    assert efficiency.MASTER_TOUCHES * work.trained == pytest.approx(found["ours"][1], rel=0.1)


@pytest.mark.cases(fast=1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("cls", "sizes"), [(Qwen2Config, SMALL), (Qwen3Config, SMALL), pytest.param(Qwen2Config, WIDE, marks=pytest.mark.slow)]
)
def test_the_roofline_says_what_is_counted(cls, sizes, dtype):
    """What a third layer moves for a further token."""
    moved = []
    for layers in (2, 3):
        model = network(cls, dtype, layers, **sizes)
        work = workload(model, rank=8)
        moved.append(counted(attach(model, work.config.adapter, seed=0))[0])
    assert roofline.elementwise_bytes_per_token(work) == pytest.approx(moved[1] - moved[0], rel=0.05)


def test_a_slope_in_16_bits_is_no_copy():
    """Of a chunk's logits one conversion is made, to float32 as they come from the head: 6 bytes a logit."""
    rows, vocab = 8, 4096
    head = torch.nn.Linear(16, vocab, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    hidden_ND = torch.randn(rows, 16, dtype=torch.bfloat16, requires_grad=True)
    with Traffic() as traffic:
        chosen_logprobs(hidden_ND, torch.arange(rows), Head(head.weight, head.bias))
    assert traffic.by_op["_to_copy"].bytes == pytest.approx(6 * rows * vocab, rel=0.05)
