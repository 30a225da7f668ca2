"""Activations that are computed again: the same numbers from less memory, whatever a model calls its dropout."""

import pytest
import torch
from architectures import DROPOUT, tiny

from microrl.errors import UserError
from microrl.policy.activations import recompute

IDS = torch.arange(5, 37).reshape(2, 16)
TYPES = ["llama", "qwen2", "qwen3", "seed_oss", "opt", "xglm", "biogpt", "gpt_bigcode", "bloom", "falcon", "persimmon",
         "gpt_neox", "gpt2", "phi", "gptj", "starcoder2"]  # fmt: skip


def forward_and_backward(model):
    """The logits, the gradient of the embedding table, and the bytes that the forward pass keeps for the backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    weight = model.get_input_embeddings().weight.requires_grad_()
    of_model = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(input_ids=IDS, use_cache=False).logits
    (gradient,) = torch.autograd.grad(logits.log_softmax(-1)[:, :-1].gather(2, IDS[:, 1:, None]).mean(), weight)
    return logits.detach(), gradient, sum(size for pointer, size in kept.items() if pointer not in of_model)


@pytest.mark.cases(fast=4)
@pytest.mark.parametrize("model_type", TYPES)
def test_recomputing_changes_nothing_but_the_memory(model_type):
    """With dropout at 0.5 everywhere: a single dropout that is on would show in every logit."""
    model = tiny(model_type, dropout=DROPOUT)
    settings = model.config.to_dict()
    assert model_type in ("llama", "qwen2", "qwen3") or DROPOUT in settings.values() or model_type == "persimmon", settings
    logits, gradient, kept = forward_and_backward(model)
    recompute(model)
    again, same, less = forward_and_backward(model)
    assert (again - logits).abs().max() == 0
    assert gradient.norm() > 0 and torch.allclose(same, gradient, rtol=1e-4, atol=1e-7)
    assert less < kept / 3


def test_a_model_that_cannot_be_recomputed_is_refused():
    with pytest.raises(UserError, match="ctrl"):
        recompute(tiny("ctrl"))
