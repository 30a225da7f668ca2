"""Forward passes that trainer and engines share: updates on top of the base model, the output head, log-probabilities."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from microrl.models.onednn import times_transposed
from microrl.models.tensors import merged, replaced, updated
from microrl.types import AdapterSnapshot, LowRank


def cache_argument(backbone: torch.nn.Module, cache: object) -> dict[str, object]:
    """A KV cache as the argument that this architecture's forward pass takes: `past_key_values`, or since transformers 5.24
    `cache` in those that have been renamed. (The old name then warns at every call.)"""
    return {_cache_name(type(backbone).forward): cache}


@lru_cache
def _cache_name(forward: Callable[..., Any]) -> str:
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


def lora_forward_hook(pair: LowRank, device: torch.device) -> Callable[[torch.nn.Module, tuple, torch.Tensor], torch.Tensor]:
    """A forward hook that adds scale * B A x, in fp32, to a linear layer's output."""
    B_OR, A_RI = (factor.to(device, torch.float32) for factor in (pair.B_OR, pair.A_RI))

    def hook(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
        return (output + (inputs[0].float() @ A_RI.t()) @ B_OR.t() * pair.scale).to(output.dtype)

    return hook


def merged_forward_hook(name: str, snapshot: AdapterSnapshot) -> Callable[[torch.nn.Module, tuple, torch.Tensor], torch.Tensor]:
    """A forward hook that computes a linear layer's output anew, with the weight that an engine gets merged."""

    def hook(module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> torch.Tensor:
        weight_OI = updated(f"{name}.weight", module.get_parameter("weight"), snapshot, for_engine=True)
        return torch.nn.functional.linear(inputs[0], weight_OI, getattr(module, "bias", None))

    return hook


@contextmanager
def adapted(model: PreTrainedModel, snapshot: AdapterSnapshot, *, merges: bool = False) -> Iterator[PreTrainedModel]:
    """The model with this snapshot: pairs run beside its weights, or with `merges` are merged into them, layer by layer; merged
    tensors take the base's place."""
    hooks = []
    try:
        for name, pair in snapshot.pairs.items():
            layer = model.get_submodule(name)
            hook = merged_forward_hook(name, snapshot) if merges else lora_forward_hook(pair, layer.weight.device)
            hooks.append(layer.register_forward_hook(hook))
        with replaced(model, dict(merged(model, snapshot))):
            yield model
    finally:
        for hook in hooks:
            hook.remove()


class LogitTransform(NamedTuple):
    """What a model makes of its head's output z: scale * cap * tanh(z / cap), or scale * z without a cap.

    Gemma 2 (arXiv 2408.00118, section 2) caps its logits, Cohere and Granite scale theirs.
    """

    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> LogitTransform | None:
        """As the model's configuration says; None where the head's output is the logits."""
        config = model.config.get_text_config()
        scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
        transform = cls(scale, getattr(config, "final_logit_softcapping", None))
        return None if transform == cls() else transform

    def __call__(self, head: torch.Tensor) -> torch.Tensor:
        """The logits, in a tensor of their own, in fp32 or the head's type where that is finer."""
        logits = head.to(torch.promote_types(head.dtype, torch.float32))
        return logits * self.scale if self.cap is None else (logits / self.cap).tanh() * (self.scale * self.cap)

    def slope(self, logits: torch.Tensor) -> torch.Tensor | float:
        """d logits / d z where the logits are these: scale * (1 - tanh^2)."""
        return self.scale if self.cap is None else self.scale * (1 - (logits / (self.scale * self.cap)).square())


class Head(NamedTuple):
    """What makes a model's logits of its last hidden states."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    temperature: float = 1.0
    """By which its logits are divided after `logits`."""
    fp32: bool = False
    """Whether products of narrow factors are summed and kept in fp32; else logits are rounded to the head's own type first."""
    transform: LogitTransform | None = None

    @classmethod
    def of(cls, model: PreTrainedModel, fp32: bool, temperature: float = 1.0) -> Head:
        head: Any = model.get_output_embeddings()
        return cls(head.weight, head.bias, temperature, fp32, LogitTransform.of(model))

    def to(self, dtype: torch.dtype) -> Head:
        return self._replace(weight=self.weight.to(dtype), bias=None if self.bias is None else self.bias.to(dtype))

    def logits(self, hidden_ND: torch.Tensor, *, frozen: bool = False) -> torch.Tensor:
        """[N, V], in fp32 or the hidden states' own type where that is finer.

        A `frozen` head is one that stays as it is, and may be packed (`microrl.models.onednn`).
        """
        if frozen and hidden_ND.dtype.itemsize >= 4:
            logits_NV = times_transposed(hidden_ND, self.weight, self.bias)
        else:
            logits_NV = _product(hidden_ND, self.weight, self.bias, self.fp32)
        logits_NV = logits_NV if self.transform is None else self.transform(logits_NV)
        return logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))


def _product(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, bias_V: torch.Tensor | None, fp32: bool) -> torch.Tensor:
    if not fp32 or hidden_ND.dtype.itemsize >= 4:
        return torch.nn.functional.linear(hidden_ND, weight_VD, bias_V)
    if hidden_ND.is_cuda:  # no float32 copy of the weights
        logits_NV = torch.mm(hidden_ND, weight_VD.t(), out_dtype=torch.float32)
        return logits_NV if bias_V is None else logits_NV + bias_V.float()
    return torch.nn.functional.linear(hidden_ND.float(), weight_VD.float(), None if bias_V is None else bias_V.float())


@torch.no_grad()
def sequence_logprobs(
    model: PreTrainedModel,
    sequences: Sequence[tuple[int, ...]],
    *,
    fp32_head: bool,
    precision: AbstractContextManager[Any] | None = None,
    dtype: torch.dtype | None = None,
) -> list[torch.Tensor]:
    """Log-probabilities (nats, fp32 or finer) of each sequence's second token to its last, at temperature 1; [length - 1] each.

    Sequences are padded on the right, where a causal model does not look. Weights that are wider than what is computed with
    come with the `precision` of the forward pass, and the `dtype` of the head.
    """
    width = max(map(len, sequences))
    ids_BT = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in sequences], device=model.device)
    with precision or nullcontext():
        hidden_BTD = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
    hidden_BTD = hidden_BTD.to(dtype or hidden_BTD.dtype)
    head, logprobs_by_sequence = Head.of(model, fp32_head).to(hidden_BTD.dtype), []
    for row, ids in enumerate(sequences):
        logprobs_TV = head.logits(hidden_BTD[row, : len(ids) - 1]).log_softmax(dim=-1)
        logprobs_by_sequence.append(logprobs_TV.gather(1, ids_BT[row, 1 : len(ids)].unsqueeze(1)).squeeze(1))
    return logprobs_by_sequence


def stop_tokens(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end a completion, as the model's generation settings and the tokenizer name them."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    stops = set(configured if isinstance(configured, list) else [configured])
    return {int(token) for token in (*stops, tokenizer.eos_token_id) if token is not None}


def kv_bytes_per_token(model: PreTrainedModel) -> int:
    """Bytes of one token's keys and values in all layers, in the model's own type."""
    config = model.config.get_text_config()
    layers = config.per_layer_config[:] if hasattr(config, "per_layer_config") else [config] * config.num_hidden_layers
    widths = [
        (getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads)
        * (getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads)
        for layer in layers  # Gemma 4's differ
    ]
    return 2 * sum(widths) * model.dtype.itemsize
