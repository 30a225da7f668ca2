"""The plan of a run on the machine that it runs on."""

from __future__ import annotations

import psutil
import torch

from microrl.config.schema import TransformersEngineConfig
from microrl.plan import devices, plan
from microrl.plan.devices import Device
from microrl.plan.plan import Plan
from microrl.plan.shapes import Shape
from microrl.train.setup import Components


def of_model(components: Components, load_s: float) -> Plan:
    """What the loaded model's shape and this machine let expect, after so many seconds of loading."""
    config = components.config
    if components.engine.name == "transformers":  # `auto` would stand for vLLM on a card
        config = config.model_copy(update={"engine": TransformersEngineConfig(max_kv_gb=config.engine.max_kv_gb)})
    shape = Shape.from_config(components.policy.adapter.model.config.to_dict())
    return plan.make(config, shape, this_device(), load_s=load_s)


def this_device() -> Device:
    """The first card, or the processor where there is none."""
    if torch.cuda.is_available():
        memory_gb = torch.cuda.get_device_properties(0).total_memory / 1e9
        return devices.of_device(torch.cuda.get_device_name(), memory_gb, torch.cuda.get_device_capability())
    return devices.cpu(torch.get_num_threads(), psutil.virtual_memory().total / 1e9)
