"""What an update did, summed over its micro-batches: a metric is the whole step's and not the last micro-batch's."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

from microrl.algorithm.loss import MAX_MISMATCH, mismatch
from microrl.errors import UserError
from microrl.policy.divergence import TeacherScores

MEANS = ("kl_sampler", "outside_share", "clip_fraction", "kl_ref", "distill_kl", "agreement")
"""The fields of `Update` that are means over the tokens that the policy drew."""


@dataclass(frozen=True, slots=True)
class Update:
    """What one step's update did; `metrics` says which metric a field is."""

    loss: float
    entropy: float
    kl_sampler: float
    outside_share: float
    impossible_tokens: int
    clip_fraction: float
    grad_norm: float | None
    step_kl: float | None
    step_kl_s: float
    skipped: int
    reason: str | None
    fraction: float = 1.0
    """What `step_kl.shrink` has left of the step."""
    kl_ref: float | None = None
    distill_kl: float | None = None
    teacher_entropy: float | None = None
    teacher_impossible: int | None = None
    agreement: float | None = None
    tokens: int = 0
    """Number of drawn tokens; no metric."""

    def metrics(self, entropy_start: float) -> dict[str, Any]:
        """By name, as in `microrl.run.metrics`; `entropy_start` is step 0's entropy, nats."""
        change = (self.entropy / entropy_start - 1) * 100 if entropy_start else 0.0
        return {
            "policy/entropy": self.entropy,
            "policy/entropy_change_pct": change,
            "policy/kl_sampler": self.kl_sampler,
            "policy/outside_share": self.outside_share,
            "policy/impossible_tokens": self.impossible_tokens,
            "policy/kl_ref": self.kl_ref,
            "policy/clip_fraction": self.clip_fraction,
            "policy/grad_norm": self.grad_norm,
            "policy/step_kl": self.step_kl,
            "time/step_kl": self.step_kl_s,
            "distill/kl": self.distill_kl,
            "distill/teacher_entropy": self.teacher_entropy,
            "distill/agreement": self.agreement,
            "distill/impossible_tokens": self.teacher_impossible,
            "update/skipped": self.skipped,
            "loss": self.loss,
        }


@dataclass(frozen=True, slots=True)
class SftUpdate:
    """What a supervised step did. `loss` is the mean cross-entropy before it, nats a token; with soft targets it is `kl`."""

    loss: float
    tokens: int
    grad_norm: float | None
    reason: str | None
    """Why the step was skipped; None: it was not."""
    kl: float | None = None
    """Mean of `kl_to_top`, nats a token; None without soft targets."""


class UpdateMetrics:
    """The sums. See `Update` for what becomes of them."""

    def __init__(self, minibatches: int) -> None:
        self._minibatches = minibatches
        self.grad_norms: list[float] = []
        self._rows = self._tokens = 0
        self._sums: dict[str, Any] = defaultdict(int)
        """By the names of `Update`'s fields; what was never added is not there."""
        self._skipped = 0
        self.moved: float | None = None
        """How far the steps have moved the policy, nats a token; None where nothing asked for it, and nothing has moved."""
        self.step_kl_s = 0.0
        """Seconds of measuring that, and of shrinking the step."""
        self.fraction = 1.0
        self.reason: str | None = None

    def add(
        self,
        *,
        loss: torch.Tensor,
        mismatch_BT: torch.Tensor,
        impossible_BT: torch.Tensor,
        entropy_BT: torch.Tensor,
        clipped_BT: torch.Tensor,
        kl_BT: torch.Tensor | None,
        old_BT: torch.Tensor,
        teacher: TeacherScores | None,
        agrees_BT: torch.Tensor | None,
        mask_BT: torch.Tensor,
        represents_B: torch.Tensor,
    ) -> None:
        """Add a micro-batch; `represents_B`: for how many rows each of its rows stands, see `sample_without_gradient`."""

        def total(values_BT: torch.Tensor) -> float:
            return float((values_BT.sum(1, dtype=torch.float64) * represents_B).sum())

        sums = self._sums
        sums["loss"] += float(loss)
        self._rows += int(represents_B.sum())
        self._tokens += int(total(mask_BT))
        sums["entropy"] += float((entropy_BT.sum(1, dtype=torch.float64) / mask_BT.sum(1) * represents_B).sum())
        mismatch_BT = mismatch_BT.clamp(max=MAX_MISMATCH)
        sums["kl_sampler"] += total(torch.expm1(mismatch_BT) - mismatch_BT)
        sums["impossible_tokens"] += int(total(impossible_BT & mask_BT))
        ratio_BT = mismatch_BT.exp()
        sums["outside_share"] += total(((ratio_BT < 0.8) | (ratio_BT > 1.25)) & mask_BT)
        sums["clip_fraction"] += total(clipped_BT & mask_BT)
        if kl_BT is not None:
            sums["kl_ref"] += total(kl_BT * mask_BT)
        if teacher is not None:
            sums["distill_kl"] += total(mismatch(old_BT, teacher.logprobs_BT))  # 0 outside of the mask
            known_BT = teacher.logprobs_BT.isfinite() & mask_BT
            known_B = known_BT.sum(1)
            entropy_B = teacher.entropy_BT.where(known_BT, 0.0).sum(1, dtype=torch.float64) / known_B.clamp(min=1)
            sums["teacher_entropy"] += float((entropy_B * represents_B).sum())  # as the student's: averaged by completion
            sums["teacher_rows"] += int(((known_B > 0) * represents_B).sum())
            sums["teacher_known"] += int(total(known_BT))
            sums["teacher_impossible"] += int(total(mask_BT & ~known_BT))
        if agrees_BT is not None:
            sums["agreement"] += total(agrees_BT)

    def refuse_silent_teacher(self) -> None:
        """Raise UserError where the teacher's log-probabilities are not finite for most of the tokens so far."""
        known, impossible = (self._sums.get(name, 0) for name in ("teacher_known", "teacher_impossible"))
        if impossible > known:
            raise UserError(
                f"the teacher's log-probabilities are not finite for {f'{impossible:,}' if known else 'any'} of the "
                f"{known + impossible:,} drawn tokens",
                "its weights may be broken: look at what it writes with microrl sample, or choose another --teacher",
            )

    def add_loss(self, penalty: torch.Tensor) -> None:
        """What an adapter adds to the loss of a mini-batch."""
        self._sums["loss"] += float(penalty)

    def skip(self, reason: str) -> None:
        self._skipped += 1
        self.reason = reason

    def result(self) -> Update:
        sums = self._sums
        return Update(
            loss=sums["loss"] / self._minibatches,
            entropy=sums["entropy"] / self._rows,
            impossible_tokens=sums["impossible_tokens"],
            grad_norm=sum(self.grad_norms) / len(self.grad_norms) if self.grad_norms else None,
            step_kl=self.moved,
            step_kl_s=self.step_kl_s,
            fraction=self.fraction,
            skipped=self._skipped,
            reason=self.reason,
            teacher_entropy=sums["teacher_entropy"] / sums["teacher_rows"] if "teacher_rows" in sums else None,
            teacher_impossible=sums.get("teacher_impossible"),
            tokens=self._tokens,
            **{name: sums[name] / self._tokens for name in MEANS if name in sums},
        )
