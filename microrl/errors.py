"""What can go wrong for a person, and the exit status that scripts see."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class Explained(Exception):
    """Something that is told to a person: what happened, and what to do about it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(Explained):
    """Something the user can mend. The command line ends with status 2."""


class SwapNotProved(Explained):
    """The engine could not be shown to sample from the trainer's weights. The command line ends with status 4."""


class MachineFailure(Explained):
    """The machine has not what the run needs: memory, or room on the disk. The command line ends with status 1."""


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
