"""The types that every package shares: prompt, completion, score, group, adapter snapshot. Frozen, and free of heavy imports.

Dimension letters in the names of tensors:
B rows of a micro-batch, N of a mini-batch or any flat count, M another one; T completion tokens, L prompt tokens; P prompts, G
completions of one prompt; V vocabulary, D hidden size, a head's in attention; H heads; O out features, I in features, R rank of
an adapter; C, K a chunk's rows and a teacher's likeliest tokens; S seeds; X any dimensions; 1 a dimension kept for broadcasting.
Some differ elsewhere. In the engines: R rows, L positions of the cache, C its capacity, S slots. In attention: K key heads or
keys, Q queries, G query heads of a key head; in `rollout.plain_step`: S a head's size. In evaluation: R simulated studies, Q
questions. K is also an inner dimension, or parts of the reward; C classes in `diagnostics.kl_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    import torch

Finish = Literal["stop", "length"]
BUILT_IN = ("format", "accuracy", "overlong")
"""The parts of the reward that need no custom function."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One problem, rendered by the model's chat template.

    `row` is its number in the data, from 1; 0 for what is not from the data. `raw` is that row as JSON where a custom reward
    function reads it, else empty. `cluster` names the questions that it is like; empty where the data does not say.
    """

    question: str
    answer: str
    text: str
    token_ids: tuple[int, ...]
    row: int = 0
    raw: str = ""
    cluster: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class SoftTargets:
    """A teacher's K likeliest tokens at each position of a completion, and their log-probabilities (nats, float32), [T, K]."""

    ids_TK: np.ndarray
    logprobs_TK: np.ndarray


@dataclass(frozen=True, slots=True)
class SftExample:
    """A solution to fine-tune on: token ids, including the end of sequence. `drawn`: as for `Completion`, in a conversation.
    `targets`: what a teacher says of each token; None: the tokens alone are learned."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    drawn: tuple[bool, ...] | None = None
    targets: SoftTargets | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """What a completion was as an episode with an environment.

    `calls` of tools, of which so many were `failures`. `reward` is the environment's own, 0 where it gives none at all; None:
    it failed to give one. `died`: why the environment's process ended before the episode did; None: it did not.
    """

    turns: int
    calls: int
    failures: int
    reward: float | None
    died: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer.

    `token_ids` ends with the end-of-sequence token where `finish` is "stop". `logprobs` are the engine's, of the sampled
    tokens, at the sampling temperature (nats). `version` is the adapter snapshot that sampled it.

    `text` is what is graded. Where others write into a completion, as a tool does, `drawn` says which tokens the policy drew
    (None: all of them), `logprobs` is 0 for the others, and `transcript` is the whole of it as text. A tool's tokens are never
    graded, trained on, or counted. `episode`: None where there is no environment.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int
    text: str
    drawn: tuple[bool, ...] | None = None
    transcript: str | None = None
    episode: Episode | None = None

    @property
    def length(self) -> int:
        """Tokens that the policy drew."""
        return len(self.token_ids) if self.drawn is None else sum(self.drawn)

    @property
    def entropy(self) -> float:
        """Mean of -log p over the tokens that the policy drew, nats: an estimate of its entropy."""
        return -math.fsum(self.logprobs) / (len(self.logprobs) if self.drawn is None else sum(self.drawn))


@dataclass(frozen=True, slots=True)
class Score:
    """A completion's reward and its parts, without their weights. `total` is the weighted sum, `killed` says its check hung.

    `overlong` is the length penalty; None where it is off. `parts` has one value for each custom reward function; None
    where it gave none. `is_valid` is False where a part that has a weight is missing: the total is then no reward, and the
    completion is left out of its group and of the update. `extracted` is the answer that was read off the text.
    """

    total: float
    format: float
    accuracy: float
    overlong: float | None = None
    killed: bool = False
    parts: Mapping[str, float | None] = field(default_factory=dict)
    is_valid: bool = True
    extracted: str | None = None

    def part(self, name: str) -> float | None:
        """The value of a part by its name: one of BUILT_IN, a custom reward function, or an environment. None where it gave none,
        as the environments of other questions."""
        return getattr(self, name) if name in BUILT_IN else self.parts.get(name)


@dataclass(frozen=True, slots=True)
class Group:
    """All completions of one prompt, and (once scored) their scores in the same order."""

    prompt: Prompt
    completions: tuple[Completion, ...]
    scores: tuple[Score, ...] = ()

    @property
    def has_mixed_accuracy(self) -> bool:
        """DAPO's filter (dynamic sampling): some completions are right and some are not."""
        return len({score.accuracy for score in self.scores if score.is_valid}) > 1

    @property
    def has_mixed_rewards(self) -> bool:
        """The same filter where accuracy has no weight: the rewards differ."""
        return len({score.total for score in self.scores if score.is_valid}) > 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. `min_tokens` forbids the end of a turn before it: for benchmarks of fixed length."""

    group_size: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    min_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LowRank:
    """The update of one linear layer: `W_base + scale * B_OR @ A_RI`, O = out, R = rank, I = in features."""

    A_RI: torch.Tensor
    B_OR: torch.Tensor
    scale: float


Merge = Callable[["torch.Tensor"], "torch.Tensor"]
"""A base tensor to the trained one, in fp32 or finer. Called one tensor at a time: no second model is ever held."""


@dataclass(frozen=True, slots=True)
class AdapterSnapshot:
    """The trained state at one version, relative to the untouched base model: this is all that an engine knows of it.

    `pairs` are plain LoRA pairs by module name. What is not low rank comes as `merged` instead, by parameter name. Neither:
    the base itself. `score` is how the owner of these weights scores token sequences with them: one tensor of
    log-probabilities (nats, temperature 1) a sequence, of its second token to its last. None where nobody trains them.

    `seed` is that of the rounding where weights of 16 bits are merged for an engine (`microrl.models.rounding`). None: they are
    rounded to nearest, because the trainer's own products round them so.
    """

    version: int
    pairs: Mapping[str, LowRank] = field(default_factory=dict)
    merged: Mapping[str, Merge] = field(default_factory=dict)
    seed: int | None = 0
    score: Callable[[Sequence[tuple[int, ...]]], list[torch.Tensor]] | None = field(default=None, compare=False)

    @property
    def is_base(self) -> bool:
        """Whether nothing is changed."""
        return not self.pairs and not self.merged


BASE = AdapterSnapshot(version=0)


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about this machine. `do`: what to do about it; None: nothing."""

    about: str
    status: Literal["ok", "warning", "problem"]
    says: str
    do: str | None = None
