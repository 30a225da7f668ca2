"""The policy: a frozen base with a trained adapter, its log-probabilities, and the update.

The loss is the algorithm's (`microrl.algorithm`); here it is only decided how the work is cut up so that it fits, and how it was
cut must not show in the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from microrl import algorithm
from microrl.adapters.attach import attach
from microrl.algorithm.batch import Batch, Row, sample_without_gradient, split_evenly
from microrl.algorithm.grpo import Tokens
from microrl.algorithm.loss import k3, mismatch
from microrl.config import RunConfig
from microrl.config.schema import OptimConfig
from microrl.errors import UserError
from microrl.limits import SCORED
from microrl.models.forward import Head, sequence_logprobs
from microrl.models.load import Progress, unseen
from microrl.models.tensors import not_finite
from microrl.models.threads import threads, update_threads
from microrl.models.ways import Ways
from microrl.policy import step_kl
from microrl.policy.activations import ActivationBudget, can_recompute, recompute
from microrl.policy.compiled import Compiled
from microrl.policy.logprobs import of_batch
from microrl.policy.microbatch import MicroBatch, drawn_mask, hidden_states, pad, plan, stack
from microrl.policy.optimizer import build_optimizer
from microrl.policy.retry import retry_with_smaller_microbatches
from microrl.policy.teacher import Teacher
from microrl.policy.update_metrics import Update, UpdateMetrics
from microrl.types import AdapterSnapshot

Result = TypeVar("Result")


class Policy:
    """Owns the trained parameters and the optimizer. `version` counts the updates, skipped ones too.

    `max_tokens` bounds a micro-batch; it is halved where memory runs out, and `on_event` hears of it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        config: RunConfig,
        on_event: Callable[..., None] = lambda *_, **__: None,
        *,
        fresh: bool = True,
        progress: Progress = unseen,
        teacher: Teacher | None = None,
    ) -> None:
        self._algorithm, self.teacher = algorithm.make(config), teacher
        assert teacher is not None or not self._algorithm.needs_teacher
        self._optim = config.optim
        self._temperature = config.sampling.temperature
        self._fp32_head = config.model.head_dtype == "float32"
        self.update_threads = update_threads(model)
        self.adapter = attach(model, config.adapter, seed=config.seed, fresh=fresh, progress=progress)
        self._model = model.eval()
        self.parameters = list(self.adapter.parameters.values())
        self.optimizer = build_optimizer(self.adapter.groups(), config.optim)
        self._room = ActivationBudget.of(self._model, config, self.trainable, self.adapter.dtype)
        self.may_checkpoint = config.model.gradient_checkpointing == "auto" and can_recompute(model)
        self.checkpoints_activations = False
        """Whether activations are computed again in the backward pass. Each row then has a prompt of its own."""
        if config.model.gradient_checkpointing is True or (self.may_checkpoint and not self._room.fits_a_row()):
            self.checkpoint_activations()
        self.max_tokens = config.optim.tokens_per_microbatch or self._room.tokens(checkpointing=self.checkpoints_activations)
        self._compiled = Compiled(self._model) if config.optim.compile else None
        self.version = 0
        self.is_stepping = False
        self.is_consistent = True
        """False while an update is half done: the weights then belong to no version."""
        self.on_event = on_event

    @property
    def trainable(self) -> int:
        """Number of trained parameters."""
        return sum(parameter.numel() for parameter in self.parameters)

    @property
    def shares_prompts(self) -> bool:
        """Whether the completions of a group see one computation of their prompt."""
        return not self.checkpoints_activations and Ways.of(self._model).update is None

    def checkpoint_activations(self) -> None:
        """From now on keep no activations but each layer's input."""
        recompute(self._model)
        self.checkpoints_activations = True

    def threads(self) -> AbstractContextManager[None]:
        """The threads of an update, for as long as this lasts."""
        return threads(self.update_threads)

    def snapshot(self) -> AdapterSnapshot:
        """What the engine needs to sample from the current weights."""
        return replace(self.adapter.snapshot(self.version), score=self.score)

    def score(self, sequences: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
        """How likely the current weights find these sequences; see `AdapterSnapshot.score`."""
        return sequence_logprobs(
            self._model, sequences, fp32_head=self._fp32_head, precision=self.adapter.precision(), dtype=self.adapter.dtype
        )

    @torch.no_grad()
    def logprobs(self, rows: Sequence[Row], check_deadline: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
        """Log-probabilities of each row's drawn tokens at the training temperature, [T] each and else 0, in the rows' order.

        They are those that an update of the same rows computes, to the last bit: the micro-batches are the same. Rows that
        represent none are not scored: theirs are empty.
        """
        logprobs_by_row: dict[int, torch.Tensor] = {}
        is_compiled = self._compiled is not None and self._compiled.is_active
        with self.threads():
            for has_gradient, batch in self.microbatches(rows):
                check_deadline()
                with torch.set_grad_enabled(is_compiled and has_gradient):  # as in the update: without, it runs uncompiled
                    logprobs_BT = self.token_scores(batch)[0].detach()
                for number, position in enumerate(batch.rows):
                    logprobs_by_row[position] = logprobs_BT[number, : len(rows[position].completion_ids)]
        return [logprobs_by_row.get(position, torch.empty(0)) for position in range(len(rows))]

    @torch.no_grad()
    def kl_to_base(self, batch: Batch) -> float:
        """KL of the current weights to the untouched model by k3, nats per token, on about as many of the rows as one
        micro-batch holds: every n-th by length, so that short and long completions are there in their proportion."""
        rows = step_kl.every(len(plan(batch.rows, self.max_tokens, share_prompts=self.shares_prompts)), batch.rows)
        total, tokens = 0.0, 0
        for positions in plan(rows, self.max_tokens, share_prompts=self.shares_prompts):
            part = pad(rows, positions, self._model.device, share_prompts=self.shares_prompts)
            new_BT, _ = self.token_scores(part)
            with self.adapter.off():
                ref_BT, _ = self.token_scores(part)
            total += float(k3(ref_BT, new_BT)[part.mask_BT].sum(dtype=torch.float64))
            tokens += int(part.mask_BT.sum())
        return total / tokens

    def update(
        self,
        batch: Batch,
        lr: float,
        check_deadline: Callable[[], None] = lambda: None,
        *,
        progress: float = 0.0,
        measures_kl: bool = False,
        target_kl: float | None = None,
    ) -> Update:
        """One optimizer step per mini-batch, at learning rate `lr`. A non-finite gradient skips its step.

        `progress` is the spent fraction of the run's budget: AdaLoRA's rank schedule follows it. `measures_kl`: find out how far
        the update moves the policy, by a pass over some of the rows before it and one after. `target_kl`: a step that moves it
        many times as far (nats a token) is shrunk (`step_kl.shrink`). `check_deadline` is called before every micro-batch; what
        it raises ends the update, with the weights as they were. Where memory runs out the whole update is done again in smaller
        micro-batches. Afterwards `is_consistent` is False until the caller has written down that the update happened.
        """
        assert batch.version == self.version, f"sampled by version {batch.version}, the weights are at {self.version}"
        self.set_lr(lr)
        minibatches = [
            sample_without_gradient(rows, self._has_gradient) for rows in split_evenly(batch, self._optim.prompts_per_update)
        ]
        attempt = partial(self._steps, minibatches, check_deadline, progress)
        size = None
        if measures_kl and any(map(self._has_gradient, batch.rows)):
            watched = step_kl.every(SCORED, batch.rows)

            def score(check: Callable[[], None] = lambda: None) -> list[torch.Tensor]:
                return retry_with_smaller_microbatches(self, minibatches, partial(self.logprobs, watched, check))

            size = step_kl.StepSize(watched, self.parameters, score, check_deadline, target=target_kl, dtype=self.adapter.dtype)
        with self.threads():
            metrics = self.run(minibatches, attempt)
        self.is_consistent = False
        self.version += 1
        if size is not None:
            if metrics.grad_norms:
                metrics.fraction, metrics.moved = size.limited()
            metrics.step_kl_s = size.seconds
        return metrics.result()

    def run(self, minibatches: Sequence[Sequence[Row]], attempt: Callable[[], Result]) -> Result:
        """What `attempt` at an update returns, compiled if that is asked for, in smaller micro-batches where memory runs out."""
        tried = attempt if self._compiled is None else partial(self._compiled.run, self, attempt)
        return retry_with_smaller_microbatches(self, minibatches, tried)

    def _steps(self, minibatches: list[list[Row]], check_deadline: Callable[[], None], progress: float) -> UpdateMetrics:
        """One optimizer step a mini-batch: all of them or none.

        Several are clipped against the log-probabilities of the weights that sampled. These hold for one way to cut the rows
        into micro-batches only, so an attempt that runs out of memory leaves nothing to the next.
        """
        metrics = UpdateMetrics(len(minibatches))
        with self.all_or_nothing(several=len(minibatches) > 1):
            # With one mini-batch the weights that sampled are the current ones, and `old` is `new` itself.
            olds: list[Any] = [None] * len(minibatches)
            if len(minibatches) > 1:
                olds = [self.logprobs(rows, check_deadline) for rows in minibatches]
            for rows, old in zip(minibatches, olds, strict=True):
                self._minibatch(rows, old, metrics, check_deadline, progress)
        return metrics

    def forget_moments(self) -> None:
        """A fresh optimizer: what comes now is another loss."""
        self.optimizer.state.clear()  # before the new ones are there: memory has room for one set
        self.optimizer = build_optimizer(self.adapter.groups(), self._optim)

    def set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["factor"]

    @contextmanager
    def all_or_nothing(self, *, several: bool) -> Iterator[None]:
        """Where an update has several optimizer steps and ends before the last, the weights become what they were."""
        states = list(self.optimizer.state.values())
        moments = [value for state in states for value in state.values() if torch.is_tensor(value)]
        tensors = [*self.adapter.moving().values(), *moments]
        kept = [tensor.detach().to("cpu", copy=True) for tensor in tensors] if several else []
        # bitsandbytes counts its steps in plain numbers
        counts = [{name: value for name, value in state.items() if not torch.is_tensor(value)} for state in states]
        try:
            yield
        except BaseException:
            self.optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for tensor, before in zip(tensors, kept, strict=False):
                    tensor.copy_(before)
            for state, numbers in zip(states, counts if several else [], strict=False):
                state.update(numbers)
            self.is_consistent = self.is_consistent or several
            raise

    def _minibatch(
        self,
        rows: list[Row],
        old: list[torch.Tensor] | None,
        metrics: UpdateMetrics,
        check_deadline: Callable[[], None],
        progress: float,
    ) -> None:
        """One optimizer step, added to `metrics`."""
        width = max(len(row.completion_ids) for row in rows)
        counted_NT = drawn_mask(rows, width) * torch.tensor([[float(row.counts)] for row in rows])
        weights_NT = self._algorithm.token_weights(counted_NT)
        any_gradient = any(map(self._has_gradient, rows))
        self.optimizer.zero_grad(set_to_none=True)
        scale = loss_scale(weights_NT, self.adapter.dtype)
        for has_gradient, batch in self.microbatches(rows):
            check_deadline()
            with torch.set_grad_enabled(has_gradient):
                loss = self._microbatch(batch, rows, old, weights_NT, metrics)
                if has_gradient:
                    (loss * scale).backward()
                del loss  # the nodes of its graph would lie between the next one's activations
        metrics.refuse_silent_teacher()
        if any_gradient and (penalty := self.regularise(scale)) is not None:
            metrics.add_loss(penalty)
        self.optimizer_step(any_gradient, metrics, progress)

    def regularise(self, scale: float) -> torch.Tensor | None:
        """Add the gradient of what the adapter adds to the loss, and take the loss scale off; returns what is added."""
        penalty = self.adapter.regulariser()
        if penalty is not None:
            (penalty * scale).backward()
        if scale != 1.0:
            torch._foreach_div_([parameter.grad for parameter in self.parameters if parameter.grad is not None], scale)
        return None if penalty is None else penalty.detach()

    def _microbatch(
        self, batch: MicroBatch, rows: list[Row], old: list[torch.Tensor] | None, weights_NT: torch.Tensor, metrics: UpdateMetrics
    ) -> torch.Tensor:
        """The loss of one micro-batch, already divided by the whole mini-batch's denominators."""
        mask_BT, row_numbers = batch.mask_BT, batch.rows
        compared = None
        if self.teacher is not None:  # before the activations of the gradient are there
            compared = self.teacher.compared(batch, self._algorithm.top_k, self._algorithm.has_policy_gradient)
        new_BT, entropy_BT = self.token_scores(batch, compared=compared)
        teacher = None if compared is None else compared.scores(mask_BT)
        engine_BT = stack([torch.tensor(rows[row].engine_logprobs) for row in row_numbers], new_BT)
        old_BT = stack([old[row] for row in row_numbers], new_BT) if old is not None else new_BT.detach()
        ref_BT = None
        if self._algorithm.needs_reference:
            with torch.no_grad(), self.adapter.off():
                ref_BT, _ = self.token_scores(batch)
        tokens = Tokens(
            new_BT=new_BT,
            old_BT=old_BT,
            engine_BT=engine_BT,
            ref_BT=ref_BT,
            advantages_B=torch.tensor([rows[row].advantage for row in row_numbers], dtype=new_BT.dtype, device=new_BT.device),
            mask_BT=mask_BT,
            weights_BT=weights_NT[list(row_numbers), : mask_BT.shape[1]].to(new_BT),
            teacher_BT=None if teacher is None else teacher.logprobs_BT.to(new_BT),
            divergence_BT=None if compared is None else compared.divergence(mask_BT),
        )
        loss, clipped_BT, kl_BT = self._algorithm.loss(tokens)
        metrics.add(
            loss=loss.detach(),
            mismatch_BT=mismatch(old_BT, engine_BT).masked_fill(~mask_BT, 0),
            impossible_BT=~(old_BT.isfinite() & engine_BT.isfinite()),
            entropy_BT=entropy_BT,
            clipped_BT=clipped_BT & (tokens.weights_BT > 0),
            kl_BT=kl_BT,
            old_BT=old_BT,
            teacher=teacher,
            agrees_BT=None if compared is None else compared.agrees(mask_BT),
            mask_BT=mask_BT,
            represents_B=torch.tensor([rows[row].represents for row in row_numbers], device=mask_BT.device),
        )
        return loss

    def optimizer_step(self, has_gradient: bool, metrics: UpdateMetrics, progress: float) -> None:
        """One optimizer step. Raises UserError if it produces weights that are not finite."""
        if not has_gradient:
            metrics.skip(
                "the batch has no gradient: within every group the rewards are equal, or the completions that differ are "
                "truncated and masked"
            )
            return
        limit = self._optim.max_grad_norm if self._optim.max_grad_norm is not None else float("inf")
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit, foreach=True))
        if norm != norm or norm == float("inf"):
            metrics.skip(f"the gradient norm is {norm}: the weights were not changed")
        else:
            metrics.grad_norms.append(norm)
            # AdamW steps all of them or none; bitsandbytes' goes from one parameter to the next.
            self.is_consistent, self.is_stepping = False, self._optim.name == "adamw_8bit"
            self.optimizer.step()
            self.is_stepping = True
            self.adapter.allocate(progress)
            self._refuse_not_finite()
            self.is_stepping = False
        self.optimizer.zero_grad(set_to_none=True)

    def _refuse_not_finite(self) -> None:
        """Finite gradients can still make weights that are not: at a rate beyond all measure. Such weights are never saved."""
        if (broken := not_finite(self.adapter.moving())) is not None:
            raise UserError(
                f"the optimizer step produced non-finite weights: `{broken}`",
                f"start a new run with smaller steps, for example {_smaller(self._optim)}; the last checkpoint is from before "
                "this step and is intact",
            )

    def _has_gradient(self, row: Row) -> bool:
        """Whether the row has a gradient. Those without are scored for their metrics alone, one of each group."""
        return row.counts and (row.advantage != 0 or self._algorithm.every_row_has_gradient)

    def planned_microbatches(self, rows: Sequence[Row]) -> Iterator[tuple[bool, tuple[int, ...]]]:
        """The micro-batches of a mini-batch, as positions of rows: first those with a gradient (True), then the others.

        In 16 bits a row's log-probabilities depend on the rows beside it, by rounding. What is compared must therefore be
        computed in the same micro-batches, and this is the one place that cuts them.
        """
        for has_gradient in (True, False):
            chosen = [position for position, row in enumerate(rows) if row.represents and self._has_gradient(row) is has_gradient]
            for batch in plan([rows[position] for position in chosen], self.max_tokens, share_prompts=self.shares_prompts):
                yield has_gradient, tuple(chosen[number] for number in batch)

    def microbatches(self, rows: Sequence[Row]) -> Iterator[tuple[bool, MicroBatch]]:
        """`planned_microbatches`, as padded tensors."""
        for has_gradient, positions in self.planned_microbatches(rows):
            yield has_gradient, pad(rows, positions, self._model.device, share_prompts=self.shares_prompts)

    def token_scores(self, batch: MicroBatch, score: Callable[..., Any] = of_batch, **more: Any) -> Any:
        """Log-probability and entropy of every token that the policy drew, [B, T] each; the others hold 0. Or what another
        `score` with the arguments of `of_batch` gives. `more`: further arguments of it."""
        with self.adapter.precision():
            hidden_BTD = hidden_states(self._model, batch, share_prompts=self.shares_prompts).to(self.adapter.dtype)
        return score(hidden_BTD, batch, Head.of(self._model, self._fp32_head, self._temperature), **more)


def _smaller(config: OptimConfig) -> str:
    if config.step_kl is not None:
        return f"--step-kl {config.step_kl / 4:.3g}"
    return f"--lr {'1e-6' if isinstance(config.lr, str) else format(config.lr / 2, '.3g')}"


def loss_scale(weights_NT: torch.Tensor, dtype: torch.dtype) -> float:
    """A power of two that lifts the gradients of a float16 backward pass above its smallest numbers; else 1.

    The largest token weight becomes about 1, so nothing overflows that would not without averaging.
    """
    largest = float(weights_NT.abs().max())
    return 2.0 ** -round(math.log2(largest)) if dtype is torch.float16 and largest > 0 else 1.0
