"""Algorithms, one file each, and what they are made of: advantages and loss terms, pure functions of tensors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from microrl.config import plugins
from microrl.config.losses import CustomLossConfig
from microrl.errors import UserError

if TYPE_CHECKING:
    from microrl.algorithm.grpo import Algorithm
    from microrl.config import RunConfig


def make(config: RunConfig) -> Algorithm:
    """The algorithm that `loss.kind` names: `Algorithm` of the module of that name, or the class that `loss.target` names.

    Raises UserError for a class of another package that cannot be used.
    """
    if not isinstance(config.loss, CustomLossConfig):
        return cast("Algorithm", import_module(f"microrl.algorithm.{config.loss.kind}").Algorithm(config))
    from microrl.algorithm.grpo import Algorithm

    target = config.loss.target
    loaded = plugins.load(target, what="algorithm", group=plugins.ALGORITHMS, folder=config.loss.path)
    if not (isinstance(loaded, type) and issubclass(loaded, Algorithm)):
        raise UserError(f"`{target}` is not an algorithm", "let the class inherit from microrl.algorithm.grpo.Algorithm")
    algorithm = loaded(config)
    if algorithm.needs_teacher and config.asked_teacher is None:
        raise UserError(f"`{target}` needs a teacher", "pass --teacher MODEL, or --teacher RUN")
    if config.asked_teacher is not None and not algorithm.needs_teacher:
        raise UserError(f"--teacher has no effect with `{target}`", "remove it, or let the property needs_teacher be True")
    return algorithm
