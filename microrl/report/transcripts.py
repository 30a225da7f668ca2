"""What the trained model answers and the base model does not: two records of one evaluation, side by side.

Both sides answered the same questions with the same random numbers, so their answers are equal up to the token where training
first mattered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from microrl.data.gym import own_answer
from microrl.environments.transcript import said
from microrl.errors import UserError
from microrl.evaluation.gain_parts import LENIENT_KINDS, GainParts, StoredAnswer
from microrl.evaluation.gain_parts import gain_parts as parts_of
from microrl.evaluation.result import Result
from microrl.evaluation.result import clusters as clusters_of
from microrl.limits import QUESTIONS_A_STEP
from microrl.report.completions import read_lines, shown_text
from microrl.run import names
from microrl.run.folder import RunFolder

if TYPE_CHECKING:
    from microrl.rewards.scorer import RewardScorer

OWN = (names.BEFORE, names.AFTER)
"""The files of the evaluations that training itself has made."""
BASE = "-base"
"""Ends the name of a base model's file; see `microrl eval --base`."""
SUFFIX = ".jsonl.gz"
MAX_ANSWERS = 400_000
"""Lines of a file that are read."""
RIGHT, WRONG, OTHER, SAME = "became right", "became wrong", "other text", "same text"
KINDS = (RIGHT, WRONG, OTHER, SAME)


@dataclass(frozen=True, slots=True)
class Pair:
    """The answers of the two models to one question, `sample` being the number of the answer.

    The texts are as the models wrote them: `shown` makes them safe. `same` is how both begin, up to the first word that
    differs; `base` and `trained` are the rests.
    """

    question: str
    gold: str
    sample: int
    same: str
    base: str
    trained: str
    base_right: bool
    trained_right: bool

    @property
    def kind(self) -> str:
        """One of KINDS."""
        if self.base_right != self.trained_right:
            return RIGHT if self.trained_right else WRONG
        return OTHER if self.base or self.trained else SAME

    def shown(self) -> Pair:
        """The pair with its texts safe to show, and not too long."""
        texts = {name: shown_text(getattr(self, name)) for name in ("question", "gold", "same", "base", "trained")}
        return replace(self, **texts)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question, "answer": self.gold, "sample": self.sample, "kind": self.kind, "same": self.same,
            "base": {"rest": self.base, "right": self.base_right},
            "trained": {"rest": self.trained, "right": self.trained_right},
        }  # fmt: skip


def evaluations(run: Path) -> dict[str, tuple[Path, Path]]:
    """(base model's file, trained model's file) by the evaluation's name: the run's own first, then the newest first."""
    place = run / names.EVAL
    sides = {OWN[1]: tuple(place / f"{name}{SUFFIX}" for name in OWN)}
    for path in sorted(place.glob(f"*{BASE}{SUFFIX}"), key=lambda path: -path.lstat().st_mtime):
        name = path.name.removesuffix(f"{BASE}{SUFFIX}")
        sides[name] = (path, place / f"{name}{SUFFIX}")
    return {name: (base, trained) for name, (base, trained) in sides.items() if base.exists() and trained.exists()}


def pairs(base: Path, trained: Path, notes: list[str]) -> Iterator[Pair]:
    """The answers that both files have, in the order of the second; what cannot be read becomes a note."""
    answered = {_key(line): line for line in read_lines(base, notes, MAX_ANSWERS)}
    for line in read_lines(trained, notes, MAX_ANSWERS):
        if (other := answered.get(_key(line))) is None:
            continue
        is_talk = any(isinstance(side.get("transcript"), str) for side in (other, line))
        before, after = (said(side, is_talk=is_talk) for side in (other, line))
        shared = common(before, after)
        sample = line.get("sample")
        yield Pair(
            str(line.get("question") or ""), own_answer(str(line.get("answer") or "")), sample if isinstance(sample, int) else 0,
            before[:shared], before[shared:], after[shared:], other.get("right") is True, line.get("right") is True,
        )  # fmt: skip


def gain_parts(
    base: Path,
    trained: Path,
    scorer: RewardScorer,
    notes: list[str],
    clusters: Mapping[str, str],
    left_s: Callable[[], float] | None = None,
) -> GainParts | None:
    """Where the gain between two records of one evaluation comes from; None where they have no answers in common, or the time,
    `left_s`, is up. The scorer judges the lenient readings; what cannot be read becomes a note."""
    kind = scorer.checker.kind
    sides = [list(_answers(path, kind, notes)) for path in (base, trained)]
    scorer.reset_allowance(math.ceil(len({one.question for one in sides[0]}) / QUESTIONS_A_STEP))
    right = scorer.right_ones((one.reading for side in sides for one in side if one.reading is not None), left_s=left_s)
    if right is None:
        return None
    return parts_of(sides[0], sides[1], right if kind in LENIENT_KINDS else None, clusters)


def own_gain_parts(run: Path, stored: GainParts | None, notes: list[str]) -> GainParts | None:
    """Where the gain between the evaluations before and after training comes from: as `stored` with them, or, of a run that did
    not store it, from its answers; None where they are not all there. What cannot be read becomes a note."""
    own = evaluations(run).get(OWN[1])
    if stored is not None or own is None:
        return stored
    from microrl.rewards.scorer import RewardScorer

    try:
        config = RunFolder(run).settings()
        clusters = clusters_of(Result.read(run / names.EVAL / f"{name}.json") for name in OWN)
    except UserError as error:  # damaged
        notes.append(error.message)
        return None
    with closing(RewardScorer(config.reward, answer_kind=config.data.answer_kind)) as scorer:
        return gain_parts(*own, scorer, notes, clusters)


def _answers(path: Path, kind: str, notes: list[str]) -> Iterator[StoredAnswer]:
    """A record's answers. A question is named as in the result: by its text, and a number from the second with that text on."""
    seen: Counter[str] = Counter()
    for line in read_lines(path, notes, MAX_ANSWERS):
        question = str(line.get("question") or "")
        if line.get("sample") == 0:
            seen[question] += 1
        yield StoredAnswer.of(line, question if seen[question] <= 1 else f"{question} (#{seen[question]})", kind)


def common(one: str, other: str) -> int:
    """How many characters two texts share at their beginnings, in whole words."""
    length = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    if length == len(one) == len(other):
        return length
    while length and (one[length - 1].isalnum() or one[length - 1] == "_"):  # back to the beginning of the word
        length -= 1
    return length


def counts(answer_pairs: Sequence[Pair]) -> dict[str, int]:
    """How many answers there are of each of KINDS."""
    return {kind: sum(pair.kind == kind for pair in answer_pairs) for kind in KINDS}


def different_first(answer_pairs: Iterable[Pair]) -> list[Pair]:
    """The first answer to each question, then the second ones, and so on: a few then show different questions."""
    seen: Counter[str] = Counter()
    turns = []
    for pair in answer_pairs:
        turns.append((seen[pair.question], pair))
        seen[pair.question] += 1
    return [pair for _, pair in sorted(turns, key=lambda turn: turn[0])]


def _key(line: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(line.get(name)) for name in ("question", "row", "sample"))
