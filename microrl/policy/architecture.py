"""The ways in which a model is run here, compared with its own logits: what differs is not used, or the model is refused.

They are rows with a prompt each, rows that share their prompt, activations that are recomputed, and decoding with a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import PreTrainedModel

from microrl.algorithm.batch import Row
from microrl.config.schema import ModelConfig
from microrl.errors import MachineFailure, UserError, first_line
from microrl.models import gpu
from microrl.models.forward import Head
from microrl.models.load import LoadedModel, Progress, load, unseen
from microrl.models.ways import Ways
from microrl.policy.activations import can_recompute, recomputed
from microrl.policy.logprobs import chosen_logprobs
from microrl.policy.microbatch import hidden_states, pad
from microrl.rollout.transformers import TransformersEngine

TEXT = "To add 47 and 38, add the tens and then the ones: together they make 85."
LENGTHS = ((2, (3, 1)), (4, (2, 3)))
"""Tokens of two prompts and of their completions: something is padded on either side."""
LARGEST_GAP = {torch.bfloat16: 0.5, torch.float16: 0.1}
"""Nats a token that rounding may make; 0.002 in wider types. A path that is wrong is mostly off by several nats."""
LARGEST_GRADIENT_GAP = {torch.bfloat16: 0.5, torch.float16: 0.2}
"""The same for a gradient, as a share of its norm; 0.02 in wider types."""
PADDED = "with padded sequences"
HINT = "among those supported are Llama, Mistral, Qwen 2 to 3.5, Gemma 2 to 4, LFM2, Granite, Phi-3, OLMo 2 and SmolLM models"
Result = TypeVar("Result")


class _Scored(NamedTuple):
    logprobs_N: torch.Tensor
    """Of all completions' tokens, one row after the other, in nats."""
    gradient_D: torch.Tensor
    """Of their sum, with respect to a vector that is added to every token's embedding."""


def load_checked(config: ModelConfig, progress: Progress = unseen) -> LoadedModel:
    """`models.load.load`, and `check`. Raises UserError as both do."""
    loaded = load(config, progress)
    check(loaded.model, loaded.tokenizer, fp32_head=config.head_dtype == "float32")
    return loaded


def check(model: PreTrainedModel, tokenizer: Any, *, fp32_head: bool = False) -> None:
    """Score a few tokens by every path: some twenty passes of a few tokens each. It draws no random numbers.

    Where a fast path fails or differs, trainer and engine take a slower one from now on (`Ways`). Raises UserError where that
    fails, too: it names the model's type, the path, and what it raises or by how much it differs. Raises MachineFailure where
    memory runs out.
    """
    try:
        with torch.random.fork_rng():
            _choose_ways(model, tokenizer, fp32_head)
    except _Failed as failed:
        raise UserError(f"{model.config.model_type} models are not supported: {failed}", HINT) from failed.__cause__


class _Failed(Exception):
    """A path that cannot be taken for a model, with the reason."""


def _choose_ways(model: PreTrainedModel, tokenizer: Any, fp32_head: bool) -> None:
    rows = _rows(tokenizer)
    own_N = _run("run as they are", lambda: _own(model, rows))
    if not bool(own_N.isfinite().all()):
        dtype = str(model.dtype).removeprefix("torch.")
        raise UserError(
            f"the model's log-probabilities are not finite in {dtype}", "--set model.dtype=float32, or use another model"
        )
    apart = "run as backbone and output head separately"
    from_head_T = _run(apart, lambda: _from_head(model, rows[0], fp32_head))
    _compare(apart, model.dtype, from_head_T, own_N[: len(from_head_T)])
    alone = _run(PADDED, lambda: _scored(model, rows, fp32_head, share_prompts=False))
    _compare(PADDED, model.dtype, alone.logprobs_N, own_N)
    if can_recompute(model):
        again = "with gradient checkpointing"
        _compare_scored(again, model.dtype, _run(again, lambda: _recomputed(model, rows, fp32_head)), alone)

    def shared() -> None:
        together, unpadded = "with one prompt shared by its group", "with one prompt and no attention mask"
        _compare_scored(together, model.dtype, _run(together, lambda: _scored(model, rows, fp32_head, share_prompts=True)), alone)
        first = [row for row in rows if row.group == 0]
        unpadded_N = _run(unpadded, lambda: _scored(model, first, fp32_head, share_prompts=True)).logprobs_N
        _compare(unpadded, model.dtype, unpadded_N, own_N[: len(unpadded_N)])

    def decoded(how: str) -> None:
        _compare(how, model.dtype, _run(how, lambda: _decoded(model, tokenizer, rows, fp32_head)), own_N)

    ways = Ways(_why_not(shared), _why_not(lambda: decoded("decoding with a KV cache")))
    ways.keep(model)
    if ways.decoding is not None:
        decoded("decoding with the model's own cache")


def _why_not(path: Callable[[], None]) -> str | None:
    try:
        path()
    except _Failed as failed:
        return str(failed)
    return None


