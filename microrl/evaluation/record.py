"""What an evaluation leaves behind: each completion with its verdict, and until it ends a journal from which it can go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from microrl import files
from microrl.evaluation.result import Stored
from microrl.files import BadFile, Count, Strict
from microrl.types import Completion, Finish, Group, Prompt

_APPEND, _READ_WRITE = os.O_WRONLY | os.O_CREAT | os.O_APPEND, os.O_RDWR
CUT = "-cut"
"""Ends the names of the files of an evaluation that the time limit has cut short: it never replaces a whole one."""
LONGEST_LINE = 256 * 2**20
"""Bytes. A longer line of a journal is damage."""


class FileJournal:
    """Keeps the completions of an evaluation as they come, so that a killed one can go on: one line a question in a file, which
    counts only for an evaluation with the same `header`.

    A file that cannot be written is reported once to `warn`; the evaluation goes on without it.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], prompts: Sequence[Prompt], warn: Callable[[str], None]) -> None:
        self._path, self._header, self._prompts, self._warn = path, dict(header), prompts, warn
        self._saved: dict[int, Group] = {}
        self._is_writable = True
        whole = 0
        for line in self._lines():
            if whole == 0 and not self._is_own(line):
                break
            if whole and (numbered_group := self._group(line)) is not None:
                self._saved[numbered_group[0]] = numbered_group[1]
            whole += len(line)
        self._attempt(self._begin, whole)

    def saved(self) -> Mapping[int, Group]:
        """The groups of an earlier process, without scores, by position. A completion has neither its tokens nor their
        log-probabilities, but as many tokens, and their mean log-probability."""
        return self._saved

    def add(self, position: int, group: Group) -> None:
        """Append a group, and flush it."""
        completions = [
            {
                "text": one.text, "tokens": one.length, "finish": one.finish, "entropy": one.entropy,
                **({} if one.transcript is None else {"transcript": one.transcript}),
            }
            for one in group.completions
        ]  # fmt: skip
        self._attempt(self._append, {"position": position, "completions": completions})

    def remove(self) -> None:
        """The evaluation is stored: the journal is not needed any more."""
        self._attempt(files.remove, self._path)

    def _begin(self, whole: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if whole:  # what a killed process has left of a line is cut off
            with files.open_regular(self._path, _READ_WRITE) as file:
                file.truncate(whole)
        else:
            files.remove(self._path)
            self._append(self._header)

    def _append(self, value: Mapping[str, Any]) -> None:
        with files.open_regular(self._path, _APPEND) as file:
            file.write((json.dumps(value, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass"))

    def _attempt(self, write: Callable[[Any], None], value: Any) -> None:
        if not self._is_writable:
            return
        try:
            write(value)
        except (OSError, BadFile) as error:
            self._is_writable = False
            self._warn(f"warning: {self._path} cannot be written ({error}): if it is killed, this evaluation starts over")

    def _lines(self) -> Iterator[bytes]:
        """The file's complete lines."""
        try:
            with files.open_regular(self._path) as file:
                while (line := file.readline(LONGEST_LINE)).endswith(b"\n"):
                    yield line
        except (OSError, BadFile):
            return

    def _is_own(self, line: bytes) -> bool:
        try:
            return bool(json.loads(line) == self._header)
        except ValueError:
            return False

    def _group(self, line: bytes) -> tuple[int, Group] | None:
        """None for a line that is damaged: its question is asked again."""
        try:
            entry = _Line.model_validate_json(line)
        except ValidationError:
            return None
        if entry.position >= len(self._prompts) or len(entry.completions) != self._header["samples"]:
            return None
        completions = tuple(
            Completion((0,) * one.tokens, (-one.entropy,), one.finish, 0, one.text, transcript=one.transcript)
            for one in entry.completions
        )
        return entry.position, Group(self._prompts[entry.position], completions)


class _Sampled(Strict):
    text: str
    tokens: Annotated[int, Field(ge=1)]
    finish: Finish
    entropy: float
    transcript: str | None = None


class _Line(Strict):
    position: Count
    completions: list[_Sampled]


def free_stem(place: Path, stem: str, own: Mapping[str, str | None]) -> str:
    """`stem`; but if what is stored there is of other data, prompts or weights than `own` says, then with a hash of `own`."""
    try:
        stored = files.read_json(place / f"{stem}.json", Stored)
    except (OSError, BadFile):
        return stem  # there is none, or it is damaged
    its_own = {name: getattr(stored, name) for name in ("env", *own)} | {"data": stored.data and stored.data.sha256}
    if its_own == {"env": None, **own}:
        return stem
    return f"{stem}-{hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8]}"


def write_completions(path: Path, groups: Sequence[Group]) -> None:
    """Every completion with its verdict, one a line. Raises OSError."""
    lines = (
        {
            "question": group.prompt.question, "row": group.prompt.row, "answer": group.prompt.answer,
            "sample": sample, "right": score.accuracy == 1, "extracted": score.extracted, "killed": score.killed,
            "tokens": one.length, "finish": one.finish, "entropy": round(one.entropy, 5),
            "completion": one.text, **({"cluster": group.prompt.cluster} if group.prompt.cluster else {}),
            **({} if one.transcript is None else {"transcript": one.transcript}),
        }
        for group in groups
        for sample, (one, score) in enumerate(zip(group.completions, group.scores, strict=True))
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_lines(path, lines, level=6)


def prompts_sha256(prompts: Sequence[Prompt]) -> str:
    """A hash of the rendered prompts' tokens and gold answers, in order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps([prompt.token_ids, prompt.answer]).encode())
    return digest.hexdigest()


def folder_sha256(folder: Path) -> str:
    """A hash of the names and contents of a folder's tensors and settings."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*config.json")]):
        digest.update(path.name.encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    return digest.hexdigest()
