"""Answer single questions with a run's base model and its trained model (`microrl sample`)."""

from __future__ import annotations

from microrl.commands.weights import opened, trained
from microrl.config import RunConfig
from microrl.data.prompts import render
from microrl.evaluation.evaluate import STREAM
from microrl.rollout.preflight import select_engine
from microrl.run import data_record
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train.setup import load_model
from microrl.types import BASE, Sampling


def answers(config: RunConfig, run: RunFolder, question: str, *, count: int, seed: int) -> dict[str, list[str]]:
    """`{"base": [...], "trained": [...]}`: `count` answers of each model, with the same random numbers. Raises UserError."""
    final = run.final()
    select_engine(config)  # fails before anything is loaded
    with RunConsole() as console:
        if (warning := data_record.warning_for_sample(run, config)) is not None:
            console.note(f"warning: {warning}")
        model, tokenizer = load_model(config, console)
        snapshot = trained(final, config, model)
        data = config.data
        prompt = render(question, "", tokenizer, data.system, data.system_role, thinking=data.thinking)
        sampling = Sampling(count, config.sampling.max_completion_tokens, config.evaluation.temperature, config.evaluation.top_p)
        sides = {}
        with opened(config, model, tokenizer, console) as engine:
            for side, weights in (("base", BASE), ("trained", snapshot)):
                console.status(f"asking the {side} model")
                with engine.awake(weights) as sampler:
                    ((_, group),) = sampler.groups([prompt], sampling, stream=(STREAM, seed))
                sides[side] = [completion.text for completion in group.completions]
    return sides
