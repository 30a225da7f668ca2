"""The questions of a run: read, checked, split, cleaned, rendered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from microrl.answers import as_integer
from microrl.config import RunConfig
from microrl.config.paths import is_taught
from microrl.data import taught
from microrl.data.load import TOO_LONG, Question, Reading, load_questions, split
from microrl.data.prompts import no_tools, none_fits, render_all
from microrl.data.sft_examples import Solution, load_solutions, to_sft_examples
from microrl.environments.conversation import Environment
from microrl.environments.demonstration import Demonstrations
from microrl.errors import UserError
from microrl.rewards.judges.judge import refuse_unsound
from microrl.rewards.scorer import RewardScorer
from microrl.run import data_record
from microrl.run.checkpoint import State
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.teacher import RAW
from microrl.terminal import counted
from microrl.train.cleaning import (
    BAD_GOLD,
    REPEATED,
    distinct,
    named_benchmarks,
    nearly_the_same,
    report_left_out,
    report_reading,
    without_contamination,
    without_repeats,
)
from microrl.types import Prompt, SftExample

PARTS = ("training", "held-out", "validation")
"""In the order of `load.split`."""
HANGING_GOLDS = 8
"""Number of gold answers whose check may hang before the data is refused."""


class Questions(NamedTuple):
    """The questions of a run, split by a hash of their text; every gold answer can be checked."""

    training: list[Question]
    held_out: list[Question]
    validation: list[Question]
    solutions: list[Solution] | None
    """None if there is no supervised phase or it is over."""
    refused: dict[str, str]
    """The questions of `solutions` that are not trained on, and why."""
    left_out: dict[str, Counter[str]]
    """Number of questions left out of each part, by the reason."""


class Prompts(NamedTuple):
    """Questions rendered with the chat template."""

    training: list[Prompt]
    held_out: list[Prompt]
    validation: list[Prompt]
    sft_examples: list[SftExample]


def read_questions(config: RunConfig, folder: RunFolder, console: RunConsole, scorer: RewardScorer, state: State) -> Questions:
    """The questions and solutions of a run. Raises UserError for bad data, and if a resumed run's data has changed."""
    console.status("reading the data")
    reading = Reading()
    everything = load_questions(config.data, raw=bool(config.reward.functions or config.env.target), reading=reading)
    report_reading(config, reading, folder, console)
    for question in everything if config.env.target is not None else ():
        config.env.name_for(question.row, question.raw)
    solutions = load_solutions(config) if config.sft.is_on and not state.sft.is_done else None
    data_record.record_or_verify(folder, config, everything, solutions)
    if solutions is not None and config.sft.data is not None and is_taught(config.sft.data):
        if config.has_stored_teacher and taught.read_record(Path(config.sft.data)).teacher.is_rl is False:
            folder.event("warning", RAW)
            console.note(f"warning: {RAW}")
        other = taught.other_data(Path(config.sft.data), data_record.of_questions(config.data, everything).sha256)
        if other is not None:
            folder.event("other questions", other)
            console.note(f"note: {other}")
    if config.data.answer_kind == "gym":
        refuse_unsound([question.answer for question in everything], console.progress)
    left_out = {"data": reading.left_out}
    sound = check_golds(everything, scorer, config, folder, console)
    stages = everything, sound, without_repeats(sound, folder, console)
    splits = [split(questions, config.data.held_out, config.data.validation) for questions in stages]
    for part, *sizes in zip(PARTS, *(map(len, parts) for parts in splits), strict=True):
        left_out[part] = Counter({BAD_GOLD: sizes[0] - sizes[1], REPEATED: sizes[1] - sizes[2]})
    training, held_out, validation = splits[-1]
    evaluated = {"held-out": held_out, "validation": validation}
    named = named_benchmarks(config)
    training, contaminated = without_contamination(training, named, evaluated, folder, console)
    left_out["training"] += contaminated
    if not training:
        raise UserError(
            "no problems are left for training",
            f"for example --set data.held_out=0.05 --set data.validation=0.05 (now {config.data.held_out} and "
            f"{config.data.validation}; their sum must be below 1)",
        )
    refused = nearly_the_same((solution.question for solution in solutions or ()), named)
    return Questions(training, held_out, validation, solutions, refused, left_out)


