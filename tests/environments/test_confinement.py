"""What holds an environment's instances: the sandbox where it is asked for, and a limit of their memory in any case."""

import os
import time
from contextlib import closing
from pathlib import Path

import hostile_tools
import pytest

from microrl.config import resolve
from microrl.environments import process
from microrl.environments.process import Instances
from microrl.errors import UserError
from microrl.sandbox import Levels, levels
from microrl.sandbox.worker import NoReply

HELPERS = str(Path(hostile_tools.__file__).parent)
tight = pytest.mark.skipif(not levels().is_enforced, reason="this kernel cannot confine")


def config_of(**keys):
    return resolve((), {"env.target": "hostile_tools:Prisoner", "env.path": HELPERS, **keys}).env


KINDS = ["free", *(pytest.param(kind, marks=tight) for kind in ("confined", "built in"))]


@pytest.fixture(scope="module", params=KINDS)
def instances(request):
    """The last as those that come with microrl: without a folder, by rules that are made before the fork."""
    with closing(Instances(config_of(**{"env.confine": request.param != "free", "env.memory_gb": 0.5}))) as found:
        if request.param == "built in":
            found._bounds = found._bounds._replace(strict=False)
        yield found


@pytest.fixture
def instance(instances):
    one = instances.begin()
    assert one.ask({"reset": {}}, 60.0) == {"said": None}
    yield one
    one.end()


def called(instance, name, **arguments):
    return instance.ask({"call": name, "arguments": arguments}, 60.0)


def test_what_a_confined_instance_can_do(instances, instance):
    """It computes, imports and waits as any other; what would leave the process is refused."""
    for what in hostile_tools.ATTEMPTS:
        if instances._bounds.confined:
            assert called(instance, "attempt", what=what)["answer"].startswith("refused"), what
        elif what != "signal the parent":  # it would end the others, too
            assert called(instance, "attempt", what=what)["answer"] == "done", what
    assert called(instance, "compute")["answer"] == "(0.0, 1.0, 1)"
    assert called(instance, "wait")["answer"] == "waited"
    Path("/tmp/microrl-escaped").unlink(missing_ok=True)


@tight
def test_a_folder_of_its_own_is_gone_with_it():
    with closing(Instances(config_of(**{"env.confine": True}))) as instances:
        first, second = instances.begin(), instances.begin()
        kept = [called(one, "keep", text=text) for one, text in ((first, "a"), (second, "b"))]
        folder = instances._bounds.folder
        if "error" in kept[0]:  # no mounts in this container
            assert "PermissionError" in kept[0]["error"]
        else:
            assert [one["answer"] for one in kept] == ["a", "b"]
        first.end()
        second.end()
        until = time.monotonic() + 30
        while os.listdir(folder) and time.monotonic() < until:
            time.sleep(0.01)
        assert os.listdir(folder) == []
    assert not os.path.exists(folder)


def test_memory_has_a_limit(instance):
    assert called(instance, "grow", gigabytes=0.1) == {"answer": "100000000", "done": False}
    assert "MemoryError" in (said := called(instance, "grow", gigabytes=0.6)["error"]) and "env.memory_gb" in said
    assert called(instance, "grow", gigabytes=0.1)["answer"] == "100000000"


@pytest.mark.parametrize(("number", "why"), [(9, "SIGKILL, often for lack of memory"), (6, "SIGABRT")])
def test_a_death_is_told(number, why, instances):
    """As the kernel kills where memory runs out, and as libraries abort."""
    if instances._bounds.confined:
        pytest.skip("it cannot send signals, not even to itself")
    instance = instances.begin()
    with pytest.raises(NoReply) as error:
        called(instance, "kill", number=number)
    assert error.value.why == f"its process ended (killed by {why})"
    instance.end()


def test_a_kernel_that_cannot_confine_is_named(monkeypatch):
    monkeypatch.setattr(process, "levels", lambda: Levels(files=False, system_calls=True))
    process.refuse_unusable(config_of())
    with pytest.raises(UserError, match=r"env.confine: this kernel cannot confine an environment: it lacks Landlock"):
        process.refuse_unusable(config_of(**{"env.confine": True}))
    process.refuse_unusable(config_of(**{"env.target": "calculator"}))
    with pytest.raises(UserError, match=r"--env python runs what the model writes: this kernel cannot"):
        process.refuse_unusable(config_of(**{"env.target": "python"}))
