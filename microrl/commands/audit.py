"""Try a reward before a budget is spent on it: cheats that pay, gold answers that do not. No model, and no torch."""

from __future__ import annotations

import random
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from microrl import clock
from microrl.answers import final_answer
from microrl.commands.cheats import Case, Cheat, boxed, case, cheats, honest, without_form
from microrl.config import RunConfig
from microrl.data.load import Question, load_questions
from microrl.data.prompts import to_prompt
from microrl.errors import UserError
from microrl.rewards import RewardScorer, make_scorer
from microrl.rewards.compare.absurd import LONGEST
from microrl.rewards.own.probe import probe
from microrl.rewards.scorer import in_words
from microrl.run.console import RunConsole
from microrl.types import Completion, Group, Prompt, Score

QUESTIONS = 3
"""Questions that are cheated on."""
GOLDS = 1000
"""Gold answers that are given as answers; the form of all of them is looked at."""
TOGETHER = 50
"""Gold answers that are checked at a time."""
PAYS = 0.1
"""A cheat pays where it earns more than a plainly wrong answer, by over this fraction of what a right answer earns more."""
SEED = 0
EACH = 3
"""Cheats of a kind that are shown."""
CHARACTERS_PER_TOKEN = 16
"""No tokenizer packs the characters of an answer more tightly. A longer gold answer fits into no completion."""


@dataclass(frozen=True, slots=True)
class Paid:
    """A cheat that pays: what it earns, a plainly wrong answer of the same form, and a right one."""

    kind: str
    name: str
    row: int
    completion: str
    reward: float
    wrong: float
    right: float
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
    value, by function and reason."""

    reward: str
    questions: int
    cheats: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    golds: int = 0
    paid: list[Paid] = field(default_factory=list)
    unpaid_golds: list[BadGold] = field(default_factory=list)
    unwritable_golds: list[BadGold] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    escaped: bool = False
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found that would cost a run: killed checks cost time, and are only counted."""
        return not (self.paid or self.unpaid_golds or self.unwritable_golds or self.failed or self.escaped)

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
                "unpaid": [one.to_json() for one in self.unpaid_golds],
                "unwritable": [one.to_json() for one in self.unwritable_golds],
            },
            "killed": self.killed,
            "failed": self.failed,
            "code_ran": self.escaped,
            "seconds": self.seconds,
            "completions_per_second": self.per_second,
        }


def audit(config: RunConfig) -> Audit:
    """Try the configured reward on the configured data. Raises UserError for bad data and for a reward that cannot be used."""
    scorer = make_scorer(config)
    try:
        with RunConsole() as console, tempfile.TemporaryDirectory(prefix="microrl-audit-") as folder:
            scorer.checker.start()
            scorer.own.start()
            console.status("reading the data")
            questions = load_questions(config.data, raw=bool(config.reward.functions))
            if scorer.own.functions:
                console.status("trying the reward functions")
                probe(scorer.own, [to_prompt(question) for question in questions], config.data.name)
            canary = Path(folder) / "canary"
            found = Audit(in_words(config.reward), len(questions))
            limit = config.sampling.max_completion_tokens
            found.unwritable_golds = [bad for question in questions if (bad := unwritable(question, limit)) is not None]
            began = clock.now_s()
            _try_golds(found, scorer, questions, console)
            _try_cheats(found, scorer, questions, str(canary), console)
            found.seconds = clock.now_s() - began
            found.escaped = canary.exists()
            return found
    finally:
        scorer.close()


def chosen(questions: Sequence[Question]) -> list[Question]:
    """The questions that are cheated on: of different gold answers as far as there are any, the same ones every time."""
    pool = list({question.answer: question for question in questions}.values())
    random.Random(SEED).shuffle(pool)
    return sorted(pool[:QUESTIONS], key=lambda question: question.row)


