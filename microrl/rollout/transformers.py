"""The `transformers` engine: batched decoding of groups in this process, made for CPUs and small models.

Prompts are prefilled once and their cache repeated for the group. Rows that are finished leave the batch. In fp32
the adapter is folded into a copy of the targeted weights: decoding runs the base's own operations and pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from microrl import clock
from microrl.errors import MachineFailure, in_a_new_run
from microrl.models import onednn
from microrl.models.forward import Bend, adapted, kv_bytes_per_token, project, stop_tokens
from microrl.models.tensors import merge_lora, merged, replaced, weight_sharing_copy
from microrl.rollout.engine import SyncReport
from microrl.rollout.kv_cache import in_place_cache
from microrl.types import AdapterSnapshot, Completion, Group, Prompt, Sampling

CPU_KV_BYTES = 4e9
COMPACT_AT = 1 / 8
"""Share of finished rows at which the batch is compacted: below it, moving the cache costs more than it saves."""


class TransformersEngine:
    """Shares every weight with `model` but the folded ones, which exist only while it is awake."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel, tokenizer: Any, *, max_kv_gb: float | None, fp32_head: bool = False) -> None:
        self.report = SyncReport()
        self.check_deadline: Callable[[], None] = lambda: None
        self._fp32_head = fp32_head
        self._model = weight_sharing_copy(model)
        if model.device.type == "cpu":
            for module in self._model.modules():
                if type(module) is torch.nn.Linear:
                    module.__class__ = _DecodingLinear
        self._tokenizer = tokenizer
        self._max_kv_bytes = _kv_room(model) if max_kv_gb is None else max_kv_gb * 1e9
        self._stops = torch.tensor(sorted(stop_tokens(model, tokenizer)), device=model.device)
        self._wave = (2, self._max_kv_bytes / 2)
        """Groups that were last decoded together, and the bytes of one's cache. Before there were any: a guess."""

    @contextmanager
    def awake(self, snapshot: AdapterSnapshot, *, is_training: bool = False) -> Iterator[_Sampler]:
        """Take over the snapshot's update, and let it go on exit. The trainer's weights are never written.

        In fp32 a pair is folded into copies of the weights. A narrower type would round a small update away, so there it runs
        beside them, in fp32 as the trainer's does.
        """
        began = clock.now_s()
        narrow = {name: pair for name, pair in snapshot.pairs.items() if not self._folds(name)}
        wide = {name: pair for name, pair in snapshot.pairs.items() if name not in narrow}
        tensors = dict(merged(self._model, snapshot))
        with ExitStack() as until_asleep:
            for name, pair in wide.items():
                layer = self._model.get_submodule(name)
                folded_OI = merge_lora(layer.weight, pair)
                if not (isinstance(layer, _DecodingLinear) and layer.pack(folded_OI, until_asleep)):
                    tensors[f"{name}.weight"] = torch.nn.Parameter(folded_OI, requires_grad=False)
            until_asleep.enter_context(replaced(self._model, tensors))
            for layer in self._model.modules():
                if isinstance(layer, _DecodingLinear) and layer.packed is None:
                    layer.pack(layer.weight, until_asleep)
            until_asleep.enter_context(adapted(self._model, AdapterSnapshot(snapshot.version, narrow)))
            self.report = SyncReport(push_s=clock.now_s() - began)
            yield _Sampler(self, snapshot.version)

    def _folds(self, name: str) -> bool:
        weight = self._model.get_submodule(name).weight
        return weight.is_floating_point() and weight.dtype.itemsize >= 4

    @torch.inference_mode()
    def score(self, prompts: Sequence[tuple[int, ...]], completions: Sequence[Sequence[tuple[int, ...]]]) -> list[torch.Tensor]:
        """What decoding finds these completions' tokens to be worth: log-probabilities in nats at temperature 1, [T] each.

        As many completions for each prompt, in the prompts' order; it works asleep, on the base's weights.
        """
        rows = [ids for group in completions for ids in group]
        width = max(map(len, rows))
        fed_RT = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in rows], device=self._model.device)
        wave = _Wave(self._model, prompts, len(completions[0]), width, self._fp32_head)
        found = []
        for t in range(width):
            found.append(wave.logits_RV.float().log_softmax(dim=-1).gather(1, fed_RT[:, t : t + 1]))
            if t < width - 1:
                wave.step(fed_RT[:, t])
        return [logprobs_T[: len(ids)] for logprobs_T, ids in zip(torch.cat(found, dim=1), rows, strict=True)]

    def shrink(self) -> float:
        """See `Engine.shrink`: half as many groups decode together."""
        groups, group_bytes = self._wave
        if groups <= 1:
            raise MachineFailure(
                "out of memory while sampling, with one group at a time",
                in_a_new_run("a lower --set sampling.group_size=N or --set sampling.max_completion_tokens=N"),
            )
        self._wave = (groups // 2, group_bytes)
        self._max_kv_bytes = groups // 2 * group_bytes
        return (self._max_kv_bytes + 1) / 1e9  # read back it must hold as many groups

    def close(self, *, at_exit: bool = False) -> None:
        """Nothing to give back: the weights are the trainer's."""


class _DecodingLinear(torch.nn.Linear):
    """A linear layer for the few rows of a decode step on a CPU: packed while the engine is awake, where that is faster.

    What is too large for that is computed the other way round, (W x^T)^T: MKL then rearranges the small factor and not the
    weights.
    """

    packed: torch.Tensor | None = None

    def pack(self, weight_OI: torch.Tensor, until: ExitStack) -> bool:
        """Compute with a packed copy of these weights until then; False where they are not packed."""
        self.packed = onednn.pack(weight_OI)
        until.callback(setattr, self, "packed", None)
        return self.packed is not None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return onednn.linear(input, self.packed, self.bias)
        if self.weight.numel() < onednn.MIN_ELEMENTS:
            return super().forward(input)
        rows_NI = input.reshape(-1, self.in_features)
        out_NO = (self.weight @ rows_NI.t()).t().contiguous()
        if self.bias is not None:
            out_NO += self.bias
        return out_NO.view(*input.shape[:-1], self.out_features)


class _Sampler:
    def __init__(self, engine: TransformersEngine, version: int) -> None:
        self._engine, self._version = engine, version
        self._model, self._tokenizer, self._stops = engine._model, engine._tokenizer, engine._stops
        self._fp32_head = engine._fp32_head

    def groups(self, prompts: Sequence[Prompt], sampling: Sampling, *, stream: tuple[int, ...]) -> Iterator[tuple[int, Group]]:
        """See `Sampler.groups`. Prompts of similar length decode together, as many as the cache's memory allows."""
        by_length = sorted(range(len(prompts)), key=lambda position: len(prompts[position].token_ids))
        longest = len(prompts[by_length[-1]].token_ids) + sampling.max_tokens if prompts else 0
        group_bytes = sampling.group_size * kv_bytes_per_token(self._model) * max(longest, 1)
        size = max(1, min(int(self._engine._max_kv_bytes // group_bytes), len(prompts)))
        self._engine._wave = (size, group_bytes)
        for start in range(0, len(by_length), size):
            yield from self._wave(by_length[start : start + size], prompts, sampling, stream)

    @torch.inference_mode()
    def _wave(
        self, positions: Sequence[int], prompts: Sequence[Prompt], sampling: Sampling, stream: tuple[int, ...]
    ) -> Iterator[tuple[int, Group]]:
        """Decode the groups of these prompts side by side; yield each when its last row is finished."""
        group_size, limit, device = sampling.group_size, sampling.max_tokens, self._model.device
        wave = _Wave(self._model, [prompts[position].token_ids for position in positions], group_size, limit, self._fp32_head)
        total = len(positions) * group_size
        uniforms_RT = torch.from_numpy(
            np.stack([_uniforms((*stream, position, sample), limit) for position in positions for sample in range(group_size)])
        ).to(device)
        tokens_RT = torch.zeros(total, limit, dtype=torch.long, device=device)
        logprobs_RT = torch.zeros(total, limit, device=device)
        lengths_R = torch.zeros(total, dtype=torch.long, device=device)
        alive_R = torch.arange(total, device=device)
        running = [group_size] * len(positions)
        stopped: set[int] = set()

        for t in range(limit):
            self._engine.check_deadline()
            chosen_R, chosen_logprobs_R = sample_tokens(
                wave.logits_RV, uniforms_RT[alive_R, t], sampling, forbidden=self._stops if t < sampling.min_tokens else None
            )
            fresh_R = lengths_R[alive_R] == 0
            tokens_RT[alive_R, t] = chosen_R
            logprobs_RT[alive_R, t] = chosen_logprobs_R
            stops_R = torch.isin(chosen_R, self._stops) & fresh_R
            ended_R = stops_R if t < limit - 1 else fresh_R
            if bool(ended_R.any()):
                ended = alive_R[ended_R]
                lengths_R[ended] = t + 1
                stopped.update(alive_R[stops_R].tolist())
                for row in ended.tolist():
                    group = row // group_size
                    running[group] -= 1
                    if running[group] == 0:
                        rows = range(group * group_size, (group + 1) * group_size)
                        position = positions[group]
                        completions = tuple(
                            self._completion(tokens_RT[r], logprobs_RT[r], lengths_R[r], r in stopped) for r in rows
                        )
                        yield position, Group(prompts[position], completions)
                unfinished_R = lengths_R[alive_R] == 0
                if not bool(unfinished_R.any()):
                    return
                if int((~unfinished_R).sum()) >= COMPACT_AT * len(alive_R):
                    wave.keep(unfinished_R.nonzero().squeeze(1))
                    alive_R, chosen_R = alive_R[unfinished_R], chosen_R[unfinished_R]
            wave.step(chosen_R)

    def _completion(self, tokens_T: torch.Tensor, logprobs_T: torch.Tensor, length: torch.Tensor, stopped: bool) -> Completion:
        ids = tokens_T[: int(length)].tolist()
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs_T[: int(length)].tolist()),
            finish="stop" if stopped else "length",
            version=self._version,
            text=self._tokenizer.decode(ids, skip_special_tokens=True),
        )


class _Wave:
    """The network's side of a wave: the cache, the masks, and the logits of the next token."""

    def __init__(
        self, model: PreTrainedModel, prompts: Sequence[tuple[int, ...]], group_size: int, limit: int, fp32_head: bool
    ) -> None:
        device = model.device
        lengths_P = torch.tensor([len(ids) for ids in prompts], device=device)
        width = int(lengths_P.max())
        padded = [[0] * (width - len(ids)) + list(ids) for ids in prompts]
        mask_PL = torch.arange(width, device=device) >= width - lengths_P[:, None]
        # Attention without a mask is the faster kernel, and right where nothing is padded.
        self._is_padded = not bool(mask_PL.all())
        self._backbone = model.base_model
        self._head = model.get_output_embeddings()
        self._fp32_head, self._bend = fp32_head, Bend.of(model)
        self._cache = in_place_cache(model.config.num_hidden_layers, width + limit)
        self._mask_RL = mask_PL
        self.logits_RV: torch.Tensor
        position_ids_PL = (mask_PL.cumsum(1) - 1).clamp(min=0)
        self._forward(torch.tensor(padded, device=device), position_ids_PL)
        repeat_R = torch.arange(len(prompts), device=device).repeat_interleave(group_size)
        self._next_position_R = lengths_P
        self.keep(repeat_R)

    def keep(self, rows: torch.Tensor) -> None:
        """Go on with these rows only, or with repeated ones."""
        self._cache.batch_select_indices(rows)
        self._mask_RL = self._mask_RL[rows]
        self._next_position_R = self._next_position_R[rows]
        self.logits_RV = self.logits_RV[rows]

    def step(self, tokens_R: torch.Tensor) -> None:
        """Feed each row its chosen token."""
        self._mask_RL = torch.cat([self._mask_RL, self._mask_RL.new_ones(len(tokens_R), 1)], dim=1)
        self._forward(tokens_R.unsqueeze(1), self._next_position_R.unsqueeze(1))
        self._next_position_R = self._next_position_R + 1

    def _forward(self, ids_RL: torch.Tensor, position_ids_RL: torch.Tensor) -> None:
        output = self._backbone(
            input_ids=ids_RL,
            attention_mask=self._mask_RL if self._is_padded else None,
            position_ids=position_ids_RL,
            past_key_values=self._cache,
            use_cache=True,
        )
        last_RD = output.last_hidden_state[:, -1]
        if self._fp32_head:
            self.logits_RV = project(last_RD, self._head.weight, self._head.bias, fp32=True)
        else:
            self.logits_RV = self._head(last_RD)
        if self._bend is not None:
            self.logits_RV = self._bend(self.logits_RV)


def sample_tokens(
    logits_RV: torch.Tensor, uniforms_R: torch.Tensor, sampling: Sampling, forbidden: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token a row by inverting the cumulative distribution at a uniform number, and its log-probability (nats).

    The log-probability is the one under the distribution that was sampled from: after temperature, and after top-p.
    """
    logits_RV = logits_RV.float() / sampling.temperature
    if forbidden is not None:
        logits_RV[:, forbidden] = -torch.inf
    logprobs_RV = logits_RV.log_softmax(dim=-1)
    if sampling.top_p < 1:
        logprobs_RV = _nucleus(logprobs_RV, sampling.top_p)
    # In fp32 the sum over a vocabulary is off by more than the probability of a rare token.
    cumulative_RV = logprobs_RV.exp().double().cumsum(dim=-1)
    targets_R1 = uniforms_R.unsqueeze(1) * cumulative_RV[:, -1:]
    tokens_R1 = torch.searchsorted(cumulative_RV, targets_R1, right=True).clamp(max=logits_RV.shape[1] - 1)
    return tokens_R1.squeeze(1), logprobs_RV.gather(1, tokens_R1).squeeze(1)


def _nucleus(logprobs_RV: torch.Tensor, top_p: float) -> torch.Tensor:
    """The smallest set of most probable tokens whose probability reaches top_p, renormalised (Holtzman et al. 2020)."""
    sorted_RV, order_RV = logprobs_RV.sort(dim=-1, descending=True)
    before_RV = sorted_RV.exp().cumsum(dim=-1) - sorted_RV.exp()
    outside_RV = torch.zeros_like(before_RV, dtype=torch.bool).scatter(1, order_RV, before_RV >= top_p)
    return logprobs_RV.masked_fill(outside_RV, -torch.inf).log_softmax(dim=-1)


def _uniforms(key: tuple[int, ...], count: int) -> np.ndarray:
    """Numbers in [0, 1) that follow from the key alone: one for each token of a completion."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key))).random(count)


def _kv_room(model: PreTrainedModel) -> float:
    """Bytes for keys and values: a third of what is free on a GPU; on a CPU a fixed number, so that runs repeat."""
    return torch.cuda.mem_get_info(model.device)[0] / 3 if model.device.type == "cuda" else CPU_KV_BYTES
