"""The worked examples in docstrings."""

import doctest

import pytest

from microrl.rollout import engine


@pytest.mark.parametrize("module", [engine])
def test_the_examples_in_its_docstrings(module):
    done = doctest.testmod(module)
    assert done.attempted and not done.failed
