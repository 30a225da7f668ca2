"""The configuration of every adapter: one class each. Its docstring gives the formula, the source, and how it is served.

Letters as in `microrl.config.adapter`. An update that is low-rank reaches the engine as an exact LoRA pair; any other as merged
weights.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from microrl.config.adapter import (
    BaseAdapterConfig,
    Linear,
    LowRankConfig,
    NetworkSize,
    RankedConfig,
    ResidualConfig,
    TargetedConfig,
)  # fmt: skip
from microrl.config.section import Decay, Fraction, Positive


class LoraConfig(LowRankConfig):
    """W0 x + s B A x; A starts Kaiming uniform, B at 0.
    Hu et al. 2021, arXiv 2106.09685. Served as a pair."""

    kind: Literal["lora"] = "lora"


class RsLoraConfig(LowRankConfig):
    """LoRA with s = alpha / sqrt(r).
    Kalajdzievski 2023, arXiv 2312.03732. Served as a pair."""

    family: ClassVar[str] = "lora.RsLora"
    kind: Literal["rslora"] = "rslora"

    @property
    def scale(self) -> float:
        return float(self.alpha / self.rank**0.5)


class LoraPlusConfig(LowRankConfig):
    """LoRA whose B learns `ratio` times as fast as A.
    Hayou et al. 2024, arXiv 2402.12354. Served as a pair."""

    family: ClassVar[str] = "lora.LoraPlus"
    kind: Literal["lora+"] = "lora+"
    ratio: Annotated[float, Field(gt=0)] = 16.0
    """Learning rate of B over that of A."""


class LoraFaConfig(LowRankConfig):
    """LoRA whose A stays as it starts; only B is trained, by plain AdamW.
    Zhang et al. 2023, arXiv 2308.03303. Served as a pair."""

    family: ClassVar[str] = "lora.LoraFa"
    is_ever_merged: ClassVar[bool] = False
    kind: Literal["lora-fa"] = "lora-fa"

    def trained_in(self, linear: Linear) -> int:
        return self.rank * linear.n_out

    def frozen_in(self, linear: Linear) -> int:
        return self.rank * linear.n_in

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        return dtype_bytes * self.rank * len(linears)


class DoraConfig(LowRankConfig):
    """m (W0 + s B A) / |W0 + s B A|, norms by output row; m starts at |W0|, and no gradient runs through the norm.
    Liu et al. 2024, arXiv 2402.09353. Served as merged weights."""

    is_one_product: ClassVar[bool] = False
    family: ClassVar[str] = "lora.Dora"
    kind: Literal["dora"] = "dora"

    @property
    def pair_rank(self) -> int | None:
        return None

    def trained_in(self, linear: Linear) -> int:
        return super().trained_in(linear) + linear.n_out

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        outputs = sum(linear.count * linear.n_out for linear in linears) // network.layers
        return super().saved_bytes(network, linears, dtype_bytes) + (dtype_bytes + 4) * outputs


class AdaLoraConfig(LowRankConfig):
    """W0 x + alpha / (r + 1e-5) P E Q x, E diagonal; the rank budget shrinks, keeping the most important entries of E.
    Zhang et al. 2023, arXiv 2303.10512. Served as a pair."""

    is_one_product: ClassVar[bool] = False
    family: ClassVar[str] = "adalora.AdaLora"
    computes_pair: ClassVar[bool] = True
    kind: Literal["adalora"] = "adalora"
    target_rank: Positive | None = None
    """Mean rank at the end; None: two thirds of `rank`, as in the paper."""
    hold_first: Fraction = 0.1
    """Fraction of the budget before the first rank cut."""
    hold_last: Fraction = 0.3
    """Fraction of the budget after the last rank cut."""
    orthogonality: Annotated[float, Field(ge=0)] = 0.5
    """Weight of the orthogonality loss: |P^T P - I| and |Q Q^T - I|, averaged over all P and Q."""
    sensitivity_decay: Decay = 0.85
    """Decay of the moving averages of sensitivity and its uncertainty (beta1 and beta2)."""

    @property
    def final_rank(self) -> int:
        """`target_rank` with its default."""
        return self.target_rank or max(1, round(self.rank * 2 / 3))

    @property
    def scale(self) -> float:
        return self.alpha / (self.rank + 1e-5)

    @model_validator(mode="after")
    def _consistent(self) -> AdaLoraConfig:
        if self.final_rank > self.rank:
            why = f"adapter.target_rank {self.target_rank} is above the initial adapter.rank {self.rank}"
            raise ValueError(why, f"--rank {self.final_rank * 3 // 2}, or a lower adapter.target_rank")
        if self.hold_first + self.hold_last >= 1:
            raise ValueError("adapter.hold_first and adapter.hold_last leave no time to cut ranks", "their sum must be below 1")
        return self

    def trained_in(self, linear: Linear) -> int:
        return super().trained_in(linear) + self.rank


class MissConfig(RankedConfig):
    """W0 x + D^T E x, D (r x out) from 0, E adds up every r-th input: 0/1, fixed.
    Kang & Yin 2024, arXiv 2409.15371. Served as a pair."""

    family: ClassVar[str] = "miss.Miss"
    computes_pair: ClassVar[bool] = True
    kind: Literal["miss"] = "miss"

    def trained_in(self, linear: Linear) -> int:
        return self.rank * linear.n_out

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        return self._saved_products(network, linears)


class VeraConfig(RankedConfig):
    """W0 x + b * (B (d * (A x))); A and B random, frozen, shared by all layers; the vectors d from 0.1 and b from 0 are trained.
    Kopiczko et al. 2023, arXiv 2310.11454. Served as a pair."""

    family: ClassVar[str] = "vera.Vera"
    computes_pair: ClassVar[bool] = True
    kind: Literal["vera"] = "vera"
    d_initial: float = 0.1
    """Initial value of d."""

    def trained_in(self, linear: Linear) -> int:
        return self.rank + linear.n_out

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        outputs = sum(linear.count * linear.n_out for linear in linears) // network.layers
        return self._saved_products(network, linears) + 4 * outputs


class Ia3Config(TargetedConfig):
    """Keys, values and the input of the MLP's last layer, each times a vector that starts at ones.
    Liu et al. 2022, arXiv 2205.05638. Served as merged weights."""

    family: ClassVar[str] = "ia3.Ia3"
    kind: Literal["ia3"] = "ia3"
    targets: Literal["all-linear"] | tuple[str, ...] = ("k_proj", "v_proj", "down_proj")
    """Names of the linear layers whose output is rescaled; for `down_proj`, the input is."""

    def trained_in(self, linear: Linear) -> int:
        return linear.n_in if linear.kind == "down_proj" else linear.n_out

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        down = [linear for linear in linears if linear.kind == "down_proj"]
        others = [linear for linear in linears if linear.kind != "down_proj"]
        inputs, outputs = sum(one.count * one.n_in for one in down), sum(one.count * one.n_out for one in others)
        return (4 * inputs + dtype_bytes * outputs) // network.layers


class LnConfig(BaseAdapterConfig):
    """The gains of all norms.
    Zhao et al. 2023, arXiv 2312.11420. Served as merged weights."""

    family: ClassVar[str] = "norms.Norms"
    has_linears: ClassVar[bool] = False
    kind: Literal["ln"] = "ln"

    def trained(self, network: NetworkSize, linears: Sequence[Linear]) -> int:
        return network.norms

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        return dtype_bytes * network.norms_a_layer


class FullConfig(BaseAdapterConfig):
    """W x: every weight, kept in float32.
    Full fine-tuning. Served as merged weights."""

    family: ClassVar[str] = "full.Full"
    trains_weights: ClassVar[bool] = True
    kind: Literal["full"] = "full"

    def trained(self, network: NetworkSize, linears: Sequence[Linear]) -> int:
        return network.parameters

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        return dtype_bytes * network.distinct_inputs + 4 * network.norms_a_layer + (6 * network.hidden if dtype_bytes < 4 else 0)


class PissaConfig(ResidualConfig):
    """s (B A - B0 A0), B0 = U_r sqrt(S_r / s), A0 = sqrt(S_r / s) V_r^T: the largest r of the thin SVD W0 = U S V^T.
    Meng et al. 2024, arXiv 2404.02948. Served as a pair of rank 2r."""

    kind: Literal["pissa"] = "pissa"


class MiloraConfig(ResidualConfig):
    """As pissa, with the smallest r singular values.
    Wang et al. 2024, arXiv 2406.09044. Served as a pair of rank 2r."""

    kind: Literal["milora"] = "milora"


class OloraConfig(ResidualConfig):
    """s (B A - B0 A0), B0 = U_r, A0 = V_r^T: the largest r singular vectors, without their values.
    Zhang et al. 2026, Geometry-preserving orthonormal initialisation, eq. 7, after OLoRA. Served as a pair of rank 2r."""

    kind: Literal["olora"] = "olora"


class OloraQrConfig(ResidualConfig):
    """s (B A - B0 A0), B0 = Q_r, A0 = R_r of W0 = Q R.
    Buyukakyuz 2024, arXiv 2406.01775, and PEFT's `olora`. Served as a pair of rank 2r."""

    start_by: ClassVar[Literal["svd", "qr", "haar"] | None] = "qr"
    kind: Literal["olora-qr"] = "olora-qr"


