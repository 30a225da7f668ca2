"""The plan of a configuration on a GPU, and seconds in place of one."""

from types import SimpleNamespace

from microrl.config import resolve
from microrl.plan import devices, make
from microrl.plan.source import shape_of

A40 = devices.DEVICES["a40"]


def seconds_of(**changes):
    """As much of a plan as `Forecast` reads."""
    seconds = {"step_s": 5.0, "save_s": 0.1, "validation_s": 9.0, "sft_step_s": 1.0, "evaluation_s": 40.0}
    return SimpleNamespace(steps=10, step_parts_s={"update": 1.0}, **seconds | changes)


def planned(*names, device=A40, sets=(), **flags):
    config = resolve(names, {key.replace("__", "."): value for key, value in flags.items()}, sets)
    return make(config, shape_of(config.model.name), device)
