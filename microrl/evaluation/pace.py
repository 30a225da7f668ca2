"""The pace of an evaluation that has to end at a deadline: how many questions are in flight, and when the last one starts."""

from __future__ import annotations

from microrl import clock

FIRST = 16
"""Questions that start at once where nothing is known of how long they take."""


AMPLE = 1.5
"""Where there is so many times the expected time, as in a sweep's trial, every question may start."""


class DeadlinePace:
    """Lets a question start only if it is likely to end in time, so that the answered ones are a fair sample: all that have
    started, not those whose answers are short. See `microrl.rollout.engine.Pace`.

    `expected_s`: how long all `questions` are likely to take together; 0: unknown. Once some are answered, their speed and the
    longest of them count.
    """

    def __init__(self, deadline_s: float, questions: int, expected_s: float) -> None:
        self._began, self._deadline_s = clock.now_s(), deadline_s
        self._window: float = FIRST
        if expected_s > 0:
            # Questions that start together are finished together: what is expected to fill the time could all come too late.
            self._window = min(questions * deadline_s / expected_s / 2, questions)
            if expected_s <= deadline_s:
                self._window = max(self._window, FIRST)
        self._is_ample = 0 < expected_s * AMPLE <= deadline_s
        self._started: list[float] = []
        self._finished = 0
        self._longest_s = 0.0

    def may_start(self, in_flight: int) -> bool:
        """See `Pace.may_start`. What is in flight goes on for at least as long as a question takes by the speed so far."""
        left_s = self.left_s()
        if self._is_ample and left_s > 0:
            self._started.append(clock.now_s())
            return True
        if in_flight + 1 > self._window or left_s <= self._longest_s:
            return False
        if self._finished and (in_flight + 1) * self._elapsed_s() / self._finished > left_s:
            return False
        self._started.append(clock.now_s())
        return True

    def finished(self, number: int) -> None:
        """The question that was the `number`-th (from 0) to start is answered."""
        self._finished += 1
        self._longest_s = max(self._longest_s, clock.now_s() - self._started[number])
        if self._finished >= self._window:  # that many went well: try twice as many
            self._window *= 2

    def is_over(self) -> bool:
        """See `Pace.is_over`."""
        return self.left_s() <= 0

    def left_s(self) -> float:
        """Seconds to the deadline."""
        return self._deadline_s - self._elapsed_s()

    def _elapsed_s(self) -> float:
        return clock.now_s() - self._began
