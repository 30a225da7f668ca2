"""The cheats that need no code: they lie in TOML files, one beside each module that tries them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

Tables = dict[str, dict[str, dict[str, str]]]
"""Texts by section, kind and name."""


def tables(module: str) -> Tables:
    """The tables of a module in this folder. Each reads its own once, when it is imported."""
    sections = tomllib.loads(Path(__file__).with_name(f"{module}.toml").read_text(encoding="utf-8"))
    return {section: {kind: _texts(texts) for kind, texts in kinds.items()} for section, kinds in sections.items()}


def _texts(texts: Mapping[str, str | list[str | list]] | Sequence[str]) -> dict[str, str]:
    """By name; in a list, each text is its own name."""
    return {name: _joined(text) for name, text in (texts if isinstance(texts, dict) else dict(zip(texts, texts))).items()}


def _joined(text: str | list[str | list]) -> str:
    """A text may be written as a list of its parts, each as it is or as [part, times]."""
    return text if isinstance(text, str) else "".join(part if isinstance(part, str) else part[0] * part[1] for part in text)


def filled(texts: Mapping[str, str], words: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, text), with each of these words replaced by what it stands for. What is put in is not searched again."""
    any_word = re.compile(rf"\b(?:{'|'.join(words)})\b")
    for name, text in texts.items():
        yield name, any_word.sub(lambda word: words[word[0]], text)
