"""The result of an evaluation: right answers by question, the estimates that follow from them, and its form as JSON."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from microrl import files
from microrl.data.alike import FEWEST, alike
from microrl.data.fingerprint import Fingerprint
from microrl.evaluation.estimators import majority_at_k, pass_all_k, pass_at_k
from microrl.evaluation.intervals import Estimate, mean_share, named, paired_gain
from microrl.files import STRICT, Count, Fraction, Seconds, Strict
from microrl.terminal import counted
from microrl.types import Sampling


@dataclass(slots=True)
class Result:
    """Right answers by question, out of `sampling.group_size` each."""

    sampling: Sampling
    seed: int
    pass_k: tuple[int, ...]
    right: dict[str, int] = field(default_factory=dict)
    answers: dict[str, list[tuple[int, bool]]] = field(default_factory=dict)
    """By question: how often each different answer was given, and whether it is right. Equal answers that are written in two
    ways are one where they are right, and two where they are wrong."""
    mean_length: float = 0.0
    truncated: float = 0.0
    seconds: float = 0.0
    killed: int = 0
    """Answers that count as wrong because their checks hung."""
    entropy: float | None = None
    """Mean of -log p over the sampled tokens, in nats: without bias the entropy per token of what was sampled from."""
    decode_steps: int = 0
    """Forward passes that gave each completion in flight one more token."""
    clusters: dict[str, str] = field(default_factory=dict)
    """By question: its cluster, where another question has the same. Intervals go by clusters."""
    question_seed: int = 0
    """Seed of the choice and order of the questions."""

    @property
    def samples(self) -> int:
        return self.sampling.group_size

    @property
    def cluster_count(self) -> int:
        """Number of clusters; of questions, where they are independent."""
        return len(self.right) - len(self.clusters) + len(set(self.clusters.values()))

    def killed_said(self, deadline_s: float) -> str:
        """What `killed` means, as words."""
        answers = counted(self.killed, "answer")
        return f"{answers} counted as wrong: checking timed out (reward.deadline_s = {deadline_s:g} s)"

    def by_question(self, k: int | None = None) -> dict[str, float]:
        """Each question's share of right answers, or its unbiased pass@k."""
        if k is None:
            return {question: right / self.samples for question, right in self.right.items()}
        return {question: pass_at_k(self.samples, right, k) for question, right in self.right.items()}

    def accuracy(self) -> Estimate:
        """Mean accuracy of a sample: avg@n."""
        return self._mean(self.by_question(), 1)

    def _mean(self, values: Mapping[str, float], k: int) -> Estimate:
        labels = named(list(values), self.clusters)
        return mean_share(list(values.values()), samples=self.samples, k=k, clusters=labels)

    def estimates(self) -> dict[str, Any]:
        """Every estimate by its name, as JSON: avg@n, and for each k pass@k, and above 1 also pass^k and maj@k."""
        estimates = {f"avg@{self.samples}": self.accuracy()}
        for k in self.pass_k:
            estimates[f"pass@{k}"] = self._mean(self.by_question(k), k)
        for k in self.pass_k:
            if k > 1:
                estimates[f"pass^{k}"] = self._mean(
                    {question: pass_all_k(self.samples, right, k) for question, right in self.right.items()}, k
                )
                if self.answers:
                    estimates[f"maj@{k}"] = self._mean(
                        {name: majority_at_k(answers, n=self.samples, k=k) for name, answers in self.answers.items()}, k
                    )
        return {name: estimate.to_json() for name, estimate in estimates.items()}

    def to_json(self) -> dict[str, Any]:
        """Estimates, and everything needed to repeat and to pair them."""
        return {
            "questions": len(self.right),
            "samples": self.samples,
            **self.estimates(),
            "length_mean": self.mean_length,
            "truncated": self.truncated,
            "killed": self.killed,
            "entropy": self.entropy,
            "seconds": self.seconds,
            "decode_steps": self.decode_steps,
            "settings": {
                "temperature": self.sampling.temperature,
                "top_p": self.sampling.top_p,
                "max_tokens": self.sampling.max_tokens,
                "seed": self.seed,
            },
            "right": self.right,
            "question_seed": self.question_seed,
            "clusters": self.cluster_count,
            "cluster_of": self.clusters,
        }

    @classmethod
    def read(cls, path: Path) -> Result:
        """The result that was written as `to_json`. Raises BadFile."""
        return files.read_json(path, Stored).result()

    @classmethod
    def of(cls, value: Any) -> Result:
        """The result that `to_json` gave. Raises ValueError."""
        return Stored.model_validate(value).result()

    def summary(self) -> dict[str, Any]:
        """The short form that stands in summary.json."""
        accuracy = self.accuracy()
        return {
            "accuracy": accuracy.mean,
            "ci95": list(accuracy.ci95),
            **{f"pass@{k}": self._mean(self.by_question(k), k).to_json() for k in self.pass_k},
            "questions": len(self.right),
            **({"clusters": self.cluster_count} if self.clusters else {}),
        }


