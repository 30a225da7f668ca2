"""Algorithms, one file each, and what they are made of: advantages and loss terms, pure functions of tensors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from microrl.algorithm.grpo import Algorithm
    from microrl.config import RunConfig


def make(config: RunConfig) -> Algorithm:
    """The algorithm that `loss.kind` names: `Algorithm` of the module of that name."""
    made: Algorithm = import_module(f"microrl.algorithm.{config.loss.kind}").Algorithm(config)
    return made
