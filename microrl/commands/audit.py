"""Try a reward before a budget is spent on it: cheats that pay, gold answers that do not. No model, and no torch."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microrl import clock
from microrl.commands.cheats.attack import CHARACTERS_PER_TOKEN, Attack, Cheat
from microrl.commands.cheats.procedural import Procedural
from microrl.commands.cheats.programs import Programs
from microrl.commands.cheats.text import Text
from microrl.commands.cheats.tools import Hole, try_tools
from microrl.config import RunConfig
from microrl.data.load import Question, load_questions
from microrl.data.prompts import to_prompt
from microrl.rewards.custom.probe import probe
from microrl.rewards.judges.judge import refuse_unsound
from microrl.rewards.scorer import RewardScorer, in_words, make_scorer
from microrl.run.console import RunConsole
from microrl.types import Completion, Episode, Group, Prompt, Score

GOLDS = 1000
"""Gold answers that are given as answers; the form of all of them is looked at."""
TOGETHER = 50
"""Gold answers that are checked at a time."""
PAYS = 0.1
"""A cheat pays where it earns more than a plainly wrong answer, by over this fraction of what a right answer earns more."""
SEED = 0
EACH = 3
"""Cheats of a kind that are shown."""


@dataclass(frozen=True, slots=True)
class Paid:
    """A cheat that pays: what it earns, a plainly wrong answer of the same form, and a right one, where the data has one."""

    kind: str
    name: str
    row: int
    completion: str
    reward: float
    wrong: float
    right: float | None
    parts: dict[str, float | None]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "cheat": self.name, "row": self.row, "completion": self.completion[:2000], "reward": self.reward,
            "reward_wrong": self.wrong, "reward_right": self.right, "parts": self.parts,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class BadGold:
    row: int
    gold: str
    why: str

    def to_json(self) -> dict[str, Any]:
        return {"row": self.row, "gold": self.gold[:500], "why": self.why}


@dataclass(slots=True)
class Audit:
    """What was found. `killed` counts checks and calls that had to be killed, `failed` completions for which a function gave no
    value, by function and reason. `without` counts questions without a right answer in the data, of `solutions`."""

    reward: str
    questions: int
    cheats: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    golds: int = 0
    without: int = 0
    solutions: str = "gold answers"
    paid: list[Paid] = field(default_factory=list)
    unpaid_golds: list[BadGold] = field(default_factory=list)
    unwritable_golds: list[BadGold] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    escaped: bool = False
    tool_calls: int | None = None
    holes: list[Hole] = field(default_factory=list)
    """Of the environment; `tool_calls` is None without one."""
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found that would cost a run: killed checks cost time, and are only counted."""
        return not (self.paid or self.unpaid_golds or self.unwritable_golds or self.failed or self.escaped or self.holes)

    @property
    def per_second(self) -> float:
        return (self.cheats + self.golds) / max(self.seconds, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return {
            "clean": self.is_clean,
            "reward": self.reward,
            "questions": self.questions,
            "cheats": {"tried": self.cheats, "by_kind": dict(self.by_kind), "paid": [one.to_json() for one in self.paid]},
            "golds": {
                "tried": self.golds,
                "missing": self.without,
                "unpaid": [one.to_json() for one in self.unpaid_golds],
                "unwritable": [one.to_json() for one in self.unwritable_golds],
            },
            "killed": self.killed,
            "failed": self.failed,
            "code_ran": self.escaped,
            **(
                {}
                if self.tool_calls is None
                else {"tools": {"tried": self.tool_calls, "found": [hole._asdict() for hole in self.holes]}}
            ),
            "seconds": self.seconds,
            "completions_per_second": self.per_second,
        }


def audit(config: RunConfig) -> Audit:
    """Try the configured reward on the configured data. Raises UserError for bad data and for a reward that cannot be used."""
    kind = config.data.answer_kind
    how: Attack = Programs() if kind == "code" else Procedural() if kind == "gym" else Text()
    with (
        closing(make_scorer(config)) as scorer,
        RunConsole() as console,
        tempfile.TemporaryDirectory(prefix="microrl-audit-") as folder,
    ):
        scorer.checker.start()
        scorer.custom.start()
        console.status("reading the data")
        questions = load_questions(config.data, raw=bool(config.reward.functions or config.env.target) or kind == "code")
        if kind == "gym":
            refuse_unsound([question.answer for question in questions], console.progress)
        if scorer.custom.functions:
            console.status("trying the reward functions")
            probe(scorer.custom, [to_prompt(question) for question in questions], config.data.name)
        canary = Path(folder) / "canary"
        result = Audit(in_words(config.reward, config.env), len(questions), solutions=how.solutions)
        began = clock.now_s()
        _try_golds(result, how, scorer, questions, config, console)
        _try_cheats(result, how, scorer, questions, config, str(canary), console)
        if config.env.target is not None:
            console.status("calling the tools")
            asked = [(question, how.gold(question)) for question in how.chosen(questions)]
            result.tool_calls = 0
            for name, env in config.env.each.items():
                own = [(question, gold) for question, gold in asked if config.env.name_for(question.row, question.raw) == name]
                calls, holes = try_tools(env, own)
                result.tool_calls, result.holes = result.tool_calls + calls, result.holes + holes
            result.paid += _told_by_a_tool(result, how, scorer, config, [question for question, _ in asked])
        result.seconds = clock.now_s() - began
        result.escaped = canary.exists() or canary.is_symlink()
        return result


def _completion(text: str, transcript: str | None = None) -> Completion:
    # The length penalty is no part of the audit: the cheats have no tokens. Nor is what an environment gives.
    return Completion((), (), "stop", 0, text, transcript=transcript, episode=Episode(1, 0, 0, 0.0))


def _score(result: Audit, scorer: RewardScorer, asked: Sequence[tuple[Prompt, Sequence[str]]]) -> list[tuple[Score, ...]]:
    """The scores of these completions, prompt by prompt; deaths and failures are noted."""
    scorer.reset_allowance()
    groups = scorer.score(enumerate(Group(prompt, tuple(map(_completion, texts))) for prompt, texts in asked))
    for group in groups:
        result.killed += [(score.extracted or "")[:200] for score in group.scores if score.killed]
    for lack in scorer.custom.missing.values():
        entry = result.failed.setdefault(lack.name, {"completions": 0, "row": lack.row, "why": lack.why})
        entry["completions"] += lack.count
    return [group.scores for group in groups]


def _try_golds(
    result: Audit, how: Attack, scorer: RewardScorer, questions: Sequence[Question], config: RunConfig, console: RunConsole
) -> None:
    """Each right answer, written as it is asked for, must earn more than a wrong one; and where tests or a scorer judge it, all
    of the credit. With them goes what is tried on every question."""
    longest = config.sampling.max_completion_tokens * CHARACTERS_PER_TOKEN
    for question in questions:
        if (why := how.unwritable(question, longest)) is not None:
            result.unwritable_golds.append(BadGold(question.row, how.gold(question) or "", why))
        result.without += how.right(question) is None
    distinct = list({(question.text, question.answer): question for question in questions}.values())
    random.Random(SEED).shuffle(distinct)
    tried = sorted(distinct[:GOLDS], key=lambda question: question.row)
    bad = {one.row for one in result.unwritable_golds}
    batches = [tried[start : start + TOGETHER] for start in range(0, len(tried), TOGETHER)]
    for batch in console.progress(batches, len(batches), f"{how.solutions}, {TOGETHER} at a time"):
        work = [(question, how.everywhere(question)) for question in batch]
        asked = [(to_prompt(question), [*_honest(how, question), *(cheat.text for cheat in these)]) for question, these in work]
        for (question, these), scores in zip(work, _score(result, scorer, asked), strict=True):
            right, wrong, _ = _baselines(how, question, scores)
            if right is not None and question.row not in bad and (why := _unpaid(right, wrong, config)):
                result.unpaid_golds.append(BadGold(question.row, how.gold(question) or "", why))
            result.paid += _paid(how, config, question, these, scores)
            result.by_kind.update(cheat.kind for cheat in these)
        result.golds += sum(how.right(question) is not None for question in batch)


def _unpaid(right: Score, wrong: Score, config: RunConfig) -> str | None:
    """Why a right answer's reward is none; None if it is one."""
    slow = "; checking it timed out" if right.killed else ""
    if not (right.is_valid and wrong.is_valid):
        return None  # a function failed, which is said elsewhere
    if right.total <= wrong.total:
        return f"it earns {right.total:g}, and a wrong answer earns {wrong.total:g}{slow}"
    if right.accuracy < 1 and config.data.answer_kind in ("code", "gym"):
        return f"it earns only {right.accuracy:.0%} of the credit of a right answer{slow}"
    return None


def _try_cheats(
    result: Audit,
    how: Attack,
    scorer: RewardScorer,
    questions: Sequence[Question],
    config: RunConfig,
    canary: str,
    console: RunConsole,
) -> None:
    chosen = how.chosen(questions)
    work = [(question, how.cheats(question, questions, canary, hanging=not number)) for number, question in enumerate(chosen)]
    total, done = sum(len(these) for _, these in work), 0
    for question, these in work:
        for kind in dict.fromkeys(cheat.kind for cheat in these):
            batch = [cheat for cheat in these if cheat.kind == kind]
            console.status(f"cheats: {done}/{total}, {kind}")
            asked = (to_prompt(question), [*_honest(how, question), *(cheat.text for cheat in batch)])
            (scores,) = _score(result, scorer, [asked])
            result.paid += _paid(how, config, question, batch, scores)
            result.by_kind[kind] += len(batch)
            done += len(batch)
    result.cheats = result.by_kind.total()


def _honest(how: Attack, question: Question) -> list[str]:
    """What a cheat is compared with: a right answer, if there is one, and two wrong ones, of which the last has no form."""
    right = how.right(question)
    return [*([] if right is None else [right]), *how.wrong(question)]


def _baselines(how: Attack, question: Question, scores: Sequence[Score]) -> tuple[Score | None, Score, Score]:
    """The scores of `_honest`, which come first."""
    if how.right(question) is None:
        return None, scores[0], scores[1]
    return scores[0], scores[1], scores[2]


def _paid(how: Attack, config: RunConfig, question: Question, batch: Sequence[Cheat], scores: Sequence[Score]) -> Iterator[Paid]:
    """Those of a batch of cheats that pay. `scores`: of `_honest` and of the batch."""
    right, wrong, plain = _baselines(how, question, scores)
    for cheat, score in zip(batch, scores[len(_honest(how, question)) :], strict=True):
        fair = (wrong if cheat.has_form else plain).total
        # Without a right answer, one would earn what the built-in reward has for it.
        gain = config.reward.accuracy_weight if right is None else right.total - fair
        # Where a right answer earns no more than a wrong one, the gold answers say so; here any gain counts.
        if score.is_valid and score.total > fair + max(PAYS * gain, 1e-6):
            parts = {"format": score.format, "accuracy": score.accuracy, **score.parts}
            earns = None if right is None else right.total
            yield Paid(cheat.kind, cheat.name, question.row, cheat.text, score.total, fair, earns, parts)


def _told_by_a_tool(
    result: Audit, how: Attack, scorer: RewardScorer, config: RunConfig, questions: Sequence[Question]
) -> Iterator[Paid]:
    """That a right answer pays which a tool has printed and the model has not written."""
    for question in questions:
        if (right := how.right(question)) is None:
            continue
        silent = how.wrong(question)[1]
        completions = (*map(_completion, _honest(how, question)), _completion(silent, f"{right}\n{silent}"))
        (group,) = scorer.score([(0, Group(to_prompt(question), completions))])
        cheat = Cheat("a tool's answer", "the right answer", silent, has_form=False)
        result.by_kind[cheat.kind] += 1
        result.cheats += 1
        yield from _paid(how, config, question, [cheat], group.scores)


def findings(result: Audit) -> Iterator[tuple[str, str, str]]:
    """(what, where, details) of what was found, for a table: of each kind of cheat that pays the first few, each once."""
    by_kind: dict[str, dict[str, list[Paid]]] = {}
    for one in result.paid:
        by_kind.setdefault(one.kind, {}).setdefault(one.name, []).append(one)
    for kind, cheats_paid in by_kind.items():
        for name, paid in list(cheats_paid.items())[:EACH]:
            first, rows = paid[0], ", ".join(str(one.row) for one in paid)
            earns = f"{first.reward:g} instead of {first.wrong:g}"
            yield "cheat pays", f"{kind}: {name[:40]}", f"row{'s' * (len(paid) > 1)} {rows}, {earns}: {first.completion}"
        if len(cheats_paid) > EACH:
            yield "cheat pays", kind, f"and {len(cheats_paid) - EACH} more"
    for what, golds in (("gold does not pay", result.unpaid_golds), ("gold cannot be written", result.unwritable_golds)):
        for bad in golds:
            yield what, f"row {bad.row}", f"{bad.gold[:60]!r}: {bad.why}"
    for name, entry in result.failed.items():
        yield "function fails", name, f"{entry['completions']} completions, first for row {entry['row']}: {entry['why']}"
    for hole in result.holes:
        yield hole.what, hole.where, f"row {hole.row}: {hole.details}"
    if result.escaped:
        yield "code ran", "a canary file", "code that is written in a completion runs where it can create files"
