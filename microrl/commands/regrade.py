"""Judge the rollouts of a run again with another reward: no model, and torch only for the advantages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any

from microrl.config import RunConfig
from microrl.config.reward import environment_parts, gdpo_weights
from microrl.errors import UserError
from microrl.rewards.custom.probe import probe
from microrl.rewards.scorer import RewardScorer, in_words, make_scorer
from microrl.run import rollouts
from microrl.run.console import RunConsole
from microrl.run.folder import RunFolder
from microrl.run.metrics import is_useful
from microrl.types import Episode, Group, Score

EXCERPT = 2000
"""Characters of a completion in the result."""


def regrade(run: RunFolder, config: RunConfig) -> dict[str, Any]:
    """The run's rewards as they were, and as those of `config` would have been, step by step.

    Raises UserError for a run without rollouts and for a reward that cannot be used, and BadFile for damaged rollouts.
    """
    before = run.settings()
    if config.env.target not in (None, before.env.target):
        raise UserError(
            f"the rollouts of {run.path} hold no reward of {config.env.label}",
            "an environment's reward comes from its episodes, which cannot be played again: leave env.target as it was",
        )
    kept = [*environment_parts(before.reward, before.env).values()] if config.env.target is not None else []
    stored_steps = rollouts.steps(run.path)
    if not stored_steps:
        raise UserError(f"{run.path} has no rollouts", "every training step writes them: train at least one step")
    with closing(make_scorer(config)) as scorer, RunConsole() as console:
        if kept:
            names = ", ".join(f"`{name}`" for name in kept)
            console.note(f"note: the environment's own reward, {names}, is as it was stored: no episode is played again")
        scorer.custom.start()
        if scorer.custom.functions:
            console.status("trying the reward functions")
            first = _with_rows(rollouts.read(stored_steps[0][1], before.sampling.group_size), console)
            probe(scorer.custom, [group.prompt for group in first], str(stored_steps[0][1]))
        scorer.checker.start()  # after the trial, which would share the processor with its imports
        steps: list[dict[str, Any]] = []
        changed: list[dict[str, Any]] = []
        for step, path in console.progress(stored_steps, len(stored_steps), "regrading steps"):
            groups = rollouts.read(path, before.sampling.group_size)
            if scorer.custom.functions:
                groups = _with_rows(groups)
            again = judge(scorer, [_with_rewards(group, kept) for group in groups] if kept else groups)
            steps.append(_step(step, groups, again, before, config, scorer))
            changed += _changed(step, groups, again)
    return {
        "run": str(run.path),
        "reward": {"then": in_words(before.reward, before.env), "now": in_words(config.reward, config.env)},
        **({"kept": kept} if kept else {}),
        "steps": steps,
        "changed": changed,
    }


def judge(scorer: RewardScorer, groups: Sequence[Group]) -> list[Group]:
    """The groups with the scores that they would have had, as in a training step."""
    scorer.reset_allowance()
    return scorer.score(enumerate(replace(group, scores=()) for group in groups))


def _with_rewards(group: Group, kept: Sequence[str]) -> Group:
    """The group with its environment's stored reward, of which nothing else of an episode is asked; 0 where it gave none."""

    def stored(score: Score) -> float | None:
        return next((value for name, value in score.parts.items() if name in kept), 0.0)

    return replace(
        group,
        completions=tuple(
            replace(completion, episode=Episode(1, 0, 0, stored(score)))
            for completion, score in zip(group.completions, group.scores, strict=True)
        ),
    )


def _with_rows(groups: Sequence[Group], console: RunConsole | None = None) -> list[Group]:
    """Groups whose rows the run has not kept, as it had no reward function, get question and gold answer as their row."""
    if console is not None and not all(group.prompt.raw for group in groups):
        console.note("note: this run has not kept the rows of its data; the reward gets their question and gold answer")
    return [
        group
        if group.prompt.raw
        else replace(
            group,
            prompt=replace(group.prompt, raw=json.dumps({"question": group.prompt.question, "answer": group.prompt.answer})),
        )
        for group in groups
    ]


def _step(
    step: int, then: Sequence[Group], now: Sequence[Group], before: RunConfig, config: RunConfig, scorer: RewardScorer
) -> dict[str, Any]:
    from microrl import algorithm  # torch

    sides: dict[str, dict[str, Any]] = {}
    for side, groups, settings in (("then", then, before), ("now", now, config)):
        weights = gdpo_weights(settings.reward, settings.env)
        scores = _scores(groups)
        rewarded = [score for score in scores if score.is_valid]
        sides[side] = {
            "reward": sum(score.total for score in rewarded) / len(rewarded) if rewarded else None,
            "accuracy": sum(score.accuracy for score in scores) / len(scores),
            "useful_groups": sum(is_useful(group, weights) for group in groups) / len(groups),
            "left_out": len(scores) - len(rewarded),
            "killed": sum(score.killed for score in scores),
            "rewards": [[score.total for score in group.scores] for group in groups],
            "advantages": algorithm.make(settings).advantages(groups),
        }
    both = zip(*(chain.from_iterable(sides[side]["advantages"]) for side in ("then", "now")), strict=True)
    return {
        "step": step,
        "groups": len(then),
        "completions": len(_scores(then)),
        **sides,
        "changed_verdicts": sum(a.accuracy != b.accuracy for a, b in zip(_scores(then), _scores(now), strict=True)),
        "changed_signs": sum((a > 0) != (b > 0) or (a < 0) != (b < 0) for a, b in both),
        "missing": {lack.name: {"completions": lack.count, "why": lack.why} for lack in scorer.custom.missing.values()},
    }


def _scores(groups: Sequence[Group]) -> list[Score]:
    return [score for group in groups for score in group.scores]


def _changed(step: int, then: Sequence[Group], now: Sequence[Group]) -> Iterable[dict[str, Any]]:
    """The completions whose accuracy is another one."""
    for number, (old, new) in enumerate(zip(then, now, strict=True)):
        for sample, (completion, was, is_now) in enumerate(zip(old.completions, old.scores, new.scores, strict=True)):
            if was.accuracy != is_now.accuracy:
                yield {
                    "step": step, "group": number, "sample": sample, "row": old.prompt.row, "question": old.prompt.question,
                    "answer": old.prompt.answer, "completion": completion.text[:EXCERPT], "extracted": is_now.extracted,
                    "accuracy": {"then": was.accuracy, "now": is_now.accuracy},
                    "reward": {"then": was.total, "now": is_now.total}, "killed": is_now.killed,
                }  # fmt: skip
