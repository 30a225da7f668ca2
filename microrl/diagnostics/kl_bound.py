"""How the rank of a LoRA pair bounds the policy's drift: theorem 1 of "LoRA as an implicit KL regulariser", checked as in its
section 5.1.

One hidden layer classifies scikit-learn's handwritten digits. After it has been trained, its weights are frozen, and a LoRA pair
on the hidden layer is trained with plain SGD. Everything is in float64; the changes of the factors are kept apart from the
factors, since they are too small to be seen in their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

HIDDEN, CLASSES = 256, 10
EPOCHS, BATCH, RATE, CLIP = 30, 64, 1e-8, 1e-3
"""Of fine-tuning (section 5.1)."""
PRETRAINING_EPOCHS, PRETRAINING_RATE = 20, 1e-2
"""Not stated in the paper."""
Clip = Literal["value", "norm"]
"""How gradients are clipped at CLIP: each of their elements, as assumption 3 has it (an infinity norm), or their joint norm. By
norm all ranks move equally far, and from this start the divergence does not grow with the rank."""
HELD_OUT = 360
"""Digits on which the divergence is measured."""


@dataclass(frozen=True, slots=True)
class RankStudy:
    """One value a seed: the measured divergence, and the bound of equation 5, in nats."""

    rank: int
    kl_S: torch.Tensor
    bound_S: torch.Tensor
    pretrained_accuracy_S: torch.Tensor


def study(ranks: Sequence[int], seeds: int, *, clip: Clip = "value") -> Iterator[RankStudy]:
    """The study for each rank, one after the other, with seeds 0 to `seeds` - 1. Needs scikit-learn."""
    features_NK, labels_N = digits()
    networks = [pretrained(features_NK, labels_N, seed) for seed in range(seeds)]
    for rank in ranks:
        yield _fine_tuned(rank, networks, features_NK, labels_N, clip)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The digits with features of mean 0 and variance 1 (assumption 2), and their labels. Features that never vary stay 0."""
    from sklearn.datasets import load_digits

    dataset = load_digits()
    features_NK = torch.tensor(dataset.data, dtype=torch.float64)
    deviation_K = features_NK.std(0)
    features_NK = (features_NK - features_NK.mean(0)) / torch.where(deviation_K > 0, deviation_K, torch.ones_like(deviation_K))
    return features_NK, torch.tensor(dataset.target)