class OloraTailConfig(ResidualConfig):
    """As olora, with the smallest r singular vectors.
    Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair of rank 2r."""

    kind: Literal["olora-tail"] = "olora-tail"


class RlpoConfig(LowRankConfig):
    """LoRA with A = V_r^T, the largest r right singular vectors of W0, and B = 0.
    LoRA-RLPO of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    family: ClassVar[str] = "lora.SingularLora"
    start_by: ClassVar[Literal["svd", "qr", "haar"] | None] = "svd"
    kind: Literal["lora-rlpo"] = "lora-rlpo"


class RlmoConfig(LowRankConfig):
    """LoRA with A = V_-r^T, the smallest r right singular vectors of W0 (thin SVD), and B = 0.
    LoRA-RLMO of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    family: ClassVar[str] = "lora.SingularLora"
    start_by: ClassVar[Literal["svd", "qr", "haar"] | None] = "svd"
    kind: Literal["lora-rlmo"] = "lora-rlmo"


class DctConfig(LowRankConfig):
    """LoRA with A = the first r rows of the orthonormal DCT-II matrix, and B = 0.
    DCT-LoRA of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    kind: Literal["dct"] = "dct"


class WaveletConfig(LowRankConfig):
    """LoRA with A = Q^T of the QR of a Haar-transformed Gaussian matrix, and B = 0.
    Wavelet-LoRA of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    start_by: ClassVar[Literal["svd", "qr", "haar"] | None] = "haar"
    kind: Literal["wavelet"] = "wavelet"


