"""The worked examples in docstrings."""

import doctest
from contextlib import contextmanager

import pytest

from microrl.algorithm import grpo
from microrl.errors import MachineFailure
from microrl.rewards.custom import functions
from microrl.rollout import engine
from microrl.types import BASE


@pytest.mark.parametrize("module", [engine, grpo, functions], ids=lambda module: module.__name__)
def test_the_examples_in_docstrings(module):
    done = doctest.testmod(module, extraglobs={"BASE": BASE, "MachineFailure": MachineFailure, "contextmanager": contextmanager})
    assert done.attempted and not done.failed