def unwritable(question: Question, limit: int) -> BadGold | None:
    """Why no model could write this gold answer into a box; None if one could. `limit`: tokens of a completion."""
    gold = question.answer
    odd = next((character for character in gold if unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn")), None)
    longest = min(limit * CHARACTERS_PER_TOKEN, LONGEST)
    read = final_answer(honest(gold))
    if not gold.strip():
        why = "it is empty"
    elif odd is not None and odd not in "\n\t":
        why = f"it contains the character U+{ord(odd):04X}, a control character or one without a meaning"
    elif len(gold) > longest:
        why = f"it has {len(gold):,} characters; at most {longest:,} are compared, or fit into {limit:,} tokens"
    elif read is None or "".join(read.split()) != "".join(gold.split()):
        why = f"within {boxed('...')} it is read as {'nothing' if read is None else repr(read[:80])}: look at its braces"
    else:
        return None
    return BadGold(question.row, gold, why)


def _completion(text: str) -> Completion:
    # The length penalty is no part of the audit: the cheats have no tokens.
    return Completion((), (), "stop", 0, text)


def _score(found: Audit, scorer: RewardScorer, asked: Sequence[tuple[Prompt, Sequence[str]]]) -> list[tuple[Score, ...]]:
    """The scores of these completions, prompt by prompt; deaths and failures are noted."""
    scorer.reset_allowance()
    groups = scorer.score(enumerate(Group(prompt, tuple(map(_completion, texts))) for prompt, texts in asked))
    for group in groups:
        found.killed += [(score.extracted or "")[:200] for score in group.scores if score.killed]
    for lack in scorer.own.missing.values():
        entry = found.failed.setdefault(lack.name, {"completions": 0, "row": lack.row, "why": lack.why})
        entry["completions"] += lack.count
    return [group.scores for group in groups]


def _try_golds(found: Audit, scorer: RewardScorer, questions: Sequence[Question], console: RunConsole) -> None:
    """Each gold answer, written as it is asked for, must earn more than a wrong one."""
    distinct = list({(question.text, question.answer): question for question in questions}.values())
    random.Random(SEED).shuffle(distinct)
    tried = sorted(distinct[:GOLDS], key=lambda question: question.row)
    bad = {one.row for one in found.unwritable_golds}
    batches = [tried[start : start + TOGETHER] for start in range(0, len(tried), TOGETHER)]
    for batch in console.progress(batches, len(batches), f"gold answers, {TOGETHER} at a time"):
        wrongs = [case(question.text, question.answer, (), "").wrong for question in batch]
        asked = [
            (to_prompt(question), (honest(question.answer), honest(wrong))) for question, wrong in zip(batch, wrongs, strict=True)
        ]
        for question, wrong, (right, other) in zip(batch, wrongs, _score(found, scorer, asked), strict=True):
            if question.row not in bad and right.counts and other.counts and right.total <= other.total:
                why = f"it earns {right.total:g}, and the wrong answer {wrong} earns {other.total:g}"
                why += "; checking it timed out" if right.killed else ""
                found.unpaid_golds.append(BadGold(question.row, question.answer, why))
    found.golds = len(tried)


def _try_cheats(found: Audit, scorer: RewardScorer, questions: Sequence[Question], canary: str, console: RunConsole) -> None:
    tried = [question for question in chosen(questions) if question.answer.strip()]
    others = [question.answer for question in spread_out(questions)]
    cases = [(question, case(question.text, question.answer, others, canary)) for question in tried]
    work = [(question, one, cheats(one, hanging=not number)) for number, (question, one) in enumerate(cases)]
    total = sum(len(these) for _, _, these in work)
    done = 0
    for question, one, these in work:
        for kind in dict.fromkeys(cheat.kind for cheat in these):
            batch = [cheat for cheat in these if cheat.kind == kind]
            console.status(f"cheats: {done}/{total}, {kind}")
            found.paid += _paid(found, scorer, question, one, batch)
            found.by_kind[kind] += len(batch)
            done += len(batch)
    found.cheats = total


def spread_out(questions: Sequence[Question]) -> list[Question]:
    """A few questions from all over the data, for the answers of other questions."""
    pool = list(questions)
    random.Random(SEED + 1).shuffle(pool)
    return pool[:16]


def _paid(found: Audit, scorer: RewardScorer, question: Question, one: Case, batch: Sequence[Cheat]) -> Iterator[Paid]:
    """Those of a batch of cheats that pay."""
    baselines = [honest(question.answer), honest(one.wrong), without_form(one.wrong)]
    (scores,) = _score(found, scorer, [(to_prompt(question), [*baselines, *(cheat.text for cheat in batch)])])
    right, wrong, plain = (score.total for score in scores[: len(baselines)])
    for cheat, score in zip(batch, scores[len(baselines) :], strict=True):
        fair = wrong if cheat.has_form else plain
        # Where a right answer earns no more than a wrong one, the gold answers say so; here any gain counts.
        if score.counts and score.total > fair + max(PAYS * (right - fair), 1e-6):
            parts = {"format": score.format, "accuracy": score.accuracy, **score.parts}
            yield Paid(cheat.kind, cheat.name, question.row, cheat.text, score.total, fair, right, parts)


def findings(found: Audit) -> Iterator[tuple[str, str, str]]:
    """(what, where, details) of what was found, for a table: of each kind of cheat that pays the first few, each once."""
    by_kind: dict[str, dict[str, list[Paid]]] = {}
    for one in found.paid:
        by_kind.setdefault(one.kind, {}).setdefault(one.name, []).append(one)
    for kind, cheats_paid in by_kind.items():
        for name, paid in list(cheats_paid.items())[:EACH]:
            first, rows = paid[0], ", ".join(str(one.row) for one in paid)
            earns = f"{first.reward:g} instead of {first.wrong:g}"
            yield "cheat pays", f"{kind}: {name[:40]}", f"row{'s' * (len(paid) > 1)} {rows}, {earns}: {first.completion}"
        if len(cheats_paid) > EACH:
            yield "cheat pays", kind, f"and {len(cheats_paid) - EACH} more"
    for what, golds in (("gold does not pay", found.unpaid_golds), ("gold cannot be written", found.unwritable_golds)):
        for bad in golds:
            yield what, f"row {bad.row}", f"{bad.gold[:60]!r}: {bad.why}"
    for name, entry in found.failed.items():
        yield "function fails", name, f"{entry['completions']} completions, first for row {entry['row']}: {entry['why']}"
    if found.escaped:
        yield "code ran", "a canary file", "the reward runs code that is written in a completion"


def refuse_code(config: RunConfig) -> None:
    """Raises UserError for data whose answers are no text in a box."""
    if config.data.answer_kind not in ("math", "text"):
        raise UserError(
            f"the audit knows no cheats for data.answer_kind={config.data.answer_kind}", "audit data with answers in a box"
        )
