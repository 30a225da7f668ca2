"""Causal attention without a mask tensor, where completions are read behind the cache of their prompt.

There are fewer queries than keys, and a query sees all keys up to its own: a lower-right triangle. transformers builds it as a
mask, for which keys and values are repeated for each group of query heads, and which a backward pass keeps for every layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

NAME = "sdpa_lower_right"
"""Of this implementation, beside transformers' own "sdpa"."""


def use_lower_right(model: PreTrainedModel) -> None:
    """Have the model attend as here, where it uses SDPA by transformers' interface; others stay as they are."""
    if model.config._attn_implementation == "sdpa" and model._supports_attention_backend:
        model.set_attn_implementation(NAME)


def mask(
    *,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **others: Any,
) -> torch.Tensor | None:
    """None where plain causality up to the last key is all there is; else transformers' mask. Arguments as of `sdpa_mask`."""
    plain = mask_function is causal_mask_function and attention_mask is None and local_size is None and allow_is_causal_skip
    if plain and kv_offset == 0 and q_offset + q_length == kv_length:
        return None
    return sdpa_mask(
        q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset, mask_function=mask_function,
        attention_mask=attention_mask, local_size=local_size, allow_is_causal_skip=allow_is_causal_skip, **others,
    )  # fmt: skip


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of queries [B, H, Q, D] on keys and values [B, K, L, D]; returns [B, Q, H, D]. transformers' own with a mask, and
    for as many queries as keys."""
    queries, keys = query.shape[2], key.shape[2]
    if queries == 1 and query.shape[1] != key.shape[1] and (attention_mask is None or attention_mask.shape[1] == 1):
        # The heads that share a key stand in the place of queries: keys and values are read once for all of them.
        shared_BKGD = query.view(query.shape[0], key.shape[1], -1, query.shape[3])
        out = torch.nn.functional.scaled_dot_product_attention(
            shared_BKGD, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
        return out.reshape(query.shape[0], 1, query.shape[1], -1), None
    if attention_mask is not None or queries in (1, keys):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)
    groups = getattr(module, "num_key_value_groups", 1)
    # CUDA's kernels for float32 have no grouped queries, and would leave it to one that holds all scores.
    grouped = groups > 1 and (query.device.type == "cpu" or query.dtype.itemsize == 2)
    if groups > 1 and not grouped:
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    # A CPU has no kernel for the triangle: all layers share one mask for it.
    where = _triangle(queries, keys, query.dtype) if query.device.type == "cpu" else causal_lower_right(queries, keys)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=where, dropout_p=dropout, scale=scaling, enable_gqa=grouped
    )
    return out.transpose(1, 2).contiguous(), None


@lru_cache(maxsize=1)
def _triangle(queries: int, keys: int, dtype: torch.dtype) -> torch.Tensor:
    """[Q, L]: 0 where a query sees a key, else -inf."""
    return torch.full((queries, keys), float("-inf"), dtype=dtype).triu_(keys - queries + 1)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask)
