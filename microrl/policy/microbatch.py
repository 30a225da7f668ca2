"""Rows to micro-batches under a token budget, and the forward pass that reads each prompt once for its whole group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from transformers import DynamicCache, PreTrainedModel

from microrl.algorithm.batch import Row
from microrl.models import attention
from microrl.models.forward import cache_argument
from microrl.models.tensors import rows_at


class MicroBatch(NamedTuple):
    """Padded tensors of some rows. Prompts are padded on the left, completions on the right."""

    rows: tuple[int, ...]
    """Positions of these rows in the list they were planned from."""
    prompts_PL: torch.Tensor
    prompt_mask_PL: torch.Tensor
    has_padded_prompts: bool
    """Whether prompts differ in length, so that some are padded."""
    prompt_of_B: torch.Tensor
    completions_BT: torch.Tensor
    exists_BT: torch.Tensor
    """What is not padding: what attention sees."""
    mask_BT: torch.Tensor
    """What the policy drew: what is scored."""


def plan(rows: Sequence[Row], max_tokens: int, *, share_prompts: bool) -> list[tuple[int, ...]]:
    """Positions of rows that go together, each micro-batch costing at most `max_tokens` or being a single row.

    They are as few as possible, and then as even as possible, so that the largest takes no more memory than needed. The cost
    counts padding. With shared prompts rows of one prompt stay side by side, groups and rows sorted by length; without, rows are
    sorted by their whole length.
    """
    group_length: dict[tuple[int, ...], int] = {}
    for row in rows:
        group_length[row.prompt_ids] = max(group_length.get(row.prompt_ids, 0), len(row.completion_ids))

    def key(position: int) -> tuple:
        row = rows[position]
        own = len(row.completion_ids)
        if share_prompts:
            return (group_length[row.prompt_ids], row.prompt_ids, own, position)
        return (len(row.prompt_ids) + own, position)

    order = sorted(range(len(rows)), key=key)
    batches = _cut(rows, order, max_tokens, share_prompts)
    too_few, enough = 0, max_tokens
    while len(batches) > 1 and enough - too_few > 1:
        bound = (too_few + enough) // 2
        tried = _cut(rows, order, bound, share_prompts)
        if len(tried) > len(batches):
            too_few = bound
        else:
            enough, batches = bound, tried
    return batches


def _cut(rows: Sequence[Row], order: Sequence[int], max_tokens: int, share_prompts: bool) -> list[tuple[int, ...]]:
    """The rows in this order, cut into as few pieces of at most `max_tokens` as there can be."""
    batches: list[list[int]] = []
    prompts, widest_prompt, widest_completion = 0, 0, 0
    last: tuple[int, ...] | None = None
    for position in order:
        prompt, own = rows[position].prompt_ids, len(rows[position].completion_ids)
        is_new = not share_prompts or prompt != last
        longest = max(widest_prompt, len(prompt)), max(widest_completion, own)
        if not batches or (prompts + is_new) * longest[0] + (len(batches[-1]) + 1) * longest[1] > max_tokens:
            batches.append([])
            prompts, is_new, longest = 0, True, (len(prompt), own)
        batches[-1].append(position)
        prompts, (widest_prompt, widest_completion), last = prompts + is_new, longest, prompt
    return [tuple(batch) for batch in batches]


def pad(rows: Sequence[Row], positions: tuple[int, ...], device: torch.device, *, share_prompts: bool) -> MicroBatch:
    """The tensors of one planned micro-batch."""
    chosen = [rows[position] for position in positions]
    if share_prompts:
        prompts = list(dict.fromkeys(row.prompt_ids for row in chosen))
        index = {ids: number for number, ids in enumerate(prompts)}
        prompt_of = [index[row.prompt_ids] for row in chosen]
    else:
        prompts, prompt_of = [row.prompt_ids for row in chosen], list(range(len(chosen)))
    prompt_width = max(map(len, prompts))
    width = max(len(row.completion_ids) for row in chosen)
    prompts_PL = torch.tensor([[0] * (prompt_width - len(ids)) + list(ids) for ids in prompts], device=device)
    prompt_lengths_P = torch.tensor([len(ids) for ids in prompts], device=device)
    completions_BT = torch.tensor(
        [[*row.completion_ids, *[0] * (width - len(row.completion_ids))] for row in chosen], device=device
    )
    lengths_B = torch.tensor([len(row.completion_ids) for row in chosen], device=device)
    exists_BT = torch.arange(width, device=device) < lengths_B[:, None]
    return MicroBatch(
        rows=positions,
        prompts_PL=prompts_PL,
        prompt_mask_PL=torch.arange(prompt_width, device=device) >= prompt_width - prompt_lengths_P[:, None],
        has_padded_prompts=len(set(map(len, prompts))) > 1,
        prompt_of_B=torch.tensor(prompt_of, device=device),
        completions_BT=completions_BT,
        exists_BT=exists_BT,
        mask_BT=exists_BT if all(row.drawn is None for row in chosen) else drawn_mask(chosen, width).to(device),
    )


def drawn_mask(rows: Sequence[Row], width: int) -> torch.Tensor:
    """Which tokens the policy drew, [N, T]: T = `width`, at least as long as the longest completion. Padding is False."""
    drawn_NT = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        drawn_NT[number, : len(row.completion_ids)] = True if row.drawn is None else torch.tensor(row.drawn)
    return drawn_NT


def hidden_states(model: PreTrainedModel, batch: MicroBatch, *, share_prompts: bool) -> torch.Tensor:
    """The last layer's states that predict each completion token, [B, T, D]. Gradients flow through shared prompts too.

    Padding behind a completion needs no mask: a causal model never looks there. Only padding before a prompt does.
    """
    if not share_prompts:
        return _alone(model, batch)
    prompt_positions_PL = (batch.prompt_mask_PL.cumsum(1) - 1).clamp(min=0)
    fed_BT = batch.completions_BT[:, :-1]
    positions_BT = prompt_positions_PL[batch.prompt_of_B, -1:] + 1 + torch.arange(fed_BT.shape[1], device=fed_BT.device)
    if attention.takes_packing(model) and fed_BT.shape[1] > 0:
        packing = attention.Packing.of(
            batch.prompt_mask_PL, batch.prompt_of_B, fed_BT.shape[1], has_padding=batch.has_padded_prompts
        )
        prompt_PLD, completion_BTD = attention.last_states(
            model,
            torch.cat([batch.prompts_PL.flatten(), fed_BT.flatten()]),
            torch.cat([prompt_positions_PL.flatten(), positions_BT.flatten()]),
            packing,
        )
        return torch.cat([rows_at(prompt_PLD[:, -1:], batch.prompt_of_B), completion_BTD], dim=1)
    return _behind_a_cache(model, batch, prompt_positions_PL, positions_BT)


def _alone(model: PreTrainedModel, batch: MicroBatch) -> torch.Tensor:
    """The same for rows that have a prompt each, with all padding behind them: before them a recurrent state would run over it,
    and attention would need a mask."""
    lengths_B, (rows, width) = batch.prompt_mask_PL.sum(1), batch.completions_BT.shape
    ids_BL = torch.cat([batch.prompts_PL, batch.completions_BT[:, :-1]], dim=1)
    padding_B1 = (batch.prompts_PL.shape[1] - lengths_B)[:, None]
    places_BL = (padding_B1 + torch.arange(ids_BL.shape[1], device=ids_BL.device)) % ids_BL.shape[1]
    states_BLD = model.base_model(input_ids=ids_BL.gather(1, places_BL), use_cache=False).last_hidden_state
    predicting_BT = lengths_B[:, None] - 1 + torch.arange(width, device=ids_BL.device)
    return states_BLD.gather(1, predicting_BT[:, :, None].expand(rows, width, states_BLD.shape[2]))


def _behind_a_cache(
    model: PreTrainedModel, batch: MicroBatch, prompt_positions_PL: torch.Tensor, positions_BT: torch.Tensor
) -> torch.Tensor:
    """The same in two passes: prompts first, then completions that see their keys and values."""
    backbone, cache = model.base_model, DynamicCache()
    kept = cache_argument(backbone, cache)
    prompt = backbone(
        input_ids=batch.prompts_PL,
        attention_mask=batch.prompt_mask_PL if batch.has_padded_prompts else None,
        position_ids=prompt_positions_PL,
        use_cache=True,
        **kept,
    )
    first_B1D = rows_at(prompt.last_hidden_state[:, -1:], batch.prompt_of_B)
    fed_BT = batch.completions_BT[:, :-1]
    if fed_BT.shape[1] == 0:
        return first_B1D
    for layer in cache.layers:  # as `batch_select_indices` does, whose gradient varies
        if layer.get_seq_length() > 0:
            layer.keys, layer.values = rows_at(layer.keys, batch.prompt_of_B), rows_at(layer.values, batch.prompt_of_B)
    completion = backbone(input_ids=fed_BT, attention_mask=_mask(batch), position_ids=positions_BT, use_cache=True, **kept)
    return torch.cat([first_B1D, completion.last_hidden_state], dim=1)


def _mask(batch: MicroBatch) -> torch.Tensor | None:
    """[B, L + T - 1]: what is not padding; None where no prompt is padded."""
    if not batch.has_padded_prompts:
        return None
    return torch.cat([batch.prompt_mask_PL[batch.prompt_of_B], batch.exists_BT[:, :-1]], dim=1)


def stack(parts: Sequence[torch.Tensor], like_BT: torch.Tensor) -> torch.Tensor:
    """Rows of different lengths as one tensor of the shape and type of `like_BT`, padded with 0."""
    stacked_BT = torch.zeros(like_BT.shape, dtype=like_BT.dtype, device=like_BT.device)
    for number, part in enumerate(parts):
        stacked_BT[number, : len(part)] = part
    return stacked_BT


def at_drawn(values_N: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Values of the drawn tokens at their places, [B, T]; 0 elsewhere."""
    return torch.zeros(mask_BT.shape, dtype=values_N.dtype, device=mask_BT.device).masked_scatter(mask_BT, values_N)