def _run(how: str, path: Callable[[], Result]) -> Result:
    try:
        return path()
    except Exception as error:  # any architecture's code runs here, and whatever it cannot do is the answer
        if gpu.is_out_of_memory(error):
            raise MachineFailure(
                f"out of memory with the model alone, in a pass of a few tokens: {first_line(error)}",
                "use a smaller model, a larger GPU, or --set model.quant=nf4",
            ) from error
        raise _Failed(f"{how}, the model raises {type(error).__name__}: {first_line(error)[:200]}") from error


def _compare(how: str, dtype: torch.dtype, logprobs_N: torch.Tensor, own_N: torch.Tensor) -> None:
    gap = float((logprobs_N - own_N).abs().max())
    if not gap <= LARGEST_GAP.get(dtype, 2e-3):
        raise _Failed(f"{how}, log-probabilities differ by {gap:.2g} nats per token")


def _compare_scored(how: str, dtype: torch.dtype, scored: _Scored, expected: _Scored) -> None:
    _compare(how, dtype, scored.logprobs_N, expected.logprobs_N)
    gap = float((scored.gradient_D - expected.gradient_D).norm() / expected.gradient_D.norm().clamp(min=1e-30))
    if not gap <= LARGEST_GRADIENT_GAP.get(dtype, 0.02):
        raise _Failed(f"{how}, gradients differ by {gap:.2g} of their norm")


def _rows(tokenizer: Any) -> list[Row]:
    tokens = cycle(tokenizer(TEXT, add_special_tokens=False)["input_ids"])
    rows = []
    for group, (prompt_length, lengths) in enumerate(LENGTHS):
        prompt = tuple(islice(tokens, prompt_length))
        rows += [Row(prompt, tuple(islice(tokens, length)), (), 0.0, True, group) for length in lengths]
    return rows


@torch.no_grad()
def _own(model: PreTrainedModel, rows: Sequence[Row]) -> torch.Tensor:
    """From the model's own logits, a row at a time, without padding."""
    own = []
    for row in rows:
        logits_1LV = model(input_ids=_fed(model, row), use_cache=False).logits
        targets_T = torch.tensor(row.completion_ids, device=model.device)
        logprobs_TV = logits_1LV[0, len(row.prompt_ids) - 1 :].float().log_softmax(dim=-1)
        own.append(logprobs_TV.gather(1, targets_T[:, None])[:, 0])
    return torch.cat(own)


@torch.no_grad()
def _from_head(model: PreTrainedModel, row: Row, fp32_head: bool) -> torch.Tensor:
    """The same for one row, from what its body gives."""
    states_1LD = model.base_model(input_ids=_fed(model, row), use_cache=False).last_hidden_state
    targets_T = torch.tensor(row.completion_ids, device=model.device)
    return _logprobs(model, states_1LD[0, len(row.prompt_ids) - 1 :], targets_T, fp32_head)


def _fed(model: PreTrainedModel, row: Row) -> torch.Tensor:
    return torch.tensor([[*row.prompt_ids, *row.completion_ids[:-1]]], device=model.device)


def _scored(model: PreTrainedModel, rows: Sequence[Row], fp32_head: bool, *, share_prompts: bool) -> _Scored:
    batch = pad(rows, tuple(range(len(rows))), model.device, share_prompts=share_prompts)
    with torch.enable_grad(), _added_to_embeddings(model) as vector_D:
        states_BTD = hidden_states(model, batch, share_prompts=share_prompts)
        logprobs_N = _logprobs(model, states_BTD[batch.mask_BT], batch.completions_BT[batch.mask_BT], fp32_head)
        (gradient_D,) = torch.autograd.grad(logprobs_N.sum(), vector_D)
    return _Scored(logprobs_N.detach(), gradient_D.float())


def _recomputed(model: PreTrainedModel, rows: Sequence[Row], fp32_head: bool) -> _Scored:
    with recomputed(model):
        return _scored(model, rows, fp32_head, share_prompts=False)


def _decoded(model: PreTrainedModel, tokenizer: Any, rows: Sequence[Row], fp32_head: bool) -> torch.Tensor:
    engine = TransformersEngine(model, tokenizer, max_kv_gb=1, fp32_head=fp32_head)
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for row in rows:
        groups.setdefault(row.prompt_ids, []).append(row.completion_ids)
    return torch.cat(engine.score(list(groups), list(groups.values())))


def _logprobs(model: PreTrainedModel, states_ND: torch.Tensor, targets_N: torch.Tensor, fp32_head: bool) -> torch.Tensor:
    return chosen_logprobs(states_ND, targets_N, Head.of(model, fp32_head))[0]


@contextmanager
def _added_to_embeddings(model: PreTrainedModel) -> Iterator[torch.Tensor]:
    """A zero vector that is added to every token's embedding: what reaches it has come through the whole model."""
    table: Any = model.get_input_embeddings()
    vector_D = torch.zeros(table.weight.shape[-1], dtype=table.weight.dtype, device=table.weight.device, requires_grad=True)
    hook = table.register_forward_hook(lambda module, inputs, output: output + vector_D)
    try:
        yield vector_D
    finally:
        hook.remove()
