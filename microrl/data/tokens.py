"""Tokenize untrusted text: only the chat template may write special tokens; those in the text become plain text."""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from microrl.answers import END_THINK, THINK
from microrl.errors import UserError

_LOCK = threading.Lock()


def _encoded(tokenizer: Any, text: str | list[str], **options: Any) -> Any:
    """What the tokenizer makes of it. Whether it splits special tokens is a state of the tokenizer, and its threads share it."""
    with _LOCK:
        return tokenizer(text, **options)


class _Control(NamedTuple):
    pattern: re.Pattern[str]
    ids: frozenset[int]


@lru_cache(maxsize=8)
def _control(tokenizer: Any, every: bool = False) -> _Control:
    """A tokenizer's special tokens, except <think> and </think>, which the system message uses; with `every`, all of the tokens
    that were added to its vocabulary, such as Qwen's <tool_response>, if they can be told from other text."""
    added = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special or every}
    if every:
        added = {name: number for name, number in added.items() if len(name.strip()) > 1}
    names = sorted((name for name in added if name.strip() and (every or name not in (THINK, END_THINK))), key=len, reverse=True)
    return _Control(re.compile("|".join(map(re.escape, names)) or "(?!)"), frozenset(added.values()))


def plain_ids(text: str, tokenizer: Any, every: bool = False) -> list[int]:
    """The token ids of a text, without a beginning-of-sequence token; special tokens in it are tokenized as plain text, and with
    `every` all added tokens."""
    pattern, added = _control(tokenizer, every)
    is_plain = pattern.search(text) is None
    options = {} if is_plain else {"split_special_tokens": True}
    ids = _encoded(tokenizer, text, add_special_tokens=False, **options)["input_ids"]
    if is_plain or not every or added.isdisjoint(ids):
        return ids
    # Tokenizers split no other added tokens. So the text is cut behind their first characters, and the pieces tokenized apart.
    pieces, at = [], 0
    while match := pattern.search(text, at):
        pieces.append(text[at : match.start() + 1])
        at = match.start() + 1
    return [*chain.from_iterable(_encoded(tokenizer, [*pieces, text[at:]], add_special_tokens=False)["input_ids"])]


class Masked:
    """Replaces the special tokens in a text by marks, so that a chat template can be rendered around it; with `every`, all tokens
    that were added to the vocabulary."""

    def __init__(self, tokenizer: Any, *texts: str, every: bool = False) -> None:
        self._tokenizer, self._every = tokenizer, every
        self._names: list[str] = []
        self._left = "\ue000"
        while any(self._left in text for text in texts):
            self._left += "\ue000"

    def mask(self, text: str) -> str:
        """The text with its special tokens masked."""
        return _control(self._tokenizer, self._every).pattern.sub(self._mark, text)

    def _mark(self, match: re.Match[str]) -> str:
        self._names.append(match[0])
        return f"{self._left}{len(self._names) - 1}\ue001"

    def unmask(self, text: str) -> str:
        """The text with its special tokens back."""
        return re.sub(f"{self._left}(\\d+)\ue001", lambda match: self._names[int(match[1])], text)

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of a masked text: masked tokens become plain text, everything else is tokenized as usual.

        Only stretches (between two special tokens) that contain a mark are tokenized again. Raises UserError for a tokenizer
        that tokenizes a stretch differently in isolation, and for one without offsets.
        """
        if not self._names:
            return _encoded(self._tokenizer, text, add_special_tokens=add_special_tokens)["input_ids"]
        if not self._tokenizer.is_fast:
            raise self._refused()
        encoding = _encoded(self._tokenizer, text, add_special_tokens=add_special_tokens, return_offsets_mapping=True)
        control = _control(self._tokenizer, self._every).ids
        ids: list[int] = []
        stretch: list[int] = []
        behind: list[int] = []
        start = 0
        tokens = [*zip(encoding["input_ids"], encoding["offset_mapping"], strict=True), (None, (len(text), len(text) + 1))]
        for token, (begin, end) in tokens:
            if token is not None and token not in control:
                stretch.append(token)
            elif end == begin:  # a begin or end of sequence that the tokenizer adds, which stands for no text
                (behind if stretch else ids).append(token)
            else:
                ids += self._stretch(text[start:begin], stretch) + behind + ([] if token is None else [token])
                start, stretch, behind = end, [], []
        return ids

    def _stretch(self, text: str, ids: list[int]) -> list[int]:
        restored = self.unmask(text)
        if restored == text:
            return ids
        if plain_ids(text, self._tokenizer) != ids:
            raise self._refused()
        return plain_ids(restored, self._tokenizer, self._every)

    def _refused(self) -> UserError:
        return UserError(
            f"the text contains the special token {self._names[0]}, which this tokenizer cannot treat as plain text",
            "remove it from the text",
        )
