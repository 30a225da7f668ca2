"""Answers of a base and of a trained model to made questions, judged and stored as an evaluation does it."""

from pathlib import Path

from microrl.config import resolve
from microrl.evaluation.record import write_completions
from microrl.evaluation.result import Result
from microrl.rewards.scorer import make_scorer
from microrl.types import Completion, Group, Prompt, Sampling

BOXED = "<think>2 and 2</think> \\boxed{4}"
UNBOXED = "2 and 2 are 4, so the answer is 4."
UNFINISHED = "<think>2 and 2, let me think again: 4. Or"
WRONG = "<think>2 and 2</think> \\boxed{5}"
WRONG_UNBOXED = "2 and 2 are 5, so the answer is 5."


def store(path: Path, texts: list[list[str]], *, kind="math", gold="4", names=None) -> Result:
    """Write the record of these completions, of which each question has a list: `path`, and its result beside it."""
    names = names or [f"question {number}" for number in range(len(texts))]
    groups = [
        Group(Prompt(name, gold, "", (), 1), tuple(map(_completion, said))) for name, said in zip(names, texts, strict=True)
    ]
    scorer = make_scorer(resolve((), {"data.answer_kind": kind}))
    try:
        scored = scorer.score(enumerate(groups))
    finally:
        scorer.close()
    write_completions(path, scored)
    right = {name: sum(score.accuracy == 1 for score in group.scores) for name, group in zip(names, scored, strict=True)}
    return Result(Sampling(len(texts[0]), 8), 0, (1,), right)


def _completion(text: str) -> Completion:
    return Completion((0,) * 5, (-1.0,), "length" if text == UNFINISHED else "stop", 0, text)