def clusters(results: Iterable[Result]) -> dict[str, str]:
    """The clusters of the questions that all of the results have."""
    cluster_of: dict[str, str] = {}
    for result in results:
        cluster_of |= result.clusters
    return cluster_of


def in_clusters(questions: int, count: int) -> str:
    """What to add to a number of questions that are in fewer clusters."""
    return f" in {counted(count, 'cluster')}" if count < questions else ""


def by_text(questions: Sequence[str], texts: Sequence[str] | None = None) -> dict[str, str]:
    """The clusters of questions whose texts look alike, by the first question of each; none where there are too few of them.

    `texts`: where they are not the questions' names.
    """
    labels = alike(questions if texts is None else texts)
    sizes = Counter(labels)
    if len(sizes) < FEWEST:
        return {}
    first: dict[int, str] = {}
    return {
        question: first.setdefault(label, question) for question, label in zip(questions, labels, strict=True) if sizes[label] > 1
    }


class _Settings(Strict):
    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    seed: Count


class _Data(Fingerprint):
    model_config = ConfigDict(extra="ignore")  # beside it stands where it is from


class Stored(BaseModel):
    """The JSON of an evaluation: a result as it is written, whose estimates follow from `right` and are not read, and beside it
    what `microrl eval` says of the data and the weights. `base` is the result of others, with what stands beside that one."""

    model_config = STRICT | {"extra": "allow"}
    questions: Count
    samples: Annotated[int, Field(ge=1, le=10**6)]
    length_mean: Annotated[float, Field(ge=0)]
    truncated: Fraction
    seconds: Seconds
    settings: _Settings
    right: Annotated[dict[str, Count], Field(min_length=1)]
    question_seed: Count
    cluster_of: dict[str, str]
    data: _Data | None = None
    prompts_sha256: str | None = None
    model: str | None = None
    model_sha256: str | None = None
    adapter_sha256: str | None = None
    env: str | None = None
    base: dict[str, Any] | None = None
    gain_parts: Any = None

    def result(self) -> Result:
        """The result alone."""
        settings = self.settings
        sampling = Sampling(self.samples, settings.max_tokens, settings.temperature, settings.top_p)
        return Result(
            sampling, settings.seed, self.pass_k(), self.right, mean_length=self.length_mean, truncated=self.truncated,
            seconds=self.seconds, question_seed=self.question_seed, clusters=self.cluster_of,
        )  # fmt: skip

    def pass_k(self) -> tuple[int, ...]:
        """The k of its estimates of pass@k."""
        names = self.__pydantic_extra__ or {}
        return tuple(int(name.removeprefix("pass@")) for name in names if re.fullmatch(r"pass@[1-9]\d{0,5}", name))

    @model_validator(mode="after")
    def _is_possible(self) -> Stored:
        if any(right > self.samples for right in self.right.values()) or any(k > self.samples for k in self.pass_k()):
            raise PydanticCustomError("impossible", f"more answers are right than the {self.samples} that were asked for")
        return self


def gains(before: Result, after: Result) -> dict[str, Any]:
    """Paired gains of accuracy and of each pass@k. Beside each: the questions that both have answered, and their means before
    and after, of which the gain is the difference."""
    paired_gains = {"paired_gain": _paired(before, after, None)}
    return paired_gains | {f"paired_gain_pass@{k}": _paired(before, after, k) for k in before.pass_k}


def _paired(before: Result, after: Result, k: int | None) -> dict[str, Any] | None:
    sides = before.by_question(k), after.by_question(k)
    gain = paired_gain(*sides, samples=before.samples, k=k or 1, clusters=clusters([before, after]))
    if gain is None:
        return None
    shared = [question for question in sides[0] if question in sides[1]]
    means = [math.fsum(side[question] for question in shared) / len(shared) for side in sides]
    return gain.to_json() | {"questions": len(shared), "before": means[0], "after": means[1]}
