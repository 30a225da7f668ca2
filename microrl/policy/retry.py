"""An update that runs out of memory is done again in smaller micro-batches, which changes no gradient but by rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from microrl.algorithm.batch import Row
from microrl.errors import MachineFailure, first_line, in_a_new_run
from microrl.models import gpu

if TYPE_CHECKING:
    from microrl.policy.policy import Policy

Result = TypeVar("Result")
Minibatches = Sequence[Sequence[Row]]


def retry_with_smaller_microbatches(policy: Policy, minibatches: Minibatches, attempt: Callable[[], Result]) -> Result:
    """What `attempt` returns, with micro-batches halved as often as it runs out of memory.

    Raises MachineFailure where they hold a single completion already.
    """
    while True:
        try:
            return attempt()
        except Exception as error:
            if not gpu.is_out_of_memory(error) or policy.is_stepping:  # a step that is half done must not be done again
                raise
            why = first_line(error)
        # The exception keeps the failed attempt's tensors alive; they are freed only here.
        policy.optimizer.zero_grad(set_to_none=True)
        gpu.empty_cache()
        _shrink(policy, minibatches, why)


def _shrink(policy: Policy, minibatches: Minibatches, why: str) -> None:
    """Halve the micro-batches; where they are single rows, recompute activations, if that is allowed."""
    largest = _largest_microbatch(policy, minibatches)
    if largest > 1:
        while _largest_microbatch(policy, minibatches) == largest:
            policy.max_tokens //= 2
        how = f"micro-batches of at most {policy.max_tokens} tokens"
    elif policy.may_checkpoint and not policy.checkpoints_activations:
        policy.checkpoint_activations()
        how = "activation recomputation (model.gradient_checkpointing)"
    else:
        is_taught = policy.teacher is not None
        beside = " beside the teacher" if is_taught else ""
        quant = "--set distill.quant=nf4 (if the teacher is a second model), " if is_taught else ""
        raise MachineFailure(
            f"out of memory in the update{beside}, with one completion at a time: {why}",
            in_a_new_run(f"{quant}--set model.gradient_checkpointing=auto or a lower --set sampling.max_completion_tokens=N"),
        )
    policy.on_event(
        "out of memory", f"in the update: {how} from now on", tokens_per_microbatch=policy.max_tokens,
        gradient_checkpointing=policy.checkpoints_activations, error=why,
    )  # fmt: skip


def _largest_microbatch(policy: Policy, minibatches: Minibatches) -> int:
    return max(len(positions) for rows in minibatches for _, positions in policy.planned_microbatches(rows))
