"""Causal attention of completions to the prompt that they share.

There are fewer queries than keys, and a query sees all keys up to its own: a lower-right triangle. transformers builds it as a
mask, for which keys and values are repeated for each group of query heads, and which a backward pass keeps for every layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import torch
from torch.nn.attention.bias import causal_lower_right
from transformers import AttentionInterface, AttentionMaskInterface, LlamaModel, PreTrainedModel, Qwen2Model, Qwen3Model
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, sdpa_mask

from microrl.limits import shares_keys
from microrl.models.tensors import rows_at

NAME = "sdpa_lower_right"
"""Of this implementation, beside transformers' own "sdpa"."""
PLAIN_DECODERS = (LlamaModel, Qwen2Model, Qwen3Model)
"""Models whose tokens interact in attention alone. Of these exact types: a subclass may compute something else."""


class Packing(NamedTuple):
    """Sequences packed into one long row: P prompts of L tokens, then B completions of T.

    Everything but attention is computed token by token, so that one forward pass serves prompts and completions.
    """

    prompts_PL: tuple[int, int]
    completions_BT: tuple[int, int]
    prompt_of_B: torch.Tensor
    prompt_mask_P1LL: torch.Tensor | None = None
    """Which keys a query sees, where prompts are padded on the left; None: all up to its own."""
    mask_B1TK: torch.Tensor | None = None
    """The same for completions, whose K keys are the prompt's and their own."""

    @classmethod
    def of(cls, prompt_mask_PL: torch.Tensor, prompt_of_B: torch.Tensor, length: int, *, has_padding: bool) -> Packing:
        """Of completions of this length, to prompts of which the mask [P, L] says what is not padding."""
        (prompts, width), device = prompt_mask_PL.shape, prompt_mask_PL.device
        packing = cls((prompts, width), (len(prompt_of_B), length), prompt_of_B)
        if not has_padding:
            return packing
        causal_KK = torch.ones(width + length, width + length, dtype=torch.bool, device=device).tril_()
        own_BT = torch.ones(len(prompt_of_B), length, dtype=torch.bool, device=device)
        is_token_BK = torch.cat([prompt_mask_PL[prompt_of_B], own_BT], dim=1)
        # Padding attends to itself: attention over no keys is NaN.
        itself_LL = torch.eye(width, dtype=torch.bool, device=device)
        return packing._replace(
            prompt_mask_P1LL=(causal_KK[:width, :width] & prompt_mask_PL[:, None, None]) | itself_LL,
            mask_B1TK=causal_KK[width:] & is_token_BK[:, None, None],
        )


def takes_packing(model: PreTrainedModel) -> bool:
    """Whether the model's body takes a `Packing`, as the argument `packing`."""
    return model.config._attn_implementation == NAME and is_plain_decoder(model)


def is_plain_decoder(model: PreTrainedModel) -> bool:
    """Whether tokens interact in attention alone, and every layer's attention reaches back to the first token."""
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    return type(model.base_model) in PLAIN_DECODERS and kinds == {"full_attention"}


def last_states(
    model: PreTrainedModel, ids_N: torch.Tensor, positions_N: torch.Tensor, packing: Packing
) -> tuple[torch.Tensor, torch.Tensor]:
    """The last layer's states of the packed prompts [P, L, D] and completions [B, T, D]."""
    # transformers passes a mask with four dimensions on as it is. `attend` does not read this one.
    unread = torch.empty(1, 1, 0, 0, dtype=torch.bool, device=ids_N.device)
    states_ND = model.base_model(
        input_ids=ids_N[None], position_ids=positions_N[None], attention_mask=unread, use_cache=False, packing=packing
    ).last_hidden_state[0]
    prompts_MD, completions_MD = states_ND.split([math.prod(packing.prompts_PL), math.prod(packing.completions_BT)])
    return prompts_MD.unflatten(0, packing.prompts_PL), completions_MD.unflatten(0, packing.completions_BT)


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
    packing: Packing | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of queries [B, H, Q, D] on keys and values [B, K, L, D]; returns [B, Q, H, D]. transformers' own with a mask, and
    for as many queries as keys. With `packing`, B is 1: the row of all prompts and completions."""
    if packing is not None:
        return _attend_packed(module, query, key, value, packing, dropout=dropout, scaling=scaling, **others), None
    queries, keys = query.shape[2], key.shape[2]
    if queries == 1 and query.shape[1] != key.shape[1] and (attention_mask is None or attention_mask.shape[1] == 1):
        # The heads that share a key stand in the place of queries: keys and values are read once for all of them.
        shared_BKGD = query.view(query.shape[0], key.shape[1], -1, query.shape[3])
        out = torch.nn.functional.scaled_dot_product_attention(
            shared_BKGD, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling
        )
        return out.reshape(query.shape[0], 1, query.shape[1], -1), None
    groups = getattr(module, "num_key_value_groups", 1)
    if groups > 1 and attention_mask is None and not takes_groups(query):
        key, value, groups = repeat_kv(key, groups), repeat_kv(value, groups), 1
        module = cast("torch.nn.Module", SimpleNamespace(is_causal=getattr(module, "is_causal", True)))  # without groups
    if attention_mask is not None or queries in (1, keys):
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, scaling, **others)
    # A CPU has no kernel for the triangle: all layers share one mask for it.
    where = _triangle(queries, keys, query.dtype) if query.device.type == "cpu" else causal_lower_right(queries, keys)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=where, dropout_p=dropout, scale=scaling, enable_gqa=groups > 1
    )
    return out.transpose(1, 2).contiguous(), None


def takes_groups(query: torch.Tensor) -> bool:
    """Whether this device has a kernel for these queries that reads a key once for all heads that share it, and stores no scores.

    Where it has not, torch falls back on the one that stores all of them (transformers#48633); with keys and values repeated for
    each head it takes its memory-efficient kernel.
    """
    return query.device.type == "cpu" or shares_keys(query.dtype.itemsize, torch.cuda.get_device_capability(query.device))


def _attend_packed(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packing: Packing, **others: Any
) -> torch.Tensor:
    """Prompts attend to themselves, completions to their prompt and themselves. Of [1, H, N, D]; returns [1, N, H, D]."""
    sizes = (packing.prompts_PL, packing.completions_BT)
    (query_PHLD, query_BHTD), (key_PHLD, key_BHTD), (value_PHLD, value_BHTD) = [
        [
            part_HND.unflatten(1, size).transpose(0, 1)
            for part_HND, size in zip(x[0].split([math.prod(size) for size in sizes], dim=1), sizes, strict=True)
        ]
        for x in (query, key, value)
    ]
    out_PLHD, _ = attend(module, query_PHLD, key_PHLD, value_PHLD, packing.prompt_mask_P1LL, **others)
    keys_BHKD = torch.cat([rows_at(key_PHLD, packing.prompt_of_B), key_BHTD], dim=2)
    values_BHKD = torch.cat([rows_at(value_PHLD, packing.prompt_of_B), value_BHTD], dim=2)
    out_BTHD, _ = attend(module, query_BHTD, keys_BHKD, values_BHKD, packing.mask_B1TK, **others)
    return torch.cat([out_PLHD.flatten(0, 1), out_BTHD.flatten(0, 1)])[None]


@lru_cache(maxsize=1)
def _triangle(queries: int, keys: int, dtype: torch.dtype) -> torch.Tensor:
    """[Q, L]: 0 where a query sees a key, else -inf."""
    return torch.full((queries, keys), float("-inf"), dtype=dtype).triu_(keys - queries + 1)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, mask)
