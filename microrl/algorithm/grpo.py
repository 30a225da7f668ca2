"""GRPO (Shao et al. 2024), the policy gradient that the other algorithms change in one place each.

An algorithm decides what a step's groups are worth and what the loss of their tokens is. It has no state: the loop, the update
and `regrade` each make their own from the configuration (`algorithm.make`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from microrl.algorithm import loss as terms
from microrl.algorithm.advantages import of_groups
from microrl.config import RunConfig
from microrl.config.reward import gdpo_weights
from microrl.types import Completion, Group, Score


class Tokens(NamedTuple):
    """Completion tokens of some rows, with what the loss needs of them. Log-probabilities in nats; 0 outside of the mask."""

    new_BT: torch.Tensor
    """Under the current weights, with a gradient."""
    old_BT: torch.Tensor
    """Under the weights that sampled, by the trainer."""
    engine_BT: torch.Tensor
    """The same by the engine."""
    ref_BT: torch.Tensor | None
    """Under the untouched model; None where beta is 0."""
    advantages_B: torch.Tensor
    mask_BT: torch.Tensor
    """What the policy drew, in rows that count or not: neither padding nor a tool's tokens."""
    weights_BT: torch.Tensor
    """Of `token_weights`, over the whole mini-batch."""
    teacher_BT: torch.Tensor | None = None
    """Under the teacher, not always finite; None where there is none."""
    divergence_BT: torch.Tensor | None = None
    """KL(policy || teacher) over `distill.top_k` outcomes, with a gradient; None: it is not computed."""


class PolicyLoss(NamedTuple):
    """The loss of some rows, with its gradient, and what its metrics are made of."""

    loss: torch.Tensor
    """[], already divided by the denominators of the whole mini-batch."""
    clipped_BT: torch.Tensor
    """Where the clip was active, or a mask."""
    kl_BT: torch.Tensor | None
    """k3 to the reference, detached; None where beta is 0."""


class Algorithm:
    """Group-relative advantages, token ratios with one clip, the mean over tokens, then over completions.

    Another algorithm overrides the method in which it differs, usually `token_weights` or `objective`:

    >>> class LengthBlind(Algorithm):
    ...     def token_weights(self, counted_NT):
    ...         return terms.token_mean(counted_NT)
    >>> counted_NT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    >>> Algorithm(RunConfig()).token_weights(counted_NT)[:, 0].float()
    tensor([0.1667, 0.5000])
    >>> LengthBlind(RunConfig()).token_weights(counted_NT)[:, 0].float()
    tensor([0.2500, 0.2500])
    """

    per_sequence: ClassVar[bool] = False
    """Whether all tokens of a completion have one ratio."""

    def __init__(self, config: RunConfig) -> None:
        self.config: Any = config.loss
        """The keys of this kind of loss."""
        self.reward, self.env, self.sampling = config.reward, config.env, config.sampling
        self.top_k = config.distill.top_k

    # ---- of groups

    def is_mixed(self, group: Group) -> bool:
        """Whether a group can teach: right and wrong answers, or, where accuracy is no part of the reward, unequal rewards."""
        return group.has_mixed_accuracy if self.reward.accuracy_weight else group.has_mixed_rewards

    def keeps(self, group: Group) -> bool:
        """Whether a group is trained on; the others are replaced by more sampling (DAPO's dynamic sampling)."""
        return not self.config.drops_equal_groups or self.is_mixed(group)

    def advantages(self, groups: Sequence[Group]) -> list[list[float]]:
        """That of every completion, group by group. 0: no gradient of the reward."""
        return of_groups(groups, scale_by_std=self.config.scale_by_std, weights=gdpo_weights(self.reward, self.env))

    def counts(self, completion: Completion, score: Score) -> bool:
        """Whether a completion takes part in the loss."""
        return score.is_valid and not (self.config.mask_truncated and completion.finish == "length")

    # ---- of tokens

    @property
    def needs_reference(self) -> bool:
        """Whether the untouched model scores the batch too."""
        return bool(self.config.beta > 0)

    @property
    def needs_teacher(self) -> bool:
        """Whether a teacher scores the batch too."""
        return False

    @property
    def every_row_has_gradient(self) -> bool:
        """Whether rows whose advantage is 0 have a gradient, too. Of the others, one of each group is scored, for its metrics.

        Nobody knows of an objective from elsewhere, so it is assumed. Where each of its terms is multiplied with the advantage,
        returning False saves the time of the other rows.
        """
        is_ours = type(self).objective.__module__.startswith("microrl.algorithm.")
        return self.needs_reference or self.needs_teacher or not is_ours

    @property
    def has_policy_gradient(self) -> bool:
        """Whether the loss needs the gradient of `new_BT`; a loss that only reports it does not."""
        return True

    def token_weights(self, counted_NT: torch.Tensor) -> torch.Tensor:
        """Each token's weight in the loss, over a whole mini-batch of N completions; the argument is 1 on tokens that count.

        A completion that is left out entirely still counts in N: the others get no more weight.
        """
        return terms.sequence_mean(counted_NT)

    def objective(self, tokens: Tokens) -> tuple[torch.Tensor, torch.Tensor]:
        """Each token's term in the loss, [B, T], and where the clip was active."""
        return terms.surrogate(
            tokens.new_BT,
            tokens.old_BT,
            tokens.advantages_B,
            tokens.mask_BT,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            dual_clip=self.config.dual_clip,
            per_sequence=self.per_sequence,
        )

    def loss(self, tokens: Tokens) -> PolicyLoss:
        """The sum over tokens of weight * (importance weight * objective + beta * KL + KL to the teacher).

        The KL to the teacher (where `distill.top_k` asks for it) is a position's and not the drawn token's: it has no importance
        weight.
        """
        terms_BT, clipped_BT = self.objective(tokens)
        if (cap := self.config.importance_cap) is not None:
            mode = self.config.importance_mode
            weights_BT = terms.importance_weights(tokens.old_BT, tokens.engine_BT, cap, tokens.mask_BT, mode)
            terms_BT, clipped_BT = terms_BT * weights_BT, clipped_BT | (weights_BT == 0)
        kl_BT = None
        if tokens.ref_BT is not None:
            kl_BT = terms.k3(tokens.ref_BT, tokens.new_BT)
            terms_BT = terms_BT + self.config.beta * kl_BT
        if tokens.divergence_BT is not None:
            terms_BT = terms_BT + tokens.divergence_BT
        loss = (tokens.weights_BT * terms_BT).sum()
        return PolicyLoss(loss, clipped_BT, None if kl_BT is None else kl_BT.detach())
