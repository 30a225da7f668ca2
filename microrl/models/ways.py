"""How rows are computed together, and for which models it takes slower ways."""

from __future__ import annotations

from typing import NamedTuple

from transformers import PreTrainedModel

ATTRIBUTE = "microrl_ways"
"""Of a model for which a slower way is taken. A copy of its modules has it, too."""


class Ways(NamedTuple):
    """What speaks against the fast ways for a model; None: nothing. `policy.architecture.check` compares, and decides."""

    update: str | None = None
    """Why each completion computes its prompt again."""
    decoding: str | None = None
    """Why rows are not padded to one length: those of each length are then decoded apart, with the model's own cache."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Ways:
        ways: Ways = vars(model).get(ATTRIBUTE, cls())
        return ways

    def keep(self, model: PreTrainedModel) -> None:
        """Have trainer and engine compute this model so."""
        if self != Ways():
            setattr(model, ATTRIBUTE, self)

    def notes(self) -> list[str]:
        """What the user is told where a model is trained."""
        update = f"the update recomputes the prompt for each completion, which is slower: {self.update}"
        return [*([] if self.update is None else [update]), *self.decoding_notes()]

    def decoding_notes(self) -> list[str]:
        """What the user is told where a model only samples."""
        apart = "without vLLM, prompts of different lengths are decoded in separate batches, which is slower"
        return [] if self.decoding is None else [f"{apart}: {self.decoding}"]
