"""The decode step in plain torch calls: it is transformers' own, and taken where that has been shown."""

import pytest
import torch
from random_models import random_model
from samples import PROMPTS
from transformers import Qwen2Config, Qwen2ForCausalLM

from microrl.rollout.decoding import DecodingBatch
from microrl.rollout.plain_step import PlainStep

PLAIN = ("llama", "qwen2", "qwen3")


def decoded(model, prompts, plain, steps=5):
    """Logits of each of these steps, the rows' tokens being drawn from a generator."""
    batch = DecodingBatch(model, capacity=max(map(len, prompts)) + steps, fp32_head=False)
    assert (batch._plain_step is not None) is plain
    batch.gather(torch.zeros(0, dtype=torch.long), prompts, [2] * len(prompts))
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(steps):
        batch.step(torch.randint(3, 300, (2 * len(prompts),), generator=generator))
        found.append(batch.logits_RV)
    return torch.stack(found)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("architecture", PLAIN)
@torch.inference_mode()
def test_logits_are_transformers_own(architecture, padded, monkeypatch):
    model = random_model(architecture)
    for name, parameter in model.named_parameters():  # gains of 1 and biases of 0 would hide one that is left out
        if parameter.dim() == 1:
            parameter.copy_(
                torch.linspace(0.5, 1.5, len(parameter)) if "norm" in name else torch.linspace(-0.3, 0.3, len(parameter))
            )
    prompts = [prompt.token_ids for prompt in PROMPTS] if padded else [PROMPTS[0].token_ids, PROMPTS[0].token_ids[::-1]]
    found = decoded(model, prompts, plain=True)
    monkeypatch.setattr(PlainStep, "of", lambda model, capacity: None)
    own = decoded(model, prompts, plain=False)
    assert own.std() > 0.5
    assert torch.allclose(found, own, atol=1e-4)


def test_rows_that_leave_and_join_keep_their_logits():
    """After a change of the batch, rows of several lengths go on as they would alone."""
    model, prompts = random_model("qwen2"), [prompt.token_ids for prompt in PROMPTS]
    with torch.inference_mode():
        batch = DecodingBatch(model, capacity=24, fp32_head=False)
        batch.gather(torch.zeros(0, dtype=torch.long), prompts[:2], [1, 1])
        batch.step(torch.tensor([7, 8]))
        batch.gather(torch.tensor([1]), prompts[2:], [1])  # the second goes on, the third joins
        batch.step(torch.tensor([9, 10]))
        for row, ids in enumerate([(*prompts[1], 8, 9), (*prompts[2], 10)]):
            own_V = model(input_ids=torch.tensor([ids])).logits[0, -1]
            assert torch.allclose(batch.logits_RV[row], own_V, atol=1e-4)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("architecture", PLAIN)
@torch.inference_mode()
def test_what_follows_is_read_with_its_logits(architecture, padded, monkeypatch):
    """Several tokens behind rows that were kept: of different lengths, also one that is shorter than what is read."""
    model, none = random_model(architecture), torch.zeros(0, dtype=torch.long)
    prompts = [tuple(range(5, 5 + length)) for length in ((12, 3, 9) if padded else (9, 9, 9))]
    longer = [ids + tuple(range(40, 40 + more)) for ids, more in zip(prompts, (2, 1, 6) if padded else (4, 4, 4))]
    batch = DecodingBatch(model, capacity=24, fp32_head=False)
    batch.gather(none, prompts, [1] * 3)
    kept = batch.keep([0, 1, 2], [len(ids) - 1 for ids in prompts])
    monkeypatch.setattr(DecodingBatch, "_forward", None)  # all of it is the plain step's
    batch.gather(none, longer, [1] * 3, kept)
    batch.step(torch.tensor([7, 8, 9]))
    for row, (ids, drawn) in enumerate(zip(longer, (7, 8, 9), strict=True)):
        own_V = model(input_ids=torch.tensor([[*ids, drawn]])).logits[0, -1]
        assert torch.allclose(batch.logits_RV[row], own_V, atol=1e-4)


@pytest.mark.parametrize("change", ["gemma3", "bfloat16", "hook", "rope", "subclass", "activation", "sliding"])
def test_what_it_does_not_compute_is_left_to_transformers(change):
    model = random_model("gemma3" if change == "gemma3" else "qwen2")
    if change != "gemma3":
        assert PlainStep.of(model, 8) is not None
    if change == "bfloat16":
        model = model.to(torch.bfloat16)
    elif change == "hook":
        model.model.layers[1].mlp.up_proj.register_forward_hook(lambda module, inputs, output: output + 1)
    elif change == "rope":
        model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic"}
    elif change == "subclass":
        model.model.__class__ = type("OtherModel", (type(model.model),), {})
    elif change == "activation":
        model.config.hidden_act = "gelu"
    elif change == "sliding":
        model = Qwen2ForCausalLM(Qwen2Config(
            vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, use_sliding_window=True, sliding_window=4, max_window_layers=1,
        ))  # fmt: skip
    assert PlainStep.of(model, 8) is None
