"""What a chat template writes between two turns of the policy, so that no token of an earlier turn is made twice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from microrl.answers import END_THINK, THINK
from microrl.data.prompts import template_options
from microrl.data.tokens import Masked
from microrl.errors import UserError

_ASKED, _SAID = "What?", "\ue010"
_TRAINED = "use a model that was trained to call tools, such as Qwen3"
Message = dict[str, Any]


class Continuation:
    """Renders tools' answers as the tokens from the end of the policy's turn to the beginning of its next one.

    Made once a run. `stops`: tokens at which the model's turns end; None: not known. Raises UserError for a template that does
    not write conversations in pieces: rendered whole, what was said before is another text then, and a model that is served
    would read what it was not trained on.
    """

    def __init__(
        self, tokenizer: Any, tools: Sequence[dict[str, Any]], thinking: bool | None, stops: Collection[int] | None = None
    ) -> None:
        self._tokenizer, self._tools = tokenizer, list(tools)
        if tokenizer.chat_template is None:
            raise _refused("the model has no chat template", "take a model with one, usually called Instruct")
        self._options = template_options(tokenizer, thinking)
        for name in (one["function"]["name"] for one in self._tools):
            if name not in self._rendered([_message("user", _ASKED)]):
                raise _refused(f"it leaves out the tools, such as `{name}`", _TRAINED)
        asked = [_message("user", _ASKED)]
        self.opening = self._rendered(asked).removeprefix(self._rendered(asked, prompts=False))
        """What the template writes before a turn."""
        behind = self._rendered([*asked, _message("assistant", _SAID)], prompts=False).partition(_SAID)[2]
        special = {token.content: number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        ends = [token for token in special if token and behind.startswith(token)]
        if not ends:
            raise _refused("no special token ends a turn", "take a model whose template writes one, such as Qwen's")
        self._end = max(ends, key=len)
        self.end_id = special[self._end]
        """The token at which a turn ends that can be continued."""
        if stops is not None and self.end_id not in stops:
            raise _refused(f"it ends a turn with {self._end}, at which this model does not stop", _TRAINED)
        self._probe(asked)

    def ids(self, answers: Sequence[tuple[str, str]]) -> list[int]:
        """The tokens behind a turn's last one, of the answers (tool, text) and what opens the next turn.

        All tokens that were added to the vocabulary become plain text in an answer, special ones or not, and halves of surrogate
        pairs a question mark. Raises UserError for a tokenizer that cannot do that.
        """
        # The names too: a call may name anything.
        answers = [(_as_unicode(name), _as_unicode(text)) for name, text in answers]
        masked = Masked(self._tokenizer, *(part for answer in answers for part in answer), every=True)
        suffix = self._suffix([(masked.mask(name), masked.mask(text)) for name, text in answers])
        return masked.ids(suffix, add_special_tokens=False)

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """A turn that calls a tool, as the template writes it; empty where it leaves calls out."""
        said = {
            **_message("assistant", ""),
            "tool_calls": [{"type": "function", "function": {"name": tool, "arguments": arguments}}],
        }
        turn = self._rendered([_message("user", _ASKED), said], prompts=False).rpartition(_ASKED)[2]
        behind = turn.partition(self._end)[2].rpartition(self._end)[0]
        return behind.rpartition(self.opening)[2] if tool in behind else ""

    def _suffix(self, answers: Sequence[tuple[str, str]]) -> str:
        tools = [{**_message("tool", text), "name": name} for name, text in answers]
        whole = self._rendered([_message("user", _ASKED), _message("assistant", _SAID), *tools])
        return whole.partition(_SAID)[2].removeprefix(self._end)

    def _probe(self, asked: list[Message]) -> None:
        """Compare two turns with answers, rendered whole and in pieces. Both think, unless the template has them not think."""
        name = self._tools[0]["function"]["name"]
        chat, pieces = list(asked), self._rendered(asked)
        thinks, is_open = END_THINK not in self.opening, THINK in self.opening
        for word, answer in (("first", "41"), ("second", "42")):
            content = f"{THINK}\nthe {word} thought\n{END_THINK}\n\n{word}" if thinks else word
            said = content.removeprefix(f"{THINK}\n") if is_open else content
            chat += [_message("assistant", content), {**_message("tool", answer), "name": name}]
            pieces += said + self._end + self._suffix([(name, answer)])
            if answer not in pieces:
                raise _refused("it leaves out tool results", _TRAINED)
        whole = self._rendered(chat)
        if whole != pieces:
            shared = next(at for at, pair in enumerate(zip(whole + "\0", pieces + "\1", strict=False)) if pair[0] != pair[1])
            raise _refused(
                "rendering the whole conversation changes its earlier turns: it writes "
                f"{whole[shared : shared + 40]!r} where the model read {pieces[shared : shared + 40]!r}",
                "take a model whose template keeps earlier turns, thinking included; or --set data.thinking=none",
            )

    def _rendered(self, chat: Sequence[Message], *, prompts: bool = True) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                list(chat), tools=self._tools, tokenize=False, add_generation_prompt=prompts, **self._options
            )
        except Exception as error:  # templates raise what they like
            raise _refused(f"it cannot write a conversation with tools: {error}", _TRAINED) from None


def _as_unicode(text: str) -> str:
    return text.encode(errors="replace").decode()


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _refused(why: str, hint: str) -> UserError:
    return UserError(f"--env does not work with this model's chat template: {why}", hint)
