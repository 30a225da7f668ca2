"""Models of a real shape with random weights, for measurements that do not depend on what the weights are.

torch is imported by the functions alone, so that a wrong name is reported before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, get_args

from microrl.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from microrl.policy.policy import Policy
    from microrl.types import Prompt

Shape = Literal["tiny", "135m", "1.5b"]
Architecture = Literal["qwen2", "qwen3", "llama", "gemma3_text", "phi3"]
Device = Literal["cpu", "cuda"]
Dtype = Literal["float32", "bfloat16", "float16"]
SHAPES: dict[str, dict[str, int]] = {
    "tiny": dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                 vocab_size=320),
    "135m": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                 vocab_size=49152),
    "1.5b": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
                 vocab_size=151936),
}  # fmt: skip
"""The sizes of models: `135m` is SmolLM2-135M's, `1.5b` is Qwen2.5-1.5B's."""
ARCHITECTURES: tuple[str, ...] = get_args(Architecture)


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Raises UserError for a name that is not among the known ones."""
    names = list(known)
    if name not in names:
        raise UserError(f"there is no {kind} `{name}`", did_you_mean(name, names))


def find_device(name: Device | None) -> Device:
    """The device of this name; for None the GPU if torch sees one, else the CPU. Raises UserError for a GPU that is not there."""
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch sees no GPU", "run `microrl doctor`")
    return name or ("cuda" if torch.cuda.is_available() else "cpu")


def build(
    tokenizer: Any,
    *,
    shape: str = "tiny",
    architecture: str = "qwen2",
    layers: int | None = None,
    dtype: Dtype | None = None,
    device: Device | None = None,
) -> PreTrainedModel:
    """A frozen model with random weights, in eval mode.

    `layers` overrides the shape's number of layers. `dtype` is bfloat16 on a GPU and float32 on a CPU, if None. `device` is
    the GPU if there is one, if None. Raises UserError for an unknown shape, and for a GPU that is not there.
    """
    check_name("shape", shape, SHAPES)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device = find_device(device)
    sizes = {**SHAPES[shape]}
    sizes["num_hidden_layers"] = layers or sizes["num_hidden_layers"]
    # Random weights of this width leave the logits alive: a probe on a flat distribution would show little.
    config = AutoConfig.for_model(
        architecture, **sizes, head_dim=sizes["hidden_size"] // sizes["num_attention_heads"], max_position_embeddings=8192,
        tie_word_embeddings=architecture != "llama", initializer_range=0.03, bos_token_id=1,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config)
    wanted = getattr(torch, dtype or ("bfloat16" if device == "cuda" else "float32"))
    return model.to(wanted).eval().requires_grad_(False)


def work(*, rank: int, prompts: int, group: int, tokens: int) -> dict[str, Any]:
    """A step's work as configuration keys; the adapter's scale is 1."""
    return {
        "adapter.rank": rank, "adapter.alpha": float(rank), "sampling.prompts_per_step": prompts, "sampling.group_size": group,
        "sampling.max_completion_tokens": tokens,
    }  # fmt: skip


def prompts(tokenizer: Any, count: int) -> list[Prompt]:
    """Different sums to ask for."""
    from microrl.types import Prompt

    texts = [f"What is {n} + {n + 7}?" for n in range(11, 11 + count)]
    return [Prompt(text, "", text, tuple(tokenizer(text)["input_ids"])) for text in texts]


def move(policy: Policy, generator: torch.Generator) -> None:
    """A new version: every trained weight moves a little."""
    import torch

    with torch.no_grad():
        for parameter in policy.parameters:
            step = 0.002 * float(parameter.abs().mean()) + 1e-4
            parameter += step * torch.randn(parameter.shape, generator=generator, device=parameter.device)
    policy.version += 1
