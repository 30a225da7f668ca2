"""Answer single questions with a run's base model and its trained model (`microrl sample`)."""

from __future__ import annotations

import json
from dataclasses import replace

from microrl.commands.weights import environment_of, opened, trained
from microrl.config import RunConfig
from microrl.config.environment import COLUMN
from microrl.data.prompts import render
from microrl.errors import UserError
from microrl.evaluation.evaluate import STREAM
from microrl.models.forward import stop_tokens
from microrl.rollout.preflight import select_engine
from microrl.run import data_record
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.train.setup import load_model
from microrl.types import BASE, Completion, Sampling


def answers(
    config: RunConfig, run: RunFolder, question: str, *, count: int, seed: int
) -> tuple[dict[str, tuple[Completion, ...]], str]:
    """(answers of each model, "base" and "trained"; what the environment has added to the question). There are `count` of each,
    with the same random numbers. The environment gets a row that has the question alone. Raises UserError.
    """
    final = run.final()
    select_engine(config)  # fails before anything is loaded
    if len(config.env.each) > 1:
        raise UserError(f"the run has several environments: {config.env.label}", "name the one to use: --env MODULE:CLASS")
    with RunConsole() as console, environment_of(config, console) as environment:
        if (warning := data_record.warning_for_sample(run, config)) is not None:
            console.note(f"warning: {warning}")
        model, tokenizer = load_model(config, console)
        snapshot = trained(final, config, model)
        data = config.data
        tools = () if environment is None else environment.only.interface.tools
        prompt = render(question, "", tokenizer, data.system, data.system_role, thinking=data.thinking, tools=tools)
        if environment is not None:
            row = {data.question or "question": question}
            if isinstance(config.env.target, tuple):  # the only one has a name, by which a row chooses it
                row |= dict.fromkeys([COLUMN], *config.env.each)
            prompt = replace(prompt, raw=json.dumps(row))
            environment.use_template(tokenizer, data, stop_tokens(model, tokenizer))
        sampling = Sampling(count, config.sampling.max_completion_tokens, config.evaluation.temperature, config.evaluation.top_p)
        sides, said = {}, ""
        with opened(config, model, tokenizer, console) as engine:
            for side, weights in (("base", BASE), ("trained", snapshot)):
                console.status(f"asking the {side} model")
                with engine.awake(weights) as sampler:
                    ((_, group),) = sampler.groups([prompt], sampling, stream=(STREAM, seed), environment=environment)
                sides[side] = group.completions
                after = prompt.text.rfind(question.strip()) + len(question.strip())
                said = group.prompt.text[after : after + len(group.prompt.text) - len(prompt.text)]
    return sides, said
