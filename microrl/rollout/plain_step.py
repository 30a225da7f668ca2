"""A decode step of Llama, Qwen2 and Qwen3 models in a few torch calls a layer, on a CPU.

transformers' modules spend half a millisecond of Python on a layer and token, which for 32 rows of a small model is more than
the arithmetic. This is the same arithmetic; other architectures, GPUs and 16-bit types keep transformers'.
`microrl.policy.architecture` compares it with the model's own logits before a run begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from microrl.models import onednn
from microrl.models.attention import is_plain_decoder
from microrl.models.norms import rms_norm
from microrl.rollout.kv_cache import InPlaceCache

FUSED = ("q_proj", "k_proj", "v_proj")
"""Layers that are one product here. Nothing else packs them."""
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""Kinds of rotary embeddings whose frequencies depend on the length: no table of positions holds them."""


class PlainStep:
    """The body of a model for one token a row. It is made anew for every batch, because weights are others then."""

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        body: Any = model.base_model
        self._embedding, self._layers = body.embed_tokens.weight, [_Layer(layer) for layer in body.layers]
        self._norm = _Norm(body.norm)
        positions_1C = torch.arange(capacity)[None]
        cos_1CS, sin_1CS = body.rotary_emb(self._embedding[:1, None], positions_1C)
        half = sin_1CS.shape[-1] // 2
        # With the first half of sin negated, rotating a half is only an exchange of halves.
        self._cos_C1S = cos_1CS[0][:, None]
        self._sin_C1S = torch.cat([-sin_1CS[0, :, :half], sin_1CS[0, :, half:]], dim=-1)[:, None]

    @classmethod
    def of(cls, model: PreTrainedModel, capacity: int) -> PlainStep | None:
        """The step of this model, with up to `capacity` tokens a row; None where it is computed by transformers."""
        hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.base_model.modules())
        return cls(model, capacity) if cls.fits(model) and not hooked else None

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether the model's steps are computed here, as long as there are no hooks."""
        body, config = model.base_model, model.config
        return (
            is_plain_decoder(model)
            and model.device.type == "cpu"
            and all(parameter.dtype is torch.float32 for parameter in body.parameters())
            and config.hidden_act == "silu"
            and config.rope_parameters["rope_type"] not in LENGTH_DEPENDENT_ROPE
        )

    def __call__(
        self, tokens_R: torch.Tensor, positions_R: torch.Tensor, mask_RL: torch.Tensor | None, cache: InPlaceCache
    ) -> torch.Tensor:
        """The last layer's states [R, D] of these tokens, whose keys and values are appended to the cache.

        The mask says which of a row's L positions, this token's included, are seen; None: all of them.
        """
        bias_RL = None if mask_RL is None else torch.zeros(mask_RL.shape).masked_fill_(~mask_RL, -torch.inf)
        x_RD = self._embedding[tokens_R]
        cos_R1S, sin_R1S = self._cos_C1S[positions_R], self._sin_C1S[positions_R]
        for number, layer in enumerate(self._layers):
            x_RD = layer(x_RD, cos_R1S, sin_R1S, bias_RL, cache, number)
        return self._norm(x_RD)


class _Norm:
    def __init__(self, module: Any) -> None:
        self._weight, self._eps = module.weight, module.variance_epsilon

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self._weight, self._eps)


def _together(layers: Sequence[Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Linear layers of the same input, as one product."""
    weight_OI = torch.cat([layer.weight for layer in layers])
    bias_O = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    packed = None if all(map(_is_small, layers)) else onednn.pack(weight_OI)
    if packed is None:
        return partial(functional.linear, weight=weight_OI, bias=bias_O)
    return partial(onednn.linear, packed=packed, bias_O=bias_O)


def _is_small(layer: Any) -> bool:
    """Whether the layer is too small to be packed. A call then takes longer than its arithmetic."""
    return layer.weight.numel() < onednn.MIN_ELEMENTS


class _Layer:
    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._after = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._qkv = _together([getattr(attention, name) for name in FUSED])
        # Called without transformers' and torch's wrappers around a module's `forward`: there are no hooks.
        self._o, self._down = attention.o_proj.forward, mlp.down_proj.forward
        self._gate, self._up = mlp.gate_proj.forward, mlp.up_proj.forward
        # Large ones are packed already, and a copy of both would take as much memory again.
        self._gate_up = _together([mlp.gate_proj, mlp.up_proj]) if _is_small(mlp.gate_proj) else None
        self._q_norm: _Norm | None = _Norm(attention.q_norm) if hasattr(attention, "q_norm") else None
        self._k_norm: _Norm | None = _Norm(attention.k_norm) if hasattr(attention, "k_norm") else None
        self._size, self._scaling = attention.head_dim, attention.scaling
        self._heads = attention.q_proj.out_features // self._size, attention.k_proj.out_features // self._size

    def __call__(
        self,
        x_RD: torch.Tensor,
        cos_R1S: torch.Tensor,
        sin_R1S: torch.Tensor,
        bias_RL: torch.Tensor | None,
        cache: InPlaceCache,
        number: int,
    ) -> torch.Tensor:
        rows, (heads, shared) = len(x_RD), self._heads
        all_RHS = self._qkv(self._before(x_RD)).view(rows, -1, self._size)
        both_RHS, value_RKS = all_RHS.split_with_sizes([heads + shared, shared], 1)
        if self._q_norm is not None and self._k_norm is not None:
            both_RHS = torch.cat([self._q_norm(both_RHS[:, :heads]), self._k_norm(both_RHS[:, heads:])], dim=1)
        query_RHS, key_RKS = _rotated(both_RHS, cos_R1S, sin_R1S).split_with_sizes([heads, shared], 1)
        keys_RKLS, values_RKLS = cache.update(key_RKS.unsqueeze(2), value_RKS.unsqueeze(2), number)
        # The G heads that share a key stand in the place of queries: keys and values are read once for all of them. N counts
        # rows and shared heads. For one token a row this is faster than torch's fused attention.
        query_NGS = query_RHS.reshape(rows * shared, -1, self._size)
        keys_NSL = keys_RKLS.flatten(0, 1).transpose(1, 2)
        if bias_RL is None:
            scores_NGL = torch.bmm(query_NGS, keys_NSL).mul_(self._scaling)
        else:
            bias_N1L = bias_RL if shared == 1 else bias_RL.repeat_interleave(shared, 0)
            scores_NGL = torch.baddbmm(bias_N1L.unsqueeze(1), query_NGS, keys_NSL, alpha=self._scaling)
        seen_NGS = torch.bmm(scores_NGL.softmax(dim=-1), values_RKLS.flatten(0, 1))
        x_RD = x_RD + self._o(seen_NGS.view(rows, -1))
        return self._down(self._gated(self._after(x_RD))).add_(x_RD)

    def _gated(self, x_RD: torch.Tensor) -> torch.Tensor:
        """silu(gate x) * up x."""
        if self._gate_up is None:
            return functional.silu(self._gate(x_RD)).mul_(self._up(x_RD))
        gate_RI, up_RI = self._gate_up(x_RD).chunk(2, 1)
        return functional.silu(gate_RI).mul_(up_RI)


def _rotated(x_RHS: torch.Tensor, cos_R1S: torch.Tensor, sin_R1S: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: x cos + (the halves of x exchanged) sin, where the first half of sin is negated."""
    return torch.addcmul(x_RHS * cos_R1S, x_RHS.roll(x_RHS.shape[-1] // 2, -1), sin_R1S)
