"""Random models of four architectures, adapters on them, their own scores, and how far apart their gradients are."""

import copy
import functools

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from microrl.config import resolve
from microrl.models.load import use_own_parts
from microrl.policy.policy import Policy

SHAPE = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, eos_token_id=2, pad_token_id=0)  # fmt: skip
ARCHITECTURES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, sliding_window=8, query_pre_attn_scalar=16)),
}


@functools.cache
def _random_model(architecture):
    torch.manual_seed(0)
    model = ARCHITECTURES[architecture]().eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 0.15)
    return model, torch.get_rng_state()


def random_model(architecture):
    """A model of one's own, and torch's generator as it is after drawing one. Copying it takes a quarter of drawing it."""
    model, state = _random_model(architecture)
    torch.set_rng_state(state)
    return copy.deepcopy(model)


def small(architecture):
    """Weights of a size at which no activation blows up, and biases that are not 0."""
    model = random_model(architecture)
    generator = torch.Generator().manual_seed(4)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.mul_(0.5)
        elif name.endswith("bias"):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


class OnCard:
    """A model that says it is on a card."""

    def __init__(self, model):
        self._model, self.device = model, torch.device("cuda")

    def __getattr__(self, name):
        return getattr(self._model, name)


def with_adapter(model, *, teacher=None, **flags):
    """A policy on the model whose adapter is not zero."""
    config = resolve((), {"adapter.rank": 8, "adapter.alpha": 16.0, "sampling.max_completion_tokens": 16, **flags})
    policy = Policy(model, config, teacher=teacher)
    generator = torch.Generator().manual_seed(1)
    for pair in policy.snapshot().pairs.values():
        pair.B_OR.copy_(torch.randn(pair.B_OR.shape, generator=generator) * 0.2)
    return policy


def as_loaded(model):
    """The model with the parts that `load` puts in."""
    use_own_parts(model)
    return model


def own_logits(model, row):
    """At every token of a row's completion, by the model's own forward pass."""
    logits = model(input_ids=torch.tensor([[*row.prompt_ids, *row.completion_ids]]), use_cache=False).logits
    return logits[0, len(row.prompt_ids) - 1 : -1]


def own_logprobs(model, row):
    return own_logits(model, row).log_softmax(-1).gather(1, torch.tensor(row.completion_ids)[:, None])[:, 0]


def gradients(policy, batch, **attributes):
    """The gradient that the update would step along; the step itself is left out."""
    for name, value in attributes.items():
        setattr(policy, name, value)
    found = []
    policy.optimizer_step = lambda has_gradient, tally, progress: found.extend(p.grad.clone() for p in policy.parameters)
    policy.update(batch, 1e-3)
    policy.version -= 1
    return found


def relative_gap(a, b):
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in zip(a, b, strict=True) if y.abs().max() > 0)
