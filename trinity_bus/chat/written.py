"""Examples as tokens: what a model would have been prompted with and would have drawn, had the answer been its own.

::

    a prompt    tokens of the prompt | tokens of the answer, end of sequence
                                       `---------------------- learned from
    messages    all before a turn    | turn, its end | what follows it, up to the next | turn, its end
                                       `-----------'                                     `-----------'

A prompt's tokens are those that an explorer prompts with, and no token of the answer is merged with one of them: what
is learned is what will be asked for. Each turn of an assistant is written by the model's chat template, tool calls and
reasoning too, up to its end; what a template writes after the end is not the model's to draw.

Failures: what cannot be written as tokens of this model is a ``ChatError``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from schemas.examples import Demonstration, Preference
from trinity_bus.chat.encoding import encoder_of
from trinity_bus.chat.messages import ChatError, ChatMessage, Tokenizer
from trinity_bus.chat.renderer import renderer_for
from trinity_bus.chat.rendering import DrawnTurn, Renderer, Tools

_ASSISTANT = "assistant"


@dataclass(slots=True)
class WrittenAnswer:
    prompt: list[int]  # at least one token
    response: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)  # [response] True where the token is learned from

    def add(self, token_ids: Sequence[int], *, learned: bool) -> None:
        self.response += token_ids
        self.mask += [learned] * len(token_ids)


class ExampleWriter:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._encoder = tokenizer, encoder_of(tokenizer)
        self._renderer: Renderer | None = None

    def write(self, example: Demonstration | Preference) -> list[WrittenAnswer]:
        """Return the answers, of a preference the chosen one first; ChatError where nothing is left to learn from."""
        if isinstance(example, Preference):
            chosen, rejected = (self._answer(example, text) for text in (example.chosen, example.rejected))
            if chosen.response == rejected.response:
                raise ChatError("chosen and rejected are the same tokens")
            return [chosen, rejected]
        return [self._answer(example, example.response)]

    def _answer(self, example: Demonstration | Preference, text: str | None) -> WrittenAnswer:
        if example.prompt is not None:
            return self._plain(example.prompt, text or "")
        messages = [one.model_dump(exclude_none=True) for one in example.messages or ()]
        tools = None if example.tools is None else [one.model_dump(exclude_none=True) for one in example.tools]
        if text is not None:
            return self._turns([*messages, {"role": _ASSISTANT, "content": text}], tools, first=len(messages))
        first = next(i for i, one in enumerate(messages) if one["role"] == _ASSISTANT)
        return self._turns(messages, tools, first=first)

    def _plain(self, prompt: str, text: str) -> WrittenAnswer:
        answer = WrittenAnswer(_some(self._encoder.prompt(prompt)))
        answer.add(_some(self._encoder.encode(text)), learned=True)
        end = self._tokenizer.eos_token_id
        if end is not None and answer.response[-1] != end:
            answer.add([end], learned=True)
        return answer

    def _turns(self, messages: Sequence[ChatMessage], tools: Tools, *, first: int) -> WrittenAnswer:
        """Return a conversation whose assistant's turns are learned from, from ``first`` on."""
        if self._renderer is None:
            self._renderer = renderer_for(self._tokenizer)
        if first == 0:
            raise ChatError("the messages begin with an assistant's turn: there is nothing that it answers")
        answer = WrittenAnswer(_some(self._renderer.prompt(messages[:first], tools)))
        at = first
        while True:
            before = [*answer.prompt, *answer.response]
            turn = self._up_to_its_end(self._renderer.turn(messages[at], tools))
            answer.add(turn, learned=True)
            following = (i for i in range(at + 1, len(messages)) if messages[i]["role"] == _ASSISTANT)
            if (after := next(following, None)) is None:
                return answer
            told = self._renderer.extension(DrawnTurn(before, turn, ended=True), messages[at + 1 : after], tools)
            if told is None:
                raise ChatError(
                    "this model writes earlier turns in another way from here on; give each its own example"
                )
            answer.add(told, learned=False)
            at = after

    def _up_to_its_end(self, turn: list[int]) -> list[int]:
        ends = [i for i, token in enumerate(turn) if token in self._encoder.ends]
        if ends and not self._tokenizer.decode(turn[ends[-1] + 1 :]).strip():
            return turn[: ends[-1] + 1]
        return _some(turn)


def _some(token_ids: Sequence[int]) -> list[int]:
    if not token_ids:
        raise ChatError("a prompt or an answer without a single token")
    return list(token_ids)
