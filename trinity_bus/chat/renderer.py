"""What every renderer does: write messages as the tokens of one model, with options of its chat template."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from trinity_bus.chat.formats import Read
from trinity_bus.chat.messages import ChatError, ChatMessage, ToolSchema
from trinity_bus.chat.speech import Speech

type Tools = Sequence[ToolSchema] | None
type TemplateOptions = Mapping[str, bool | int | float | str]

MAX_OPTIONS: Final = 32
MAX_OPTION_CHARS: Final = 1024  # of a name, and of a value that is text
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a tokenizer takes beside them: the template itself, say, which is a program.
NOT_OPTIONS: Final = frozenset(
    {
        *("add_generation_prompt", "chat_template", "continue_final_message", "conversation", "documents"),
        "max_length",
        *("messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors", "self", "tokenize"),
        *("tokenizer_kwargs", "tools", "truncation"),
    }
)


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """A turn that a model has drawn, and what it was drawn after."""

    prompt: Sequence[int]
    token_ids: Sequence[int]
    ended: bool  # whether the model has ended it, and no limit has cut it


class Renderer(Protocol):
    """Writes messages as tokens, for one model. What its template cannot write is a ChatError."""

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        """Return a whole conversation, up to where the assistant is to speak."""

    def extension(self, drawn: DrawnTurn, messages: Sequence[ChatMessage], tools: Tools) -> list[int] | None:
        """Return what follows a drawn turn: its end where that was not drawn, ``messages``, and the assistant's start.

        None where nothing can follow it, because this model writes what was before in another way from then on.
        """

    def read(self, drawn: DrawnTurn, tools: Tools) -> Read:
        """Return a turn as it reads: without tools that the model may call there are no calls, and all is text.

        Never raises: what cannot be read as a call is a flaw of it, and text.
        """

    def speech(self, prompt: Sequence[int], stop: Sequence[str], tools: Tools = None) -> Speech:
        """Return what shows the text of a turn while it is drawn after ``prompt``; ``stop`` ends it."""

    def configured(self, options: TemplateOptions) -> "Renderer": ...

    def turn(self, message: ChatMessage, tools: Tools) -> list[int]:
        """Return what a model would have drawn to say an assistant's message, and what follows its end if anything."""


# Before a turn that is written by itself: templates want a user to begin.
OPENING: Final = {"role": "user", "content": "."}


def after[T: (str, list[int])](opening: T, whole: T) -> T:
    """Return what a turn adds to the conversation that it answers; ChatError where it is not written after that."""
    if whole[: len(opening)] != opening:
        raise ChatError("the model's chat template does not write an answer after what it prompts for one with")
    return whole[len(opening) :]


def read_options(given: Any) -> TemplateOptions:
    """Return options of a chat template as they came; ChatError for what only this side may say."""
    if not isinstance(given, Mapping) or len(given) > MAX_OPTIONS:
        raise ChatError(f"options of the chat template are an object of at most {MAX_OPTIONS} fields")
    for name, value in given.items():
        if not isinstance(name, str) or len(name) > MAX_OPTION_CHARS or not _NAME.fullmatch(name):
            raise ChatError(f"an option of the chat template has a name, not {str(name)[:100]!r}")
        if name in NOT_OPTIONS:
            raise ChatError(f"{name!r} is no option of a chat template")
        if not isinstance(value, bool | int | float | str) or len(str(value)) > MAX_OPTION_CHARS:
            raise ChatError(f"option {name!r} is a number, true, false, or a text of {MAX_OPTION_CHARS} characters")
    return given
