"""What can go wrong for a person, and the exit status that scripts see."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can mend. The command line prints `message` and `hint` and ends with status 2."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class SwapNotProved(Exception):
    """The engine could not be shown to sample from the trainer's weights. The command line ends with status 4."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that `word` was most likely meant to be, or None where nothing is close."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name and lists what exists."""
    names = list(known)
    close = nearest(word, names)
    listing = "one of: " + ", ".join(names)
    return f"did you mean `{close}`? {listing}" if close else listing
