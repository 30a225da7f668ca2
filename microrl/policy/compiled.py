"""The update's norms and MLPs, with the LoRA function in them, as torch.compile translates them.

Attention stays out. It has kernels of its own, and its shapes are sums of products of four sizes: with it, tracing a layer of a
tiny model took a minute, and every way to pad prompts was one more graph. What is left depends on the number of tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import PreTrainedModel

from microrl.errors import first_line
from microrl.models import gpu
from microrl.policy.activations import layers

if TYPE_CHECKING:
    from microrl.policy.policy import Policy

Result = TypeVar("Result")
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
BACKEND = "inductor"
FAILED = "not compiled"
"""The kind of the event."""


class Compiled:
    """The compiled parts of a model. They are in place within `run` alone, and where a gradient is recorded."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._forwards: dict[torch.nn.Module, Callable[..., Any]] = {}
        for layer in layers(model):
            for part in layer.children():
                if "Attention" not in type(part).__name__ and any(True for _ in part.parameters()):
                    self._forwards[part] = _where_recorded(part.forward)
        self.is_active = False

    def run(self, policy: Policy, attempt: Callable[[], Result]) -> Result:
        """What `attempt`, an update of the policy, returns. Where compiling fails, it is reported, and this attempt and all later
        ones are not compiled."""
        if not self._forwards:
            return attempt()
        try:
            with self._in_place():
                return attempt()
        except Exception as error:
            # An attempt leaves the weights as they were, unless it ends within an optimizer step.
            if gpu.is_out_of_memory(error) or policy.is_stepping or not _is_compilers(error.__traceback__):
                raise
            why, said = f"{type(error).__name__}: {first_line(error)}", str(error)
        self._forwards.clear()
        policy.optimizer.zero_grad(set_to_none=True)
        policy.on_event(FAILED, f"torch.compile failed, and the run goes on uncompiled: {why}", error=said)
        return attempt()

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        # Not torch.compiler.set_stance, which holds for the whole process: vLLM may run compiled code in it.
        for part, forward in self._forwards.items():
            part.forward = forward
        self.is_active = True
        try:
            yield
        finally:
            self.is_active = False
            for part in self._forwards:
                del part.forward  # the class's own is behind it


def _where_recorded(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The function as compiled, where autograd records what comes in: with and without gradients would be two graphs."""
    # The whole of it or nothing: a graph for each piece between two calls that cannot be traced would be slow, and not be said.
    compiled = torch.compile(forward, backend=BACKEND, fullgraph=True, dynamic=True)

    def chosen(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (compiled if torch.is_grad_enabled() and x.requires_grad else forward)(x, *args, **kwargs)

    return chosen


def _is_compilers(traceback: TracebackType | None) -> bool:
    """Whether an error comes from a compiler, or out of what it made."""
    while traceback is not None:
        if traceback.tb_frame.f_globals.get("__name__", "").startswith(COMPILERS):
            return True
        traceback = traceback.tb_next
    return False
