"""Environments for tests: a calculator, one that misbehaves, and classes that are none."""

import os
import subprocess
import time
from pathlib import Path

SEEN: list[int] = []


class Calculator:
    """Adds; its reward is the number of its calls."""

    def reset(self, **row) -> str | None:
        self.calls = 0
        self.row = row
        return row.get("hint")

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        self.calls += 1
        return a + b

    def get_reward(self) -> float:
        return float(self.calls)


class Broken:
    """The calculator that comes with microrl, but always wrong."""

    def reset(self, **row) -> None: ...

    def calculate(self, expression: str) -> str:
        """Evaluate an arithmetic expression.

        Args:
            expression: The expression.
        """
        return "0"


class Suggests(Calculator):
    """Adds to the question."""

    def reset(self, **row) -> str:
        super().reset(**row)
        return f" Use the tool for {row['question']!r}."


class Leaky:
    """Tells the right answer, and pays for nothing."""

    def reset(self, **row) -> str:
        self.row = row
        return f" (It is not {int(row['answer']) + 1000}.)"

    def peek(self, page: int, kind: str = "all") -> str:
        """Look something up.

        Args:
            page: The page.
            kind: What to look for.
        """
        return f"The answer is {self.row['answer']}."

    def get_reward(self) -> float:
        return 0.5


class Slow(Calculator):
    """As the calculator, but the time that it takes has nothing to do with the call."""

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        time.sleep(int.from_bytes(os.urandom(1)) / 2000)
        return super().add(a, b)


class Awkward:
    """Tools that do what tools should not."""

    def __init__(self) -> None:
        self.done = False

    def reset(self, **row) -> None:
        SEEN.append(len(SEEN))

    def hang(self, file: str) -> str:
        """Never return.

        Args:
            file: Where to write the number of a process that is started first.
        """
        Path(file).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        time.sleep(600)
        return ""

    def begin(self, file: str) -> str:
        """Start a process.

        Args:
            file: Where to write its number.
        """
        Path(file).write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        return "begun"

    def die(self) -> str:
        """End the process."""
        os._exit(3)

    def fail(self) -> str:
        """Raise an exception."""
        raise ValueError("out of luck")

    def seen(self) -> str:
        """Say how many rollouts this process has seen."""
        return str(len(SEEN))

    def say(self, text: str) -> str:
        """Repeat a text.

        Args:
            text: The text.
        """
        return text

    def repeat(self, count: int) -> str:
        """Answer with many letters.

        Args:
            count: How many.
        """
        return "x" * count

    async def finish(self) -> str:
        """End the episode."""
        self.done = True
        return "over"


class NoReset:
    def add(self, a: int) -> int:
        """Add."""
        return a


class DoneMethod(Calculator):
    def done(self) -> bool:
        return False


class NoTool:
    def reset(self, **row) -> None: ...


class NoHints:
    def reset(self, **row) -> None: ...

    def add(self, a, b):
        """Add."""


class NoDocstring:
    def reset(self, **row) -> None: ...

    def add(self, a: int) -> int:
        return a


class NoArgument:
    def reset(self, **row) -> None: ...

    def add(self, a: int) -> int:
        """Add."""
        return a


class Shadows:
    def reset(self, **row) -> None: ...

    def add(self, a: int) -> int:
        """Add.

        Args:
            a: A number.
        """
        return a

    def add(self, a: int, b: int) -> int:  # noqa: F811
        """Add.

        Args:
            a: A number.
            b: A number.
        """
        return a + b


class BadReset:
    def reset(self, **row) -> None:
        raise KeyError("no such column")

    def add(self, a: int) -> int:
        """Add.

        Args:
            a: A number.
        """
        return a


class Moody:
    """Says different things to the rollouts of one question."""

    def reset(self, **row) -> str:
        return os.urandom(4).hex()

    def add(self, a: int) -> int:
        """Add.

        Args:
            a: A number.
        """
        return a
