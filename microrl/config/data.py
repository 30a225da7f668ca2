"""Configuration of the data: where the questions come from, and what kind of answers they have."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from microrl.config import catalogue
from microrl.config.section import Fraction, Positive, Section, Seed, or_one
from microrl.errors import UserError

GYM = "reasoning-gym:"
"""Names of data sets that begin with this are lists of procedural tasks."""
BOXED = "Think step by step inside <think> and </think>, then give the final answer inside \\boxed{}."
ASKS_FOR = {
    "code": "Think step by step inside <think> and </think>, then give the program in one fenced ```python block.",
    "gym": "Think step by step inside <think> and </think>, then give the final answer inside <answer> and </answer>.",
}
"""The system message, where another kind of answer than a boxed one is asked for."""
BENCHMARK_PROMPT = 2048
"""Tokens that a benchmark's prompts may have at least: leaving out the long ones would change what is measured."""


class DataConfig(Section):
    name: str = "open-rs"
    """Known data set, hub id, local .jsonl, .json, .csv or .parquet file, a folder of such files, `arithmetic` (sums), or
    `higher-lower` (a game with the environment of that name)."""
    subset: str | None = None
    """Configuration of the hub data set or folder, if it has several."""
    split: str = "train"
    """Split of the hub data set or folder. Known data sets that only measure have one split, which `train` means too."""
    revision: str | None = None
    """Commit of the hub data set; None: the one pinned for a known data set, else the newest."""
    question: str | None = None
    """Column of the question; None tries the usual names."""
    answer: str | None = None
    """Column of the gold answer; None tries the usual names."""
    cluster: str | None = None
    """Column that says which questions are alike, such as translations of one: intervals count each cluster once. None takes
    `cluster` if it exists, else compares the texts; a column in which all rows differ, such as that of the question, turns it
    off. Of procedural tasks: `task` or `question`."""
    answer_kind: Literal["math", "text", "code", "gym"] = "math"
    """`math`: the gold answer must parse as mathematics. `text`: answers are compared as text, ignoring case and white space.
    `code`: the answer is a program, and the row has its tests; implied by mbpp and humaneval. `gym`: a scorer of reasoning-gym;
    implied by such a name."""
    bad_answers: Literal["error", "drop"] = "error"
    """What to do with a row whose gold answer does not parse as mathematics, or whose tests cannot be used. The default is `drop`
    for a data set that microrl knows by name, since its rows are not yours to fix."""
    problems: Positive = 1000
    """Problems of each procedural task (reasoning-gym)."""
    seed: Seed = 0
    """Seed of the problems of procedural tasks."""
    system: str | None = BOXED
    """System message; None: no system message. For code and procedural tasks the default asks for a program, or for an answer
    in <answer> tags."""
    system_role: Literal["system", "user"] = "system"
    """Where the text of `system` stands: in a message of its own, or before the question in the user's. For DeepSeek's distilled
    models the default is `user`, as their makers advise, unless `system` is given."""
    thinking: bool | None = None
    """The chat template's `enable_thinking`, in training, evaluation and `microrl sample` alike; None: the template's default,
    which `microrl presets models` shows. A template without this switch is refused."""
    max_prompt_tokens: Positive = 512
    """Maximum prompt length in tokens, chat template included."""
    long_prompts: Literal["error", "drop", "truncate_left"] = "error"
    """What to do with a prompt above that limit. The default is `drop` for a data set that microrl knows by name."""
    decontaminate: Annotated[tuple[str, ...], or_one(str)] = ()
    """Benchmarks by name; training questions that are nearly the same as one of theirs are left out. Overlaps with them are kept
    in contamination.json."""
    curriculum: bool = False
    """Draw those questions more often whose answers were partly right so far: groups in which all are right, or none, teach
    nothing."""
    screen_minutes: Annotated[float, Field(gt=0)] | None = None
    """Maximum minutes of a first pass over the training questions, part of the run's hours. Those that are always or
    never answered correctly are left out of training, at most half of those seen. None: no such pass."""
    held_out: Fraction = 0.05
    """Fraction of the questions held out for the evaluations before and after training, chosen by a hash of the text."""
    validation: Fraction = 0.05
    """Fraction of the questions used for validation during training; they are neither trained on nor in the evaluations."""

    @field_validator("decontaminate")
    @classmethod
    def _benchmarks(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(dict.fromkeys(catalogue.benchmark(name).name for name in names))
        except UserError as error:
            raise ValueError(f"data.decontaminate: {error.message}", error.hint) from None

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, values: Any) -> Any:
        """What follows from some names takes the place of a default: the kind of the answers, the split, what to do with unusable
        rows, and from the kind how the system message asks for the answer."""
        if not isinstance(values, dict):
            return values
        name = values.get("name", cls.model_fields["name"].default)
        name = name.lower() if isinstance(name, str) else ""
        known = catalogue.find(name)
        implied = "gym" if name.startswith(GYM) else "code" if known is not None and known.kind == "code" else None
        kind = values.get("answer_kind", "math")
        if implied is not None and kind not in ("math", implied):
            raise ValueError(
                f"the answers of {values['name']} are of the kind `{implied}`, not `{kind}`", "remove data.answer_kind"
            )
        kind = implied or kind
        unusable = {} if known is None else dict.fromkeys(("bad_answers", "long_prompts"), "drop")
        completed = {**unusable, **values, "answer_kind": kind}
        if known is not None and isinstance(split := values.get("split", "train"), str):
            completed["split"] = known.split(split)
        if values.get("system", BOXED) == BOXED:
            completed["system"] = ASKS_FOR.get(str(kind), BOXED)
        return completed

    def for_benchmark(self, name: str) -> DataConfig:
        """The data of a benchmark, all of it held out. Of these settings those stay that say how a prompt is rendered, the system
        message where it is not the default. Rows whose gold answer cannot be read are left out, and counted. Raises UserError."""
        known = catalogue.benchmark(name)
        kept: dict[str, Any] = {
            "system_role": self.system_role,
            "thinking": self.thinking,
            "max_prompt_tokens": max(self.max_prompt_tokens, BENCHMARK_PROMPT),
        }
        if self.system not in (BOXED, *ASKS_FOR.values()):
            kept["system"] = self.system
        given = {"name": known.name, "split": known.splits["test"], "answer_kind": known.answer_kind, "long_prompts": "error"}
        return DataConfig.model_validate({**kept, **given, "held_out": 1.0, "validation": 0.0})
