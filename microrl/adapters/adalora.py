"""AdaLoRA: W0 x + s P E Q x, with a budget of ranks for all layers that shrinks as the run's budget is spent.

Zhang et al. 2023 (arXiv 2303.10512), section 3. The allocator is not PEFT's: that one counts steps up to a total
that a run bounded by hours does not know, stops where nothing is to be cut yet, and does not save its averages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import peft
import torch
from peft.tuners.adalora.layer import AdaLoraLayer, SVDLinear

from microrl.adapters.adapter import ADAPTER, TASK, Adapter, Update, tuned
from microrl.config.adapters import AdaLoraConfig
from microrl.types import LowRank


class AdaLora(Adapter):
    """PEFT's names: lora_A is Q, lora_B is P."""

    config: AdaLoraConfig
    peft_layer = AdaLoraLayer
    prefix = "lora_"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.allocator = RankAllocator(tuned(self.model), self.config)

    def peft_config(self, kinds: list[str]) -> peft.PeftConfig:
        return peft.AdaLoraConfig(
            init_r=self.config.rank,
            target_r=self.config.final_rank,
            lora_alpha=self.config.alpha,
            total_step=3,  # its own schedule of ranks is not used, but has to be consistent
            tinit=0,
            tfinal=1,
            target_modules=kinds,
            task_type=TASK,
        )

    def finish_layer(self, layer: Any) -> None:
        ranks = layer.ranknum[ADAPTER]
        ranks.requires_grad_(False)  # PEFT makes it trainable where it rounds it to 16 bits
        ranks.data = torch.full_like(ranks, self.config.rank, dtype=torch.promote_types(ranks.dtype, torch.float32))

    @staticmethod
    def update(layer: Any) -> Update:
        """A' = E Q, B' = P, s = alpha / (r + 1e-5)."""
        (name,) = layer.active_adapters
        scale = float(layer.scaling[name] / (layer.ranknum[name] + 1e-5))
        return LowRank((layer.lora_A[name] * layer.lora_E[name]).detach(), layer.lora_B[name].detach(), scale)

    def regulariser(self) -> torch.Tensor:
        return self.allocator.regulariser()

    def allocate(self, progress: float) -> None:
        self.allocator.step(progress)

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | self.allocator.state()

    def moving(self) -> dict[str, torch.Tensor]:
        return {**self.parameters, **self.allocator.state()}


@dataclass(slots=True)
class _Factor:
    """P, E or Q of one layer with the moving averages of |weight * gradient| and of how much that varies."""

    parameter: torch.nn.Parameter
    sensitivity: torch.Tensor
    uncertainty: torch.Tensor

    def update_averages(self, decay: float) -> None:
        """Add the current gradient to the averages."""
        assert self.parameter.grad is not None
        now = (self.parameter * self.parameter.grad).abs()
        self.sensitivity.lerp_(now, 1 - decay)
        self.uncertainty.lerp_((now - self.sensitivity).abs(), 1 - decay)

    def score(self) -> torch.Tensor:
        return self.sensitivity * self.uncertainty


class RankAllocator:
    """The importance of every singular value, and the cut that follows from it."""

    def __init__(self, layers: Mapping[str, SVDLinear], config: AdaLoraConfig) -> None:
        self._config = config
        self._layers: dict[str, dict[str, _Factor]] = {}
        for name, layer in layers.items():
            parameters = {part: getattr(layer, f"lora_{part}")[ADAPTER] for part in "ABE"}
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
        """Singular values that stay, of all layers together, when this fraction of the budget is spent (the paper's b(t))."""
        config, layers = self._config, len(self._layers)
        first, last = config.rank * layers, config.final_rank * layers
        left = 1 - (progress - config.hold_first) / (1 - config.hold_first - config.hold_last)
        return int(last + (first - last) * min(max(left, 0.0), 1.0) ** 3)

    @torch.no_grad()
    def step(self, progress: float) -> None:
        """After an optimiser's step, with its gradients: update the averages, then cut to the budget."""
        for factors in self._layers.values():
            for factor in factors.values():
                factor.update_averages(self._config.sensitivity_decay)
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
