"""The configuration of every adapter: one class each. Its docstring gives the formula, the source, and how it is served.

W0 is a layer's weight (out x in), r the rank, s = alpha / r. A LoRA pair (A, B) stands for the update s B A. An update
that is low-rank reaches the engine as an exact LoRA pair; any other as merged weights.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, model_validator

from microrl.config.section import Decay, Fraction, Positive, Section
from microrl.errors import UserError, did_you_mean

ALPHA_FROM_RANK = {"rank": 1.0, "2rank": 2.0}
"""What alpha can be instead of a number, and the factor of the rank that it then is."""


class BaseAdapterConfig(Section):
    """What every adapter's configuration has."""

    is_one_product: ClassVar[bool] = False
    """Whether it is computed in one product with its base, in the base's type (`adapters/lora_linear.py`)."""

    @property
    def name(self) -> str:
        """The kind and its rank, for display."""
        rank = getattr(self, "rank", None)
        kind = str(getattr(self, "kind", ""))
        return kind if rank is None else f"{kind} rank {rank}"

    @property
    def extra_rank(self) -> int:
        """Rank of the products that the trainer computes in addition to each targeted layer's own; 0 for none."""
        return 0

    @property
    def pair_rank(self) -> int | None:
        """Rank of the LoRA pair that is sent to the engine; None: merged weights."""
        return None

    @property
    def served(self) -> str:
        """How the engine gets it, for display."""
        return "as merged weights" if self.pair_rank is None else f"as a LoRA pair of rank {self.pair_rank}"


class TargetedConfig(BaseAdapterConfig):
    """With a choice of linear layers."""

    targets: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the linear layers that get an adapter; all-linear: all except the output head."""


class RankedConfig(TargetedConfig):
    """With a rank."""

    rank: Positive = 64
    """Rank of the update of every targeted linear layer."""

    @property
    def extra_rank(self) -> int:
        return self.rank

    @property
    def pair_rank(self) -> int | None:
        return self.rank


class LowRankConfig(RankedConfig):
    """With a rank and a scale."""

    is_one_product: ClassVar[bool] = True
    alpha: Annotated[float, Field(gt=0)] = 64.0
    """The update is scaled by alpha / rank (rslora: alpha / sqrt(rank)). `rank` and `2rank` become once and twice the rank."""

    @model_validator(mode="before")
    @classmethod
    def _alpha_from_rank(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("alpha") not in ALPHA_FROM_RANK:
            return given
        rank = given.get("rank", cls.model_fields["rank"].default)
        # A rank that is no number has an error of its own.
        return {**given, "alpha": ALPHA_FROM_RANK[given["alpha"]] * rank if isinstance(rank, int) else 1.0}

    @property
    def scale(self) -> float:
        """s, the factor of B A."""
        return self.alpha / self.rank


class ResidualConfig(LowRankConfig):
    """W0 x + s (B A - B0 A0) x: A and B start at A0 and B0, made from W0. W0 stays: the start is subtracted."""

    @property
    def extra_rank(self) -> int:
        return 2 * self.rank

    @property
    def pair_rank(self) -> int | None:
        return 2 * self.rank


class LoraConfig(LowRankConfig):
    """W0 x + s B A x; A starts Kaiming uniform, B at 0.
    Hu et al. 2021, arXiv 2106.09685. Served as a pair."""

    kind: Literal["lora"] = "lora"


class RsLoraConfig(LowRankConfig):
    """LoRA with s = alpha / sqrt(r).
    Kalajdzievski 2023, arXiv 2312.03732. Served as a pair."""

    kind: Literal["rslora"] = "rslora"

    @property
    def scale(self) -> float:
        return float(self.alpha / self.rank**0.5)


class LoraPlusConfig(LowRankConfig):
    """LoRA whose B learns `ratio` times as fast as A.
    Hayou et al. 2024, arXiv 2402.12354. Served as a pair."""

    kind: Literal["lora+"] = "lora+"
    ratio: Annotated[float, Field(gt=0)] = 16.0
    """Learning rate of B over that of A."""


class LoraFaConfig(LowRankConfig):
    """LoRA whose A stays as it starts; only B is trained, by plain AdamW.
    Zhang et al. 2023, arXiv 2308.03303. Served as a pair."""

    kind: Literal["lora-fa"] = "lora-fa"


class DoraConfig(LowRankConfig):
    """m (W0 + s B A) / |W0 + s B A|, norms by output row; m starts at |W0|, and no gradient runs through the norm.
    Liu et al. 2024, arXiv 2402.09353. Served as merged weights."""

    is_one_product: ClassVar[bool] = False
    kind: Literal["dora"] = "dora"

    @property
    def pair_rank(self) -> int | None:
        return None


class AdaLoraConfig(LowRankConfig):
    """W0 x + alpha / (r + 1e-5) P E Q x, E diagonal; the rank budget shrinks, keeping the most important entries of E.
    Zhang et al. 2023, arXiv 2303.10512. Served as a pair."""

    is_one_product: ClassVar[bool] = False
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


class MissConfig(RankedConfig):
    """W0 x + D^T E x, D (r x out) from 0, E adds up every r-th input: 0/1, fixed.
    Kang & Yin 2024, arXiv 2409.15371. Served as a pair."""

    kind: Literal["miss"] = "miss"


class VeraConfig(RankedConfig):
    """W0 x + b * (B (d * (A x))); A and B random, frozen, shared by all layers; the vectors d from 0.1 and b from 0 are trained.
    Kopiczko et al. 2023, arXiv 2310.11454. Served as a pair."""

    kind: Literal["vera"] = "vera"
    d_initial: float = 0.1
    """Initial value of d."""


class Ia3Config(TargetedConfig):
    """Keys, values and the input of the MLP's last layer, each times a vector that starts at ones.
    Liu et al. 2022, arXiv 2205.05638. Served as merged weights."""

    kind: Literal["ia3"] = "ia3"
    targets: Literal["all-linear"] | tuple[str, ...] = ("k_proj", "v_proj", "down_proj")
    """Names of the linear layers whose output is rescaled; for `down_proj`, the input is."""


class LnConfig(BaseAdapterConfig):
    """The gains of all norms.
    Zhao et al. 2023, arXiv 2312.11420. Served as merged weights."""

    kind: Literal["ln"] = "ln"


class FullConfig(BaseAdapterConfig):
    """W x: every weight, kept in float32.
    Full fine-tuning. Served as merged weights."""

    kind: Literal["full"] = "full"


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

    kind: Literal["olora-qr"] = "olora-qr"


class OloraTailConfig(ResidualConfig):
    """As olora, with the smallest r singular vectors.
    Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair of rank 2r."""

    kind: Literal["olora-tail"] = "olora-tail"


class RlpoConfig(LowRankConfig):
    """LoRA with A = V_r^T, the largest r right singular vectors of W0, and B = 0.
    LoRA-RLPO of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    kind: Literal["lora-rlpo"] = "lora-rlpo"


