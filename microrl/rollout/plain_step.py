"""A decode step of Llama, Qwen2 and Qwen3 models, or a few tokens of each row, in a few torch calls a layer, on a CPU.

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
MAX_SCORES = 2**24
"""Attention scores of a layer that are held at once: 64 MB."""


class PlainStep:
    """The body of a model for the next tokens of each row. It is made anew for every batch, because weights are others then."""

    def __init__(self, model: PreTrainedModel, capacity: int) -> None:
        body: Any = model.base_model
        self._embedding, self._layers = body.embed_tokens.weight, [_Layer(layer) for layer in body.layers]
        self._norm = _Norm(body.norm)
        self._heads = model.config.num_attention_heads
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

    def holds(self, rows: int, tokens: int, length: int) -> bool:
        """Whether the attention scores of so many tokens of each row, over so many positions, are few enough."""
        return rows * tokens * length * self._heads <= MAX_SCORES

    def __call__(
        self, tokens_RT: torch.Tensor, positions_RT: torch.Tensor, mask_RL: torch.Tensor | None, cache: InPlaceCache
    ) -> torch.Tensor:
        """The last layer's states [R, D] of the last of these tokens, whose keys and values are appended to the cache.

        The mask says which of a row's L positions, these tokens' included, are no padding; None: all of them.
        """
        count = tokens_RT.shape[1]
        bias_RtL = None if mask_RL is None else torch.zeros(mask_RL.shape).masked_fill_(~mask_RL, -torch.inf)[:, None]
        if count > 1:
            length = cache.get_seq_length() + count
            bias_tL = torch.full((count, length), -torch.inf).triu_(length - count + 1)
            bias_RtL = bias_tL[None] if bias_RtL is None else bias_RtL + bias_tL
            bias_RtL.diagonal(length - count, 1, 2).zero_()  # padding, too, sees itself: nothing would be NaN
        x_ND = self._embedding[tokens_RT.flatten()]
        cos_N1S, sin_N1S = self._cos_C1S[positions_RT.flatten()], self._sin_C1S[positions_RT.flatten()]
        for number, layer in enumerate(self._layers):
            x_ND = layer(x_ND, cos_N1S, sin_N1S, bias_RtL, cache, number, count)
        return self._norm(x_ND[count - 1 :: count])


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
        x_ND: torch.Tensor,
        cos_N1S: torch.Tensor,
        sin_N1S: torch.Tensor,
        bias_RtL: torch.Tensor | None,
        cache: InPlaceCache,
        number: int,
        count: int,
    ) -> torch.Tensor:
        """N counts rows and `count` tokens (t) of each."""
        rows, (heads, shared) = len(x_ND) // count, self._heads
        all_NHS = self._qkv(self._before(x_ND)).view(len(x_ND), -1, self._size)
        both_NHS, value_NKS = all_NHS.split_with_sizes([heads + shared, shared], 1)
        if self._q_norm is not None and self._k_norm is not None:
            both_NHS = torch.cat([self._q_norm(both_NHS[:, :heads]), self._k_norm(both_NHS[:, heads:])], dim=1)
        query_NHS, key_NKS = _rotated(both_NHS, cos_N1S, sin_N1S).split_with_sizes([heads, shared], 1)
        key_RKtS, value_RKtS = (
            states_NKS.view(rows, count, shared, self._size).transpose(1, 2) for states_NKS in (key_NKS, value_NKS)
        )
        keys_RKLS, values_RKLS = cache.update(key_RKtS, value_RKtS, number)
        # The G heads that share a key stand in the place of queries: keys and values are read once for all of them. M counts
        # rows and shared heads, Q these heads and tokens. For one token a row this is faster than torch's fused attention.
        query_RKGtS = query_NHS.view(rows, count, shared, -1, self._size).permute(0, 2, 3, 1, 4)
        query_MQS = query_RKGtS.reshape(rows * shared, -1, self._size)
        keys_MSL = keys_RKLS.flatten(0, 1).transpose(1, 2)
        if bias_RtL is None or count > 1:
            scores_MQL = torch.bmm(query_MQS, keys_MSL).mul_(self._scaling)
            if bias_RtL is not None:
                scores_MQL.view(rows, heads, count, -1).add_(bias_RtL[:, None])
        else:
            bias_M1L = bias_RtL if shared == 1 else bias_RtL.repeat_interleave(shared, 0)
            scores_MQL = torch.baddbmm(bias_M1L, query_MQS, keys_MSL, alpha=self._scaling)
        seen_MQS = torch.bmm(scores_MQL.softmax(dim=-1), values_RKLS.flatten(0, 1))
        seen_NO = seen_MQS.view(rows, heads, count, self._size).transpose(1, 2).reshape(len(x_ND), -1)
        x_ND = x_ND + self._o(seen_NO)
        return self._down(self._gated(self._after(x_ND))).add_(x_ND)

    def _gated(self, x_ND: torch.Tensor) -> torch.Tensor:
        """silu(gate x) * up x."""
        if self._gate_up is None:
            return functional.silu(self._gate(x_ND)).mul_(self._up(x_ND))
        gate_NI, up_NI = self._gate_up(x_ND).chunk(2, 1)
        return functional.silu(gate_NI).mul_(up_NI)


def _rotated(x_NHS: torch.Tensor, cos_N1S: torch.Tensor, sin_N1S: torch.Tensor) -> torch.Tensor:
    """Rotary embedding: x cos + (the halves of x exchanged) sin, where the first half of sin is negated."""
    return torch.addcmul(x_NHS * cos_N1S, x_NHS.roll(x_NHS.shape[-1] // 2, -1), sin_N1S)
