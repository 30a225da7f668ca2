"""The teacher of a distillation: a frozen network that scores the student's tokens, in the student's micro-batches."""

from __future__ import annotations

from typing import Literal

import torch
from transformers import PreTrainedModel

from microrl.models.forward import Head, lora_forward_hook
from microrl.models.tensors import swap_parameters, updated, weight_sharing_copy
from microrl.models.ways import Ways
from microrl.policy.divergence import Comparison, Divergence, Likeliest, TeacherScores
from microrl.policy.logprobs import of_batch
from microrl.policy.microbatch import MicroBatch, at_drawn, hidden_states
from microrl.policy.soft_targets import TopScores, top_scores
from microrl.types import AdapterSnapshot


class Teacher:
    """A frozen model, with an adapter's update if it has one, at the student's training temperature.

    The network may be the student's own base, loaded for both: make the teacher before the student's adapter is attached. It is
    then a second tree of modules over the same tensors, and only what the update changes takes memory.
    """

    def __init__(
        self, model: PreTrainedModel, update: AdapterSnapshot, *, temperature: float = 1.0, fp32_head: bool = False
    ) -> None:
        self._model = weight_sharing_copy(model)
        for name, pair in update.pairs.items():
            layer = self._model.get_submodule(name)
            layer.register_forward_hook(lora_forward_hook(pair, layer.weight.device))
        changed = {name: updated(name, self._model.get_parameter(name), update) for name in update.merged}
        swap_parameters(self._model, {name: torch.nn.Parameter(new, requires_grad=False) for name, new in changed.items()})
        self._head = Head.of(self._model, fp32_head, temperature)
        self._shares_prompts = Ways.of(model).update is None

    @torch.no_grad()
    def scores(self, batch: MicroBatch) -> TeacherScores:
        """Score every token that the student drew. One beyond the teacher's vocabulary has the log-probability -inf."""
        unknown_BT = batch.completions_BT >= len(self._head.weight)
        batch = batch._replace(completions_BT=batch.completions_BT.masked_fill(unknown_BT, 0))
        hidden_BTD, best = self._hidden(batch), Likeliest(batch.mask_BT)
        logprobs_BT, entropy_BT = of_batch(hidden_BTD, batch, self._head, compared=best)
        logprobs_BT = logprobs_BT.masked_fill(unknown_BT & batch.mask_BT, -torch.inf)
        return TeacherScores(logprobs_BT, entropy_BT, at_drawn(best.best_N, batch.mask_BT))

    @torch.no_grad()
    def compared(self, batch: MicroBatch, top_k: int | Literal["all"] | None, has_policy_gradient: bool) -> Comparison:
        """What the student's logits of this micro-batch are compared with; see `distill.top_k`."""
        mask_BT = batch.mask_BT
        if top_k is None:
            scores = self.scores(batch)
            return Comparison(scores.best_BT[mask_BT], scores)
        hidden_ND, drawn_N = self._hidden(batch)[mask_BT], batch.completions_BT[mask_BT]
        return Divergence(hidden_ND, drawn_N, self._head, top_k=top_k, has_policy_gradient=has_policy_gradient)

    @property
    def device(self) -> torch.device:
        return self._model.device

    @torch.no_grad()
    def top(self, batch: MicroBatch, count: int, vocabulary: int) -> TopScores:
        """Score its own tokens; arguments as for `top_scores`."""
        return top_scores(self._hidden(batch), batch, self._head, count=count, vocabulary=vocabulary)

    def _hidden(self, batch: MicroBatch) -> torch.Tensor:
        """The states that predict each completion token, [B, T, D]; it reads the id 0 instead of one that it does not have."""
        unknown_BT = batch.completions_BT >= self._model.get_input_embeddings().num_embeddings
        batch = batch._replace(completions_BT=batch.completions_BT.masked_fill(unknown_BT, 0))
        if not self._shares_prompts:  # each row reads a prompt of its own
            batch = batch._replace(
                prompts_PL=batch.prompts_PL[batch.prompt_of_B],
                prompt_mask_PL=batch.prompt_mask_PL[batch.prompt_of_B],
                prompt_of_B=torch.arange(len(batch.rows), device=batch.prompt_of_B.device),
            )
        return hidden_states(self._model, batch, share_prompts=self._shares_prompts)
