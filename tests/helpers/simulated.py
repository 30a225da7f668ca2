"""A run's hours in simulated time: what it does is real, and what it takes is said here."""

from __future__ import annotations

import random
from collections.abc import Callable

from microrl import clock
from microrl.policy import sft
from microrl.policy.policy import Policy
from microrl.rollout import decoding
from microrl.run import checkpoint
from microrl.run.budget import Budget
from microrl.train import saving, setup


class Machine:
    """A clock that stands still but for work: seconds for a forward pass, a micro-batch, a save, and for loading.

    `pace` says by how much slower than that the machine is at a moment, from the seconds since its start.
    """

    LOAD_S, FORWARD_S, MICROBATCH_S, SAVE_S = 20.0, 5.0, 20.0, 3.0

    def __init__(self, monkeypatch, pace: Callable[[float], float] = lambda elapsed_s: 1.0, *, load_s: float = LOAD_S) -> None:
        self.now, self._pace = 1000.0, pace
        self._started, self._patch = self.now, monkeypatch
        monkeypatch.setattr(clock, "now_s", lambda: self.now)
        monkeypatch.setattr(clock, "process_started_s", lambda: self._started)
        monkeypatch.setitem(Budget.__init__.__kwdefaults__, "now", lambda: self.now)
        self.takes(setup, "build", load_s)
        self.takes(decoding.DecodingBatch, "_logits", self.FORWARD_S)  # once a forward pass, of either kind
        self.takes(Policy, "_microbatch", self.MICROBATCH_S)
        self.takes(sft, "sft_step", self.MICROBATCH_S)
        self.takes(checkpoint, "save", self.SAVE_S)
        self.takes(saving, "write", self.SAVE_S)

    def takes(self, owner: object, name: str, seconds: float) -> None:
        """Every call of this takes so long on this machine."""
        original = getattr(owner, name)

        def wrapped(*arguments, **named):
            result = original(*arguments, **named)
            self.now += seconds * self._pace(self.now - self._started)
            return result

        self._patch.setattr(owner, name, wrapped)

    def restarted(self) -> None:
        """The next command is another process, an hour later."""
        self.now += 3600
        self._started = self.now


def noise(seed: int, low: float, high: float) -> Callable[[float], float]:
    """A pace that is drawn anew for each piece of work."""
    draw = random.Random(seed)
    return lambda elapsed_s: draw.uniform(low, high)
