"""A stand-in for an environment as tinker-cookbook has them: messages in, messages and a reward out."""


class DialogueEnv:
    def __init__(self, topic: str) -> None:
        self.topic, self.turns = topic, 0

    def initial_observation(self) -> str:
        return f" We talk about {self.topic}."

    def step(self, message: dict[str, str]) -> tuple[list[dict[str, str]], float, bool]:
        self.turns += 1
        said = [{"role": "user", "content": f"You said: {message['content']}"}, {"role": "user", "content": "Go on."}]
        return said, float(self.topic in message["content"]), self.turns == 2
