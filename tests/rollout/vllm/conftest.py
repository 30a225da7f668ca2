"""The one engine of a process that runs the real vLLM."""

import pytest

from microrl.types import BASE


@pytest.fixture(scope="session")
def _made():
    """The engine that `served` has made, in a list."""
    made = []
    yield made
    for one in made:
        one.engine.close()


@pytest.fixture
def served(_made, tokenizer):
    """The engine that these files share: on a GPU a process has one.

    Another one in this process that is taken down, as some tests have on a CPU, takes this one's groups with it: then it is made
    anew, so that tests may run in any order.
    """
    from vllm.distributed.parallel_state import model_parallel_is_initialized
    from vllm_served import Served

    if not (_made and model_parallel_is_initialized()):
        _made[:] = [made := Served(tokenizer)]
        with made.engine.awake(BASE):  # the first time it calibrates its probe
            assert [kind for kind, *_ in made.events] == ["probe calibrated"]
    return _made[0]


@pytest.fixture(autouse=True)
def _fresh_events(request):
    if "served" in request.fixturenames:
        request.getfixturevalue("served").events.clear()
