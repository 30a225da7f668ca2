"""The plan of a run on this machine."""

from __future__ import annotations

from dataclasses import replace

import torch

from microrl.config import RunConfig
from microrl.config.schema import TransformersEngineConfig
from microrl.errors import UserError
from microrl.plan import devices, here, plan, source
from microrl.plan.devices import Device
from microrl.plan.plan import Plan
from microrl.plan.shapes import Shape
from microrl.run.teacher import size
from microrl.train.setup import Components


def of_model(components: Components, load_s: float) -> Plan:
    """The plan for the loaded model on this machine. `load_s`: measured seconds of loading."""
    config = components.config
    if components.engine.name == "transformers":  # on a GPU, `auto` would mean vLLM
        config = config.model_copy(update={"engine": TransformersEngineConfig(max_kv_gb=config.engine.max_kv_gb)})
    shape = Shape.from_config(components.policy.adapter.model.config.to_dict())
    return plan.make(config, shape, this_device(), load_s=load_s, teacher=size(config, is_at_hand=True))


def of_config(config: RunConfig, *, is_at_hand: bool = False) -> Plan | None:
    """The plan before anything is loaded; None if the model's size is not known, or not at hand at once where it `is_at_hand`."""
    name = config.model.name
    if is_at_hand and not source.is_at_hand(name):
        return None
    try:
        return plan.make(config, source.shape_of(name), this_device(), teacher=size(config, is_at_hand=is_at_hand))
    except UserError:  # which loading raises too
        return None


def this_device() -> Device:
    """The first GPU, or else the CPU."""
    if torch.cuda.is_available():
        memory_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
        device = devices.of_device(torch.cuda.get_device_name(), memory_gb, torch.cuda.get_device_capability())
        return here.calibrated(replace(device, memory_gb=memory_gb))  # as the engine's sleep level is chosen
    return here.processor()
