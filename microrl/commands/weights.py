"""The weights that a command samples from: a model's own, or a run's or a folder's adapter on top; and the engine for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from microrl.adapters.folder import read
from microrl.config import RunConfig
from microrl.environments.conversation import Environment
from microrl.errors import UserError, first_line
from microrl.models.ways import Ways
from microrl.rollout.engine import Engine
from microrl.rollout.factory import make_engine
from microrl.run import checkpoint, names
from microrl.run.console import RunConsole
from microrl.types import AdapterSnapshot


def awake_throughout(config: RunConfig) -> RunConfig:
    """The configuration with `engine.sleep=auto` as off: no trainer wants the engine's memory here."""
    if getattr(config.engine, "sleep", None) != "auto":
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"sleep": "off"})})


@contextmanager
def opened(
    config: RunConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, console: RunConsole
) -> Iterator[Engine]:
    """An engine that is closed in the end. If closing fails, this is only said: it must not cost the result, or hide an error.
    It is also said where the engine decodes this model by a slower way.
    """
    engine = make_engine(config, model, tokenizer, say=console.note)
    if engine.name != "vllm":
        for slower in Ways.of(model).decoding_notes():
            console.note(slower)
    try:
        yield engine
    finally:
        try:
            engine.close()
        except Exception as error:
            console.note(f"warning: the engine failed while closing: {first_line(error)}")


@contextmanager
def environment_of(config: RunConfig, console: RunConsole) -> Iterator[Environment | None]:
    """The environment that answers the model's tool calls, whose processes end in the end; None where there is none.

    Raises UserError for a class that cannot be used, which takes seconds to find out, but no model.
    """
    if config.env.target is None:
        yield None
        return
    with closing(Environment(config.env)) as environment:
        console.status("starting the environment")
        environment.start()
        yield environment


def trained(folder: Path, config: RunConfig, model: PreTrainedModel) -> AdapterSnapshot:
    """The update in a folder, for its untouched model: an exported adapter, a whole model, or a run's checkpoint.

    `config`: of the run that a checkpoint belongs to. Raises UserError.
    """
    is_checkpoint = folder.parent.name == names.CHECKPOINTS and not (folder / "adapter_config.json").is_file()
    if not is_checkpoint:
        return read(folder, model)
    if (wrong := checkpoint.find_corruption(folder)) is not None:
        raise UserError(f"{folder} is damaged: {wrong}", "evaluate another one of the run's checkpoints, its best/ or its final/")
    return checkpoint.update_of(folder, config, model)
