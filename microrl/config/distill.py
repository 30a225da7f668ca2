"""Distillation: the teacher that the loss `distill` trains towards, or whose scores are stored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from microrl.config.section import Section


class DistillConfig(Section):
    teacher: Annotated[str, Field(min_length=1)] | None = None
    """Whose log-probabilities the model is trained towards: a model as model.name, a run folder, or an adapter's folder in PEFT's
    format; None: no teacher. Giving one sets loss.kind=distill. Or a folder of `microrl teach`: its scores are learned in the
    supervised phase, as sft.data, and unless sft.minutes or sft.steps is given, there is no reinforcement learning."""
    quant: Literal["nf4"] | None = None
    """nf4: load the teacher in 4 bits, as model.quant does; unless the student's base is in 4 bits, too, it is then a second
    model. None: as the teacher was trained, and the student's base where that is the same."""
    top_k: Annotated[int, Field(gt=0)] | Literal["all"] | None = None
    """Outcomes over which KL(student || teacher) is computed at each position, with its exact gradient: the student's top_k
    likeliest tokens, and all others together; all: the whole vocabulary. None: the KL is estimated from the drawn token alone,
    with a policy gradient."""
    reward_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the reward's group-relative advantage, which is added to the advantage of every token; 0: the teacher alone."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        """`none` is None, as with `--set`."""
        return None if value == "none" else value
