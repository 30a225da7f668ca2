"""On-policy distillation (Agarwal et al. 2024, arXiv 2306.13649; Thinking Machines 2025, "On-Policy Distillation"): the student
samples, and the advantage of a token is log p(teacher) - log p(student). That lowers KL(student || teacher)."""

from __future__ import annotations

import torch

from microrl.algorithm import dapo, grpo
from microrl.algorithm import loss as terms
from microrl.config import RunConfig
from microrl.types import Completion, Score


class Algorithm(dapo.Algorithm):
    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.reward_weight = config.distill.reward_weight

    def counts(self, completion: Completion, score: Score) -> bool:
        """Whether a completion takes part in the loss. One without a reward does, too: its group's advantage is 0."""
        return not (self.config.mask_truncated and completion.finish == "length")

    @property
    def needs_teacher(self) -> bool:
        return True

    @property
    def has_policy_gradient(self) -> bool:
        return self.top_k is None or self.reward_weight > 0 or self.needs_reference

    def objective(self, tokens: grpo.Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """-ratio * A with A = teacher - old + reward_weight * advantage of the group, and no clip. A has no gradient.

        The expectation of teacher - old over the student's tokens is -KL(student || teacher). Each token gets its own term of it
        alone: its effect on later tokens is ignored, as in Thinking Machines' recipe. Both log-probabilities are clamped to at
        least -100 nats, and the term of a token for which the teacher's is not finite is 0.

        With `distill.top_k`, the teacher is not in A: the KL over several outcomes is differentiated itself.
        """
        assert tokens.teacher_BT is not None, "distillation without the teacher's log-probabilities"
        advantages_BT = torch.zeros_like(tokens.old_BT)
        if self.top_k is None:
            advantages_BT = terms.mismatch(tokens.teacher_BT, tokens.old_BT).where(tokens.teacher_BT.isfinite(), 0.0)
        if self.reward_weight:
            advantages_BT = advantages_BT + self.reward_weight * tokens.advantages_B[:, None]
        ratio_BT = (tokens.new_BT - tokens.old_BT).exp()
        return -ratio_BT * advantages_BT, torch.zeros_like(tokens.mask_BT)
