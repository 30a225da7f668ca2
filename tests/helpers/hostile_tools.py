"""Environments for tests whose tools try what they should not."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ATTEMPTS = {
    "read a file": lambda: Path("/etc/passwd").read_text(),
    "write a file": lambda: Path("/tmp/microrl-escaped").write_text("x"),
    "open a socket": lambda: socket.socket(),
    "fork": lambda: os.fork() or os._exit(0),
    "start a program": lambda: subprocess.run(["true"], check=True),
    "start a thread": lambda: threading.Thread(target=print).start(),
    "signal the parent": lambda: os.kill(os.getppid(), signal.SIGTERM),
    "see the environment": lambda: [os.environ["PATH"]],
}


class Prisoner:
    """Says what of a list it can do."""

    def reset(self, **row) -> None:
        self.calls = 0

    def attempt(self, what: str) -> str:
        """Attempt something.

        Args:
            what: What.
        """
        self.calls += 1
        try:
            ATTEMPTS[what]()
        except (OSError, RuntimeError, KeyError) as error:
            return f"refused: {type(error).__name__}"
        return "done"

    def compute(self) -> str:
        """Import something that is not loaded yet, and compute with it."""
        assert "colorsys" not in sys.modules
        import colorsys

        return str(colorsys.rgb_to_hsv(1, 0, 0))

    def keep(self, text: str) -> str:
        """Write to a file in the working directory and read it again.

        Args:
            text: The text.
        """
        Path("kept").write_text(text)
        return Path("kept").read_text()

    async def wait(self) -> str:
        """Wait a moment."""
        import asyncio

        await asyncio.sleep(0.01)
        return "waited"

    def grow(self, gigabytes: float) -> str:
        """Take memory.

        Args:
            gigabytes: How much.
        """
        return str(len(bytearray(int(gigabytes * 1e9))))

    def kill(self, number: int) -> str:
        """End the process by a signal.

        Args:
            number: The signal.
        """
        os.kill(os.getpid(), number)
        time.sleep(60)
        return ""
