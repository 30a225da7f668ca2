"""The one engine of a process that runs the real vLLM."""

import pytest

from microrl.types import BASE


@pytest.fixture(scope="session")
def served(tokenizer):
    """The engine that these files share: on a GPU a process has one.

    A test between theirs that needs another one runs it in another process: taken down, it takes this one's groups with it.
    """
    from vllm_served import Served

    made = Served(tokenizer)
    with made.engine.awake(BASE):  # the first time it calibrates its probe
        assert [kind for kind, *_ in made.events] == ["probe calibrated"]
    yield made
    made.engine.close()


@pytest.fixture(autouse=True)
def _fresh_events(request):
    if "served" in request.fixturenames:
        request.getfixturevalue("served").events.clear()