class RlmoConfig(LowRankConfig):
    """LoRA with A = V_-r^T, the smallest r right singular vectors of W0 (thin SVD), and B = 0.
    LoRA-RLMO of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    kind: Literal["lora-rlmo"] = "lora-rlmo"


class DctConfig(LowRankConfig):
    """LoRA with A = the first r rows of the orthonormal DCT-II matrix, and B = 0.
    DCT-LoRA of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    kind: Literal["dct"] = "dct"


class WaveletConfig(LowRankConfig):
    """LoRA with A = Q^T of the QR of a Haar-transformed Gaussian matrix, and B = 0.
    Wavelet-LoRA of Zhang et al. 2026, Geometry-preserving orthonormal initialisation. Served as a pair."""

    kind: Literal["wavelet"] = "wavelet"


class TinyLoraConfig(RankedConfig):
    """W0 x + B (sum_i v_i P_i) A x; B and A from the largest r singular values of W0, P_i random, all frozen; v starts at 0.
    TinyLoRA, "Learning to reason in 13 parameters", arXiv 2602.04118, by PEFT. Served as a pair."""

    kind: Literal["tinylora"] = "tinylora"
    rank: Positive = 2
    """Number of singular directions; at most the smaller side of a layer."""
    size: Positive = 64
    """Number of elements of a vector v."""
    tying: Fraction = 0.0
    """0: every layer has its own v; 1: all layers share one."""


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


def chosen(adapter: TargetedConfig, sides: Mapping[str, int]) -> set[str]:
    """The linear layers that an adapter changes, of these with their smaller sides.

    Raises UserError for a target that is none, where there are none, and for a rank above the smallest side.
    """
    kinds = {kind_of(name) for name in sides}
    if adapter.targets != "all-linear":
        for target in adapter.targets:
            if target not in kinds:
                raise UserError(f"no linear layer is called `{target}`", did_you_mean(target, sorted(kinds)))
        sides = {name: side for name, side in sides.items() if kind_of(name) in adapter.targets}
    if not sides:
        raise UserError(
            "the adapter has nothing to attach to", "--set adapter.targets=all-linear, or choose another model: --model NAME"
        )
    limit, narrowest = min((side, name) for name, side in sides.items())
    rank = getattr(adapter, "rank", 0)
    if rank > limit and not isinstance(adapter, TinyLoraConfig):  # in which a layer with fewer directions takes all it has
        kinds = {kind_of(name) for name, side in sides.items() if side >= rank}
        wide = json.dumps(sorted(kinds), separators=(",", ":"))
        others = f", or adapt only the wider layers: --set 'adapter.targets={wide}'" if kinds else ""
        raise UserError(f"rank {rank} is above {limit}, the smaller side of {narrowest}", f"--rank {limit} or less{others}")
    return set(sides)


def kind_of(name: str) -> str:
    """`q_proj` of `model.layers.0.self_attn.q_proj`: what `adapter.targets` names."""
    return name.rpartition(".")[2]


def described(cls: type[BaseAdapterConfig]) -> tuple[str, str, str]:
    """An adapter's form, source, and how it is served, from its docstring."""
    form, _, rest = (inspect.getdoc(cls) or "").partition("\n")
    source, _, served = rest.rpartition(" Served as ")
    return form.rstrip("."), source.rstrip("."), served.rstrip(".")
