"""The `transformers` engine: batched decoding of groups in this process, made for CPUs and small models.

Prompts are prefilled once and their cache repeated for the group. Rows that are finished leave the batch, and the next prompts
take their place. An episode whose turn has ended leaves its cache behind, so that the next turn reads only what is new. In fp32
the adapter is folded into a copy of the targeted weights: decoding runs the base's own operations and pays nothing for it. A
model whose state is more than keys and values keeps its own cache (`own_cache.py`), and reads an episode again at each turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from microrl import clock
from microrl.errors import MachineFailure, in_a_new_run
from microrl.limits import CPU_CACHE_BYTES, CPU_ROWS
from microrl.models import onednn
from microrl.models.forward import adapted, stop_tokens
from microrl.models.tensors import merge_lora, merged, replaced, weight_sharing_copy
from microrl.models.ways import Ways
from microrl.rollout.continuous import InFlight
from microrl.rollout.decoding import DecodingBatch
from microrl.rollout.engine import Sampler, SyncReport
from microrl.rollout.own_cache import OwnCacheBatch
from microrl.rollout.plain_step import FUSED, PlainStep
from microrl.rollout.requests import Queue, Request
from microrl.types import AdapterSnapshot, Completion, Sampling

SLACK = 1.25
"""The cache's length over the longest completion's where prompts join rows that are ahead of them: once it is full, at least the
difference is padding, and dropped."""


class TransformersEngine:
    """Shares every weight with `model` but the folded ones, which exist only while it is awake."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel, tokenizer: Any, *, max_kv_gb: float | None, fp32_head: bool = False) -> None:
        self.report = SyncReport()
        self.check_deadline: Callable[[], None] = lambda: None
        self._fp32_head = fp32_head
        self.model = weight_sharing_copy(model)
        if model.device.type == "cpu":
            fused = FUSED if PlainStep.fits(self.model) else ()
            for name, module in self.model.named_modules():
                if type(module) is torch.nn.Linear and not name.endswith(fused):
                    module.__class__ = _DecodingLinear
        self.tokenizer = tokenizer
        self._batch: type[DecodingBatch] = DecodingBatch if Ways.of(model).decoding is None else OwnCacheBatch
        self._row_bytes = self._batch.row_bytes(self.model)
        self._max_kv_bytes = _kv_room(model) if max_kv_gb is None else max_kv_gb * 1e9
        self.stops = torch.tensor(sorted(stop_tokens(model, tokenizer)), device=model.device)
        self._together = (2, self._max_kv_bytes / 2)
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
        tensors = dict(merged(self.model, snapshot))
        with ExitStack() as until_asleep:
            for name, pair in wide.items():
                layer = self.model.get_submodule(name)
                folded_OI = merge_lora(layer.weight, pair)
                if not (isinstance(layer, _DecodingLinear) and layer.pack(folded_OI, until_asleep)):
                    tensors[f"{name}.weight"] = torch.nn.Parameter(folded_OI, requires_grad=False)
            until_asleep.enter_context(replaced(self.model, tensors))
            for layer in self.model.modules():
                if isinstance(layer, _DecodingLinear) and layer.packed is None:
                    layer.pack(layer.weight, until_asleep)
            until_asleep.enter_context(adapted(self.model, AdapterSnapshot(snapshot.version, narrow)))
            self.report = SyncReport(push_s=clock.now_s() - began)
            yield _Sampler(self, snapshot.version)

    def _folds(self, name: str) -> bool:
        weight = self.model.get_submodule(name).weight
        return weight.is_floating_point() and weight.dtype.itemsize >= 4

    @torch.inference_mode()
    def score(self, prompts: Sequence[tuple[int, ...]], completions: Sequence[Sequence[tuple[int, ...]]]) -> list[torch.Tensor]:
        """What decoding finds these completions' tokens to be worth: log-probabilities in nats at temperature 1, [T] each.

        The completions of each prompt, in the prompts' order; it works asleep, on the base's weights.
        """
        rows = [ids for group in completions for ids in group]
        width = max(map(len, rows))
        fed_RT = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in rows], device=self.model.device)
        batch = self.batch(max(map(len, prompts)) + width)
        batch.gather(torch.zeros(0, dtype=torch.long, device=self.model.device), prompts, [len(group) for group in completions])
        logprobs_by_step = []
        for t in range(width):
            logprobs_by_step.append(batch.logits_RV.float().log_softmax(dim=-1).gather(1, fed_RT[:, t : t + 1]))
            if t < width - 1:
                batch.step(fed_RT[:, t])
        return [logprobs_T[: len(ids)] for logprobs_T, ids in zip(torch.cat(logprobs_by_step, dim=1), rows, strict=True)]

    def batch(self, capacity: int) -> DecodingBatch:
        """An empty batch whose rows have up to this many tokens."""
        return self._batch(self.model, capacity, fp32_head=self._fp32_head)

    def room(self, queue: Queue, sampling: Sampling) -> tuple[int, int]:
        """How many of these requests the cache's memory holds at once, and the capacity in tokens of each of their rows."""
        length = queue.longest + sampling.max_tokens
        row_bytes, token_bytes = (sampling.group_size * size for size in self._row_bytes)
        most = CPU_ROWS // sampling.group_size if self.model.device.type == "cpu" else len(queue)
        groups = max(1, min(most, int(self._max_kv_bytes // (row_bytes + token_bytes * length))))
        if groups < len(queue):
            length = math.ceil(length * SLACK)
            groups = max(1, min(most, int(self._max_kv_bytes // (row_bytes + token_bytes * length))))
        self._together = (min(groups, len(queue)), row_bytes + token_bytes * length)
        return self._together[0], length

    def shrink(self) -> float:
        """See `Engine.shrink`: half as many groups decode together."""
        groups, group_bytes = self._together
        if groups <= 1:
            raise MachineFailure(
                "out of memory while sampling, with one group at a time",
                in_a_new_run("a lower --set sampling.group_size=N or --set sampling.max_completion_tokens=N"),
            )
        self._together = (groups // 2, group_bytes)
        self._max_kv_bytes = groups // 2 * group_bytes
        return (self._max_kv_bytes + 1) / 1e9  # read back it must hold as many groups

    def close(self) -> None:
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


class _Sampler(Sampler):
    def __init__(self, engine: TransformersEngine, version: int) -> None:
        self._engine, self._version = engine, version

    @torch.inference_mode()
    def complete(self, queue: Queue, sampling: Sampling) -> Iterator[tuple[Request, int, Completion]]:
        """See `Sampler.complete`. As many requests decode together as the cache's memory allows."""
        engine = self._engine
        groups, capacity = engine.room(queue, sampling)
        rows = InFlight(
            engine.batch(capacity), groups * sampling.group_size, sampling, engine.stops, engine.tokenizer, self._version
        )
        while True:
            engine.check_deadline()
            if queue.is_over():
                return
            ready = queue.ready(rows.room, engine.check_deadline)
            if rows.is_change_due(sum(request.count for request in ready)):
                queue.start(ready)
                yield from rows.change(ready, queue.going_on)
            elif not rows.is_empty:
                yield from rows.step()
                self.decode_steps += 1
            elif not queue.hurry():  # all is done, or the pace lets nothing start any more
                return


def _kv_room(model: PreTrainedModel) -> float:
    """Bytes for keys and values: a third of what is free on a GPU; on a CPU a fixed number, so that runs repeat."""
    return torch.cuda.mem_get_info(model.device)[0] / 3 if model.device.type == "cuda" else CPU_CACHE_BYTES