def pretrained(features_NK: torch.Tensor, labels_N: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(hidden weights [D, K], output weights [C, D], accuracy on held-out digits) of a network that has learned the digits."""
    draw = torch.Generator().manual_seed(seed)
    inputs = features_NK.shape[1]
    hidden_DK = torch.randn(HIDDEN, inputs, dtype=torch.float64, generator=draw).div_(inputs**0.5).requires_grad_()
    output_CD = torch.randn(CLASSES, HIDDEN, dtype=torch.float64, generator=draw).div_(HIDDEN**0.5).requires_grad_()
    optimizer = torch.optim.Adam([hidden_DK, output_CD], lr=PRETRAINING_RATE)
    count = len(labels_N) - HELD_OUT
    for _ in range(PRETRAINING_EPOCHS):
        for rows in torch.randperm(count, generator=draw).split(BATCH):
            optimizer.zero_grad()
            logits_NC = torch.relu(features_NK[rows] @ hidden_DK.T) @ output_CD.T
            torch.nn.functional.cross_entropy(logits_NC, labels_N[rows]).backward()
            optimizer.step()
    with torch.no_grad():
        guessed_N = (torch.relu(features_NK[count:] @ hidden_DK.T) @ output_CD.T).argmax(1)
        return hidden_DK.detach(), output_CD.detach(), float((guessed_N == labels_N[count:]).double().mean())


def _fine_tuned(
    rank: int,
    networks: Sequence[tuple[torch.Tensor, torch.Tensor, float]],
    features_NK: torch.Tensor,
    labels_N: torch.Tensor,
    clip: Clip,
) -> RankStudy:
    """All seeds at once. A0 and B0 have independent entries of unit variance (assumption 1)."""
    seeds, inputs, count = len(networks), features_NK.shape[1], len(labels_N) - HELD_OUT
    hidden_SDK = torch.stack([hidden for hidden, _, _ in networks])
    output_SCD = torch.stack([output for _, output, _ in networks])
    draws = [torch.Generator().manual_seed(1000 + seed) for seed in range(seeds)]
    a0_SRK = torch.stack([torch.randn(rank, inputs, dtype=torch.float64, generator=draw) for draw in draws])
    b0_SDR = torch.stack([torch.randn(HIDDEN, rank, dtype=torch.float64, generator=draw) for draw in draws])
    change_a, change_b = torch.zeros_like(a0_SRK, requires_grad=True), torch.zeros_like(b0_SDR, requires_grad=True)
    for _ in range(EPOCHS):
        order_SN = torch.stack([torch.randperm(count, generator=draw) for draw in draws])
        for rows_SN in order_SN.split(BATCH, dim=1):
            weights_SDK = hidden_SDK + (b0_SDR + change_b) @ (a0_SRK + change_a)
            logits_SNC = torch.relu(features_NK[rows_SN] @ weights_SDK.mT) @ output_SCD.mT
            each = torch.nn.functional.cross_entropy(logits_SNC.flatten(0, 1), labels_N[rows_SN].flatten(), reduction="none")
            gradients = torch.autograd.grad(each.view(seeds, -1).mean(1).sum(), (change_a, change_b))
            with torch.no_grad():
                for change, gradient in zip((change_a, change_b), clipped(gradients, clip), strict=True):
                    change -= RATE * gradient
    with torch.no_grad():
        kl_S = _divergence(features_NK[count:], hidden_SDK, output_SCD, a0_SRK, b0_SDR, change_a, change_b)
        return RankStudy(
            rank, kl_S, bound(a0_SRK, b0_SDR, change_a, change_b), torch.tensor([accuracy for _, _, accuracy in networks])
        )


def clipped(gradients: Sequence[torch.Tensor], clip: Clip) -> list[torch.Tensor]:
    """The gradients, [S, ...] each, clipped for each seed."""
    if clip == "value":
        return [gradient.clamp(-CLIP, CLIP) for gradient in gradients]
    norm_S = torch.stack([gradient.square().sum((1, 2)) for gradient in gradients]).sum(0).sqrt()
    return [gradient * (CLIP / norm_S).clamp(max=1.0).view(-1, 1, 1) for gradient in gradients]


def _divergence(
    features_NK: torch.Tensor, hidden_SDK: torch.Tensor, output_SCD: torch.Tensor, a0_SRK: torch.Tensor, b0_SDR: torch.Tensor,
    change_a: torch.Tensor, change_b: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """KL(policy after, policy before) for each seed, mean over the digits. The shift of the logits is computed as such: as a
    difference of logits it would be lost in their rounding."""
    before_SND = features_NK @ (hidden_SDK + b0_SDR @ a0_SRK).mT
    shift_SND = features_NK @ (b0_SDR @ change_a + change_b @ a0_SRK + change_b @ change_a).mT
    active_SND = torch.relu(before_SND + shift_SND) - torch.relu(before_SND)
    # Where the sign stays, the difference of the two is the shift itself.
    same_SND = (before_SND > 0) & (before_SND + shift_SND > 0)
    shift_SNC = torch.where(same_SND, shift_SND, active_SND) @ output_SCD.mT
    policy_SNC = torch.softmax(torch.relu(before_SND) @ output_SCD.mT, dim=-1)
    return kl_of_shift(policy_SNC, shift_SNC).mean(1)


def kl_of_shift(policy_NC: torch.Tensor, shift_NC: torch.Tensor) -> torch.Tensor:
    """KL(softmax(z + shift), softmax(z)) for policies softmax(z), [..., C] to [...]; exact for shifts far below float64's
    resolution of z.

    With d = log of the ratio, sum p e^d d = sum p (e^d d - e^d + 1), since both policies sum to 1; each term is then positive.
    """
    ratio_NC = shift_NC - torch.log1p((policy_NC * torch.expm1(shift_NC)).sum(-1, keepdim=True))
    small_NC = ratio_NC.abs() < 1e-4
    series_NC = ratio_NC**2 * (0.5 + ratio_NC * (1 / 3 + ratio_NC / 8))
    exact_NC = ratio_NC * torch.expm1(ratio_NC) + ratio_NC - torch.expm1(ratio_NC)
    return (policy_NC * torch.where(small_NC, series_NC, exact_NC)).sum(-1)


def bound(a0_SRK: torch.Tensor, b0_SDR: torch.Tensor, change_a: torch.Tensor, change_b: torch.Tensor) -> torch.Tensor:
    """mu e^mu with mu = sqrt(r k) (|B0| |dA| + |A0| |dB|), operator norms, k inputs (equation 5); one value a seed."""

    def norm(matrix: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_norm(matrix, ord=2)

    rank, inputs = a0_SRK.shape[-2:]
    mu_S = (rank * inputs) ** 0.5 * (norm(b0_SDR) * norm(change_a) + norm(a0_SRK) * norm(change_b))
    return mu_S * mu_S.exp()
