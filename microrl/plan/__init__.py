"""What a run will take, before it is started: memory, seconds, steps, dollars. No torch, no weights, no GPU."""

from microrl.plan.devices import Device
from microrl.plan.plan import Plan, make
from microrl.plan.shapes import Shape

__all__ = ["Device", "Plan", "Shape", "make"]