def check_golds(
    questions: list[Question], scorer: RewardScorer, config: RunConfig, folder: RunFolder | None, console: RunConsole
) -> list[Question]:
    """The questions whose gold answer can be checked. Others raise UserError, or are dropped with data.bad_answers=drop.

    Raises UserError in any case if the checks of more than HANGING_GOLDS gold answers hang: thousands would take hours.
    """
    if config.data.answer_kind in ("code", "gym") or all(as_integer(question.answer) is not None for question in questions):
        return questions
    golds = list(dict.fromkeys(question.answer for question in questions))
    checked: dict[str, bool | None] = {}
    hanging = []
    for gold, good in zip(golds, console.progress(scorer.parse(golds), len(golds), "checking gold answers"), strict=True):
        checked[gold] = good
        hanging += [gold] if good is None else []
        if len(hanging) > HANGING_GOLDS:
            row = next(question.row for question in questions if question.answer == hanging[0])
            raise UserError(
                f"{config.data.name}, row {row}: parsing the gold answer `{hanging[0][:80]}` and {HANGING_GOLDS} others takes "
                f"more than {config.reward.deadline_s:g} s each",
                "remove these rows, or compare answers as text: --set data.answer_kind=text",
            )
    bad = [question for question in questions if not checked[question.answer]]
    if bad and config.data.bad_answers == "error":
        raise UserError(
            f"{config.data.name}, row {bad[0].row}: the gold answer `{bad[0].answer[:80]}` does not parse as mathematics"
            + (f" ({len(bad)} rows in total)" if len(bad) > 1 else ""),
            "fix it, or skip such rows: --set data.bad_answers=drop, or compare answers as text: --set data.answer_kind=text",
        )
    if bad:
        said = f"{counted(len(bad), 'problem')} dropped: no gold answer that parses as mathematics"
        if folder is not None:
            folder.event("warning", said, rows=[q.row for q in bad])
        console.note(f"warning: {said}")
    return [question for question in questions if checked[question.answer]]


def render_prompts(
    questions: Questions,
    tokenizer: Any,
    config: RunConfig,
    folder: RunFolder,
    console: RunConsole,
    environment: Environment | None = None,
) -> Prompts:
    """Render the questions with the chat template; held-out and validation questions up to their configured numbers. Every prompt
    tells of the tools of the environment, which uses the model's template."""
    tools = no_tools if environment is None else environment.tools
    progress = partial(console.progress, total=len(questions.training), label="rendering prompts")
    training = render_all(questions.training, tokenizer, config.data, progress, tools)
    if not training:
        raise none_fits(config.data)
    held_out = pick_questions(questions.held_out, config.evaluation.problems, config.evaluation.question_seed)
    if config.evaluation.problems and not held_out:
        missing = "there are no held-out problems, so the gain will not be measured; increase data.held_out, or add data"
        folder.event("warning", missing)
        console.note(f"warning: {missing}")
    validation = pick_questions(questions.validation, config.validation.problems, config.evaluation.question_seed)
    render_evaluated = partial(render_all, tokenizer=tokenizer, config=config.data, tools=tools)
    rendered = training, render_evaluated(held_out), render_evaluated(validation)
    for part, given, fits in zip(PARTS, (questions.training, held_out, validation), rendered, strict=True):
        questions.left_out[part][TOO_LONG] += len(given) - len(fits)
    report_left_out(questions.left_out, folder, console)
    if (solutions := questions.solutions) is None:
        return Prompts(*rendered, [])
    progress = partial(console.progress, total=len(solutions), label="rendering solutions")
    kind = None if environment is None else environment.only
    own_tools = () if kind is None else kind.interface.tools
    converse = None if kind is None else Demonstrations(kind, tokenizer, config.data.thinking).example
    examples, left_out = to_sft_examples(solutions, tokenizer, config, progress, own_tools, converse, questions.refused)
    why = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
    if left_out:
        folder.event("solutions left out", f"{why}; {counted(len(examples), 'solution')} used", reasons=left_out)
    console.note(f"SFT: {counted(len(examples), 'solution')}" + (f"; left out: {why}" if left_out else ""))
    return Prompts(*rendered, examples)


def pick_questions(questions: Sequence[Question], count: int, seed: int, *, repeated: bool = False) -> list[Question]:
    """At most `count` problems, distinct ones unless `repeated`; the same ones in the same order for the same seed."""
    pool = sorted(questions if repeated else distinct(questions), key=lambda question: question.text)
    random.Random(seed).shuffle(pool)
    return pool[:count]
