"""How the papers behind the presets evaluate: benchmarks, samples, sampling and limits (`microrl eval --protocol`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from microrl.errors import UserError, did_you_mean


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one benchmark."""

    samples: int
    pass_k: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.6
    top_p: float = 0.95
    max_prompt_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class Protocol:
    """A paper's evaluation. `assumed` says what the paper does not state, and what is taken for it."""

    paper: str
    benchmarks: Mapping[str, Settings]
    seed: int = 0
    assumed: str | None = None


_MICRO = Settings(16, (1, 8, 16), 3584)
_PEFT_32, _PEFT_4 = Settings(32, (32,), 32_768), Settings(4, (4,), 32_768)
_ORTHO_32 = Settings(32, (32,), 16_384)
_KL = Settings(1, (1,), 1024, temperature=0.0, top_p=1.0)

PROTOCOLS = {
    "micro": Protocol(
        "Plasticity vs. Rigidity, section 4",
        {"aime24": _MICRO, "aime25": _MICRO, "amc23": _MICRO, "math500": Settings(1, (1,), 3584)},
        assumed="the paper does not state temperature, top-p and completion limit: 0.6, 0.95 and its training limit are assumed",
    ),
    "peft": Protocol(
        "Evaluating PEFT for RLVR, section 3",
        {**dict.fromkeys(("aime24", "aime25", "amc23", "hmmt"), _PEFT_32), **dict.fromkeys(("math500", "minerva"), _PEFT_4)},
        seed=42,
    ),
    "ortho": Protocol(
        "Geometry-preserving orthonormal initialisation, appendix C",
        {
            "gsm8k": Settings(1, (1,), 4096, temperature=0.0, top_p=1.0),
            "math500": Settings(4, (4,), 8192),
            **dict.fromkeys(("aime22", "aime23", "aime24"), _ORTHO_32),
        },
    ),
    "kl": Protocol(
        "LoRA as an implicit KL regulariser in GRPO, tables 2 to 4",
        {"gsm8k": _KL, "gpqa-diamond": _KL, "math500": _KL},
        assumed="the paper states neither the decoding nor a completion limit: greedy decoding and 1,024 tokens are assumed",
    ),
}


def find(name: str) -> Protocol:
    """The protocol of this name. Raises UserError naming the nearest."""
    if name not in PROTOCOLS:
        raise UserError(f"unknown protocol `{name}`", did_you_mean(name, PROTOCOLS))
    return PROTOCOLS[name]
