"""The tool of `microrl bench rollout --turns`. Its process needs nothing else of this package."""

from __future__ import annotations

import time


class Tool:
    """Answers after as many seconds as it is asked to take."""

    def reset(self, **row: object) -> None:
        """Nothing differs between episodes."""

    def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: How long.
        """
        time.sleep(seconds)
        return "done"
