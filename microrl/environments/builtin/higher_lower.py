"""A game over several turns with a reward of its own: `--env higher-lower --data higher-lower`."""

from __future__ import annotations

import math

from microrl.data.higher_lower import guesses


class HigherLower:
    """The player finds a number by asking whether it is higher or lower.

    All that is random comes with the row, so every completion of a question plays the same game.
    """

    def reset(self, low: int, high: int, answer: str, **row: object) -> None:
        """Begin a game. The data's row gives the range, ends included, and the number in it."""
        self.low, self.high, self.secret = low, high, int(answer)
        self.allowed, self.size = guesses(low, high), high - low + 1
        self.is_right = False

    def guess(self, number: int) -> str:
        """Ask whether the chosen number is higher or lower than this one.

        Args:
            number: A whole number.
        """
        if type(number) is not int:  # a model may send anything that JSON has, and fractions would narrow the range to nothing
            raise ValueError("the number has to be a whole number")
        if self.allowed <= 0:
            return "no guesses are left"
        self.allowed -= 1
        if number == self.secret:
            self.is_right = True
            return "right"
        if number < self.secret:
            self.low = max(self.low, number + 1)
            return "higher"
        self.high = min(self.high, number - 1)
        return "lower"

    @property
    def done(self) -> bool:
        """Whether the game is lost. Once it is won, the player still has to say the answer."""
        return not self.is_right and self.allowed <= 0

    def get_reward(self) -> float:
        """1 for the number; otherwise up to a half, by how far the range was narrowed down."""
        return 1.0 if self.is_right else 0.5 - 0.5 * math.log(self.high - self.low + 1) / math.log(self.size)
