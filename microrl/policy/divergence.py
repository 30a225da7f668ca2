"""What a student's logits are compared with: its teacher's, in the chunks in which the log-probabilities are computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch

from microrl.algorithm.loss import MIN_LOGPROB, mismatch
from microrl.limits import CPU_BLOCK_ELEMENTS, GPU_CHUNK_ELEMENTS
from microrl.models.forward import Head
from microrl.policy.microbatch import at_drawn


class TeacherScores(NamedTuple):
    """Log-probability and entropy of each token that the student drew, nats; 0 elsewhere."""

    logprobs_BT: torch.Tensor
    entropy_BT: torch.Tensor
    best_BT: torch.Tensor
    """The teacher's likeliest token."""


class Comparison:
    """Where the likeliest token of student and teacher is the same, at the N drawn tokens of a micro-batch."""

    divergence_N: torch.Tensor | None = None
    """KL(student || teacher), nats, with a gradient once `chosen_logprobs` has scored the student; None: it is not computed."""
    has_policy_gradient = True
    """Whether the loss needs the gradient of the student's log-probabilities, too."""

    def __init__(self, best_N: torch.Tensor, scores: TeacherScores | None = None) -> None:
        self.best_N, self._scores = best_N, scores
        self._agrees_N = torch.zeros_like(best_N, dtype=torch.bool)

    def look(self, logits_CV: torch.Tensor, part: slice, head: Head, slope_CV: torch.Tensor | None) -> None:
        """Compare the student's logits, as they are before the temperature, at the positions `part`; they stay as they are.

        Where there is a divergence, its gradient with respect to the head's output, times the temperature, goes to `slope_CV`.
        """
        best_C1 = self.best_N[part].unsqueeze(1)
        known_C1 = best_C1 < logits_CV.shape[1]
        at_best_C1 = logits_CV.gather(1, best_C1.where(known_C1, 0))
        self._agrees_N[part] = (known_C1 & (at_best_C1 == logits_CV.amax(1, keepdim=True))).squeeze(1)

    def scores(self, mask_BT: torch.Tensor) -> TeacherScores:
        """The teacher's, once the student has been scored."""
        assert self._scores is not None
        return self._scores

    def agrees(self, mask_BT: torch.Tensor) -> torch.Tensor:
        """Whether the likeliest tokens are the same, [B, T]."""
        return at_drawn(self._agrees_N, mask_BT)

    def divergence(self, mask_BT: torch.Tensor) -> torch.Tensor | None:
        """`divergence_N`, [B, T]; 0 where no token was drawn."""
        return None if self.divergence_N is None else at_drawn(self.divergence_N, mask_BT)


class Likeliest(Comparison):
    """Only finds the likeliest tokens, of the teacher's own logits."""

    def __init__(self, mask_BT: torch.Tensor) -> None:
        super().__init__(torch.zeros(int(mask_BT.sum()), dtype=torch.long, device=mask_BT.device))

    def look(self, logits_CV: torch.Tensor, part: slice, head: Head, slope_CV: torch.Tensor | None) -> None:
        self.best_N[part] = logits_CV.max(1).indices


