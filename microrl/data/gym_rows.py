"""Generate the problems of procedural tasks: `python -m microrl.data.gym_rows '{"tasks": [...], "count": N, "seed": S}'`.

Run in a process of its own with a fixed PYTHONHASHSEED: some tasks pick from sets, whose order follows it. Each problem is a line
of JSON; a task that cannot be generated is one line with `error`.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import numpy

from microrl import plain

CHECKED = 8
"""Problems of each task that are generated twice."""


def main() -> None:
    asked = json.loads(sys.argv[1])
    lines = sys.stdout
    sys.stdout = sys.stderr  # whatever the library prints
    for task in asked["tasks"]:
        settings = {"seed": asked["seed"], "size": asked["count"]}
        try:
            rows = _rows(task, settings, asked["count"])
            if _rows(task, settings, min(CHECKED, len(rows))) != rows[:CHECKED]:
                raise ValueError("the same seed does not give the same problems")
            lines.writelines(json.dumps({"task": task, "index": index, **row}) + "\n" for index, row in enumerate(rows))
        except Exception as error:  # of a task's own code: it is refused by name, with this reason
            lines.write(json.dumps({"task": task, "error": f"{type(error).__name__}: {error}"[:300]}) + "\n")
    lines.flush()


def _rows(task: str, settings: dict[str, int], count: int) -> list[dict[str, Any]]:
    import reasoning_gym

    _seed(f"{task} {settings['seed']}")
    generated = reasoning_gym.create_dataset(task, **settings)
    rows = []
    for index in range(count):
        _seed(f"{task} {settings['seed']} {index}")
        rows.append(_row(generated[index]))
    return rows


def _seed(text: str) -> None:
    """Seed the generators that all of Python and numpy share: a task that uses them would differ from run to run."""
    random.seed(text)
    numpy.random.seed(random.getrandbits(32))


def _row(entry: dict[str, Any]) -> dict[str, Any]:
    question, answer = entry["question"], entry["answer"]
    if not isinstance(question, str) or not question.strip():
        raise ValueError("a problem has no question")
    has_answer = isinstance(answer, str) and bool(answer)
    return {"question": question, "has_answer": has_answer, "entry": plain.encode(entry, _refuse)}


def _refuse(value: Any) -> list:
    raise plain.NotPlain(f"its problems hold a {type(value).__name__}, which its scorer would need")


if __name__ == "__main__":
    main()
