"""A renderer for any chat template: what is new is the difference that it makes to what the template writes.

What follows a turn is found by writing a short conversation, with a mark in place of the turn::

    user: .   assistant: MARK   <what is new>   assistant:
                             `-----------------------------' what follows the turn, its end included

So it costs what the new messages are long, however long the conversation is. The template sees neither what was said
before nor what was drawn, and cannot take anything of it back: reasoning that it leaves out of earlier turns stays
where it was drawn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trinity_bus.chat.formats import format_of, read_llama, split_reasoning
from trinity_bus.chat.formats.call import OPENING_TOKENS, opens_reasoning
from trinity_bus.chat.messages import ChatError, ChatMessage, for_template
from trinity_bus.chat.options import TemplateOptions
from trinity_bus.chat.protocols import Tokenizer
from trinity_bus.chat.renderer import OPENING, DrawnTurn, ParsedTurn, Tools, after
from trinity_bus.chat.speech import Speech

_MARK = "turn-c0ffee5eed-that-was-drawn"


class TemplateRenderer:
    """Writes messages with a model's chat template.

    Args:
        tokenizer: With a chat template.
        options: Of the template.
    """

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = options
        self._special = frozenset(tokenizer.all_special_ids)
        self._read = format_of(str(tokenizer.chat_template))

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        """See ``Renderer.prompt``."""
        return list(self._apply([for_template(one) for one in messages], tools, tokenize=True))

    def extension(self, drawn: DrawnTurn, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        """See ``Renderer.extension``."""
        said = {"role": "assistant", "content": _MARK}
        text = self._apply([OPENING, said, *(for_template(one) for one in messages)], tools, tokenize=False)
        _, mark, following = text.rpartition(_MARK) if text.count(_MARK) == 1 else ("", "", "")
        if not mark:
            raise ChatError("the model's chat template does not write an assistant's turn as it is said")
        new = self._tokenizer.encode(following, add_special_tokens=False)
        return new[self._end_of_turn(drawn, new) :]

    def read(self, drawn: DrawnTurn, tools: Tools) -> ParsedTurn:
        """See ``Renderer.read``."""
        del tools
        ids = list(drawn.token_ids)
        while ids and ids[-1] in self._special:
            ids.pop()
        reasoning, rest = split_reasoning(self._tokenizer.decode(ids), opened=self._opens(drawn.prompt))
        read = self._read(rest)
        return ParsedTurn(read.content, reasoning, read.calls, read.flaws)

    def configured(self, options: TemplateOptions) -> "TemplateRenderer":
        """See ``Renderer.configured``."""
        return TemplateRenderer(self._tokenizer, {**self._options, **options})

    def turn(self, message: ChatMessage, tools: Tools) -> list[int]:
        """See ``Renderer.turn``."""
        opening = self._apply([OPENING], tools, tokenize=False)
        whole = self._apply([OPENING, for_template(message)], tools, tokenize=False, prompted=False)
        return self._tokenizer.encode(after(opening, whole), add_special_tokens=False)

    def speech(self, prompt: Sequence[int], stop: Sequence[str]) -> Speech:
        """See ``Renderer.speech``."""
        object_is_call = self._read is read_llama
        return Speech(self._tokenizer, opened=self._opens(prompt), stop=stop, object_is_call=object_is_call)

    def _opens(self, prompt: Sequence[int]) -> bool:
        return opens_reasoning(self._tokenizer.decode(list(prompt[-OPENING_TOKENS:])))

    def _end_of_turn(self, drawn: DrawnTurn, new: Sequence[int]) -> int:
        """Return how many of the tokens that follow are the turn's end, and were drawn."""
        last = drawn.token_ids[-1] if drawn.token_ids else None
        if last not in self._special:
            return 0
        end = next((i for i, token in enumerate(new) if token in self._special), None)
        if end is None or self._tokenizer.decode(list(new[:end])).strip():
            return 0
        # A model may end a turn with another mark than its template does.
        return end + 1 if drawn.ended or new[end] == last else 0

    def _apply(self, messages: list[dict[str, Any]], tools: Tools, *, tokenize: bool, prompted: bool = True) -> Any:
        given = {"tools": [dict(tool) for tool in tools]} if tools else {}
        try:
            return self._tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=prompted,
                tokenize=tokenize,
                return_dict=False,
                **given,
                **self._options,
            )
        except Exception as error:
            # A template is a program that may raise anything, and the messages are not its own.
            raise ChatError(f"the model's chat template cannot write this: {type(error).__name__}: {error}") from error
