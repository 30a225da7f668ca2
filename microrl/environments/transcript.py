"""An episode's transcript as people read it: who said what."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from microrl.environments.calls import BARE, LISTED, TAGGED

_HEAD = re.compile(r"<\|im_start\|>(\w+)\n|(?:<\|begin_of_text\|>)?<\|start_header_id\|>(\w+)<\|end_header_id\|>\s*")
"""What opens a turn in ChatML's templates (Qwen, LFM2) and in Llama's."""
_END = re.compile(r"(?:<\|(?:im_end|eot_id|eom_id|end_of_text|endoftext)\|>|\s)+$")
_CALL = re.compile(f"{TAGGED.pattern}|{LISTED.pattern}", re.DOTALL)
_ANSWER = re.compile(r"</?tool_response>|<\|tool_response_(?:start|end)\|>")


class Turn(NamedTuple):
    """Something that was said: by the model, by the model to a tool (`call`), or by a tool."""

    who: Literal["model", "call", "tool"]
    text: str


def turns(transcript: str) -> list[Turn]:
    """A completion, which begins with a turn of the model, as what was said in it.

    It is read off the text, where a tool's answer may hold what looks like the beginning of a turn; the tokens that were trained
    on are marked in the episode itself. A template of another form is left as it is.
    """
    parts = _HEAD.split(transcript)
    is_llama = any(parts[2::3])
    said = list(_of_model(parts[0], is_llama))
    for chat_ml, llama, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if (chat_ml or llama) == "assistant":
            said += _of_model(text, is_llama)
        else:
            said += [Turn("tool", answer) for part in _ANSWER.split(_END.sub("", text)) if (answer := part.strip())]
    return said


def _of_model(text: str, is_llama: bool) -> Iterator[Turn]:
    text, at = _END.sub("", text), 0
    # Other models may answer in JSON.
    if (bare := BARE.match(text)) is not None and (is_llama or bare[0].strip()):
        yield Turn("call", text[bare.end() :])
        return
    for match in _CALL.finditer(text):
        yield from _if_any("model", text[at : match.start()])
        yield from _if_any("call", match[1] or match[2] or "")
        at = match.end()
    yield from _if_any("model", text[at:])


def _if_any(who: Literal["model", "call"], text: str) -> Iterator[Turn]:
    if text.strip():
        yield Turn(who, text.strip())


def said(line: Mapping[str, Any], *, is_talk: bool = False) -> str:
    """The completion of a stored line: as a conversation where it has a transcript, or where `is_talk`."""
    transcript = line.get("transcript")
    if isinstance(transcript, str):
        return as_text(transcript)
    text = str(line.get("completion") or "")
    return as_text(text) if is_talk else text


def as_text(transcript: str) -> str:
    """One paragraph for everything that was said, with who said it."""
    return "\n".join(f"{turn.who}: {turn.text}" for turn in turns(transcript))