class TinyLoraConfig(RankedConfig):
    """W0 x + B (sum_i v_i P_i) A x; B and A from the largest r singular values of W0, P_i random, all frozen; v starts at 0.
    TinyLoRA, "Learning to reason in 13 parameters", arXiv 2602.04118, by PEFT. Served as a pair."""

    family: ClassVar[str] = "tinylora.TinyLora"
    quant_fault: ClassVar[str | None] = "PEFT gives its vectors the 4-bit storage type"
    computes_pair: ClassVar[bool] = True
    start_by: ClassVar[Literal["svd", "qr", "haar"] | None] = "svd"
    takes_fewer: ClassVar[bool] = True
    kind: Literal["tinylora"] = "tinylora"
    rank: Positive = 2
    """Number of singular directions; at most the smaller side of a layer."""
    size: Positive = 64
    """Number of elements of a vector v."""
    tying: Fraction = 0.0
    """0: every layer has its own v; 1: all layers share one."""

    def trained(self, network: NetworkSize, linears: Sequence[Linear]) -> int:
        """As many vectors as PEFT deals out to the layers that share them."""
        layers = sum(linear.count for linear in linears)
        wanted = max(1, round(layers * (1 - self.tying)))
        return self.size * min((layers - 1) // max(1, layers // wanted) + 1, wanted)

    def saved_bytes(self, network: NetworkSize, linears: Sequence[Linear], dtype_bytes: int) -> int:
        return self._saved_products(network, linears)


AdapterConfig = Annotated[
    LoraConfig | RsLoraConfig | LoraPlusConfig | LoraFaConfig | DoraConfig | AdaLoraConfig | MissConfig | VeraConfig | Ia3Config
    | LnConfig | FullConfig | PissaConfig | MiloraConfig | OloraConfig | OloraQrConfig | OloraTailConfig | RlpoConfig | RlmoConfig
    | DctConfig | WaveletConfig | TinyLoraConfig,
    Field(discriminator="kind"),
]  # fmt: skip

KINDS: dict[str, type[BaseAdapterConfig]] = {
    cls.model_fields["kind"].default: cls for cls in get_args(get_args(AdapterConfig)[0])
}
"""The classes by what `--adapter` takes."""


def documentation(cls: type[BaseAdapterConfig]) -> tuple[str, str, str]:
    """An adapter's form, source, and how it is served, from its docstring."""
    form, _, rest = (inspect.getdoc(cls) or "").partition("\n")
    source, _, served = rest.rpartition(" Served as ")
    return form.rstrip("."), source.rstrip("."), served.rstrip(".")
