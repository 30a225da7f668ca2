"""Waiting for a pipe of another process: until a deadline, and only as long as somebody wants what comes."""

from __future__ import annotations

import select
from collections.abc import Callable

from microrl.clock import now_s

LOOK_S = 0.1
"""How often a wait looks whether it is still wanted, at the clock and at signals."""

Cancelled = Callable[[], bool]
"""Whether nobody wants the result any more."""


def never() -> bool:
    """For what is always wanted."""
    return False


def wait_for(descriptor: int, event: int, until: float, is_cancelled: Cancelled) -> bool:
    """Wait for a pipe; False where the time is up (`clock.now_s`), or nobody waits any more."""
    poll = select.poll()
    poll.register(descriptor, event)
    while not is_cancelled() and (left_s := until - now_s()) > 0:
        if poll.poll(min(left_s, LOOK_S) * 1000):
            return True
    return False
