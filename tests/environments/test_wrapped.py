"""The guide's examples of how environments of other libraries are wrapped, with stand-ins for those libraries."""

import random
import re
from contextlib import closing

import pytest
from guide_pages import TEXTS
from places import HELPERS

from microrl.config import resolve
from microrl.environments.process import Instances


@pytest.fixture
def instance(request, tmp_path, monkeypatch):
    for name, code in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", TEXTS["environments"], re.DOTALL):
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    config = resolve((), {"env.target": request.param, "env.path": str(tmp_path)})
    with closing(Instances(config.env)) as instances:
        instances.describe()  # its tools have schemas
        yield instances.begin()


def called(instance, name, **arguments):
    return instance.ask({"call": name, "arguments": arguments}, 60.0)


@pytest.mark.parametrize("instance", ["my_openenv:Guessing"], indirect=True)
def test_openenv(instance):
    secret = random.Random(3).randint(1, 9)
    assert instance.ask({"reset": {"question": "Which?", "seed": 3}}, 60.0) == {"said": " It is from 1 to 9."}
    assert called(instance, "guess", number=secret + 1) == {"answer": "lower", "done": False}
    assert called(instance, "guess", number=secret) == {"answer": "right", "done": True}
    assert instance.ask({"reward": True}, 60.0) == {"reward": 0.75}


@pytest.mark.parametrize("instance", ["my_dialogue:Dialogue"], indirect=True)
def test_tinker(instance):
    assert instance.ask({"reset": {"topic": "cats"}}, 60.0) == {"said": " We talk about cats."}
    assert called(instance, "say", text="I like cats.") == {"answer": "You said: I like cats.\nGo on.", "done": False}
    assert called(instance, "say", text="And dogs.")["done"]
    assert instance.ask({"reward": True}, 60.0) == {"reward": 1.0}
