"""Completions that deserve no reward, by the kind of answer that a question has."""

from microrl.commands.cheats.attack import CHARACTERS_PER_TOKEN, Attack, Cheat
from microrl.commands.cheats.procedural import Procedural
from microrl.commands.cheats.programs import Programs
from microrl.commands.cheats.text import Text
from microrl.rewards.judges.judge import Kind

__all__ = ["CHARACTERS_PER_TOKEN", "Attack", "Cheat", "attack"]


def attack(kind: Kind) -> Attack:
    """How answers of this kind are attacked."""
    return Programs() if kind == "code" else Procedural() if kind == "gym" else Text()
