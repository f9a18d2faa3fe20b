"""A renderer for the models that the package ``renderers`` knows: written by hand, and tested against their templates.

It is told to keep reasoning in earlier turns, as it was drawn; what it would take back all the same begins a sample of
its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP, ToolCallParseStatus
from renderers.configs import AutoRendererConfig

from trinity_bus.chat.formats import ParsedCall
from trinity_bus.chat.messages import ChatError, ChatMessage, for_template
from trinity_bus.chat.options import TemplateOptions
from trinity_bus.chat.protocols import Tokenizer
from trinity_bus.chat.renderer import OPENING, DrawnTurn, ParsedTurn, Tools, after
from trinity_bus.chat.speech import Speech


def knows(model: str) -> bool:
    """Whether the package has a renderer for a model of this name."""
    return model in MODEL_RENDERER_MAP


class PackagedRenderer:
    """Writes messages with the package's renderer for a model.

    Args:
        tokenizer: Its ``name_or_path`` is one that the package knows.
        options: Of the chat template.

    Raises:
        ChatError: The model has no such option.
    """

    def __init__(self, tokenizer: Tokenizer, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._options = options
        keeping = AutoRendererConfig(thinking_retention="all")
        try:
            self._renderer = create_renderer(tokenizer, keeping, chat_template_kwargs=options or None)
        except (AssertionError, ValueError) as error:
            raise ChatError(str(error)) from error

    def prompt(self, messages: Sequence[ChatMessage], tools: Tools) -> list[int]:
        """See ``Renderer.prompt``."""
        return self._render(messages, tools, prompted=True)

    def configured(self, options: TemplateOptions) -> "PackagedRenderer":
        """See ``Renderer.configured``."""
        return PackagedRenderer(self._tokenizer, {**self._options, **options})

    def turn(self, message: ChatMessage, tools: Tools) -> list[int]:
        """See ``Renderer.turn``."""
        whole = self._render([OPENING, message], tools, prompted=False)
        return after(self._render([OPENING], tools, prompted=True), whole)

    def extension(self, drawn: DrawnTurn, messages: Sequence[ChatMessage], tools: Tools) -> list[int] | None:
        """See ``Renderer.extension``."""
        before = [*drawn.prompt, *drawn.token_ids]
        whole = self._renderer.bridge_to_next_turn(
            list(drawn.prompt), list(drawn.token_ids), [for_template(one) for one in messages], tools=_given(tools)
        )
        if whole is None or whole.token_ids[: len(before)] != before:
            return None
        return list(whole.token_ids[len(before) :])

    def read(self, drawn: DrawnTurn, tools: Tools) -> ParsedTurn:
        """See ``Renderer.read``."""
        read = self._renderer.parse_response(list(drawn.token_ids), tools=_given(tools), prompt_ids=list(drawn.prompt))
        calls, flaws = [], []
        for call in read.tool_calls:
            if call.status is ToolCallParseStatus.OK and call.name and isinstance(call.arguments, dict):
                calls.append(ParsedCall(call.name, call.arguments))
            else:
                flaws.append(f"this tool call could not be read, {call.status.value}: {call.raw.strip()[:200]!r}")
        return ParsedTurn(read.content, read.reasoning_content, calls, flaws)

    def speech(self, prompt: Sequence[int], stop: Sequence[str]) -> Speech:
        """See ``Renderer.speech``. What the package reads as text is known at the end of a turn."""
        del prompt, stop
        return Speech(self._tokenizer, whole=True)

    def _render(self, messages: Sequence[ChatMessage], tools: Tools, *, prompted: bool) -> list[int]:
        written = [for_template(one) for one in messages]
        try:
            return list(self._renderer.render_ids(written, tools=_given(tools), add_generation_prompt=prompted))
        except (ValueError, TypeError, KeyError) as error:
            raise ChatError(f"the model's renderer cannot write this: {type(error).__name__}: {error}") from error


def _given(tools: Tools) -> list[Any] | None:
    return [dict(tool) for tool in tools] if tools else None
