"""A Python interpreter that keeps its state between the calls of an episode: `--env python`, as in ToRL and ReTool.

It executes what a model wrote, so its process is always confined; a class of your own that does so needs `env.confine=true`.
"""

from __future__ import annotations

import ast
import contextlib
import io
import traceback

LONGEST = 8000
"""Characters of an answer."""
NAME = "<code>"


class Python:
    """One tool. It gives no reward of its own: the answer's is enough."""

    def reset(self, **row: object) -> None:
        """Begin an episode, with an empty module."""
        self.names: dict[str, object] = {"__name__": "__main__"}

    def run(self, code: str) -> str:
        """Run Python code. Variables, functions and imports stay for later calls. There are no files and no network.

        Args:
            code: Python statements. What they print is returned, and the value of the last line if that is an expression.
        """
        printed = Printed()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                self._execute(ast.parse(code, NAME))
            except BaseException as error:  # SystemExit too: the episode goes on
                printed.write(shortened(error))
        return printed.text() or "(no output)"

    def _execute(self, module: ast.Module) -> None:
        """Execute statements, and print the value of the last one if it is an expression."""
        last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
        exec(compile(module, NAME, "exec"), self.names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), NAME, "eval"), self.names)
            if value is not None:
                print(repr(value))


class Printed(io.TextIOBase):
    """Keeps the beginning of what is written, so that printing without end fills no memory."""

    def __init__(self) -> None:
        self.kept, self.cut = "", 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        room = LONGEST - len(self.kept)
        self.kept += text[:room]
        self.cut += max(len(text) - room, 0)
        return len(text)

    def text(self) -> str:
        """What was written, with a note of what was left out."""
        return self.kept.strip("\n") + (f"\n... ({self.cut:,} more characters)" if self.cut else "")


def shortened(error: BaseException) -> str:
    """The traceback from the model's own code on, with at most four frames."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((number for number, frame in enumerate(frames) if frame.filename == NAME), len(frames))
    lines = [f"  {frame.filename}, line {frame.lineno}, in {frame.name}\n" for frame in frames[first:]]
    shown = lines if len(lines) <= 4 else [*lines[:2], f"  ... ({len(lines) - 4} more)\n", *lines[-2:]]
    return "".join([*(["Traceback:\n"] if shown else []), *shown, *traceback.format_exception_only(error)])
