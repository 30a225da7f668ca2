"""An environment without a class: it answers turns with tokens that depend on them, at once."""

from microrl.types import Episode


class Echo:
    """Answers the first turns with tokens that depend on what was said."""

    def __init__(self, prompt, turns=3, extra=2, wait=lambda: None):
        self.prompt, self.left, self.extra, self.wait = prompt, turns - 1, extra, wait
        self.turns = 0

    def reply(self, turn, room):
        self.turns += 1
        self.wait()
        if self.turns > self.left:
            return None
        return [100 + token % 50 for token in turn.token_ids[:7]] + [60] * self.extra

    def ended(self):
        return Episode(self.turns, 0, 0, 0.0)

    def text(self, token_ids):
        return " ".join(map(str, token_ids))


class Echoes:
    def __init__(self, **keys):
        self.keys = keys

    def begin(self, prompt):
        return Echo(prompt, **self.keys)

    def give_up(self):
        pass

    def end(self):
        pass
