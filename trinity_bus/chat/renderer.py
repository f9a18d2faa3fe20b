"""How a model writes messages as tokens: what every renderer does, and which one a tokenizer gets.

A model that the package ``renderers`` knows by its name has that package's renderer, where it is installed, and so has
one for which ``mesh.renderer`` names it; every other model, and each that is a folder, its own chat template. See
docs/decisions/0015.
"""

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from trinity_bus.chat.encoding import encoder_of
from trinity_bus.chat.formats import ParsedCall
from trinity_bus.chat.messages import ChatError, ChatMessage, ToolSchema
from trinity_bus.chat.options import TemplateOptions
from trinity_bus.chat.protocols import Tokenizer
from trinity_bus.chat.speech import Speech

_NO_TEMPLATE = "the model's tokenizer has no chat template; send a prompt"
_log = logging.getLogger(__name__)

type Tools = Sequence[ToolSchema] | None


@dataclass(frozen=True, slots=True)
class DrawnTurn:
    """A turn that a model has drawn, and what it was drawn after."""

    prompt: Sequence[int]
    token_ids: Sequence[int]
    ended: bool  # whether the model has ended it, and no limit has cut it


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    content: str
    reasoning: str | None
    calls: Sequence[ParsedCall]
    flaws: Sequence[str]


class Renderer(Protocol):
    """Writes messages as tokens, for one model. What its template cannot write is a ChatError."""

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        """Return a whole conversation, up to where the assistant is to speak."""
        ...

    def extension(self, drawn: DrawnTurn, messages: Sequence[ChatMessage], tools: Tools) -> list[int] | None:
        """Return what follows a drawn turn: its end where that was not drawn, ``messages``, and the assistant's start.

        None where nothing can follow it, because this model writes what was before in another way from then on.
        """
        ...

    def read(self, drawn: DrawnTurn, tools: Tools) -> ParsedTurn:
        """Return a turn as it reads: without tools that the model may call there are no calls, and all is text.

        Never raises: what cannot be read as a call is a flaw of it, and text.
        """
        ...

    def speech(self, prompt: Sequence[int], stop: Sequence[str], tools: Tools = None) -> Speech:
        """Return what shows the text of a turn while it is drawn after ``prompt``; ``stop`` ends it."""
        ...

    def configured(self, options: TemplateOptions) -> "Renderer":
        """Return the renderer with other options of its chat template."""
        ...

    def turn(self, message: ChatMessage, tools: Tools) -> list[int]:
        """Return what a model would have drawn to say an assistant's message, and what follows its end if anything."""
        ...


# Before a turn that is written by itself: templates want a user to begin.
OPENING: Final = {"role": "user", "content": "."}


def after[T: (str, list[int])](opening: T, whole: T) -> T:
    """Return what a turn adds to the conversation that it answers; ChatError where it is not written after that."""
    if whole[: len(opening)] != opening:
        raise ChatError("the model's chat template does not write an answer after what it prompts for one with")
    return whole[len(opening) :]


class PromptsOnly:
    """Renderer of a model without a chat template: prompts are completed, conversations refused."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        del messages, tools
        raise ChatError(_NO_TEMPLATE)

    def extension(self, drawn: DrawnTurn, messages: Sequence[ChatMessage], tools: Tools) -> list[int] | None:
        del drawn, messages, tools
        raise ChatError(_NO_TEMPLATE)

    def read(self, drawn: DrawnTurn, tools: Tools) -> ParsedTurn:
        del tools
        return ParsedTurn(self._tokenizer.decode(list(drawn.token_ids)), None, (), ())

    def speech(self, prompt: Sequence[int], stop: Sequence[str], tools: Tools = None) -> Speech:
        del prompt, tools
        return Speech(self._tokenizer, stop=stop, plain=True)

    def configured(self, options: TemplateOptions) -> "PromptsOnly":
        del options
        raise ChatError(_NO_TEMPLATE)

    def turn(self, message: ChatMessage, tools: Tools) -> list[int]:
        del message, tools
        raise ChatError(_NO_TEMPLATE)


def renderer_for(tokenizer: Tokenizer, **options: Any) -> Renderer:
    """Return the renderer of a model.

    Args:
        tokenizer: The model's, as ``load_tokenizer`` gives it: with what the settings say.
        **options: More of the chat template, such as ``enable_thinking=False``.

    Raises:
        ChatError: The model has no chat template, or no such option.
    """
    encoder = encoder_of(tokenizer)
    options = {**getattr(tokenizer, "chat_template_options", {}), **options}
    name = str(getattr(tokenizer, "name_or_path", ""))
    is_there = importlib.util.find_spec("renderers") is not None
    if encoder.how.renderer is not None and not is_there:
        raise ChatError(f"mesh.renderer = {encoder.how.renderer!r} needs the package renderers: pip install renderers")
    if encoder.how.renderer is not None or (name and not Path(name).is_dir() and is_there):
        from trinity_bus.chat.packaged import PackagedRenderer, knows

        if encoder.how.renderer is not None or knows(name):
            _log.debug("the package renderers writes conversations with %s", name)
            return PackagedRenderer(encoder, options)
    if not tokenizer.chat_template:
        raise ChatError(_NO_TEMPLATE)
    from trinity_bus.chat.template import TemplateRenderer

    return TemplateRenderer(encoder, options)
