"""Work in a process of its own, which may crash or hang: the child prints one JSON object, which its parent reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from microrl.errors import first_line
from microrl.processes import how_it_ended


def run(module: str, *arguments: str, deadline_s: float, variables: dict[str, str] | None = None) -> dict[str, Any]:
    """Run `python -m module arguments`, with these environment variables added.

    Returns `{"found": ...}`, or `{"error": text, "hint": text or None}` for one that failed, died, or gave no answer in time.
    """
    command = [sys.executable, "-m", module, *arguments]
    environment = {**os.environ, **(variables or {})}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {deadline_s:.0f} s", "hint": "stop other work on this machine"}
    reply = printed(done)
    return {"error": f"failed with status {done.returncode}: {last_words(done)}", "hint": None} if reply is None else reply


def printed(done: subprocess.CompletedProcess[str]) -> dict[str, Any] | None:
    """The JSON object at the end of what a process has printed; None where it failed or there is none."""
    lines = done.stdout.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    if done.returncode != 0 or not starts:
        return None
    try:
        parsed: dict[str, Any] = json.loads("\n".join(lines[starts[-1] :]))
    except ValueError:
        return None
    return parsed


def last_words(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a process has written to standard error, or how it ended."""
    if done.returncode < 0:
        return how_it_ended(done.returncode)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else f"{how_it_ended(done.returncode)} without a result"


def answer(work: Callable[[], dict[str, Any]]) -> NoReturn:
    """The child's side: do the work, print its answer, and leave; a traceback goes to standard error."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        reply: dict[str, Any] = {"found": work()}
    except Exception as error:
        traceback.print_exc()
        text = getattr(error, "message", None) or f"{type(error).__name__}: {first_line(error)}"
        reply = {"error": text, "hint": getattr(error, "hint", None)}
    print(json.dumps(reply), flush=True)
    sys.stderr.flush()
    os._exit(0)  # processes left by vLLM must not delay the answer
