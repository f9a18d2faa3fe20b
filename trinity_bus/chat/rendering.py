"""What every renderer does: write messages as the tokens of one model, with options of its chat template.

``Speech`` is the text of a turn while it is sampled: what can be shown already, because nothing that follows changes
it.

::

    tokens --> text --[ reasoning | content | a mark ... ]--> shown: content, up to where a mark or stop may begin
                                                              held:  reasoning, tool calls, half a character

At the end of the turn, when it has been read as a whole, comes what was held. So what a client has been sent, put
together, is what the turn reads as; nothing is ever taken back.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from trinity_bus.chat.formats import THINK, THOUGHT, Read
from trinity_bus.chat.messages import ChatError, ChatMessage, Tokenizer, ToolSchema

_MARKS: Final = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>")
_HALF: Final = "\ufffd"  # what half a character decodes to


class Speech:
    """A model's turn, as it is drawn.

    Args:
        tokenizer: The model's.
        ends: Marks that may end the turn, and are no text of it.
        opened: Whether the prompt ends in reasoning.
        stop: Texts that end the turn, and are no part of it.
        object_is_call: Whether a turn that begins with a brace may be a tool call.
        whole: Whether nothing can be shown before the turn has ended.
        plain: Whether it is text and nothing else: no reasoning, no tool calls.
        called: Whether there are tools to call; without, what looks like a call is text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        ends: Collection[int],
        *,
        opened: bool = False,
        stop: Sequence[str] = (),
        object_is_call: bool = False,
        whole: bool = False,
        plain: bool = False,
        called: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._ends = ends
        self._cuts = (*_MARKS, *stop) if called and not plain else tuple(stop)
        self._object_is_call = object_is_call
        self._reasons: bool | None = False if plain else True if opened else None  # None while it is not known
        self._after_reasoning = False
        self._ids: list[int] = []
        self._trailing: list[int] = []
        self._read = self._decoded = 0
        self._text = ""  # not yet shown, and not yet passed over
        self._shown = ""
        self._silent = whole

    def hear(self, token_ids: Sequence[int]) -> str:
        """Take tokens; return the text that can be shown more."""
        if self._silent:
            return ""
        for token in token_ids:
            self._trailing.append(token)
            if token not in self._ends:
                # Marks at the end of a turn are no text of it.
                self._ids += self._trailing
                self._trailing = []
        self._text += self._decode()
        if self._reasons is None and not self._is_begun():
            return ""
        if self._reasons:
            _, closed, rest = self._text.partition(THOUGHT)
            if not closed:
                return ""
            self._reasons, self._after_reasoning, self._text = False, True, rest
        return self._show()

    def begin(self, token_ids: Sequence[int]) -> None:
        """Take the beginning of a turn that was begun for the model, which is not shown."""
        self.hear(token_ids)
        self._text = self._shown = ""

    def end(self, content: str) -> str:
        """Return what is left to be shown of a turn that reads as ``content``."""
        for shown in (self._shown, self._shown.lstrip()):
            if content.startswith(shown):
                return content[len(shown) :]
        return ""

    def _decode(self) -> str:
        """Return the text that the last tokens have added; nothing, while they end in half a character."""
        before = self._tokenizer.decode(self._ids[self._read : self._decoded])
        now = self._tokenizer.decode(self._ids[self._read :])
        if len(now) <= len(before) or now.endswith(_HALF):
            return ""
        self._read, self._decoded = self._decoded, len(self._ids)
        return now[len(before) :]

    def _is_begun(self) -> bool:
        begun = self._text.lstrip()
        if THINK.startswith(begun):
            self._reasons = True if begun == THINK else None
        else:
            self._reasons = begun.startswith(THINK)
        return self._reasons is not None

    def _show(self) -> str:
        if not self._shown:
            if self._after_reasoning:
                self._text = self._text.lstrip("\n")
            if self._object_is_call and self._text.lstrip().startswith("{"):
                self._silent = True
                return ""
        cut = min((at for mark in self._cuts if (at := self._text.find(mark)) >= 0), default=None)
        if cut is None:
            end = len(self._text) - max((_overlap(self._text, mark) for mark in self._cuts), default=0)
        else:
            end, self._silent = cut, True
        shown = self._text[:end].rstrip()
        self._text = self._text[len(shown) :]
        self._shown += shown
        return shown


def _overlap(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark."""
    return next((k for k in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:k])), 0)


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

    def begun(self, prompt: Sequence[int], text: str) -> list[int]:
        """Return the beginning of an assistant's turn, which the model is to go on with, after ``prompt``."""

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
