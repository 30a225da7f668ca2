"""The plan of a configuration on a GPU."""

from microrl.config import resolve
from microrl.plan import devices, make
from microrl.plan.source import shape_of

A40 = devices.DEVICES["a40"]


def planned(*names, device=A40, sets=(), **flags):
    config = resolve(names, {key.replace("__", "."): value for key, value in flags.items()}, sets)
    return make(config, shape_of(config.model.name), device)