class Divergence(Comparison):
    """The exact KL(student || teacher) at each position: of the whole vocabulary, or of K + 1 outcomes, which are the student's K
    likeliest tokens and all others together. Its gradient is that of the formula, as in GKD (Agarwal et al. 2024, arXiv
    2306.13649): with the probabilities p and the gap d = log p - log q of an outcome, d KL / d logit(v) = p(v) (d(v) - KL).

    Heads may be padded to different sizes: both distributions are those over the ids that both heads have. Log-probabilities
    below -100 nats or not finite count as -100. The scores of the drawn tokens come from the same logits; a position where the
    drawn token's is not finite has no part in the loss.
    """

    divergence_N: torch.Tensor

    def __init__(
        self,
        hidden_ND: torch.Tensor,
        targets_N: torch.Tensor,
        head: Head,
        *,
        top_k: int | Literal["all"],
        has_policy_gradient: bool = True,
    ) -> None:
        super().__init__(torch.zeros_like(targets_N))
        self.hidden_ND, self.targets_N = hidden_ND, targets_N
        self._head = head.to(hidden_ND.dtype)
        self._is_frozen = self._head.weight is head.weight
        self._top_k, self.has_policy_gradient = top_k, has_policy_gradient
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        self.logprobs_N, self.entropy_N, self.divergence_N = (hidden_ND.new_zeros(len(targets_N), dtype=wide) for _ in range(3))

    @torch.no_grad()
    def look(self, logits_CV: torch.Tensor, part: slice, head: Head, slope_CV: torch.Tensor | None) -> None:
        teacher_CV = self._head.logits(self.hidden_ND[part], frozen=self._is_frozen)
        shared = min(logits_CV.shape[1], teacher_CV.shape[1])
        for block in _blocks(*logits_CV.shape, on_cpu=not logits_CV.is_cuda):
            positions = slice(part.start + block.start, part.start + block.start + len(logits_CV[block]))
            self.best_N[positions] = teacher_CV[block].max(1).indices
            super().look(logits_CV[block], positions, head, None)
            log_q_CV = (teacher_CV[block] / head.temperature).log_softmax(1)
            q_CV = log_q_CV.exp()
            self.entropy_N[positions] = -(q_CV * log_q_CV.clamp(min=MIN_LOGPROB)).sum(1)
            known_C1 = (targets_C1 := self.targets_N[positions].unsqueeze(1)) < log_q_CV.shape[1]
            target_log_q_C1 = log_q_CV.gather(1, targets_C1.where(known_C1, 0))
            self.logprobs_N[positions] = target_log_q_C1.masked_fill(~known_C1, -torch.inf).squeeze(1)
            if shared < log_q_CV.shape[1]:
                log_q_CV = log_q_CV[:, :shared].log_softmax(1)
                q_CV = log_q_CV.exp()
            log_p_CV = (logits_CV[block, :shared] / head.temperature).log_softmax(1)
            self.divergence_N[positions], gradient_CV = self._compare(log_p_CV, log_q_CV, q_CV)
            if slope_CV is not None:
                slope_CV[block, :shared], slope_CV[block, shared:] = gradient_CV, 0
                if head.transform is not None:
                    slope_CV[block] *= head.transform.slope(logits_CV[block])

    def scores(self, mask_BT: torch.Tensor) -> TeacherScores:
        return TeacherScores(*(at_drawn(one, mask_BT) for one in (self.logprobs_N, self.entropy_N, self.best_N)))

    def divergence(self, mask_BT: torch.Tensor) -> torch.Tensor:
        return at_drawn(self.divergence_N.where(self.logprobs_N.isfinite(), 0.0), mask_BT)

    def _compare(self, log_p_CV: torch.Tensor, log_q_CV: torch.Tensor, q_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """KL, [C], and its gradient with respect to the student's logits, [C, V]."""
        p_CV = log_p_CV.exp()
        if self._top_k == "all" or self._top_k >= p_CV.shape[1]:
            gap_CV = mismatch(log_p_CV, log_q_CV)
            kl_C = (p_CV * gap_CV).sum(1)
        else:
            log_p_CK, top_CK = log_p_CV.topk(self._top_k, dim=1)
            gap_CK = mismatch(log_p_CK, log_q_CV.gather(1, top_CK))
            # Summed without the top: 1 minus their sum would be rounding alone where little is left.
            rest_C1, of_q_C1 = (one.scatter(1, top_CK, 0.0).sum(1, keepdim=True) for one in (p_CV, q_CV))
            gap_C1 = mismatch(rest_C1.log(), of_q_C1.log())
            kl_C = (log_p_CK.exp() * gap_CK).sum(1) + (rest_C1 * gap_C1).squeeze(1)
            gap_CV = gap_C1.expand_as(p_CV).scatter(1, top_CK, gap_CK)
        return kl_C, p_CV * (gap_CV - kl_C.unsqueeze(1))


def _blocks(rows: int, vocab: int, *, on_cpu: bool) -> Iterator[slice]:
    """Rows whose tensors a CPU's cache holds; on a GPU a fourth of a chunk, so that they take no more memory than the scores."""
    size = max(1, (CPU_BLOCK_ELEMENTS if on_cpu else GPU_CHUNK_ELEMENTS // 4) // vocab)
    for start in range(0, rows, size):
        yield slice(start, start + size)
