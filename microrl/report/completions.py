"""A sample of a run's completions for its report."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from microrl import files
from microrl.environments.transcript import said
from microrl.files import BadFile
from microrl.report.history import History, finite
from microrl.run import rollouts
from microrl.terminal import printable

STEPS, PER_STEP = 40, 24
"""Steps that are shown, and completions of each."""
MAX_BYTES = 900_000
"""Of the completions in a page."""
MAX_TEXT = 12_000
"""Characters of a completion, a prompt or a question that are shown."""
MAX_LINES = 4_000
"""Of a step's file that are read."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Completions as the page's script takes them, and how many there are of them in all that was read of and left out."""

    shown: list[dict[str, Any]]
    steps: int
    steps_in_all: int


def sample(history: History, limit: int = MAX_BYTES) -> Sample:
    """Completions of steps that are spread over the run, at most `limit` bytes of JSON; notes go to the history."""
    steps = rollouts.steps(history.path)
    chosen = spread(steps, STEPS)
    shown: list[dict[str, Any]] = []
    space = 0
    for step, path in chosen:
        space += limit // len(chosen)  # what a step has left over is the next one's
        for line in _chosen(list(read_lines(path, history.notes)), seed=step):
            entry = _entry(step, line)
            if len(json.dumps(entry)) > space:
                entry.pop("pieces", None), entry.pop("logprobs", None)
            if (size := len(json.dumps(entry))) <= space:
                shown.append(entry)
                space -= size
    return Sample(shown, len(chosen), len(steps))


def spread(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, evenly spread, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[round(number * (len(items) - 1) / (count - 1))] for number in range(count)]


def _chosen(lines: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """At most PER_STEP: those with tokens first, then others at random; in the order of the file."""
    order = list(range(len(lines)))
    random.Random(seed).shuffle(order)
    order.sort(key=lambda number: not isinstance(lines[number].get("pieces"), list))
    return [lines[number] for number in sorted(order[:PER_STEP])]


def read_lines(path: Path, notes: list[str], most: int = MAX_LINES) -> Iterator[dict[str, Any]]:
    """The completions of a file, each with its group's prompt; what is behind damage is left out, with a note."""
    prompt, question = "", None
    try:
        for number, text in enumerate(islice(files.read_lines(path), most), 1):
            if (line := files.json_object(text)) is None:
                raise BadFile(f"{path} is damaged: line {number} is not a JSON object")
            if line.get("question") != question or line.get("prompt"):
                prompt, question = str(line.get("prompt") or ""), line.get("question")
            yield line | {"prompt": prompt}
    except BadFile as error:
        notes.append(error.message)


def answered(history: History) -> str:
    """An example, as the end of a sentence: a question of the last step that most completions answer alike, though not as the
    data does, or else any; empty where no completions are kept."""
    steps = rollouts.steps(history.path)
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in read_lines(steps[-1][1], []) if steps else ():
        groups.setdefault(str(line.get("question")), []).append(line)
    best, most, agreed = "", 0, 0
    for question, lines in groups.items():
        wrong = [str(line["extracted"]) for line in lines if line.get("extracted") is not None and not line.get("accuracy")]
        ((answer, count),) = Counter(wrong).most_common(1) or [("", 0)]
        agreed += count > len(lines) / 2
        if count > most:
            answers = f"{count} of {len(lines)} completions answer `{short(answer)}`"
            best, most = f"to `{short(question)}` {answers}, and the data says `{short(str(lines[0].get('answer')))}`", count
    if best:
        alike = f"; in {agreed} of {len(groups)} groups most completions agree on such an answer" if agreed else ""
        return f". For example, {best}{alike}"
    texts = (str(line.get("completion")) for lines in groups.values() for line in lines)
    text = next(filter(str.strip, texts), "")
    return f". No answer was found in, for example, `{short(text)}`" if text else ""


def short(text: str) -> str:
    """The end of a text in one line."""
    line = shown_text(" ".join(text.split()))
    return line if len(line) <= 80 else f"...{line[-80:]}"


def _entry(step: int, line: Mapping[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"step": step + 1}  # counted from 1, as on the console
    for name in ("question", "answer", "completion", "prompt", "extracted"):
        if line.get(name) is not None:
            entry[name] = shown_text(said(line) if name == "completion" else str(line[name]))
    for name in ("reward", "accuracy", "format", "overlong", "tokens", "advantage"):
        if (value := finite(line.get(name))) is not None:
            entry[name] = round(value, 4)
    if isinstance(line.get("transcript"), str):
        entry["talk"] = True
    entry["finish"] = "length" if line.get("finish") == "length" else "stop"
    parts = line.get("parts")
    if isinstance(parts, dict) and parts:
        entry["parts"] = {shown_text(str(name)): value for name, value in parts.items() if finite(value) is not None}
    if line.get("killed") is True:
        entry["killed"] = True
    pieces, values = line.get("pieces"), line.get("logprobs")
    if isinstance(pieces, list) and isinstance(values, list) and len(pieces) == len(values) <= MAX_TEXT // 4:
        entry["pieces"] = [shown_text(str(piece)) for piece in pieces]
        entry["logprobs"] = [finite(value) for value in values]
    return entry


def shown_text(text: str) -> str:
    """Text of a model as the page shows it: control characters and marks of direction written out, and not too long."""
    cut = text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]} [... {len(text) - MAX_TEXT:,} more characters]"
    return printable(cut)
