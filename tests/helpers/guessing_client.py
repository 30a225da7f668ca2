"""A stand-in for the client of an OpenEnv environment: the same calls, without a server."""

import random
from dataclasses import dataclass


@dataclass
class GuessAction:
    number: int


@dataclass
class Observation:
    text: str
    done: bool = False
    reward: float | None = None


class GuessEnv:
    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Observation:
        self.secret, self.episode_id = random.Random(seed).randint(1, 9), episode_id
        return Observation(" It is from 1 to 9.")

    def step(self, action: GuessAction) -> Observation:
        if action.number == self.secret:
            return Observation("right", done=True, reward=1.0)
        return Observation("higher" if action.number < self.secret else "lower", reward=-0.25)
