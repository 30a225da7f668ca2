"""Errors with a message and a hint, each with its exit status; and suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

INSTALL_GPU = "in your clone of microrl: pip install -e '.[gpu]'"
"""The hint where vLLM or bitsandbytes is missing."""


Doing = Literal["importing", "starting", "receiving weights", "sampling", "going to sleep", "running", "hanging"]


@dataclass(frozen=True, slots=True)
class EngineFault:
    """Where vLLM failed: what it was doing, and with which settings.

    "running": its process died, and could not say more. "hanging": the run stood still, whatever it was doing.
    """

    doing: Doing
    cuda_graphs: bool
    out_of_memory: bool = False
    """Whether it lacked memory: less of it may be enough."""
    kv_gb: float | None = None
    """Size of the KV cache that it had, or was to have; None: not known."""
    fits: float = 0.0
    """Completions of the greatest length for which that cache has room."""
    batch: int = 0
    """Completions that it is built to decode at once."""


class Explained(Exception):
    """Base of the errors that are shown to the user: `message` says what is wrong, `hint` what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fault: EngineFault | None = None
        """Of the engine, if it is what failed."""


class UserError(Explained):
    """An error that the user can fix. The command exits with status 2."""


class SyncNotProved(Explained):
    """It could not be proved that the engine samples from the trainer's weights. The command exits with status 4."""


class MachineFailure(Explained):
    """The machine lacks what the run needs, memory or disk space, or vLLM has failed on it. The command exits with status 1."""


class BrokenTrainer(SyncNotProved):
    """The trainer's own scores are not finite, so nothing can be proved: no fault of the engine."""


def first_line(error: BaseException) -> str:
    """What an error says first, or its kind; libraries add a page."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def shown(value: object) -> str:
    """A value for a message: on one line, and shortened to 200 characters."""
    try:
        text = " ".join(str(value).split())
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number with thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}..."


def in_a_new_run(change: str) -> str:
    """A hint to change a setting that a run cannot change when it is resumed."""
    return f"start a new run, for example with {change}; --init RUN starts it from this run's adapter"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to `word`; None if nothing is close: of difflib's likeness `cutoff`, from 0 to 1."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=cutoff)
    return lowered[close[0]] if close else None


def invalid_value(name: str, value: object, hint: str) -> UserError:
    """The error of a value that an option or a key does not take. `name`: a key is in backticks."""
    return UserError(f"invalid value '{shown(value)}' for {name}", hint)


def did_you_mean(word: str, known: Iterable[str], shown: int | None = None) -> str:
    """A hint that suggests the closest known name and lists all of them; of more than `shown` none, where one is close."""
    names = list(known)
    close = nearest(word, names)
    if close and shown is not None and len(names) > shown:
        return f"did you mean `{close}`?"
    listing = "one of: " + ", ".join(names)
    return f"did you mean `{close}`? {listing}" if close else listing
