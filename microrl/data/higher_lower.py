"""Generated rows for the game `higher-lower`: 1,000 ranges, and a number in each."""

from __future__ import annotations

import random

NAME = "higher-lower"


def rows() -> list[dict[str, str | int]]:
    """Each with its question, the range, and the number as the answer. They are the same every time."""
    return [_row(low, 8 << low % 4) for low in range(1, 1001)]


def _row(low: int, size: int) -> dict[str, str | int]:
    high = low + size - 1
    question = (
        f"I have chosen a whole number from {low} to {high}. Find it with the tool `guess`, in at most {guesses(low, high)} "
        "calls, then give it as your answer."
    )
    return {"question": question, "answer": str(random.Random(question).randint(low, high)), "low": low, "high": high}


def guesses(low: int, high: int) -> int:
    """Guesses that are allowed: what halving the range takes at most."""
    return (high - low + 1).bit_length()
