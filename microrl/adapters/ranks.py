"""AdaLoRA's budget of ranks: which of all layers' singular values stay, and how many, as the run's budget is spent.

Zhang et al. 2023 (arXiv 2303.10512), section 3. Written here and not taken from PEFT: PEFT's allocator counts steps up to a
total that a run bounded by hours does not know, stops where nothing is to be cut yet, and its averages are not saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from peft.tuners.adalora.layer import SVDLinear

from microrl.config.adapters import AdaLoraConfig


@dataclass(slots=True)
class _Factor:
    """P, E or Q of one layer with the moving averages of |weight * gradient| and of how much that varies."""

    parameter: torch.nn.Parameter
    sensitivity: torch.Tensor
    uncertainty: torch.Tensor

    def see(self, decay: float) -> None:
        """Take the gradient into account that is there now."""
        assert self.parameter.grad is not None
        now = (self.parameter * self.parameter.grad).abs()
        self.sensitivity.lerp_(now, 1 - decay)
        self.uncertainty.lerp_((now - self.sensitivity).abs(), 1 - decay)

    def score(self) -> torch.Tensor:
        return self.sensitivity * self.uncertainty


class RankAllocator:
    """The importance of every singular value, and the cut that follows from it. PEFT's names: A is Q, B is P."""

    def __init__(self, layers: Mapping[str, SVDLinear], config: AdaLoraConfig, adapter: str) -> None:
        self._config = config
        self._layers: dict[str, dict[str, _Factor]] = {}
        for name, layer in layers.items():
            parameters = {part: getattr(layer, f"lora_{part}")[adapter] for part in "ABE"}
            self._layers[name] = {
                part: _Factor(parameter, torch.zeros_like(parameter), torch.zeros_like(parameter))
                for part, parameter in parameters.items()
            }

    def state(self) -> dict[str, torch.Tensor]:
        """The live averages, by name: what a checkpoint keeps."""
        return {
            f"{average}.{name}.{part}": getattr(factor, average)
            for average in ("sensitivity", "uncertainty")
            for name, factors in self._layers.items()
            for part, factor in factors.items()
        }

    def kept(self, progress: float) -> int:
        """Singular values that stay, of all layers together, when this share of the budget is spent (the paper's b(t))."""
        config, layers = self._config, len(self._layers)
        first, last = config.rank * layers, config.final_rank * layers
        left = 1 - (progress - config.hold_first) / (1 - config.hold_first - config.hold_last)
        return int(last + (first - last) * min(max(left, 0.0), 1.0) ** 3)

    @torch.no_grad()
    def step(self, progress: float) -> None:
        """Take the gradients into account that are there now, behind the optimiser's step; then cut to the budget."""
        for factors in self._layers.values():
            for factor in factors.values():
                factor.see(self._config.sensitivity_decay)
        kept = self.kept(progress)
        if kept >= self._config.rank * len(self._layers):
            return
        scores = [
            factors["E"].score().flatten() + factors["A"].score().mean(dim=1) + factors["B"].score().mean(dim=0)
            for factors in self._layers.values()
        ]
        cut = torch.ones(sum(map(len, scores)), dtype=torch.bool, device=scores[0].device)
        cut[torch.cat(scores).topk(kept).indices] = False
        for factors, cut_R in zip(self._layers.values(), cut.split([len(scores_R) for scores_R in scores]), strict=True):
            factors["E"].parameter.masked_fill_(cut_R[:, None], 0.0)

    def regulariser(self) -> torch.Tensor:
        """orthogonality * mean of |Q Q^T - I|_F and |P^T P - I|_F over all layers (the paper's eq. 4; the norms as in PEFT)."""
        norms = []
        for factors in self._layers.values():
            A_RI, B_OR = factors["A"].parameter, factors["B"].parameter
            for gram_RR in (A_RI @ A_RI.t(), B_OR.t() @ B_OR):
                eye_RR = torch.eye(len(gram_RR), device=gram_RR.device, dtype=gram_RR.dtype)
                norms.append(torch.linalg.matrix_norm(gram_RR - eye_RR))
        return self._config.orthogonality * torch.stack(norms).mean()
